"""Parts of the samples for each of several workers: what they have together, equal lengths, passes that go on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from rank_checks import run_checks
from ranks import needs_mpi, run_ranks

from gluongraph import nd
from gluongraph.gluon.data import ArrayDataset, DataLoader, DistributedSampler, SplitSampler
from gluongraph.runtime.communicator.environment import world

LENGTHS = [(n, parts) for n in (1, 2, 7, 8, 20) for parts in (1, 2, 3, 4)]


def parts_of(length: int, parts: int, **how: Any) -> list[list[int]]:
    return [list(DistributedSampler(length, parts, i, **how)) for i in range(parts)]


@pytest.mark.parametrize("length,parts", LENGTHS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_parts_are_all_samples(length: int, parts: int, shuffle: bool) -> None:
    """Each once, the first ones again where the parts would not be equal."""
    found = parts_of(length, parts, shuffle=shuffle)
    sizes = {len(each) for each in found} | {len(DistributedSampler(length, parts, i)) for i in range(parts)}
    assert sizes == {-(-length // parts)}
    order = [part[k] for k in range(len(found[0])) for part in found]
    assert sorted(order[:length]) == list(range(length)) and order[length:] == (order * parts)[: len(order) - length]
    if not shuffle:
        assert order[:length] == list(range(length))


@pytest.mark.parametrize("length,parts", LENGTHS)
def test_samples_that_are_left_out(length: int, parts: int) -> None:
    found = parts_of(length, parts, last="drop")
    assert {len(each) for each in found} == {length // parts} == {len(DistributedSampler(length, parts, last="drop"))}
    assert sorted(i for each in found for i in each) == list(range(length // parts * parts))


def test_passes() -> None:
    """Every pass has another order, which follows from seed and number; it is numpy's own, whatever else is drawn."""
    sampler = DistributedSampler(6, 2, 0, shuffle=True, seed=3)
    passes = [list(sampler) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2] and sampler.epoch == 3
    np.random.seed(1)
    before: Any = np.random.get_state()
    sampler.set_epoch(1)
    assert list(sampler) == passes[1] and list(sampler) == passes[2]
    after: Any = np.random.get_state()
    assert after[2] == before[2] and (after[1] == before[1]).all()
    assert list(DistributedSampler(6, 2, 0, shuffle=True, seed=4)) != passes[0]
    expected = np.arange(6)
    np.random.RandomState([3, 0, 0]).shuffle(expected)
    assert passes[0] == expected[::2].tolist()


def test_global_batches_do_not_depend_on_the_number_of_parts() -> None:
    def batches(parts: int) -> list[list[int]]:
        loaders = [
            DataLoader(list(range(24)), 8 // parts, sampler=DistributedSampler(24, parts, i, shuffle=True))
            for i in range(parts)
        ]
        return [sorted(int(x) for each in together for x in each.asnumpy()) for together in zip(*loaders, strict=True)]

    assert batches(1) == batches(2) == batches(4)


def test_a_pass_goes_on_in_another_process() -> None:
    def loader() -> DataLoader:
        data = ArrayDataset(np.arange(20, dtype=np.float32))
        return DataLoader(data, 3, sampler=DistributedSampler(20, 2, 1, shuffle=True, seed=1 << 40))

    one = loader()
    list(one)
    batches = iter(one)
    next(batches)
    state = json.loads(json.dumps(one.state_dict()))
    rest = [batch.asnumpy().tolist() for batch in batches]
    other = loader()
    other.load_state_dict(state)
    assert [batch.asnumpy().tolist() for batch in other] == rest and len(rest) == 3
    assert [b.asnumpy().tolist() for b in one] == [b.asnumpy().tolist() for b in other]


@pytest.mark.parametrize("length,parts", [pair for pair in LENGTHS if pair[0] >= pair[1]])
@pytest.mark.parametrize("even", [False, True])
def test_consecutive_parts(length: int, parts: int, even: bool) -> None:
    """The parts of GluonNLP's SplitSampler."""
    found = [list(SplitSampler(length, parts, i, even, shuffle=False)) for i in range(parts)]
    assert [len(each) for each in found] == [len(SplitSampler(length, parts, i, even)) for i in range(parts)]
    if even:
        size = -(-length // parts)
        assert {len(each) for each in found} == {size}
        for i, each in enumerate(found):
            part = list(range(length)[size * i : size * (i + 1)])
            assert each[: len(part)] == part and all(0 <= k < length for k in each)
    else:
        assert [i for each in found for i in each] == list(range(length))
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_shuffled_and_repeated_parts() -> None:
    np.random.seed(7)
    sampler = SplitSampler(10, 2, 1, repeat=2)
    first = list(sampler)
    assert len(first) == len(sampler) == 10 and sorted(first[:5]) == sorted(first[5:]) == [5, 6, 7, 8, 9]
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = list(sampler)
    assert expected != first
    other = SplitSampler(10, 2, 1, repeat=2)
    other.load_state_dict(state)
    np.random.seed(99)
    assert list(other) == expected


def test_errors() -> None:
    for make, message in (
        (lambda: DistributedSampler(4, 2, 2), "DistributedSampler: part_index must be from 0 to 1, but got 2"),
        (lambda: SplitSampler(4, 2, -1), "SplitSampler: part_index must be from 0 to 1, but got -1"),
        (lambda: SplitSampler(1, 2), "length=1 samples cannot be cut into num_parts=2 parts"),
        (lambda: DistributedSampler(4, 0, 0), "num_parts is a whole number from 1"),
        (lambda: DistributedSampler(4, last="keep"), "last is 'pad' or 'drop', not 'keep'"),
        (lambda: DistributedSampler(-1), "length is a whole number"),
        (lambda: DistributedSampler(4).set_epoch(-1), "epoch is a whole number"),
        (lambda: DistributedSampler(4).load_state_dict(DistributedSampler(5).state_dict()), "length=5; here it is 4"),
        (lambda: DistributedSampler(4, seed=1).load_state_dict(DistributedSampler(4).state_dict()), "seed=0"),
        (lambda: SplitSampler(4, 2, 0).load_state_dict(SplitSampler(4, 2, 1).state_dict()), "from 2 to 3; here"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def check_ranks() -> None:
    """By default the parts are those of the ranks."""
    data = nd.array(np.arange(10))
    loader = DataLoader(data, 2, sampler=DistributedSampler(len(data), shuffle=True, seed=5))
    for _ in range(2):
        mine = [int(i) for batch in loader for i in batch.asnumpy().reshape(-1)]
        assert len(mine) == -(-10 // world().size)
        everyone = [int(i) for text in world().exchange(" ".join(map(str, mine))) for i in text.split()]
        assert set(everyone) == set(range(10))


def on_each_rank() -> None:
    run_checks([check_ranks])


@needs_mpi
def test_on_ranks() -> None:
    assert run_ranks(3, on_each_rank) == ["check_ranks\n"] * 3
