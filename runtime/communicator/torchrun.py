"""Ranks that were not started by a launcher of MPI, but told who they are: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

MPI takes a process as a rank only if its own launcher says so, in the environment of the process. So rank 0 starts
Open MPI's launcher with one small process for each rank (`placeholder.py`). From it the rank gets the environment that
MPI wants; then it initializes MPI in its place. Both stay connected: the end of one is the end of the other.

All ranks are on one host. They meet at a socket in a folder of this user that only MASTER_ADDR, MASTER_PORT and
torchrun's own names decide about, so that jobs beside one another do not meet; nothing listens on the network. Rank 0
goes on when all have come, within GG_COMM_START seconds (60).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import IO

from gluongraph.errors import with_user_location
from gluongraph.runtime.communicator import placeholder
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.runtime.communicator.settings import seconds
from gluongraph.runtime.communicator.supervision import say, when_finished

_KEY = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_START = 60.0
_ANSWER = 10.0  # seconds more that the others wait for what rank 0 says then
_LONGEST = 50  # characters of a folder: paths of sockets below it may have 108
_RETRY = 0.05  # seconds between two attempts to connect
_INSTEAD = (
    "start it by gluongraph run --hosts a:4,b:4, by mpiexec --host a:4,b:4 -n 8 python ..., or by srun --mpi=pmix"
)
_WAIT = "GG_COMM_START=600 waits longer"
# The shell removes the folder: this process may have ended by then. It takes SIGTERM when the launcher has ended.
_SHELL = 'trap : TERM; folder=$1; shift; "$@" "$folder"; code=$?; rm -rf "$folder"; exit $code'
_LAUNCHER = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # whoever runs the ranks as root may run these processes so
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def join(environ: MutableMapping[str, str]) -> None:
    """Give this process the environment of its rank, in which MPI can be initialized. All ranks call this.

    Raises:
        CommunicationError: the ranks are on several hosts, some do not come, or Open MPI's launcher is missing.
    """
    rank, size = _rank(environ)
    _require_one_host(environ)
    until = time.monotonic() + seconds("GG_COMM_START", _START)
    folder = _meet(environ, rank, size, until)
    connection, variables = _claim(folder / f"{rank}.sock", until)
    for name in [name for name in environ if name.startswith(("PMIX_", "PMI_"))]:  # of a launcher around torchrun
        del environ[name]
    environ.update(variables)
    _stay_connected(connection)


def _rank(environ: Mapping[str, str]) -> tuple[int, int]:
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise _error(f"RANK={environ['RANK']} and WORLD_SIZE={environ['WORLD_SIZE']}: no rank of so many")
    return rank, size


def _require_one_host(environ: Mapping[str, str]) -> None:
    size, here = environ["WORLD_SIZE"], environ.get("LOCAL_WORLD_SIZE", environ["WORLD_SIZE"])
    if here != size:
        raise _error(f"{here} of {size} ranks are on this host: ranks started by torchrun must share one", _INSTEAD)
    address = environ["MASTER_ADDR"]
    with contextlib.suppress(socket.gaierror):
        family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)  # possible for addresses of this host only
            except OSError:
                message = f"MASTER_ADDR={address} is another host: ranks started by torchrun must share one"
                raise _error(message, _INSTEAD) from None


def _error(message: str, help: str = "") -> CommunicationError:
    return CommunicationError(with_user_location(message, help=help))


# --- the ranks meet


def _meet(environ: Mapping[str, str], rank: int, size: int, until: float) -> pathlib.Path:
    """The folder with the sockets of the placeholders."""
    temporary = tempfile.gettempdir()
    if len(temporary) > _LONGEST:
        temporary = "/tmp"
    base = pathlib.Path(temporary, f"gluongraph-{os.getuid()}")
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid() or base.stat().st_mode & 0o077:
        raise _error(f"{base} is not a folder of this user alone", "remove it, or set TMPDIR")
    key = hashlib.sha256("\0".join(environ.get(name, "") for name in _KEY).encode()).hexdigest()[:16]
    if rank == 0:
        return _gather(base, base / key, size, until)
    return _report(base / key, rank, size, until)


def _report(meeting: pathlib.Path, rank: int, size: int, until: float) -> pathlib.Path:
    """Tell rank 0 that this rank is here; wait for its answer."""
    until += _ANSWER
    hello = json.dumps({"rank": rank, "size": size}).encode() + b"\n"
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError), _connected(meeting, until) as connection:
            connection.sendall(hello)
            answer = json.loads(_line(connection))
            if "error" in answer:
                raise _error(answer["error"], answer["help"])
            return pathlib.Path(answer["folder"])
        time.sleep(_RETRY)  # rank 0 is not here yet, or it was that of a job that has ended
    raise _error(
        f"rank {rank} has not found rank 0 on this host (MASTER_PORT={os.environ.get('MASTER_PORT')})",
        f"start rank 0 on this host, with the same TMPDIR; for several hosts, {_INSTEAD}; {_WAIT}",
    )


def _gather(base: pathlib.Path, meeting: pathlib.Path, size: int, until: float) -> pathlib.Path:
    """Wait for the other ranks, with the launcher started meanwhile; tell them where the placeholders are."""
    guests: dict[int, socket.socket] = {}
    with _only_one(meeting, until), socket.socket(socket.AF_UNIX) as listener:
        meeting.unlink(missing_ok=True)
        listener.bind(str(meeting))
        listener.listen(size)
        launcher, problem = _started(base, size)
        try:
            _wait_for_all(listener, guests, size, launcher, until)
            if launcher is None or problem is not None:
                raise problem or AssertionError
            _answer(guests, {"folder": str(launcher.folder)})
            return launcher.folder
        except CommunicationError as error:
            if launcher is not None:
                launcher.end()
            message, _, help = str(problem or error).partition("\n  help: ")
            _answer(guests, {"error": message.partition("\n")[0], "help": help})
            raise problem or error from None
        finally:
            meeting.unlink(missing_ok=True)
            for guest in guests.values():
                guest.close()


def _started(base: pathlib.Path, size: int) -> tuple[_Launcher | None, CommunicationError | None]:
    """The launcher; or why there is none, for which the others have come first, to be told."""
    try:
        return _Launcher.start(base, size), None
    except CommunicationError as error:
        return None, error


@contextlib.contextmanager
def _only_one(meeting: pathlib.Path, until: float) -> Iterator[None]:
    """Within: this is the only rank 0 that waits for others with these variables."""
    path = meeting.with_suffix(".lock")
    while True:
        with open(path, "w", encoding="ascii") as lock:
            if _locked(lock, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() > until:
            raise _error("another job on this host has this MASTER_ADDR and MASTER_PORT", "choose another MASTER_PORT")
        time.sleep(_RETRY)


def _locked(lock: IO[str], path: pathlib.Path) -> bool:
    """Lock the file, and look whether this path still names it: who had it before has removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _wait_for_all(
    listener: socket.socket, guests: dict[int, socket.socket], size: int, launcher: _Launcher | None, until: float
) -> None:
    """Fill `guests` with a connection for each other rank. No connection can keep another one from being heard."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while len(guests) < size - 1:
            if time.monotonic() > until:
                missing = ", ".join(str(rank) for rank in range(1, size) if rank not in guests)
                advice = f"{_WAIT}; if they are on other hosts, {_INSTEAD}"
                raise _error(f"of {size} ranks these have not come: {missing}", advice)
            if launcher is not None:
                launcher.check()
            for key, _ in selector.select(0.2):
                if key.fileobj is listener:
                    guest, _ = listener.accept()
                    guest.setblocking(False)
                    selector.register(guest, selectors.EVENT_READ, bytearray())
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    _hear(selector, key.fileobj, key.data, guests, size)


def _hear(
    selector: selectors.BaseSelector,
    guest: socket.socket,
    heard: bytearray,
    guests: dict[int, socket.socket],
    size: int,
) -> None:
    """Take what a connection has sent: a line that says which rank it is, or its end."""
    try:
        data = guest.recv(256)
    except OSError:
        data = b""
    heard += data
    if not data or len(heard) > 256:
        selector.unregister(guest)
        guest.close()
        for rank in [rank for rank, known in guests.items() if known is guest]:
            del guests[rank]
    elif heard.endswith(b"\n"):
        hello = json.loads(heard)
        heard.clear()
        if hello["size"] != size or not 0 < hello["rank"] < size:
            guests[-1] = guest  # it is told, too
            raise _error(f"one process is rank {hello['rank']} of {hello['size']}, another rank 0 of {size}")
        if guests.setdefault(hello["rank"], guest) is not guest:
            guests[-1] = guest  # it is told, too
            raise _error(f"two processes are rank {hello['rank']}: each needs a RANK of its own")


def _answer(guests: Mapping[int, socket.socket], answer: Mapping[str, str]) -> None:
    for guest in guests.values():
        with contextlib.suppress(OSError):
            guest.setblocking(True)
            guest.sendall(json.dumps(answer).encode() + b"\n")


# --- the launcher of MPI


@dataclass
class _Launcher:
    """Open MPI's launcher, which runs the placeholders in a folder of this job. It outlives this process by moments."""

    folder: pathlib.Path
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @classmethod
    def start(cls, base: pathlib.Path, size: int) -> _Launcher:
        """Start it."""
        program = _mpiexec()
        folder = pathlib.Path(tempfile.mkdtemp(prefix="j", dir=base))
        log = open(folder / "log", "w+b")  # noqa: SIM115 (it is read when the launcher fails)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(placeholder.PREFIXES) or "_MCA_" in k}
        environ |= {name: value for name, value in _LAUNCHER.items() if name not in environ}
        # Jobs beside one another must not share the launcher's own folders.
        environ |= {"TMPDIR": str(folder), "PRTE_MCA_prte_tmpdir_base": str(folder)}
        command = [program, "--oversubscribe", "-n", str(size), sys.executable, "-I", "-S", placeholder.__file__]
        process = subprocess.Popen(
            ["sh", "-c", _SHELL, "sh", str(folder), *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # an interrupt from the terminal is for the ranks, which end the job
        )
        launcher = cls(folder, process, log)
        when_finished(launcher.leave)
        return launcher

    def check(self) -> None:
        """Does it run?

        Raises:
            CommunicationError: with what it has printed.
        """
        if self.process.poll() is not None:
            self.log.seek(0)
            shown = self.log.read().decode(errors="replace").strip()
            raise _error(f"mpiexec, which is to connect the ranks, has ended: {shown[-1000:]}", "mpiexec -n 2 hostname")

    def leave(self) -> None:
        """Let it end by itself, after this process."""
        self.log.close()
        self.process.returncode = 0  # else Python warns that it still runs

    def end(self) -> None:
        """End it; the placeholders end with it."""
        for number in [*[signal.SIGTERM] * 6, signal.SIGKILL]:  # more than once: while it starts, one may be lost
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
                break
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _mpiexec() -> str:
    """The launcher beside this Python, or else on the path."""
    found = shutil.which("mpiexec", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", ""))))
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60).stdout if found else ""
    if found is None or "Open MPI" not in shown:
        message = "ranks that torchrun has started are connected by Open MPI's mpiexec, " + (
            f"and {found} is not that" if found else "which is not installed"
        )
        raise _error(message, "pip install 'gluongraph[mpi]'; or start the program by your MPI's own launcher")
    return found


# --- the placeholder of this rank


def _claim(path: pathlib.Path, until: float) -> tuple[socket.socket, dict[str, str]]:
    """A connection to the placeholder, and the variables that it has."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            connection = _connected(path, until)
            connection.sendall(f"{os.getpid()}\n".encode())
            variables: dict[str, str] = json.loads(_line(connection))
            return connection, variables
        if not path.parent.exists():
            raise _error("mpiexec, which is to connect the ranks, has ended", "mpiexec -n 2 hostname")
        time.sleep(_RETRY)
    raise _error(
        f"mpiexec has not started the process for this rank in time ({path})",
        f"mpiexec -n 2 hostname shows whether it works here; {_WAIT}",
    )


def _stay_connected(connection: socket.socket) -> None:
    """End this process when the placeholder ends, and tell it of a good end."""
    finished = threading.Event()

    def watch() -> None:
        connection.settimeout(None)
        with contextlib.suppress(OSError):
            connection.recv(1)
        if not finished.is_set():
            say("the job has been ended")
            os._exit(1)

    def finish() -> None:
        finished.set()
        with contextlib.suppress(OSError):
            connection.sendall(b"finished")

    threading.Thread(target=watch, name="gluongraph-placeholder", daemon=True).start()
    when_finished(finish)


def _connected(path: pathlib.Path, until: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(max(0.1, until - time.monotonic()))
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _line(connection: socket.socket) -> bytes:
    """All that comes before the end of the line.

    Raises:
        ConnectionError: the other side has closed the connection before.
    """
    heard = bytearray()
    while not heard.endswith(b"\n"):
        data = connection.recv(65536)
        if not data:
            raise ConnectionError
        heard += data
    return bytes(heard)
