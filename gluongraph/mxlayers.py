"""MXNet's operators that layers are made of, as builders over nodes: dense, convolution, pooling, norms, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import ops
from gluongraph.errors import MXNetError, ShapeError, located
from gluongraph.ir import Node
from gluongraph.mxops import axes_of, softrelu, softsign
from gluongraph.mxshapes import as_index, flatten

Pair = int | Sequence[int]


def softmax(data: Any, axis: int = -1, temperature: float | None = None) -> Any:
    """e ** data / sum(e ** data) along an axis"""
    return ops.softmax(_cooled(data, temperature), axis=axes_of(data, axis)[0])


def log_softmax(data: Any, axis: int = -1, temperature: float | None = None) -> Any:
    """The logarithm of softmax."""
    return ops.log_softmax(_cooled(data, temperature), axis=axes_of(data, axis)[0])


def softmin(data: Any, axis: int = -1, temperature: float | None = None) -> Any:
    """softmax of -data"""
    return softmax(ops.neg(data), axis, temperature)


def _cooled(data: Any, temperature: float | None) -> Any:
    return data if temperature is None or temperature == 1.0 else ops.div(data, temperature)


def SoftmaxActivation(data: Any, mode: str = "instance") -> Any:
    """softmax over all but the first axis, or with mode="channel" over axis 1."""
    if mode == "channel":
        return ops.softmax(data, axis=1)
    return ops.reshape(ops.softmax(flatten(data), axis=1), data.shape)


def softmax_cross_entropy(data: Any, label: Any) -> Any:
    """-sum_i log softmax(data)[i, label[i]], of shape (1,)"""
    each = ops.softmax_cross_entropy(data, as_index(label), axis=data.ty.rank - 1, sparse=True)
    return ops.reshape(ops.sum(each), (1,))


def Activation(data: Any, act_type: str) -> Any:
    """One of relu, sigmoid, tanh, softrelu, softsign."""
    table: dict[str, Callable[[Any], Any]] = {
        "relu": ops.relu,
        "sigmoid": ops.sigmoid,
        "tanh": ops.tanh,
        "softrelu": softrelu,
        "softsign": softsign,
    }
    if act_type not in table:
        raise MXNetError(located(f"Activation: no act_type {act_type!r}; there are {', '.join(table)}"))
    return table[act_type](data)


def LeakyReLU(data: Any, gamma: Any = None, act_type: str = "leaky", slope: float = 0.25) -> Any:
    """One of leaky, elu, selu, gelu, prelu (whose slopes are `gamma`)."""
    if act_type == "gelu":
        return ops.gelu(data, approximate=False)
    if act_type == "prelu":
        rank = data.ty.rank
        shape = (1, gamma.ty.size, *(1,) * (rank - 2)) if rank > 1 else (gamma.ty.size,)
        return ops.where(ops.greater(data, 0.0), data, ops.mul(data, ops.reshape(gamma, shape)))
    if act_type == "leaky":
        return ops.where(ops.greater(data, 0.0), data, ops.mul(data, slope))
    below = ops.expm1(ops.minimum(data, 0.0))  # not of large positive numbers: their gradient would be inf * 0
    if act_type == "elu":
        return ops.where(ops.greater(data, 0.0), data, ops.mul(below, slope))
    if act_type == "selu":
        alpha, scale = 1.6732632423543772, 1.0507009873554805
        return ops.mul(ops.where(ops.greater(data, 0.0), data, ops.mul(below, alpha)), scale)
    raise MXNetError(located(f"LeakyReLU: no act_type {act_type!r}; there are leaky, elu, selu, gelu, prelu"))


def matmul(lhs: Any, rhs: Any) -> Any:
    """The matrix product, over equal leading axes; those of one side may be missing."""
    if rhs.ty.rank == 2 and lhs.ty.rank > 2:
        rows = ops.reshape(lhs, (math.prod(lhs.shape[:-1]), lhs.shape[-1]))
        return ops.reshape(ops.matmul(rows, rhs), (*lhs.shape[:-1], rhs.shape[-1]))
    return ops.matmul(lhs, rhs)


def dot(lhs: Any, rhs: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """Sum over the last axis of lhs and the first of rhs (the first and the last, transposed)."""
    left = lhs.shape[1:] if transpose_a else lhs.shape[:-1]
    right = rhs.shape[:-1] if transpose_b else rhs.shape[1:]
    inner = lhs.shape[0] if transpose_a else lhs.shape[-1]
    if inner != (rhs.shape[-1] if transpose_b else rhs.shape[0]):
        raise ShapeError(located(f"dot: inner sizes differ: {lhs.ty} and {rhs.ty}", help="transpose_a or transpose_b?"))
    m, n = math.prod(left), math.prod(right)
    a = ops.reshape(lhs, (inner, m) if transpose_a else (m, inner))
    b = ops.reshape(rhs, (n, inner) if transpose_b else (inner, n))
    return ops.reshape(ops.matmul(a, b, ta=transpose_a, tb=transpose_b), (*left, *right) or (1,))


def batch_dot(lhs: Any, rhs: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The matrix product over equal leading axes."""
    return ops.matmul(lhs, rhs, ta=transpose_a, tb=transpose_b)


def FullyConnected(
    data: Any, weight: Any, bias: Any = None, num_hidden: int = 0, no_bias: bool = False, flatten: bool = True
) -> Any:
    """data · weightᵀ + bias, with data as (n, the rest), or with flatten=False along its last axis."""
    lead = data.shape[:1] if flatten else data.shape[:-1]
    rows = math.prod(lead)
    x = ops.reshape(data, (rows, data.ty.size // rows if rows else weight.shape[1]))
    if x.shape[1] != weight.shape[1]:
        raise ShapeError(
            located(
                f"FullyConnected: inner sizes differ: data {data.ty} gives rows of {x.shape[1]}, weight is {weight.ty}",
                help="leave in_units unset to take it from the data",
            )
        )
    y = ops.matmul(x, weight, tb=True)
    if bias is not None and not no_bias:
        y = ops.add(y, bias)
    return ops.reshape(y, (*lead, weight.shape[0]))


def _pair(value: Pair | None, default: int, what: str) -> tuple[int, int]:
    if value is None or value == ():
        return default, default
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ShapeError(located(f"{what}: one or two numbers, not {list(pair)}"))
    return int(pair[0]), int(pair[1])


def _flat(value: Pair | None, default: int) -> Pair:
    """The parameter of one axis as that of two, where the axis put in front is left alone."""
    at = default if value is None or value == () else value if isinstance(value, int) else value[0]
    return (default, at)


def _is_flat(kernel: Pair, data: Node) -> bool:
    return data.ty.rank == 3 or (not isinstance(kernel, int) and len(kernel) == 1)


def Convolution(
    data: Any,
    weight: Any,
    bias: Any = None,
    kernel: Pair = (),
    stride: Pair | None = None,
    dilate: Pair | None = None,
    pad: Pair | None = None,
    num_filter: int = 0,
    num_group: int = 1,
    no_bias: bool = False,
    layout: str | None = None,
) -> Any:
    """Convolution over one or two axes, NCW or NCHW; weight (filters, channels / groups, *kernel)."""
    if layout not in (None, "NCHW", "NCW"):
        raise MXNetError(located(f"Convolution: layout {layout!r}; there are NCHW and NCW", help="transpose the data"))
    if data.ty.rank == 3:
        wide = ops.reshape(data, (*data.shape[:2], 1, data.shape[2]))
        w = ops.reshape(weight, (*weight.shape[:2], 1, weight.shape[2]))
        y = Convolution(
            wide, w, bias, (), _flat(stride, 1), _flat(dilate, 1), _flat(pad, 0), num_filter, num_group, no_bias
        )
        return ops.reshape(y, (*y.shape[:2], y.shape[3]))
    y = ops.conv2d(
        data,
        weight,
        stride=_pair(stride, 1, "stride"),
        padding=_pair(pad, 0, "pad"),
        dilation=_pair(dilate, 1, "dilate"),
        groups=num_group,
    )
    if bias is not None and not no_bias:
        y = ops.add(y, ops.reshape(bias, (1, bias.ty.size, 1, 1)))
    return y


def Pooling(
    data: Any,
    kernel: Pair = (),
    pool_type: str = "max",
    global_pool: bool = False,
    stride: Pair | None = None,
    pad: Pair | None = None,
    pooling_convention: str = "valid",
    count_include_pad: bool = True,
    layout: str | None = None,
) -> Any:
    """Maximum, mean ("avg") or sum over windows of one or two axes; over all positions with `global_pool`."""
    if layout not in (None, "NCHW", "NCW"):
        raise MXNetError(located(f"Pooling: layout {layout!r}; there are NCHW and NCW", help="transpose the data"))
    if pool_type not in ("max", "avg", "sum"):
        raise MXNetError(located(f"Pooling: no pool_type {pool_type!r}; there are max, avg, sum"))
    if pooling_convention not in ("valid", "full"):
        raise MXNetError(located(f"Pooling: no pooling_convention {pooling_convention!r}; there are valid, full"))
    if global_pool:
        axes = tuple(range(2, data.ty.rank))
        return {"max": ops.max, "avg": ops.mean, "sum": ops.sum}[pool_type](data, axis=axes, keepdims=True)
    if data.ty.rank == 3:
        wide = ops.reshape(data, (*data.shape[:2], 1, data.shape[2]))
        y = Pooling(
            wide,
            _flat(kernel, 1),
            pool_type,
            False,
            _flat(stride, 1),
            _flat(pad, 0),
            pooling_convention,
            count_include_pad,
        )
        return ops.reshape(y, (*y.shape[:2], y.shape[3]))
    size = _pair(kernel, 1, "kernel")
    how: dict[str, Any] = {
        "kernel": size,
        "stride": _pair(stride, 1, "stride"),
        "padding": _pair(pad, 0, "pad"),
        "ceil": pooling_convention == "full",
    }
    if pool_type == "max":
        return ops.max_pool2d(data, **how)
    if pool_type == "avg":
        return ops.avg_pool2d(data, **how, count_include_pad=count_include_pad)
    return ops.mul(ops.avg_pool2d(data, **how, count_include_pad=True), float(math.prod(size)))


def LayerNorm(data: Any, gamma: Any, beta: Any, axis: int = -1, eps: float = 1e-5) -> Any:
    """(data - mean) / sqrt(var + eps) * gamma + beta along an axis"""
    return ops.layer_norm(data, gamma, beta, axis=axes_of(data, axis)[0], eps=eps)


def dropout(data: Any, state: Any, p: float, axes: tuple[int, ...] = (), draw: int = 0) -> Any:
    """data / (1 - p) where a random number says keep, else 0; one number for all of `axes`"""
    return ops.dropout(data, state, p=p, draw=draw, axes=axes)
