"""`launcher_program.py DESCRIPTOR SCRIPT ARGUMENTS...`, or `... -m MODULE ARGUMENTS...`: the program of a rank.

It runs as `python SCRIPT ARGUMENTS...` would run it, but for its end. After an exception that nobody catches, Python
goes on to MPI_Finalize, which waits for the other ranks, which wait for this one. So here the failure is first told
to whoever started the rank, by its exit code written to DESCRIPTOR; then the program ends as Python ends, handlers of
atexit included, but before MPI_Finalize. `python -m mpi4py` calls MPI_Abort instead, by which the other ranks are
killed before they have written what they had to say.

The file is run by its path and imports nothing of gluongraph, since a program need not.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import types
import zipfile
from contextlib import suppress
from types import TracebackType


class Failure:
    """The exit code of this process once the program has failed; 0 before."""

    def __init__(self, descriptor: int):
        os.set_inheritable(descriptor, False)
        self.descriptor, self.code = descriptor, 0
        self._process = os.getpid()

    def is_known(self, code: int) -> None:
        """Tell the exit code of a program that has failed. A process that the program has forked tells nothing."""
        if code and os.getpid() == self._process:
            self.code = code
            with suppress(OSError):
                os.write(self.descriptor, str(code).encode())

    def leave(self) -> None:
        """End a process that has failed: the last handler of atexit, as it was registered first."""
        if self.code and os.getpid() == self._process:
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # there is none, nobody reads, it is closed
                    stream.flush()
            if self.code == 128 + signal.SIGINT:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(self.code)


def main(descriptor: int, words: list[str]) -> None:
    """Run the program that the words name."""
    failure = Failure(descriptor)
    atexit.register(failure.leave)
    try:
        if words[0] == "-m":
            _run_module(words[1:])
        else:
            _run_file(words)
    except SystemExit as error:
        failure.is_known(exit_code(error.code))
        raise
    except BaseException as error:
        trace = _of_the_program(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        failure.is_known(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
        sys.exit(1)


def exit_code(given: object) -> int:
    """The exit code of a process that ends by sys.exit(given).

    >>> exit_code(None), exit_code(3), exit_code(-1), exit_code("no such file")
    (0, 3, 255, 1)
    """
    if given is None:
        return 0
    return given & 255 if isinstance(given, int) else 1


def _run_file(words: list[str]) -> None:
    """As `python FILE ARGUMENTS...`: a script, or a folder or archive with a __main__.py."""
    path = os.path.abspath(words[0])
    sys.argv = words
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _put_first(path)
        _run_as_main("__main__", alter_argv=False)
        return
    _put_first(os.path.dirname(os.path.realpath(path)))
    main = _new_main()
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def _run_module(words: list[str]) -> None:
    """As `python -m MODULE ARGUMENTS...`."""
    sys.argv = ["-m", *words[1:]]
    _put_first(os.getcwd())
    _run_as_main(words[0], alter_argv=True)


def _run_as_main(name: str, alter_argv: bool) -> None:
    """What `python -m` itself calls. runpy.run_module would take the module __main__ away when the program's last line
    has run, while its threads and handlers of atexit may still need it."""
    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _new_main() -> types.ModuleType:
    """The module __main__ from now on: that of this file has names that are not the program's."""
    made = types.ModuleType("__main__")
    vars(made)["__builtins__"] = builtins
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = made
    return made


_kept: list[types.ModuleType] = []  # the functions here need the names of their module until the end


def _put_first(folder: str) -> None:
    """Import from this folder first, as Python does unless it is told not to (PYTHONSAFEPATH)."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this file and of runpy, above those of the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
