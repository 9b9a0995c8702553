"""In which order samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gluongraph.errors import pluralize, with_user_location
from gluongraph.ranges import check_count

LAST_BATCH = ("keep", "discard", "rollover")
State = dict[str, Any]
_NUMBERS: Any = (int, float, np.number)


class Sampler:
    """Base class: an iterable of indices, with a length. Each `iter()` is one pass.

    `state_dict()` tells what the pass that would start now depends on, in numbers and lists; after `load_state_dict`
    the next pass is that one.

    >>> from gluongraph.gluon.data import BatchSampler, Sampler
    >>> class Backwards(Sampler):
    ...     def __iter__(self):
    ...         return iter([2, 1, 0])
    ...     def __len__(self):
    ...         return 3
    >>> list(BatchSampler(Backwards(), 2))
    [[2, 1], [0]]
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say __iter__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say __len__")

    def state_dict(self) -> State:
        """What decides the order of the next pass. Raises NotImplementedError where a subclass does not say it."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say state_dict and load_state_dict, so no pass of it can be repeated"
        )

    def load_state_dict(self, state: State) -> None:
        """Make the next pass the one that `state` was taken before."""
        raise NotImplementedError(f"{type(self).__name__} does not say load_state_dict")


class _Fixed(Sampler):
    """A sampler all of whose passes are the same."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} has no state, and was given one: {', '.join(state)}")


class SequentialSampler(_Fixed):
    """start, start + 1, ..., start + length - 1.

    >>> from gluongraph.gluon.data import SequentialSampler
    >>> list(SequentialSampler(3)), list(SequentialSampler(3, start=5))
    ([0, 1, 2], [5, 6, 7])
    """

    def __init__(self, length: int, start: int = 0):
        check_count(self, "length", length, 0)
        self._length, self._start = length, start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """0 .. length - 1 in a new random order each time; `numpy.random.seed` makes it repeatable, as in Gluon.

    The order is the one that MXNet gives for the same seed. Its state is that of numpy's generator.

    >>> from gluongraph.gluon.data import RandomSampler
    >>> sampler = RandomSampler(5)
    >>> state = sampler.state_dict()
    >>> before = list(sampler)
    >>> sampler.load_state_dict(state)
    >>> list(sampler) == before
    True

    Raises:
        ValueError: `load_state_dict` was given the state of a sampler of another length.
    """

    def __init__(self, length: int):
        check_count(self, "length", length, 0)
        self._length = length
        self._restored: State | None = None

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self._length)
        restored, self._restored = self._restored, None
        if restored is None or restored == numpy_state():
            np.random.shuffle(order)
        else:  # numpy's generator was elsewhere when this pass began, and is left where the program has put it
            generator = np.random.RandomState()
            generator.set_state(restored)
            generator.shuffle(order)
        return iter(order.tolist())

    def __len__(self) -> int:
        return self._length

    def state_dict(self) -> State:
        return {"length": self._length, "numpy": self._restored or numpy_state()}

    def load_state_dict(self, state: State) -> None:
        if state["length"] != self._length:
            raise ValueError(f"the state is that of an order of {state['length']} samples; here are {self._length}")
        self._restored = state["numpy"]


def numpy_state() -> State:
    """Where `numpy.random` is, in numbers and lists.

    >>> from gluongraph.gluon.data.sampler import numpy_state
    >>> numpy_state()["bit_generator"]
    'MT19937'
    """
    state: Any = np.random.get_state(legacy=False)
    inner = {"key": state["state"]["key"].tolist(), "pos": int(state["state"]["pos"])}
    return {**state, "state": inner}


class FilterSampler(_Fixed):
    """The indices of the samples of which fn(sample) is true.

    >>> from gluongraph.gluon.data import FilterSampler
    >>> list(FilterSampler(lambda x: x > 6, [5, 7, 6, 8]))
    [1, 3]
    """

    def __init__(self, fn: Callable[[Any], bool], dataset: Any):
        self._indices = [i for i in range(len(dataset)) if fn(dataset[i])]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class IntervalSampler(_Fixed):
    """Every `interval`-th index; with `rollover` then again from the first one that was left out, until all were seen.

    >>> from gluongraph.gluon.data import IntervalSampler
    >>> list(IntervalSampler(7, 3))
    [0, 3, 6, 1, 4, 2, 5]
    >>> list(IntervalSampler(7, 3, rollover=False))
    [0, 3, 6]

    Raises:
        AssertionError: the interval is not between 1 and the length.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True):
        if not 0 < interval <= length:
            raise AssertionError(
                with_user_location(
                    f"IntervalSampler: the interval, {interval}, must lie between 1 and length, {length}"
                )
            )
        self._length, self._interval, self._starts = length, interval, interval if rollover else 1

    def __iter__(self) -> Iterator[int]:
        for start in range(self._starts):
            yield from range(start, self._length, self._interval)

    def __len__(self) -> int:
        return sum(len(range(start, self._length, self._interval)) for start in range(self._starts))


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler.

    A last batch that is not full is kept, discarded, or rolls over into the next pass.

    >>> from gluongraph.gluon.data import BatchSampler, SequentialSampler
    >>> list(BatchSampler(SequentialSampler(5), 2, "discard"))
    [[0, 1], [2, 3]]

    Raises:
        ValueError: `last_batch` is none of the three, or `batch_size` is no whole number from 1 on.
    """

    def __init__(self, sampler: Sampler | Sequence[Any], batch_size: int, last_batch: str = "keep"):
        if last_batch not in LAST_BATCH:
            raise ValueError(
                with_user_location(
                    f"{type(self).__name__}: last_batch must be one of {', '.join(LAST_BATCH)}, but got {last_batch!r}"
                )
            )
        check_batch_size(self, batch_size)
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._left: list[Any] = []

    def __iter__(self) -> Iterator[list[Any]]:
        left, self._left = self._left, []
        return self._batches(left, iter(self._sampler))

    def _batches(self, batch: list[Any], order: Iterator[Any]) -> Iterator[list[Any]]:
        for i in order:
            batch.append(i)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        elif self._last_batch == "rollover":
            self._left = batch

    def __len__(self) -> int:
        size = len(self._sampler)
        if self._last_batch == "keep":
            return -(-size // self._batch_size)
        return (size + len(self._left)) // self._batch_size

    def state_dict(self) -> State:
        return {"left": list(self._left), "sampler": state_of(self._sampler)}

    def load_state_dict(self, state: State) -> None:
        restore(self._sampler, state["sampler"])
        self._left = list(state["left"])


def last_batch_misfit(fixed: int | None, rows: int) -> str:
    """Why a net that takes batches of one size alone cannot have the last of so many rows; "" if it can.

    >>> from gluongraph.gluon.data.sampler import last_batch_misfit
    >>> last_batch_misfit(4, 10)
    'the net takes batches of 4 alone, and of 10 rows the last batch has 2'
    """
    if fixed is None or rows % fixed == 0:
        return ""
    return f"the net takes batches of {fixed} alone, and of {pluralize(rows, 'row')} the last batch has {rows % fixed}"


def check_batch_size(owner: object, size: Any) -> None:
    """Raise unless it is a whole number from 1 on; 2.0 is one, as in MXNet. `owner`: whose argument it is.

    >>> from gluongraph.gluon.data import SequentialSampler
    >>> from gluongraph.gluon.data.sampler import check_batch_size
    >>> check_batch_size(SequentialSampler(3), 2.0)

    Raises:
        ValueError: it is not.
    """
    if not isinstance(size, _NUMBERS) or not size >= 1 or size % 1:
        message = f"{type(owner).__name__}: batch_size must be a whole number of at least 1, but got {size!r}"
        raise ValueError(with_user_location(message))


def state_of(sampler: Any) -> State:
    """`sampler.state_dict()`; {} of a list or a range, whose order is always the same.

    >>> from gluongraph.gluon.data import BatchSampler, SequentialSampler
    >>> from gluongraph.gluon.data.sampler import state_of
    >>> state_of(range(3))
    {}
    >>> state_of(BatchSampler(SequentialSampler(3), 2))
    {'left': [], 'sampler': {}}

    Raises:
        NotImplementedError: the sampler does not say its state.
    """
    if isinstance(sampler, (list, tuple, range)):
        return {}
    if not hasattr(sampler, "state_dict"):
        raise NotImplementedError(f"{type(sampler).__name__} has no state_dict, so no pass of it can be repeated")
    state: State = sampler.state_dict()
    return state


def restore(sampler: Any, state: State) -> None:
    """`sampler.load_state_dict(state)`, for what `state_of` takes.

    >>> from gluongraph.gluon.data import BatchSampler, SequentialSampler
    >>> from gluongraph.gluon.data.sampler import restore
    >>> sampler = BatchSampler(SequentialSampler(3), 2, "rollover")
    >>> restore(sampler, {"left": [2], "sampler": {}})
    >>> list(sampler)
    [[2, 0], [1, 2]]
    """
    if not isinstance(sampler, (list, tuple, range)):
        sampler.load_state_dict(state)
