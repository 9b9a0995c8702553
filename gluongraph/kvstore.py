"""Key-value stores by MXNet's names: in one process, sums over the arrays that are pushed under a key: mx.kvstore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import autograd
from gluongraph.errors import MXNetError
from gluongraph.ndarray import NDArray

Key = int | str


class KVStore:
    """A local store: `push` sums, `pull` copies out, an updater sees the sum before it is stored."""

    def __init__(self, name: str):
        self.type = name
        self.rank, self.num_workers = 0, 1
        self._values: dict[Key, NDArray] = {}
        self._updater: Callable[[Key, NDArray, NDArray], None] | None = None

    def init(self, key: Any, value: Any) -> None:
        """Store first values, once per key. Raises MXNetError the second time."""
        for k, v in _each(key, value):
            if k in self._values:
                raise MXNetError(f"kvstore key {k!r} is initialized already; use push to change it")
            self._values[k] = v[0].copy()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Replace what is stored by the sum of the arrays given, or hand the sum to the updater."""
        with autograd.pause():
            for k, arrays in _each(key, value):
                stored = self._stored(k)
                total = arrays[0].copy()
                for more in arrays[1:]:
                    total = total + more
                if self._updater is None:
                    stored[:] = total
                else:
                    self._updater(k, total, stored)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy what is stored into every `out`."""
        with autograd.pause():
            for k, arrays in _each(key, out):
                for array in arrays:
                    array[:] = self._stored(k)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out`, or into the values pushed."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def set_updater(self, updater: Callable[[Key, NDArray, NDArray], None]) -> None:
        """updater(key, sum, stored) writes into `stored` at each push."""
        self._updater = updater

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Can the store run an optimizer? Raises ValueError for another question."""
        if capability != "optimizer":
            raise ValueError(f"unknown capability {capability!r}; there is 'optimizer'")
        return True

    def _stored(self, key: Key) -> NDArray:
        if key not in self._values:
            raise MXNetError(f"kvstore key {key!r} has not been initialized; call init first")
        return self._values[key]


def create(name: str = "local") -> KVStore:
    """A store by name. All names of one process ('local', 'device', ...) are the same store.

    Raises:
        TypeError: the name is no string.
        MXNetError: the store spans processes, which this version does not offer.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a kvstore is a string, not {name!r}")
    if "dist" in name or name in ("nccl", "horovod", "byteps", "p3"):
        raise MXNetError(f"kvstore {name!r} spans several devices or processes; in one process there is 'local'")
    return KVStore(name)


def _each(key: Any, value: Any) -> list[tuple[Key, Sequence[NDArray]]]:
    """(key, arrays) for one key or a list of them."""
    if not isinstance(key, (list, tuple)):
        key, value = [key], [value]
    if len(key) != len(value):
        raise MXNetError(f"{len(key)} keys do not fit {len(value)} values")
    return [(k, v if isinstance(v, (list, tuple)) else [v]) for k, v in zip(key, value, strict=True)]
