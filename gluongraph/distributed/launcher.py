"""Starts a program on several ranks by mpiexec, shows what they write, and ends them all when one fails.

The processes, of which each ends when the one before it has ended, however that happened:

  launcher -> mpiexec -> launcher_rank.py, for each rank -> launcher_program.py, which runs the program
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gluongraph.distributed import launcher_mpi
from gluongraph.distributed.launcher_mpi import LaunchError, Mpi
from gluongraph.distributed.launcher_output import Output
from gluongraph.distributed.launcher_rank import ENDED, ERR, FAILED, HELLO, KILL_AFTER, OUT, THREADS
from gluongraph.distributed.launcher_server import Ended, Peer, Server, told_to_ranks

_HERE = Path(__file__).resolve().parent
_TOGETHER = 0.1  # seconds for other ranks to say that they have failed, perhaps earlier
_TERM_AFTER = 5.0  # seconds between SIGINT, with which programs may save what they have, and SIGTERM
_SAY_AFTER = 1.0  # seconds between Ctrl-C and the word that some ranks are still there
_ALONE = 8.0  # seconds between the end of the first rank and the word that others are still there
_LOST_AFTER = 2.0  # seconds for mpiexec to end after it has killed a rank, before the rank is said to be lost
_MPIEXEC = 5.0  # seconds for mpiexec to end after all its ranks, and again after SIGTERM
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Job:
    """What is to be started: SCRIPT ARGUMENTS... or -m MODULE ARGUMENTS..., and how."""

    program: tuple[str, ...]
    ranks: int
    hosts: tuple[tuple[str, int], ...] = ()  # names, and how many ranks each takes; none: this one
    threads: int | None = None  # of each rank; None: its share of the cores
    elastic: bool = False  # ranks go on when others are lost
    prefix: bool = True  # lines are marked with their rank
    mpiexec_args: tuple[str, ...] = ()


def launch(job: Job) -> int:
    """Run the program on all ranks. The exit code is that of the first rank that has failed, 128 and the number of the
    signal if it was killed; 130 or 143 if this process was asked to end by SIGINT or SIGTERM; else 0.

    Raises:
        LaunchError: mpi4py or mpiexec is missing; this MPI cannot do what the job asks for.
    """
    mpi = launcher_mpi.find()
    if job.elastic and not mpi.survives:
        whose = mpi.flavour or "of an unknown MPI"
        raise LaunchError(f"--elastic needs Open MPI 5 or later, and {mpi.path} is {whose}: leave --elastic out")
    launcher = Launcher(job, mpi)
    with _asked_to_stop(launcher):
        return launcher.run()


@contextmanager
def _asked_to_stop(launcher: Launcher) -> Iterator[None]:
    """Within: signals that would end this process are noted, and end the ranks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        launcher.signals.append(number)
        launcher.output.interrupt()

    noted = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # as of nohup
    before = {number: signal.signal(number, note) for number in noted}
    wake = signal.set_wakeup_fd(launcher.wake.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wake)
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Failure:
    """How a rank has failed: its exit code or the negative number of a signal; None where its end was not seen."""

    time: float
    rank: int
    host: str
    code: int | None

    def __str__(self) -> str:
        if self.code is None:
            return f"rank {self.rank}{self.host} was lost: its connection ended"
        if self.code >= 0:
            return f"rank {self.rank}{self.host} ended with exit code {self.code}"
        with suppress(ValueError):
            return f"rank {self.rank}{self.host} was killed by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"rank {self.rank}{self.host} was killed by signal {-self.code}"


class Launcher:
    """One job that runs."""

    def __init__(self, job: Job, mpi: Mpi):
        self.job, self.mpi = job, mpi
        self.output = Output(job.prefix)
        self.signals: list[int] = []  # that have come, and are not acted upon yet
        self.woken, self.wake = socket.socketpair()
        for each in (self.woken, self.wake):
            each.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.woken, selectors.EVENT_READ, lambda: self.woken.recv(4096))
        self._server = Server(self._selector, bool(job.hosts), self._message, self._peer_ended)
        self._later: list[tuple[float, Callable[[], None]]] = []  # what is to be done at which time
        self._failures: list[_Failure] = []
        self._succeeded = 0  # ranks
        self._stopped_by = 0  # the signal that this process was asked to end with
        self._ending = self._released = False

    def run(self) -> int:
        """From start to end."""
        self._mpiexec = self._start()
        try:
            while self._mpiexec.poll() is None or self._live():
                self._step(0.1)  # seconds; nothing else says that mpiexec has ended
            until = time.monotonic() + 1.0  # processes that mpiexec has left somewhere may keep its pipes open
            while self._pipes and time.monotonic() < until:
                self._step(0.1)
            self._say_that_none_has_started()
            self.output.close()
        finally:
            self._clean_up()
        return self._exit_code()

    def _step(self, longest: float) -> None:
        """Wait for something to happen, and act upon it."""
        now = time.monotonic()
        due = min((when for when, _ in self._later), default=now + longest)
        for key, _ in self._selector.select(max(0.0, min(due - now, longest))):
            if key.fileobj in self._selector.get_map():  # not closed by what came before it
                key.data()
        self.output.show_due()
        while self.signals:
            self._stop(self.signals.pop(0))
        now = time.monotonic()
        for each in [each for each in self._later if each[0] <= now]:
            self._later.remove(each)
            each[1]()
        if not self._ending and self._mpiexec.poll() is not None and self._live():
            self._end(signal.SIGTERM)  # somebody has killed mpiexec
        if self._ending and not self._live():
            self._release()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    # --- mpiexec

    def _start(self) -> subprocess.Popen[bytes]:
        job = self.job
        rank = [sys.executable, "-I", "-S", str(_HERE / "launcher_rank.py"), ",".join(self._server.addresses)]
        command = self.mpi.command(rank, job.ranks, job.hosts, job.elastic, job.mpiexec_args)
        mpiexec = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HERE / "launcher_exec.py"), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**self.mpi.environ(bool(job.hosts), os.geteuid() == 0), **os.environ, **self._server.environ()},
            start_new_session=True,  # Ctrl-C comes to the launcher alone, which ends the ranks in order
        )  # fmt: skip
        assert mpiexec.stdout is not None and mpiexec.stderr is not None
        self._pipes = {mpiexec.stdout.fileno(): 1, mpiexec.stderr.fileno(): 2}
        for pipe in self._pipes:
            self._selector.register(pipe, selectors.EVENT_READ, partial(self._mpiexec_writes, pipe))
        return mpiexec

    def _mpiexec_writes(self, pipe: int) -> None:
        """What it says by itself. When the launcher has ended the ranks, it only complains of that."""
        if not (data := os.read(pipe, 1 << 16)):
            self._selector.unregister(pipe)
            del self._pipes[pipe]
        elif not self._ending or os.environ.get("GG_DEBUG", "0") not in ("", "0"):
            self.output.feed(None, self._pipes[pipe], data)

    def _say_that_none_has_started(self) -> None:
        """mpiexec failed before there was a rank, for reasons that it has told in its own words."""
        code = self._mpiexec.poll()
        if code and not self._stopped_by and all(peer.rank is None for peer in self._server.peers):
            names = ", ".join(name for name, _ in self.job.hosts)
            help = f"; `ssh HOST true` has to work without a password for each of {names}" if names else ""
            self.output.say(f"no rank was started: mpiexec ended with exit code {code}, see above{help}")

    def _signal_mpiexec(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:  # and what it has started here: it is the first of its session
                os.killpg(self._mpiexec.pid, number)
            else:
                self._mpiexec.send_signal(number)

    def _clean_up(self) -> None:
        """However it went, nothing is left: ranks end when their connections are closed, and mpiexec after them."""
        self._server.close()
        for seconds, number in ((KILL_AFTER + 2.0, signal.SIGTERM), (_MPIEXEC, signal.SIGKILL)):
            with suppress(subprocess.TimeoutExpired):
                self._mpiexec.wait(seconds)
                break
            self._signal_mpiexec(number)
        self._mpiexec.wait()
        self._selector.close()
        for each in (self._mpiexec.stdout, self._mpiexec.stderr, self.woken, self.wake):
            if each is not None:
                each.close()

    # --- ranks

    def _live(self) -> list[Peer]:
        return [peer for peer in self._server.peers if peer.open and peer.rank is not None and peer.ended is None]

    def _message(self, peer: Peer, kind: bytes, data: bytes) -> None:
        if kind == HELLO:
            self._hello(peer)
        elif kind in (OUT, ERR):
            self.output.feed(peer.rank, 1 if kind == OUT else 2, data)
        elif kind == FAILED:
            self._note(peer, Ended.read(data))
        elif kind == ENDED:
            self.output.end(peer.rank)
            peer.ended = Ended.read(data)
            self._note(peer, peer.ended)

    def _hello(self, peer: Peer) -> None:
        if self._ending:
            self._server.close_peer(peer)
            return
        environ = {"PYTHONUNBUFFERED": "1", **told_to_ranks()}
        if self.job.threads is not None:
            environ |= dict.fromkeys(THREADS, str(self.job.threads))
        if self.job.elastic:
            environ["GG_ELASTIC"] = "1"
        job: dict[str, Any] = {"program": self.job.program, "ranks": self.job.ranks, "elastic": self.job.elastic}
        peer.send_job({**job, "environ": environ})

    def _note(self, peer: Peer, ended: Ended) -> None:
        """A rank has failed, or has ended. One that has failed is let go when all have ended: mpiexec, which sees it
        go, kills the others a second later. Where they are to go on, mpiexec has to see it, and to tell them."""
        if ended.code and not ended.asked:
            self._failed(peer, ended.time, ended.code)
        elif not ended.code:
            self._succeeded += 1
            if self._succeeded == 1:
                self._after(_ALONE, partial(self._say_who_goes_on, peer))
        if peer.ended is not None and (self.job.elastic or not ended.code):
            self._server.close_peer(peer)

    def _failed(self, peer: Peer, when: float, code: int | None) -> None:
        if peer.rank in {each.rank for each in self._failures}:  # it said so, and now it has ended
            return
        failure = _Failure(when, peer.rank or 0, f" on {peer.host}" if self.job.hosts else "", code)
        self._failures.append(failure)
        if self.job.elastic:
            self.output.say(str(failure))
        elif len(self._failures) == 1:
            self._after(_TOGETHER, self._end_after_failure)

    def _peer_ended(self, peer: Peer) -> None:
        """A connection has ended. If mpiexec has killed the rank, it is about to end itself."""
        if peer.rank is not None and peer.ended is None:
            self.output.end(peer.rank)
            self._after(_LOST_AFTER, partial(self._lost, peer, time.time()))

    def _lost(self, peer: Peer, when: float) -> None:
        if not self._ending and self._mpiexec.poll() is None:
            self._failed(peer, when, None)

    # --- the end

    def _first_failure(self) -> _Failure:
        return min(self._failures, key=lambda each: each.time)

    def _end_after_failure(self) -> None:
        if not self._ending:
            others = "; the other ranks are ended" if self.job.ranks > 1 else ""
            self.output.say(f"{self._first_failure()}{others}")
            self._end(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """This process is asked to end: so are the ranks. Asked once more by Ctrl-C, they are killed."""
        again = self._stopped_by != 0
        self._stopped_by = self._stopped_by or number
        if number == signal.SIGINT:
            self._end(signal.SIGKILL if again else signal.SIGINT)
            self._after(_SAY_AFTER, self._say_who_is_left)
        elif not again:
            self._end(signal.SIGTERM)

    def _say_who_is_left(self) -> None:
        if left := self._left():
            self.output.say(f"waiting for {left} to end; Ctrl-C again kills them")

    def _left(self) -> str:
        """The ranks that have not ended, in words."""
        left = sorted(peer.rank for peer in self._live() if peer.rank is not None)
        return f"{'ranks' if len(left) > 1 else 'rank'} {', '.join(map(str, left))}" if left else ""

    def _say_who_goes_on(self, ended: Peer) -> None:
        """Ranks that go on long after the first one may have work left, or wait for it within MPI_Init, where they can
        say nothing themselves."""
        if not self._ending and (left := self._left()):
            self.output.say(f"rank {ended.rank} has ended with exit code 0, and is no longer there for {left}")

    def _end(self, first: int) -> None:
        """End the ranks, by this signal first."""
        self._ending = True
        seconds = 0.0
        for number, patience in ((signal.SIGINT, _TERM_AFTER), (signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, 0.0)):
            if seconds or number == first:
                self._after(seconds, partial(self._signal_ranks, number))
                seconds += patience

    def _signal_ranks(self, number: int) -> None:
        failed = {each.rank for each in self._failures}
        for peer in self._live():
            if number == signal.SIGKILL or peer.rank not in failed:  # one that has failed is ending
                peer.signal(number)

    def _release(self) -> None:
        """No program runs any more: let what has started them end."""
        if not self._released:
            self._released = True
            all_are_here = sum(peer.rank is not None for peer in self._server.peers) >= self.job.ranks
            for peer in self._server.peers:
                self._server.close_peer(peer)
            seconds = _MPIEXEC if all_are_here else 0.0
            self._after(seconds, partial(self._signal_mpiexec, signal.SIGTERM))
            self._after(seconds + _MPIEXEC, partial(self._signal_mpiexec, signal.SIGKILL))

    def _exit_code(self) -> int:
        if self._stopped_by:
            return 128 + self._stopped_by
        survived = self.job.elastic and self._succeeded
        counted = [each for each in self._failures if not survived or (each.code or 0) > 0]
        if counted:
            code = min(counted, key=lambda each: each.time).code
            return 1 if code is None else code if code > 0 else 128 - code
        code = self._mpiexec.returncode
        if code == 0 and self._succeeded + len(self._failures) < self.job.ranks:
            code = 1
        return code if code >= 0 else 128 - code
