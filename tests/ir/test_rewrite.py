"""The rewrite engine: matching, fixed points, recomputed copies, bodies, origins, and tables that never end."""

from __future__ import annotations

import pytest

from gluongraph import ops
from gluongraph.errors import Origin, VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, TensorType, node
from gluongraph.ir.rewrite import Rule, hole, is_value, p, rewrite, value

x, y, c = hole("x"), hole("y"), hole("c")
A, B = ops.input("a", TensorType((2,))), ops.input("b", TensorType((2,)))
HALF = ops.const(0.5, dtype="f32", shape=(2,))
DOUBLE_NEG: Rule = (p.neg(p.neg(x)), lambda n, x: x)


def graph(n: Node) -> Graph:
    return Graph({"a": A, "b": B}, {"n": n})


def rewritten(n: Node, *rules: Rule) -> Node:
    return rewrite(graph(n), rules).outputs["n"]


def test_a_rule_applies_until_none_does() -> None:
    n = A
    for _ in range(7):
        n = ops.neg(n)
    assert rewritten(n, DOUBLE_NEG) is ops.neg(A)


def test_what_a_rule_makes_is_looked_at_again() -> None:
    rules: list[Rule] = [(p.sin(x), lambda n, x: ops.neg(ops.neg(ops.cos(x)))), DOUBLE_NEG]
    assert rewritten(ops.sin(A), *rules) is ops.cos(A)


def test_nothing_to_do_gives_the_same_object() -> None:
    same = graph(ops.add(A, B))
    assert rewrite(same, [DOUBLE_NEG]) is same


def test_a_hole_used_twice_is_one_node() -> None:
    rule: Rule = (p.maximum(x, x), lambda n, x: x)
    assert rewritten(ops.maximum(A, A), rule) is A
    assert rewritten(ops.maximum(A, B), rule) is ops.maximum(A, B)


def test_operands_of_commutative_ops_match_either_way() -> None:
    rule: Rule = (
        x * p.const(value=0.5).named("c"),
        lambda n, x, c: ops.div(x, ops.const(2.0, dtype="f32", shape=(2,))),
    )
    wanted = ops.div(A, ops.const(2.0, dtype="f32", shape=(2,)))
    assert rewritten(ops.mul(A, HALF), rule) is wanted
    assert rewritten(ops.mul(HALF, A), rule) is wanted
    minus: Rule = (x - p.const().named("c"), lambda n, x, c: x)
    assert rewritten(ops.sub(HALF, A), minus) is ops.sub(HALF, A)


def test_every_way_to_match_is_tried() -> None:
    """The first binding is refused by the rule, the second is taken."""
    rule: Rule = (x + y, lambda n, x, y: ops.sub(y, x) if x is B else None)
    assert rewritten(ops.add(A, B), rule) is ops.sub(A, B)


def test_attributes_are_part_of_a_pattern() -> None:
    rule: Rule = (p.cast(x, dtype="f16"), lambda n, x: ops.cast(ops.neg(x), dtype="f16"))
    assert rewritten(ops.cast(A, dtype="i32"), rule) is ops.cast(A, dtype="i32")


def test_a_rule_may_decline() -> None:
    assert rewritten(ops.neg(A), (p.neg(x), lambda n, x: None)) is ops.neg(A)


def test_what_is_made_from_a_recomputed_copy_is_recomputed() -> None:
    """Otherwise x * x of the copy would be the x * x of the original, and the copy would be gone."""
    original = ops.mul(A, A)
    copy = node(OPS["pow"], (A, ops.const(2.0, dtype="f32", shape=(2,))), {}, copy_id=1)
    rule: Rule = (x**c, lambda n, x, c: ops.mul(x, x))
    after = rewrite(Graph({"a": A}, {"o": original, "c": copy}), [rule])
    assert after.outputs["o"] is original
    assert after.outputs["c"].copy_id == 1 and after.outputs["c"] is not original
    assert after.outputs["c"].src == (A, A)


def test_restamping_stops_at_what_was_matched() -> None:
    kept = ops.exp(ops.add(A, B))
    copy = node(OPS["neg"], (node(OPS["neg"], (kept,), {}, copy_id=1),), {}, copy_id=1)
    assert rewritten(ops.neg(copy), DOUBLE_NEG).src == (kept,)
    rule: Rule = (p.neg(p.neg(x)), lambda n, x: ops.sin(n.src[0].src[0].src[0]))
    assert rewritten(copy, rule).src[0] is ops.add(A, B)  # not bound to a hole, but there before


def test_bodies_are_rewritten() -> None:
    c0 = ops.input("c0", A.ty)
    call = OPS["call"](A, body=Graph({"c0": c0}, {"y": ops.neg(ops.neg(ops.tanh(c0)))}))
    n = ops.get_tuple_element(call, index=0) if isinstance(call.type, tuple) else call
    after = rewritten(n, DOUBLE_NEG)
    call = after.src[0] if after.op.name == "get_tuple_element" else after
    assert call.attrs["body"].outputs["y"] is ops.tanh(c0)


def test_new_nodes_have_the_origin_of_the_old() -> None:
    origin = Origin("user.py", 3)
    n = ops.sin(A)
    before = Graph({"a": A}, {"n": n}, origins={n: origin})
    after = rewrite(before, [(p.sin(x), lambda n, x: ops.exp(ops.cos(x)))])
    assert after.origins == {ops.cos(A): origin, ops.exp(ops.cos(A)): origin}


def test_tables_that_do_not_end_are_found() -> None:
    there: Rule = (p.sin(x), lambda n, x: ops.cos(x))
    back: Rule = (p.cos(x), lambda n, x: ops.sin(x))
    with pytest.raises(VerifyError, match="undo each other"):
        rewritten(ops.sin(A), there, back)
    with pytest.raises(VerifyError, match="without end"):
        rewritten(ops.sin(A), (p.sin(x), lambda n, x: ops.sin(ops.cos(x))))


def test_a_rule_that_changes_a_type_is_found() -> None:
    with pytest.raises(VerifyError, match="changed a type"):
        rewritten(ops.neg(A), (p.neg(x), lambda n, x: ops.cast(x, dtype="f16")))


def test_long_chains_need_no_recursion() -> None:
    n = A
    for _ in range(6000):
        n = ops.neg(n)
    assert rewritten(n, DOUBLE_NEG) is A


def test_values_of_constants() -> None:
    assert value(ops.expand(ops.const(2.0, dtype="f32", shape=(1,)), shape=(3,))) == 2.0
    assert value(A) is None
    zero = ops.const(0.0, dtype="f32", shape=())
    assert is_value(zero, 0) and not is_value(zero, -0.0)
    assert is_value(ops.const(1, dtype="i32", shape=()), 1)
