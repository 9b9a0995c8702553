"""In which order samples are read; the orders are those of MXNet 1.9.1 for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon
from gluongraph.gluon.data import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SimpleDataset,
)

ORDERS: list[tuple[Sampler, list[int]]] = [
    (SequentialSampler(3), [0, 1, 2]),
    (SequentialSampler(3, 4), [4, 5, 6]),
    (FilterSampler(lambda x: x % 2 == 1, SimpleDataset([3, 4, 6, 5])), [0, 3]),
    (IntervalSampler(7, 3), [0, 3, 6, 1, 4, 2, 5]),
    (IntervalSampler(7, 3, rollover=False), [0, 3, 6]),
]


@pytest.mark.parametrize("sampler,order", ORDERS, ids=lambda x: type(x).__name__)
def test_fixed_orders(sampler: Sampler, order: list[int]) -> None:
    assert list(sampler) == list(sampler) == order and len(sampler) == len(order)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="has no state"):
        sampler.load_state_dict({"length": 3})


def test_random_orders_are_those_of_mxnet() -> None:
    np.random.seed(7)
    sampler = RandomSampler(10)
    assert list(sampler) == [8, 5, 0, 2, 1, 9, 7, 3, 6, 4] and list(sampler) == [1, 3, 2, 5, 9, 0, 4, 6, 7, 8]
    assert len(sampler) == 10


@pytest.mark.parametrize(
    "last,sizes",
    [("keep", [[3, 3, 3, 1]] * 2), ("discard", [[3, 3, 3]] * 2), ("rollover", [[3] * 3, [3] * 3, [3] * 4])],
)
def test_batches(last: str, sizes: list[list[int]]) -> None:
    sampler = BatchSampler(SequentialSampler(10), 3, last)
    for each in sizes:
        assert len(sampler) == len(each)
        assert [len(batch) for batch in sampler] == each


MAKE: list[Callable[[], Any]] = [
    lambda: RandomSampler(10),
    lambda: BatchSampler(RandomSampler(10), 3),
    lambda: BatchSampler(RandomSampler(10), 3, "rollover"),
    lambda: BatchSampler(list(range(10)), 4, "rollover"),
]


@pytest.mark.parametrize("make", MAKE)
def test_a_pass_can_be_repeated_in_another_process(make: Callable[[], Any]) -> None:
    """The state is JSON; where the program has put numpy's generator, it stays."""
    sampler = make()
    list(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = list(sampler)
    np.random.seed(99)
    before: Any = np.random.get_state()
    other = make()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(other) == expected
    assert np.random.get_state()[1].tolist() == before[1].tolist()


def test_a_sampler_without_state_says_so() -> None:
    class Own(Sampler):
        pass

    with pytest.raises(NotImplementedError, match="Own does not say state_dict"):
        BatchSampler(Own(), 2).state_dict()
    with pytest.raises(NotImplementedError, match="generator has no state_dict"):
        BatchSampler((i for i in range(3)), 2).state_dict()
    with pytest.raises(NotImplementedError, match="does not say __iter__"):
        iter(Own())
    with pytest.raises(NotImplementedError, match="does not say __len__"):
        len(Own())
    with pytest.raises(ValueError, match="of 3 samples; here are 4"):
        RandomSampler(4).load_state_dict(RandomSampler(3).state_dict())


def test_errors() -> None:
    with pytest.raises(ValueError, match="one of keep, discard, rollover, but got 'wrap'"):
        BatchSampler(SequentialSampler(3), 2, "wrap")
    with pytest.raises(ValueError, match="at least 1"):
        BatchSampler(SequentialSampler(3), 0)
    with pytest.raises(AssertionError, match="between 1 and length, 3"):
        IntervalSampler(3, 4)


def test_where_mxnet_keeps_it() -> None:
    assert gluon.contrib.data.IntervalSampler is IntervalSampler
