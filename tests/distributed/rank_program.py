"""`rank_program.py NAME ARGUMENTS...`: what the ranks do in the tests of the launcher. It uses mpi4py alone."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def rank() -> int:
    """Its number, where there is no need to wait for MPI."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


def report(*words: str) -> None:
    """Where it runs, as a line of JSON, and a line on the standard error."""
    told = {
        "rank": world().rank,
        "size": world().size,
        "sum": world().allreduce(world().rank + 1),
        "argv": sys.argv,
        "path": sys.path[0],
        "main": [__name__, __file__, sys.modules["__main__"] is sys.modules[__name__]],
        "input": sys.stdin.read(),
        "environ": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    print(json.dumps(told))
    print("a warning", file=sys.stderr)


def noise() -> None:
    """Lines of all lengths, as fast as it can: their number, and letters of the rank."""
    letter = chr(ord("a") + rank())
    for i in range(1500):
        length = 200_000 if i % 500 == 0 else (i * 7919 + rank() * 31) % 3000
        os.write(1 + i % 2, f"{i} {letter * length}\n".encode())


def progress(go: str) -> None:
    """A line that is shown before it ends, and bytes that are no text."""
    if rank() == 0:
        print("half a line", end="", flush=True)
        wait_for(go)
        print(", the rest")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe no end")


def fails(how: str, file: str) -> None:
    """Rank 1 fails while rank 0 waits for it within MPI."""
    comm = world()
    if comm.rank == 0:
        comm.recv(source=1)
    atexit.register(Path(file).touch)
    if how == "raise":
        raise ValueError("this rank has failed")
    if how == "text":
        sys.exit("a text for the user")
    if how == "thread":  # which Python waits for, for ever
        threading.Thread(target=comm.recv, kwargs={"source": 0}).start()
        raise ValueError("this rank has failed")
    if how == "abort":
        comm.Abort(7)
    if how.isdigit():
        sys.exit(int(how))
    os.kill(os.getpid(), signal.Signals[how])


def forks() -> None:
    """A process that a rank has forked fails: the rank goes on."""
    child = os.fork()
    if not child:
        raise ValueError("the child has failed")
    os.waitpid(child, 0)
    print("goes on")


def stays(how: str) -> None:
    """It runs until it is ended, with a child; "stubborn": both ignore what can be ignored."""
    if how == "stubborn":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    size = world().size
    try:
        print("ready", size, flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("has saved", flush=True)
        raise


def floods() -> None:
    """It writes for ever."""
    while True:
        os.write(1, b"x" * 1000 + b"\n")


def survives(how: str) -> None:
    """Rank 1 is lost; the others find out, and add up their numbers without it."""
    from mpi4py import MPI

    comm = world()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Barrier()
    if comm.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
    try:
        comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    except MPI.Exception:
        comm.Revoke()
        smaller = comm.Shrink()
        print("sum", smaller.allreduce(comm.rank + 1), "elastic", os.environ["GG_ELASTIC"])


def hosts() -> None:
    """The name of the host, and a sum over all ranks that is too large for one message."""
    from mpi4py import MPI

    total = np.arange(1 << 20, dtype=np.float64) * (world().rank + 1)
    world().Allreduce(MPI.IN_PLACE, total)
    factor = sum(range(1, world().size + 1))
    right = bool((total == np.arange(1 << 20) * factor).all())
    environ = {name: os.environ.get(name) for name in ("GG_TOLD", "OMP_NUM_THREADS")}
    print(json.dumps({"host": socket.gethostname(), "right": right, "environ": environ}))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
