"""Starts `gluongraph run` as a process of its own, and finds every process that a job has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gluongraph.host.cores import cores, quota

MARK = "GG_TEST_LAUNCHED"  # variable in the environment of all processes of a job
PROGRAM = Path(__file__).with_name("rank_program.py")
LONGEST = 60.0  # seconds until a job hangs


def cores_given() -> int:
    """How many cores the ranks of a host share."""
    given = quota()
    return len(cores()) if given is None else min(len(cores()), int(given))


@dataclass(frozen=True)
class Done:
    """A launcher that has ended."""

    code: int
    out: str
    err: str

    def lines(self, rank: int) -> list[str]:
        """What a rank has written to its standard output."""
        mark = f"[{rank}] "
        return [line.removeprefix(mark) for line in self.out.splitlines() if line.startswith(mark)]


class Launched:
    """A launcher that runs."""

    def __init__(self, words: tuple[str, ...], environ: Mapping[str, str | None], folder: Path | None):
        self.mark = uuid.uuid4().hex
        told = {**os.environ, **environ, MARK: self.mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gluongraph", "run", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
            env={name: value for name, value in told.items() if value is not None},
        )  # fmt: skip

    def read_until(self, text: str, times: int = 1) -> str:
        """What it has written to its standard output, up to where it has said this so many times."""
        assert self.process.stdout is not None
        found = b""
        while found.count(text.encode()) < times:
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            assert more, f"it has ended after {found!r}"
            found += more
        return found.decode()

    def end(self, seconds: float = LONGEST) -> Done:
        """Wait for it."""
        out, err = self.process.communicate(timeout=seconds)
        return Done(self.process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def left(self) -> list[str]:
        """Processes of this job that are still there, once they have had some seconds to end."""
        until = time.monotonic() + 10
        while (found := list(self._processes())) and time.monotonic() < until:
            time.sleep(0.05)
        return [name for _, name in found]

    def mpiexec(self) -> int:
        """The number of its mpiexec, which is its child."""
        stats = ((number, Path(f"/proc/{number}/stat").read_text()) for number, _ in self._processes())
        return next(number for number, text in stats if int(text.rpartition(")")[2].split()[1]) == self.process.pid)

    def _processes(self) -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if name and int(folder.name) != self.process.pid:  # one that is about to be waited for has no name
                        yield int(folder.name), name

    def clear(self) -> None:
        """Kill whatever is left."""
        self.process.kill()
        self.process.communicate()
        for number, _ in self._processes():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


@contextmanager
def launched(
    *words: str, environ: Mapping[str, str | None] | None = None, folder: Path | None = None
) -> Iterator[Launched]:
    """Within: a launcher with these words after `gluongraph run` runs; None as a variable's value takes it away."""
    made = Launched(words, environ or {}, folder)
    try:
        yield made
    finally:
        made.clear()


def run(
    *words: str,
    n: int = 2,
    environ: Mapping[str, str | None] | None = None,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
) -> Done:
    """What rank_program.py writes with these words, on n ranks, after which no process is left."""
    with launched("-n", str(n), *options, str(PROGRAM), *words, environ=environ, folder=folder) as job:
        done = job.end()
        assert not job.left()
        return done
