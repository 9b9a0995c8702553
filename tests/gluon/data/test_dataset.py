"""Datasets made of arrays, lists and other datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.gluon.data import ArrayDataset, DataLoader, Dataset, RandomSampler, SequentialSampler, SimpleDataset

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.int64)


def test_transforms() -> None:
    data = ArrayDataset(X, Y)
    assert data.transform_first(lambda x: x * 2)[1][0].tolist() == [4, 6]
    assert data.transform(lambda x, y: (x, y + 1), lazy=False)[3][1] == 4
    assert SimpleDataset([1, 2]).transform_first(lambda x: x + 1)[0] == 2
    assert list(SimpleDataset([1, 2]).transform(lambda x: x * 10)) == [10, 20]


def test_lazy_transforms_run_at_each_access_others_once() -> None:
    calls: list[int] = []
    data = SimpleDataset([1, 2])
    lazy, eager = data.transform(calls.append), data.transform(calls.append, lazy=False)
    assert calls == [1, 2]
    lazy[0], lazy[0], eager[0]
    assert calls == [1, 2, 1, 1]


def test_parts() -> None:
    data = SimpleDataset(list("abcdefg"))
    assert "".join(data.take(3)) == "abc" and len(data.take(None)) == len(data.take(99)) == 7
    assert ["".join(data.shard(3, i)) for i in range(3)] == ["abc", "de", "fg"]
    assert "".join(data.filter(lambda x: x in "bad")) == "abd"
    assert "".join(data.sample(SequentialSampler(2, 3))) == "de"
    picked = data.sample(RandomSampler(7))
    assert sorted(picked) == list("abcdefg") and list(picked) == list(picked)
    assert "".join(data.take(5).shard(2, 1).transform(str.upper)) == "DE"


@pytest.mark.parametrize("shards,index", [(3, 3), (3, -1), (0, 0)])
def test_parts_that_do_not_exist(shards: int, index: int) -> None:
    with pytest.raises(AssertionError, match="does not exist"):
        SimpleDataset([1, 2]).shard(shards, index)


def test_sampling_takes_samplers() -> None:
    with pytest.raises(TypeError, match=r"takes a gluon\.data\.Sampler, not a list"):
        SimpleDataset([1, 2]).sample([0])


def test_arrays_side_by_side() -> None:
    data = ArrayDataset(X, nd.array(Y), list("abcdefghij"))
    assert len(data) == 10 and data[3][0].tolist() == [6, 7] and data[3][1:] == (3, "d")
    assert ArrayDataset(list("ab"))[1] == "b"
    with pytest.raises(AssertionError, match="array 1 has 2 samples, the first has 3"):
        ArrayDataset([1, 2, 3], [1, 2])
    with pytest.raises(AssertionError, match="at least one array"):
        ArrayDataset()


@pytest.mark.parametrize("arrays", [(X,), (nd.array(X), Y), (Y, list(range(10))), (X, nd.array(Y))])
def test_selecting_at_once_gives_the_same_batches(arrays: Any) -> None:
    data = ArrayDataset(*arrays)
    quick = list(DataLoader(data, batch_size=4))
    slow = list(DataLoader(data.take(None), batch_size=4))  # another class of dataset: sample by sample
    for a, b in zip(quick, slow, strict=True):
        for x, y in zip(*((p if isinstance(p, list) else [p]) for p in (a, b)), strict=True):
            assert x.type == y.type and (x.asnumpy() == y.asnumpy()).all()


def test_what_a_subclass_must_say() -> None:
    with pytest.raises(NotImplementedError, match="Dataset does not say __getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="Dataset does not say __len__"):
        len(Dataset())
