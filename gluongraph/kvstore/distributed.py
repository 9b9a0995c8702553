"""The store of several processes whose workers step together: dist_sync and its other names."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.eager.row_sparse import Rows
from gluongraph.host import services
from gluongraph.ir.graph import Node
from gluongraph.kvstore.compression import Compression, compression_of, sums_of_sent
from gluongraph.kvstore.local import Key, KVStore, pairs_of
from gluongraph.ndarray import NDArray, invoke
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import CommunicationError, Communicator
from gluongraph.runtime.communicator.environment import use_world, world
from gluongraph.runtime.communicator.overlap import bucket_size
from gluongraph.storage import Array

services.register("communicator", world)  # for collectives of graphs that are interpreted

_DETECTION = 10.0  # seconds in which all workers learn that one is lost


class Joined:
    """Whether this process sums with others: `size` is the number of ranks that do, 1 where no such store exists."""

    def __init__(self) -> None:
        self.by_store = False

    @property
    def size(self) -> int:
        """The number of ranks."""
        return world().size if self.by_store else 1


JOINED = Joined()
NAMES = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")


class DistributedStore(KVStore):
    """Values by key, equal on all workers: `push` sums over the devices of all of them.

    Every worker holds the values and updates them by the same sum, so there are no servers: what MXNet's `dist_sync`
    sends to servers and back is one allreduce. All workers call the same methods in the same order.

    A process that was not started by a launcher is the only worker:

    >>> from gluongraph import kvstore, nd
    >>> store = kvstore.create("dist_sync")
    >>> store.rank, store.num_workers
    (0, 1)
    >>> store.init("w", nd.zeros((2,)))
    >>> store.push("w", nd.ones((2,)))
    >>> out = nd.zeros((2,))
    >>> store.pull("w", out)
    >>> out.asnumpy().tolist()
    [1.0, 1.0]
    """

    in_graph = True

    def __init__(self, name: str = "dist_sync"):
        super().__init__(name)
        self.communicator: Communicator = world()
        self._agreement: Agreement | None = None  # of the last text
        JOINED.by_store = True
        if self.num_workers > 1:
            Agreement(self.communicator, f"kvstore: {name}")()  # as the stores with servers begin, see roles()
            seed = np.array([random.all_states()["first"] % (1 << 64)], np.uint64)
            self.communicator.broadcast(seed)
            random.join_ranks(self.rank, int(seed[0]))

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self.communicator.rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self.communicator.size

    @property
    def bucket(self) -> int:
        """Bytes of gradients that are communicated together while others are computed; 0: all, when all are there. All
        workers ask for it together, since it is measured (GG_OVERLAP=1 or 0 decides instead)."""
        return bucket_size(self.communicator)

    def init(self, key: Any, value: Any) -> None:
        """Store first values, once per key: those of worker 0, on all workers.

        Raises:
            MXNetError: a key has a value already, or is not of the kind of the others.
            Disagreement: other workers store values of other types, or call something else.
        """
        before = dict(self._values)
        with self._refusing():
            super().init(key, value)
        new = {k: stored for k, stored in self._values.items() if k not in before}
        try:
            self.agree("\n".join(f"store.init of {k!r}: {stored.type}" for k, stored in new.items()))
        except CommunicationError:
            self._values = before
            raise
        for stored in new.values():
            self.share([stored])

    def _gradients(self, key: Any, value: Any) -> dict[Key, list[NDArray]]:
        """What is pushed, by key, after all workers have said that they push the like.

        Raises:
            Disagreement: they do not.
        """
        with self._refusing():
            pairs = super()._gradients(key, value)
        optimizer = getattr(self._updater, "optimizer", None)
        how = "replaced by" if self._updater is None else f"updated by {type(optimizer or self._updater).__name__} from"
        numbers = None if optimizer is None else {"learning_rate": optimizer.learning_rate}
        self.agree("\n".join(f"store.push to {k!r}: {how} {arrays[0].type}" for k, arrays in pairs.items()), numbers)
        return pairs

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out`, or into the values pushed."""
        with self._refusing():
            for k, arrays in pairs_of(key, value if out is None else out).items():
                self._check(k, arrays)
        super().pushpull(key, value, out, priority)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Within: an error lets the other workers know, who call the same."""
        try:
            yield
        except Exception:
            self.refuse()
            raise

    def shrink(self) -> Communicator:
        """Go on with the workers that are left; returns their communicator.

        Raises:
            CommunicationError: the job was not started to go on without workers.
        """
        before, smaller = self.num_workers, self.communicator.shrink()
        until = time.monotonic() + _DETECTION
        while smaller.size == before and time.monotonic() < until:  # some rank has noticed what others have not yet
            time.sleep(_DETECTION / 100)
            smaller = smaller.shrink()
        self.communicator = smaller
        use_world(self.communicator)
        random.join_ranks(self.rank, random.all_states()["first"])
        return self.communicator

    def share(self, replicas: Sequence[NDArray]) -> None:
        """Make arrays equal to the first one of worker 0."""
        array = replicas[0].storage.array
        if self.num_workers > 1:
            array = array.copy()
            self.communicator.broadcast(array)
            replicas[0].storage.write(array)
        super().share(replicas)

    def agree(self, text: str, numbers: Mapping[str, float] | None = None) -> None:
        """Compare a text, and numbers by their names, with all workers.

        Raises:
            Disagreement: they are not the same on all of them, or another one has called `refuse`.
        """
        if self.num_workers > 1:
            if self._agreement is None or self._agreement.text is not text:
                self._agreement = Agreement(self.communicator, text)
            self._agreement.numbers = None if numbers is None else _Named(numbers)
            self._agreement()

    def refuse(self) -> None:
        """Let the workers that call `agree`, or begin a compiled step, know that this one has failed: they raise
        Disagreement."""
        if self.num_workers > 1:
            Agreement(self.communicator, "")(failed=True)

    def all_true(self, flag: bool) -> bool:
        """Is a flag true on all workers?"""
        if self.num_workers == 1:
            return flag
        found = np.array([flag], np.int32)
        self.communicator.allreduce(found, "min")
        return bool(found[0])

    def mean(self, number: float) -> float:
        """The mean of a number of each worker.

        Raises:
            Disagreement: another worker has called something else, or `refuse`.
        """
        if self.num_workers == 1:
            return number
        self.agree("the mean of a number of each worker")
        total = np.array([number], np.float64)
        self.communicator.allreduce(total)
        return float(total[0]) / self.num_workers

    def gathered(self, rows: Rows) -> Rows:
        """The rows of all workers, in the order of workers. A worker may have any number of them."""
        if self.num_workers == 1:
            return rows
        indices, values = rows.summed()
        counts = np.empty(self.num_workers, np.int64)
        self.communicator.allgather(np.array([len(indices)], np.int64), counts)
        numbers, arrays = (np.concatenate(self._parts(own, counts)) for own in (indices, values))
        return Rows(numbers, arrays, rows.shape)

    def _parts(self, own: Array, counts: Array) -> list[Array]:
        """The arrays of all workers, of which each has so many rows."""
        longest = int(counts.max())
        padded = np.zeros((longest, *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        whole = np.empty((self.num_workers, *padded.shape), own.dtype)
        self.communicator.allgather(padded, whole)
        return [part[:count] for part, count in zip(whole, counts, strict=True)]

    def reduced(self, key: Key, arrays: Sequence[NDArray], devices: Sequence[int] | None = None) -> Array:
        """The sum of arrays of these devices (all by default), and over all workers; of what compression sends."""
        total = super().reduced(key, arrays, devices)
        if self._compression is not None:
            return self._sum_of_sent(key, total, arrays[0], self._compression)
        if self.num_workers > 1:
            self.communicator.allreduce(total)
        return total

    def _sum_of_sent(self, key: Key, total: Array, array: NDArray, compression: Compression) -> Array:
        """The sum over workers of what they send of the sum of their devices. What is not sent is kept back."""
        given, residuals = NDArray(total), self.residuals(key, [array])
        how = {"type": compression.type, "threshold": compression.threshold, "ranks": self.num_workers}
        found = invoke(_sum_and_kept, given, *(NDArray(r.storage.array) for r in residuals), **how)
        for residual, kept in zip(residuals, found[1:], strict=True):
            residual.storage.write(kept.storage.array)
        return found[0].storage.array

    def barrier(self) -> None:
        """Wait until all workers have called it."""
        self.communicator.barrier()

    _barrier = barrier

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Quantize what each worker sends: {"type": "2bit", "threshold": 0.5}, or another type of docs/distributed.md.

        The devices of a worker are summed as they are. What is not sent is added to the next push.

        Raises:
            MXNetError: no such type, a threshold of 0 or less for "2bit".
        """
        self._compression = compression_of(compression_params, of_workers=True)


def _sum_and_kept(g: Node, *residual: Node, type: str, threshold: float, ranks: int) -> tuple[Node, ...]:
    """The sum of what all ranks send of a gradient, and the new residual, if there is one."""
    given = residual or (None,)
    sums, kept = sums_of_sent([g], given, Compression(type, threshold, of_workers=True), ranks=ranks)
    return (*sums, *(k for k in kept if k is not None))


class _Named:
    """Numbers by their names, for an Agreement."""

    def __init__(self, numbers: Mapping[str, float]):
        self._numbers = numbers

    def digest(self) -> int:
        return zlib.crc32(np.array(list(self._numbers.values()), np.float64).data)

    def text(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._numbers.items())
