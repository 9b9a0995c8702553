"""Collectives between the ranks of one host, in memory that all of them reach: a window of MPI's.

Through messages, a sum of 2 MiB over two ranks copies each array into shared memory and out of it again. Arrays that
lie in a window are added where they are. Every rank adds one part of the arrays of all ranks, in the order of ranks,
and writes the sum to all of them: each element is computed once, so all ranks have the same bits.

Ranks wait for each other in MPI's own barrier, and `supervision.py` watches them as in any other collective. Jobs that
go on without lost ranks have no such memory: Open MPI says that its windows are not tested for that, and a barrier of
4 ranks failed with another error than that a rank is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.storage import ALIGNMENT, Array, aligned

if TYPE_CHECKING:
    from mpi4py import MPI

Inside = Callable[[str], AbstractContextManager[None]]
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))  # what is added in shared memory
SWITCH = "GG_SHARED_MEMORY"  # "0" on any rank: sums go through messages
_FOLDER = "/dev/shm"  # where MPI libraries make windows on Linux
_BLOCK = 1 << 18  # bytes that are added, and then copied to the others out of the cache
_PAGE = 4096


class SharedMemory:
    """So many bytes of each rank of a host, to which all of them have access. It is never freed: that would be a
    collective, and nobody knows when the last rank has forgotten its arrays."""

    def __init__(self, raw: MPI.Intracomm, mpi: Any, nbytes: int, inside: Inside, barrier: Callable[[], None]) -> None:
        """All ranks of the communicator call this, which are on one host. A rank waits `inside` a collective, by its
        name, for the others at a `barrier`."""
        self.nbytes, self.inside = nbytes, inside
        self.rank, self._barrier = raw.rank, barrier
        size = -(-(nbytes + ALIGNMENT) // _PAGE) * _PAGE
        window = mpi.Win.Allocate_shared(size, 1, comm=raw)
        window.Lock_all(mpi.MODE_NOCHECK)
        self._window, self._sync = window, window.Sync
        # Pages are mapped as pages by every rank, so all find the same first aligned byte.
        parts = [np.frombuffer(window.Shared_query(rank)[0], np.uint8) for rank in range(raw.size)]
        self._parts = [part[-part.ctypes.data % ALIGNMENT :][:nbytes] for part in parts]
        self._parts[self.rank][:] = 0

    def array(self, start: int, nbytes: int, dtype: np.dtype[Any]) -> SharedArray:
        """Return the bytes from `start` on, an aligned offset, of every rank."""
        assert start + nbytes <= self.nbytes
        return SharedArray(self, [part[start : start + nbytes].view(dtype) for part in self._parts])

    def wait(self) -> None:
        """Wait until all ranks have called this; each sees what the others have written before."""
        self._sync()
        self._barrier()
        self._sync()


class SharedArray:
    """An array of each rank in shared memory; `own` is that of this rank, which no other touches between collectives.
    All ranks call the same methods."""

    def __init__(self, memory: SharedMemory, arrays: list[Array]) -> None:
        self._memory = memory
        self._arrays, self.own = arrays, arrays[memory.rank]
        self._others = [array for rank, array in enumerate(arrays) if rank != memory.rank]
        size, ranks = self.own.size, len(arrays)
        step = max(1, _BLOCK // self.own.itemsize)
        first, last = (size * number // ranks for number in (memory.rank, memory.rank + 1))
        # What this rank adds, block by block: the arrays of all ranks in their order, its own, those of the others.
        self._blocks = [
            ([array[start:end] for array in arrays], self.own[start:end], [array[start:end] for array in self._others])
            for start in range(first, last, step)
            for end in [min(start + step, last)]
        ]
        self._scratch = np.empty(min(step, last - first) if ranks > 2 else 0, self.own.dtype)

    def allreduce(self) -> None:
        """Replace the array by the sum of those of all ranks: the same bits on every rank."""
        with self._memory.inside("allreduce"):
            self._memory.wait()
            with np.errstate(all="ignore"):
                for terms, own, others in self._blocks:
                    self._add(terms, own)
                    for other in others:
                        np.copyto(other, own)
            self._memory.wait()

    def reduce_scatter(self, target: Array) -> None:
        """Write part number `rank` of the sum over ranks to `target`. The array has as many such parts as there are
        ranks."""
        with self._memory.inside("reduce_scatter"):
            self._memory.wait()
            at = 0
            with np.errstate(all="ignore"):
                for terms, own, _ in self._blocks:
                    self._add(terms, target[at : at + own.size])
                    at += own.size
            self._memory.wait()

    def allgather(self, source: Array, target: Array) -> None:
        """Write the sources of all ranks, of the array's size, to `target`, one after the other. `source` may be the
        rank's own part of it. The array is where they are for a moment."""
        size, first = self.own.size, self._memory.rank * self.own.size
        with self._memory.inside("allgather"):
            np.copyto(self.own, source)
            if source.ctypes.data != target.ctypes.data + first * target.itemsize:
                np.copyto(target[first : first + size], source)
            self._memory.wait()
            for rank, array in enumerate(self._arrays):
                if rank != self._memory.rank:
                    np.copyto(target[rank * size : (rank + 1) * size], array)
            self._memory.wait()

    def _add(self, terms: list[Array], total: Array) -> None:
        """Write ((0 + 1) + 2) + ... to the total, which may be one of the terms."""
        if len(terms) == 2:
            np.add(terms[0], terms[1], out=total)
            return
        partial = self._scratch[: total.size]
        np.copyto(partial, terms[0])
        for term in terms[1:-1]:
            np.add(partial, term, out=partial)
        np.add(partial, terms[-1], out=total)


def is_allowed() -> bool:
    """Has nobody switched it off for this process?"""
    return os.environ.get(SWITCH, "1").strip() != "0"


def has_room(nbytes: int, ranks: int) -> bool:
    """Is there memory for a window of so many bytes of each of so many ranks?

    A file system in memory gives out pages when they are written to, and kills who writes to more than there are.
    """
    try:
        found = os.statvfs(_FOLDER)
    except (AttributeError, OSError):
        return False
    return found.f_bavail * found.f_frsize >= 2 * ranks * aligned(nbytes)
