"""sink_reshapes: elementwise work between reshapes is done in the shape before them, whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes import fuse, sink_reshapes

X, W = ops.input("x", TensorType((6, 5))), ops.input("w", TensorType((5, 4)))
BIAS, LONG = ops.input("bias", TensorType((4,))), ops.input("long", TensorType((2, 3, 4)))
FLAT = ops.input("flat", TensorType((24,)))
HALF = ops.input("half", TensorType((6, 4), "bf16"))
INPUTS = {n.attrs["name"]: n for n in (X, W, BIAS, LONG, FLAT, HALF)}
SHAPE = (2, 3, 4)


def layer() -> Node:
    """A product of matrices, as a layer hands it on."""
    return ops.reshape(ops.matmul(X, W), shape=SHAPE)


def after(y: Node) -> Node:
    return sink_reshapes(Graph(INPUTS, {"y": y})).outputs["y"]


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, sink_reshapes)


def test_golden(golden) -> None:
    """gelu between two layers, by tanh: in the shape of the matrices, and a reader in the other shape gets a view."""
    x = layer() + ops.expand(ops.reshape(BIAS, shape=(1, 1, 4)), shape=SHAPE)
    y = x * (ops.tanh(x * 0.8) + 1) * 0.5
    golden(
        "sink_reshapes",
        show(sink_reshapes(Graph(INPUTS, {"y": ops.reshape(y, shape=(6, 4)), "turned": ops.flip(y, (0,))}))),
    )


def test_it_is_part_of_the_product_then() -> None:
    graph = Graph(INPUTS, {"y": ops.reshape(ops.tanh(layer()), shape=(6, 4))})
    for each, patterns in ((graph, ["gemm", "loop"]), (sink_reshapes(graph), ["gemm"])):
        assert [n.attrs["pattern"] for n in fuse(each).nodes() if n.op.name == "fused"] == patterns


MOVED = {
    "a constant": layer() * 2,
    "a bias of the last axis": layer() + ops.expand(ops.reshape(BIAS, shape=(1, 1, 4)), shape=SHAPE),
    "one number for all": layer() * ops.expand(ops.reshape(ops.sum(BIAS, 0), shape=(1, 1, 1)), shape=SHAPE),
    "widened where it is read": layer() + ops.cast(ops.reshape(HALF, shape=SHAPE), "f32"),
}
KEPT = {
    "an operand that has no other shape": layer() + LONG,
    "an operand of a third shape": layer() + ops.reshape(FLAT, shape=SHAPE),
    "part of it read by a reduction": ops.sum(ops.exp(layer()), 2),
    "hanging together with such": ops.tanh(ops.tanh(layer()) + LONG),
    "a broadcast of another axis": layer() + ops.expand(ops.sum(LONG, 2, keepdims=True), shape=SHAPE),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_moved(name: str) -> None:
    found = after(MOVED[name])
    assert found.op.name == "reshape" and found.src[0].op.kind == "elementwise" and found.src[0].shape == (6, 4)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_left(name: str) -> None:
    assert after(KEPT[name]) is KEPT[name]
