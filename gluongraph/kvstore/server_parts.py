"""Which server has which values of an asynchronous store, or rows of large ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import TensorType
from gluongraph.optimizer import Optimizer
from gluongraph.storage import Array

Key = int | str
BOUND = "MXNET_KVSTORE_BIGARRAY_BOUND"  # elements from which on a value is divided among all servers
_BOUND = 1000000


@dataclass(frozen=True)
class Part:
    """The rows of a value that a server has; without `stop` the whole value."""

    server: int
    start: int = 0
    stop: int | None = None

    @property
    def rows(self) -> slice | EllipsisType:
        """The index of these rows in the whole array."""
        return ... if self.stop is None else slice(self.start, self.stop)

    def of(self, array: Array) -> Array:
        """These rows of an array."""
        return array if self.stop is None else array[self.start : self.stop]

    def within(self, rows: Array) -> Array:
        """Which of these numbers are numbers of rows of this part? As booleans."""
        return (rows >= self.start) & (rows < (np.inf if self.stop is None else self.stop))


class Placement:
    """The parts of each value. All workers place the same values in the same order, and find the same parts."""

    def __init__(self, servers: int):
        self.parts: dict[Key, tuple[Part, ...]] = {}
        self._bytes = [0] * servers
        self._dtypes: dict[Key, str] = {}

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self._bytes)

    def place(self, key: Key, type: TensorType, optimizer: Optimizer | None) -> None:
        """Decide where a value is: on the server with the least bytes; or on all of them if it is large, and the
        optimizer, if it is known, updates each element by itself."""
        number = self.servers
        large = type.size >= int(os.environ.get(BOUND, "") or _BOUND) and type.shape[0] >= number > 1
        if large and (optimizer is None or _by_elements(optimizer, type.dtype)):
            ends = [type.shape[0] * i // number for i in range(number + 1)]
            self.parts[key] = tuple(Part(i, ends[i], ends[i + 1]) for i in range(number))
        else:
            self.parts[key] = (Part(int(np.argmin(self._bytes))),)
        self._dtypes[key] = type.dtype
        for part in self.parts[key]:
            self._bytes[part.server] += type.nbytes // len(self.parts[key])

    def check(self, optimizer: Optimizer) -> None:
        """Raise MXNetError where a value has been divided, and the optimizer looks at whole ones."""
        divided = [key for key, parts in self.parts.items() if len(parts) > 1]
        if wrong := [key for key in divided if not _by_elements(optimizer, self._dtypes[key])]:
            what = f"key {wrong[0]!r} has been divided among {self.servers} servers"
            message = f"{type(optimizer).__name__} looks at whole values, and {what}"
            raise MXNetError(with_user_location(message, help=f"set_optimizer before init, or {BOUND}=1000000000"))


def _by_elements(optimizer: Optimizer, dtype: str) -> bool:
    """Is a part of a value updated as it would be within the whole?"""
    from gluongraph.tracing.sharding import is_elementwise  # of graphs with updates, which stand on stores

    return optimizer.has_formula and is_elementwise(optimizer, dtype)


def joined(parts: Sequence[Any]) -> Any:
    """A state of a whole value, from those of its parts in their order: None, arrays of rows, or tuples of states."""
    first = parts[0]
    if isinstance(first, (tuple, list)):
        return tuple(joined(each) for each in zip(*parts, strict=True))
    return None if first is None else type(first)(np.concatenate([each.storage.array for each in parts]))


def divided(state: Any, part: Part) -> Any:
    """The state of a part, from that of the whole value."""
    if isinstance(state, (tuple, list)):
        return tuple(divided(each, part) for each in state)
    return None if state is None else type(state)(part.of(state.storage.array))
