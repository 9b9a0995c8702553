"""Sums of squares along the rows of a product, written beside it or instead of it: in loops both ways, and in tiles."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Case, Library, numbers, spoiled

from gluongraph import ops
from gluongraph.codegen.contraction.contraction import GEMM
from gluongraph.codegen.rule import bind
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Buffer, Group, Launch
from gluongraph.ops.matmul import MATMUL
from gluongraph.runtime import loader


def product(a: Node, b: Node, ta: bool = False, tb: bool = False) -> Node:
    """Of 16-bit operands the sums as they are."""
    wide = {} if a.dtype == "f32" else {"dtype": "f32"}
    return MATMUL(a, b, ta=ta, tb=tb, **wide)


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
    y = ops.tanh(product(a, b, tb=True))
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
    Case("turned tiles", along_k, [((18, 97), "bf16"), ((150, 97), "bf16")], "gemm"),
    Case("stripes of tiles", alone, [((4000, 33), "bf16"), ((4000, 300), "bf16")], "gemm"),
]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(CASES)


def test_other_ways_to_write_a_product_sum_in_the_same_order() -> None:
    """What a tuner may choose among gives the same bits."""
    cpu = target()
    assert cpu is not None
    group = Group(Case("", both, [(120, 96), (96, 200)], "gemm").graph(), "gemm")
    ways = [GEMM, *GEMM.variants(group, cpu).values()][:6]
    assert len(ways) > 3
    kernels, spaces = [], []
    for number, rule in enumerate(ways):
        candidate = rule.claim(group, cpu)
        assert candidate is not None
        reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
        writes = tuple(Buffer(f"y{i}", t, "output") for i, t in enumerate(group.outputs))
        k = tir.Kernel(f"k{number}")
        rule.emit(k, group, bind(k, Launch(k.name, group, candidate, reads, writes)), cpu)
        kernels.append(k.finish())
        spaces.append(spoiled((candidate.workspace,), np.uint8))
    module = machine_code.build_kernels(kernels, target().tvm)
    rng = np.random.default_rng(0)
    given = [numbers(rng, t) for t in group.inputs]
    found = []
    for number, space in enumerate(spaces):
        results = [spoiled(t.shape, np.float32) for t in group.outputs]
        module[f"k{number}"](*map(loader.view, [*given, *results, space]))
        found.append([array.tobytes() for array in results])
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_row_sums(library: Library, case: Case) -> None:
    library.check(case)
