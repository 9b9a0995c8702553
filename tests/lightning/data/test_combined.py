"""Several loaders read as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gluongraph.lightning.data import CombinedLoader
from gluongraph.lightning.data.combined import as_evaluation_loaders, as_training_loader, batches
from gluongraph.lightning.errors import MisconfigurationException

MODES = ("min_size", "max_size_cycle", "max_size", "sequential")
LOADERS: dict[str, Any] = {"a": range(5), "b": [range(10, 12), {"c": range(20, 23)}]}


def generator() -> Iterator[int]:
    yield from (1, 2, 3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, where Lightning calls it
@pytest.mark.parametrize("limits", [None, 2, [3, 1, 4], [0, 2, 2]])
def test_the_batches_are_lightnings(mode: Any, limits: Any) -> None:
    """Batches, their numbers, those of the loaders, and the length of a pass."""
    theirs = pytest.importorskip("lightning.pytorch.utilities.combined_loader").CombinedLoader(LOADERS, mode)
    ours = CombinedLoader(LOADERS, mode)
    theirs.limits = ours.limits = limits
    expected = list(theirs)
    assert list(ours) == expected
    iter(theirs)
    if mode != "min_size" or limits is None:
        assert len(ours) == len(theirs)
    assert ours.limits == theirs.limits


def test_the_least_limit_counts() -> None:
    combined = CombinedLoader([range(5), range(6)])
    combined.limits = [4, 3]
    assert len(combined) == 3


@pytest.mark.parametrize("mode", MODES)
def test_passes_begin_again(mode: str) -> None:
    combined = CombinedLoader([generator, [1, 2]], mode)
    assert list(combined) == list(combined) != []


def test_one_by_one() -> None:
    combined = CombinedLoader([[1, 2]])
    assert [next(combined), next(combined)] == [([1], 0, 0), ([2], 1, 0)]
    combined.reset()
    assert next(combined) == ([1], 0, 0)


def test_other_loaders_in_their_places() -> None:
    combined = CombinedLoader({"a": range(2), "b": (range(3),)})
    combined.flattened = [range(1), range(4)]
    assert combined.iterables == {"a": range(1), "b": (range(4),)}
    with pytest.raises(ValueError, match="1 loaders cannot take the places of 2"):
        combined.flattened = [range(1)]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="mode='longest' is none of 'min_size'"):
        CombinedLoader([], "longest")
    with pytest.raises(ValueError, match="1 limits for 2 loaders"):
        CombinedLoader([[1], [2]]).limits = [3]
    with pytest.raises(TypeError, match="how many batches a pass by 'max_size' has is not known"):
        len(CombinedLoader([generator], "max_size"))


def test_a_loader_without_batches_is_not_read_for_ever() -> None:
    with pytest.raises(MisconfigurationException, match="loader number 1 has no batches"):
        list(CombinedLoader([[1, 2], range(0)], "max_size_cycle"))


def test_loaders_for_training() -> None:
    assert as_training_loader([[np.ones(2), 1], [np.ones(2), 2]])[0][1] == 1  # a list of batches
    assert as_training_loader({"a": [1], "b": [2]}).mode == "max_size_cycle"
    combined = CombinedLoader([[1]], "min_size")
    assert as_training_loader(combined) is combined
    with pytest.raises(TypeError, match=r"ndarray is no loader(.|\n)*ArrayLoader"):
        as_training_loader((np.ones(2), np.ones(2)))
    with pytest.raises(TypeError, match="int is no loader"):
        as_training_loader({"a": 3})
    with pytest.raises(MisconfigurationException, match="can be read once"):
        as_training_loader([range(2), generator()])


def test_loaders_for_evaluation() -> None:
    assert as_evaluation_loaders([1, 2], "val_dataloaders") == [[1, 2]]  # numbers are batches
    assert as_evaluation_loaders([range(1), range(2)], "val_dataloaders") == [range(1), range(2)]
    together = CombinedLoader([range(1)], "max_size")
    assert as_evaluation_loaders(together, "val_dataloaders") == [together]
    assert as_evaluation_loaders(CombinedLoader([range(1)], "sequential"), "val_dataloaders") == [range(1)]
    assert list(batches(together)) == [[0]]
    as_evaluation_loaders(generator(), "dataloaders", passes=False)
    with pytest.raises(MisconfigurationException, match="can be read once"):
        as_evaluation_loaders(generator(), "val_dataloaders")
