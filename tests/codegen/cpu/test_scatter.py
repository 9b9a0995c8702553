"""Rows added up and what is done with the sums: in any order of names, over old workspaces, with and without decay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels import Case, Library

from gluongraph import ops
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Node, TensorType
from gluongraph.runtime import loader

ROWS, WIDTH, COUNT = 300, 37, 50
TABLE, LIST, VALUES = (ROWS, WIDTH), ((COUNT,), "i32"), (COUNT, WIDTH)


def sums(i: Node, u: Node) -> Node:
    return ops.scatter_add(ops.zeros(TensorType(TABLE)), i, u)


def sgd(i: Node, u: Node, w: Node, lr: Node, wd: Node) -> Node:
    return w - lr * (sums(i, u) * 0.5 + wd * w)


def adam(i: Node, u: Node, w: Node, m: Node, v: Node) -> tuple[Node, ...]:
    g = sums(i, u)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.01 * m / (ops.sqrt(v) + 1e-8), m, v


CASES = {
    c.name: c
    for c in (
        Case("sums", sums, [LIST, VALUES], "scatter"),
        Case("beside", sgd, [LIST, VALUES, TABLE, (), ()], "scatter"),
        Case("in place", sgd, [LIST, VALUES, TABLE, (), ()], "scatter", inplace=((0, 2),)),
        Case("adam", adam, [LIST, VALUES, TABLE, TABLE, TABLE], "scatter", inplace=((0, 2), (1, 3), (2, 4))),
    )
}
LISTS = {
    "apart": lambda rng: rng.permutation(ROWS)[:COUNT],
    "repeated": lambda rng: rng.integers(0, 7, COUNT),
    "one": lambda rng: np.full(COUNT, ROWS - 1),
    "beyond": lambda rng: rng.integers(-90, 2 * ROWS, COUNT),  # clipped to the first and last row
}


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(list(CASES.values()))


@pytest.fixture(scope="module")
def workspaces(library: Library) -> dict[str, Any]:
    """One for each kernel, which finds there what the call before has left."""
    return {name: np.full(launch.candidate.workspace, 1, np.uint8) for name, launch in library.launches.items()}


def run(library: Library, name: str, given: list[Any], space: Any) -> list[Any]:
    """The results of a kernel; what lies in place is copied first."""
    launch = library.launches[name]
    memory, shared = [np.array(x) for x in given], dict(CASES[name].inplace)
    fresh = [np.full(t.shape, 77, np.float32) for j, t in enumerate(launch.group.outputs) if j not in shared]
    library.kernels[launch.kernel](*map(loader.view, [*memory, *fresh, space]))
    queue = iter(fresh)
    return [memory[shared[j]] if j in shared else next(queue) for j in range(len(launch.group.outputs))]


def values(rng: np.random.Generator, rows: Any, name: str, wd: float) -> list[Any]:
    given: list[Any] = [rows.astype(np.int32), rng.standard_normal(VALUES, np.float32)]
    tables = {"sums": 0, "adam": 3}.get(name, 1)
    given += [np.abs(rng.standard_normal(TABLE, np.float32)) for _ in range(tables)]
    return given if tables != 1 else [*given, np.float32(0.1), np.float32(wd)]


@pytest.mark.parametrize("rows", LISTS)
@pytest.mark.parametrize(
    ("name", "wd"), [("sums", 0.0), ("beside", 0.0), ("in place", 0.0), ("in place", 0.3), ("adam", 0.0)]
)
def test_against_numpy(library: Library, workspaces: dict[str, Any], name: str, wd: float, rows: str) -> None:
    rng = np.random.default_rng(5)
    given = values(rng, LISTS[rows](rng), name, wd)
    launch = library.launches[name]
    assert launch.candidate.rule == "scatter"
    want, _ = interpreter.run(launch.group.body, dict(zip(launch.group.body.inputs, given, strict=True)))
    for got, true in zip(run(library, name, given, workspaces[name]), want.values(), strict=True):
        np.testing.assert_allclose(got, true, rtol=0, atol=4e-6 * max(1.0, float(np.abs(true).max())))


@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_named_rows_alone_give_the_bits_of_all_rows(library: Library, workspaces: dict[str, Any], wd: float) -> None:
    rng = np.random.default_rng(6)
    given = values(rng, LISTS["repeated"](rng), "in place", wd)
    (here,), (beside,) = (run(library, name, given, workspaces[name]) for name in ("in place", "beside"))
    assert here.tobytes() == beside.tobytes()
    untouched = np.setdiff1d(np.arange(ROWS), given[0])
    assert np.array_equal(here[untouched], given[2][untouched]) == (wd == 0.0)


def test_a_rate_that_is_no_number_reaches_all_rows(library: Library, workspaces: dict[str, Any]) -> None:
    """0 times infinity is NaN: rows that are not named are passed over only where the formula leaves them alone."""
    rng = np.random.default_rng(7)
    given = values(rng, LISTS["one"](rng), "in place", 0.0)
    given[3] = np.float32(np.inf)
    (w,) = run(library, "in place", given, workspaces["in place"])
    assert np.isnan(w[:-1]).all()
