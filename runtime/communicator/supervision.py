"""No rank waits for ever: a thread in each process tells the others what its main thread does.

Where a rank has ended while others wait for it, has raised, or is stopped, the job ends within 10 s, with one line that
names the rank. A rank that is alive and busy is waited for: after 10 s one line says who waits and what the busy one
runs; the job ends after GG_COMM_TIMEOUT seconds (1800).

| variable | seconds |
|---|---|
| `GG_COMM_TIMEOUT` | that a rank may wait in one collective; 1800 |
| `GG_COMM_SILENCE` | without a message after which a process on another host counts as stopped; 9 |

Five times a second every rank sends a report (`diagnosis.py`) to rank 0 of the supervised communicator, which draws the
conclusions, and hears from rank 0; these are messages between two ranks, on a communicator of their own. A program ends
on no rank before it has ended on all.

In a fault tolerant job a lost rank does not end it: all communicators are revoked, so that the collectives of the ranks
that are left end with `PeerLost`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gluongraph.runtime.communicator import diagnosis
from gluongraph.runtime.communicator.activity import ACTIVITY
from gluongraph.runtime.communicator.diagnosis import FINISHED, RUNNING, Diagnosis, Fault, Report
from gluongraph.runtime.communicator.main_thread import Place
from gluongraph.runtime.communicator.settings import seconds

if TYPE_CHECKING:
    from mpi4py import MPI

    from gluongraph.runtime.communicator.mpi import MpiCommunicator

_INTERVAL = 0.2  # seconds between two reports
_RANKS_A_SECOND = 5000  # reports that rank 0 takes; of more ranks, each reports less often
_END = 10.0  # seconds that the last messages of all may take
_WITH_FT = "OMPI_MCA_mpi_ft_enable"  # set by `mpiexec --with-ft ulfm`
_GO, _BYE = "go", "bye"
_LONGEST = 4096  # bytes of a message


class Supervisor:
    """The thread of one process, and what it knows of the others."""

    def __init__(self, supervised: MpiCommunicator, mpi: Any, on_lost: Callable[[int], None]) -> None:
        """All ranks of the communicator call this. `on_lost` is called with its number of losses when a
        rank is lost in a fault tolerant job."""
        self._mpi = mpi
        self._on_lost, self._losses = on_lost, supervised.losses
        self._processes = [text.split("\n") for text in supervised.exchange(f"{_host()}\n{os.getpid()}")]
        self._comm: MPI.Intracomm = supervised.raw.Dup()
        self._rank, self._size = self._comm.rank, self._comm.size
        self._names = supervised.started_as
        self._own_process = os.getpid()
        watched = self._names if self._rank == 0 else [self._names[0], self._names[self._rank]]
        self._diagnosis = Diagnosis(watched, time.monotonic(), seconds("GG_COMM_TIMEOUT", 1800))
        self._silence = seconds("GG_COMM_SILENCE", 9)
        self._state = RUNNING
        self._place = Place()
        self._asked = False  # others wait for this rank, and want to know where it is
        self._raised = ""
        self._sent: dict[int, list[tuple[MPI.Request, bytes]]] = {}  # messages that are under way, by receiver
        self._goodbyes: set[int] = set()  # ranks that send nothing more
        self._going = False  # all have finished
        self._finishing = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gluongraph-supervision", daemon=True)
        self._thread.start()

    # --- the main thread

    def finish(self) -> None:
        """Wait until the programs of all ranks have ended; called at the end of the process."""
        if not self._is_rank():
            return
        if self._raised or _uncaught() is not None:
            self.end_all(self._raised or _raised(_uncaught()))
        while _before_finish:
            _before_finish.pop()()
        self._state = FINISHED
        self._finishing.set()
        try:
            self._over.wait()
        except KeyboardInterrupt:
            self.end_all("was interrupted while it waited for the others to end", code=130)
        if fault_tolerant() and not _loss:  # see load_mpi
            self.finalize()
        while _when_finished:
            _when_finished.pop()()

    def finalize(self) -> None:
        """End MPI in this process."""
        if self._is_rank() and not _loss:
            self._mpi.Finalize()

    def _is_rank(self) -> bool:
        """Is this the process that MPI knows, and not a fork of it; and has it not left the job?"""
        return os.getpid() == self._own_process and not self._mpi.Is_finalized()

    def raised(self, error: BaseException) -> None:
        """Note an exception that nobody caught, after its traceback has been printed."""
        if not self._is_rank():
            return
        self._raised = _raised(error)
        patience = threading.Timer(5, self.end_all, [self._raised])  # other threads may keep the process from ending
        patience.daemon = True
        patience.start()

    def end_all(self, what: str, code: int = 1) -> None:
        """Say what this rank did, and end the job."""
        self._abort(f"rank {self._names[self._rank]} {what}", code)

    def _abort(self, message: str, code: int = 1) -> None:
        say(f"{message}; all ranks are ended")
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)

    # --- the thread

    def _run(self) -> None:
        try:
            self._watch()
        except self._mpi.Exception:
            if fault_tolerant():
                self._give_up()
        except Exception as error:  # a defect here: the others would wait for this rank for ever
            self.end_all(f"is no longer watched: {_raised(error)}")
        finally:
            self._over.set()

    def _give_up(self) -> None:
        """A rank is lost: let the other threads like this one know, and all collectives end."""
        note_loss()
        with contextlib.suppress(self._mpi.Exception, NotImplementedError):
            self._comm.Revoke()
        self._on_lost(self._losses)

    def _watch(self) -> None:
        step = self._lead if self._rank == 0 else self._follow
        interval = max(_INTERVAL, self._size / _RANKS_A_SECOND)
        before = time.monotonic()
        deadline = 0.0
        while not self._finished() and not 0 < deadline < before:
            now = time.monotonic()
            if now - before > interval + 1:
                self._diagnosis.pause(now - before)
            before = now
            step(now)
            if self._going:
                deadline = deadline or now + _END
            if self._finishing.is_set():
                time.sleep(0.002)
            else:
                self._finishing.wait(interval)

    def _lead(self, now: float) -> None:
        """Rank 0: hear all, conclude, answer all."""
        self._receive(now)
        late = self._diagnosis.waited_for(now)
        self._asked = 0 in late
        own = self._report(now)
        self._diagnosis.hear(0, own, now)
        if not self._going:
            self._look_at_silent(now)
            if (fault := self._diagnosis.fault(now)) is not None:
                self._act(fault)
            self._going = self._diagnosis.all_finished()
            for other in range(1, self._size):
                text = _GO if self._going else replace(own, asks=other in late).encode()
                self._send(other, text, always=self._going)

    def _follow(self, now: float) -> None:
        """The others: report to rank 0, and watch it."""
        self._receive(now)
        own = self._report(now)
        self._diagnosis.hear(1, own, now)
        if self._going:
            if self._all_arrived(0) and 0 not in self._goodbyes:
                self._goodbyes.add(0)
                self._send(0, _BYE)
            return
        self._send(0, own.encode())
        self._look_at_silent(now - min(2.0, 0.3 * (self._rank - 1)))  # one of those that see the same says it
        if (fault := self._diagnosis.lost(now)) is not None:
            self._act(fault)

    def _finished(self) -> bool:
        """Has everything been sent and received?"""
        others = range(1, self._size) if self._rank == 0 else range(1)
        return self._going and all(other in self._goodbyes and self._all_arrived(other) for other in others)

    def _act(self, fault: Fault) -> None:
        if not fault.fatal:
            say(fault.message)
        elif fault.lost is not None and self._can_be_lost(fault.lost, fault.remains):
            note_loss(self._names[fault.lost])
            say(fault.message)
            raise self._mpi.Exception(self._mpi.ERR_PROC_FAILED)
        else:
            self._abort(fault.message)

    def _can_be_lost(self, index: int, remains: bool) -> bool:
        """May the others go on without it? A process of this host that remains is killed, which MPI then notices.

        One that is gone, MPI would have noticed long before; it does not where the process ended by itself.
        """
        if not remains or not fault_tolerant():
            return False
        host, process = self._processes[index]
        if host != _host():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
        return True

    # --- messages

    def _send(self, other: int, text: str, always: bool = False) -> None:
        """Send a message. While the previous one has not been received none is sent, unless it has to be."""
        if self._all_arrived(other) or always:
            data = text.encode("utf-8", "replace")[:_LONGEST]
            self._sent.setdefault(other, []).append((self._comm.Issend((data, self._mpi.BYTE), other), data))

    def _all_arrived(self, other: int) -> bool:
        self._sent[other] = [each for each in self._sent.get(other, ()) if not each[0].Test()]
        return not self._sent[other]

    def _receive(self, now: float) -> None:
        """Take all messages that have arrived."""
        source = self._mpi.ANY_SOURCE if self._rank == 0 else 0
        status = self._mpi.Status()
        buffer = bytearray(_LONGEST)
        while self._comm.Iprobe(source, 0, status):
            sender = status.Get_source()
            self._comm.Recv((buffer, self._mpi.BYTE), sender, 0, status)
            text = buffer[: status.Get_count(self._mpi.BYTE)].decode("utf-8", "replace")
            if text == _GO:
                self._going = True
            elif text == _BYE:
                self._goodbyes.add(sender)
            else:
                report = Report.decode(text)
                self._diagnosis.hear(sender, report, now)
                self._asked = report.asks

    def _report(self, now: float) -> Report:
        collective = ACTIVITY.inside
        if collective is None:
            return Report(self._state, place=self._place.read(None, self._asked, now))
        doing = collective.name, collective.owner.members, collective.owner.calls
        return Report(self._state, *doing, self._place.read(doing, self._asked, now))

    def _look_at_silent(self, now: float) -> None:
        """Ask the system for the processes that do not report."""
        for index in self._diagnosis.silent(now, diagnosis.SILENCE):
            host, process = self._processes[index]
            if host == _host():
                if (trouble := _trouble(int(process))) is not None:
                    self._diagnosis.trouble(index, trouble)
            elif index in self._diagnosis.silent(now, self._silence):
                self._diagnosis.trouble(index, "silent")


_current: Supervisor | None = None
_loss = False  # a rank of this job is lost
_lost: set[int] = set()  # those that this process has found to be, by their ranks in the job as it was started
_before_finish: list[Callable[[], None]] = []  # called when the program of this rank has ended
_when_finished: list[Callable[[], None]] = []  # called when the programs of all ranks have ended


def supervise(supervised: MpiCommunicator, mpi: Any, on_lost: Callable[[int], None]) -> None:
    """Watch the ranks of a communicator, in place of those that have been watched. All of them call this."""
    global _current
    first = _current is None
    _current = Supervisor(supervised, mpi, on_lost)
    if first:
        _report_exceptions()
        atexit.register(_finish)


def before_finish(call: Callable[[], None]) -> None:
    """Have something called when the program of this rank has ended, before the others are waited for."""
    _before_finish.append(call)


def when_finished(call: Callable[[], None]) -> None:
    """Have something called when the programs of all ranks have ended."""
    _when_finished.append(call)


def leave() -> None:
    """Wait until all ranks call this, or have come to the end of their programs; then end MPI in this process."""
    if _current is not None:
        _current.finish()
        _current.finalize()


def supervised() -> bool:
    """Are the ranks of this process's job watched?"""
    return _current is not None


def fault_tolerant() -> bool:
    """May the job go on without a rank that is lost? Its launcher has been told so (mpiexec --with-ft ulfm)."""
    return os.environ.get(_WITH_FT, "0").lower() in ("1", "true", "yes")


def note_loss(rank: int | None = None) -> None:
    """A rank is lost: MPI is not finalized at the end, which may wait for it."""
    global _loss
    _loss = True
    if rank is not None:
        _lost.add(rank)


def found_lost() -> set[int]:
    """Return the ranks that this process has found to be lost, which MPI may not know yet."""
    return set(_lost)


def say(message: str) -> None:
    """One line on standard error, whole."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.stderr.flush()
        sys.stderr.write(f"gluongraph: {message}\n")
        sys.stderr.flush()


def _finish() -> None:
    if _current is not None:
        _current.finish()


def _report_exceptions() -> None:
    """Let the supervisor know of an exception that ends the program, when its traceback has been shown."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if _current is not None:
            _current.raised(error)

    sys.excepthook = show


def _uncaught() -> BaseException | None:
    """The exception that Python itself has shown, if some other hook has taken the place of ours."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _raised(error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    first = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}" + (f": {first}" if first else "")


def _host() -> str:
    """What processes have in common that see each other in /proc."""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _trouble(process: int) -> str | None:
    """Why a process of this host does not report: it has "ended", or is "stopped"; None where it just runs."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "ended" if pathlib.Path("/proc/self").exists() else None
    state = stat.rpartition(")")[2].split()[0]
    return {"T": "stopped", "Z": "ended", "X": "ended"}.get(state)
