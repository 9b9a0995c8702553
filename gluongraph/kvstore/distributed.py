"""The store of several processes whose workers step together: dist_sync and its other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host import services
from gluongraph.kvstore.compression import threshold_of
from gluongraph.kvstore.local import Key, KVStore
from gluongraph.ndarray import NDArray
from gluongraph.runtime.collectives import Agreement
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.overlap import bucket_size
from gluongraph.storage import Array

services.register("communicator", world)  # for collectives of graphs that are interpreted

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
        if self.num_workers > 1:
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
        """
        super().init(key, value)
        for k in key if isinstance(key, (list, tuple)) else [key]:
            self.share([self._values[k]])

    def share(self, replicas: Sequence[NDArray]) -> None:
        """Make arrays equal to the first one of worker 0."""
        array = replicas[0].storage.array
        if self.num_workers > 1:
            array = array.copy()
            self.communicator.broadcast(array)
            replicas[0].storage.write(array)
        super().share(replicas)

    def agree(self, text: str) -> None:
        """Compare a text with all workers.

        Raises:
            Disagreement: it is not the same on all of them.
        """
        if self.num_workers > 1:
            Agreement(self.communicator, text)()

    def reduced(self, key: Key, arrays: Sequence[NDArray], devices: Sequence[int] | None = None) -> Array:
        """The sum of arrays of these devices (all by default), and over all workers."""
        total = super().reduced(key, arrays, devices)
        if self.num_workers > 1:
            self.communicator.allreduce(total)
        return total

    def barrier(self) -> None:
        """Wait until all workers have called it."""
        self.communicator.barrier()

    _barrier = barrier

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Quantize what each worker sends: {"type": "2bit", "threshold": 0.5}. The rest is added to the next push.

        Raises:
            MXNetError: a type other than 2bit, a threshold of 0 or less.
        """
        self._threshold = threshold_of(compression_params)


def create(name: str) -> DistributedStore:
    """Return the store of that name.

    Raises:
        MXNetError: there is no such store.
    """
    if name not in NAMES:
        raise MXNetError(
            with_user_location(f"there is no kvstore {name!r}", help=f"stores of several workers: {', '.join(NAMES)}")
        )
    return DistributedStore(name)
