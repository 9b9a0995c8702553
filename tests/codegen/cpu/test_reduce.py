"""Reductions: every side of the axes, tails, several at once, work before and behind, splits with a second stage."""

from __future__ import annotations

import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.ir.graph import Node


def moments(x: Node) -> tuple[Node, Node]:
    """Per channel, both in one pass."""
    return ops.sum(x, axis=(0, 2, 3)), ops.sum(x * x, axis=(0, 2, 3))


def variance(x: Node, mean: Node) -> Node:
    off = x - ops.reshape(mean, (1, 6, 1, 1))
    return ops.sum(off * off, axis=(0, 2, 3)) / 40.0


def bias_grad(g: Node, y: Node) -> Node:
    return ops.sum(ops.where(ops.greater(y, 0.0), g, 0.0), axis=0)


SPACES = [
    ((7,), (0,)), ((16,), (0,)), ((1000,), (0,)), ((50_003,), (0,)), ((3, 5, 7), (0, 1, 2)), ((300, 70), (0, 1)),
    ((9, 33), (0,)), ((9, 16), (0,)), ((200, 100), (0,)), ((5000, 3), (0,)), ((2, 4000), (0,)), ((40, 30, 20), (0, 1)),
    ((9, 33), (1,)), ((3, 1000), (1,)), ((70, 300), (1,)), ((3, 4, 50), (1, 2)),
    ((4, 6, 5, 7), (0, 2, 3)), ((4, 6, 1, 3), (0, 2, 3)), ((32, 8, 10, 10), (0, 2, 3)), ((5, 9, 1, 1), (0, 2, 3)),
    ((1, 33), (0,)), ((33, 1), (1,)),
]  # fmt: skip

CASES = [
    *(Case(f"sum {s} over {a}", lambda x, a=a: ops.sum(x, axis=a), [s], "reduce", tolerance=4e-5) for s, a in SPACES),
    *(Case(f"max {s} over {a}", lambda x, a=a: ops.max(x, axis=a), [s], "reduce") for s, a in SPACES[::3]),
    Case("keepdims", lambda x: ops.sum(x, axis=(0, 2), keepdims=True), [(4, 33, 7)], "reduce"),
    Case("min", lambda x: ops.min(x, axis=0), [(30, 40)], "reduce"),
    Case("prod", lambda x: ops.prod(x, axis=1), [(30, 40)], "reduce"),
    Case("moments", moments, [(4, 6, 5, 2)], "reduce"),
    Case("large moments", moments, [(16, 6, 40, 20)], "reduce"),
    Case("moments of few channels", moments, [(64, 3, 32, 32)], "reduce"),
    Case("variance", variance, [(4, 6, 5, 2), (6,)], "reduce"),
    Case("bias gradient", bias_grad, [(128, 70), (128, 70)], "reduce"),
    Case("norm", lambda x: ops.sqrt(ops.sum(x * x, axis=0) + 1e-6), [(60, 50)], "reduce"),
    Case("whole norm", lambda x: ops.sqrt(ops.sum(x * x)), [(300, 200)], "reduce"),
    Case("update", lambda w, g: w - ops.sum(g, axis=0) * 0.1, [(50,), (30, 50)], "reduce", inplace=((0, 0),)),
    Case("large update", lambda w, g: w - ops.sum(g, axis=0) * 0.1, [(10,), (9000, 10)], "reduce", inplace=((0, 0),)),
    Case("bf16", lambda x: ops.sum(x, axis=0), [((300, 20), "bf16")], "reduce"),
    Case("f16", lambda x: ops.sum(x, axis=1), [((20, 300), "f16")], "reduce"),
    Case("f64", lambda x: ops.sum(x, axis=1), [((20, 300), "f64")], "reduce"),
    Case("integers", lambda x: ops.sum(x, axis=0), [((300, 20), "i32")], "reduce"),
    Case("largest integer", lambda x: ops.max(x, axis=1), [((20, 30), "i64")], "reduce"),
    Case("count", lambda x: ops.sum(ops.cast(ops.greater(x, 0.0), "i32")), [(5000,)], "reduce"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_reduce(library: Library, case: Case) -> None:
    library.check(case)
