"""No rank waits for ever: what becomes of the others when one ends, raises, is stopped, killed, or takes its time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from ranks import Job, is_open_mpi, needs_mpi, try_ranks

from gluongraph.runtime.communicator import diagnosis, supervision
from gluongraph.runtime.communicator.base import PeerLost
from gluongraph.runtime.communicator.environment import use_world, world

pytestmark = needs_mpi
BOUND = 40.0  # seconds after which a job counts as hanging

# --- programs: the last rank misbehaves, and the others call allreduce


def program(misbehave: str) -> None:
    c = world()
    array = np.ones(10, np.float32)
    c.allreduce(array)
    if c.rank == c.size - 1:
        globals()[misbehave]()
    c.allreduce(array)
    print("went on", flush=True)


def nothing() -> None:
    pass


def end() -> None:
    sys.exit(0)


def fail() -> None:
    raise ValueError("bad batch\nof 3 lines")


def fail_beside_a_thread() -> None:
    threading.Thread(target=time.sleep, args=[1000]).start()  # Python waits for it
    raise ValueError("bad batch")


def fail_under_another_hook() -> None:
    sys.excepthook = lambda *error: print("shown by another hook", file=sys.stderr, flush=True)
    raise ValueError("bad batch")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_without_a_word() -> None:
    os._exit(0)


def call_another() -> None:
    world().barrier()


def be_no_longer_watched() -> None:
    def report(self: supervision.Supervisor, now: float) -> diagnosis.Report:
        raise ValueError("a defect")

    pytest.MonkeyPatch().setattr(supervision.Supervisor, "_report", report)
    time.sleep(1000)


def be_busy() -> None:
    time.sleep(3.5)


def be_busy_for_ever() -> None:
    time.sleep(1000)


def wait_impatiently(misbehave: str) -> None:
    """A busy rank is named after 1 s."""
    diagnosis.WARN = 1.0
    program(misbehave)


def in_groups() -> None:
    """A rank ends while others communicate without it, and it still counts until all have ended."""
    c = world()
    group = c.split(c.rank % 2)
    if c.rank % 2 == 0:
        time.sleep(diagnosis.ENDED_WAIT + 1.5 if c.rank == 0 else 0)
        group.allreduce(np.ones(3, np.float32))
    print("went on", flush=True)


def end_with(code: str) -> None:
    world().barrier()
    sys.exit(int(code))


def forks() -> None:
    """A process that a rank forks, and one that it starts, is none."""
    c = world()
    forked = multiprocessing.get_context("fork").Process(target=alone)
    forked.start()
    forked.join()
    assert forked.exitcode == 5
    started = "from gluongraph.runtime.communicator.environment import world; assert world().name == 'local'"
    subprocess.run([sys.executable, "-c", started], check=True)
    array = np.ones(1, np.float32)
    c.allreduce(array)
    print(array[0], flush=True)


def alone() -> None:
    sys.exit(5 if world().size == 1 else 6)


def survive(kinds: str) -> None:
    """Train 12 steps; a rank is lost in the fourth, and perhaps another one in the seventh."""
    c = world()
    started, size = c.rank, c.size
    first, second = ([*kinds.split(","), ""])[:2]
    step = 0
    while step < 12:
        if (step, started) == (4, size - 2) and c.size == size:
            globals()[first]()
        if (step, started) == (7, 0) and second:
            globals()[second]()
        ones, started_ones = np.ones(1 << 14, np.float32), np.ones(3, np.float32)
        try:
            work = c.start_allreduce(started_ones)
            c.allreduce(ones)
            work.wait()
            step += 1
        except PeerLost as error:
            print("lost", *error.ranks, flush=True)
            c = c.shrink()
            use_world(c)
            first_step = np.array([step])
            c.allreduce(first_step, "min")
            step = int(first_step[0])
    print("sum", ones[0], started_ones[0], flush=True)


# --- all of them run at the same time: they mostly wait

SCENARIOS: dict[str, tuple[int, Callable[..., Any], list[str], dict[str, Any]]] = {
    "normal": (3, program, ["nothing"], {}),
    "end": (3, program, ["end"], {}),
    "fail": (2, program, ["fail"], {}),
    "fail beside a thread": (2, program, ["fail_beside_a_thread"], {}),
    "fail under another hook": (2, program, ["fail_under_another_hook"], {}),
    "fail under mpi4py": (2, program, ["fail"], {"python": ["-m", "mpi4py"]}),
    "interrupt": (2, program, ["interrupt"], {}),
    "stop": (3, program, ["stop"], {}),
    "kill": (3, program, ["kill"], {}),
    "end without a word": (2, program, ["end_without_a_word"], {}),
    "another": (2, program, ["call_another"], {}),
    "busy": (3, wait_impatiently, ["be_busy"], {}),
    "busy for ever": (2, wait_impatiently, ["be_busy_for_ever"], {"env": {"GG_COMM_TIMEOUT": "3"}}),
    "defect": (2, program, ["be_no_longer_watched"], {}),
    "groups": (4, in_groups, [], {}),
    "exit code": (2, end_with, ["7"], {}),
    "forks": (2, forks, [], {}),
    "alone": (1, program, ["nothing"], {}),
}
FAULT_TOLERANT: dict[str, tuple[int, Callable[..., Any], list[str], dict[str, Any]]] = {
    "survive": (3, survive, ["kill"], {}),
    "survive two": (4, survive, ["kill,kill"], {}),
    "survive a stopped one": (3, survive, ["stop"], {}),
    "nobody is lost": (2, survive, ["nothing"], {}),
    "fail in a tolerant job": (3, survive, ["fail"], {}),
}


@cache
def jobs() -> dict[str, Future[Job]]:
    pool = ThreadPoolExecutor(4)
    found = {}
    tolerant = FAULT_TOLERANT if is_open_mpi() else {}
    for name, (number, function, arguments, options) in {**SCENARIOS, **tolerant}.items():
        flags = ["--with-ft", "ulfm"] if name in FAULT_TOLERANT else []
        more = {"timeout": BOUND, "flags": flags, **options}
        found[name] = pool.submit(lambda n=number, f=function, a=arguments, m=more: try_ranks(n, f, *a, **m))
    return found


def result(name: str) -> Job:
    """What became of a job: that it has ended, and left nothing, is part of each scenario."""
    job = jobs()[name].result()
    assert not job.timed_out and not job.orphans, job
    return job


def line(job: Job, rank: int) -> str:
    """The only line that a rank prints about a fault, or nothing."""
    lines = [each for each in job.errors[rank].splitlines() if each.startswith("gluongraph: ")]
    assert len(lines) <= 1, job
    return "".join(lines).removeprefix("gluongraph: ")


def test_programs_that_end_together() -> None:
    for name, number in (("normal", 3), ("alone", 1)):
        job = result(name)
        assert (job.code, job.outputs, job.errors) == (0, ["went on\n"] * number, [""] * number), job


def test_the_exit_code_is_that_of_the_program() -> None:
    job = result("exit code")
    assert job.code == 7 and job.errors == ["", ""], job


@pytest.mark.parametrize(
    ("name", "rank", "message"),
    [
        ("end", 0, "rank 2 ended while ranks 0, 1 wait in allreduce at test_supervision.py:"),
        ("fail", 1, "rank 1 raised ValueError: bad batch; all ranks are ended"),
        ("fail beside a thread", 1, "rank 1 raised ValueError: bad batch; all ranks are ended"),
        ("fail under another hook", 1, "rank 1 raised ValueError: bad batch; all ranks are ended"),
        ("fail under mpi4py", 1, "rank 1 raised ValueError: bad batch; all ranks are ended"),
        ("interrupt", 1, "rank 1 was interrupted; all ranks are ended"),
        ("defect", 1, "rank 1 is no longer watched: raised ValueError: a defect; all ranks are ended"),
        ("stop", 0, "rank 2 is stopped (SIGSTOP) while ranks 0, 1 wait in allreduce at test_supervision.py:"),
        ("another", 0, "ranks call different collectives: rank 0 waits in allreduce at test_supervision.py:"),
    ],
)
def test_one_line_names_the_rank_and_the_job_ends(name: str, rank: int, message: str) -> None:
    job = result(name)
    assert job.code != 0, job
    assert line(job, rank).startswith(message), job
    assert not any(line(job, other) for other in range(len(job.errors)) if other != rank), job
    assert not any("went on" in output for output in job.outputs[:-1]), job


def test_the_traceback_comes_first() -> None:
    error = result("fail").errors[1]
    assert 0 <= error.index("ValueError: bad batch") < error.index("gluongraph: rank 1 raised")
    assert "shown by another hook" in result("fail under another hook").errors[1]


@pytest.mark.parametrize("name", ["kill", "end without a word"])
def test_what_the_launcher_sees_first_ends_the_job(name: str) -> None:
    job = result(name)
    assert not any(job.outputs), job
    if name == "kill" or is_open_mpi():  # MPICH's launcher returns the exit code of the rank that ended
        assert job.code != 0, job


def test_a_busy_rank_is_waited_for() -> None:
    job = result("busy")
    assert job.code == 0 and job.outputs == ["went on\n"] * 3, job
    warning = line(job, 0)
    assert warning.startswith("ranks 0, 1 wait in allreduce at test_supervision.py:"), job
    assert "rank 2 runs test_supervision.py:" in warning and warning.endswith(" in be_busy"), job


def test_a_busy_rank_is_not_waited_for_longer_than_asked() -> None:
    job = result("busy for ever")
    assert job.code != 0, job
    assert "for 3 s (GG_COMM_TIMEOUT); rank 1 runs test_supervision.py:" in job.errors[0], job


def test_groups_without_the_rank_that_ended() -> None:
    job = result("groups")
    assert (job.code, job.outputs, job.errors) == (0, ["went on\n"] * 4, [""] * 4), job


def test_forks_are_no_ranks() -> None:
    job = result("forks")
    assert (job.code, job.outputs) == (0, ["2.0\n"] * 2), job


@pytest.mark.skipif(not is_open_mpi(), reason="going on without lost ranks needs Open MPI 5")
@pytest.mark.parametrize(
    ("name", "left", "lost"),
    [
        ("survive", {0: "2.0 2.0", 2: "2.0 2.0"}, {"1"}),
        ("survive two", {1: "2.0 2.0", 3: "2.0 2.0"}, {"0", "2"}),
        ("survive a stopped one", {0: "2.0 2.0", 2: "2.0 2.0"}, {"1"}),
        ("nobody is lost", {0: "2.0 2.0", 1: "2.0 2.0"}, set()),
    ],
)
def test_others_go_on_in_a_fault_tolerant_job(name: str, left: dict[int, str], lost: set[str]) -> None:
    job = result(name)
    assert job.code == 0, job
    sums = {rank: output.splitlines()[-1] for rank, output in enumerate(job.outputs) if "sum" in output}
    assert sums == {rank: f"sum {each}" for rank, each in left.items()}, job
    named = {
        word for output in job.outputs for each in output.splitlines() for word in each.split()[1:] if "lost" in each
    }
    assert named <= lost and (named or not lost), job


@pytest.mark.skipif(not is_open_mpi(), reason="going on without lost ranks needs Open MPI 5")
def test_an_exception_ends_a_fault_tolerant_job() -> None:
    job = result("fail in a tolerant job")
    assert job.code != 0, job
    assert line(job, 1) == "rank 1 raised ValueError: bad batch; all ranks are ended", job
