"""Normalization by batches, layers, groups and instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.mxops.layers import moved
from gluongraph.torch.aten.context import OpContext, cast
from gluongraph.torch.aten.table import aten


def _vector(v: Node | None, n: int, fill: float, dtype: str) -> Node:
    return ops.full((n,), fill, dtype) if v is None else ops.reshape(v, (n,))


def _batch_norm(input: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """y, mean and biased variance of the batch; 16-bit data are normalized in float32."""
    n = input.shape[1]
    dtype = input.dtype if weight is None else weight.dtype
    x = cast(input, dtype) if DTYPES[input.dtype].nbytes < DTYPES[dtype].nbytes else input
    y, mean, var = ops.batch_norm(x, _vector(weight, n, 1.0, x.dtype), _vector(bias, n, 0.0, x.dtype), axis=1, eps=eps)
    return cast(y, input.dtype), mean, var


def _with_statistics(y: Node, mean: Node, var: Node, eps: float) -> tuple[Node, Node, Node]:
    """What operators return: y, mean, 1 / deviation. Gradients pass through the first alone."""
    return y, ops.stop_gradient(mean), ops.stop_gradient(ops.rsqrt(var + eps))


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    at: OpContext,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Node | None]:
    """In training by the batch, which moves the running statistics: mean, and the unbiased variance"""
    if not training:
        y = _by_statistics(input, weight, bias, running_mean, running_var, eps)
        return [y, None, None, running_mean, running_var]
    y, mean, var = _batch_norm(input, weight, bias, eps)
    count = input.ty.size // input.shape[1]
    unbiased = var * (count / max(count - 1, 1))
    means, variances = (
        moved(old, cast(new, old.dtype), 1 - momentum) for old, new in ((running_mean, mean), (running_var, unbiased))
    )
    return [*_with_statistics(y, mean, var, eps), ops.stop_gradient(means), ops.stop_gradient(variances)]


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    at: OpContext, input: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> list[Node]:
    """By the batch, in either mode"""
    return [*_with_statistics(*_batch_norm(input, weight, bias, eps), eps)]


def _by_statistics(x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, eps: float) -> Node:
    n, dtype = x.shape[1], mean.dtype
    given = cast(x, dtype)
    gamma, beta = (cast(_vector(v, n, fill, dtype), dtype) for v, fill in ((weight, 1.0), (bias, 0.0)))
    y = ops.batch_norm_inference(given, gamma, beta, mean, var, axis=1, eps=eps)
    return cast(y, x.dtype)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    at: OpContext,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    momentum: float,
    eps: float,
) -> list[Node]:
    """By the running statistics"""
    return [_by_statistics(input, weight, bias, running_mean, running_var, eps)]


@aten("_native_batch_norm_legit.default", "native_batch_norm.default")
def native_batch_norm(at: OpContext, *args: Any) -> list[Node]:
    """The same, as the first of three results"""
    return [batch_norm(at, *args)]


@aten("batch_norm.default")
def batch_norm(
    at: OpContext,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Node:
    """By the running statistics, or where there are none by the batch"""
    if training or running_mean is None or running_var is None:
        if running_mean is not None:
            raise at.unsupported("statistics that are moved in place; torch.export makes another operator of them")
        return _batch_norm(input, weight, bias, eps)[0]
    return _by_statistics(input, weight, bias, running_mean, running_var, eps)


@aten("layer_norm.default", "native_layer_norm.default")
def layer_norm(
    at: OpContext,
    input: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Node | list[Node]:
    """By mean and deviation over the last axes"""
    n = math.prod(normalized_shape)
    rows = ops.reshape(input, (*input.shape[: input.ty.rank - len(normalized_shape)], n))
    dtype = input.dtype if weight is None else weight.dtype
    y = ops.layer_norm(cast(rows, dtype), _vector(weight, n, 1.0, dtype), _vector(bias, n, 0.0, dtype), -1, eps)
    y = cast(ops.reshape(y, input.shape), input.dtype)
    if not at.name.startswith("native"):
        return y
    return [y, *map(ops.stop_gradient, _moments(rows, (rows.ty.rank - 1,), eps, input.ty.rank))]


def _moments(x: Node, axes: tuple[int, ...], eps: float, rank: int) -> list[Node]:
    """Mean and 1 / deviation over axes, as the native operators return them beside their result."""
    mean = ops.mean(x, axes, True)
    gap = ops.sub(x, mean)
    scale = ops.rsqrt(ops.mean(gap * gap, axes, True) + eps)
    shape = (*mean.shape, *(1,) * (rank - mean.ty.rank))
    return [ops.reshape(v, shape) for v in (mean, scale)]


@aten("rms_norm.default", "_fused_rms_norm.default")
def rms_norm(
    at: OpContext, input: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node | list[Node]:
    """x / sqrt(mean(x²) + eps), times a weight"""
    x = cast(input, "f32") if DTYPES[input.dtype].nbytes == 2 else input
    axes = tuple(range(x.ty.rank - len(normalized_shape), x.ty.rank))
    least = {"f64": 2.220446049250313e-16}.get(x.dtype, 1.1920928955078125e-07) if eps is None else eps
    scale = ops.rsqrt(ops.mean(x * x, axes, True) + least)
    y = cast(x * scale, input.dtype)
    y = y if weight is None else y * weight
    return [y, scale] if at.name.startswith("_fused") else y


def _over_groups(x: Node, groups: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """Normalized over the channels of each group and all places; weight and bias are per channel."""
    y = ops.group_norm(x, ops.full((groups,), 1.0, x.dtype), ops.full((groups,), 0.0, x.dtype), eps)

    def lined(v: Node) -> Node:
        return ops.reshape(v, (1, x.shape[1], *(1,) * (x.ty.rank - 2)))

    y = y if weight is None else y * lined(weight)
    return y if bias is None else y + lined(bias)


@aten("native_group_norm.default")
def native_group_norm(
    at: OpContext, input: Node, weight: Node | None, bias: Node | None, n: int, c: int, hxw: int, group: int, eps: float
) -> list[Node]:
    """The same, and mean and 1 / deviation of each group"""
    mean, scale = _moments(ops.reshape(input, (n, group, c // group * hxw)), (2,), eps, 3)
    return [_over_groups(input, group, weight, bias, eps), *(ops.reshape(v, (n, group)) for v in (mean, scale))]


@aten("group_norm.default")
def group_norm(
    at: OpContext,
    input: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:
    """By mean and deviation of each sample's groups of channels"""
    return _over_groups(input, num_groups, weight, bias, eps)


@aten("instance_norm.default")
def instance_norm(
    at: OpContext,
    input: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Node:
    """By mean and deviation of each sample's channels"""
    if running_mean is not None and running_var is not None:
        if use_input_stats:
            raise at.unsupported("running statistics of instances (track_running_stats=True)")
        return _by_statistics(input, weight, bias, running_mean, running_var, eps)
    return _over_groups(input, input.shape[1], weight, bias, eps)
