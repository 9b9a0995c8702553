"""The IR itself: interning, graphs, map."""

from __future__ import annotations

import math

import pytest

from gluongraph import ops
from gluongraph.errors import Origin, VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType, attr_key, node, recording_origins, topological

X = ops.input("x", TensorType((2, 3)))
Y = ops.input("y", TensorType((2, 3)))


def test_equal_nodes_are_one_object() -> None:
    assert ops.add(X, Y) is ops.add(X, Y)
    assert ops.add(X, Y) is not ops.add(Y, X)
    assert ops.input("x", TensorType((2, 3))) is X
    assert ops.input("x", TensorType((3, 2))) is not X


def test_numbers_are_told_apart_by_bits() -> None:
    """Python says 0.0 == -0.0, 1 == 1.0 == True and nan != nan."""
    keys = [attr_key(v) for v in (0.0, -0.0, 1, 1.0, True, math.nan, (1,), (1.0,))]
    assert len(set(keys)) == len(keys)
    assert attr_key(math.nan) == attr_key(math.nan)
    consts = [ops.const(v, dtype="f32", shape=()) for v in (0.0, -0.0)]
    assert consts[0] is not consts[1]
    assert ops.const(math.nan, dtype="f32", shape=()) is ops.const(math.nan, dtype="f32", shape=())


def test_a_recomputed_copy_stays_apart() -> None:
    n = ops.tanh(X)
    again = node(n.op, n.src, n.attrs, 1)
    assert again is not n
    assert again.on((Y,)).copy_id == 1


def test_nodes_that_nobody_holds_are_forgotten() -> None:
    from gluongraph.ir import graph

    before = len(graph._NODES)
    kept = ops.tanh(ops.mul(ops.add(X, Y), ops.sub(X, Y)))
    grown = len(graph._NODES)
    assert grown > before
    del kept
    assert len(graph._NODES) < grown


def test_an_op_is_declared_once() -> None:
    with pytest.raises(VerifyError, match="'add' is declared twice"):
        Op("add", "elementwise", infer=lambda a, b: a)
    with pytest.raises(VerifyError, match="unknown kind 'magic'"):
        Op("never", "magic", infer=lambda a: a)
    assert "never" not in OPS


def test_graphs_compare_by_names_and_nodes() -> None:
    one = Graph({"x": X}, {"y": ops.tanh(X)}, origins={X: Origin("a.py", 1)})
    assert one == Graph({"x": X}, {"y": ops.tanh(X)})
    assert hash(one) == hash(Graph({"x": X}, {"y": ops.tanh(X)}))
    assert one != Graph({"x": X}, {"z": ops.tanh(X)})


def test_topological_order_puts_sources_first_and_is_deep() -> None:
    n = X
    for _ in range(5000):  # deeper than Python's recursion limit
        n = ops.tanh(n)
    order = topological([n])
    place = {m: i for i, m in enumerate(order)}
    assert len(order) == 5001
    assert all(place[s] < place[m] for m in order for s in m.src)


def test_users_and_results() -> None:
    a, b = ops.tanh(X), ops.neg(ops.tanh(X))
    graph = Graph({"x": X}, {"a": a, "b": b}, {"x": b})
    assert graph.users() == {X: [a], a: [b], b: []}
    assert graph.results == (a, b, b)


def test_map_gives_the_same_object_when_nothing_changes() -> None:
    graph = Graph({"x": X}, {"y": ops.tanh(X)})
    assert graph.map(lambda n: n) is graph


def test_map_sees_rebuilt_sources_and_keeps_origins() -> None:
    origin = Origin("user.py", 7, "fc1")
    y = ops.exp(ops.tanh(X))
    graph = Graph({"x": X}, {"y": y}, origins={y: origin})

    def swap(n: Node) -> Node:
        return OPS["sin"](*n.src) if n.op.name == "tanh" else n

    mapped = graph.map(swap)
    assert mapped.outputs["y"] is ops.exp(ops.sin(X))
    assert mapped.origins[mapped.outputs["y"]] == origin


def test_origins_are_recorded_at_the_first_mention() -> None:
    lines = iter(range(100))
    with recording_origins(lambda: Origin("user.py", next(lines))) as origins:
        first = ops.tanh(X)
        place = origins[first]
        ops.exp(first)
        ops.tanh(X)
    assert origins[first] == place


def test_one_result_of_several_must_be_picked() -> None:
    body = Graph({"c0": X}, {"a": ops.tanh(X), "b": ops.exp(X)})
    several = OPS["call"](X, body=body)
    assert len(several.types) == 2
    with pytest.raises(VerifyError, match="pick one with get_tuple_element"):
        _ = several.ty
