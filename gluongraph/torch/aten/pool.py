"""Pooling: maxima and averages of windows, of fixed size or adaptive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.storage import Array
from gluongraph.torch.aten.context import OpContext, cast, constant
from gluongraph.torch.aten.conv import each
from gluongraph.torch.aten.index import written
from gluongraph.torch.aten.reduce import largest
from gluongraph.torch.aten.table import aten

Ints = Sequence[int]


def _alone(x: Node, axes: int) -> bool:
    return x.ty.rank == axes + 1


@aten("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    at: OpContext,
    self: Node,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> Node:
    """The largest element of each window"""
    axes = int(at.name[len("max_pool")])
    kernel = each(kernel_size, axes)
    steps, pads, gaps = each(stride, axes) if stride else kernel, each(padding, axes), each(dilation, axes)
    x = ops.expand_dims(self, 0) if _alone(self, axes) else self
    if set(gaps) == {1}:
        y = ops.max_pool(x, kernel, steps, pads, ceil_mode)
    else:
        y = _dilated_max(x, kernel, steps, pads, gaps, ceil_mode)
    return ops.reshape(y, y.shape[1:]) if _alone(self, axes) else y


def _dilated_max(x: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool) -> Node:
    """The maximum axis by axis, the last one first, over the elements that the taps of each window read: so it is the
    first of several equal ones."""
    for a, taps in reversed(list(enumerate(_taps(x.shape[2:], kernel, stride, padding, dilation, ceil)))):
        x = _largest_of(x, a + 2, taps)
    return x


Taps = list[list[int]]


def _taps(size: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool) -> list[Taps]:
    """For each axis, for each window, which elements it reads."""
    found = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        reach = d * (k - 1) + 1
        count = (n + 2 * p - reach + (s - 1 if ceil else 0)) // s + 1
        count -= (count - 1) * s >= n + p
        starts = [i * s - p for i in range(count)]
        found.append([[i for i in range(b, b + reach, d) if 0 <= i < n] for b in starts])
    return found


def _largest_of(x: Node, axis: int, taps: Taps) -> Node:
    """The largest element of each window of an axis, the first of several equal ones."""
    width = max(map(len, taps))
    index = np.array([[*t, *t[-1:] * (width - len(t))] for t in taps], np.int32)
    return largest(ops.take(x, constant(index), axis), axis + 1)


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool1d_with_indices.default")
def max_pool_with_indices(
    at: OpContext,
    self: Node,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> list[Node]:
    """The largest element of each window, and its number among the elements of its channel"""
    axes = int(at.name[len("max_pool")])
    kernel = each(kernel_size, axes)
    steps = each(stride, axes) if stride else kernel
    taps = _taps(self.shape[-axes:], kernel, steps, each(padding, axes), each(dilation, axes), ceil_mode)
    return [max_pool(at, self, kernel_size, stride, padding, dilation, ceil_mode), _numbers(self, taps)]


def _numbers(x: Node, taps: Sequence[Taps]) -> Node:
    """The number, among the elements of the last axes, of the largest of each window."""
    axes = len(taps)
    size, windows = x.shape[-axes:], tuple(map(len, taps))
    width = [max(map(len, t)) for t in taps]
    number = np.zeros((*windows, *width), np.int64)
    for a, t in enumerate(taps):
        index = np.array([[*w, *w[-1:] * (width[a] - len(w))] for w in t])
        shape = [1] * (2 * axes)
        shape[a], shape[axes + a] = index.shape
        number = number * size[a] + index.reshape(shape)
    number = number.reshape(math.prod(windows), math.prod(width))
    lead = x.shape[:-axes]
    flat = ops.reshape(ops.stop_gradient(x), (*lead, math.prod(size)))
    best = ops.argmax(ops.take(flat, constant(number), len(lead)), -1, True, "i64")
    every = ops.broadcast_to(constant(number), (*lead, *number.shape))
    return ops.reshape(ops.gather(every, best, len(lead) + 1), (*lead, *windows))


@aten("max_unpool2d.default", "max_unpool3d.default")
def max_unpool(at: OpContext, self: Node, indices: Node, output_size: Ints, *how: Ints) -> Node:
    """Elements at their numbers among those of a channel, 0 elsewhere"""
    axes = len(output_size)
    lead = self.shape[:-axes]
    count, rows = math.prod(output_size), math.prod(lead)
    base = ops.iota((rows, 1), 0, "i64") * count
    place = ops.add(ops.reshape(cast(indices, "i64"), (rows, indices.ty.size // rows)), base)
    zeros = ops.full((rows * count,), 0, self.dtype)
    row, new = ops.reshape(place, (place.ty.size,)), ops.reshape(self, (self.ty.size,))
    made = ops.stop_gradient(written(zeros, row, new, False))
    # The gradient of a place goes to all that were written there: windows that overlap write one element twice.
    made = ops.add(made, ops.scatter_add(zeros, row, ops.sub(new, ops.stop_gradient(new))))
    return ops.reshape(made, (*lead, *output_size))


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    at: OpContext,
    self: Node,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The average of each window"""
    axes = int(at.name[len("avg_pool")])
    kernel = each(kernel_size, axes)
    steps, pads = each(stride, axes) if stride else kernel, each(padding, axes)
    x = ops.expand_dims(self, 0) if _alone(self, axes) else self
    if divisor_override is not None:
        y = ops.sum_pool(x, kernel, steps, pads, ceil_mode) / float(divisor_override)
    else:
        y = ops.avg_pool(x, kernel, steps, pads, ceil_mode, count_include_pad)
    return ops.reshape(y, y.shape[1:]) if _alone(self, axes) else y


@aten("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default",
      "adaptive_avg_pool3d.default", "_adaptive_avg_pool3d.default")  # fmt: skip
def adaptive_avg_pool(at: OpContext, self: Node, output_size: Ints) -> Node:
    """The average of so many windows, which cover an axis"""
    axes = len(output_size)
    first = self.ty.rank - axes
    if all(n == 1 for n in output_size):
        return ops.mean(self, tuple(range(first, self.ty.rank)), True)
    x, extents = self, self.shape[first:]
    if extents == tuple(output_size):  # windows of one element
        return x
    if all(n % k == 0 for n, k in zip(extents, output_size, strict=True)) and axes == 2 and first == 2:
        kernel = tuple(n // k for n, k in zip(extents, output_size, strict=True))
        return ops.avg_pool(x, kernel, kernel, (0,) * axes)
    for a, k in enumerate(output_size):
        if k != x.shape[first + a]:
            x = mapped(x, first + a, _averages(x.shape[first + a], k))
    return x


def _bounds(n: int, k: int) -> list[tuple[int, int]]:
    return [(i * n // k, -(-(i + 1) * n // k)) for i in range(k)]


def _averages(n: int, k: int) -> Array:
    matrix = np.zeros((n, k))
    for i, (begin, end) in enumerate(_bounds(n, k)):
        matrix[begin:end, i] = 1.0 / (end - begin)
    return matrix


def mapped(x: Node, axis: int, matrix: Array) -> Node:
    """Each line along the axis times a matrix (old, new)."""
    last = ops.moveaxis(x, axis, -1)
    y = ops.matmul(ops.reshape(last, (-1, last.shape[-1])), constant(matrix, x.dtype))
    return ops.moveaxis(ops.reshape(y, (*last.shape[:-1], matrix.shape[1])), -1, axis)


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(at: OpContext, self: Node, output_size: Ints) -> list[Node]:
    """The largest element of so many windows, which cover an axis, and its number among those of its channel"""
    first, x = self.ty.rank - len(output_size), self
    taps = [[list(range(*b)) for b in _bounds(n, k)] for n, k in zip(self.shape[first:], output_size, strict=True)]
    for a, own in reversed(list(enumerate(taps))):
        x = _largest_of(x, first + a, own)
    return [x, _numbers(self, taps)]
