"""One broken graph, and one broken plan, per rule; whole ones pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gluongraph import ops
from gluongraph.errors import Origin, VerifyError
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType
from gluongraph.ir.plan import Buffer, Candidate, Group, Launch, Plan
from gluongraph.ir.verify import verify, verify_plan

T = TensorType((4,))
X, Y = ops.input("x", T), ops.input("y", T)
SUM = ops.add(X, Y)


def whole() -> Graph:
    return Graph({"x": X, "y": Y}, {"s": SUM}, {"x": ops.sub(X, SUM)})


def _foreign_op() -> Graph:
    op = Op("only_here", "elementwise", infer=lambda a: a)
    n = op(X)
    OPS.pop("only_here")
    return Graph({"x": X}, {"n": n})


def _several() -> Node:
    return OPS["call"](X, body=Graph({"c0": X}, {"a": ops.tanh(X), "b": ops.exp(X)}))


def _in_a_body() -> Graph:
    c0 = ops.input("c0", T)
    call = OPS["call"](X, body=Graph({"c0": c0}, {"a": ops.add(c0, Y)}))
    return Graph({"x": X}, {"y": ops.get_tuple_element(call, index=0)})


BROKEN: dict[str, tuple[Callable[[], Graph], str]] = {
    "an input that is computed": (lambda: Graph({"s": SUM, "x": X, "y": Y}, {"s": SUM}), "not an input leaf"),
    "an input under another name": (lambda: Graph({"z": X}, {"z": X}), "the leaf of another name, 'x'"),
    "one leaf twice": (lambda: Graph({"x": X, "z": X}, {"x": X}), "z"),
    "an unlisted leaf": (lambda: Graph({"x": X}, {"s": SUM}), "the leaf 'y' of type f32[4] is read"),
    "a result that is no node": (lambda: Graph({"x": X}, {"s": 3}), "not a node"),
    "a result of several": (lambda: Graph({"x": X}, {"s": _several()}), "pick one with get_tuple_element"),
    "an update of nothing": (lambda: Graph({"x": X}, {}, {"z": X}), "'z' writes over no input"),
    "an update of another type": (lambda: Graph({"x": X}, {}, {"x": ops.sum(X, axis=None)}), "its input is f32[4]"),
    "an unknown op": (_foreign_op, "there is no op 'only_here'"),
    "a wrong type": (lambda: Graph({"x": X}, {"t": Node(OPS["tanh"], (X,), {}, 0, TensorType((5,)))}), "gives f32[4]"),
    "a refused node": (
        lambda: Graph({"x": X}, {"t": Node(OPS["add"], (X, ops.sum(X, axis=None)), {}, 0, T)}),
        "its own rule refuses it",
    ),
    "a type that is none": (
        lambda: Graph({"x": Node(OPS["input"], (), {"name": "x"}, 0, TensorType((-1,)))}, {}, {}),
        "is no type",
    ),
    "a node not interned": (lambda: Graph({"x": X}, {"t": Node(OPS["tanh"], (X,), {}, 0, T)}), "not made by node()"),
    "a broken body": (_in_a_body, "in the body of"),
}


def test_whole_graphs_pass() -> None:
    verify(whole())
    verify(Graph({"x": X, "y": Y}, {"new": Y}, {"x": Y, "y": X}))  # a swap: both are read before either is written


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs_are_named(name: str) -> None:
    make, message = BROKEN[name]
    kept = ops.tanh(X)  # so that an equal node is there
    with pytest.raises(VerifyError) as caught:
        verify(make(), "fold")
    assert message in str(caught.value) and "after fold" in str(caught.value)
    assert kept is ops.tanh(X)


def test_the_message_says_where_the_node_came_from() -> None:
    bad = Node(OPS["tanh"], (X,), {}, 0, TensorType((5,)))
    with pytest.raises(VerifyError, match=r"fc1 mnist.py:14"):
        verify(Graph({"x": X}, {"t": bad}, origins={bad: Origin("/a/mnist.py", 14, "fc1")}))


def test_composites_are_gone_after_inline() -> None:
    graph = Graph({"x": X}, {"y": OPS["softmax"](X, axis=0)})
    verify(graph, "simplify")
    verify(graph, "inline", keep=lambda n: n.op.name == "softmax")
    with pytest.raises(VerifyError, match=r"softmax.* is a composite"):
        verify(graph, "inline")


# Plans. The example: t = tanh(x), u = exp(t), w = w - u in place, out = u + t.


def _kernel(op: str, count: int, inplace: tuple[tuple[int, int], ...] = ()) -> Group:
    inputs = [ops.input(f"x{i}", T) for i in range(count)]
    return Group(Graph({f"x{i}": n for i, n in enumerate(inputs)}, {"y0": OPS[op](*inputs)}), "loop", inplace)


X_IN, W, OUT = Buffer("x", T, "input"), Buffer("w", T, "state"), Buffer("out", T, "output")
V0, V1 = Buffer("v0", T, "scratch", 0), Buffer("v1", T, "scratch", 64)
LR = Buffer("lr", T, "scalar", 0)
C0 = Buffer("c0", T, "const")


def _launch(kernel: Group, reads: tuple[Buffer, ...], *writes: Buffer, work: Buffer | None = None) -> Launch:
    names = " ".join(n.op.name for n in kernel.body.nodes() if n.src)
    return Launch(f"k_{names}", kernel, Candidate("loop"), reads, writes, work, None, names)


LAUNCHES = (
    _launch(_kernel("tanh", 1), (X_IN,), V0),
    _launch(_kernel("exp", 1), (V0,), V1),
    _launch(_kernel("sub", 2, ((0, 0),)), (W, V1), W),
    _launch(_kernel("add", 2), (V1, V0), OUT),
)
PLAN = Plan(LAUNCHES, {"x": X_IN, "w": W}, {"out": OUT}, {"w": W}, scratch_bytes=128)


def _fused(group: Group, *src: Node) -> Node:
    body = group.body
    return ops.get_tuple_element(OPS["fused"](*src, body=body, pattern=group.pattern), index=0)


def fused_graph() -> Graph:
    x, w = ops.input("x", T), ops.input("w", T)
    t = _fused(LAUNCHES[0].group, x)
    u = _fused(LAUNCHES[1].group, t)
    out = _fused(LAUNCHES[3].group, u, t)
    return Graph({"x": x, "w": w}, {"out": out}, {"w": _fused(LAUNCHES[2].group, w, u)})


def at(index: int, **changes: object) -> Plan:
    """The plan with one launch changed."""
    launches = list(LAUNCHES)
    launches[index] = replace(launches[index], **changes)
    return replace(PLAN, launches=tuple(launches))


def moved(buffer: Buffer, to: Buffer, plan: Plan = PLAN) -> Plan:
    """The plan with one buffer put elsewhere, wherever it is named."""

    def put(b: Buffer) -> Buffer:
        return to if b.name == buffer.name else b

    launches = tuple(
        replace(v, reads=tuple(map(put, v.reads)), writes=tuple(map(put, v.writes))) for v in plan.launches
    )
    parts = {k: {name: put(b) for name, b in getattr(plan, k).items()} for k in ("inputs", "outputs", "updates")}
    return replace(plan, launches=launches, **parts)


COPY = _launch(_kernel("tanh", 1), (W,), OUT)
BROKEN_PLANS: dict[str, tuple[Plan, str]] = {
    "too few buffers": (at(3, reads=(V1,)), "launch 3 (k_add add) reads 1 buffers, its kernel has 2"),
    "a buffer of another type": (moved(V1, replace(V1, type=TensorType((2, 2)))), "its kernel expects f32[4]"),
    "an unknown space": (moved(V0, replace(V0, space="cellar")), "lies in no known space"),
    "one name, two places": (at(3, reads=(V1, replace(V0, offset=64))), "is elsewhere"),
    "no offset": (moved(V0, replace(V0, offset=None)), "has no offset"),
    "a crooked offset": (moved(V1, replace(V1, offset=72)), "is not aligned to 64 bytes"),
    "outside the arena": (moved(V1, replace(V1, offset=128)), "does not fit into the 128 bytes of scratch"),
    "read before written": (replace(PLAN, launches=LAUNCHES[::-1]), "which nothing has written"),
    "a constant that is not there": (at(0, reads=(C0,)), "of which the plan has 0 bytes"),
    "an input overwritten": (at(1, writes=(X_IN,)), "which is not its to write"),
    "two writes into one": (
        at(0, group=Group(Graph({"x0": X}, {"y0": ops.tanh(X), "y1": ops.exp(X)}), "loop"), writes=(V0, V0)),
        "writes one buffer twice",
    ),
    "alive together on one place": (moved(V1, replace(V1, offset=0)), "which is in use until launch 3"),
    "a workspace on a value": (
        at(2, workspace=Buffer("work", TensorType((64,), "u8"), "scratch", 64)),
        "launch 2 puts work: u8[64] scratch@0x40 on v1",
    ),
    "in place without saying so": (at(2, group=_kernel("sub", 2)), "does not say that it works in place"),
    "in place on two places": (at(3, group=_kernel("add", 2, ((0, 0),))), "which are two places"),
    "in place on nothing": (at(3, group=_kernel("add", 2, ((0, 5),))), "names no buffers"),
    "an output in scratch": (replace(PLAN, outputs={"out": V1}), "output 'out' lies in scratch"),
    "an output never written": (replace(PLAN, outputs={"out": replace(OUT, name="o")}), "is never written"),
    "an update never written": (replace(PLAN, launches=(*LAUNCHES[:2], LAUNCHES[3])), "update 'w' is never written"),
    "an update elsewhere": (replace(PLAN, updates={"w": X_IN}), "not the buffer of that input"),
    "read after it was overwritten": (
        replace(PLAN, launches=(*LAUNCHES[:3], COPY)),
        "launch 3 (k_tanh tanh) reads w: f32[4] state, which launch 2 (k_sub sub) has overwritten",
    ),
}


def test_the_whole_plan_passes() -> None:
    verify_plan(PLAN)
    verify_plan(PLAN, fused_graph())


@pytest.mark.parametrize("name", BROKEN_PLANS)
def test_broken_plans_are_named(name: str) -> None:
    plan, message = BROKEN_PLANS[name]
    with pytest.raises(VerifyError) as caught:
        verify_plan(plan)
    assert message in str(caught.value)


def test_a_place_may_be_handed_on_in_place_and_after_the_last_reader() -> None:
    chain = (
        _launch(_kernel("tanh", 1), (X_IN,), V0),
        _launch(_kernel("exp", 1, ((0, 0),)), (V0,), replace(V1, offset=0)),
        _launch(_kernel("tanh", 1), (replace(V1, offset=0),), OUT),
    )
    plan = Plan(chain, {"x": X_IN}, {"out": OUT}, scratch_bytes=64)
    verify_plan(plan)
    silent = replace(chain[1], group=_kernel("exp", 1))
    with pytest.raises(VerifyError, match="launch 1 puts v1"):
        verify_plan(replace(plan, launches=(chain[0], silent, chain[2])))


def test_scalars_have_their_own_bytes() -> None:
    plan = replace(at(3, reads=(V1, LR)), inputs={"x": X_IN, "w": W, "lr": LR})
    verify_plan(replace(plan, scalar_bytes=16))
    with pytest.raises(VerifyError, match="the 8 bytes of scalar"):
        verify_plan(replace(plan, scalar_bytes=8))


REPLAYED: dict[str, tuple[Plan, str]] = {
    "operands swapped": (at(3, reads=(V0, V1)), "what the graph never computes"),
    "an old value read too late": (
        replace(PLAN, launches=(*LAUNCHES, COPY), outputs={"out": OUT}),
        "launch 4 (k_tanh tanh) writes into out",
    ),
    "an update by another value": (at(2, reads=(W, V0)), "launch 2"),
    "other outputs": (replace(PLAN, outputs={}), "outputs are []"),
}


# A collective: its results v0 and v1 lie one after another; each of 3 ranks has a part of 64 bytes, the last one none.

SHARD, BEHIND = Buffer("shard", TensorType((16,)), "state"), Buffer("v2", T, "scratch", 192)
LAST = Buffer("v3", T, "scratch", 256)
PARTS = Group(
    Graph(
        {"x0": (part := ops.input("x0", SHARD.type))},
        dict(zip(("y0", "y1"), ops.all_gather(part, ranks=3, shapes=((4,), (4,))), strict=True)),
    ),
    "collective",
)
GATHERED = Plan(
    (
        _launch(_kernel("exp", 1), (X_IN,), BEHIND),
        _launch(PARTS, (SHARD,), V0, V1),
        _launch(_kernel("add", 2), (V0, V1), LAST),
        _launch(_kernel("add", 2), (LAST, BEHIND), OUT),
    ),
    {"x": X_IN, "shard": SHARD},
    {"out": OUT},
    scratch_bytes=320,
)


def elsewhere(offsets: Mapping[str, int]) -> Plan:
    """The plan with buffers at other offsets."""
    plan = GATHERED
    for buffer in (V0, V1, BEHIND, LAST):
        plan = moved(buffer, replace(buffer, offset=offsets.get(buffer.name, buffer.offset)), plan)
    return plan


BROKEN_FLAT: dict[str, tuple[Plan, str]] = {
    "a gap": (elsewhere({"v1": 128}), "v1: f32[4] scratch@0x80 does not lie at 0x40"),
    "the wrong order": (
        elsewhere({"v0": 64, "v1": 0}),
        "v1: f32[4] scratch@0x0 does not lie at 0x80",
    ),
    "several spaces": (moved(V1, replace(OUT, name="v1"), GATHERED), "its arguments lie in scratch, output"),
    "a value in a rank's part": (
        elsewhere({"v2": 128}),
        "v2: f32[4] scratch@0x80 lies in it",
    ),
    "a part behind the end": (
        elsewhere({"v0": 192, "v1": 256, "v2": 0, "v3": 64}),
        "up to 0x180, behind the 320 bytes of scratch",
    ),
}


def test_flat_memory() -> None:
    verify_plan(GATHERED)


@pytest.mark.parametrize("name", BROKEN_FLAT)
def test_broken_flat_memory_is_named(name: str) -> None:
    plan, message = BROKEN_FLAT[name]
    with pytest.raises(VerifyError, match=r"launch \d") as caught:
        verify_plan(plan)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_plan_that_computes_something_else_is_found_by_replaying(name: str) -> None:
    plan, message = REPLAYED[name]
    with pytest.raises(VerifyError) as caught:
        verify_plan(plan, fused_graph())
    assert message in str(caught.value)


def test_reading_the_new_value_is_right_if_the_graph_means_it() -> None:
    """Without the graph a reader behind the update looks like a hazard; with it, it is known to be none."""
    x, w = ops.input("x", T), ops.input("w", T)
    new = _fused(_kernel("sub", 2), w, x)
    after = _fused(_kernel("tanh", 1), new)
    launches = (_launch(_kernel("sub", 2, ((0, 0),)), (W, X_IN), W), _launch(_kernel("tanh", 1), (W,), OUT))
    plan = Plan(launches, {"x": X_IN, "w": W}, {"out": OUT}, {"w": W})
    verify_plan(plan, Graph({"x": x, "w": w}, {"out": after}, {"w": new}))
    with pytest.raises(VerifyError, match=r"holds|computes"):
        verify_plan(plan, Graph({"x": x, "w": w}, {"out": _fused(_kernel("tanh", 1), w)}, {"w": new}))
