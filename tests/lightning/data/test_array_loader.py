"""Batches of arrays in memory."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.lightning.data import ArrayLoader


def test_batches_in_order_are_views() -> None:
    x, y = np.arange(14.0).reshape(7, 2), np.arange(7)
    batches = list(ArrayLoader(x, y, batch_size=3))
    assert [len(labels) for _, labels in batches] == [3, 3, 1]
    assert all(np.shares_memory(rows, x) for rows, _ in batches)
    assert len(ArrayLoader(x, batch_size=3, drop_last=True)) == 2


def test_one_array_gives_arrays() -> None:
    assert [batch.tolist() for batch in ArrayLoader(nd.array([1, 2, 3]), batch_size=2)] == [[1, 2], [3]]


def test_every_pass_has_another_order() -> None:
    loader = ArrayLoader(np.arange(50), batch_size=50, shuffle=True, seed=4)
    first, second = (next(iter(loader)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50)) and first.tolist() != second.tolist()
    loader.set_epoch(0)
    assert next(iter(loader)).tolist() == first.tolist()


def test_the_seed_follows_numpys() -> None:
    orders = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        orders.append(next(iter(ArrayLoader(np.arange(50), batch_size=50, shuffle=True))).tolist())
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stack_is_the_batches(shuffle: bool) -> None:
    x = np.arange(22.0).reshape(11, 2)

    def loader() -> ArrayLoader:
        return ArrayLoader(x, np.arange(11), batch_size=2, shuffle=shuffle, seed=1)

    single = list(loader())
    batches = iter(loader())
    next(batches)
    rows, labels = batches.stack(3)
    assert rows.shape == (3, 2, 2) and np.shares_memory(rows, x) is not shuffle
    for k in range(3):
        assert (rows[k] == single[k + 1][0]).all() and (labels[k] == single[k + 1][1]).all()
    assert batches.stack(2) is None  # the last batch is not full
    assert [len(y) for _, y in batches] == [2, 1]


@pytest.mark.parametrize("pad", [True, False])
def test_parts_are_all_samples(pad: bool) -> None:
    whole = ArrayLoader(np.arange(7), batch_size=2, shuffle=True, seed=1)
    parts = [whole.part(3, index, pad) for index in range(3)]
    seen = [np.concatenate(list(part)).tolist() for part in parts]
    assert [len(part) for part in seen] == ([3, 3, 3] if pad else [3, 2, 2])
    assert len({x for part in seen for x in part}) == 7
    assert [len(part) for part in parts] == ([2, 2, 2] if pad else [2, 1, 1])


def test_where_it_is() -> None:
    loader = ArrayLoader(np.arange(6), batch_size=2, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert (state["batches"], state["epoch"], state["samples"]) == (1, 0, 6)
    rest = [batch.tolist() for batch in batches]
    assert loader.state_dict()["epoch"] == 1 and loader.state_dict()["batches"] == 0
    other = ArrayLoader(np.arange(6), batch_size=2, shuffle=True)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    assert [b.tolist() for b in other] == [b.tolist() for b in loader]  # the next pass, too


@pytest.mark.parametrize(
    ("arrays", "how", "message"),
    [
        ((), {}, "give arrays"),
        ((3.0,), {}, "give arrays"),
        ((["a", None],), {}, "give arrays"),
        (([1, 2], [1, 2, 3]), {}, "different numbers of samples: 2, 3"),
        (([1, 2],), {"batch_size": 0}, "batch_size must be a whole number"),
        (([1, 2],), {"seed": -1}, "seed is a whole number from 0 on"),
    ],
)
def test_bad_arguments(arrays: tuple[object, ...], how: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArrayLoader(*arrays, **how)  # type: ignore[arg-type]


def test_the_state_of_other_arrays() -> None:
    with pytest.raises(ValueError, match="that of 2 samples; here are 3"):
        ArrayLoader([1, 2, 3]).load_state_dict(ArrayLoader([1, 2]).state_dict())
