"""ai.onnx.preview.training: gradients and updates as operators of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import training
from gluongraph.ops.autodiff import gradients, ones
from gluongraph.optimizer.adam import Adam, averaging
from gluongraph.optimizer.operators import by_rule

Nodes = Sequence[Node]


@training("Gradient")
def gradient(at: NodeContext, *inputs: Node, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> list[Value]:
    """dy/dx for each of xs, at the values that are the inputs"""
    names = (*xs, *zs)
    if len(inputs) != len(names) or any(name not in at.values for name in (*names, y)):
        raise at.wrong(f"xs={list(xs)}, zs={list(zs)}, y={y!r} with {len(inputs)} inputs")
    result, at_names = at.values[y], [at.values[name] for name in names]
    if any(a is not b for a, b in zip(at_names, inputs, strict=True)):
        raise at.unsupported(f"values of {', '.join(names)} other than those that y was computed from")
    found = gradients([result], [ones(result.ty)], at_names[: len(xs)])
    return [ops.zeros(x.ty) if g is None else g for g, x in zip(found, at_names, strict=False)]


def _groups(at: NodeContext, arrays: Nodes, count: int) -> list[Nodes]:
    """The arrays of each kind: all weights, then all gradients, then all states."""
    each, rest = divmod(len(arrays), count)
    if rest or not each:
        raise at.wrong(f"{len(arrays)} arrays; {count} for each weight")
    return [arrays[k * each : (k + 1) * each] for k in range(count)]


def _updated(at: NodeContext, arrays: Nodes, count: int, rule: Callable[..., tuple[Node, ...]]) -> list[Value]:
    """The rule for each weight; results grouped as the arrays were, without the gradients."""
    rows = [rule(*row) for row in zip(*_groups(at, arrays, count), strict=True)]
    return [value for kind in zip(*rows, strict=True) for value in kind]


def _plus_decay(x: Node, g: Node, decay: float) -> Node:
    return ops.add(ops.mul(x, decay), g) if decay else g


@training("Adagrad")
def adagrad(
    at: NodeContext,
    rate: Node,
    count: Node,
    *arrays: Node,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> list[Value]:
    """h = h + g²; x = x - rate / (1 + count decay_factor) g / (sqrt(h) + epsilon)"""

    def rule(x: Node, g: Node, h: Node) -> tuple[Node, Node]:
        r = ops.div(ops.cast(rate, x.dtype), ops.add(ops.mul(ops.cast(count, x.dtype), decay_factor), 1.0))
        g = _plus_decay(x, g, norm_coefficient)
        h = ops.add(h, ops.mul(g, g))
        return ops.sub(x, ops.div(ops.mul(r, g), ops.add(ops.sqrt(h), epsilon))), h

    return _updated(at, arrays, 3, rule)


@training("Adam")
def adam(
    at: NodeContext,
    rate: Node,
    count: Node,
    *arrays: Node,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Value]:
    """v and h are running means of g and g²; x = x - rate · correction · v / (sqrt(h) + epsilon)"""
    numbers = {"wd": norm_coefficient, "rescale": 1.0, "epsilon": epsilon, **averaging(alpha, beta)}

    def rule(x: Node, g: Node, v: Node, h: Node) -> tuple[Node, Node, Node]:
        t = ops.cast(count, x.dtype)
        past = ops.maximum(t, 1.0)
        correction = ops.div(ops.sqrt(ops.sub(1.0, ops.pow(beta, past))), ops.sub(1.0, ops.pow(alpha, past)))
        r = ops.mul(ops.cast(rate, x.dtype), ops.where(ops.greater(t, 0.0), correction, 1.0))
        new, v, h = by_rule(Adam(), x, g, {"mean": v, "var": h}, lr=r, **numbers)
        return ops.mul(new, 1.0 - norm_coefficient_post), v, h

    return _updated(at, arrays, 4, rule)


@training("Momentum")
def momentum(
    at: NodeContext,
    rate: Node,
    count: Node,
    *arrays: Node,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> list[Value]:
    """v = alpha v + beta g, at first alpha v + g; x = x - rate v, or with nesterov x - rate (g + alpha v)"""
    at.choose("mode", mode, "standard", "nesterov")

    def rule(x: Node, g: Node, v: Node) -> tuple[Node, Node]:
        g, r = _plus_decay(x, g, norm_coefficient), ops.cast(rate, x.dtype)
        weight = ops.where(ops.greater(count, 0), beta, 1.0)
        v = ops.add(ops.mul(v, alpha), ops.mul(g, ops.cast(weight, x.dtype)))
        change = v if mode == "standard" else ops.add(g, ops.mul(v, alpha))
        return ops.sub(x, ops.mul(r, change)), v

    return _updated(at, arrays, 3, rule)
