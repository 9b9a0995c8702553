"""Pooling. Windows with steps between their elements are slices that are joined elementwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.reduce import worst
from gluongraph.onnx.operators.table import operator
from gluongraph.onnx.operators.windows import Sliding, Windows, framed

Ints = tuple[int, ...]


def _whole(x: Node, how: Windows, ceil: bool, value: float | int) -> tuple[Node, Ints]:
    """The array with its padding, and behind it as much more as the last windows reach; and the number of windows."""
    size = x.shape[2:]
    places = how.places(size, ceil)
    reach = [(n - 1) * s + r for n, s, r in zip(places, how.stride, how.reach, strict=True)]
    after = [max(r - n - b, 0) for r, n, b in zip(reach, size, how.before, strict=True)]
    return framed(x, how.before, after, value), places


def _taps(x: Node, how: Windows, places: Ints) -> Iterator[tuple[Ints, Node]]:
    """For each place in the window: itself, and what lies there in all windows."""
    for tap in itertools.product(*map(range, how.kernel)):
        begin = [t * d for t, d in zip(tap, how.dilation, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, places, how.stride, strict=True)]
        yield tap, ops.slice(x, (0, 0, *begin), (*x.shape[:2], *end), (1, 1, *how.stride))


@operator("MaxPool")
def max_pool(
    at: NodeContext,
    x: Node,
    *,
    ceil_mode: int = 0,
    kernel_shape: Ints,
    storage_order: int = 0,
    sliding: Sliding,
) -> list[Value]:
    """The largest element of each window, and where it lies"""
    how = sliding.windows(at, x.shape[2:], kernel_shape, bool(ceil_mode))
    lowest = worst(x.dtype, True)
    if at.wants(1):
        return _with_indices(at, x, how, bool(ceil_mode), bool(storage_order))
    if is_float(x.dtype) and how.symmetric and not ceil_mode and max(how.dilation) == 1:
        return [ops.max_pool(x, how.kernel, how.stride, how.before)]
    whole, places = _whole(x, how, bool(ceil_mode), lowest)
    if is_float(x.dtype) and max(how.dilation) == 1:
        reach = [(n - 1) * s + r for n, s, r in zip(places, how.stride, how.reach, strict=True)]
        whole = ops.slice(whole, (0,) * x.ty.rank, (*x.shape[:2], *reach))
        return [ops.max_pool(whole, how.kernel, how.stride, (0,) * len(places))]
    found = None
    for _, tap in _taps(whole, how, places):
        found = tap if found is None else ops.maximum(found, tap)
    return [found]


def _with_indices(at: NodeContext, x: Node, how: Windows, ceil: bool, by_columns: bool) -> list[Value]:
    whole, places = _whole(x, how, ceil, worst(x.dtype, True))
    size = x.shape[2:]
    strides = [math.prod(size[a + 1 :]) for a in range(len(size))]
    if by_columns:
        strides = [math.prod(size[:a]) for a in range(len(size))]
    planes = ops.reshape(ops.iota((x.shape[0] * x.shape[1],), 0, "i64"), (*x.shape[:2], *(1,) * len(size)))
    best = where = None
    for tap, values in _taps(whole, how, places):
        index = ops.mul(planes, math.prod(size))
        for a, stride in enumerate(strides):
            first = tap[a] * how.dilation[a] - how.before[a]
            along = ops.add(ops.mul(ops.iota((places[a],), 0, "i64"), how.stride[a]), first)
            shape = tuple(places[a] if b == a else 1 for b in range(len(size)))
            index = ops.add(index, ops.reshape(ops.mul(along, stride), (1, 1, *shape)))
        index = ops.broadcast_to(index, values.shape)
        if best is None or where is None:
            best, where = values, index
        else:
            better = ops.greater(values, best)
            best, where = ops.where(better, values, best), ops.where(better, index, where)
    return [best, where]


@operator("AveragePool")
def average_pool(
    at: NodeContext,
    x: Node,
    *,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Ints,
    sliding: Sliding,
) -> Node:
    """The mean of each window, with or without the padding"""
    how = sliding.windows(at, x.shape[2:], kernel_shape, bool(ceil_mode))
    if how.symmetric and not ceil_mode and max(how.dilation) == 1:
        return ops.avg_pool(x, how.kernel, how.stride, how.before, count_include_pad=bool(count_include_pad))
    total = _sums(x, how, bool(ceil_mode))
    counted = ops.full((1, 1, *x.shape[2:]), 1.0, x.dtype)
    if count_include_pad:  # the padding counts, what hangs over behind it does not
        counted = ops.full(
            (1, 1, *(n + b + a for n, b, a in zip(x.shape[2:], how.before, how.after, strict=True))), 1.0, x.dtype
        )
        none = (0,) * len(how.kernel)
        how = Windows(how.kernel, how.stride, how.dilation, none, none)
    return ops.div(total, _sums(counted, how, bool(ceil_mode), total.shape[2:]))


def _sums(x: Node, how: Windows, ceil: bool, places: Ints | None = None) -> Node:
    """The sum of each window, padding counting as 0."""
    places = places or how.places(x.shape[2:], ceil)
    reach = [(n - 1) * s + r for n, s, r in zip(places, how.stride, how.reach, strict=True)]
    after = [max(r - n - b, 0) for r, n, b in zip(reach, x.shape[2:], how.before, strict=True)]
    whole, found = framed(x, how.before, after, 0.0), None
    if max(how.dilation) == 1:
        whole = ops.slice(whole, (0,) * x.ty.rank, (*x.shape[:2], *reach))
        mean = ops.avg_pool(whole, how.kernel, how.stride, (0,) * len(places))
        return ops.mul(mean, float(math.prod(how.kernel)))
    for _, tap in _taps(whole, how, places):
        found = tap if found is None else ops.add(found, tap)
    assert found is not None
    return found


@operator("LpPool")
def lp_pool(at: NodeContext, x: Node, *, ceil_mode: int = 0, kernel_shape: Ints, p: int = 2, sliding: Sliding) -> Node:
    """The p-norm of each window"""
    how = sliding.windows(at, x.shape[2:], kernel_shape, bool(ceil_mode))
    powers = ops.abs(x) if p == 1 else ops.mul(x, x) if p == 2 else ops.pow(ops.abs(x), float(p))
    total = _sums(powers, how, bool(ceil_mode))
    return total if p == 1 else ops.sqrt(total) if p == 2 else ops.pow(total, 1.0 / p)


def _inner(x: Node) -> Ints:
    return tuple(range(2, x.ty.rank))


@operator("GlobalAveragePool")
def global_average_pool(at: NodeContext, x: Node) -> Node:
    """The mean of each channel"""
    return ops.mean(x, axis=_inner(x), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(at: NodeContext, x: Node) -> Node:
    """The largest element of each channel; the first of equal ones has its gradient, as in other windows"""
    if not is_float(x.dtype):
        return ops.max(x, axis=_inner(x), keepdims=True)
    rank = x.ty.rank - 2
    return ops.max_pool(x, x.shape[2:], (1,) * rank, (0,) * rank)


@operator("GlobalLpPool", since=2)
def global_lp_pool(at: NodeContext, x: Node, *, p: int = 2) -> Node:
    """The p-norm of each channel"""
    return ops.pow(ops.sum(ops.pow(ops.abs(x), float(p)), axis=_inner(x), keepdims=True), 1.0 / p)


@operator("MaxUnpool", since=9, static=("output_shape",))
def max_unpool(
    at: NodeContext,
    x: Node,
    indices: Node,
    output_shape: Node | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Node:
    """Zeros, with x at the places where a MaxPool found it"""
    axes = len(kernel_shape)
    stride, around = strides or (1,) * axes, pads or (0,) * (2 * axes)
    size = tuple(
        (n - 1) * s + k - around[a] - around[a + axes]
        for a, (n, s, k) in enumerate(zip(x.shape[2:], stride, kernel_shape, strict=True))
    )
    shape = at.ints(output_shape, "output_shape") or (*x.shape[:2], *size)
    index = indices
    if shape[2:] != size:  # the indices count in the extents that follow from the attributes
        index, rest = ops.full(indices.shape, 0, "i64"), indices
        for a, n in reversed(list(enumerate((*x.shape[:2], *size)))):
            index = ops.add(index, ops.mul(ops.mod(rest, n), math.prod(shape[a + 1 :])))
            rest = ops.floordiv(rest, n)
    flat = ops.full((math.prod(at.room(shape)),), 0, x.dtype)
    made = ops.scatter_add(flat, ops.reshape(index, (x.ty.size,)), ops.reshape(x, (x.ty.size,)))
    return ops.reshape(made, shape)
