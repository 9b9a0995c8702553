"""Graphs within a graph: branches, loops, and regions with other settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import OpContext, Value, cast
from gluongraph.torch.aten.table import TABLE


def cond(at: OpContext, pred: Value, true_graph: Any, false_graph: Any, operands: Sequence[Value] = ()) -> list[Value]:
    """The results of one of two graphs; of a condition that is data both are computed"""
    if not isinstance(pred, Node):
        return at.graph(true_graph if pred else false_graph, operands)
    then, other = at.graph(true_graph, operands), at.graph(false_graph, operands)
    holds = cast(ops.reshape(pred, ()), "bool")
    return [ops.where(holds, cast(a, b.dtype), b) for a, b in zip(then, other, strict=True)]


def scan(
    at: OpContext, combine: Any, init: Sequence[Node], xs: Sequence[Node], additional: Sequence[Value] = ()
) -> list[Node]:
    """A graph applied in each iteration to slices of arrays: the last carries, and the stacked results"""
    count = len(init)

    def step(carries: Sequence[Node], slices: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        made = at.graph(combine, [*carries, *slices, *additional])
        return made[:count], made[count:]

    lasts, stacks = ops.scan(step, init, xs)
    return [*lasts, *stacks]


def without_gradient(at: OpContext, enabled: bool, graph: Any, *args: Value) -> list[Value]:
    """torch.no_grad and torch.enable_grad: the results, without a gradient"""
    made = at.graph(graph, args)
    return made if enabled else [ops.stop_gradient(m) if isinstance(m, Node) else m for m in made]


def under_autocast(
    at: OpContext, device: str, dtype: Any, enabled: bool, cache: bool, graph: Any, *args: Value
) -> list[Value]:
    """torch.autocast: the project's own `precision` decides"""
    return at.graph(graph, args)


def mapped(at: OpContext, graph: Any, xs: Sequence[Node], additional: Sequence[Value] = ()) -> list[Node]:
    """A graph applied to each slice along the first axis: the stacked results"""

    def step(_: Sequence[Node], slices: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        return (), at.graph(graph, [*slices, *additional])

    return list(ops.scan(step, [], xs)[1])


TABLE["higher_order.map_impl"] = mapped
TABLE["higher_order.cond"] = cond
TABLE["higher_order.scan"] = scan
TABLE["higher_order.wrap_with_set_grad_enabled"] = without_gradient
TABLE["higher_order.wrap_with_autocast"] = under_autocast
