"""fold: what depends on constants alone becomes one, splats stay splats, and large results are left to the step."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes import fold

LIMIT = importlib.import_module("gluongraph.passes.fold").LIMIT
X = ops.input("x", TensorType((2, 3)))
BIG = (1000, 1000)


def const(value: float, *shape: int, dtype: str = "f32") -> Node:
    return ops.const(value, dtype=dtype, shape=shape)


def folded(n: Node) -> Node:
    return fold(Graph({"x": X}, {"n": n})).outputs["n"]


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, fold)


def test_golden(golden) -> None:
    scale = OPS["div"](const(1.0, 2, 3), OPS["sqrt"](const(16.0, 2, 3)))
    mask = OPS["less"](ops.literal(np.arange(6, dtype="float32").reshape(2, 3)), const(3.0, 2, 3))
    y = OPS["where"](mask, ops.mul(X, scale), const(-1.0, 2, 3))
    golden("fold", show(fold(Graph({"x": X}, {"y": y}))))


SPLATS = {
    "add": (OPS["add"](const(1.0, *BIG), const(2.0, *BIG)), const(3.0, *BIG)),
    "cast": (OPS["cast"](const(2.75, *BIG), dtype="i32"), const(2, *BIG, dtype="i32")),
    "less": (OPS["less"](const(1.0, *BIG), const(2.0, *BIG)), const(True, *BIG, dtype="bool")),
    "reshape": (OPS["reshape"](const(1.0, *BIG), shape=(10, 100000)), const(1.0, 10, 100000)),
    "expand": (OPS["expand"](const(-0.0, 1, 1), shape=BIG), const(-0.0, *BIG)),
    "concat": (OPS["concat"](const(1.0, *BIG), const(1.0, *BIG), axis=0), const(1.0, 2000, 1000)),
    "pad": (OPS["pad"](const(0.0, 2), before=(1,), after=(0,), value=0.0), const(0.0, 3)),
    "max": (OPS["max"](const(5.0, *BIG), axes=(0,), keepdims=False), const(5.0, 1000)),
    "small sum": (OPS["sum"](const(0.5, 4), axes=(0,), keepdims=False), const(2.0)),
    "rounded as the dtype rounds": (
        OPS["add"](const(1.0, 2, dtype="f16"), const(1e-4, 2, dtype="f16")),
        const(1.0, 2, dtype="f16"),
    ),
    "not finite": (OPS["div"](const(1.0, 2), const(0.0, 2)), const(float("inf"), 2)),
}


@pytest.mark.parametrize("name", SPLATS)
def test_one_number_stays_one_number_whatever_the_shape(name: str) -> None:
    before, after = SPLATS[name]
    assert folded(before) is after


STAY = {
    "a sum of many": OPS["sum"](const(0.1, *BIG), axes=(0, 1), keepdims=False),
    "pad by another number": OPS["pad"](const(1.0, LIMIT), before=(1,), after=(0,), value=0.0),
    "pad by another zero": OPS["pad"](const(0.0, LIMIT), before=(1,), after=(0,), value=-0.0),
    "concat of two numbers": OPS["concat"](const(1.0, LIMIT), const(2.0, LIMIT), axis=0),
    "what numpy refuses": OPS["pow"](const(2, 2, dtype="i32"), const(-1, 2, dtype="i32")),
    "iota": OPS["add"](OPS["iota"](shape=(4,), axis=0, dtype="f32"), const(1.0, 4)),
    "an input": ops.add(X, const(1.0, 2, 3)),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    assert folded(STAY[name]) is STAY[name]


def test_small_arrays_become_literals() -> None:
    n = folded(OPS["mul"](ops.literal(np.array([1.0, 2.0], "float32")), const(2.0, 2)))
    assert n is ops.literal(np.array([2.0, 4.0], "float32"))
    uniform = OPS["mul"](ops.literal(np.array([1.0, 2.0], "float32")), const(0.0, 2))
    assert folded(uniform) is const(0.0, 2)


def test_bodies_are_folded() -> None:
    c0 = ops.input("c0", X.ty)
    body = Graph({"c0": c0}, {"y": OPS["add"](c0, OPS["add"](const(1.0, 2, 3), const(1.0, 2, 3)))})
    call = OPS["call"](X, body=body)
    after = folded(ops.get_tuple_element(call, index=0) if isinstance(call.type, tuple) else call)
    call = after.src[0] if after.op.name == "get_tuple_element" else after
    assert call.attrs["body"].outputs["y"] is OPS["add"](c0, const(2.0, 2, 3))


MOVEMENT = sorted(name for name, op in OPS.items() if op.kind == "movement")


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement_of_one_number_is_what_the_op_computes(name: str) -> None:
    for arrays, attrs in OPS[name].samples(np.random.default_rng(0)):
        ones = [np.ones_like(a) for a in arrays]
        leaves = [ops.const(a.dtype.type(1).item(), ops.literal(a.reshape(-1)[:1]).dtype, a.shape) for a in ones]
        graph = Graph({}, {"y": OPS[name](*leaves, **attrs)})
        (made,) = interpreter.evaluate([fold(graph).outputs["y"]], {})
        np.testing.assert_array_equal(made, OPS[name].numpy(*ones, **attrs))
