"""Sums of many terms: their error grows as that of pairwise summation does, whichever kernel makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache as once
from typing import Any

import numpy as np
import pytest
from kernels import Case

from gluongraph import ops
from gluongraph.codegen.rule import Cpu, bind, emit
from gluongraph.codegen.rules import offer, tuning_variants
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ir.plan import Buffer, Group, Launch
from gluongraph.ops import sums
from gluongraph.runtime import loader

# Errors allowed, in those of numpy's pairwise sum of as many positive terms. Products have two levels of chains, as in
# BLAS; filters that are evaluated at points have rounding of their own; of a running sum every element is looked at.
REDUCED, MULTIPLIED = 12, 32
UNIT = 2.0**-24
HOST = target()


def reduced(rows: int, columns: int = 5) -> list[Case]:
    """Reductions over so many rows."""
    few = (rows, columns)
    return [
        Case(f"column sums {rows}", lambda x: ops.sum(x, axis=0), [few], "reduce"),
        Case(f"both ends {rows}", lambda x: ops.sum(x, axis=(0, 2)), [(rows // 8, 3, 8)], "reduce"),
        Case(f"whole {rows}", lambda x: ops.sum(x), [(rows,)], "reduce"),
        Case(f"norm {rows}", lambda x: ops.sum(x * x, axis=0), [few], "reduce"),
        Case(f"a row {rows}", lambda x: ops.sum(x, axis=1), [(2, rows)], "rowwise"),
        Case(f"a row by reduce {rows}", lambda x: ops.sum(x, axis=1), [(2, rows)], "reduce"),
        Case(f"running {rows}", lambda x: ops.cumsum(x, axis=0), [few], "opaque", "cumsum"),
    ]


def multiplied(rows: int) -> list[Case]:
    """Products over so many rows."""
    few, some = (rows, 5), (rows, 3)
    return [
        Case(f"weight gradient {rows}", lambda x, g: ops.matmul(x, g, ta=True), [few, some], "gemm"),
        Case(f"narrow product {rows}", lambda x, w: ops.matmul(x, w), [(3, rows), (rows, 2)], "gemm"),
        Case(f"dot products {rows}", lambda x, w: ops.matmul(x, w, tb=True), [(3, rows), (2, rows)], "gemm"),
        Case(f"wide product {rows}", lambda x, w: ops.matmul(x, w), [(3, rows), (rows, 33)], "gemm"),
        Case(f"transposed {rows}", lambda x, w: ops.matmul(x, w, ta=True, tb=True), [(rows, 9), (2, rows)], "gemm"),
    ]


def scattered(rows: int, width: int) -> list[Case]:
    def add(x: Node, indices: Node, updates: Node) -> Node:
        return ops.scatter_add(x, indices, updates)

    def grad(indices: Node, updates: Node) -> Node:
        return ops.scatter_add(ops.zeros(TensorType((3, width), updates.dtype)), indices, updates)

    def tabled(indices: Node, updates: Node) -> Node:
        return grad(indices, updates) * 2.0

    inputs = [((rows,), "i32"), (rows, width)]
    return [
        Case(f"embedding {rows}", tabled, inputs, "scatter"),
        Case(f"rows added {rows}", add, [(3, width), *inputs], "opaque", "scatter_add"),
    ]


def convolved(name: str, x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> list[Case]:
    """One of the three, over so many terms."""
    y = ops.conv2d(ops.input("x", TensorType(x)), ops.input("w", TensorType(w)), **how).shape
    build: Callable[..., Node]
    given: tuple[tuple[int, ...], ...]
    if name == "forward":
        build, given = (lambda x, w: ops.conv2d(x, w, **how)), (x, w)
    elif name == "data":
        build, given = (lambda g, w: ops.conv2d_data_grad(g, w, x, **how)), (y, w)
    else:
        build, given = (lambda a, g: ops.conv2d_weight_grad(a, g, w, **how)), (x, y)
    return [Case(f"conv {name} {x} {w} {how or ''}", build, list(given), "conv")]


CASES = [
    *(case for rows in (1_000, 30_000, 1_000_000) for case in reduced(rows)),
    *(case for rows in (1_000, 100_000) for case in multiplied(rows)),
    *scattered(1_000, 20),
    *scattered(100_000, 20),
    *convolved("forward", (1, 3, 160, 160), (2, 3, 160, 160)),
    *convolved("forward", (2, 4096, 3, 3), (8, 4096, 3, 3), padding=1),
    *convolved("forward", (8, 4096, 4, 4), (16, 4096, 3, 3), padding=1),
    *convolved("forward", (2, 16384, 2, 2), (8, 16384, 1, 1)),
    *convolved("data", (2, 8, 3, 3), (4096, 8, 3, 3), padding=1),
    *convolved("data", (8, 8, 4, 4), (4096, 8, 3, 3), padding=1),
    *convolved("weight", (2, 8, 226, 226), (8, 8, 3, 3)),
    *convolved("weight", (32, 3, 98, 98), (4, 3, 3, 3)),
    *convolved("weight", (3, 16, 130, 130), (16, 16, 3, 3)),
    *convolved("weight", (3, 3, 160, 160), (2, 3, 1, 1)),
    *convolved("weight", (8, 3, 230, 230), (4, 3, 7, 7), stride=2),
]


@once
def pairwise(terms: int) -> float:
    """The largest relative error of some pairwise sums of so many positive terms, and at least that of one rounding."""
    rng = np.random.default_rng(0)
    drawn = [rng.uniform(0, 1, terms).astype("f4") for _ in range(5)]
    return max(UNIT, *(abs(float(np.sum(x)) - math.fsum(x)) / math.fsum(x) for x in drawn))


def values(group: Group) -> dict[str, Any]:
    """Positive terms, whose partial sums are largest; few rows that many places name."""
    rng = np.random.default_rng(1)
    return {
        f"x{i}": rng.integers(0, 3, t.shape).astype("i4")
        if t.dtype == "i32"
        else rng.uniform(0, 1, t.shape).astype("f4")
        for i, t in enumerate(group.inputs)
    }


def exact(case: Case, given: dict[str, Any]) -> Any:
    """The same in float64."""
    wide = [(t.shape, "f64" if t.dtype == "f32" else t.dtype) for t in case.types()]
    graph = Case(case.name, case.fn, wide, case.pattern).graph()
    inputs = {name: x.astype("f8") if x.dtype == np.float32 else x for name, x in given.items()}
    return interpreter.run(graph, inputs)[0]["y0"]


def launches(case: Case) -> list[Launch]:
    """The kernel that the rule chooses, and every other way that it has."""
    group, found = Group(case.graph(), case.pattern), []
    candidate = offer(HOST)(group)
    assert candidate is not None and candidate.rule == (case.rule or case.pattern)
    reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
    writes = tuple(Buffer(f"y{i}", t, "output") for i, t in enumerate(group.outputs))
    others = (
        tuning_variants(group, candidate, HOST) if case.pattern == "conv" else ()
    )  # of a product they are bit-equal
    for number, each in enumerate([candidate, *others]):
        found.append(Launch(f"k{number}", group, each, reads, writes))
    return found


def errors(made: Any, want: Any, terms: int) -> float:
    """The largest error, in those of pairwise sums."""
    return float(np.abs(made - want).max() / want.max() / pairwise(terms))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_error_grows_slowly(case: Case) -> None:
    assert isinstance(HOST, Cpu)
    ways, functions = launches(case), []
    for launch in ways:
        k = tir.Kernel(launch.kernel)
        emit(k, launch.group, launch.candidate, bind(k, launch), HOST)
        functions.append(k.finish())
    module = machine_code.build_kernels(functions, HOST.tvm)
    (group, *_) = (launch.group for launch in ways)
    given = values(group)
    want = exact(case, given)
    terms = max(t.size for t in group.inputs) // 2
    (made,) = group.outputs
    for launch in ways:
        y = np.full(made.shape, np.nan, numpy_dtype(made.dtype))
        space = [np.full(launch.candidate.workspace, 255, "u1")] if launch.candidate.workspace else []
        module[launch.kernel](*map(loader.view, [*given.values(), y, *space]))
        allowed = REDUCED if case.pattern in ("reduce", "rowwise", "scatter") else MULTIPLIED
        assert errors(y, want, terms) < allowed, launch.candidate.setting
    if case.pattern != "gemm":  # which is as exact as BLAS is
        found = interpreter.run(group.body, given)[0]["y0"]
        assert errors(found, want, terms) < (MULTIPLIED if case.rule == "cumsum" else REDUCED)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(3, 700, 5), (1300, 3, 2), (520, 513, 1), (1, 0, 3), (9, 2, 600)])
def test_blocked_sums_are_sums(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    whole = np.arange(math.prod(shape), dtype="f8").reshape(shape)
    for x in (whole, whole.transpose(2, 0, 1).copy().transpose(1, 2, 0), whole[::-1], whole[:, ::2]):
        for keepdims in (False, True):
            found = sums.total(x, axes, x.dtype, keepdims)
            want = np.add.reduce(x, axes, keepdims=keepdims)
            np.testing.assert_allclose(found, want, rtol=1e-14)
            assert found.shape == want.shape


@pytest.mark.parametrize("places", [1, 100, 5_000])
def test_rows_are_added_to_what_is_there(places: int) -> None:
    rng = np.random.default_rng(2)
    rows, added = rng.integers(0, 7, places) ** 2 // 6, rng.integers(0, 99, (places, 3)).astype("f4")
    made, want = np.ones((8, 3), "f4"), np.ones((8, 3), "f4")
    sums.add_rows(made, rows, added)
    np.add.at(want, rows, added)
    np.testing.assert_array_equal(made, want)
