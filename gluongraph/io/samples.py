"""What iterators over files share: samples that are read by number."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.io.base import DataBatch, DataDesc, DataIter
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array


class Samples(DataIter):
    """Samples 0 to count - 1, a batch of which `_read` reads.

    With `round_batch` the last batch is filled up from the beginning, and the next pass starts after what filled it.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        round_batch: bool,
        shapes: tuple[Any, Any],
        dtype: Any,
        names: tuple[str, str],
    ):
        super().__init__(batch_size)
        self._count, self._round, self._dtype = count, round_batch, numpy_dtype(dtype_name(dtype))
        self._order: Array = np.arange(count)
        self._next = 0
        data, label = ((batch_size, *shape) for shape in shapes)
        self.provide_data = [DataDesc(names[0], data, self._dtype.type)]
        self.provide_label = [DataDesc(names[1], label, self._dtype.type)]

    def _read(self, chosen: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def reset(self) -> None:
        over = self._next - self._count
        self._next = over if self._round and over > 0 else 0

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        return DataBatch([self.getdata()], [self.getlabel()], self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        if self._next >= self._count:
            return False
        numbers = np.arange(self._next, self._next + self.batch_size) % self._count
        self._next += self.batch_size
        data, label = (NDArray(np.ascontiguousarray(x, self._dtype)) for x in self._read(self._order[numbers]))
        self._current = data, label, numbers
        return True

    def getdata(self) -> NDArray:
        return self._current[0]

    def getlabel(self) -> NDArray:
        return self._current[1]

    def getindex(self) -> Array:
        return self._current[2]

    def getpad(self) -> int:
        return max(0, self._next - self._count)


def part(count: int, num_parts: int, part_index: int) -> slice:
    """Which of `count` samples one of several workers reads."""
    if not 0 <= part_index < num_parts:
        raise ValueError(f"part_index {part_index} of num_parts={num_parts} does not exist")
    return slice(int(count / num_parts * part_index), int(count / num_parts * (part_index + 1)))
