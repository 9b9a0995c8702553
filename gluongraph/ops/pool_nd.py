"""Pooling over one, two or three axes, made of that of images.

A line is an image of one row. Over a volume, maxima and averages are taken of rows and columns first, then of the
slices, as an image whose rows are whole slices: nothing is copied, and the first largest element stays the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph.ir.graph import Node
from gluongraph.ops import elementwise, movement
from gluongraph.ops.checks import misfit
from gluongraph.ops.pool import avg_pool2d, max_pool2d, places

Pool = Callable[..., Node]


def max_pool(x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool = False) -> Node:
    """The largest element of each window over the one, two or three axes behind the channels."""
    return _pooled(max_pool2d, x, kernel, stride, padding, ceil=ceil)


def avg_pool(
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The average of each window; with `count_include_pad` the padding counts as zeros."""
    return _pooled(avg_pool2d, x, kernel, stride, padding, ceil=ceil, count_include_pad=count_include_pad)


def sum_pool(x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool = False) -> Node:
    """The sum of each window: the average of zero-padded data, times the number of elements."""
    size = x.shape[2:]
    counts = [places(*each, ceil) for each in zip(size, kernel, stride, padding, strict=True)]
    reach = [(count - 1) * s + k for count, k, s in zip(counts, kernel, stride, strict=True)]
    behind = [max(r - n - p, 0) for r, n, p in zip(reach, size, padding, strict=True)]
    framed = movement.pad(x, (0, 0, *padding), (0, 0, *behind), 0.0)
    return elementwise.mul(avg_pool(framed, kernel, stride, (0,) * len(size)), float(math.prod(kernel)))


def _pooled(
    pool: Pool, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], **how: Any
) -> Node:
    axes = x.ty.rank - 2
    if axes not in (1, 2, 3) or not len(kernel) == len(stride) == len(padding) == axes:
        help = "data (N, C, axes) of one, two or three axes, and a number for each in kernel, stride and padding"
        raise misfit(pool.__name__, f"a window {tuple(kernel)} does not fit", x.ty, help=help)
    if axes == 2:
        return pool(x, kernel, stride, padding, **how)
    if axes == 1:
        y = pool(movement.reshape(x, (*x.shape[:2], 1, x.shape[2])), (1, *kernel), (1, *stride), (0, *padding), **how)
        return movement.reshape(y, (*y.shape[:2], y.shape[3]))
    n, c, depth, *size = x.shape
    y = pool(movement.reshape(x, (n, c * depth, *size)), kernel[1:], stride[1:], padding[1:], **how)
    rows = movement.reshape(y, (n, c, depth, y.shape[2] * y.shape[3]))
    z = pool(rows, (kernel[0], 1), (stride[0], 1), (padding[0], 0), **how)
    return movement.reshape(z, (n, c, z.shape[2], *y.shape[2:]))
