"""Convolutions, transposed convolutions, and windows as columns (unfold, fold)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import OpContext, cast, constant
from gluongraph.torch.aten.table import aten

Ints = Sequence[int]


def each(value: int | Ints, axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * axes if len(given) == 1 else given


def _batched(input: Node, weight: Node) -> tuple[Node, bool]:
    """The data with an axis of samples; whether that has been added."""
    alone = input.ty.rank == weight.ty.rank - 1
    return (ops.expand_dims(input, 0) if alone else input), alone


def _finished(y: Node, bias: Node | None, alone: bool) -> Node:
    if bias is not None:
        y = ops.add(y, ops.reshape(bias, (1, bias.ty.size, *(1,) * (y.ty.rank - 2))))
    return ops.reshape(y, y.shape[1:]) if alone else y


@aten("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    at: OpContext,
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Node:
    """Sums over windows of all channels of a group, and a bias per channel"""
    axes = weight.ty.rank - 2
    x, alone = _batched(input, weight)
    y = ops.conv(x, weight, each(stride, axes), each(padding, axes), each(dilation, axes), groups)
    return _finished(y, bias, alone)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    at: OpContext,
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = (1,),
    padding: str = "valid",
    dilation: Ints = (1,),
    groups: int = 1,
) -> Node:
    """The same, padded "same" or not ("valid")"""
    axes = weight.ty.rank - 2
    x, alone = _batched(input, weight)
    total = [0] * axes
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(each(dilation, axes), weight.shape[2:], strict=True)]
    before = tuple(t // 2 for t in total)
    if any(t % 2 for t in total):  # one more behind
        x = ops.pad(x, (0, 0, *before), (0, 0, *(t - t // 2 for t in total)))
        before = (0,) * axes
    y = ops.conv(x, weight, each(stride, axes), before, each(dilation, axes), groups)
    return _finished(y, bias, alone)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    at: OpContext,
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    output_padding: Ints = (0,),
    groups: int = 1,
    dilation: Ints = (1,),
) -> Node:
    """The gradient of a convolution for its data"""
    axes = weight.ty.rank - 2
    x, alone = _batched(input, weight)
    steps, gaps, pads, more = (each(v, axes) for v in (stride, dilation, padding, output_padding))
    if all(m < s for m, s in zip(more, steps, strict=True)):
        y = ops.conv_transpose(x, weight, steps, pads, gaps, groups, more)
    else:  # what lies behind the last window is 0
        y = ops.conv_transpose(x, weight, steps, (0,) * axes, gaps, groups, (0,) * axes)
        size = [n + m - 2 * p for n, m, p in zip(y.shape[2:], more, pads, strict=True)]
        behind = [max(p + n - have, 0) for p, n, have in zip(pads, size, y.shape[2:], strict=True)]
        y = ops.pad(y, [0] * (axes + 2), [0, 0, *behind])
        ends = [p + n for p, n in zip(pads, size, strict=True)]
        y = ops.slice(y, (0, 0, *pads), (*y.shape[:2], *ends))
    return _finished(y, bias, alone)


@aten("convolution.default")
def convolution(
    at: OpContext,
    input: Node,
    weight: Node,
    bias: Node | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Node:
    """A convolution of either kind"""
    if transposed:
        return conv_transpose(at, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(at, input, weight, bias, stride, padding, dilation, groups)


# -- windows as columns


@aten("im2col.default")
def im2col(at: OpContext, self: Node, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Node:
    """(N, C, H, W) -> (N, C kh kw, windows)"""
    if self.ty.rank == 3:
        alone = im2col(at, ops.expand_dims(self, 0), kernel_size, dilation, padding, stride)
        return ops.reshape(alone, alone.shape[1:])
    n, c, h, w = self.shape
    rows, columns = _windows((h, w), kernel_size, dilation, padding, stride)
    x = ops.pad(self, (0, 0, *padding), (0, 0, *padding))
    x = ops.take(ops.take(x, constant(columns), 3), constant(rows), 2)  # (n, c, kh, oh, kw, ow)
    x = ops.transpose(x, (0, 1, 2, 4, 3, 5))
    return ops.reshape(x, (n, c * math.prod(kernel_size), rows.shape[1] * columns.shape[1]))


@aten("col2im.default")
def col2im(
    at: OpContext, self: Node, output_size: Ints, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Node:
    """(N, C kh kw, windows) -> (N, C, H, W): elements of several windows are summed"""
    if self.ty.rank == 2:
        alone = col2im(at, ops.expand_dims(self, 0), output_size, kernel_size, dilation, padding, stride)
        return ops.reshape(alone, alone.shape[1:])
    h, w = output_size
    rows, columns = _windows((h, w), kernel_size, dilation, padding, stride)
    n, c = self.shape[0], self.shape[1] // math.prod(kernel_size)
    wide, tall = w + 2 * padding[1], h + 2 * padding[0]
    place = rows[:, None, :, None] * wide + columns[None, :, None, :]  # (kh, kw, oh, ow)
    flat = ops.transpose(ops.reshape(self, (n * c, place.size)), (1, 0))
    zeros = ops.full((tall * wide, n * c), 0, self.dtype)
    image = ops.scatter_add(zeros, constant(place.reshape(-1).astype(np.int32)), flat)
    image = ops.reshape(ops.transpose(image, (1, 0)), (n, c, tall, wide))
    return ops.slice(image, (0, 0, padding[0], padding[1]), (n, c, padding[0] + h, padding[1] + w))


def _windows(
    size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int32]], ...]:
    """For each axis which element of the padded axis each tap of each window reads: (taps, windows)."""
    found = []
    for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1) // s + 1
        found.append((np.arange(k)[:, None] * d + np.arange(count) * s).astype(np.int32))
    return tuple(found)


@aten("pixel_shuffle.default")
def pixel_shuffle(at: OpContext, self: Node, upscale_factor: int) -> Node:
    """(*, C r², H, W) -> (*, C, H r, W r)"""
    *lead, c, h, w = self.shape
    r = upscale_factor
    x = ops.reshape(self, (-1, c // (r * r), r, r, h, w))
    return ops.reshape(ops.transpose(x, (0, 1, 4, 2, 5, 3)), (*lead, c // (r * r), h * r, w * r))


@aten("pixel_unshuffle.default")
def pixel_unshuffle(at: OpContext, self: Node, downscale_factor: int) -> Node:
    """(*, C, H r, W r) -> (*, C r², H, W)"""
    *lead, c, h, w = self.shape
    r = downscale_factor
    x = ops.reshape(self, (-1, c, h // r, r, w // r, r))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 5, 2, 4)), (*lead, c * r * r, h // r, w // r))


@aten("channel_shuffle.default", "native_channel_shuffle.default")
def channel_shuffle(at: OpContext, self: Node, groups: int) -> Node:
    """The channels of all groups, one of each in turn"""
    n, c, *size = self.shape
    x = ops.reshape(self, (n, groups, c // groups, math.prod(size)))
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), self.shape)


@aten("_weight_norm.default", "_weight_norm_interface.default")
def weight_norm(at: OpContext, v: Node, g: Node, dim: int = 0) -> Node | list[Node]:
    """v g / |v|, the norm over all axes but one"""
    axis = dim % v.ty.rank
    norm = ops.sqrt(ops.sum(v * v, tuple(a for a in range(v.ty.rank) if a != axis), True))
    y = v * (cast(g, v.dtype) / norm)
    return [y, ops.stop_gradient(norm)] if "interface" in at.name else y
