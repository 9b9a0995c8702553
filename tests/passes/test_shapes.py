"""shapes: movement that moves nothing goes; a node that its own rule would type otherwise is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.errors import Origin, VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes import shapes

X = ops.input("x", TensorType((2, 1, 3)))
NOTHING: dict[str, Node] = {
    "reshape": OPS["reshape"](X, shape=(2, 1, 3)),
    "expand": OPS["expand"](X, shape=(2, 1, 3)),
    "transpose": OPS["transpose"](X, axes=(0, 1, 2)),
    "slice": OPS["slice"](X, begin=(0, 0, 0), end=(2, 1, 3), strides=(1, 1, 1)),
    "flip": OPS["flip"](X, axes=(1,)),
    "pad": OPS["pad"](X, before=(0, 0, 0), after=(0, 0, 0), value=1.0),
    "concat": OPS["concat"](X, axis=1),
}
SOMETHING: dict[str, Node] = {
    "reshape": ops.reshape(X, shape=(1, 2, 3)),
    "transpose": OPS["transpose"](X, axes=(0, 2, 1)),
    "flip": OPS["flip"](X, axes=(0,)),
    "same type, other order": OPS["transpose"](ops.input("s", TensorType((3, 3))), axes=(1, 0)),
}


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, shapes)


def test_golden(golden) -> None:
    y = ops.tanh(OPS["reshape"](OPS["transpose"](X, axes=(0, 1, 2)), shape=(2, 1, 3)))
    golden("shapes", show(shapes(Graph({"x": X}, {"y": y}))))


@pytest.mark.parametrize("name", NOTHING)
def test_what_moves_nothing_goes(name: str) -> None:
    assert shapes(Graph({"x": X}, {"y": ops.tanh(NOTHING[name])})).outputs["y"] is ops.tanh(X)


@pytest.mark.parametrize("name", SOMETHING)
def test_what_moves_something_stays(name: str) -> None:
    graph = Graph({"x": X, "s": ops.input("s", TensorType((3, 3)))}, {"y": SOMETHING[name]})
    assert shapes(graph) is graph


def test_a_node_of_another_type_than_its_rule_gives_is_refused() -> None:
    bad = Node(OPS["tanh"], (X,), {}, 0, TensorType((5,)))
    with pytest.raises(VerifyError, match=r"tanh.*should have type f32\[2,1,3\] \(fc1 mnist.py:4\)"):
        shapes(Graph({"x": X}, {"y": bad}, origins={bad: Origin("mnist.py", 4, "fc1")}))
