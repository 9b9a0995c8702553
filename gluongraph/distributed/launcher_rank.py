"""`launcher_rank.py ADDRESS,ADDRESS...`: what mpiexec starts for each rank; it runs the program as its child.

It connects to the launcher, is told what to run, and sends what the program writes, by line or not, and how it ends.
mpiexec could forward the output itself, but it cuts it where its buffers end and mixes the pieces of ranks; options
that mark lines with the rank are of another name and another format in every MPI, and mark the pieces too. It tells one
exit code for all ranks, and ranks stay when it is killed. Over a connection of its own the launcher knows of each rank
what it wrote and how it ended; and whatever happens to the launcher, the connection ends, and the program is ended.

It is run by its path with `python -I -S` and imports a few small modules: it starts in 20 ms and has 10 MB.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

TOKEN = "GG_LAUNCHER_TOKEN"  # variable: what a rank proves to know before it is told what to run
HEADER = struct.Struct(">cI")  # of a message: its kind, the length of what follows
HELLO, OUT, ERR, FAILED, ENDED = b"H", b"O", b"E", b"F", b"X"
NONCE, DIGEST = 16, hashlib.sha256().digest_size
KILL_AFTER = 5.0  # seconds that a program has between SIGTERM and SIGKILL
_MPIEXEC_KILLS = 0.1  # the same where SIGTERM comes from mpiexec: that of Open MPI kills this process 0.25 s later
THREADS = ("GG_THREADS", "TVM_NUM_THREADS", "OMP_NUM_THREADS")  # as gluongraph/host/process.py has them
_PATIENCE = 5.0  # seconds for each address of the launcher
_DRAIN = 0.5  # seconds that the pipes of a program that has ended may stay open
_AHEAD = 1 << 18  # bytes for the launcher that wait here; the program's pipes are left alone above
_PR_SET_PDEATHSIG = 1
_HERE = Path(__file__).resolve().parent


def answer(token: str, nonce: bytes) -> bytes:
    """The proof that a rank knows the token, for a number that the launcher has drawn."""
    return hmac.digest(token.encode(), nonce, "sha256")


def message(kind: bytes, data: bytes) -> bytes:
    """A message to the launcher."""
    return HEADER.pack(kind, len(data)) + data


# --- at the start


def connect(addresses: Sequence[str], token: str) -> tuple[socket.socket, dict[str, Any]]:
    """The connection to the launcher, and what is to be run. A host may have addresses that others cannot reach: the
    first one at which the launcher answers is taken.

    Raises:
        OSError: it answers at none.
    """
    wrong: Exception = OSError("no address")
    hello = message(HELLO, json.dumps({"rank": rank(os.environ), "host": socket.gethostname()}).encode())
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            found = socket.create_connection((host, int(port)), _PATIENCE)
            found.sendall(answer(token, _exactly(found, NONCE)) + hello)
            job = json.loads(_exactly(found, *struct.unpack(">I", _exactly(found, 4))))
        except (OSError, ValueError) as error:
            wrong = error
        else:
            found.settimeout(None)
            return found, job
    raise OSError(str(wrong))


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not (more := connection.recv(size - len(found))):
            raise OSError("it closes the connection")
        found += more
    return bytes(found)


def rank(environ: Mapping[str, str]) -> int:
    """The number of this rank, as mpiexec has put it into the environment: that of Open MPI, PMIx, and MPICH's kind.

    >>> rank({"PMI_RANK": "3"}), rank({})
    (3, -1)
    """
    return _number(environ, ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"), -1)


def threads(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Variables by which the ranks of this host share its cores; none where somebody has said how many threads.

    >>> threads({"OMP_NUM_THREADS": "3"}, 2)
    {}
    """
    if any(environ.get(name, "").isdigit() for name in THREADS):
        return {}
    here = _number(environ, ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"), ranks)
    found = runpy.run_path(str(_HERE.parent / "host" / "cores.py"))  # to import it is to import gluongraph
    cores, time_given = len(found["cores"]()), found["quota"]()
    mine = (cores if time_given is None else min(cores, int(time_given))) // here
    return dict.fromkeys(THREADS[1:], str(max(1, mine)))


def _number(environ: Mapping[str, str], names: Sequence[str], otherwise: int) -> int:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), otherwise)


def start(job: Mapping[str, Any], told: int) -> subprocess.Popen[bytes]:
    """The program, as a child with a process group of its own, which ends when this process ends. It writes to the
    descriptor `told` that it has failed.

    It inherits whatever mpiexec has opened, as MPICH's connection (PMI_FD). That stays open here, too: where it ends
    before the rank has said goodbye, mpiexec kills all ranks at once, and none could tell why.
    """
    environ = {**os.environ, **job["environ"]}
    environ |= threads(environ, job["ranks"])
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:  # safe between fork and exec, as this process has one thread
        if sys.platform.startswith("linux"):
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    os.set_inheritable(told, True)
    child = subprocess.Popen(
        [sys.executable, str(_HERE / "launcher_program.py"), str(told), *job["program"]],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
        close_fds=False, process_group=0, preexec_fn=prepare,
    )  # fmt: skip
    os.close(told)
    return child


# --- while the program runs


class Rank:
    """A program that runs, and the connection on which the launcher hears of it."""

    def __init__(self, connection: socket.socket, job: Mapping[str, Any]):
        self.connection = connection
        self.selector = selectors.DefaultSelector()
        self.outgoing = bytearray()
        self.launcher_ended = False
        self.asked = False  # the program was asked to end: how it ends is no failure of its own
        self.kill_at: float | None = None
        self.exited_at: float | None = None
        self.code: int | None = None
        self._watch_signals()
        read, write = os.pipe()
        self.child = start(job, write)
        assert self.child.stdout is not None and self.child.stderr is not None
        self.pipes = {self.child.stdout.fileno(): OUT, self.child.stderr.fileno(): ERR, read: FAILED}
        self._reading = False
        self._read_pipes(True)
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, self._connection_ready)

    def _watch_signals(self) -> None:
        """Have `select` return when the child has ended, and when mpiexec asks this process to end."""
        self.woken, wake = socket.socketpair()
        self._wake = wake
        for each in (self.woken, wake):
            each.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)  # unlike SIG_IGN, the child does not inherit it
        self.selector.register(self.woken, selectors.EVENT_READ, self._signal_came)

    def run(self) -> int:
        """The exit code of the program, or the negative number of the signal that has killed it, when the launcher has
        heard of it or has ended."""
        while self.code is None or not self.launcher_ended:
            for key, events in self.selector.select(self._wait()):
                ready: Callable[[int], None] = key.data
                ready(events)
            now = time.monotonic()
            if self.kill_at is not None and now >= self.kill_at:
                self.kill_at = None
                self._signal_program(signal.SIGKILL)
            if self.exited_at is not None and self.code is None:
                self._finish(now)
        return self.code

    def _wait(self) -> float | None:
        times = [] if self.kill_at is None else [self.kill_at]
        if self.exited_at is not None and self.code is None:
            times.append(self.exited_at + _DRAIN)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _signal_program(self, number: int) -> None:
        if self.code is None:
            self.asked = self.asked or self.exited_at is None
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)

    def _signal_came(self, events: int) -> None:
        numbers = self.woken.recv(4096)
        if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
            self._signal_program(signal.SIGTERM)
            self.kill_at = time.monotonic() + _MPIEXEC_KILLS
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        if self.exited_at is None and os.waitid(os.P_PID, self.child.pid, options) is not None:
            self.exited_at = time.monotonic()

    def _finish(self, now: float) -> None:
        """When the program has ended and all it wrote is read: end processes that it has left, and report."""
        assert self.exited_at is not None
        if not self._reading:
            self._read_pipes(True)
        if self.pipes and now < self.exited_at + _DRAIN:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)  # the number is taken until the child is waited for
        self._read_pipes(False)
        self.code = self.child.wait()
        self._send(ENDED, self._report(self.code))

    def _report(self, code: int) -> bytes:
        return json.dumps({"code": code, "time": time.time(), "asked": self.asked}).encode()

    # --- what it writes

    def _read_pipes(self, on: bool) -> None:
        """Read the program's pipes, or leave them alone, so that it waits."""
        if on != self._reading:
            for pipe in self.pipes:
                if on:
                    self.selector.register(pipe, selectors.EVENT_READ, lambda events, pipe=pipe: self._read(pipe))
                else:
                    self.selector.unregister(pipe)
        self._reading = on

    def _read(self, pipe: int) -> None:
        kind = self.pipes[pipe]
        if not (data := os.read(pipe, 1 << 16)):
            if self._reading:
                self.selector.unregister(pipe)
            del self.pipes[pipe]
            os.close(pipe)
        elif kind == FAILED:
            self._send(kind, self._report(int(data)))
        else:
            self._send(kind, data)

    # --- the launcher

    def _send(self, kind: bytes, data: bytes) -> None:
        if not self.launcher_ended:
            self.outgoing += message(kind, data)
            self._flush()

    def _flush(self) -> None:
        try:
            del self.outgoing[: self.connection.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._launcher_has_ended()
            return
        writing = selectors.EVENT_WRITE if self.outgoing else 0
        self.selector.modify(self.connection, selectors.EVENT_READ | writing, self._connection_ready)
        if self.exited_at is None:
            self._read_pipes(len(self.outgoing) < _AHEAD)

    def _connection_ready(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            try:
                numbers = self.connection.recv(4096)
            except BlockingIOError:
                numbers = None
            except OSError:
                numbers = b""
            if numbers == b"":
                self._launcher_has_ended()
                return
            for number in numbers or ():
                self._signal_program(number)
        if events & selectors.EVENT_WRITE:
            self._flush()

    def _launcher_has_ended(self) -> None:
        """It closes a connection when it knows how the program ended; before, it was killed, or its host is gone."""
        if not self.launcher_ended:
            self.launcher_ended = True
            self.selector.unregister(self.connection)
            self.outgoing.clear()
            self._read_pipes(self.code is None)
            self._signal_program(signal.SIGTERM)
            self.kill_at = self.kill_at or time.monotonic() + KILL_AFTER


def main(addresses: str) -> None:
    """Be a rank, and end as its program has ended."""
    try:
        connection, job = connect(addresses.split(","), os.environ.pop(TOKEN, ""))
    except OSError as error:
        sys.exit(
            f"gluongraph run: rank {rank(os.environ)} on {socket.gethostname()} cannot reach the launcher "
            f"at {addresses.replace(',', ', ')} ({error}): may these hosts connect to one another?"
        )
    code = Rank(connection, job).run()
    if code and job["elastic"]:
        # Open MPI tells the other ranks of one that is killed. One that ends with an exit code makes it end the job.
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1])
