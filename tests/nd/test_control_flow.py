"""foreach, while_loop and cond: Python's own in eager mode, one loop in a trace, the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, nd
from gluongraph.errors import TraceError
from gluongraph.gluon import HybridBlock
from gluongraph.tracing.tracer import trace

RNG = np.random.default_rng(0)
X, H, W = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 3, 4), (3, 4), (4, 4)))
foreach, while_loop, cond = nd.contrib.foreach, nd.contrib.while_loop, nd.contrib.cond


class Function(HybridBlock):
    """A function as a block."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self._function = (function,)

    def forward(self, *args: Any) -> Any:
        return self._function[0](*args)


def flat(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, list | tuple) else [tree]


def results(function: Callable[..., Any], arrays: Any, traced: bool) -> list[Any]:
    """Values, gradients, and the random numbers that come next."""
    block = Function(function)
    block.hybridize(traced)
    given = [nd.array(a) for a in arrays]
    for a in given:
        a.attach_grad()
    mx.random.seed(3)
    with autograd.record():
        made = flat(block(*given))
        total = sum((y * y).sum() for y in made)
    total.backward()
    return [y.asnumpy() for y in [*made, *(a.grad for a in given), nd.random.uniform(shape=(2,))]]


def recurrence(x: Any, h: Any, w: Any) -> Any:
    return foreach(lambda d, s: (nd.tanh(nd.dot(d + s[0], w)), [s[0] * 0.5 + d]), x, [h])


def lists_of_lists(x: Any, h: Any) -> Any:
    def body(d: Any, s: Any) -> Any:
        return [d[0] + s[1][0], [d[1] * s[0]]], [s[0] + d[0], [s[1][0] * d[1]]]

    return foreach(body, (x, x * 2), [h, [h + 1]])


def dropout(x: Any, h: Any) -> Any:
    """Two draws a turn, and draws before and after."""
    x = nd.Dropout(x, 0.2)

    def body(d: Any, s: Any) -> Any:
        return nd.Dropout(d, 0.5) + s, nd.Dropout(s + d, 0.5)

    outputs, last = foreach(body, x, h)
    return nd.Dropout(outputs, 0.2), last


def nested_dropout(x: Any) -> Any:
    def row(d: Any, s: Any) -> Any:
        return foreach(lambda e, q: (nd.Dropout(e, 0.5) + q, nd.Dropout(q + e, 0.5)), d, s)

    return foreach(row, x, nd.ones((4,)))


def vectors(x: Any) -> Any:
    return foreach(lambda d, s: (d + s, d * s), x, x[0])


def counted(x: Any, h: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        return [s * 2, i], [i + 1, s + x]

    return while_loop(lambda i, s: s.sum() < 40, step, [nd.zeros((1,)), h], max_iterations=7)


def all_steps(h: Any) -> Any:
    return while_loop(lambda s: s.sum() < 1e9, lambda s: (s, s * 1.5), h, max_iterations=3)


def endless(h: Any) -> Any:
    return while_loop(lambda s: True, lambda s: (s, s * 1.5), [h], max_iterations=2)


def chosen(x: Any, h: Any) -> Any:
    return cond(x.sum() > h.sum(), lambda: [x * h, x], lambda: [x - h, h])


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "recurrence": (recurrence, (X, H, W)),
    "lists of lists": (lists_of_lists, (X, H)),
    "dropout": (dropout, (X, H)),
    "nested dropout": (nested_dropout, (X,)),
    "vectors": (vectors, (np.arange(4, dtype=np.float32) + 1,)),
    "counted": (counted, (np.ones_like(H), np.full_like(H, 0.5))),
    "all steps": (all_steps, (H,)),
    "endless": (endless, (H,)),
    "chosen": (chosen, (H, W[:3] - 9)),
    "not chosen": (chosen, (H, W[:3] + 9)),
}


@pytest.mark.parametrize("name", CASES)
def test_traced_as_eager(name: str) -> None:
    function, arrays = CASES[name]
    eager = results(function, arrays, False)
    with debug.override(backend="reference"):
        traced = results(function, arrays, True)
    for a, b in zip(traced, eager, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_compiled() -> None:
    """A loop with draws in it, by the compiler."""
    for a, b in zip(results(dropout, (X, H), True), results(dropout, (X, H), False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_condition_on_an_array_from_outside_is_live() -> None:
    flag = nd.array([1.0])
    block = Function(lambda x: cond(flag, lambda: x + 1, lambda: x - 1))
    block.hybridize()
    with debug.override(backend="reference"):
        assert block(nd.array([1.0])).asscalar() == 2
        flag[:] = 0
        assert block(nd.array([1.0])).asscalar() == 0


def test_a_loop_is_traced_once() -> None:
    turns = []

    def body(d: Any, s: Any) -> Any:
        turns.append(d.shape)
        return d, nd.tanh(s + d)

    graph = trace(lambda x, h: foreach(body, x, h), [nd.array(X), nd.array(H)], training=False).graph
    names = [n.op.name for n in graph.nodes()]
    assert turns == [(3, 4)] and names.count("scan") == 1 and "tanh" not in names


def test_values_by_hand() -> None:
    outputs, states = foreach(lambda d, s: (d + s[0], [s[0] * 2]), nd.array([[1, 2], [3, 4]]), [nd.array([1, 1])])
    assert outputs.asnumpy().tolist() == [[2, 3], [5, 6]] and states[0].asnumpy().tolist() == [4, 4]
    outputs, last = while_loop(lambda i, s: i <= 5, lambda i, s: ([i + s], [i + 1, s + i]), CountAndSum, 10)
    assert outputs[0].asnumpy().ravel().tolist() == [1, 2, 4, 7, 11, 16, 0, 0, 0, 0]
    assert [v.asscalar() for v in last] == [6, 16]
    assert while_loop(lambda i: i < 0, lambda i: (i, i), nd.zeros((1,)), 3)[0] == []
    assert while_loop(lambda i: i < 2, lambda i: (None, i + 1), nd.zeros((1,)), 3)[0] == []
    a, b = nd.array([1]), nd.array([2])
    assert cond(a * b < 5, lambda: (a + 5) * (b + 5), lambda: a).asscalar() == 42
    assert cond(False, lambda: "yes", lambda: "no") == "no"


CountAndSum = (nd.array([0], dtype="int64"), nd.array([1], dtype="int64"))


def test_errors() -> None:
    x = nd.ones((3, 2))
    with pytest.raises(AssertionError, match="not int"):
        foreach(lambda d, s: (d, s), [1], x)
    with pytest.raises(AssertionError, match="not float"):
        foreach(lambda d, s: (d, s), x, 1.0)
    with pytest.raises(AssertionError, match="no data"):
        foreach(lambda d, s: (d, s), [], x)
    with pytest.raises(ValueError, match="max_iterations"):
        while_loop(lambda i: i < 3, lambda i: (i, i), x)
    with pytest.raises(ValueError, match="at least one"):
        while_loop(lambda: True, lambda: ([], []), [], 3)
    with pytest.raises(ValueError, match="there are 1 variables, and the step gives back 2"):
        while_loop(lambda i: True, lambda i: (i, [i, i]), [x], 3)


def test_errors_of_traces() -> None:
    kept = nd.zeros((2,))
    x = nd.ones((3, 2))

    def writes(d: Any, s: Any) -> Any:
        kept[:] = kept + d
        return d, s

    for function in (
        lambda x: foreach(writes, x, x[0]),
        lambda x: cond(x.sum() > 0, lambda: writes(x[0], x)[0], lambda: x[0]),
    ):
        with pytest.raises(TraceError, match="writes into capture0"):
            trace(function, [x], training=False)
    with pytest.raises(ValueError, match=r"different shapes: \(2,\) and \(3, 2\)"):
        trace(lambda x: cond(x.sum() > 0, lambda: x[0], lambda: x), [x], training=False)
    with pytest.raises(ValueError, match="changes the type of a carry"):
        trace(lambda x: foreach(lambda d, s: (d, nd.concat(s, s, dim=0)), x, x[0]), [x], training=False)
    with pytest.raises(ValueError, match="3 elements along axis 0"):
        trace(lambda x: foreach(lambda d, s: (d[0], s), [x, x[:2]], x[0]), [x], training=False)
