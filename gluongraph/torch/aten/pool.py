"""Pooling: maxima and averages of windows, of fixed size or adaptive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import OpContext, constant
from gluongraph.torch.aten.conv import each
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
    """The maximum axis by axis, over the elements that the taps of each window read."""
    for a, (k, s, p, d) in enumerate(zip(kernel, stride, padding, dilation, strict=True)):
        axis, n = a + 2, x.shape[a + 2]
        reach = d * (k - 1) + 1
        count = (n + 2 * p - reach + (s - 1 if ceil else 0)) // s + 1
        count -= (count - 1) * s >= n + p
        behind = max((count - 1) * s + reach - n - p, 0)
        frame = (
            [p if b == axis else 0 for b in range(x.ty.rank)],
            [behind if b == axis else 0 for b in range(x.ty.rank)],
        )
        index = np.arange(count)[:, None] * s + np.arange(k) * d
        x = ops.max(ops.take(ops.pad(x, *frame, -math.inf), constant(index.astype(np.int32)), axis), axis + 1)
    return x


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool1d_with_indices.default")
def max_pool_with_indices(at: OpContext, self: Node, *args: Ints | bool) -> list[Node]:
    """The largest element of each window; where it is cannot be asked"""
    return [max_pool(at, self, *args)]  # type: ignore[arg-type]


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
    if all(n % k == 0 for n, k in zip(extents, output_size, strict=True)) and axes == 2 and first == 2:
        kernel = tuple(n // k for n, k in zip(extents, output_size, strict=True))
        return ops.avg_pool(x, kernel, kernel, (0,) * axes)
    for a, k in enumerate(output_size):
        if k != x.shape[first + a]:
            x = mapped(x, first + a, _averages(x.shape[first + a], k))
    return x


def _bounds(n: int, k: int) -> list[tuple[int, int]]:
    return [(i * n // k, -(-(i + 1) * n // k)) for i in range(k)]


def _averages(n: int, k: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    matrix = np.zeros((n, k), np.float32)
    for i, (begin, end) in enumerate(_bounds(n, k)):
        matrix[begin:end, i] = 1.0 / (end - begin)
    return matrix


def mapped(x: Node, axis: int, matrix: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Node:
    """Each line along the axis times a matrix (old, new)."""
    last = ops.moveaxis(x, axis, -1)
    y = ops.matmul(ops.reshape(last, (-1, last.shape[-1])), constant(matrix, x.dtype))
    return ops.moveaxis(ops.reshape(y, (*last.shape[:-1], matrix.shape[1])), -1, axis)


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(at: OpContext, self: Node, output_size: Ints) -> list[Node]:
    """The largest element of so many windows, which cover an axis; where it is cannot be asked"""
    first, x = self.ty.rank - len(output_size), self
    for a, k in enumerate(output_size):
        axis = first + a
        parts = [ops.max(ops.part(x, axis, b, e), axis, True) for b, e in _bounds(x.shape[axis], k)]
        x = ops.concat(*parts, axis=axis)
    return [x]
