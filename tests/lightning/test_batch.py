"""Batches of any structure as arrays one after another, and back."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.lightning.batch import (
    batch_size_of,
    cast_floats,
    flatten,
    flatten_to_stack,
    map_leaves,
    stacked,
    to_user,
    unflatten,
)
from gluongraph.ndarray import NDArray

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Sample:
    x: Any
    scale: float


BATCHES: list[Any] = [
    np.ones((2, 3)),
    (np.ones(2), np.zeros(2)),
    [np.ones(2), {"a": np.ones(3), "b": (np.zeros(1), "text", 3)}],
    Pair(np.ones(2), np.zeros(2)),
    Sample(np.ones(2), 0.5),
    {"x": nd.ones((2, 2)), "none": None},
]


@pytest.mark.parametrize("batch", BATCHES)
def test_there_and_back(batch: Any) -> None:
    arrays, structure = flatten(batch)
    made = unflatten(structure, iter(arrays))
    assert type(made) is type(batch) and flatten(made)[1] == structure
    for left, right in zip(arrays, flatten(made)[0], strict=True):
        assert left is right
    hash(structure)


def test_values_are_part_of_the_structure() -> None:
    assert flatten((np.ones(2), 1))[1] != flatten((np.ones(2), 2))[1]
    assert flatten((np.ones(2), 1))[1] == flatten((np.zeros(5), 1))[1]
    with pytest.raises(TypeError, match="set, which is no array"):
        flatten((np.ones(2), {1, 2}))


def test_sizes_and_types() -> None:
    assert batch_size_of([np.float32(1).reshape(()), np.ones((7, 2))]) == 7 and batch_size_of([]) == 1
    cast = cast_floats({"x": np.ones(2, np.float32), "y": np.ones(2, np.int64)}, "float64")
    assert cast["x"].dtype == np.float64 and cast["y"].dtype == np.int64


def test_tensors_share_their_memory() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3)
    (array,), _ = flatten(tensor)
    array[0] = 5
    assert tensor[0] == 5
    assert flatten(torch.zeros(2, dtype=torch.float64))[0][0].dtype == np.float64
    assert flatten(torch.zeros(2, dtype=torch.bfloat16))[0][0].dtype.name == "bfloat16"
    back = to_user({"loss": nd.ones((2,)), "rest": [nd.zeros(())]}, torch=True)
    assert isinstance(back["loss"], torch.Tensor) and back["rest"][0].shape == ()


def test_dataclasses_are_mapped_whatever_their_constructor_takes() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        first: int
        second: int = dataclasses.field(init=False, default=2)

    made = map_leaves(lambda leaf: leaf * 10, {"pair": Pair(1)})["pair"]
    assert (made.first, made.second) == (10, 20)


def test_stacks_have_the_values_and_types_of_batches() -> None:
    """Arrays of numpy's, NDArrays and tensors, with and without axes."""
    parts: list[Any] = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.ones((2, 0)),
        nd.ones((2,), dtype="float64"),
    ]
    if importlib.util.find_spec("torch") is not None:
        import torch

        parts += [
            torch.arange(4.0),
            torch.tensor(2),
            torch.ones(2, dtype=torch.float64),
            torch.ones(3, dtype=torch.bfloat16),
        ]
        parts += [torch.arange(6.0).reshape(2, 3).T, torch.ones(2, requires_grad=True)]
    singles, structure = flatten(parts)
    leaves, other = flatten_to_stack(parts)
    assert structure == other and len(leaves) == len(singles) == len(parts)
    for leaf, single in zip(leaves, singles, strict=True):
        made = stacked([leaf, leaf, leaf])
        assert type(made) is type(single) and made.shape == (3, *single.shape) and made.dtype == single.dtype
        values = [each.asnumpy() if isinstance(each, NDArray) else each for each in (made, single)]
        for row in values[0]:
            np.testing.assert_array_equal(row, values[1])
