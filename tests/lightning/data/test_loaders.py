"""What counts as a loader, and how many of its batches are taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon, io, nd
from gluongraph.lightning.data import ArrayLoader, CombinedLoader
from gluongraph.lightning.data.loaders import begin, check_loader, length, num_batches, set_epoch
from gluongraph.lightning.errors import MisconfigurationException


@pytest.mark.parametrize(
    ("batches", "limit", "taken"),
    [(10, None, 10), (10, 1.0, 10), (10, 1, 1), (10, 25, 10), (10, 0.39, 3), (10, 0, 0), (10, 0.0, 0), (0, 0, 0)],
)
def test_limits_of_known_lengths(batches: int, limit: Any, taken: int) -> None:
    assert num_batches(range(batches), limit, "train") == taken


@pytest.mark.parametrize(("limit", "taken"), [(None, math.inf), (1.0, math.inf), (7, 7), (0, 0)])
def test_limits_of_unknown_lengths(limit: Any, taken: float) -> None:
    assert num_batches(generator, limit, "val") == taken


@pytest.mark.parametrize(
    ("loader", "limit", "message"),
    [
        (range(10), 0.05, r"limit_train_batches=0.05 of 10 batches is less than one.*\n.*\n.*limit_train_batches=0.1"),
        (iter([1]), 0.5, "is a share of the batches of list_iterator, whose number is not known"),
        (range(10), -1, "neither a number of batches nor a share"),
        (range(10), 1.5, "neither a number of batches nor a share"),
        (range(10), True, "neither a number of batches nor a share"),
        (range(10), "all", "neither a number of batches nor a share"),
        (range(0), 1.0, "the loader for train is empty: range"),
    ],
)
def test_limits_that_mean_nothing(loader: Any, limit: Any, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        num_batches(loader, limit, "train")


def test_the_limits_are_lightnings() -> None:
    data = pytest.importorskip("lightning.pytorch.trainer.connectors.data_connector")
    stage = pytest.importorskip("lightning.pytorch.trainer.states").RunningStage.TRAINING
    for batches in (1, 3, 10, 999):
        for limit in (0, 1, 7, 5000, 0.0, 0.001, 0.1, 0.29, 0.5, 1.0):
            try:
                expected = data._parse_num_batches(stage, batches, limit)
            except Exception:
                with pytest.raises(MisconfigurationException):
                    num_batches(range(batches), limit, "train")
            else:
                assert num_batches(range(batches), limit, "train") == expected, (batches, limit)


def test_a_loader_that_leaves_everything_out() -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader([1, 2], batch_size=3, drop_last=True)
    with pytest.raises(MisconfigurationException, match=r"it has 2 samples, and drop_last"):
        num_batches(loader, 1.0, "train")


def generator() -> Iterator[int]:
    yield from (1, 2, 3)


class Again:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


@pytest.mark.parametrize(
    "loader",
    [
        [1, 2],
        generator,
        Again(),
        ArrayLoader([1, 2]),
        gluon.data.DataLoader([1, 2], batch_size=1),
        io.NDArrayIter(nd.ones((4, 2)), batch_size=2),
    ],
)
def test_loaders_begin_again(loader: Any) -> None:
    check_loader(loader, "train_dataloaders")
    first, second = (len(list(begin(loader))) for _ in range(2))
    assert first == second == 2 or loader is generator


class Samples:
    def __getitem__(self, i: int) -> int:
        return i

    def __len__(self) -> int:
        return 3


def needed(first: int) -> Iterator[int]:
    yield first


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), r"ndarray is no loader(.|\n)*ArrayLoader"),
        (nd.ones((3,)), r"NDArray is no loader(.|\n)*ArrayLoader"),
        (gluon.data.ArrayDataset(np.ones(3)), r"ArrayDataset is no loader(.|\n)*gluon.data.DataLoader\(dataset"),
        (Samples(), r"Samples is no loader(.|\n)*gluon.data.DataLoader\(dataset"),
        (3, r"int is no loader(.|\n)*__iter__"),
        ("data", r"str is no loader"),
        (needed, r"function is no loader"),
        (Samples, r"type is no loader"),
    ],
)
def test_what_is_no_loader(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"train_dataloaders: {message}"):
        check_loader(given, "train_dataloaders")


def test_datasets_of_pytorch_are_no_loaders() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"TensorDataset is no loader(.|\n)*torch.utils.data.DataLoader\(dataset"):
        check_loader(torch.utils.data.TensorDataset(torch.ones(3)), "train_dataloaders")
    with pytest.raises(TypeError, match=r"Tensor is no loader(.|\n)*ArrayLoader"):
        check_loader(torch.ones(3), "train_dataloaders")
    check_loader(torch.utils.data.DataLoader(torch.ones(3)), "train_dataloaders")


@pytest.mark.parametrize("given", [generator(), iter([1]), map(str, [1])])
def test_what_can_be_read_once(given: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"can be read once(.|\n)*the function itself"):
        check_loader(given, "train_dataloaders")
    check_loader(given, "dataloaders", passes=False)


def test_lengths() -> None:
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    assert length(torch.utils.data.DataLoader(Stream())) is None
    assert length(torch.utils.data.DataLoader([1, 2, 3], batch_size=2)) == 2
    assert length(generator) is None


def test_epochs_are_told_once_to_each() -> None:
    told: list[int] = []

    class Sampler(gluon.data.SequentialSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    set_epoch(gluon.data.DataLoader([1, 2], batch_size=1, sampler=Sampler(2)), 3)
    torch = pytest.importorskip("torch")
    set_epoch(torch.utils.data.DataLoader([1, 2], sampler=Sampler(2)), 4)
    set_epoch([1, 2], 5)
    assert told == [3, 4]
    arrays = ArrayLoader([1, 2])
    set_epoch(CombinedLoader({"a": [arrays]}), 6)
    assert arrays.epoch == 6
