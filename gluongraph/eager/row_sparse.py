"""Row-sparse gradients in numpy: the indices of rows, and a value for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.ops.sums import add_rows
from gluongraph.storage import Array


class Rows:
    """values[i] belongs to row indices[i] of an array of `shape`; a row that is named several times has the sum."""

    __slots__ = ("indices", "shape", "values")

    def __init__(self, indices: Array, values: Array, shape: tuple[int, ...]):
        self.indices, self.values, self.shape = indices, values, shape

    def summed(self) -> tuple[Array, Array]:
        """Each row once, upwards, with its sum; 16-bit floats are summed in float32."""
        rows, place = np.unique(self.indices, return_inverse=True)
        wide = np.float32 if self.values.dtype.itemsize == 2 else self.values.dtype
        sums = np.zeros((len(rows), *self.shape[1:]), wide)
        add_rows(sums, place.reshape(-1), self.values.astype(wide, copy=False))
        return rows.astype(np.int64), sums.astype(self.values.dtype, copy=False)

    def dense(self) -> Array:
        """The whole array, 0 where no row is named."""
        made = np.zeros(self.shape, self.values.dtype)
        rows, sums = self.summed()
        made[rows] = sums
        return made


def joined(parts: list[Rows]) -> Rows:
    """The sum of gradients of one array."""
    indices = np.concatenate([part.indices for part in parts])
    return Rows(indices, np.concatenate([part.values for part in parts]), parts[0].shape)


def dense(g: Any) -> Any:
    """A gradient as an array."""
    return g.dense() if isinstance(g, Rows) else g


def add(a: Any, b: Any) -> Any:
    """The sum of two gradients: by rows if both are."""
    if isinstance(a, Rows) and isinstance(b, Rows):
        return joined([a, b])
    return np.add(dense(a), dense(b))
