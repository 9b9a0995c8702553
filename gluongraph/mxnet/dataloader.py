"""The parts of MXNet's DataLoader that loaders written on top of it take: a pool's batches in order."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler as ForkingPickler
from typing import Any

from gluongraph.context import Context, cpu_pinned
from gluongraph.gluon.data.batchify import default_batchify_fn as default_batchify_fn
from gluongraph.ndarray import NDArray

_worker_dataset: Any = None  # of a worker process


def default_mp_batchify_fn(data: list[Any]) -> Any:
    """`default_batchify_fn`, in a worker process."""
    return default_batchify_fn(data)


def _as_in_context(data: Any, ctx: Context) -> Any:
    """An array, or nested lists of them, on a device; anything else as it is."""
    if isinstance(data, NDArray):
        return data.as_in_context(ctx)
    return [_as_in_context(each, ctx) for each in data] if isinstance(data, (list, tuple)) else data


def _worker_initializer(dataset: Any, active_shape: bool = False, active_array: bool = False) -> None:
    """What a worker process does first: keep the data set."""
    global _worker_dataset
    _worker_dataset = dataset


def _worker_fn(samples: Any, batchify_fn: Callable[[list[Any]], Any], dataset: Any = None) -> bytes:
    """A batch of these samples of the worker's data set, pickled."""
    return pickle.dumps(batchify_fn([_worker_dataset[i] for i in samples]), pickle.HIGHEST_PROTOCOL)


class _MultiWorkerIter:
    """The batches of a pool's workers in the order of the sampler, `prefetch` of them read ahead.

    `worker_fn(samples, batchify_fn, dataset)` gives a batch: pickled without a `dataset`, as it is with one.
    """

    def __init__(
        self,
        worker_pool: Any,
        batchify_fn: Callable[[list[Any]], Any],
        batch_sampler: Any,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        worker_fn: Callable[..., Any] = _worker_fn,
        prefetch: int = 0,
        dataset: Any = None,
        data_loader: Any = None,
        timeout: float = 120,
    ):
        self._worker_pool, self._worker_fn, self._batchify_fn = worker_pool, worker_fn, batchify_fn
        self._batch_sampler, self._dataset, self._timeout = batch_sampler, dataset, timeout
        self._data_loader = data_loader  # which the pool belongs to, and lives as long as
        self._to = cpu_pinned(pin_device_id) if pin_memory else None
        self._iter = iter(batch_sampler)
        self._pending: deque[Any] = deque()
        for _ in range(prefetch):
            self._push_next()

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._push_next()
        if not self._pending:
            raise StopIteration
        batch = self._pending.popleft().get(self._timeout)
        if self._dataset is None:
            batch = pickle.loads(batch)
        return batch if self._to is None else _as_in_context(batch, self._to)

    def next(self) -> Any:
        """`next(iterator)`"""
        return next(self)

    def _push_next(self) -> None:
        """Let the pool read the next batch, if there is one."""
        samples = next(self._iter, None)
        if samples is not None:
            job = (samples, self._batchify_fn, self._dataset)
            self._pending.append(self._worker_pool.apply_async(self._worker_fn, job))
