"""The interface of communicators: ranks, and collectives on arrays of equal size and dtype on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gluongraph.errors import MXNetError

if TYPE_CHECKING:
    from gluongraph.runtime.communicator.shared_memory import SharedMemory

REDUCTIONS = ("sum", "max", "min")


class CommunicationError(MXNetError):
    """A collective could not be completed."""


class PeerLost(CommunicationError):
    """A rank has ended, or does not answer: the arrays of the collective are undefined on all ranks.

    `ranks` are those that are known to be lost, by their numbers in the job as it was started.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class Disagreement(CommunicationError):
    """Ranks that should do the same do not: other shapes, another graph, another number of batches."""


class Work(Protocol):
    """A collective that has been started. Its arrays must not be touched before `wait` returns."""

    def wait(self) -> None:
        """Return when the collective is complete on this rank."""

    def done(self) -> bool:
        """Is it complete? Then `wait` returns at once."""


class Complete:
    """Work that was complete when it was started."""

    def wait(self) -> None:
        """Return at once."""

    def done(self) -> bool:
        """Yes."""
        return True


COMPLETE = Complete()


class Communicator(ABC):
    """A group of ranks. Every rank calls the same collectives in the same order.

    Arrays are contiguous buffers of the communicator's device (numpy arrays on a CPU, DLPack tensors on a GPU) that are
    read and written in place; nothing is copied on the way. Element types: f32, f64, f16, bf16, and integers. 16-bit
    floats are added in float32 and rounded once.
    """

    name: str  # "local", "mpi" or "nccl"
    rank: int  # of this process, from 0
    size: int  # number of ranks
    local_rank: int  # number of this process among those on the same host
    local_size: int  # number of ranks on this host

    @abstractmethod
    def allreduce(self, array: Any, op: str = "sum") -> None:
        """Replace the array by the sum (maximum, minimum) of those of all ranks: the same bits on every rank."""

    @abstractmethod
    def allreduce_tree(self, array: Any) -> None:
        """Replace the array by the sum over ranks along a balanced binary tree, ((0+1)+(2+3))+..., whatever the engine
        prefers. The number of ranks is a power of two.

        Raises:
            CommunicationError: the number of ranks is no power of two.
        """

    @abstractmethod
    def start_allreduce(self, array: Any, op: str = "sum") -> Work:
        """Start `allreduce`; this process may compute meanwhile."""

    def shared_memory(self, nbytes: int, use: str = "sums") -> SharedMemory | None:
        """Return memory in which collectives of all ranks are faster than by messages; None where there is none, on all
        ranks. All of them call this with the same number of bytes. Callers with the same use, which take turns, get the
        same memory."""
        return None

    @abstractmethod
    def reduce_scatter(self, source: Any, target: Any) -> None:
        """Write part number `rank` of the sum over ranks to `target`. `source` has `size` times as many elements."""

    @abstractmethod
    def allgather(self, source: Any, target: Any) -> None:
        """Write the sources of all ranks to `target`, one after the other. `source` may be the rank's own part of
        `target`."""

    @abstractmethod
    def alltoall(self, source: Any, target: Any) -> None:
        """Write part number `rank` of every rank's source to `target`, in the order of ranks."""

    @abstractmethod
    def broadcast(self, array: Any, root: int = 0) -> None:
        """Replace the array by that of the rank `root`."""

    @abstractmethod
    def exchange(self, text: str) -> Sequence[str]:
        """Return the texts of all ranks, by rank. They are data: nothing in them is executed."""

    def synchronize(self) -> None:  # noqa: B027  # most communicators have nothing to wait for
        """Wait on the host until all collectives of this rank are complete. On a CPU they are when a call returns."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks have called it."""

    @abstractmethod
    def split(self, color: int, key: int = 0) -> Communicator:
        """Return a communicator of the ranks with the same color, ordered by key, then rank."""

    @abstractmethod
    def shrink(self) -> Communicator:
        """Return a communicator of the ranks that are left after `PeerLost`.

        Raises:
            CommunicationError: the engine cannot go on without the lost ranks.
        """

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """End all ranks at once."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size})"
