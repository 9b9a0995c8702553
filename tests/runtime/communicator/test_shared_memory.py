"""Sums in memory that the ranks of a host share: values and bits, who gets such memory, and ranks that do not come."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
from ranks import Job, is_open_mpi, needs_mpi, run_ranks, try_ranks

from gluongraph.runtime.communicator import shared_memory
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.local import LocalCommunicator

COUNTS = [2, 3, 4]  # of ranks
SIZES = [1, 2, 3, 5, 1000, 300_007]  # fewer elements than ranks; several blocks of each rank


def data(rank: int, size: int, dtype: np.dtype[Any], seed: int = 0) -> np.ndarray[Any, Any]:
    """What a rank has: every rank can compute that of the others."""
    return (np.random.default_rng((seed, rank, size)).standard_normal(size) * 8).astype(dtype)


# --- what runs on the ranks


def check_sums() -> None:
    """The sum is ((0 + 1) + 2) + ... on every rank, to the bit, in one memory for all sizes."""
    c = world()
    memory = c.shared_memory(8 * max(SIZES))
    assert memory is not None
    for dtype, size, seed in itertools.product(shared_memory.DTYPES, SIZES, range(3)):
        array = memory.array(0, size * dtype.itemsize, dtype)
        array.own[:] = data(c.rank, size, dtype, seed)
        array.allreduce()
        expected = reduce(np.add, [data(rank, size, dtype, seed) for rank in range(c.size)])
        assert array.own.tobytes() == expected.tobytes(), (dtype, size)
        assert array.own.ctypes.data % 64 == 0


def check_scatter_and_gather() -> None:
    """Each rank has its part of the sum, in the order of ranks; parts are gathered, also in place."""
    c = world()
    memory = c.shared_memory(8 * c.size * max(SIZES))
    assert memory is not None
    for dtype, size in itertools.product(shared_memory.DTYPES, SIZES):
        array, target = memory.array(0, c.size * size * dtype.itemsize, dtype), np.empty(size, dtype)
        array.own[:] = data(c.rank, c.size * size, dtype)
        array.reduce_scatter(target)
        whole = reduce(np.add, [data(rank, c.size * size, dtype) for rank in range(c.size)])
        part = slice(c.rank * size, (c.rank + 1) * size)
        assert target.tobytes() == whole[part].tobytes(), (dtype, size)
        assert array.own.tobytes() == data(c.rank, c.size * size, dtype).tobytes()

        staging, gathered = memory.array(0, size * dtype.itemsize, dtype), np.zeros(c.size * size, dtype)
        staging.allgather(target, gathered)
        assert gathered.tobytes() == whole.tobytes(), (dtype, size)
        gathered[:] = 0
        gathered[part] = target
        staging.allgather(gathered[part], gathered)
        assert gathered.tobytes() == whole.tobytes(), (dtype, size)


def check_ranks_that_are_late() -> None:
    """Ranks that keep their arrays until the next synchronization wait for nobody else, and those that are late still
    find what was written for them."""
    c = world()
    memory, staged = c.shared_memory(8 * c.size * 1000), c.shared_memory(8 * 1000, "gathers")
    assert memory is not None and staged is not None and memory is not staged
    dtype, size = np.dtype(np.float64), 1000
    array, staging = (
        memory.array(0, c.size * size * dtype.itemsize, dtype),
        staged.array(0, size * dtype.itemsize, dtype),
    )
    random = np.random.default_rng(c.rank)
    target, gathered = np.empty(size, dtype), np.empty(c.size * size, dtype)
    agreed = np.zeros(1, np.int64)
    for seed in range(40):
        array.own[:] = data(c.rank, c.size * size, dtype, seed)
        written = memory.syncs.count
        time.sleep(random.choice([0, 0, 1e-3]))
        c.allreduce(agreed)  # as ranks compare their programs
        before = memory.syncs.count
        time.sleep(random.choice([0, 0, 1e-3]))
        array.reduce_scatter(target, written, keep=True)
        assert memory.syncs.count == before == written + 1
        time.sleep(random.choice([0, 0, 1e-3]))
        staging.allgather(target, gathered, keep=True)
        assert memory.syncs.count == before + 1
        whole = reduce(np.add, [data(rank, c.size * size, dtype, seed) for rank in range(c.size)])
        assert gathered.tobytes() == whole.tobytes(), seed


def check_needless_waits() -> None:
    """Sums wait for writers unless all ranks have synchronized since; gathers for those who read the last one."""
    c = world()
    memory = c.shared_memory(4096)
    assert memory is not None
    array = memory.array(0, 800, np.dtype(np.float64))
    waits = []
    for act in (
        array.allreduce,  # for writers, and until all have written
        lambda: array.allreduce(memory.syncs.count),  # as by default
        lambda: array.allreduce(memory.syncs.count - 1),  # nobody has written since
        lambda: array.allgather(np.ones(100), np.empty(100 * c.size), keep=True),
        lambda: array.allgather(np.ones(100), np.empty(100 * c.size), keep=True),  # and for readers
        c.barrier,
        lambda: array.allgather(np.ones(100), np.empty(100 * c.size)),  # and until all have read
    ):
        before = memory.syncs.count
        act()
        waits.append(memory.syncs.count - before)
    assert waits == [2, 2, 1, 1, 2, 1, 2], waits


def check_several_arrays() -> None:
    """Arrays in one memory are summed by themselves."""
    c = world()
    memory = c.shared_memory(4096)
    assert memory is not None
    dtype = np.dtype(np.float32)
    arrays = [memory.array(start, 1024, dtype) for start in (0, 1024, 2048)]
    for number, array in enumerate(arrays):
        array.own[:] = data(c.rank, 256, dtype, number)
    arrays[1].allreduce()
    for number, array in enumerate(arrays):
        terms = [data(rank, 256, dtype, number) for rank in (range(c.size) if number == 1 else [c.rank])]
        assert array.own.tobytes() == reduce(np.add, terms).tobytes(), number


def check_values_that_are_not_finite() -> None:
    c = world()
    memory = c.shared_memory(64)
    assert memory is not None
    array = memory.array(0, 16, np.dtype(np.float32))
    array.own[:] = [np.inf, np.nan if c.rank == 1 else 0, 3e38, -np.inf if c.rank == 0 else np.inf]
    array.allreduce()
    np.testing.assert_array_equal(array.own, np.array([np.inf, np.nan, np.inf, np.nan], np.float32))


def check_memory_is_kept() -> None:
    """Smaller requests get the same memory, a larger one another that holds twice as much."""
    c = world()
    first = c.shared_memory(1 << 16)
    assert first is not None and c.shared_memory(10) is first
    larger = c.shared_memory(first.nbytes + 1)
    assert larger is not None and larger is not first and larger.nbytes == 2 * first.nbytes


def check_one_rank_refuses() -> None:
    """Where one rank can have no such memory, none of them does."""
    c = world().split(0)
    if c.rank == 1:
        os.environ[shared_memory.SWITCH] = "0"
    assert c.shared_memory(1000) is None
    os.environ.pop(shared_memory.SWITCH, None)
    assert c.shared_memory(1000) is not None


def check_too_large() -> None:
    assert world().split(0).shared_memory(1 << 50) is None


def check_groups() -> None:
    """A communicator of some ranks sums over these; that of one rank has nothing to share."""
    c = world()
    group = c.split(c.rank % 2)
    members = [rank for rank in range(c.size) if rank % 2 == c.rank % 2]
    memory = group.shared_memory(64)
    assert (memory is None) == (len(members) == 1)
    if memory is not None:
        array = memory.array(0, 8, np.dtype(np.float64))
        array.own[:] = c.rank
        array.allreduce()
        assert array.own[0] == sum(members)


CHECKS: list[Callable[[], None]] = [
    check_sums,
    check_scatter_and_gather,
    check_ranks_that_are_late,
    check_needless_waits,
    check_several_arrays,
    check_values_that_are_not_finite,
    check_memory_is_kept,
    check_one_rank_refuses,
    check_too_large,
    check_groups,
]


def on_each_rank() -> None:
    """All checks, one after another; prints those that have passed."""
    for check in CHECKS:
        check()
        world().barrier()
        print(check.__name__, flush=True)


@cache
def outputs(number: int) -> list[str]:
    return run_ranks(number, on_each_rank)


@needs_mpi
@pytest.mark.parametrize("number", COUNTS)
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(check: Callable[[], None], number: int) -> None:
    assert all(check.__name__ in output.split() for output in outputs(number))


# --- ranks that do not come


def misbehaving(misbehave: str) -> None:
    c = world()
    memory = c.shared_memory(1000)
    assert memory is not None
    array = memory.array(0, 1000, np.dtype(np.float32))
    array.allreduce()
    if c.rank == c.size - 1:
        globals()[misbehave]()
    array.allreduce()
    print("went on", flush=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise ValueError("bad batch")


def call_another() -> None:
    world().exchange("")


def ended(number: int, misbehave: str) -> Job:
    job = try_ranks(number, misbehaving, misbehave, timeout=40)
    assert not job.timed_out and not job.orphans, str(job)
    assert job.code != 0 and job.seconds < 20 and not any("went on" in output for output in job.outputs), str(job)
    return job


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize(
    ("misbehave", "said"),
    [
        ("stop", "is stopped (SIGSTOP) while"),
        ("fail", "raised ValueError: bad batch"),
        ("call_another", "ranks call different collectives"),
    ],
)
def test_the_job_ends_and_says_why(misbehave: str, said: str, number: int) -> None:
    job = ended(number, misbehave)
    assert said in "".join(job.errors), str(job)
    assert "allreduce" in "".join(job.errors) or misbehave == "fail", str(job)


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
def test_the_job_ends_when_a_rank_is_killed(number: int) -> None:
    job = ended(number, "kill")
    assert f"rank {number - 1}" in job.launcher or "signal 9" in job.launcher, str(job)


def none_is_made() -> None:
    assert world().shared_memory(1000) is None
    print("went on", flush=True)


@needs_mpi
def test_a_fault_tolerant_job_has_none() -> None:
    if not is_open_mpi():
        pytest.skip("fault tolerance is Open MPI's")
    outputs = run_ranks(2, none_is_made, flags=["--with-ft", "ulfm"])
    assert all("went on" in output for output in outputs)


# --- one process


def test_one_rank_shares_nothing() -> None:
    assert LocalCommunicator().shared_memory(100) is None


def test_there_must_be_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shared_memory.has_room(1 << 50, 2)
    monkeypatch.setattr(shared_memory, "_FOLDER", "/no/such/folder")
    assert not shared_memory.has_room(1, 2)
