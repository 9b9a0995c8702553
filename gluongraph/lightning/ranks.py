"""The ranks of a Trainer: those that a launcher has started, or that the first process starts itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.environment import world
from gluongraph.storage import Array


class Ranks:
    """The communicator of the processes that train together; `devices` on each of `nodes` hosts.

    Raises:
        MisconfigurationException: a launcher has started another number of processes.
    """

    def __init__(self, devices: int, nodes: int):
        wanted = devices * nodes
        if wanted > 1:
            import_whole("gluongraph.lightning.start_ranks")
            from gluongraph.lightning.start_ranks import start

            start(devices, nodes)
        self._communicator = world()
        size = self._communicator.size
        if wanted > 1 and size != wanted:
            message = f"devices={devices}, num_nodes={nodes}, and there are {size} processes"
            raise misconfigured(message, help=f"gluongraph run -n {wanted} train.py")

    @property
    def size(self) -> int:
        """How many there are."""
        return self._communicator.size

    @property
    def rank(self) -> int:
        """The number of this one."""
        return self._communicator.rank

    @property
    def local_rank(self) -> int:
        """The number of this one on its host."""
        return self._communicator.local_rank

    def reduce_all(self, values: list[float], op: str) -> list[float]:
        """Numbers of all ranks, reduced element by element by "sum", "max" or "min"."""
        if self.size == 1 or not values:
            return values
        told = self._communicator.exchange(" ".join(float(v).hex() for v in values))
        columns = np.array([[float.fromhex(v) for v in text.split()] for text in told])
        return {"sum": columns.sum, "max": columns.max, "min": columns.min}[op](axis=0).tolist()  # type: ignore[no-any-return, operator]

    def reduce(self, value: float, op: str) -> float:
        """A number of all ranks, reduced by "mean", "sum", "max" or "min"."""
        if op in ("mean", "avg"):
            return self.reduce_all([value], "sum")[0] / self.size
        return self.reduce_all([value], op)[0]

    def agree(self, what: str) -> None:
        """Compare what the ranks are about to do.

        Raises:
            Disagreement: they do different things; it names the rank.
        """
        if self.size > 1:
            Agreement(self._communicator, what)()

    def broadcast(self, text: str) -> str:
        """The text of the first rank."""
        return text if self.size == 1 else self._communicator.exchange(text)[0]

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in order."""
        return [text] if self.size == 1 else list(self._communicator.exchange(text))

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            self._communicator.exchange("")

    def all_gather(self, data: Any, torch: bool) -> Any:
        """The arrays of all ranks, stacked along a new first axis; of one rank as they are. Numbers become arrays."""
        if isinstance(data, dict):
            return {key: self.all_gather(each, torch) for key, each in data.items()}
        if isinstance(data, (list, tuple)):
            return type(data)(self.all_gather(each, torch) for each in data)
        import_whole("gluongraph.lightning.batch")
        from gluongraph.lightning.batch import as_array, to_user
        from gluongraph.ndarray import NDArray

        array = as_array(data)
        if self.size == 1:
            return to_user(NDArray(np.asarray(data)), torch) if array is None else data
        host = np.ascontiguousarray(data if array is None else array.asnumpy() if isinstance(array, NDArray) else array)
        made = self.gather_arrays(host)
        return to_user(NDArray(made), torch)

    def broadcast_array(self, host: Array) -> None:
        """Replace the array by that of the first rank."""
        if self.size > 1:
            self._communicator.broadcast(host)

    def average_array(self, host: Array) -> None:
        """Replace the array by the mean of those of all ranks."""
        if self.size > 1:
            self._communicator.allreduce(host)
            host /= self.size

    def gather_unequal(self, host: Array) -> list[Array]:
        """The arrays of all ranks, in order, which may be of different shapes and dtypes."""
        told = [each.split(";") for each in self.gather(f"{host.dtype.str};{','.join(map(str, host.shape))}")]
        types = [(np.dtype(dtype), tuple([int(n) for n in shape.split(",") if n])) for dtype, shape in told]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in types]
        padded = np.zeros(max(sizes), np.uint8)
        padded[: host.nbytes] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        all = self.gather_arrays(padded)
        return [all[rank, : sizes[rank]].copy().view(dtype).reshape(shape) for rank, (dtype, shape) in enumerate(types)]

    def gather_arrays(self, host: Array) -> Array:
        """The arrays of all ranks, all of one shape, along a new first axis."""
        if self.size == 1:
            return host[None]
        made = np.empty((self.size, *host.shape), host.dtype)
        self._communicator.allgather(host.reshape(-1), made.reshape(-1))
        return made
