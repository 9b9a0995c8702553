"""In which order samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

LAST_BATCH = ("keep", "discard", "rollover")


class Sampler:
    """Base class: an iterable of indices, with a length."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say __iter__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say __len__")


class SequentialSampler(Sampler):
    """start, start + 1, ..., start + length - 1."""

    def __init__(self, length: int, start: int = 0):
        self._length, self._start = length, start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """0 .. length - 1 in a new random order each time; `numpy.random.seed` makes it repeatable, as in Gluon."""

    def __init__(self, length: int):
        self._length = length

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self._length).tolist())

    def __len__(self) -> int:
        return self._length


class FilterSampler(Sampler):
    """The indices of the samples of which fn(sample) is true."""

    def __init__(self, fn: Callable[[Any], bool], dataset: Any):
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler.

    A last batch that is not full is kept, discarded, or rolls over into the next epoch.

    >>> list(BatchSampler(SequentialSampler(5), 2, "discard"))
    [[0, 1], [2, 3]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, last_batch: str = "keep"):
        if last_batch not in LAST_BATCH:
            raise ValueError(f"last_batch is one of {', '.join(LAST_BATCH)}, not {last_batch!r}")
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._left: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._left = self._left, []
        for i in self._sampler:
            batch.append(i)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        elif self._last_batch == "rollover":
            self._left = batch

    def __len__(self) -> int:
        size = len(self._sampler)  # type: ignore[arg-type]
        if self._last_batch == "keep":
            return -(-size // self._batch_size)
        return (size + len(self._left)) // self._batch_size
