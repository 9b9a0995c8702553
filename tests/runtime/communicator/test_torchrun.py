"""Processes that have RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and no launcher of MPI, are ranks of one job."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import environment, is_open_mpi, kill_left_over, needs_mpi, processes, run_ranks, script

from gluongraph.runtime.communicator import torchrun
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.runtime.communicator.environment import world

pytestmark = [
    needs_mpi,
    pytest.mark.skipif(not is_open_mpi(), reason="ranks of torchrun are connected by Open MPI's mpiexec"),
]
BOUND = 45.0  # seconds after which a job counts as hanging
COMPUTES = "computes"  # what a rank says then


@dataclass(frozen=True)
class Result:
    """What processes that were started by hand left behind."""

    codes: list[int | None]  # exit codes, by process; None: it had to be killed
    outputs: list[str]
    errors: list[str]
    orphans: list[str]  # command lines
    files: list[str]  # in the folder for temporary files


def start(
    variables: list[Mapping[str, str]],
    program: Callable[..., Any],
    *arguments: str,
    victim: str = "",
) -> Result:
    """Run processes with these variables. `victim`: kill the job's process whose command line contains that."""
    token = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="gg", dir="/tmp"))
    (folder / "tmp").mkdir()
    try:
        started = []
        command = [sys.executable, *script(program, folder), *arguments]
        for number, each in enumerate(variables):
            env = {**environment(token, folder / "tmp"), **each}
            with open(folder / f"{number}.out", "w") as out, open(folder / f"{number}.err", "w") as err:
                started.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
        if victim:
            kill_one(token, victim, folder / f"{len(started) - 1}.err")
        until = time.monotonic() + BOUND
        codes: list[int | None] = []
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            codes.append(process.poll())
            process.kill()
            process.wait()
        orphans = kill_left_over(token, grace=10.0)
        texts = [[(folder / f"{n}.{kind}").read_text() for n in range(len(started))] for kind in ("out", "err")]
        files = [str(file.relative_to(folder / "tmp")) for file in (folder / "tmp").rglob("*") if not file.is_dir()]
        files += [file.name for file in (folder / "tmp").glob("gluongraph-*/*")]
        return Result(codes, *texts, orphans, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kill_one(token: str, name: str, errors: Path) -> None:
    """Once the last rank computes: all have met then, however slow the machine."""
    until = time.monotonic() + BOUND
    while COMPUTES not in errors.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    while time.monotonic() < until:
        for process, command in processes(token):
            if name in command and not command.startswith("sh "):
                os.kill(process, signal.SIGKILL)
                return
        time.sleep(0.05)


def ranks(size: int, port: int, **more: str) -> list[Mapping[str, str]]:
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


# --- programs


def train(misbehave: str) -> None:
    c = world()
    array = np.full(3, c.rank + 1, np.float32)
    c.allreduce(array)
    if c.rank == (0 if misbehave.endswith(" first") else c.size - 1):
        globals()[misbehave.removesuffix(" first")]()
    c.barrier()
    sys.stdout.write(f"{c.rank} {c.size} {c.local_rank} {array[0]}\n")


def nothing() -> None:
    pass


def fail() -> None:
    raise ValueError("bad batch")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def compute() -> None:
    print(COMPUTES, file=sys.stderr, flush=True)
    time.sleep(1000)


def fork() -> None:
    """A child that goes on, with all connections, does not keep the others from ending."""
    if not os.fork():
        time.sleep(2 * BOUND)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def refused() -> None:
    try:
        world()
    except CommunicationError as error:
        print(error, flush=True)


def refused_soon() -> None:
    torchrun._ANSWER = 1.0
    refused()


SHORT = {"GG_COMM_START": "3"}
SCENARIOS: dict[str, Callable[[], Result]] = {
    "normal": lambda: start(ranks(3, 29401), train, "nothing"),
    "same port": lambda: [start(ranks(2, 29402), train, "nothing") for _ in range(3)][2],
    "fail": lambda: start(ranks(3, 29403), train, "fail"),
    "kill first": lambda: start(ranks(2, 29404), train, "kill first"),
    "kill": lambda: start(ranks(2, 29405), train, "kill"),
    "stop": lambda: start(ranks(2, 29406), train, "stop"),
    "fork": lambda: start(ranks(2, 29407), train, "fork"),
    "launcher": lambda: start(ranks(2, 29408), train, "compute", victim="prterun --oversubscribe"),
    "placeholder": lambda: start(ranks(2, 29409), train, "compute", victim="placeholder.py"),
    "missing": lambda: start(ranks(3, 29410, **SHORT)[:2], refused),
    "no first": lambda: start(ranks(2, 29411, GG_COMM_START="0.1")[1:], refused_soon),
    "twice": lambda: start([*ranks(3, 29412)[:2], ranks(3, 29412)[1]], refused),
    "sizes": lambda: start([ranks(2, 29413)[0], ranks(3, 29413)[1]], refused),
    "hosts": lambda: start(ranks(4, 29414, LOCAL_WORLD_SIZE="2")[:1], refused),
    "another host": lambda: start(ranks(2, 29415, MASTER_ADDR="192.0.2.1")[:1], refused),
    "no rank": lambda: start([{**ranks(2, 29416)[0], "RANK": "2"}], refused),
    "no mpiexec": lambda: start(ranks(2, 29417, PATH="/usr/bin:/bin"), no_mpiexec),
}


def no_mpiexec() -> None:
    sys.executable = "/usr/bin/python3"  # there is no launcher beside it
    refused()


@cache
def results() -> dict[str, Future[Any]]:
    pool = ThreadPoolExecutor(4)
    found: dict[str, Future[Any]] = {name: pool.submit(scenario) for name, scenario in SCENARIOS.items()}
    found["beside"] = pool.submit(run_ranks, 2, train, "nothing")  # another job at the same time
    return found


def result(name: str) -> Result:
    """What became of processes: that they have ended, and left nothing, is part of each scenario."""
    found: Result = results()[name].result()
    assert None not in found.codes and not found.files, found
    assert len(found.orphans) == (1 if name == "fork" else 0), found  # the child that goes on
    return found


@pytest.mark.parametrize(("name", "size", "total"), [("normal", 3, 6.0), ("same port", 2, 3.0)])
def test_ranks_communicate(name: str, size: int, total: float) -> None:
    found = result(name)
    assert found.codes == [0] * size and found.errors == [""] * size, found
    assert found.outputs == [f"{rank} {size} {rank} {total}\n" for rank in range(size)]


def test_jobs_beside_one_another() -> None:
    assert results()["beside"].result() == ["0 2 0 3.0\n", "1 2 1 3.0\n"]


@pytest.mark.parametrize("name", ["fail", "kill", "kill first", "stop", "fork", "launcher", "placeholder"])
def test_the_end_of_one_is_the_end_of_all(name: str) -> None:
    found = result(name)
    assert 0 not in found.codes and not any(found.outputs), found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail", "ValueError: bad batch"),
        ("fail", "gluongraph: rank 2 raised ValueError: bad batch; all ranks are ended"),
        ("stop", "gluongraph: rank 1 is stopped (SIGSTOP) while rank 0 waits in barrier at test_torchrun.py:"),
    ],
)
def test_the_error_names_the_rank(name: str, message: str) -> None:
    assert message in "".join(result(name).errors)


@pytest.mark.parametrize(
    ("name", "message", "advice"),
    [
        ("missing", "of 3 ranks these have not come: 2", "GG_COMM_START=600 waits longer"),
        ("no first", "rank 1 has not found rank 0 on this host (MASTER_PORT=29411)", "start rank 0 on this host"),
        ("twice", "two processes are rank 1: each needs a RANK of its own", ""),
        ("sizes", "one process is rank 1 of 3, another rank 0 of 2", ""),
        ("hosts", "2 of 4 ranks are on this host: ranks started by torchrun must share one", "gluongraph run --hosts"),
        ("another host", "MASTER_ADDR=192.0.2.1 is another host", "mpiexec --host"),
        ("no rank", "RANK=2 and WORLD_SIZE=2: no rank of so many", ""),
        ("no mpiexec", "are connected by Open MPI's mpiexec, which is not installed", "pip install 'gluongraph[mpi]'"),
    ],
)
def test_refusals_are_the_same_on_all_ranks(name: str, message: str, advice: str) -> None:
    found = result(name)
    assert all(code == 0 for code in found.codes), found
    for output in found.outputs:
        assert message in output and advice in output, found


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torchrun needs torch")
def test_torchrun_itself() -> None:
    with tempfile.TemporaryDirectory(prefix="gg", dir="/tmp") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29418"]
        command += [*script(train, Path(folder)), "nothing"]
        env = environment(uuid.uuid4().hex, Path(folder))
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 0 3.0", "1 2 1 3.0"]
