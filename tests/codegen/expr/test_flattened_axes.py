"""Kernels that count several axes as one, over shapes with axes of size 1 at every place, beside broadcast operands."""

from __future__ import annotations

from itertools import product

import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.ir.graph import Node


def row(x: Node, mean: Node) -> tuple[Node, Node]:
    """What batch norm and a loss behind it do: one operand is the same for all images, and exponentials are kept from
    one sweep to the next."""
    off = ops.exp(x - ops.expand(mean, x.shape))
    return off / ops.expand(ops.sum(off, axis=(1, 2, 3), keepdims=True), x.shape), ops.sum(off, axis=(1, 2, 3))


def shapes(*extents: int) -> list[tuple[int, ...]]:
    """Each extent, or 1."""
    return list(product(*((n, 1) for n in extents)))


def convolved(name: str, x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    """One of the three, with work behind it on an operand that is the same for all results but of the last axes."""
    y = (x[0], w[0], *x[2:])
    build, given, made = {
        "forward": (lambda a, b: ops.conv2d(a, b, padding=(w[2] // 2, w[3] // 2)), (x, w), y),
        "data": (lambda a, b: ops.conv2d_data_grad(a, b, x, padding=(w[2] // 2, w[3] // 2)), (y, w), x),
        "weight": (lambda a, b: ops.conv2d_weight_grad(a, b, w, padding=(w[2] // 2, w[3] // 2)), (x, y), w),
    }[name]
    kept = 1 if name == "weight" else 2
    mask = (*(1,) * kept, *made[kept:])
    return Case(
        f"{name} {x} {w}", lambda a, b, m: build(a, b) * ops.expand(m, made), [*given, mask], "conv", tolerance=1e-5
    )


CASES = [
    *(Case(f"row {s}", row, [(3, *s), (1, *s)], "rowwise") for s in shapes(9, 2, 5)),
    *(convolved(name, (2, 3, *s), (4, 3, 3, 3)) for name in ("forward", "data") for s in shapes(9, 5)),
    *(convolved("weight", (2, 11, 4, 4), (4, 11, *s)) for s in shapes(3, 3)),
    *(
        Case(
            f"pool {s}",
            lambda x, m, s=s: ops.avg_pool2d(x, (2, 2), (2, 2)) * ops.expand(m, (2, 3, *s)),
            [(2, 3, 2 * s[0], 2 * s[1]), (1, 1, *s)],
            "pool",
        )
        for s in shapes(9, 5)
    ),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_position_counts_along_all_axes(library: Library, case: Case) -> None:
    library.check(case)
