"""Runs a program on several ranks of a real MPI: `run_ranks` for what must succeed, `try_ranks` for what may fail.

A program is a file, a source text, or a function at the top of a test module. The output of each rank goes to files of
its own, so that a failure shows who said what. Every process of a job has the job's token in its environment: whatever
is left over is found by it and killed.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Program = str | Path | Callable[..., Any]
TOKEN = "GG_TEST_JOB"  # in the environment of every process of a job
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks that share a core would spin at each other
    "GG_COMM_WAIT": "sleep",  # another test has the other core: beside it, jobs of ranks take no longer than alone
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # else each of two ranks is bound to one core
    "OMP_NUM_THREADS": "1",
    "TVM_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",  # on SIGABRT, which a timeout sends, each rank prints where its threads are
    "PYTHONUNBUFFERED": "1",
}
_CALL = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location({module!r}, {file!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.{function}(*sys.argv[1:])
"""
_OUTPUT_TO_FILES = (
    'rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-0}}}; folder=$1; shift; exec "$@" '
    '>"$folder/$rank.out" 2>"$folder/$rank.err"'
)


def mpiexec() -> str | None:
    """The launcher of this environment, or else of the system."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpiexec() is None,
    reason="several ranks need mpi4py and mpiexec: pip install 'gluongraph[mpi]'",
)


@cache
def is_open_mpi() -> bool:
    """Is the launcher that of Open MPI 5, which has fault tolerance (ULFM) and its own flags?"""
    shown = subprocess.run([str(mpiexec()), "--version"], capture_output=True, text=True, timeout=30)
    return "Open MPI" in shown.stdout or "OpenRTE" in shown.stdout


@dataclass(frozen=True)
class Job:
    """What a job on several ranks left behind."""

    code: int  # exit code of the launcher; negative: a signal; None of the ranks' own
    outputs: list[str]  # standard output, by rank
    errors: list[str]  # standard error, by rank
    launcher: str  # what the launcher itself printed
    orphans: list[str]  # command lines of processes that outlived the launcher; they have been killed
    seconds: float
    timed_out: bool

    def __str__(self) -> str:
        lines = [f"exit code {self.code} after {self.seconds:.1f} s" + (", timed out" if self.timed_out else "")]
        for rank, (output, error) in enumerate(zip(self.outputs, self.errors, strict=True)):
            lines += [f"--- rank {rank}, stdout", output.rstrip(), f"--- rank {rank}, stderr", error.rstrip()]
        lines += ["--- launcher", self.launcher.rstrip(), *(f"left over: {each}" for each in self.orphans)]
        return "\n".join(lines)


def run_ranks(
    number: int,
    program: Program,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    flags: Sequence[str] = (),
) -> list[str]:
    """Run a program on so many ranks; return what each printed, by rank.

    Raises:
        AssertionError: the exit code is not 0, processes were left over, or it took longer than `timeout`; with the
            output of every rank.
    """
    job = try_ranks(number, program, *arguments, env=env, timeout=timeout, flags=flags)
    assert job.code == 0 and not job.orphans and not job.timed_out, f"{number} ranks: {job}"
    return job.outputs


def try_ranks(
    number: int,
    program: Program,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    flags: Sequence[str] = (),
    python: Sequence[str] = (),
    during: Callable[[str], None] | None = None,
) -> Job:
    """Run a program that may fail on so many ranks.

    `flags` go to the launcher, `python` to the interpreter ("-m", "mpi4py"); `during` is called with the job's token
    while it runs (`processes(token)`).
    """
    token = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="gg", dir="/tmp"))  # sockets below it: their paths may have 108 characters
    try:
        command = [
            str(mpiexec()),
            *(["--oversubscribe"] if is_open_mpi() else []),
            *flags,
            *("-n", str(number), "sh", "-c", _OUTPUT_TO_FILES, "sh", str(folder), sys.executable),
            *python,
            *script(program, folder),
            *map(str, arguments),
        ]
        start = time.monotonic()
        code, launcher, timed_out = _launch(command, environment(token, folder, env), timeout, token, during)
        seconds = time.monotonic() - start
        outputs, errors = ([_text(folder / f"{rank}.{kind}") for rank in range(number)] for kind in ("out", "err"))
        return Job(code, outputs, errors, launcher, kill_left_over(token), seconds, timed_out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(token: str, folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a job: the settings above, helper modules on the path, nothing of a job around this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_"))}
    helpers = [path for path in sys.path if f"{os.sep}tests{os.sep}" in path + os.sep]
    helpers.append(str(Path(__file__).parent))
    return {
        **kept,
        **SETTINGS,
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join([*dict.fromkeys(helpers), *filter(None, [kept.get("PYTHONPATH")])]),
        TOKEN: token,
        **(more or {}),
    }


def processes(token: str) -> Iterator[tuple[int, str]]:
    """The processes of a job that live: their ids and command lines."""
    wanted = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def kill_left_over(token: str, grace: float = 2.0) -> list[str]:
    """Kill the processes of a job that have not ended `grace` seconds after it; return their command lines."""
    until = time.monotonic() + grace
    while (left := list(processes(token))) and time.monotonic() < until:
        time.sleep(0.05)
    for process, _ in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return [command for _, command in left]


def _launch(
    command: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    token: str,
    during: Callable[[str], None] | None,
) -> tuple[int, str, bool]:
    """The exit code of the launcher, what it printed, and whether it had to be ended."""
    with tempfile.TemporaryFile() as shown:
        launcher = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown)
        timed_out = False
        try:
            if during is not None:
                during(token)
            launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            for process, line in processes(token):
                if process != launcher.pid and sys.executable in line:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(5)
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(5)
                launcher.kill()
                launcher.wait()
        shown.seek(0)
        return launcher.returncode, shown.read().decode(errors="replace"), timed_out


def script(program: Program, folder: Path) -> list[str]:
    """The interpreter's argument that runs a program; a source text becomes a file in `folder`."""
    if isinstance(program, Path) or (isinstance(program, str) and program.endswith(".py") and "\n" not in program):
        return [str(program)]
    if isinstance(program, str):
        text = inspect.cleandoc(program)
    else:
        text = _CALL.format(
            module=program.__module__.rpartition(".")[2],
            file=inspect.getfile(program),
            function=program.__qualname__,
        )
    file = folder / "program.py"
    file.write_text(text + "\n", encoding="utf-8")
    return [str(file)]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
