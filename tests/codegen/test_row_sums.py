"""Sums of squares along the rows of a product, written beside it or instead of it: in loops both ways, and in tiles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gluongraph import ops
from gluongraph.ir import Node
from gluongraph.ops.matmul import MATMUL

sys.path.insert(0, str(Path(__file__).parent))
from kernels import Case, Library


def product(a: Node, b: Node, ta: bool = False) -> Node:
    """Of 16-bit operands the sums as they are."""
    wide = {} if a.dtype == "f32" else {"dtype": "f32"}
    return MATMUL(a, b, ta=ta, tb=False, **wide)


def both(a: Node, b: Node) -> tuple[Node, Node]:
    """A product, and the sums of its squares along rows."""
    y = ops.matmul(a, b)
    return y, ops.sum(y * y, -1)


def alone(a: Node, b: Node) -> Node:
    """Those sums, without the product."""
    y = product(a, b, ta=True)
    return ops.sum(y * y, -1)


def along_k(a: Node, b: Node) -> tuple[Node, Node]:
    """Operands that lie along the sum."""
    y = ops.tanh(ops.matmul(a, b, tb=True))
    return ops.sum(y, -1), y


def added(a: Node, b: Node, before: Node) -> tuple[Node, Node]:
    """To what is written over."""
    y = before + product(a, b)
    return y, ops.sum(y * y, -1)


CASES = [
    Case("one run", both, [(3, 5), (5, 7)], "gemm"),
    Case("runs with a rest", both, [(37, 20), (20, 150)], "gemm"),
    Case("pieces across", both, [(9, 64), (64, 3000)], "gemm"),
    Case("batch", both, [(3, 20, 9), (3, 9, 70)], "gemm"),
    Case("no product", alone, [(30, 66), (30, 70)], "gemm"),
    Case("dots", along_k, [(9, 64), (50, 64)], "gemm"),
    Case("in place", added, [(40, 24), (24, 90), (40, 90)], "gemm", inplace=((0, 2),)),
    Case("tiles", added, [((70, 97), "bf16"), ((97, 150), "bf16"), (70, 150)], "gemm", inplace=((0, 2),)),
    Case("stripes of tiles", alone, [((4000, 33), "bf16"), ((4000, 300), "bf16")], "gemm"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_row_sums(library: Library, case: Case) -> None:
    library.check(case)
