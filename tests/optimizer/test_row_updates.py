"""Lazy updates as graph: only rows that the gradient touches change, by the same formula; others are not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import ops, optimizer
from gluongraph.compiler.lower import lower
from gluongraph.eager.row_sparse_updates import row_gradient
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Plan
from gluongraph.ops.autodiff import differentiate
from gluongraph.tracing.optimizer_updates import SCALAR, apply_updates

ROWS, WIDTH = 50, 5
INDICES = np.array([3, 7, 3, 60, -2, 7, 3], np.int32)  # some twice, some out of range: they mean the nearest row
TOUCHED = [0, 3, 7, 49]


def graph(uses: int, optimizer: optimizer.Optimizer, by_rows: bool = True) -> tuple[Graph, Any]:
    """The update by the gradient of a weight that is looked up so many times."""
    w, indices = ops.input("w", TensorType((ROWS, WIDTH))), ops.input("indices", TensorType(INDICES.shape, "i32"))
    x = ops.input("x", TensorType((*INDICES.shape, WIDTH)))
    loss: Node = ops.sum(ops.embedding(indices, w) * x)
    for _ in range(uses - 1):
        loss = loss + ops.sum(ops.embedding(indices + 1, w) * x * x)
    found = differentiate(Graph({"w": w, "indices": indices, "x": x}, {"loss": loss}), "loss", ["w"])
    return apply_updates(found, optimizer, ["w"], by_rows=["w"] if by_rows else [])


def values(of: Graph, scalars: dict[str, float]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"indices": INDICES}
    for name, n in of.inputs.items():
        if name.startswith(SCALAR):
            found[name] = np.float32(scalars[name.removeprefix(SCALAR)])
        elif name != "indices":
            found[name] = rng.uniform(0.5, 1.5, n.shape).astype(np.float32)
    return found


def plan_and_results(of: Graph, given: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
    roles = {n: "scalar" if n.startswith(SCALAR) else "state" if n in of.updates else "input" for n in of.inputs}
    compiled = lower(of, roles)
    state = {name: given[name].copy() for name in of.updates}
    runner = compiled.executor(state)
    for name in of.inputs:
        if name.startswith(SCALAR):
            runner.scalar(name)[0] = float(given[name])
    runner([given[name] for name in runner.input_names])
    return compiled.plan, state


CASES = [
    optimizer.SGD(learning_rate=0.1, wd=0.1),
    optimizer.SGD(learning_rate=0.1, wd=0.1, momentum=0.9, clip_gradient=0.5),
    optimizer.Adam(learning_rate=0.1, wd=0.1),
    optimizer.AdaGrad(learning_rate=0.1),
    optimizer.contrib.GroupAdaGrad(learning_rate=0.1),
]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("uses", [1, 2])
def test_rows_are_updated_as_in_a_full_update_and_the_others_stay(number: int, uses: int) -> None:
    given = CASES[number]
    assert given.lazy
    lazy, table = graph(uses, given)
    full, _ = graph(uses, given, by_rows=False)
    with given.undone():
        given.count((0,))
        inputs = values(lazy, dict(zip(table.keys, table.values(given), strict=True)))
    expected, whole = interpreter.run(lazy, inputs)[1], interpreter.run(full, inputs)[1]
    touched = TOUCHED if uses == 1 else [*TOUCHED, 4, 8]
    others = [row for row in range(ROWS) if row not in touched]
    for name, new in expected.items():
        np.testing.assert_allclose(new[touched], whole[name][touched], rtol=1e-5)
        np.testing.assert_array_equal(new[others], inputs[name][others])
        assert (new[touched] != inputs[name][touched]).any(axis=1).all()
    if uses == 1:
        plan, results = plan_and_results(lazy, inputs)
        for name, new in expected.items():
            np.testing.assert_allclose(results[name], new, rtol=1e-5)
            np.testing.assert_array_equal(results[name][others], inputs[name][others])
        written = [launch for launch in plan.launches if any(w.space == "state" for w in launch.writes)]
        assert len(written) == len(expected) and all(launch.group.inplace for launch in written)
        assert plan.scratch_bytes < 4 * ROWS * WIDTH * 4  # nothing of the weight's size is made


def test_gradients_by_rows() -> None:
    w, indices = ops.input("w", TensorType((9, 2))), ops.input("i", TensorType((3,), "i64"))
    rows = ops.scatter_add(ops.zeros(w.ty), indices, ops.take(w, indices))
    numbers, given = row_gradient(ops.add(rows, ops.allreduce(rows, rows))) or (w, w)
    assert str(numbers.ty) == "i32[9]" and str(given.ty) == "f32[9,2]"
    assert row_gradient(w) is None and row_gradient(rows + w) is None
    assert row_gradient(ops.scatter_add(w, indices, ops.take(w, indices))) is None


def test_a_gradient_that_is_not_known_by_rows() -> None:
    """Rows with an element other than 0 are touched; NaN is no 0."""
    w, g = ops.input("w", TensorType((4, 2))), ops.input("g", TensorType((4, 2)))
    momentum = optimizer.SGD(learning_rate=1.0, momentum=0.5)
    made, table = apply_updates(Graph({"w": w, "g": g}, {"grad:w": g}), momentum, ["w"], by_rows=["w"])
    gradient = np.array([[0, 0], [1, 0], [0, 0], [0, np.nan]], np.float32)
    inputs = {"w": np.ones((4, 2), np.float32), "g": gradient, "w/mom": np.ones((4, 2), np.float32)}
    inputs |= {SCALAR + key: np.float32(v) for key, v in zip(table.keys, table.values(momentum), strict=True)}
    updates = interpreter.run(made, inputs)[1]
    np.testing.assert_array_equal(updates["w"], [[1, 1], [0.5, 1.5], [1, 1], [1.5, np.nan]])
    np.testing.assert_array_equal(updates["w/mom"], [[1, 1], [-0.5, 0.5], [1, 1], [0.5, np.nan]])


def test_who_is_lazy() -> None:
    assert not optimizer.SGD(lazy_update=False).lazy and not optimizer.Adam(lazy_update=False).lazy
    assert not any(optimizer.create(name).lazy for name in ("nag", "rmsprop", "ftrl", "adamw", "lamb"))
    assert optimizer.SGD().structure() != optimizer.SGD(lazy_update=False).structure()
