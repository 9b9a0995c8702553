"""Scatter, concat, cumsum: the rules that are not made of loops over results alone."""

from __future__ import annotations

import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.ir.graph import Node


def scatter(x: Node, i: Node, u: Node) -> Node:
    return ops.scatter_add(x, i, u)


CASES = [
    Case("scatter", scatter, [(5, 33), ((9,), "i32"), (9, 33)], "opaque", "scatter_add"),
    Case("scatter numbers", scatter, [(5,), ((9,), "i64"), (9,)], "opaque", "scatter_add"),
    Case("large scatter", scatter, [(50, 700), ((300,), "i32"), (300, 700)], "opaque", "scatter_add"),
    Case("scatter in place", scatter, [(5, 33), ((9,), "i32"), (9, 33)], "opaque", "scatter_add", inplace=((0, 0),)),
    Case("concat", lambda a, b, c: ops.concat(a, b, c, axis=1), [(4, 3, 5), (4, 1, 5), (4, 6, 5)], "opaque", "concat"),
    Case("concat rows", lambda a, b: ops.concat(a, b, axis=0), [(300, 70), (7, 70)], "opaque", "concat"),
    Case(
        "concat bytes", lambda a, b: ops.concat(a, b, axis=1), [((3, 5), "bool"), ((3, 90), "bool")], "opaque", "concat"
    ),
    *(
        Case(f"cumsum {shape} {axis}", lambda x, axis=axis: ops.cumsum(x, axis), [shape], "opaque", "cumsum")
        for shape, axis in (((7,), 0), ((3, 100), 1), ((100, 3), 0), ((3, 40, 50), 1), ((90, 700), 1), ((5, 1), 1))
    ),
    Case("cumsum of integers", lambda x: ops.cumsum(x, 1), [((4, 50), "i32")], "opaque", "cumsum"),
    Case("cumsum of bf16", lambda x: ops.cumsum(x, 1), [((4, 50), "bf16")], "opaque", "cumsum"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_index_op(library: Library, case: Case) -> None:
    library.check(case)
