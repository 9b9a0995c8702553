"""Samplers by rank, shuffling off, seeds of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon
from gluongraph.lightning.data import ArrayLoader
from gluongraph.lightning.data.loaders import set_epoch
from gluongraph.lightning.data.sampling import (
    PartOfSampler,
    by_rank,
    is_shuffled,
    seed_workers,
    without_shuffling,
)

SAMPLES = 11


def of_gluon(**how: Any) -> Any:
    return gluon.data.DataLoader(list(range(SAMPLES)), **({"batch_size": 2} | how))


def of_torch(**how: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.DataLoader(list(range(SAMPLES)), **({"batch_size": 2} | how))


def of_arrays(**how: Any) -> Any:
    return ArrayLoader(np.arange(SAMPLES), batch_size=2, **how)


KINDS = [of_gluon, of_torch, of_arrays]
Make = Callable[..., Any]


def samples(loader: Any) -> list[int]:
    return [int(x) for batch in loader for x in np.asarray(batch.asnumpy() if hasattr(batch, "asnumpy") else batch)]


@pytest.mark.parametrize("make", KINDS)
def test_ranks_read_all_samples(make: Make) -> None:
    """In an order of each epoch that is the same on all; equally many, of which those that were missing twice."""
    loader = make(shuffle=True)
    parts = [by_rank(loader, 3, rank, shuffle=True) for rank in range(3)]
    orders = []
    for epoch in (0, 1, 0):
        for part in parts:
            set_epoch(part, epoch)
        seen = [samples(part) for part in parts]
        assert [len(part) for part in seen] == [4, 4, 4] and {x for part in seen for x in part} == {*range(SAMPLES)}
        orders.append(seen)
    assert orders[0] == orders[2] != orders[1]
    assert len(samples(loader)) == SAMPLES  # as it was


@pytest.mark.parametrize("make", KINDS)
def test_without_shuffling_the_ranks_alternate(make: Make) -> None:
    loader = by_rank(make(), 2, 1, shuffle=False)
    assert samples(loader) == [1, 3, 5, 7, 9, 0]
    assert by_rank(loader, 2, 1, shuffle=False) is loader  # it is one by rank already
    assert by_rank(make(), 1, 0, shuffle=False) is not None


def test_shuffled_ranks_read_in_lightnings_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the loader's own order where it is not shuffled, which Lightning shuffles all the same."""
    connector = pytest.importorskip("lightning.pytorch.trainer.connectors.data_connector")
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")

    def lightnings(loader: Any, rank: int, epoch: int) -> list[int]:
        sampler = connector._get_distributed_sampler(loader, True, 0, num_replicas=2, rank=rank)
        sampler.set_epoch(epoch)
        return list(sampler)

    def ours(loader: Any, rank: int, epoch: int) -> list[int]:
        part = by_rank(loader, 2, rank, is_shuffled(loader))
        set_epoch(part, epoch)
        return samples(part)

    cases = [(rank, epoch) for rank in range(2) for epoch in range(3)]
    assert all(ours(of_torch(shuffle=True), *case) == lightnings(of_torch(shuffle=True), *case) for case in cases)
    assert all(ours(of_torch(), *case) != lightnings(of_torch(), *case) for case in cases)


@pytest.mark.parametrize("make", KINDS)
def test_predictions_are_made_once(make: Make) -> None:
    parts = [by_rank(make(), 3, rank, shuffle=False, pad=False) for rank in range(3)]
    assert [samples(part) for part in parts] == [list(range(rank, SAMPLES, 3)) for rank in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2]


def test_predictions_leave_no_batch_out() -> None:
    for loader in (of_gluon(last_batch="discard"), of_torch(drop_last=True)):
        assert sum(len(samples(by_rank(loader, 2, rank, False, pad=False))) for rank in range(2)) == SAMPLES
        assert len(samples(loader)) == 10


@pytest.mark.parametrize("make", [of_gluon, of_torch])
def test_parts_of_other_samplers(make: Make) -> None:
    order = [3, 1, 4, 1, 5]
    parts = [samples(by_rank(make(sampler=order), 2, rank, shuffle=True)) for rank in range(2)]
    assert parts == [[3, 4, 5], [1, 1, 3]]


def test_samplers_for_batches() -> None:
    torch = pytest.importorskip("torch")

    class Pairs:
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Iterator[list[int]]:
            order = list(self.sampler)
            return iter([order[i : i + 2] for i in range(0, len(order), 2)])

    loader = torch.utils.data.DataLoader(list(range(4)), batch_sampler=Pairs([3, 2, 1, 0]))
    assert samples(by_rank(loader, 2, 1, shuffle=True)) == [2, 0]
    hidden = torch.utils.data.DataLoader(list(range(4)), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(TypeError, match=r"list, shows no sampler(.|\n)*use_distributed_sampler=False"):
        by_rank(hidden, 2, 1, shuffle=True)
    with pytest.raises(TypeError, match="shows no sampler"):
        by_rank(gluon.data.DataLoader([1, 2], batch_sampler=[[0], [1]]), 2, 1, shuffle=True)


def test_subclasses_keep_what_they_have() -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.utils.data.DataLoader):
        def __init__(self, name: str, size: int) -> None:
            super().__init__(list(range(size)), batch_size=2, drop_last=True)
            self.name = name

    made = by_rank(Named("x", 7), 2, 0, shuffle=False)
    assert type(made) is Named and made.name == "x" and samples(made) == [0, 2, 4, 6]


def test_samplers_without_a_length() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter([0])

    with pytest.raises(TypeError, match=r"Endless has no length(.|\n)*use_distributed_sampler=False"):
        by_rank(of_gluon(sampler=Endless()), 2, 1, shuffle=True)
    with pytest.raises(ValueError, match="part_index must be from 0 to 1"):
        PartOfSampler([1, 2], 2, 2)


def test_the_seed_is_that_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        orders.append(samples(by_rank(of_gluon(shuffle=True), 2, 0, shuffle=True)))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("loader", [[1, 2], lambda: iter([1])])
def test_other_loaders_are_left_alone(loader: Any) -> None:
    assert by_rank(loader, 2, 1, shuffle=True) is loader
    assert without_shuffling(loader, "train") is loader and not is_shuffled(loader)


@pytest.mark.parametrize("make", KINDS)
def test_shuffling_off(make: Make) -> None:
    shuffled = make(shuffle=True)
    assert is_shuffled(shuffled) and not is_shuffled(make())
    with pytest.warns(UserWarning, match="train is read without shuffling"):
        loader = without_shuffling(shuffled, "train")
    assert samples(loader) == samples(loader) == list(range(SAMPLES))
    assert without_shuffling(loader, "train") is loader


def test_workers_draw_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Drawn:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i: int) -> float:
            return float(np.random.rand())

    def drawn(rank: int) -> list[float]:
        torch.manual_seed(1)
        loader = torch.utils.data.DataLoader(Drawn(), num_workers=2)
        seed_workers(loader, rank)
        return [float(x) for x in loader]

    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    first = drawn(0)
    assert first == drawn(0) and len({*first, *drawn(1)}) == 4
    own = torch.utils.data.DataLoader([1], worker_init_fn=print)
    seed_workers(own, 0)
    assert own.worker_init_fn is print
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    none = torch.utils.data.DataLoader([1])
    seed_workers(none, 0)
    assert none.worker_init_fn is None
