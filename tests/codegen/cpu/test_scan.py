"""Scans compiled: one kernel, its body compiled once, against numpy; memory around its arrays stays untouched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.compiler import lower
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Group, Plan
from gluongraph.ops.autodiff import differentiate, gradients
from gluongraph.runtime import executor

GUARD = 4096  # bytes before and behind every array
FILL = 0xA5


def leaf(name: str, *shape: int, dtype: str = "f32") -> Node:
    return ops.input(name, TensorType(shape, dtype))


def graph_of(leaves: Sequence[Node], **outputs: Node) -> Graph:
    return Graph({n.attrs["name"]: n for n in leaves}, outputs)


class Guarded:
    """Hands out arrays between guard bytes, and says afterwards whether these are as they were."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raw = np.full(size + 2 * GUARD + 64, FILL, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % 64
        self.made.append((raw, start, size))
        return raw[start : start + size].view(dtype).reshape(shape)

    def check(self) -> None:
        for raw, start, size in self.made:
            assert (raw[:start] == FILL).all() and (raw[start + size :] == FILL).all(), f"written around {size} bytes"


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    memory = Guarded()

    class Numpy:
        empty = memory.empty

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    monkeypatch.setattr(executor, "aligned_empty", memory.empty)
    monkeypatch.setattr(executor, "np", Numpy())
    yield memory
    memory.check()


def check(graph: Graph, guarded: Guarded, tolerance: float = 2e-6) -> Plan:
    """Compile, run on random numbers, compare with numpy by the largest number of each result."""
    compiled = lower.lower(graph, dict.fromkeys(graph.inputs, "input"))
    rng = np.random.default_rng(0)
    values = {}
    for name, n in graph.inputs.items():
        values[name] = guarded.empty(n.shape, numpy_dtype(n.dtype))
        values[name][...] = (rng.standard_normal(n.shape) * (1 if n.dtype == "f32" else 9)).astype(numpy_dtype(n.dtype))
    run = compiled.executor({})
    found = run([values[name] for name in run.input_names])
    expected, _ = interpreter.run(graph, values)
    for name, got in zip(run.output_names, found, strict=True):
        want = expected[name]
        assert got.dtype == want.dtype and got.shape == want.shape
        limit = tolerance * max(1.0, float(abs(want.astype("f8")).max(initial=0)))
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=0, atol=limit, err_msg=name)
    return compiled.plan


def scans(plan: Plan) -> list[Group]:
    found = [launch.group for launch in plan.launches if launch.group.pattern == "scan"]
    assert all(group.inner is not None for group in found)
    return found


T, N, D, H = 6, 4, 5, 8
LSTM = [
    leaf("h", N, H),
    leaf("c", N, H),
    leaf("x", T, N, D),
    leaf("w", D, 4 * H),
    leaf("u", H, 4 * H),
    leaf("b", 4 * H),
]


def lstm(reverse: bool) -> tuple[Node, Node, Node]:
    """Last h, last c, every h: weights and bias are constants of the loop."""
    h0, c0, x, w, u, b = LSTM

    def cell(carries: tuple[Node, ...], xs: tuple[Node, ...]) -> Any:
        h, c = carries
        gates = ops.matmul(xs[0], w) + ops.matmul(h, u) + b
        i, f, o, z = (ops.part(gates, 1, k * H, (k + 1) * H) for k in range(4))
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(z)
        h = ops.sigmoid(o) * ops.tanh(c)
        return (h, c), (h,)

    (h, c), (y,) = ops.scan(cell, (h0, c0), (x,), reverse=reverse)
    return h, c, y


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm_is_one_kernel(guarded: Guarded, reverse: bool) -> None:
    h, c, y = lstm(reverse)
    plan = check(graph_of(LSTM, last_h=h, last_c=c, y=y), guarded)
    (group,) = scans(plan)
    assert group.inner is not None
    names = [n.op.name for launch in group.inner.launches for n in launch.group.body.nodes()]
    assert names.count("matmul") == 2, "the body is compiled once, not once a turn"
    assert not any("matmul" in {n.op.name for n in x.group.body.nodes()} for x in plan.launches if x.group is not group)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_lstm(guarded: Guarded, reverse: bool) -> None:
    """The gradient is a scan too, in the other direction: as many kernels for 6 turns as for 60."""
    _, c, y = lstm(reverse)
    loss = ops.sum(y * y) + ops.sum(c)
    found = gradients([loss], [ops.ones(loss.ty)], LSTM)
    grads = {f"d{n.attrs['name']}": g for n, g in zip(LSTM, found, strict=True) if g is not None}
    assert len(grads) == len(LSTM)
    plan = check(graph_of(LSTM, loss=loss, **grads), guarded)
    directions = [next(n for n in g.body.nodes() if n.op.name == "scan").attrs["reverse"] for g in scans(plan)]
    assert {*directions} == {True, False}
    assert len(plan.launches) < 20


def test_gradient_made_for_a_step(guarded: Guarded) -> None:
    """By the name of a parameter, as a compiled step asks for it."""
    _, _, y = lstm(False)
    traced = graph_of(LSTM, loss=ops.sum(y, axis=2))
    graph = differentiate(traced, "loss", ("w", "u"))
    assert len(graph.outputs) == 3
    assert len(scans(check(graph, guarded))) >= 2


A, B, X, K = leaf("a", 4, 6), leaf("b", 4, 6), leaf("x", 5, 4, 6), leaf("k", 4, 6)
P, Q = leaf("p", 4, 6, dtype="i32"), leaf("q", 5, 4, 6, dtype="i32")
Body = Callable[[tuple[Node, ...], tuple[Node, ...]], Any]


def halves() -> Node:
    """Folds to an array in the body."""
    return ops.concat(ops.const(1.0, "f32", (4, 3)), ops.const(2.0, "f32", (4, 3)), axis=1)


def sums_of_sums(c: tuple[Node, ...], xs: tuple[Node, ...]) -> Any:
    """A scan within, from a value made in the turn."""
    (last,), ys = ops.scan(lambda e, y: ((e[0] * 0.5 + y[0],), (e[0],)), (ops.sum(c[0], 0),), (xs[0],))
    return (c[0] * 0.1 + last,), ys


def turns_of_products(c: tuple[Node, ...], xs: tuple[Node, ...]) -> Any:
    """A scan within, over an array made in the turn, with memory of its own."""
    d = ops.matmul(xs[0], ops.transpose(c[0], (1, 0)))

    def turn(e: tuple[Node, ...], y: tuple[Node, ...]) -> Any:
        return (ops.tanh(ops.matmul(e[0], d)) + y[0],), (ops.sum(e[0]),)

    (z,), (totals,) = ops.scan(turn, (d,), (ops.stack(d, d * 2.0, d * 3.0),))
    return (c[0] * 0.5 + ops.sum(totals) * 0.001,), (z,)


def literals_within(c: tuple[Node, ...], xs: tuple[Node, ...]) -> Any:
    def turn(e: tuple[Node, ...], y: tuple[Node, ...]) -> Any:
        return (e[0] * 0.5 + y[0] * halves(),), (ops.literal(np.arange(3, dtype=np.float32)),)

    (z,), ys = ops.scan(turn, (c[0],), (ops.reshape(xs[0], (1, 4, 6)),))
    return (z * halves(),), ys


BODIES: dict[str, tuple[Body, list[Node], list[Node], list[Node]]] = {
    "swapped carries": (lambda c, x: ((c[1], c[0]), (c[0] - c[1],)), [A, B], [], [A, B]),
    "a carry in another's place": (lambda c, x: ((c[1], c[0] + x[0]), (x[0],)), [A, B], [X], [A, B, X]),
    "a carry that becomes constant": (lambda c, x: ((K,), (c[0],)), [A], [], [A, K]),
    "a carry that stays": (lambda c, x: ((c[0],), (c[0] * x[0],)), [A], [X], [A, X]),
    "rows": (lambda c, x: ((c[0] + ops.softmax(x[0] * c[0], 1),), (ops.cumsum(x[0], 1),)), [A], [X], [A, X]),
    "columns": (lambda c, x: ((c[0] * 0.5 + ops.sum(x[0], 0),), (ops.max(c[0], 0),)), [A], [X], [A, X]),
    "a literal": (lambda c, x: ((c[0] + x[0] * halves(),), ()), [A], [X], [A, X]),
    "positions": (lambda c, x: ((c[0] + x[0] * ops.cast(ops.iota((4, 6), 1, "i32"), "f32"),), ()), [A], [X], [A, X]),
    "dtypes": (
        lambda c, x: ((ops.maximum(c[0], x[0]),), (ops.greater(c[0], x[0]), ops.cast(c[0] * c[0], "f64"))),
        [P],
        [Q],
        [P, Q],
    ),
    "nested": (sums_of_sums, [A], [X], [A, X]),
    "nested over made arrays": (turns_of_products, [A], [X], [A, X]),
    "nested with literals": (literals_within, [A], [X], [A, X]),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("reverse", [False, True])
def test_body(guarded: Guarded, name: str, reverse: bool) -> None:
    body, init, xs, leaves = BODIES[name]
    carries, ys = ops.scan(body, init, xs, length=5, reverse=reverse)
    plan = check(graph_of(leaves, **{f"o{i}": n for i, n in enumerate((*carries, *ys))}), guarded, 1e-5)
    assert len(scans(plan)) == 1
