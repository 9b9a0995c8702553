"""Normalizations."""

from __future__ import annotations

import math

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import operator

WIDE = ("f16", "bf16")


@operator("BatchNormalization", since=7)
def batch_norm(
    at: NodeContext,
    x: Node,
    scale: Node,
    bias: Node,
    mean: Node,
    var: Node,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
) -> list[Value]:
    """(x - mean) / sqrt(var + epsilon) scale + bias per channel; in training of the batch, else of what has run"""
    if not spatial:
        raise at.unsupported("spatial=0")
    wide = ops.cast(x, scale.dtype) if x.dtype in WIDE and scale.dtype not in WIDE else x
    of_batch = at.moves or (training_mode and at.training)
    if not of_batch:
        y = ops.batch_norm_inference(wide, scale, bias, ops.cast(mean, scale.dtype), ops.cast(var, scale.dtype),
                                     axis=1 if x.ty.rank > 1 else 0, eps=epsilon)  # fmt: skip
        return [ops.cast(y, x.dtype), mean, var][: max(len(at.node.outputs), 1)]
    y, batch_mean, batch_var = ops.batch_norm(wide, scale, bias, axis=1, eps=epsilon)
    if at.moves:
        at.statistic(3, batch_mean, momentum)
        at.statistic(4, batch_var, momentum)
    moved = [
        ops.add(ops.mul(old, momentum), ops.mul(ops.cast(new, old.dtype), 1.0 - momentum))
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]
    return [ops.cast(y, x.dtype), *moved]


@operator("InstanceNormalization", since=6)
def instance_norm(at: NodeContext, x: Node, scale: Node, bias: Node, *, epsilon: float = 1e-5) -> Node:
    """(x - mean) / sqrt(var + epsilon) scale + bias over each channel of each sample"""
    return ops.group_norm(x, scale, bias, eps=epsilon)


@operator("LayerNormalization", since=17)
def layer_norm(
    at: NodeContext,
    x: Node,
    scale: Node,
    bias: Node | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> list[Value]:
    """(x - mean) / sqrt(var + epsilon) scale + bias over the axes from `axis` on"""
    axis = at.axis(axis, x.ty.rank)
    inner = x.shape[axis:]
    wide = ops.cast(x, "f32") if x.dtype in WIDE and stash_type == 1 else x
    rows = ops.reshape(wide, (math.prod(x.shape[:axis]), math.prod(inner)))
    gamma, beta = (
        ops.full((rows.shape[1],), fill, rows.dtype)
        if v is None
        else ops.reshape(ops.broadcast_to(ops.cast(v, rows.dtype), inner), (rows.shape[1],))
        for v, fill in ((scale, 1.0), (bias, 0.0))
    )
    y = ops.reshape(ops.cast(ops.layer_norm(rows, gamma, beta, axis=1, eps=epsilon), x.dtype), x.shape)
    if not at.wants(1) and not at.wants(2):
        return [y]
    mean = ops.mean(rows, axis=1, keepdims=True)
    apart = ops.sub(rows, mean)
    var = ops.mean(ops.mul(apart, apart), axis=1, keepdims=True)
    shape = (*x.shape[:axis], *(1,) * len(inner))
    spread = ops.rsqrt(ops.add(var, epsilon))
    return [y, ops.reshape(mean, shape), ops.reshape(spread, shape)]


@operator("RMSNormalization", since=23)
def rms_norm(
    at: NodeContext, x: Node, scale: Node, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Node:
    """x / sqrt(mean of squares + epsilon) scale over the axes from `axis` on"""
    over = tuple(range(at.axis(axis, x.ty.rank), x.ty.rank))
    wide = ops.cast(x, "f32") if x.dtype in WIDE and stash_type == 1 else x
    square = ops.mean(ops.mul(wide, wide), axis=over, keepdims=True)
    return ops.mul(ops.cast(ops.mul(wide, ops.rsqrt(ops.add(square, epsilon))), x.dtype), ops.cast(scale, x.dtype))


@operator("GroupNormalization", since=18)
def group_norm_by_group(
    at: NodeContext, x: Node, scale: Node, bias: Node, *, epsilon: float = 1e-5, num_groups: int
) -> Node:
    """(x - mean) / sqrt(var + epsilon) over groups of channels; scale and bias per group"""
    return ops.group_norm(x, scale, bias, eps=epsilon)


@operator("GroupNormalization", since=21)
def group_norm(
    at: NodeContext, x: Node, scale: Node, bias: Node, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Node:
    """(x - mean) / sqrt(var + epsilon) over groups of channels; scale and bias per channel"""
    wide = ops.cast(x, "f32") if x.dtype in WIDE else x
    ones, zeros = (ops.full((num_groups,), v, wide.dtype) for v in (1.0, 0.0))
    y = ops.cast(ops.group_norm(wide, ones, zeros, eps=epsilon), x.dtype)
    per_channel = (x.shape[1], *(1,) * (x.ty.rank - 2))
    return ops.add(ops.mul(y, ops.reshape(scale, per_channel)), ops.reshape(bias, per_channel))


@operator("LpNormalization")
def lp_norm(at: NodeContext, x: Node, *, axis: int = -1, p: int = 2) -> Node:
    """x / its p-norm along an axis; 0 where that is 0"""
    axis = at.axis(axis, x.ty.rank)
    at.choose("p", p, 1, 2)
    total = ops.sum(ops.abs(x) if p == 1 else ops.mul(x, x), axis=axis, keepdims=True)
    some = ops.greater(total, 0.0)
    size = ops.where(some, total, 1.0)
    return ops.where(ops.broadcast_to(some, x.shape), ops.div(x, size if p == 1 else ops.sqrt(size)), 0.0)


@operator("MeanVarianceNormalization", since=9)
def mean_variance_norm(at: NodeContext, x: Node, *, axes: tuple[int, ...] = (0, 2, 3)) -> Node:
    """(x - mean) / standard deviation over axes"""
    over = tuple(sorted(at.axes(axes, x.ty.rank)))
    apart = ops.sub(x, ops.mean(x, axis=over, keepdims=True))
    return ops.div(apart, ops.add(ops.sqrt(ops.mean(ops.mul(apart, apart), axis=over, keepdims=True)), 1e-9))


@operator("LRN")
def lrn(at: NodeContext, x: Node, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Node:
    """x / (bias + alpha / size · squares of the channels around) ** beta"""
    before, n = (size - 1) // 2, x.shape[1]
    around = (0, *(0,) * (x.ty.rank - 1))
    padded = ops.pad(ops.mul(x, x), (around[0], before, *around[2:]), (around[0], size - 1 - before, *around[2:]))
    total = ops.part(padded, 1, 0, n)
    for k in range(1, size):
        total = ops.add(total, ops.part(padded, 1, k, k + n))
    return ops.div(x, ops.pow(ops.add(ops.mul(total, alpha / size), bias), beta))
