"""The losses of the default domain."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import operator

REDUCTIONS = ("none", "mean", "sum")


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(
    at: NodeContext,
    logarithms: Node,
    target: Node,
    weight: Node | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Node:
    """-logarithms at the target class, weighted by class"""
    return _reduced(at, _picked(logarithms, target), target, weight, ignore_index, reduction)


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    at: NodeContext,
    scores: Node,
    labels: Node,
    weights: Node | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> list[Value]:
    """-log softmax(scores) at the label, weighted by class; and log softmax(scores)"""
    logarithms = ops.log_softmax(scores, axis=1)
    if at.wants(1):
        each = _picked(logarithms, labels)
    else:
        inside = ops.minimum(ops.maximum(labels, 0), scores.shape[1] - 1)
        each = ops.softmax_cross_entropy(scores, inside, axis=1, sparse=True)
    loss = _reduced(at, each, labels, weights, ignore_index, reduction)
    return [loss, logarithms] if at.wants(1) else [loss]


def _picked(logarithms: Node, target: Node) -> Node:
    index = ops.expand_dims(target, 1)
    return ops.neg(ops.squeeze(ops.gather(logarithms, index, 1), 1))


def _reduced(
    at: NodeContext, each: Node, target: Node, weight: Node | None, ignored: int | None, reduction: str
) -> Node:
    at.choose("reduction", reduction, *REDUCTIONS)
    factor = ops.full(each.shape, 1.0, each.dtype)
    if weight is not None:
        factor = ops.take(weight, target, 0)
    if ignored is not None:
        factor = ops.where(ops.equal(target, ignored), 0.0, factor)
        each = ops.where(ops.equal(target, ignored), 0.0, each)
    if weight is not None or ignored is not None:
        each = ops.mul(each, factor)
    axes = tuple(range(each.ty.rank))
    if reduction == "none":
        return each
    total = ops.sum(each, axes)
    return total if reduction == "sum" else ops.div(total, ops.sum(factor, axes))
