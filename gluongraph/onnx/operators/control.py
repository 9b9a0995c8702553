"""Branches and loops. How often a loop runs must be known when the graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.format.model import GraphDef
from gluongraph.onnx.operators.node_context import CONSTANTS, NodeContext, Value
from gluongraph.onnx.operators.table import operator

UNROLLED = 4096  # turns of a loop


@operator("If", static=("condition",))
def branch(at: NodeContext, condition: Node, *, then_branch: GraphDef, else_branch: GraphDef) -> list[Value]:
    """One of two graphs; both, and a choice between their results, where the condition depends on the input"""
    if condition.op.name in CONSTANTS:
        return at.graph(then_branch if at.number(condition, "condition") else else_branch)
    made = []
    for yes, no in zip(at.graph(then_branch), at.graph(else_branch), strict=True):
        if not isinstance(yes, Node) or not isinstance(no, Node) or yes.type != no.type:
            raise at.unsupported("a condition that depends on the input chooses between arrays of different types")
        made.append(ops.where(ops.reshape(condition, ()), yes, no))
    return made


@operator("Loop", static=("trips",))
def loop(
    at: NodeContext, trips: Node | None = None, condition: Node | None = None, *carried: Value, body: GraphDef
) -> list[Value]:
    """A graph applied in each iteration, unrolled; outputs that are not carried are stacked"""
    if len(body.inputs) != 2 + len(carried) or len(body.outputs) < 1 + len(carried):
        raise at.wrong(f"a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs carries {len(carried)}")
    count = None if trips is None else max(int(at.number(trips, "M")), 0)
    going = True if condition is None else bool(at.number(condition, "cond"))
    if going and _goes_on(body) and (count is None or count > UNROLLED):
        raise at.unsupported(f"more than {UNROLLED} turns")
    stacks: list[list[Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    state, turn = list(carried), 0
    while going and (count is None or turn < count):
        if turn >= UNROLLED:
            raise at.unsupported(f"more than {UNROLLED} turns")
        number = ops.const(turn, "i64")
        goes_on, *made = at.graph(body, (number, ops.const(True, "bool"), *state))
        state, ys = made[: len(carried)], made[len(carried) :]
        for stack, y in zip(stacks, ys, strict=True):
            stack.append(y)
        going = bool(at.number(goes_on, "the condition of the next turn"))
        turn += 1
    if not turn and stacks:
        raise at.unsupported("no turn at all, so that nothing is known of what is stacked")
    return [*state, *(ops.stack(*stack) for stack in stacks)]


def _goes_on(body: GraphDef) -> bool:
    """Does the condition of the next turn never change? Then it is what the turn was given, or part of the file."""
    makers = {name: node for node in body.nodes for name in node.outputs}
    name = body.outputs[0].name
    while name in makers and makers[name].op == "Identity":
        name = makers[name].inputs[0]
    return name in body.constants or name == body.inputs[1].name or (name in makers and makers[name].op == "Constant")


@operator("Scan", since=9)
def scan(
    at: NodeContext,
    *inputs: Node,
    body: GraphDef,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> list[Value]:
    """A graph applied to slices of arrays, one after the other, with values carried along"""
    count = len(inputs) - num_scan_inputs
    carried, xs = inputs[:count], list(inputs[count:])
    ys = len(body.outputs) - count
    axes = [*scan_input_axes, *(0,) * (num_scan_inputs - len(scan_input_axes))]
    backwards = [*scan_input_directions, *(0,) * (num_scan_inputs - len(scan_input_directions))]
    for k, (axis, back) in enumerate(zip(axes, backwards, strict=True)):
        xs[k] = ops.moveaxis(xs[k], at.axis(axis, xs[k].ty.rank), 0)
        xs[k] = ops.flip(xs[k], 0) if back else xs[k]

    def step(carries: Any, slices: Any) -> tuple[list[Node], list[Node]]:
        made = at.graph(body, (*carries, *slices))
        return made[:count], made[count:]

    after, stacks = ops.scan(step, carried, xs)
    places = [*scan_output_axes, *(0,) * (ys - len(scan_output_axes))]
    turned = [*scan_output_directions, *(0,) * (ys - len(scan_output_directions))]
    made = []
    for y, axis, back in zip(stacks, places, turned, strict=True):
        y = ops.flip(y, 0) if back else y
        made.append(ops.moveaxis(y, 0, at.axis(axis, y.ty.rank)))
    return [*after, *made]
