"""MXNet's operators that layers are made of, as builders over nodes: softmax, activations, products, norms, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from gluongraph import ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import axes_of, softrelu, softsign
from gluongraph.mxops.shapes import as_index, class_index
from gluongraph.ops.builders import along


def softmax(
    data: Node,
    length: Node | None = None,
    axis: int = -1,
    temperature: float | None = None,
    dtype: Any = None,
    use_length: bool = False,
) -> Node:
    """e ** data / sum(e ** data) along an axis; with `use_length` over the first `length` elements; others are 0."""
    data, (axis,) = _cooled(data, temperature, dtype), axes_of(data, axis)
    if not use_length:
        return ops.softmax(data, axis=axis)
    if length is None or length.shape != data.shape[:axis] + data.shape[axis + 1 :]:
        given = "nothing" if length is None else str(length.ty)
        raise ShapeError(
            with_user_location(f"softmax: a length for each line along axis {axis} of {data.ty}, not {given}")
        )
    counts = ops.expand(ops.expand_dims(as_index(length), axis), data.shape)
    inside = ops.less(ops.iota(data.shape, axis, "i32"), ops.cast(counts, "i32"))
    lowest = -6e4 if data.dtype == "f16" else -1e30  # finite, so that a line of length 0 gives no NaN
    return ops.where(inside, ops.softmax(ops.where(inside, data, lowest), axis=axis), 0.0)


def log_softmax(
    data: Node, axis: int = -1, temperature: float | None = None, dtype: Any = None, use_length: bool = False
) -> Node:
    """The logarithm of softmax."""
    if use_length:
        raise MXNetError(
            with_user_location("log_softmax: takes no lengths", help="take the logarithm of softmax(data, length)")
        )
    return ops.log_softmax(_cooled(data, temperature, dtype), axis=axes_of(data, axis)[0])


def softmin(data: Node, axis: int = -1, temperature: float | None = None, dtype: Any = None) -> Node:
    """softmax of -data"""
    return softmax(ops.neg(data), None, axis, temperature, dtype)


def _cooled(data: Node, temperature: float | None, dtype: Any) -> Node:
    data = data if dtype is None else ops.cast(data, dtype_name(dtype))
    return data if temperature is None or temperature == 1.0 else ops.div(data, temperature)


def softmax_cross_entropy(data: Node, label: Node) -> Node:
    """-sum_i log softmax(data)[i, label[i]], of shape (1,)"""
    label = class_index("softmax_cross_entropy", label, data.shape[-1])
    each = ops.softmax_cross_entropy(data, label, axis=data.ty.rank - 1, sparse=True)
    return ops.reshape(ops.sum(each), (1,))


def SoftmaxActivation(data: Node, mode: Literal["instance", "channel"] = "instance") -> Node:
    """softmax along the last axis, or with mode="channel" along axis 1."""
    if mode == "channel":
        return ops.softmax(data, axis=1)
    return ops.softmax(data, axis=data.ty.rank - 1)


def Activation(data: Node, act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign"]) -> Node:
    """One of relu, sigmoid, tanh, softrelu, softsign."""
    table: dict[str, Callable[[Node], Node]] = {
        "relu": ops.relu,
        "sigmoid": ops.sigmoid,
        "tanh": ops.tanh,
        "softrelu": softrelu,
        "softsign": softsign,
    }
    if act_type not in table:
        raise MXNetError(with_user_location(f"Activation: no act_type {act_type!r}; there are {', '.join(table)}"))
    return table[act_type](data)


def LeakyReLU(
    data: Node,
    gamma: Node | None = None,
    act_type: Literal["leaky", "elu", "selu", "gelu", "prelu", "rrelu"] = "leaky",
    slope: float = 0.25,
) -> Node:
    """One of leaky, elu, selu, gelu, prelu (whose slopes are `gamma`)."""
    if act_type == "gelu":
        return ops.gelu(data, approximate=False)
    below = ops.less_equal(data, 0.0)  # NaN is not: it is handed on, with a slope of 1
    if act_type == "prelu":
        if gamma is None:
            raise MXNetError(with_user_location("LeakyReLU: act_type='prelu' needs `gamma`, its slopes"))
        return ops.where(below, ops.mul(data, _slopes(data, gamma)), data)
    if act_type == "leaky":
        return ops.where(below, ops.mul(data, slope), data)
    curve = ops.expm1(ops.minimum(data, 0.0))  # not of large positive numbers: their gradient would be inf * 0
    if act_type == "elu":
        return ops.where(below, ops.mul(curve, slope), data)
    if act_type == "selu":
        alpha, scale = 1.6732632423543772, 1.0507009873554805
        return ops.mul(ops.where(below, ops.mul(curve, alpha), data), scale)
    raise MXNetError(
        with_user_location(f"LeakyReLU: no act_type {act_type!r}; there are leaky, elu, selu, gelu, prelu, rrelu")
    )


def _slopes(data: Node, gamma: Node) -> Node:
    """The slopes of prelu: one per element, or what broadcasts to that; a vector has one per channel, on axis 1."""
    shape = gamma.shape
    if len(shape) == 1 and data.ty.rank > 1:
        shape = (1, *shape, *(1,) * (data.ty.rank - 2))
    if len(shape) != data.ty.rank or any(n not in (1, extent) for n, extent in zip(shape, data.shape, strict=True)):
        help = "a vector of one number, or of one for each channel; or an array that broadcasts to data"
        raise ShapeError(with_user_location(f"LeakyReLU: the slopes {gamma.ty} do not fit {data.ty}", help=help))
    return ops.reshape(gamma, shape)


def matmul(lhs: Node, rhs: Node) -> Node:
    """The matrix product, over equal leading axes; those of one side may be missing."""
    if rhs.ty.rank == 2 and lhs.ty.rank > 2:
        rows = ops.reshape(lhs, (math.prod(lhs.shape[:-1]), lhs.shape[-1]))
        return ops.reshape(ops.matmul(rows, rhs), (*lhs.shape[:-1], rhs.shape[-1]))
    return ops.matmul(lhs, rhs)


def dot(lhs: Node, rhs: Node, transpose_a: bool = False, transpose_b: bool = False) -> Node:
    """Sum over the last axis of lhs and the first of rhs (the first and the last, transposed)."""
    left = lhs.shape[1:] if transpose_a else lhs.shape[:-1]
    right = rhs.shape[:-1] if transpose_b else rhs.shape[1:]
    inner = lhs.shape[0] if transpose_a else lhs.shape[-1]
    if inner != (rhs.shape[-1] if transpose_b else rhs.shape[0]):
        raise ShapeError(
            with_user_location(f"dot: inner sizes differ: {lhs.ty} and {rhs.ty}", help="transpose_a or transpose_b?")
        )
    m, n = math.prod(left), math.prod(right)
    a = ops.reshape(lhs, (inner, m) if transpose_a else (m, inner))
    b = ops.reshape(rhs, (n, inner) if transpose_b else (inner, n))
    return ops.reshape(ops.matmul(a, b, ta=transpose_a, tb=transpose_b), (*left, *right) or (1,))


def batch_dot(lhs: Node, rhs: Node, transpose_a: bool = False, transpose_b: bool = False) -> Node:
    """The matrix product over equal leading axes."""
    return ops.matmul(lhs, rhs, ta=transpose_a, tb=transpose_b)


def FullyConnected(
    data: Node, weight: Node, bias: Node | None = None, num_hidden: int = 0, no_bias: bool = False, flatten: bool = True
) -> Node:
    """data · weightᵀ + bias, with data as (n, the rest), or with flatten=False along its last axis."""
    lead = data.shape[:1] if flatten else data.shape[:-1]
    rows = math.prod(lead)
    x = ops.reshape(data, (rows, data.ty.size // rows if rows else weight.shape[1]))
    if x.shape[1] != weight.shape[1]:
        raise ShapeError(
            with_user_location(
                f"FullyConnected: inner sizes differ: data {data.ty} gives rows of {x.shape[1]}, weight is {weight.ty}",
                help="leave in_units unset to take it from the data",
            )
        )
    y = ops.matmul(x, weight, tb=True)
    if bias is not None and not no_bias:
        y = ops.add(y, bias)
    return ops.reshape(y, (*lead, weight.shape[0]))


def batch_norm(data: Node, gamma: Node, beta: Node, axis: int, eps: float, fix_gamma: bool) -> tuple[Node, Node, Node]:
    """The normalized data, the batch's mean and its biased variance."""
    gamma = _ones_if(fix_gamma, gamma)
    y, mean, var = ops.batch_norm(_as_wide(data, gamma), gamma, beta, axis=axes_of(data, axis)[0], eps=eps)
    return ops.cast(y, data.dtype), mean, var


def batch_norm_of_ranks(
    data: Node, gamma: Node, beta: Node, axis: int, eps: float, fix_gamma: bool, ranks: int
) -> tuple[Node, Node, Node]:
    """`batch_norm` of the batches of all ranks together: their mean, and then their variance, are sums over ranks."""
    gamma, (at,) = _ones_if(fix_gamma, gamma), axes_of(data, axis)
    x = _as_wide(data, gamma)
    axes = tuple(a for a in range(x.ty.rank) if a != at)
    channels = x.shape[at]
    count = ops.full((1,), float(x.ty.size // max(channels, 1)), x.dtype)  # eager batches of ranks may differ in size
    sums = ops.allreduce(ops.concat(ops.sum(x, axes), count), ranks=ranks)
    total = ops.slice(sums, (channels,), (channels + 1,))
    mean = ops.slice(sums, (0,), (channels,)) / ops.expand(total, (channels,))
    rest = x - along(mean, at, x.shape)
    var = ops.allreduce(ops.sum(rest * rest, axes), ranks=ranks) / ops.expand(total, (channels,))
    scale = along(ops.rsqrt(var + eps), at, x.shape)
    y = rest * scale * along(gamma, at, x.shape) + along(beta, at, x.shape)
    return ops.cast(y, data.dtype), mean, var


def batch_norm_by_moving(
    data: Node, gamma: Node, beta: Node, mean: Node, var: Node, axis: int, eps: float, fix_gamma: bool
) -> Node:
    """The data normalized by given statistics."""
    gamma, (at,) = _ones_if(fix_gamma, gamma), axes_of(data, axis)
    y = ops.batch_norm_inference(_as_wide(data, gamma), gamma, beta, mean, var, axis=at, eps=eps)
    return ops.cast(y, data.dtype)


def _ones_if(fixed: bool, gamma: Node) -> Node:
    return ops.full(gamma.shape, 1.0, gamma.dtype) if fixed else gamma


def _as_wide(data: Node, gamma: Node) -> Node:
    """The data in the type that statistics are held in: that of gamma, where the data's has 16 bits."""
    return ops.cast(data, gamma.dtype) if data.dtype in ("f16", "bf16") else data


def moved(moving: Node, batch: Node, momentum: float) -> Node:
    """momentum * moving + (1 - momentum) * batch"""
    return ops.add(ops.mul(moving, momentum), ops.mul(batch, 1.0 - momentum))


def LayerNorm(
    data: Node, gamma: Node, beta: Node, axis: int = -1, eps: float = 1e-5, output_mean_var: bool = False
) -> Any:
    """(data - mean) / sqrt(var + eps) * gamma + beta along an axis

    With `output_mean_var` also the mean and sqrt(var + eps), of 1 along the axis.
    """
    (at,) = axes_of(data, axis)
    made = ops.layer_norm(data, gamma, beta, axis=at, eps=eps)
    return (made, *_mean_and_deviation(data, (at,), eps)) if output_mean_var else made


def _mean_and_deviation(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """The mean and sqrt(var + eps) over these axes, which stay as 1."""
    mean = ops.mean(x, axes, keepdims=True)
    apart = ops.sub(x, mean)
    return mean, ops.sqrt(ops.add(ops.mean(ops.mul(apart, apart), axes, keepdims=True), eps))


def GroupNorm(
    data: Node, gamma: Node, beta: Node, num_groups: int = 1, eps: float = 1e-5, output_mean_var: bool = False
) -> Any:
    """(data - mean) / sqrt(var + eps) * gamma + beta over each sample's groups of channels; gamma is (num_groups,).

    With `output_mean_var` also the mean and sqrt(var + eps), of shape (samples, num_groups).
    """
    for each in (gamma, beta):
        if each.shape != (num_groups,):
            raise ShapeError(
                with_user_location(f"GroupNorm: num_groups={num_groups}, and gamma {gamma.ty}, beta {beta.ty}")
            )
    made = ops.group_norm(data, gamma, beta, eps=eps)
    if not output_mean_var:
        return made
    groups = ops.reshape(data, (data.shape[0], num_groups, data.ty.size // (data.shape[0] * num_groups)))
    mean, deviation = (ops.reshape(x, groups.shape[:2]) for x in _mean_and_deviation(groups, (2,), eps))
    return made, mean, deviation


def InstanceNorm(data: Node, gamma: Node, beta: Node, eps: float = 1e-3) -> Node:
    """(data - mean) / sqrt(var + eps) * gamma + beta over each channel of each sample; gamma, beta (channels,)."""
    if gamma.shape != data.shape[1:2]:
        raise ShapeError(
            with_user_location(f"InstanceNorm: gamma and beta have an element for each channel of {data.ty}")
        )
    return ops.group_norm(data, gamma, beta, eps=eps)


def dropped(data: Node) -> Node:
    """What `dropout` gives with p=1: zeros, through which no gradient flows"""
    return ops.where(ops.full(data.shape, False, "bool"), data, 0)


def dropout(data: Node, state: Node, p: float, axes: tuple[int, ...] = (), draw: int = 0) -> Node:
    """data / (1 - p) where a random number says keep, else 0; one number for all of `axes`"""
    return ops.dropout(data, state, p=p, draw=draw, axes=axes)
