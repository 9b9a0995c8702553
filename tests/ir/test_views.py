"""Views: strides agree with numpy's, which copies where there are none."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.views import View, read, written

X = ops.input("x", TensorType((2, 3, 12)))


def lies(view: View, memory: np.ndarray) -> np.ndarray:
    strides = tuple(s * memory.itemsize for s in view.strides)
    return np.lib.stride_tricks.as_strided(memory[view.start :], view.shape, strides)


def some_shape(rng: Random, size: int) -> tuple[int, ...]:
    """A shape of that size."""
    found = []
    while size > 1:
        found.append(rng.choice([d for d in range(2, size + 1) if size % d == 0]))
        size //= found[-1]
    return tuple(rng.sample([*found, 1], len(found) + 1))


@pytest.mark.parametrize("seed", range(40))
def test_against_numpy(seed: int) -> None:
    rng = Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4)))
    memory = np.arange(math.prod(shape), dtype=np.float32)
    view, array = View.of(shape), memory.reshape(shape)
    for _ in range(6):
        axes = tuple(rng.sample(range(array.ndim), array.ndim))
        view, array = view.transposed(axes), array.transpose(axes)
        begin = tuple(rng.randrange(d) for d in array.shape) if rng.random() < 0.3 else (0,) * array.ndim
        array = array[tuple(slice(b, None) for b in begin)]
        view = view.sliced(array.shape, begin, (1,) * array.ndim)
        wanted = some_shape(rng, array.size)
        array_there = np.reshape(array, wanted)
        found = view.reshaped(wanted)
        assert (found is None) == (not np.shares_memory(array_there, memory))
        if found is not None:
            view, array = found, array_there
        np.testing.assert_array_equal(lies(view, memory), array)


def heads(x: Node) -> Node:
    return ops.transpose(ops.reshape(x, (2, 3, 4, 3)), (0, 2, 1, 3))


READ = {
    "heads": (heads(X), 2, (36, 3, 12, 1)),
    "a part of them": (ops.slice(heads(X), (0, 1, 0, 0), (2, 3, 3, 3), (1, 1, 1, 1)), 3, (36, 3, 12, 1)),
    "one for all": (ops.expand(ops.reshape(X, (2, 1, 3, 12)), (2, 5, 3, 12)), 2, (36, 0, 12, 1)),
    "not in rows": (ops.transpose(X, (0, 2, 1)), 0, (36, 3, 1)),
    "what would be a copy": (ops.reshape(heads(X), (2, 12, 3)), 1, (36, 3, 1)),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_through(name: str) -> None:
    n, count, strides = READ[name]
    path, view = read(n)
    assert (len(path), view.strides) == (count, strides)


def test_where_parts_of_a_result_lie() -> None:
    a, b = (ops.input(name, TensorType((2, 4, 3, 3))) for name in "ab")
    joined = ops.transpose(
        ops.concat(ops.reshape(a, (1, 2, 4, 3, 3)), ops.reshape(b, (1, 2, 4, 3, 3)), axis=0), (1, 3, 0, 2, 4)
    )
    found = written(ops.reshape(joined, (6, 24)))
    assert found == {a: View((2, 4, 3, 3), (72, 3, 24, 1)), b: View((2, 4, 3, 3), (72, 3, 24, 1), 12)}
    assert written(ops.concat(a, a, axis=0)) is None  # it would have to be in two places
    assert written(ops.transpose(a, (0, 2, 1, 3))) is not None and written(ops.transpose(a, (0, 3, 2, 1))) is None
