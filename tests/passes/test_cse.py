"""cse: a + b and b + a are one node; copies that were made to be recomputed stay apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.ir.printer import show
from gluongraph.passes import cse

X, Y = ops.input("x", TensorType((2, 3))), ops.input("y", TensorType((2, 3)))
INPUTS = {"x": X, "y": Y}


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, cse)


def test_golden(golden) -> None:
    one, other = ops.mul(ops.tanh(X), Y), ops.mul(Y, ops.tanh(X))
    golden("cse", show(cse(Graph(INPUTS, {"a": ops.exp(one), "b": ops.sub(other, one)}))))


@pytest.mark.parametrize("op", sorted(name for name, op in OPS.items() if "commutes" in op.traits))
def test_the_same_operands_the_other_way_round_are_one_node(op: str) -> None:
    x, y = (ops.not_equal(n, ops.const(0.0, dtype="f32", shape=(2, 3))) if "logical" in op else n for n in (X, Y))
    after = cse(Graph(INPUTS, {"a": OPS[op](x, y), "b": OPS[op](y, x)}))
    assert after.outputs["a"] is after.outputs["b"]


@pytest.mark.parametrize("op", ["sub", "div", "pow", "less", "maximum", "minimum"])
def test_other_operands_keep_their_order(op: str) -> None:
    graph = Graph(INPUTS, {"a": OPS[op](X, Y), "b": OPS[op](Y, X)})
    assert cse(graph) is graph


def test_what_follows_merges_too() -> None:
    after = cse(Graph(INPUTS, {"a": ops.exp(ops.add(X, Y)), "b": ops.exp(ops.add(Y, X))}))
    assert after.outputs["a"] is after.outputs["b"]


def test_a_recomputed_copy_is_not_merged_back() -> None:
    original = ops.add(X, Y)
    copy = node(original.op, (Y, X), {}, copy_id=1)
    after = cse(Graph(INPUTS, {"a": original, "b": copy}))
    assert after.outputs["a"] is not after.outputs["b"]


def test_it_comes_to_rest() -> None:
    """Turning c * m would move c in front of z, and then c * z would have to be turned as well."""
    z, c = X, Y
    m = ops.mul(z, c)
    graph = Graph(INPUTS, {"n": ops.mul(m, c), "t": ops.exp(ops.mul(c, m))})
    after = cse(graph)
    assert after.outputs["t"] is ops.exp(after.outputs["n"])
    assert cse(after) is after
