"""Collectives between the ranks of one host, in memory that all of them reach: a window of MPI's.

Through messages, a sum of 2 MiB over two ranks copies each array into shared memory and out of it again. Arrays that
lie in a window are added where they are. Every rank adds one part of the arrays of all ranks, in the order of ranks,
and writes the sum to all of them: each element is computed once, so all ranks have the same bits.

Ranks wait for each other in MPI's own barrier, and `supervision.py` watches them as in any other collective. Each wait
costs what the slower rank is late. So a rank waits only where data need it: before it reads what others write, and
before it writes again what others read. `SyncCount` tells whether another collective has made a wait needless.

Jobs that go on without lost ranks have no such memory: Open MPI says that its windows are not tested for that, and a
barrier of 4 ranks failed with another error than that a rank is lost.
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


class SyncCount:
    """How often all ranks of a communicator have synchronized: none left a collective before all had entered it, and
    each sees what the others did before."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class SharedMemory:
    """So many bytes of each rank of a host, to which all of them have access. It is never freed: that would be a
    collective, and nobody knows when the last rank has forgotten its arrays."""

    def __init__(
        self,
        raw: MPI.Intracomm,
        mpi: Any,
        nbytes: int,
        inside: Inside,
        barrier: Callable[[], None],
        syncs: SyncCount,
    ) -> None:
        """All ranks of the communicator call this, which are on one host. A rank waits `inside` a collective, by its
        name, for the others at a `barrier`, which is one of the communicator's `syncs`."""
        self.nbytes, self.inside, self.syncs = nbytes, inside, syncs
        self._last_read = 0  # the count of synchronizations when this rank last read what others had written
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
        self.syncs.count += 1

    def wait_unless_synchronized(self, since: int) -> None:
        """Wait until all ranks have called this; not if they have synchronized since the count was `since`."""
        if self.syncs.count > since:
            self._sync()
        else:
            self.wait()

    def note_read(self) -> None:
        """This rank has read what others have written; they may write there after the next synchronization."""
        self._last_read = self.syncs.count

    def wait_for_readers(self) -> None:
        """Wait until the others have read what this rank has written, so that it can write there again."""
        self.wait_unless_synchronized(self._last_read)


class SharedArray:
    """An array of each rank in shared memory; `own` is that of this rank, which no other touches between collectives.
    All ranks call the same methods.

    `written`, where a method has it, is the count of synchronizations when this rank last wrote to its own array: if
    there was one since, the method need not wait for what others have written. By default it waits.
    """

    def __init__(self, memory: SharedMemory, arrays: list[Array]) -> None:
        self.memory = memory
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

    def allreduce(self, written: int | None = None) -> None:
        """Replace the array by the sum of those of all ranks: the same bits on every rank."""
        with self.memory.inside("allreduce"):
            self._wait_for_writers(written)
            with np.errstate(all="ignore"):
                for terms, own, others in self._blocks:
                    self._add(terms, own)
                    for other in others:
                        np.copyto(other, own)
            self.memory.wait()

    def reduce_scatter(self, target: Array, written: int | None = None, keep: bool = False) -> None:
        """Write part number `rank` of the sum over ranks to `target`. The array has as many such parts as there are
        ranks. Callers that `keep` their own arrays until the next synchronization do not wait for those who read them.
        """
        with self.memory.inside("reduce_scatter"):
            self._wait_for_writers(written)
            at = 0
            with np.errstate(all="ignore"):
                for terms, own, _ in self._blocks:
                    self._add(terms, target[at : at + own.size])
                    at += own.size
            self.memory.note_read()
            if not keep:
                self.memory.wait()

    def allgather(self, source: Array, target: Array, keep: bool = False) -> None:
        """Write the sources of all ranks, of the array's size, to `target`, one after the other. `source` may be the
        rank's own part of it. The array is where they are on the way; `keep` as in `reduce_scatter`."""
        size, first = self.own.size, self.memory.rank * self.own.size
        with self.memory.inside("allgather"):
            self.memory.wait_for_readers()
            np.copyto(self.own, source)
            if source.ctypes.data != target.ctypes.data + first * target.itemsize:
                np.copyto(target[first : first + size], source)
            self.memory.wait()
            for rank, array in enumerate(self._arrays):
                if rank != self.memory.rank:
                    np.copyto(target[rank * size : (rank + 1) * size], array)
            self.memory.note_read()
            if not keep:
                self.memory.wait()

    def _wait_for_writers(self, written: int | None) -> None:
        """Wait until all ranks have written their arrays, this one when the count was `written`."""
        self.memory.wait_unless_synchronized(self.memory.syncs.count if written is None else written)

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
