"""A process that the launcher of MPI has started in place of a rank that runs already; see `torchrun.py`.

It gives the rank the variables by which MPI knows it, and lives as long as the rank does. The launcher sees it end with
an error when the rank ends without having said that it is finished; and when the launcher ends it, it ends the rank.
Run by path, without `site`: `python -I -S placeholder.py FOLDER`. It imports nothing but Python's own modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import time

PREFIXES = ("PMIX_", "OMPI_", "PRTE_", "PMI_")  # of the variables that a launcher sets
_UNCLAIMED = 120.0  # seconds that it waits for its rank
_PERIOD = 0.5  # seconds between two looks at whether the rank and the launcher live
_GRACE = 0.3  # seconds between SIGTERM and SIGKILL


def main(folder: str) -> int:
    """Wait for the rank, then for its end; the exit code."""
    launcher = os.getppid()
    rank = os.environ.get("PMIX_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    claimed = _wait_for_rank(pathlib.Path(folder, f"{rank}.sock"), launcher)
    if claimed is None:
        return 1
    connection, process = claimed
    # At once: the launcher sends SIGKILL soon after SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: _kill(process))
    finished = False
    with connection:
        while True:
            with contextlib.suppress(TimeoutError):
                data = connection.recv(64)
                finished = finished or bool(data)
                if not data:
                    return 0 if finished else 1
            if not _lives(process):  # a child of it may have the connection open
                return 0 if finished else 1
            if os.getppid() != launcher:
                _kill(process)


def _wait_for_rank(path: pathlib.Path, launcher: int) -> tuple[socket.socket, int] | None:
    """The connection to the rank and its process; None if it has not come, or the launcher has ended."""
    until = time.monotonic() + _UNCLAIMED
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(_PERIOD)
        while os.getppid() == launcher and path.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                connection, _ = listener.accept()
                process = _greet(connection)
                path.unlink(missing_ok=True)
                return connection, process
    return None


def _greet(connection: socket.socket) -> int:
    """Give the rank its variables; its process."""
    connection.settimeout(5)
    process = int(connection.recv(64))
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    connection.sendall(json.dumps(variables).encode() + b"\n")
    connection.settimeout(_PERIOD)
    return process


def _kill(process: int) -> None:
    """End the rank, also one that is stopped or has a handler for SIGTERM; and this process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGCONT)
        until = time.monotonic() + _GRACE
        while _lives(process) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
    os._exit(1)


def _lives(process: int) -> bool:
    """Is it there, and not a zombie?"""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        if pathlib.Path("/proc/self").exists():
            return False
    with contextlib.suppress(ProcessLookupError):  # a system without /proc
        os.kill(process, 0)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
