"""Batches, read here, by threads and by processes: the same."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import nd
from gluongraph.gluon.data import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SimpleDataset,
)

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.int64)

READERS: dict[str, dict[str, Any]] = {
    "here": {},
    "threads": {"num_workers": 2, "thread_pool": True},
    "processes": {"num_workers": 2},
}
reader = pytest.mark.parametrize("how", READERS.values(), ids=READERS)


@reader
@pytest.mark.parametrize("source", [X, nd.array(X)], ids=["numpy", "NDArray"])
def test_batches(source: Any, how: dict[str, Any]) -> None:
    loader = DataLoader(ArrayDataset(source, Y), batch_size=4, **how)
    assert len(loader) == 3
    for _ in range(2):
        batches = list(loader)
        assert [b[0].shape for b in batches] == [(4, 2), (4, 2), (2, 2)]
        assert batches[0][1].dtype == np.int64 and batches[0][0].dtype == np.float32
        assert np.concatenate([b[0].asnumpy() for b in batches]).tolist() == X.tolist()
        assert np.concatenate([b[1].asnumpy() for b in batches]).tolist() == Y.tolist()


class Uneven(Dataset):
    """The first samples take longest."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, idx: int) -> int:
        time.sleep(0.05 if idx < 2 else 0)
        return idx


@reader
@pytest.mark.parametrize("prefetch", [None, 0, 1, 5])
def test_batches_come_in_order(how: dict[str, Any], prefetch: int | None) -> None:
    loader = DataLoader(Uneven(), batch_size=1, prefetch=prefetch, **how)
    assert [int(batch.asscalar()) for batch in loader] == list(range(8))


@reader
def test_passes_may_be_left_and_overlap(how: dict[str, Any]) -> None:
    loader = DataLoader(SimpleDataset(list(range(6))), batch_size=1, **how)
    for _batch in loader:
        break
    pairs = [(int(a.asscalar()), int(b.asscalar())) for a in loader for b in loader]
    assert pairs == [(a, b) for a in range(6) for b in range(6)]


@reader
def test_shuffled_batches_are_those_of_mxnet(how: dict[str, Any]) -> None:
    np.random.seed(7)
    loader = DataLoader(ArrayDataset(Y), batch_size=5, shuffle=True, **how)
    passes = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert passes == [[[8, 5, 0, 2, 1], [9, 7, 3, 6, 4]], [[1, 3, 2, 5, 9], [0, 4, 6, 7, 8]]]


@reader
def test_an_error_reaches_the_caller(how: dict[str, Any]) -> None:
    loader = DataLoader(SimpleDataset([1, 1, 0, 1]).transform(lambda x: 1 // x), batch_size=1, **how)
    for _ in range(2):  # and the loader goes on
        batches = iter(loader)
        next(batches), next(batches)
        with pytest.raises(ZeroDivisionError):
            next(batches)


def test_custom_batchify_and_sampler() -> None:
    loader = DataLoader(SimpleDataset([5, 6, 7]), batch_size=2, sampler=SequentialSampler(2, 1), batchify_fn=sum)
    assert list(loader) == [13]
    loader = DataLoader(SimpleDataset([5, 6, 7]), batch_sampler=BatchSampler(RandomSampler(3), 3))
    assert sorted(next(iter(loader)).asnumpy().tolist()) == [5, 6, 7]
    assert [b.tolist() for b in DataLoader([5, 6, 7], batch_sampler=[[2, 0], [1]])] == [[7, 5], [6]]


@reader
def test_auto_reload_begins_the_next_pass_ahead(how: dict[str, Any]) -> None:
    loader = DataLoader(ArrayDataset(Y), batch_size=4, auto_reload=True, **how)
    for _ in range(3):
        assert [len(batch) for batch in loader] == [4, 4, 2]
    loader.clean()
    assert [len(batch) for batch in loader] == [4, 4, 2]


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "batch_size must be specified unless batch_sampler is specified"),
    ({"batch_size": 2, "shuffle": True, "sampler": SequentialSampler(2)}, ValueError, "shuffle must not be specified"),
    ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, "must not be specified if batch_sampler is specified"),
    ({"batch_sampler": [[0]], "shuffle": True}, ValueError, "must not be specified if batch_sampler is specified"),
    ({"batch_sampler": [[0]], "sampler": [0]}, ValueError, "must not be specified if batch_sampler is specified"),
    ({"batch_sampler": [[0]], "last_batch": "keep"}, ValueError, "must not be specified if batch_sampler is specified"),
    ({"batch_size": 2, "last_batch": "wrap"}, ValueError, "keep, discard, rollover"),
    ({"batch_size": 0}, ValueError, "a whole number of at least 1, but got 0"),
    ({"batch_size": 2.5}, ValueError, "a whole number of at least 1, but got 2.5"),
    ({"batch_size": "2"}, ValueError, "a whole number of at least 1, but got '2'"),
    ({"batch_size": 2, "num_workers": -1}, ValueError, "num_workers is a whole number from 0 on, not -1"),
    ({"batch_size": 2, "timeout": 0}, AssertionError, "timeout must be finite and above 0, not 0"),
]


@pytest.mark.parametrize("arguments,kind,message", ERRORS, ids=lambda a: "-".join(a) if isinstance(a, dict) else "")
def test_errors(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        DataLoader(SimpleDataset([1, 2]), **arguments)


# -- going on in the middle of a pass


class Noisy(Dataset):
    """The number of the sample, and what three generators give."""

    reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, idx: int) -> list[float]:
        Noisy.reads += 1
        drawn = mx.random.uniform(shape=(1,)).asscalar()
        return [idx, random.random(), np.random.rand(), float(drawn)]


def generators(state: Any = None) -> Any:
    """The states of all generators of the program, or back to them: what a checkpoint holds besides the loader."""
    if state is None:
        return random.getstate(), np.random.get_state(), mx.random.get_state()
    random.setstate(state[0])
    np.random.set_state(state[1])
    mx.random.set_state(state[2])
    return state


@reader
@pytest.mark.parametrize("last", ["keep", "rollover"])
@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 6])
def test_resume(how: dict[str, Any], last: str, stop: int) -> None:
    """Batches, noise and all, after the state was taken are the same as without stopping."""
    if how.get("thread_pool"):
        how = {**how, "num_workers": 1}  # several threads draw in any order
    mx.random.seed(1)

    def make() -> DataLoader:
        return DataLoader(Noisy(), batch_size=3, shuffle=True, last_batch=last, prefetch=1, **how)

    def batches(loader: DataLoader, passes: int) -> Iterator[Any]:
        for _ in range(passes):
            for batch in loader:
                yield batch.asnumpy()

    loader = make()
    steps = batches(loader, 3)
    for _ in range(stop):
        next(steps)
    state, drawn = json.loads(json.dumps(loader.state_dict())), generators()
    expected = [batch.tolist() for batch in steps]
    generators(drawn)
    other = make()
    other.load_state_dict(state)
    again = [batch.tolist() for batch in batches(other, 3)]
    assert again[: len(expected)] == expected and len(expected) > 3


def test_the_batches_before_are_not_read_again() -> None:
    loader = DataLoader(Noisy(), batch_size=2)
    steps = iter(loader)
    next(steps), next(steps), next(steps)
    state = loader.state_dict()
    assert state["batches"] == 3
    other = DataLoader(Noisy(), batch_size=2)
    other.load_state_dict(state)
    assert other.state_dict() == state
    Noisy.reads = 0
    assert [batch[0, 0].asscalar() for batch in other] == [6, 8] and Noisy.reads == 4
    assert len(list(other)) == 5  # the pass after it is whole


def test_a_pass_that_was_left_is_over() -> None:
    loader = DataLoader(Noisy(), batch_size=2)
    inside = []
    for _batch in loader:
        inside.append(loader.state_dict()["batches"])
        if len(inside) == 2:
            break
    assert inside == [1, 2] and loader.state_dict()["batches"] == 0


def test_a_sampler_without_state() -> None:
    class Own(SequentialSampler):
        def state_dict(self) -> dict[str, Any]:
            raise NotImplementedError("Own does not say")

    loader = DataLoader(SimpleDataset([1, 2]), batch_size=1, sampler=Own(2))
    steps = iter(loader)
    next(steps)
    with pytest.raises(NotImplementedError, match="Own does not say"):
        loader.state_dict()
