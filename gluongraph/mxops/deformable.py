"""Deformable convolutions: each element of the kernel reads the image at a place of its own, found by an offset.

Dai and others, Deformable convolutional networks, 2017; Zhu and others, Deformable ConvNets v2, 2018 (with a mask). As
in MXNet 1.9.1 images are (N, C, H, W), offsets (N, 2 groups kh kw, height, width), y before x for each kernel element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.ir.graph import Node

Pair = Sequence[int]


def DeformableConvolution(
    data: Node,
    offset: Node,
    weight: Node,
    bias: Node | None = None,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    dilate: Pair = (1, 1),
    pad: Pair = (0, 0),
    num_filter: int = 1,
    num_group: int = 1,
    num_deformable_group: int = 1,
    no_bias: bool = False,
    layout: str | None = None,
) -> Node:
    """A convolution of what bilinear interpolation gives at moved places; 0 at places outside of the image."""
    shape = _Shape(data, weight, offset, kernel, stride, dilate, pad, num_deformable_group)
    y, x = shape.places(offset)
    inside = ops.logical_and(_between(y, 0.0, float(shape.height)), _between(x, 0.0, float(shape.width)))
    columns = shape.sampled(data, y, x, edges=False)
    columns = ops.where(shape.wide(inside), columns, 0.0)
    return shape.convolved(columns, weight, None if no_bias else bias, num_group)


def ModulatedDeformableConvolution(
    data: Node,
    offset: Node,
    mask: Node,
    weight: Node,
    bias: Node | None = None,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    dilate: Pair = (1, 1),
    pad: Pair = (0, 0),
    num_filter: int = 1,
    num_group: int = 1,
    num_deformable_group: int = 1,
    no_bias: bool = False,
    im2col_step: int = 64,
    layout: str | None = None,
) -> Node:
    """The same with a factor for each kernel element, mask (N, groups kh kw, height, width), and zeros around the
    image, with which its edge is interpolated."""
    shape = _Shape(data, weight, offset, kernel, stride, dilate, pad, num_deformable_group)
    y, x = shape.places(offset)
    columns = shape.sampled(data, y, x, edges=True)
    factor = ops.reshape(mask, y.shape)
    return shape.convolved(ops.mul(columns, shape.wide(factor)), weight, None if no_bias else bias, num_group)


def _between(x: Node, low: float, high: float) -> Node:
    return ops.logical_and(ops.greater_equal(x, low), ops.less(x, high))


class _Shape:
    """The extents of one deformable convolution, and its steps. Points are (N, groups, kernel elements x pixels)."""

    def __init__(
        self,
        data: Node,
        weight: Node,
        offset: Node,
        kernel: Pair,
        stride: Pair,
        dilate: Pair,
        pad: Pair,
        groups: int,
    ):
        self.batch, self.channels, self.height, self.width = data.shape
        self.kernel, self.stride, self.dilate, self.groups, self.pad = kernel, stride, dilate, groups, pad
        self.out = tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(data.shape[2:], pad, dilate, kernel, stride, strict=True)
        )
        self.elements, self.pixels = math.prod(kernel), math.prod(self.out)
        wanted = (self.batch, 2 * groups * self.elements, *self.out)
        if offset.shape != wanted or self.channels % groups:
            message = (
                f"DeformableConvolution: data {data.ty}, weight {weight.ty} and {groups} groups take offsets {wanted}"
            )
            raise ShapeError(with_user_location(f"{message}, not {offset.ty}"))

    def places(self, offset: Node) -> tuple[Node, Node]:
        """y and x of every point."""
        parts = ops.reshape(offset, (self.batch, self.groups, self.elements, 2, *self.out))
        whole = (self.batch, self.groups, self.elements, *self.out)
        found = []
        for axis in (0, 1):
            step = ops.mul(ops.iota(whole, 3 + axis), self.stride[axis])
            element = ops.iota(whole, 2)
            within = (
                ops.floordiv(element, self.kernel[1])
                if axis == 0
                else ops.sub(element, ops.mul(ops.floordiv(element, self.kernel[1]), self.kernel[1]))
            )
            start = ops.sub(ops.add(step, ops.mul(within, self.dilate[axis])), self.pad[axis])
            moved = ops.reshape(ops.part(parts, 3, axis, axis + 1), whole)
            place = ops.add(ops.cast(start, offset.dtype), moved)
            found.append(ops.reshape(place, (self.batch, self.groups, self.elements * self.pixels)))
        return found[0], found[1]

    def wide(self, points: Node) -> Node:
        """A number of each point for all channels of its group."""
        return ops.expand(ops.reshape(points, (*points.shape, 1)), (*points.shape, self.channels // self.groups))

    def sampled(self, data: Node, y: Node, x: Node, edges: bool) -> Node:
        """The image at all points, (*points, channels of a group); with `edges` zeros around it take part."""
        rows = ops.reshape(data, (self.batch * self.groups, self.channels // self.groups, self.height * self.width))
        rows = ops.reshape(ops.transpose(rows, (0, 2, 1)), (-1, self.channels // self.groups))
        top, left = ops.floor(y), ops.floor(x)
        down, right = ops.sub(y, top), ops.sub(x, left)
        total: Node | None = None
        for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
            at_y, at_x = ops.add(top, float(dy)), ops.add(left, float(dx))
            share = ops.mul(down if dy else ops.sub(1.0, down), right if dx else ops.sub(1.0, right))
            if edges:
                there = ops.logical_and(_between(at_y, 0.0, float(self.height)), _between(at_x, 0.0, float(self.width)))
                share = ops.where(there, share, 0.0)
            value = ops.mul(ops.take(rows, self._rows(at_y, at_x), 0), self.wide(share))
            total = value if total is None else ops.add(total, value)
        assert total is not None
        return total

    def _rows(self, y: Node, x: Node) -> Node:
        """The number of a pixel among those of all images and groups, nearest to the place."""
        limits = ((y, self.height), (x, self.width))
        row, column = (ops.cast(ops.minimum(ops.maximum(v, 0.0), float(n - 1)), "i32") for v, n in limits)
        image = ops.add(ops.mul(ops.iota(y.shape, 0), self.groups), ops.iota(y.shape, 1))
        return ops.add(ops.mul(ops.add(ops.mul(image, self.height), row), self.width), column)

    def convolved(self, columns: Node, weight: Node, bias: Node | None, groups: int) -> Node:
        """The product of the weight (filters, C / groups, kh, kw) with what was read."""
        filters = weight.shape[0]
        each = ops.reshape(columns, (self.batch, self.groups, self.elements, self.pixels, self.channels // self.groups))
        inner = self.channels // groups * self.elements
        matrix = ops.reshape(ops.transpose(each, (0, 1, 4, 2, 3)), (self.batch, groups, inner, self.pixels))
        factors = ops.reshape(weight, (1, groups, filters // groups, inner))
        factors = ops.expand(factors, (self.batch, *factors.shape[1:]))
        made = ops.reshape(ops.matmul(factors, matrix), (self.batch, filters, *self.out))
        return made if bias is None else ops.add(made, ops.expand(ops.reshape(bias, (1, filters, 1, 1)), made.shape))
