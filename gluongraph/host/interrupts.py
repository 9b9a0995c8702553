"""Ctrl-C takes effect at once: long work runs in threads beside the main one, and children end with their parent.

Python handles signals between two instructions of the main thread. While that is within LLVM, or waits for a pool of
threads to finish, nothing happens for seconds; and an import that an interrupt has cut can be neither used nor done
again. So such work is done by daemon threads. The main thread waits for them and leaves them alone when interrupted.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeVar

from gluongraph.errors import user_origin

T = TypeVar("T")

_GRACE = 0.5  # seconds that the end of the process waits for threads that are within Python
_PATIENCE = 20.0  # seconds that it waits for threads to end where a program has gone on after an interrupt
_GUARD = Path(__file__).with_name("guard.py")


class Ended(Exception):
    """The process ends: no more Python runs in background threads."""


def in_parallel(tasks: Iterable[Callable[[], T]], workers: int) -> list[T]:
    """The results of the tasks, in their order. Threads run them while the caller's thread makes the next ones.

    When the caller is interrupted, tasks that wait are dropped and those that run are not waited for.

    Raises:
        Exception: what a task, or the making of one, raised first; tasks that wait are dropped then, too.

    >>> in_parallel((lambda i=i: i * i for i in range(4)), workers=2)
    [0, 1, 4, 9]
    """
    _raise_what_was_lost()
    jobs: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = SimpleQueue()
    dropped = threading.Event()

    def work() -> None:
        while (job := jobs.get()) is not None:
            future, task = job
            if dropped.is_set():
                future.cancel()
                continue
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

    results: list[Future[T]] = []
    threads: list[threading.Thread] = []
    try:
        for task in tasks:
            results.append(Future())
            jobs.put((results[-1], task))
            if len(threads) < workers:
                threads.append(_started(work, "compile"))
        return [result.result() for result in results]
    finally:
        dropped.set()
        for _ in threads:
            jobs.put(None)
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            for thread in threads:
                thread.join()


def aside(task: Callable[[], T]) -> T:
    """What the task returns. The main thread has another one run it, so that an interrupt need not wait for its end.

    >>> aside(lambda: 2 + 3)
    5
    """
    if threading.current_thread() is not threading.main_thread():
        return task()
    return in_parallel([task], workers=1)[0]


def import_whole(name: str, hidden: Sequence[str] = ()) -> ModuleType:
    """Import a module, whole even if the caller is interrupted meanwhile: the import goes on, and the next one waits
    for its end. During it, `import` of the hidden ones fails unless they have been imported before."""
    if name in sys.modules and name not in _importing:
        return importlib.import_module(name)
    if threading.current_thread() is not threading.main_thread():
        return _imported(name, hidden)
    done: Future[ModuleType] = _importing.get(name) or Future()

    def work() -> None:
        try:
            with calling_python():
                done.set_result(_imported(name, hidden))
        except BaseException as error:
            done.set_exception(error)
        finally:
            _importing.pop(name, None)

    if name not in _importing:
        _importing[name] = done
        _started(work, "import")
    return done.result()


_importing: dict[str, Future[ModuleType]] = {}
_one_import = threading.Lock()


def _imported(name: str, hidden: Sequence[str]) -> ModuleType:
    with _one_import:
        modules: dict[str, Any] = sys.modules
        absent = [each for each in hidden if each not in modules]
        modules.update(dict.fromkeys(absent))  # None: what Python documents as "cannot be imported"
        try:
            return importlib.import_module(name)
        finally:
            for each in absent:
                if modules.get(each, ...) is None:
                    del modules[each]


# --- the end of the process


class _Gate:
    """Counts threads that may be called back by native code, and lets none in when the process ends.

    A thread that wants Python's lock while Python is shut down is ended by unwinding its stack. Where frames of C++
    lie in between, as in TVM's passes, that aborts the process.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed and threading.current_thread() is not threading.main_thread():
                raise Ended
            self._inside += 1

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Let no thread in; wait for those inside, for so long."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside, seconds)


_gate = _Gate()
_running: list[threading.Thread] = []


def calling_python() -> _Gate:
    """Within: native code that a background thread runs may call Python."""
    return _gate


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    """A daemon thread, which the end of the process knows of."""
    _running[:] = [thread for thread in _running if thread.is_alive()]
    thread = threading.Thread(target=work, name=f"gluongraph-{name}", daemon=True)
    _running.append(thread)
    thread.start()
    return thread


_ending = 0  # the exit code that is known; that of a signal is negative


def ends_with(code: int) -> int:
    """Say the exit code with which the process is about to end: it can then end at once, whatever threads still do."""
    global _ending
    _ending = code
    return code


@atexit.register
def _at_exit() -> None:
    """End the process here if threads that an interrupt left behind still run.

    They may be within LLVM: destructors of C++ would take its data from under them; and who returns to Python while it
    is shut down has its stack unwound, which aborts the process. Where the exit code is known, the process is ended
    with it. Else, as when the program has caught the interrupt, they are waited for. Should one take too long, the C
    library is told to end the process with the exit code it gets, before it runs any destructor.
    """
    if not _ending:
        until = time.monotonic() + _PATIENCE
        for thread in _running:
            thread.join(max(0.0, until - time.monotonic()))
    if not any(thread.is_alive() for thread in _running):
        if _ending < 0:
            _raise_at_the_end(-_ending)
        return
    _gate.close(_GRACE)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, it is closed, nobody reads
            stream.flush()
    if _ending < 0:
        signal.signal(-_ending, signal.SIG_DFL)
        os.kill(os.getpid(), -_ending)
    if _ending:
        os._exit(_ending)
    with suppress(AttributeError, OSError):  # a C library without on_exit
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # _exit(status): these run last in, first out
        libc.__cxa_atexit(libc.fflush, None, None)  # fflush(NULL) before: what C has buffered is written


def _raise_at_the_end(number: int) -> None:
    """Have the C library end the process by a signal, when Python has been shut down.

    Python does so itself after a KeyboardInterrupt that nobody has caught, unless native code, such as a module that a
    background thread still imported, has run a string of Python since: that resets the note which Python has made.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(libc["raise"], number, None)  # these run last in, first out
        libc.__cxa_atexit(libc.fflush, None, None)


# --- what is shown


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Within: an interrupt that ends the program is shown as one line that says what it cut. GG_DEBUG=1 shows all.

    None is lost: one that Python or a library has ignored, or has turned into another error, is raised at the end.
    """
    try:
        with _none_lost():
            yield
    except KeyboardInterrupt as error:
        show_in_one_line(error, what)
        raise


_lost = threading.Event()  # an interrupt has come, and `_none_lost` has not seen its KeyboardInterrupt


@contextmanager
def _none_lost() -> Iterator[None]:
    """Within: each interrupt raises KeyboardInterrupt, here or at the end.

    Python raises it in whatever the main thread runs. In a callback of a weak reference or `__del__` it is ignored;
    in `__set_name__`, which an import may call, it becomes a RuntimeError; native code has errors of its own.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # nested, or the program's own
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _lost.set()
        signal.default_int_handler(number, frame)

    _lost.clear()
    try:
        signal.signal(signal.SIGINT, handle)
        yield
        _raise_what_was_lost()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not _lost.is_set():
            raise
        raise KeyboardInterrupt from error
    finally:
        _lost.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_what_was_lost() -> None:
    if threading.current_thread() is threading.main_thread() and _lost.is_set():
        raise KeyboardInterrupt


def show_in_one_line(error: KeyboardInterrupt, what: str) -> None:
    """Note at the interrupt what it cut, for the case that it ends the program."""
    if os.environ.get("GG_DEBUG", "0") in ("", "0"):
        vars(error).setdefault(_CUT, f"{what} was interrupted, {user_origin()}")
        _hook()


_CUT = "gluongraph_interrupted"  # attribute of an exception: what it cut


@cache
def _hook() -> None:
    """Have Python show exceptions by `show`, once."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (what := vars(error).get(_CUT)) is None:
            before(kind, error, trace)
        else:
            print(f"KeyboardInterrupt: {what}", file=sys.stderr)
            ends_with(-signal.SIGINT)

    sys.excepthook = show


# --- children


def watch_parent(parent: int) -> None:
    """Let this process end within a second after its parent has, however that happened.

    For processes that any thread may have started: what `guarded` asks for happens when that thread ends.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="gluongraph-parent", daemon=True).start()


def guarded(command: Sequence[str]) -> list[str]:
    """A command for a child that the system kills when this process ends, or the thread that starts it, even by
    SIGKILL: an interpreter asks for that and becomes the program. Elsewhere than on Linux, the command itself."""
    if not sys.platform.startswith("linux") or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *command]
