"""Pooling and its gradients: windows side by side, over one another, over the edge; dtypes, work behind, NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.compiler.lower import compile_graph
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, TensorType

Shape = tuple[int, ...]
# shape, kernel, stride, padding, ceil
WINDOWS: list[tuple[Shape, Any, Any, Any, bool]] = [
    ((2, 3, 9, 8), 3, 2, 1, False),
    ((1, 2, 40, 37), 3, 1, 1, False),
    ((1, 2, 7, 35), (3, 2), (2, 3), (1, 0), False),
    ((1, 1, 5, 70), (1, 5), (1, 4), (0, 2), False),
    ((2, 1, 6, 6), (6, 3), 1, 0, False),
    ((2, 9, 3, 1), (2, 1), (1, 1), 0, False),
    ((1, 1, 4, 5), (4, 3), 1, (3, 2), False),
    ((2, 3, 7, 6), 2, 2, 0, False),
    ((1, 2, 9, 17), 2, 3, 0, False),
    ((40, 16, 14, 14), 3, 2, 0, False),
]
CEIL: list[tuple[Shape, Any, Any, Any, bool]] = [
    ((1, 2, 7, 8), (3, 2), (2, 3), (1, 0), True),
    ((1, 2, 8, 8), 2, 3, 0, True),
    ((1, 2, 6, 20), 3, 2, 0, True),
]
IMAGE = (2, 6, 9, 11)


def pooled(make: Callable[..., Node], how: tuple[Any, ...]) -> Callable[[Node], Node]:
    return lambda x: make(x, *how)


def gradient(image: Shape, how: tuple[Any, ...]) -> Callable[..., Node]:
    """The gradient of the average pooling of an image, as a function of the upstream gradient."""

    def made(g: Node) -> Node:
        y = ops.avg_pool2d(ops.input("image", TensorType(image, g.dtype)), *how)
        return OPS["avg_pool2d_grad"](g, shape=image, **y.attrs)

    return made


def windows_of(image: Shape, how: Sequence[Any]) -> Shape:
    return ops.avg_pool2d(ops.input("image", TensorType(image)), *how).shape


def biased(x: Node, b: Node) -> tuple[Node, Node]:
    y = ops.max_pool2d(x, 3, 2, 1)
    out = ops.relu(y + ops.reshape(b, (1, 6, 1, 1)))
    return out, out * 2.0


CASES = [
    *(Case(f"max {s} {how}", pooled(ops.max_pool2d, how), [s], "pool") for s, *how in [*WINDOWS, *CEIL]),
    *(Case(f"average {s} {how}", pooled(ops.avg_pool2d, how), [s], "pool") for s, *how in WINDOWS),
    Case("bf16", lambda x: ops.max_pool2d(x, 3, 2, 1), [(IMAGE, "bf16")], "pool"),
    Case("average of f16", lambda x: ops.avg_pool2d(x, 3, 1, 1), [(IMAGE, "f16")], "pool"),
    Case("f64", lambda x: ops.max_pool2d(x, 3, 2, 1), [(IMAGE, "f64")], "pool", "fallback"),
    Case("a large step", lambda x: ops.max_pool2d(x, 2, 5), [IMAGE], "pool", "fallback"),
    Case("work behind", biased, [IMAGE, (6,)], "pool"),
    *(
        Case(f"average {s} {how}", pooled(ops.avg_pool2d, (*how, False)), [s], "pool")
        for s, *how in [*WINDOWS, *CEIL]
        if how[2]
    ),
    *(Case(f"average {s} {how}", pooled(ops.avg_pool2d, how), [s], "pool") for s, *how in CEIL),
    *(
        Case(f"gradient of average {s} {how} {count}", gradient(s, (*how, count)), [windows_of(s, how)], "pool")
        for s, *how in [*WINDOWS, ((1, 2, 9, 40), (5, 4), 1, (3, 1), True)]
        for count in (False, True)
        if how[1] in (1, (1, 1))
    ),
    Case("gradient of average, f16", gradient(IMAGE, (3, 1, 1, False, False)), [(IMAGE, "f16")], "pool"),
    Case("strides", gradient((1, 2, 9, 9), (3, 2, 1, False)), [(1, 2, 5, 5)], "pool", "fallback"),
]  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_pool(library: Library, case: Case) -> None:
    library.check(case)


def test_infinities_and_nan() -> None:
    """A window with a NaN in it has NaN for its largest; one of nothing but -inf has that, at the edge too."""
    x = ops.input("x", TensorType((1, 1, 6, 40)))
    graph = Graph({"x": x}, {"y": ops.max_pool2d(x, 3, 1, 1), "z": ops.max_pool2d(x, 2)})
    given = np.linspace(-1, 1, 240, dtype=np.float32).reshape(x.shape)
    given[..., 3, 17] = given[..., 0, 0] = np.nan
    given[..., 5, 30:36] = given[..., 4, 30:36] = -np.inf
    (got, _), (want, _) = compile_graph(graph, "pools")({"x": given}), interpreter.run(graph, {"x": given})
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
