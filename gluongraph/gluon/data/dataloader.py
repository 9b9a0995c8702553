"""Batches out of a dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.gluon.data.dataset import ArrayDataset
from gluongraph.gluon.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from gluongraph.ndarray import NDArray


def default_batchify_fn(data: list[Any]) -> Any:
    """Samples stacked along a new first axis; tuples are stacked elementwise. The dtype of the dataset stays."""
    first = data[0]
    if isinstance(first, (tuple, list)):
        return [default_batchify_fn(list(column)) for column in zip(*data, strict=True)]
    if isinstance(first, NDArray):
        return nd.array(np.stack([x.asnumpy() for x in data]), dtype=first.dtype)
    array = np.asarray(data)
    return nd.array(array, dtype=array.dtype)


class DataLoader:
    """Iterates over a dataset in batches: each is what `batchify_fn` makes of a list of samples.

    `num_workers` is the number of threads that read and batch ahead (numpy and decoding release the interpreter's
    lock); 0 reads in the calling thread. `prefetch` batches are ahead at most, 2 per worker if None. `thread_pool`,
    `pin_memory`, `pin_device_id` and `auto_reload` are accepted for Gluon's sake and change nothing.

    Raises:
        ValueError: neither `batch_size` nor `batch_sampler`; or `batch_sampler` beside what it replaces; or `shuffle`
            beside `sampler`; or a negative number of workers.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float = 120,
        auto_reload: bool = False,
    ):
        if batch_sampler is not None:
            if batch_size is not None or shuffle or sampler is not None or last_batch is not None:
                raise ValueError("batch_sampler takes the place of batch_size, shuffle, sampler and last_batch")
        else:
            if batch_size is None:
                raise ValueError("batch_size must be given, unless batch_sampler is")
            if sampler is None:
                sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
            elif shuffle:
                raise ValueError("shuffle has no meaning beside a sampler, which is what decides the order")
            batch_sampler = BatchSampler(sampler, batch_size, last_batch or "keep")
        if num_workers < 0:
            raise ValueError(f"num_workers must not be negative, it is {num_workers}")
        self._dataset, self._batches = dataset, batch_sampler
        self._batchify = batchify_fn or default_batchify_fn
        self._workers, self._timeout = num_workers, timeout
        self._ahead = max(1, 2 * num_workers if prefetch is None else prefetch)

    def __len__(self) -> int:
        return len(self._batches)

    def _read(self, indices: list[Any]) -> Any:
        if type(self._dataset) is ArrayDataset and self._batchify is default_batchify_fn:
            made = self._dataset.batch(indices)
            if made is not None:
                return made
        return self._batchify([self._dataset[i] for i in indices])

    def __iter__(self) -> Iterator[Any]:
        if self._workers == 0:
            yield from map(self._read, self._batches)
            return
        with ThreadPoolExecutor(self._workers, thread_name_prefix="dataloader") as pool:
            pending: deque[Future[Any]] = deque()
            try:
                for indices in self._batches:
                    pending.append(pool.submit(self._read, indices))
                    if len(pending) >= self._ahead:
                        yield pending.popleft().result(self._timeout)
                while pending:
                    yield pending.popleft().result(self._timeout)
            finally:
                for waiting in pending:
                    waiting.cancel()
