"""distribute: a sum over devices and ranks becomes elementwise work and one collective between ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes.distribute import distribute

X, Y = ops.input("x", TensorType((2, 3))), ops.input("y", TensorType((2, 3)))
INPUTS = {"x": X, "y": Y}


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, distribute)


def test_golden(golden) -> None:
    total = ops.allreduce(ops.tanh(X), Y, ranks=4)
    golden("distribute", show(distribute(Graph(INPUTS, {"a": ops.exp(total)}, {"y": Y - total}))))


def test_twice_is_once() -> None:
    once = distribute(Graph(INPUTS, {"a": ops.allreduce(X, Y, ranks=2, bucket=64)}))
    assert distribute(once) is once


@pytest.mark.parametrize("sources", [(X,), (X, Y)])
def test_sums_within_one_process_stay(sources: tuple[object, ...]) -> None:
    graph = Graph(INPUTS, {"a": ops.allreduce(*sources) + 1.0})
    assert distribute(graph) is graph
