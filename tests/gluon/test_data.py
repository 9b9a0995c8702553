"""Datasets, samplers, loaders, and splitting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import cpu, gluon, nd
from gluongraph.gluon.data import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SimpleDataset,
)

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.int64)


@pytest.mark.parametrize("source", [X, nd.array(X)])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches(source: Any, workers: int) -> None:
    loader = DataLoader(ArrayDataset(source, Y), batch_size=4, num_workers=workers)
    assert len(loader) == 3
    batches = list(loader)
    assert [b[0].shape for b in batches] == [(4, 2), (4, 2), (2, 2)]
    assert batches[0][1].dtype == np.int64 and batches[0][0].dtype == np.float32
    assert np.concatenate([b[0].asnumpy() for b in batches]).tolist() == X.tolist()
    assert np.concatenate([b[1].asnumpy() for b in batches]).tolist() == Y.tolist()


@pytest.mark.parametrize(
    "last,epochs",
    [
        ("keep", [[3, 3, 3, 1]] * 2),
        ("discard", [[3, 3, 3]] * 2),
        ("rollover", [[3] * 3, [3] * 3, [3] * 4]),
    ],
)
def test_last_batch(last: str, epochs: list[list[int]]) -> None:
    loader = DataLoader(SimpleDataset(list(range(10))), batch_size=3, last_batch=last)
    for sizes in epochs:
        assert len(loader) == len(sizes)
        assert [len(batch) for batch in loader] == sizes


@pytest.mark.parametrize("arrays", [(X,), (nd.array(X), Y), (Y, list(range(10))), (X, nd.array(Y))])
def test_selecting_at_once_gives_the_same_batches(arrays: Any) -> None:
    data = ArrayDataset(*arrays)
    quick = list(DataLoader(data, batch_size=4))
    slow = list(DataLoader(data.take(None), batch_size=4))  # another class of dataset: sample by sample
    for a, b in zip(quick, slow, strict=True):
        for x, y in zip(*((p if isinstance(p, list) else [p]) for p in (a, b)), strict=True):
            assert x.type == y.type and (x.asnumpy() == y.asnumpy()).all()


def test_shuffle_covers_everything_in_a_new_order() -> None:
    np.random.seed(0)
    loader = DataLoader(SimpleDataset(list(range(100))), batch_size=10, shuffle=True)
    first, second = (np.concatenate([b.asnumpy() for b in loader]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100)) and first != second


def test_transforms() -> None:
    data = ArrayDataset(X, Y)
    assert data.transform_first(lambda x: x * 2)[1][0].tolist() == [4, 6]
    assert data.transform(lambda x, y: (x, y + 1), lazy=False)[3][1] == 4
    assert len(data.take(3)) == 3 and len(data.filter(lambda s: s[1] % 2 == 0)) == 5
    assert [len(data.shard(3, i)) for i in range(3)] == [4, 3, 3]
    assert SimpleDataset([1, 2]).transform_first(lambda x: x + 1)[0] == 2


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    loader = DataLoader(SimpleDataset([0, 1]).transform(lambda x: 1 // x), batch_size=2, num_workers=1)
    with pytest.raises(ZeroDivisionError):
        list(loader)


def test_custom_batchify_and_sampler() -> None:
    loader = DataLoader(SimpleDataset([5, 6, 7]), batch_size=2, sampler=SequentialSampler(2, 1), batchify_fn=sum)
    assert list(loader) == [13]
    loader = DataLoader(SimpleDataset([5, 6, 7]), batch_sampler=BatchSampler(RandomSampler(3), 3))
    assert sorted(next(iter(loader)).asnumpy().tolist()) == [5, 6, 7]


ERRORS: list[dict[str, Any]] = [
    {},
    {"batch_size": 2, "shuffle": True, "sampler": SequentialSampler(2)},
    {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "shuffle": True},
    {"batch_sampler": [[0]], "last_batch": "keep"},
    {"batch_size": 2, "last_batch": "wrap"},
    {"batch_size": 2, "num_workers": -1},
]


@pytest.mark.parametrize("arguments", ERRORS, ids=lambda a: "-".join(a))
def test_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DataLoader(SimpleDataset([1, 2]), **arguments)


def test_arrays_of_different_length() -> None:
    with pytest.raises(AssertionError, match="array 1 has 2 samples"):
        ArrayDataset([1, 2, 3], [1, 2])


def test_split() -> None:
    a, b = gluon.utils.split_data(nd.array(X), 2)
    assert a.shape == b.shape == (5, 2) and (b.asnumpy() == X[5:]).all()
    sizes = [p.shape[0] for p in gluon.utils.split_data(nd.array(X), 3, even_split=False)]
    assert sizes == [3, 3, 4]
    with pytest.raises(ValueError, match="do not divide"):
        gluon.utils.split_data(nd.array(X), 3)
    with pytest.raises(ValueError, match="cannot be split"):
        gluon.utils.split_data(nd.array(X), 11)
    parts = gluon.utils.split_and_load(X, [cpu(0), cpu(1)])
    assert [p.context for p in parts] == [cpu(0), cpu(1)]


def test_clip_global_norm() -> None:
    arrays = [nd.array([3.0]), nd.array([0.0, 4.0])]
    assert gluon.utils.clip_global_norm(arrays, 1.0) == pytest.approx(5.0)
    assert [v for a in arrays for v in a.asnumpy().tolist()] == pytest.approx([0.6, 0, 0.8])
    assert gluon.utils.clip_global_norm(arrays, 10.0, check_isfinite=False).asscalar() == pytest.approx(1.0)
    assert arrays[0].asscalar() == pytest.approx(0.6)
    with pytest.warns(UserWarning, match="norm of the gradients is nan"):
        gluon.utils.clip_global_norm([nd.array([float("nan")])], 1.0)
