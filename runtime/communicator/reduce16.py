"""Reductions whose arithmetic is ours: each rank reduces one part of the array, and all ranks gather the results.

MPI has no bfloat16, adds float16 in float16, and its maximum of a NaN and a number depends on who asks. Here a part is
reduced by one rank, in the order of ranks, 16-bit floats in float32 and rounded once: every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.dtypes import DTYPES

if TYPE_CHECKING:
    from mpi4py import MPI

Array = np.ndarray[Any, Any]
REDUCE: dict[str, Callable[..., Array]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
BFLOAT16 = DTYPES["bf16"].numpy
SHORT = frozenset({np.dtype(np.float16), BFLOAT16})
_BLOCK = 1 << 15  # elements that are reduced at a time: in float32 they stay in a core's cache


class PartwiseReducer:
    """Reductions over the ranks of an MPI communicator, one of which runs at a time."""

    def __init__(self, comm: MPI.Intracomm, in_place: Any) -> None:
        self._comm = comm
        self._in_place = in_place
        self._received = np.empty(0, np.uint8)  # kept: new pages would take as long as the copy into them

    def allreduce(self, array: Array, kind: MPI.Datatype, op: str) -> None:
        """Replace a flat array by its reduction; `kind` is an MPI type of its elements' size."""
        size, rank = self._comm.size, self._comm.rank
        ends = [array.size * part // size for part in range(size + 1)]  # parts differ by one element at most
        counts = [end - start for start, end in pairwise(ends)]
        mine = counts[rank]
        received = self._scratch(size * mine, array.dtype)
        self._comm.Alltoallv(
            (bits(array), (counts, ends[:-1]), kind),
            (bits(received), ([mine] * size, [mine * row for row in range(size)]), kind),
        )
        reduce_rows(received.reshape(size, mine), array[ends[rank] : ends[rank + 1]], op)
        self._comm.Allgatherv(self._in_place, (bits(array), (counts, ends[:-1]), kind))

    def reduce_scatter(self, source: Array, target: Array, kind: MPI.Datatype, op: str) -> None:
        """Write the reduction of part number `rank` of the sources to `target`; both are flat."""
        received = self._scratch(source.size, source.dtype)
        self._comm.Alltoall((bits(source), kind), (bits(received), kind))
        reduce_rows(received.reshape(self._comm.size, target.size), target, op)

    def _scratch(self, elements: int, dtype: np.dtype[Any]) -> Array:
        needed = elements * dtype.itemsize
        if needed > self._received.nbytes:
            self._received = np.empty(needed, np.uint8)
        return self._received[:needed].view(dtype)


def bits(array: Array) -> Array:
    """The same memory as integers, where Python's buffers have no such element type."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def reduce_rows(rows: Array, target: Array, op: str) -> None:
    """Write `rows[0] op rows[1] op ...`, in this order, to `target`; 16-bit floats are rounded once, at the end.

    >>> total = np.empty(2, np.float16)
    >>> reduce_rows(np.array([[2048, 1], [1, 2], [1, 3]], np.float16), total, "sum")
    >>> total.tolist()  # in float16, 2048 + 1 is 2048
    [2050.0, 6.0]
    """
    reduce = REDUCE[op]
    dtype = np.dtype(np.float32) if rows.dtype in SHORT else rows.dtype
    total = np.empty(min(_BLOCK, target.size), dtype)
    with np.errstate(all="ignore"):  # infinities and NaNs are results, as they are of MPI's own sums
        for start in range(0, target.size, _BLOCK):
            block = rows[:, start : start + _BLOCK]
            result = total[: block.shape[1]]
            np.copyto(result, block[0])
            for row in block[1:]:
                reduce(result, row, out=result, dtype=dtype, casting="unsafe")
            target[start : start + _BLOCK] = result
