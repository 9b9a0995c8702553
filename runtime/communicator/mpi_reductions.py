"""Reductions of numpy arrays over the ranks of an MPI communicator, and what arrays may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.runtime.communicator.base import REDUCTIONS, CommunicationError
from gluongraph.runtime.communicator.reduce16 import SHORT, Array, PartwiseReducer

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = 1 << 30  # bytes that one call of MPI is given
_WHOLE = 1 << 14  # bytes up to which fewer messages of more bytes are faster


class MpiReductions:
    """Reductions over one MPI communicator, by one thread at a time."""

    def __init__(self, raw: MPI.Intracomm, mpi: Any) -> None:
        self.raw = raw
        self._mpi = mpi
        self._in_place = mpi.IN_PLACE
        self._ops = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}
        floats = {np.float32: mpi.FLOAT, np.float64: mpi.DOUBLE}
        sizes = {1: (mpi.INT8_T, mpi.UINT8_T), 2: (mpi.INT16_T, mpi.UINT16_T)}
        sizes |= {4: (mpi.INT32_T, mpi.UINT32_T), 8: (mpi.INT64_T, mpi.UINT64_T)}
        integers = {np.dtype(f"{k}{n}"): kinds["iu".index(k)] for n, kinds in sizes.items() for k in "iu"}
        # What MPI itself reduces, and all that is reduced; 16-bit floats are moved as integers.
        self._native = {**{np.dtype(each): kind for each, kind in floats.items()}, **integers}
        self._reduced = {**self._native, **dict.fromkeys(SHORT, mpi.UINT16_T)}
        self._moved = {**self._reduced}  # grows by each dtype that is seen
        self._by_size = {n: kinds[1] for n, kinds in sizes.items()}
        self._partwise = PartwiseReducer(raw, mpi.IN_PLACE)

    # --- what arrays may be

    def check(self, array: Any, op: str) -> None:
        """Can it be reduced in place?

        Raises:
            CommunicationError: it is not a contiguous numpy array of numbers; there is no such operation.
        """
        if self.moved(array) is None or array.dtype not in self._reduced:
            raise CommunicationError(
                with_user_location(
                    f"elements of {array.dtype} cannot be added by MPI",
                    help="float32, float64, float16, bfloat16, and integers can",
                )
            )
        if op not in self._ops:
            raise CommunicationError(with_user_location(f"no reduction {op!r}: there are {', '.join(REDUCTIONS)}"))

    def moved(self, array: Any) -> Any:
        """MPI's type for elements that are not computed with.

        Raises:
            CommunicationError: it is not a contiguous numpy array of numbers.
        """
        try:
            if array.flags.c_contiguous:
                return self._moved[array.dtype]
        except (AttributeError, KeyError):
            pass
        return self._moved_if_possible(array)

    def _moved_if_possible(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            raise CommunicationError(with_user_location(f"a numpy array is needed, not {type(array).__name__}"))
        if not array.flags.c_contiguous:
            raise CommunicationError(
                with_user_location(
                    f"an array of shape {array.shape} and strides {array.strides} is not contiguous",
                    help="np.ascontiguousarray(array) makes a copy that is",
                )
            )
        kind = self._by_size.get(array.dtype.itemsize)
        if kind is None or array.dtype.kind not in "biufcV" or not array.dtype.isnative or array.dtype.names:
            raise CommunicationError(with_user_location(f"elements of {array.dtype} cannot be communicated"))
        self._moved[array.dtype] = kind
        return kind

    # --- reductions

    def allreduce(self, array: Array, op: str) -> None:
        """The reduction of checked arrays, in place."""
        if array.nbytes > LIMIT:
            for piece in pieces(array):
                self.allreduce(piece, op)
            return
        dtype = array.dtype
        kind = self._native.get(dtype)
        if kind is not None and (op == "sum" or dtype.kind != "f"):
            self.raw.Allreduce(self._in_place, (array, array.size, kind), self._ops[op])
        elif array.size:
            self._partwise.allreduce(array.reshape(-1), self._moved[dtype], op)

    def allreduce_tree(self, array: Array) -> None:
        """The sum along a balanced binary tree, of a checked array on a power of two of ranks."""
        if array.dtype in SHORT:
            wide = array.astype(np.float32)
            self.allreduce_tree(wide)
            array[...] = wide
            return
        for piece in pieces(array):
            if piece.nbytes <= _WHOLE:
                self._tree_of_wholes(piece)
            else:
                self._tree_of_halves(piece)

    def _tree_of_wholes(self, array: Array) -> None:
        """Ranks whose numbers differ in one bit, from the lowest bit on, exchange and add all that they have."""
        rank = self.raw.rank
        other = np.empty_like(array)
        for partner in self._partners():
            self._swap(array, other, partner)
            _add_in_order(array, other, array, first=rank < partner)

    def _tree_of_halves(self, array: Array) -> None:
        """The same sums of fewer bytes: each of the two goes on with one half, and at the end they exchange them."""
        rank, flat = self.raw.rank, array.reshape(-1)
        received = np.empty((flat.size + 1) // 2, flat.dtype)
        own, done = flat, []
        for partner in self._partners():
            halves = own[: own.size // 2], own[own.size // 2 :]
            own, theirs = halves if rank < partner else halves[::-1]
            other = received[: own.size]
            self._swap(theirs, other, partner)
            _add_in_order(own, other, own, first=rank < partner)
            done.append((own, theirs, partner))
        for kept, theirs, partner in reversed(done):
            self._swap(kept, theirs, partner)

    def _partners(self) -> Iterator[int]:
        distance = 1
        while distance < self.raw.size:
            yield self.raw.rank ^ distance
            distance *= 2

    def _swap(self, sent: Array, received: Array, partner: int) -> None:
        kind = self._native[sent.dtype]
        self.raw.Sendrecv((sent, sent.size, kind), partner, 0, (received, received.size, kind), partner, 0)

    def reduce_scatter(self, source: Array, target: Array) -> None:
        """The sum of the rank's own part, of checked arrays."""
        kind = self._native.get(target.dtype)
        if source.nbytes > LIMIT:
            self._reduce_scatter_large(source.reshape(-1), target.reshape(-1))
        elif kind is None:
            self._partwise.reduce_scatter(source.reshape(-1), target.reshape(-1), self._moved[target.dtype], "sum")
        else:
            self._reduce_scatter_pairwise(source.reshape(self.raw.size, -1), target.reshape(-1))

    def _reduce_scatter_pairwise(self, parts: Array, target: Array) -> None:
        """Every two ranks exchange the parts that they need of each other. (Pairwise exchange: Thakur, Rabenseifner,
        Gropp, 2005. Open MPI's own takes 3 to 20 times as long.)"""
        rank, size, kind = self.raw.rank, self.raw.size, self._native[target.dtype]
        target[:] = parts[rank]
        received = np.empty_like(target)
        for distance in range(1, size):
            to, sender = (rank + distance) % size, (rank - distance) % size
            self.raw.Sendrecv((parts[to], target.size, kind), to, 0, (received, target.size, kind), sender, 0)
            with np.errstate(all="ignore"):
                np.add(target, received, out=target)

    def _reduce_scatter_large(self, source: Array, target: Array) -> None:
        """Each piece of each part by itself."""
        step = max(1, LIMIT // source.itemsize // self.raw.size)
        rows = source.reshape(self.raw.size, target.size)
        for start in range(0, target.size, step):
            piece = np.ascontiguousarray(rows[:, start : start + step])
            self.reduce_scatter(piece, target[start : start + step])


def pieces(array: Array) -> Iterator[Array]:
    """The array itself, or where it is too large for one call of MPI, contiguous parts of it."""
    if array.nbytes <= LIMIT:
        yield array
        return
    flat, step = array.reshape(-1), LIMIT // array.itemsize
    for start in range(0, flat.size, step):
        yield flat[start : start + step]


def _add_in_order(own: Array, other: Array, target: Array, first: bool) -> None:
    """Write the sum to `target`; the order of the operands chooses between two NaNs."""
    with np.errstate(all="ignore"):
        np.add(*((own, other) if first else (other, own)), out=target)


def address(array: Array) -> int:
    """Where its memory begins."""
    return int(array.__array_interface__["data"][0])
