"""Collectives over a real MPI: values against numpy, the same bits on all ranks, arrays of any size, errors."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import is_open_mpi, needs_mpi, run_ranks

from gluongraph.runtime.communicator import mpi_reductions
from gluongraph.runtime.communicator.base import CommunicationError
from gluongraph.runtime.communicator.reduce16 import reduce_rows

pytestmark = needs_mpi

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(t) for t in (np.float32, np.float64, np.float16)] + [BFLOAT16]
INTEGERS = [np.dtype(t) for t in "bBhHiIqQ"]
SIZES = [0, 1, 2, 3, 5, 1000, 20_011]
COUNTS = [1, 2, 3, 4]  # of ranks


def data(rank: int, size: int, dtype: np.dtype[Any], seed: int = 0) -> np.ndarray[Any, Any]:
    """What a rank has: every rank can compute that of the others."""
    random = np.random.default_rng((seed, rank, size))
    if dtype.kind in "iu":
        return random.integers(0, 20, size).astype(dtype)
    return (random.standard_normal(size) * 8).astype(dtype)


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float64 if array.dtype.kind not in "iu" else array.dtype)


# --- what runs on the ranks: each check is a function of the communicator


def check_sums(c: Any) -> None:
    for dtype, size in itertools.product([*FLOATS, *INTEGERS], SIZES):
        array = data(c.rank, size, dtype)
        before = array.ctypes.data
        c.allreduce(array)
        expected = sum(wide(data(rank, size, dtype)) for rank in range(c.size))
        if dtype.kind in "iu":
            assert same(array, np.asarray(expected, dtype)), (dtype, size)
        else:
            bound = float(ml_dtypes.finfo(dtype).eps) * 32 * c.size
            assert np.all(np.abs(wide(array) - expected) <= bound), (dtype, size)
        assert array.ctypes.data == before


def check_waiting(c: Any) -> None:
    """Asleep, as the environment of these jobs says; with one rank's word all of them."""
    assert c.sleeps
    for own, asleep in (("sleep" if c.rank == c.size - 1 else "poll", True), ("poll", False), ("", None)):
        os.environ["GG_COMM_WAIT"] = own
        part = c.split(0)
        assert part.sleeps == (asleep if asleep is not None else c.size > len(os.sched_getaffinity(0)))
        array = np.full(5, c.rank + 1, np.float32)
        part.allreduce(array)
        assert np.all(array == c.size * (c.size + 1) / 2)
    os.environ["GG_COMM_WAIT"] = "nap"
    with pytest.raises(CommunicationError, match="GG_COMM_WAIT=nap: ranks either poll or sleep"):
        c.split(0)
    os.environ["GG_COMM_WAIT"] = "sleep"


def check_extremes(c: Any) -> None:
    for op, dtype, size in itertools.product(("max", "min"), [*FLOATS, *INTEGERS], SIZES):
        array = data(c.rank, size, dtype)
        c.allreduce(array, op)
        function = {"max": np.maximum, "min": np.minimum}[op]
        assert same(array, reduce(function, [data(rank, size, dtype) for rank in range(c.size)])), (op, dtype, size)
    for dtype in FLOATS:  # a NaN of any rank is the result on all
        array = np.full(c.size + 1, c.rank, dtype)
        array[c.rank] = np.nan
        c.allreduce(array, "max")
        assert np.all(np.isnan(array[: c.size])) and array[c.size] == c.size - 1


def check_sixteen_bits(c: Any) -> None:
    """They are added in float32, in the order of ranks, and rounded once."""
    for dtype, size in itertools.product((np.dtype(np.float16), BFLOAT16), SIZES):
        rows = [data(rank, size, dtype).astype(np.float32) for rank in range(c.size)]
        array = data(c.rank, size, dtype)
        c.allreduce(array)
        assert same(array, reduce(np.add, rows).astype(dtype)), (dtype, size)
    many = np.full((2, 3), 256, BFLOAT16)  # 256 + 1 is 256 in bfloat16
    if c.rank:
        many[...] = 1
    c.allreduce(many)
    assert many[1, 2] == np.float32(256 + c.size - 1).astype(BFLOAT16)
    huge = np.full(3, 60000, np.float16)
    c.allreduce(huge)
    assert np.all(np.isinf(huge)) or c.size == 1


def check_trees(c: Any) -> None:
    if c.size & (c.size - 1):
        with pytest.raises(CommunicationError, match=f"1, 2, 4, 8, ... ranks, there are {c.size}"):
            c.allreduce_tree(np.zeros(3, np.float32))
        return
    for dtype, size in itertools.product([*FLOATS, np.dtype(np.int32)], [*SIZES, 1, 4097]):
        level = [data(rank, size, dtype, 1) for rank in range(c.size)]
        if dtype.itemsize == 2:
            level = [each.astype(np.float32) for each in level]
        while len(level) > 1:
            level = [one + other for one, other in zip(level[::2], level[1::2], strict=True)]
        array = data(c.rank, size, dtype, 1)
        c.allreduce_tree(array)
        assert same(array, level[0].astype(dtype)), (dtype, size)


def check_started(c: Any) -> None:
    arrays = [data(c.rank, size, np.dtype(np.float32), 2) for size in SIZES for _ in range(3)]
    blocking = [array.copy() for array in arrays]
    works = [c.start_allreduce(array) for array in arrays]
    c.barrier()  # others may run meanwhile
    for array in blocking:
        c.allreduce(array)
    for work in works:
        work.wait()
    assert all(work.done() for work in works)
    assert all(same(one, other) for one, other in zip(arrays, blocking, strict=True))
    order: list[int] = []
    works = [c.start_allreduce(np.zeros(1 << 16, np.float32)) for _ in range(4)]
    works[3].wait()
    order = [index for index, work in enumerate(works) if work.done()]
    assert order == [0, 1, 2, 3]


def check_scatter_and_gather(c: Any) -> None:
    for dtype, size in itertools.product([*FLOATS, *INTEGERS], SIZES):
        source, target = data(c.rank, size * c.size, dtype), np.empty(size, dtype)
        c.reduce_scatter(source, target)
        whole = [data(rank, size * c.size, dtype)[c.rank * size :][:size] for rank in range(c.size)]
        exact = sum(wide(each) for each in whole)
        assert np.allclose(wide(target), exact, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5), (dtype, size)
        assert same(source, data(c.rank, size * c.size, dtype))
        if dtype.itemsize == 2 and dtype.kind not in "iu":
            assert same(target, reduce(np.add, [each.astype(np.float32) for each in whole]).astype(dtype))

        own, gathered = data(c.rank, size, dtype), np.empty(size * c.size, dtype)
        c.allgather(own, gathered)
        expected = np.concatenate([data(rank, size, dtype) for rank in range(c.size)])
        assert same(gathered, expected)
        in_place = np.zeros(size * c.size, dtype)
        part = in_place[c.rank * size : (c.rank + 1) * size]
        part[...] = own
        c.allgather(part, in_place)
        assert same(in_place, expected)

        source, target = data(c.rank, size * c.size, dtype), np.empty(size * c.size, dtype)
        c.alltoall(source, target)
        parts = [data(rank, size * c.size, dtype)[c.rank * size :][:size] for rank in range(c.size)]
        assert same(target, np.concatenate(parts))


def check_broadcasts(c: Any) -> None:
    for dtype, root in itertools.product([*FLOATS, *INTEGERS, np.dtype(bool), np.dtype(complex)], range(c.size)):
        if dtype.itemsize <= 8:
            array = data(c.rank, 40, dtype).reshape(5, 8)
            c.broadcast(array, root)
            assert same(array, data(root, 40, dtype).reshape(5, 8))
    scalar = np.array(c.rank, np.float64)
    c.broadcast(scalar, c.size - 1)
    c.allreduce(scalar)
    assert scalar == c.size * (c.size - 1)


def check_texts(c: Any) -> None:
    def text(rank: int) -> str:
        return "" if rank == 1 else "ä€😀\n\ud800" * (rank + 1) * 100

    assert list(c.exchange(text(c.rank))) == [text(rank) for rank in range(c.size)]
    assert list(c.exchange("")) == [""] * c.size


def check_groups(c: Any) -> None:
    group = c.split(c.rank % 2, key=-c.rank)
    members = [rank for rank in range(c.size) if rank % 2 == c.rank % 2][::-1]
    assert (group.size, group.rank) == (len(members), members.index(c.rank))
    assert list(group.exchange(str(c.rank))) == [str(rank) for rank in members]
    array = np.array([c.rank], np.int64)
    group.allreduce(array)
    assert array[0] == sum(members)
    assert (c.local_rank, c.local_size) == (c.rank, c.size)
    assert repr(c) == f"MpiCommunicator(rank {c.rank} of {c.size})"
    if is_open_mpi():
        with pytest.raises(CommunicationError, match=r"(?s)not fault tolerant.*mpiexec --with-ft ulfm"):
            c.shrink()


def check_large(c: Any) -> None:
    """The same results in pieces."""
    checks = [check_sums, check_sixteen_bits, check_extremes, check_scatter_and_gather, check_broadcasts, check_texts]
    before, mpi_reductions.LIMIT = mpi_reductions.LIMIT, 1000
    for check in [*checks, check_trees]:
        check(c)
    mpi_reductions.LIMIT = before


def check_refusals(c: Any) -> None:
    good = np.zeros(4 * c.size, np.float32)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: c.allreduce([1.0]), "a numpy array is needed, not list"),
        (
            lambda: c.allreduce(np.zeros((4, 4), np.float32).T),
            r"\(4, 4\) and strides \(4, 16\) is not contiguous",
        ),
        (lambda: c.allreduce(np.zeros(4, bool)), "elements of bool cannot be added"),
        (lambda: c.allreduce(np.zeros(4, ">f4")), "elements of >f4 cannot be communicated"),
        (lambda: c.allreduce(np.zeros(4, object)), "elements of object cannot be communicated"),
        (lambda: c.allreduce(good, "mean"), "no reduction 'mean': there are sum, max, min"),
        (lambda: c.start_allreduce(good, "mean"), "no reduction 'mean'"),
        (lambda: c.broadcast(good, c.size), f"there is no rank {c.size} among {c.size}"),
        (lambda: c.broadcast(good, -1), "there is no rank -1"),
        (lambda: c.split(-1), "a color is 0 or more, not -1"),
        (lambda: c.allgather(good, good[:1]), "elements, target 1"),
        (lambda: c.reduce_scatter(good[:1], good), "source has 1 elements"),
        (lambda: c.alltoall(good, good.astype(np.float64)), "source is float32, target is float64"),
    ]
    if c.size > 1:
        cases.append((lambda: c.alltoall(good[1:], good[1:].copy()), "are not . parts of equal size"))
        other = good[: 4 * c.size // c.size] if c.rank else good[4:8]
        cases.append((lambda: c.allgather(other, good), "source overlaps target"))
    for call, message in cases:
        with pytest.raises(CommunicationError, match=message):
            call()
    c.barrier()  # nothing has been sent


CHECKS: list[Callable[[Any], None]] = [
    check_sums,
    check_extremes,
    check_waiting,
    check_sixteen_bits,
    check_trees,
    check_started,
    check_scatter_and_gather,
    check_broadcasts,
    check_texts,
    check_large,
    check_refusals,
    check_groups,
]


def on_each_rank() -> None:
    """All checks, each by itself; their errors are the output of a rank, and a digest of many sums."""
    import traceback

    from gluongraph.runtime.communicator.mpi import MpiCommunicator, load_mpi

    mpi = load_mpi()
    errors = {}
    for check in CHECKS:
        communicator = MpiCommunicator(mpi.COMM_WORLD.Dup())
        try:
            check(communicator)
        except BaseException:
            errors[check.__name__] = traceback.format_exc()
    print(json.dumps({"errors": errors, "bits": bits_of_sums(MpiCommunicator(mpi.COMM_WORLD.Dup()))}))


def bits_of_sums(c: Any) -> str:
    """A digest of sums of many sizes; those of repetitions in one process are the same."""
    digests = []
    for _ in range(3):
        digest = hashlib.sha256()
        for dtype, size in itertools.product(FLOATS, [*SIZES, 300_007]):
            array = data(c.rank, size, dtype, 3)
            c.allreduce(array)
            digest.update(array.tobytes())
            target = np.empty(size, dtype)
            c.reduce_scatter(data(c.rank, size * c.size, dtype, 3), target)
            gathered = np.empty(size * c.size, dtype)
            c.allgather(target, gathered)
            digest.update(gathered.tobytes())
        digests.append(digest.hexdigest())
    assert len(set(digests)) == 1
    return digests[0]


@cache
def results(number: int, repetition: int = 0) -> list[Any]:
    return [json.loads(output) for output in run_ranks(number, on_each_rank)]


@pytest.mark.parametrize("number", COUNTS)
@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(check: Callable[[Any], None], number: int) -> None:
    errors = {rank: each["errors"].get(check.__name__) for rank, each in enumerate(results(number))}
    assert not any(errors.values()), "\n".join(f"rank {rank}: {error}" for rank, error in errors.items() if error)


@pytest.mark.parametrize("number", COUNTS)
def test_sums_have_the_same_bits_on_all_ranks(number: int) -> None:
    assert len({each["bits"] for each in results(number)}) == 1


def test_sums_have_the_same_bits_in_another_run() -> None:
    assert results(3)[0]["bits"] == results(3, 1)[0]["bits"]


def test_rows_of_sixteen_bits_are_reduced_in_blocks() -> None:
    rows = np.stack([data(rank, 100_003, BFLOAT16) for rank in range(3)])
    target = np.empty(100_003, BFLOAT16)
    reduce_rows(rows, target, "sum")
    assert same(target, reduce(np.add, rows.astype(np.float32)).astype(BFLOAT16))
