"""The communicator over MPI, through mpi4py: numpy arrays go to MPI as they are, whatever MPI it is.

**The same bits.** MPI requires that the result of an allreduce is identical on all ranks, and recommends that it is the
same whenever the arguments are. Open MPI, MPICH and Intel MPI choose their algorithm by the number of ranks, the number
of elements and the network, and keep the order of ranks in it: with these unchanged, every repetition gives the same
bits. Where that is not enough, `allreduce_tree` fixes the order of the sum. 16-bit floats, and maxima and minima of
floats (MPI's depend on the order where there are NaNs), are reduced by `reduce16.py`: in the order of ranks.

**Large arrays.** Counts in MPI are 32-bit integers, and some algorithms compute bytes in them: an array of more than
`mpi_reductions.LIMIT` bytes is communicated in pieces.

**Errors.** Those of MPI become `CommunicationError`; or `PeerLost`, where a rank has ended in a fault tolerant job.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import zlib
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.runtime.communicator import mpi_reductions
from gluongraph.runtime.communicator.activity import ACTIVITY, Activity, ranges
from gluongraph.runtime.communicator.background import Background
from gluongraph.runtime.communicator.base import CommunicationError, Communicator, PeerLost, Work
from gluongraph.runtime.communicator.mpi_reductions import MpiReductions, address, pieces
from gluongraph.runtime.communicator.reduce16 import Array, bits
from gluongraph.runtime.communicator.shared_memory import SharedMemory, SyncCount, has_room, is_allowed
from gluongraph.runtime.communicator.supervision import fault_tolerant, found_lost, note_loss, supervise, supervised
from gluongraph.runtime.communicator.waiting import sleeps, wait_asleep

if TYPE_CHECKING:
    from mpi4py import MPI

_NEWS = 0.5  # seconds: that a collective is revoked may be known before who is lost
_SAME_CALLS = "all ranks call the same collectives in the same order, with arrays of equal size and dtype"
_WITH_FT = (
    "going on without lost ranks needs Open MPI 5 and a job with fault tolerance: mpiexec --with-ft ulfm ...; "
    "or start again from the last checkpoint"
)


def load_mpi() -> Any:
    """mpi4py's module `MPI`, whose import initializes MPI for several threads.

    Raises:
        ImportError: mpi4py is not installed.
        RuntimeError: there is no library of MPI that it can load.
    """
    mpi4py: Any = import_whole("mpi4py")
    # One-sided transfers over libfabric, which nothing here uses: Open MPI looks for networks for 1 s.
    os.environ.setdefault("OMPI_MCA_btl", "^ofi")
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")  # prints an error where there is no such network
    if fault_tolerant():
        mpi4py.rc.finalize = False  # `supervision.py` does it, if no rank is lost: Open MPI may wait for lost ones
    from mpi4py import MPI  # not by import_whole: MPI is to be initialized by the thread that ends it, the main one

    return MPI


_all: WeakSet[MpiCommunicator] = WeakSet()


def revoke_all(losses: int) -> None:
    """Let the collectives of all communicators of this process end with `PeerLost`, on all ranks that are left; but not
    of those that were made by `shrink` since, after more losses."""
    for communicator in list(_all):
        if communicator.losses <= losses:
            communicator.revoke()


class _Collective:
    """Within: the supervision sees what this rank waits in, and MPI's errors become ours. Ranks that wait asleep enter
    it when all have come."""

    __slots__ = ("_activity", "_raw", "name", "owner")

    def __init__(self, owner: MpiCommunicator, name: str, activity: Activity, raw: MPI.Intracomm | None) -> None:
        """`raw`: what it communicates over; None if not all ranks enter it in the same order."""
        self.owner = owner
        self.name = name
        self._activity = activity
        self._raw = raw

    def __enter__(self) -> None:
        self.owner.calls += 1
        self._activity.inside = self
        if self.owner.sleeps and self._raw is not None:
            try:
                wait_asleep(self._raw)
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._activity.inside = None
        if error is not None:
            self.owner.raise_ours(error, self.name)


class MpiCommunicator(Communicator):
    """The ranks of an MPI communicator, of which each is a process."""

    name = "mpi"

    def __init__(self, raw: Any, parent: MpiCommunicator | None = None, losses: int = 0) -> None:
        """Take over mpi4py's communicator, which is used for nothing else from now on. All its ranks call this.

        `parent` is the one that it was made of, `losses` how often `shrink` has been called on the way.
        """
        self._mpi = mpi = load_mpi()
        self.raw: MPI.Intracomm = raw  # for messages between two ranks
        raw.Set_errhandler(mpi.ERRORS_RETURN)  # mpi4py raises them
        self.rank, self.size = raw.rank, raw.size
        on_host = raw.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = on_host.rank, on_host.size
        self.sleeps = sleeps(raw, on_host, mpi)
        on_host.Free()
        self.started_as: Sequence[int] = raw.group.Translate_ranks(None, mpi.COMM_WORLD.group)  # their ranks in the job
        # Open MPI hangs in these calls if the job has not been started for them; others say what they lack.
        self._survives = fault_tolerant() or mpi.get_vendor()[0] != "Open MPI"
        whole = len(self.started_as) == mpi.COMM_WORLD.size
        self.members = "" if whole else ranges(list(self.started_as))
        self.losses = losses
        self._children = 0
        # Collectives are counted; numbers of two communicators of the same ranks must not be mixed up.
        self._first: int = 0 if parent is None else zlib.crc32(f"{parent._first} {parent._children}".encode()) << 32
        self.calls = self._first
        self._sums = MpiReductions(raw, mpi)
        self._in_allreduce = self._collective("allreduce")
        _all.add(self)
        self._syncs = SyncCount()
        self._shared: dict[str, SharedMemory] = {}  # by their use
        self._background: tuple[Background, MpiReductions, _Collective] | None = None

    def allreduce(self, array: Any, op: str = "sum") -> None:
        """Replace the array by the sum (maximum, minimum) of those of all ranks: the same bits on every rank."""
        self._sums.check(array, op)
        with self._in_allreduce:
            self._sums.allreduce(array, op)
        self._syncs.count += array.size > 0

    def allreduce_tree(self, array: Any) -> None:
        """Replace the array by the sum over ranks along a balanced binary tree, ((0+1)+(2+3))+...

        Raises:
            CommunicationError: the number of ranks is no power of two.
        """
        if self.size & (self.size - 1):
            raise CommunicationError(
                with_user_location(
                    f"a sum along a balanced binary tree needs 1, 2, 4, 8, ... ranks, there are {self.size}",
                    help="start as many, or give up deterministic=True",
                )
            )
        self._sums.check(array, "sum")
        with self._collective("allreduce_tree"):
            self._sums.allreduce_tree(array)

    def start_allreduce(self, array: Any, op: str = "sum") -> Work:
        """Start `allreduce`; this process may compute meanwhile."""
        self._sums.check(array, op)
        if self._background is None:
            with self._collective("start_allreduce"):
                sums = MpiReductions(self.raw.Dup(), self._mpi)  # messages of two threads must not be mixed up
            # Not what the main thread is within.
            collective = _Collective(self, "start_allreduce", Activity(), sums.raw)
            waiting = _Collective(self, "wait() of start_allreduce", ACTIVITY, None)
            self._background = Background(waiting), sums, collective
        background, sums, collective = self._background

        def run() -> None:
            with collective:
                sums.allreduce(array, op)

        return background.start(run)

    def shared_memory(self, nbytes: int, use: str = "sums") -> SharedMemory | None:
        """Return memory in which collectives of all ranks are faster than by messages; None where there is none, on all
        ranks: they are on several hosts, one of them has too little memory for files in memory, or the job is to go
        on without lost ranks. Callers with the same use, which take turns, get the same memory."""
        if self.local_size < self.size or self.size == 1 or fault_tolerant():
            return None
        kept = self._shared.get(use)
        larger = nbytes if kept is None else max(nbytes, 2 * kept.nbytes)
        fits = kept is not None and kept.nbytes >= nbytes
        possible = np.array([is_allowed() and (fits or has_room(larger, self.size))], np.int64)
        self.allreduce(possible, "min")
        if not possible[0]:
            return None
        if not fits:
            with self._collective("shared_memory"):
                barrier = partial(wait_asleep, self.raw) if self.sleeps else self.raw.Barrier
                kept = SharedMemory(self.raw, self._mpi, larger, self._collective, barrier, self._syncs)
                self._shared[use] = kept
        return kept

    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Write part number `rank` of the sum over ranks to `target`. `source` has `size` times as many elements."""
        self._sums.check(target, "sum")
        self._check_pair(source, target, source_parts=self.size)
        with self._collective("reduce_scatter"):
            self._sums.reduce_scatter(source, target)

    def allgather(self, source: Any, target: Any) -> None:
        """Write the sources of all ranks to `target`, one after the other. `source` may be the rank's own part of
        `target`."""
        self._check_pair(source, target, target_parts=self.size)
        kind = self._sums.moved(source)
        in_place = address(source) == address(target) + self.rank * source.nbytes
        if not in_place and np.may_share_memory(source, target):
            raise self._refusal("allgather: source overlaps target, and is not this rank's own part of it")
        with self._collective("allgather"):
            if target.nbytes > mpi_reductions.LIMIT:
                self._allgather_large(source.reshape(-1), target.reshape(-1))
            else:
                sent = self._mpi.IN_PLACE if in_place else (bits(source), source.size, kind)
                self.raw.Allgather(sent, (bits(target), kind))  # a count would be that of one part

    def alltoall(self, source: Any, target: Any) -> None:
        """Write part number `rank` of every rank's source to `target`, in the order of ranks."""
        self._check_pair(source, target)
        kind = self._sums.moved(source)
        if source.size % self.size:
            raise self._refusal(f"alltoall: {source.size} elements are not {self.size} parts of equal size")
        with self._collective("alltoall"):
            if source.nbytes > mpi_reductions.LIMIT:
                self._alltoall_large(source.reshape(-1), target.reshape(-1))
            else:
                self.raw.Alltoall((bits(source), kind), (bits(target), kind))

    def broadcast(self, array: Any, root: int = 0) -> None:
        """Replace the array by that of the rank `root`."""
        if not 0 <= root < self.size:
            raise self._refusal(f"broadcast: there is no rank {root} among {self.size}")
        self._sums.moved(array)
        with self._collective("broadcast"):
            self._broadcast(array, root)

    def exchange(self, text: str) -> Sequence[str]:
        """Return the texts of all ranks, by rank. They are data: nothing in them is executed."""
        own = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        with self._collective("exchange"):
            lengths = np.empty(self.size, np.int64)
            self.raw.Allgather(np.array([own.size], np.int64), lengths)
            ends = [0, *np.cumsum(lengths).tolist()]
            parts = np.empty(ends[-1], np.uint8)
            if ends[-1] <= mpi_reductions.LIMIT:
                counts = (lengths.tolist(), ends[:-1])
                self.raw.Allgatherv((own, own.size, self._mpi.BYTE), (parts, counts, self._mpi.BYTE))
            else:
                parts[ends[self.rank] : ends[self.rank + 1]] = own
                for root in range(self.size):
                    self._broadcast(parts[ends[root] : ends[root + 1]], root)
        texts = (parts[start:end] for start, end in itertools.pairwise(ends))
        return tuple(part.tobytes().decode("utf-8", "surrogatepass") for part in texts)

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        with self._collective("barrier"):
            self.raw.Barrier()
        self._syncs.count += 1

    def split(self, color: int, key: int = 0) -> Communicator:
        """Return a communicator of the ranks with the same color, ordered by key, then rank."""
        if color < 0:
            raise self._refusal(f"split: a color is 0 or more, not {color}")
        with self._collective("split"):
            self._children += 1
            return MpiCommunicator(self.raw.Split(color, key), self, self.losses)

    def shrink(self) -> Communicator:
        """Return a communicator of the ranks that are left after `PeerLost`. All that are left call this.

        Raises:
            CommunicationError: this MPI, or this job, cannot go on without the lost ranks.
        """
        if not self._survives:
            raise CommunicationError(with_user_location("shrink: this job is not fault tolerant", help=_WITH_FT))
        self.revoke()
        try:
            left = self.raw.Shrink()
        except (self._mpi.Exception, NotImplementedError) as error:
            raise CommunicationError(with_user_location(f"shrink: {error}", help=_WITH_FT)) from None
        self._children += 1
        communicator = MpiCommunicator(left, self, self.losses + 1)
        if supervised():
            supervise(communicator, self._mpi, revoke_all)
        return communicator

    def revoke(self) -> None:
        """Let every collective of this communicator end with `PeerLost`, on all ranks that are left.

        Nothing happens where MPI ends the job when a rank is lost.
        """
        if not self._survives:
            return
        raws = [self.raw] if self._background is None else [self.raw, self._background[1].raw]
        for raw in raws:
            try:
                raw.Revoke()
            except (self._mpi.Exception, NotImplementedError):
                return

    def abort(self, code: int = 1) -> None:
        """End all ranks at once."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._mpi.COMM_WORLD.Abort(code)

    def _collective(self, name: str) -> _Collective:
        return _Collective(self, name, ACTIVITY, self.raw)

    # --- errors

    def raise_ours(self, error: BaseException, name: str) -> None:
        """Raise what MPI's error means; return if it is another's."""
        mpi = self._mpi
        if not isinstance(error, mpi.Exception):
            return
        kind = error.Get_error_class()
        if kind not in (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED):
            message = f"{name} failed on rank {self.rank}: {error.Get_error_string()}"
            raise CommunicationError(with_user_location(message, help=_SAME_CALLS)) from None
        note_loss()
        self.revoke()  # ranks that wait for others than the lost ones would go on waiting
        lost = self._lost_ranks()
        who = f"rank {lost[0]} has" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} have"
        message = f"{who if lost else 'a rank has'} ended: {name} of {self.size} ranks cannot be completed"
        raise PeerLost(with_user_location(message, help=_WITH_FT), ranks=lost) from None

    def _lost_ranks(self) -> tuple[int, ...]:
        """Those that are known to have ended, by their ranks in the job as it was started."""
        until = time.monotonic() + _NEWS
        found = found_lost() & set(self.started_as)
        try:
            while not (failed := self.raw.Get_failed()).size and not found and time.monotonic() < until:
                time.sleep(0.001)
            found.update(failed.Translate_ranks(None, self._mpi.COMM_WORLD.group))
        except (self._mpi.Exception, NotImplementedError):
            pass
        return tuple(sorted(found))

    def _refusal(self, message: str) -> CommunicationError:
        return CommunicationError(with_user_location(message))

    def _check_pair(self, source: Any, target: Any, source_parts: int = 1, target_parts: int = 1) -> None:
        """Are they arrays of one dtype, the one so many times as large as the other?"""
        self._sums.moved(source)
        self._sums.moved(target)
        if source.dtype != target.dtype:
            raise self._refusal(f"source is {source.dtype}, target is {target.dtype}: they must be the same")
        if source.size * target_parts != target.size * source_parts:
            ratio = f"{source_parts} : {target_parts}"
            raise self._refusal(f"source has {source.size} elements, target {target.size}: they must be as {ratio}")

    # --- movement of arrays that are larger than LIMIT

    def _broadcast(self, array: Array, root: int) -> None:
        for piece in pieces(array):
            self.raw.Bcast((bits(piece), piece.size, self._sums.moved(piece)), root)

    def _allgather_large(self, source: Array, target: Array) -> None:
        own = target[self.rank * source.size : (self.rank + 1) * source.size]
        if address(own) != address(source):
            own[...] = source
        for root in range(self.size):
            self._broadcast(target[root * source.size : (root + 1) * source.size], root)

    def _alltoall_large(self, source: Array, target: Array) -> None:
        part = source.size // self.size
        for distance in range(self.size):
            to, sender = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            sent = source[to * part : (to + 1) * part]
            received = target[sender * part : (sender + 1) * part]
            for one, other in zip(pieces(sent), pieces(received), strict=True):
                kind = self._sums.moved(one)
                self.raw.Sendrecv((bits(one), one.size, kind), to, 0, (bits(other), other.size, kind), sender, 0)
