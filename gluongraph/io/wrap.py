"""Iterators around others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from gluongraph.io.base import DataBatch, DataDesc, DataIter
from gluongraph.ndarray import NDArray

Renaming = Sequence[dict[str, str]] | None


class ResizeIter(DataIter):
    """Passes of `size` batches of another iterator, which is started anew when it ends and, if wanted, on `reset`.

    >>> from gluongraph import io, nd
    >>> batches = io.NDArrayIter(nd.ones((4, 2)), batch_size=2)
    >>> len(list(io.ResizeIter(batches, 5)))
    5
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True):
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal, self.cur = data_iter, size, reset_internal, 0
        self.provide_data, self.provide_label = data_iter.provide_data, data_iter.provide_label

    def reset(self) -> None:
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        if self.cur == self.size:
            raise StopIteration
        try:
            batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            batch = self.data_iter.next()
        self.cur += 1
        return batch


class PrefetchingIter(DataIter):
    """Several iterators side by side, whose next batches are read in threads; their arrays may be renamed.

    Raises:
        AssertionError: no iterators; or, from `next`, some that end before others.

    >>> from gluongraph import io, nd
    >>> batches = io.NDArrayIter(nd.ones((4, 2)), batch_size=2)
    >>> len(list(io.PrefetchingIter(batches)))
    2
    """

    def __init__(self, iters: Any, rename_data: Renaming = None, rename_label: Renaming = None):
        self.iters: list[DataIter] = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        if not self.iters:
            raise AssertionError("PrefetchingIter needs at least one iterator")
        self.provide_data = _renamed([each.provide_data for each in self.iters], rename_data)
        self.provide_label = _renamed([each.provide_label for each in self.iters], rename_label)
        super().__init__(self.provide_data[0].shape[0])
        self._pool = ThreadPoolExecutor(len(self.iters), thread_name_prefix="prefetch")
        self._coming = self._start()

    def _start(self) -> list[Future[DataBatch | None]]:
        return [self._pool.submit(next, each, None) for each in self.iters]

    def reset(self) -> None:
        for waiting in self._coming:
            waiting.exception()
        for each in self.iters:
            each.reset()
        self._coming = self._start()

    def next(self) -> DataBatch:
        batches = [waiting.result() for waiting in self._coming]
        if all(batch is None for batch in batches):
            raise StopIteration
        if any(batch is None or batch.pad != batches[0].pad for batch in batches if batches[0] is not None):
            raise AssertionError("PrefetchingIter: the iterators have different numbers of samples")
        self._coming = self._start()
        data = [array for batch in batches if batch is not None for array in batch.data or ()]
        label = [array for batch in batches if batch is not None for array in batch.label or ()]
        first = batches[0]
        assert first is not None
        described = {"provide_data": self.provide_data, "provide_label": self.provide_label}
        return DataBatch(data, label, first.pad, first.index, **described)


def _renamed(described: list[list[DataDesc]], names: Renaming) -> list[DataDesc]:
    maps = names or [{}] * len(described)
    return [
        DataDesc(renames.get(each.name, each.name), each.shape, each.dtype)
        for renames, one in zip(maps, described, strict=True)
        for each in one
    ]


class DataLoaderIter(DataIter):
    """A gluon DataLoader of (data, label) as iterator; the last batch is filled up with zeros (mx.contrib.io).

    >>> from gluongraph import gluon, io, nd
    >>> dataset = gluon.data.ArrayDataset(nd.ones((3, 2)), nd.zeros((3,)))
    >>> batches = io.DataLoaderIter(gluon.data.DataLoader(dataset, batch_size=2))
    >>> [batch.pad for batch in batches]
    [0, 1]
    """

    def __init__(self, loader: Any, data_name: str = "data", label_name: str = "softmax_label", dtype: Any = "float32"):
        data, label = next(iter(loader))
        super().__init__(data.shape[0])
        self._loader, self.dtype = loader, dtype
        self.provide_data = [DataDesc(data_name, data.shape, dtype)]
        self.provide_label = [DataDesc(label_name, label.shape, dtype)]
        self.reset()

    def reset(self) -> None:
        self._batches = iter(self._loader)

    def next(self) -> DataBatch:
        data, label = next(self._batches)
        pad = self.batch_size - data.shape[0]
        return DataBatch([self._filled(data, pad)], [self._filled(label, pad)], pad)

    def _filled(self, array: NDArray, pad: int) -> NDArray:
        array = array.astype(self.dtype)
        if not pad:
            return array
        return NDArray(np.pad(array.storage.array, [(0, pad), *[(0, 0)] * (array.ndim - 1)]), array.context)
