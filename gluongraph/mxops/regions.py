"""Regions of images as arrays of one size: the means of points in each bin, between pixels by bilinear interpolation.

He and others, Mask R-CNN, 2017; Ma and others, Arbitrary-oriented scene text detection via rotation proposals, 2018.
Regions are rows of an image's number and a box. No gradient flows to them.
"""

from __future__ import annotations

import math

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.ir.graph import Node

Pair = tuple[int, int]


def roi_align(
    data: Node,
    rois: Node,
    pooled_size: Pair,
    spatial_scale: float,
    samples: Pair,
    adaptive: bool,
    position_sensitive: bool,
    aligned: bool,
) -> Node:
    """Boxes (image, x0, y0, x1, y1) of data (N, C, H, W) as (boxes, C, *pooled_size); images below 0 give zeros.

    A bin has `samples` points along each axis; if `adaptive`, as many of these as it is pixels long. With
    `position_sensitive` each bin has channels of its own, C / bins of them.
    """
    check_regions("ROIAlign", data, rois, 5)
    images, channels, height, width = data.shape
    count = rois.shape[0]
    number, box = _split(rois, data.dtype)
    x0, y0, x1, y1 = (ops.sub(ops.mul(v, spatial_scale), 0.5 if aligned else 0.0) for v in box)
    along = []
    for start, end, bins, points, extent in (
        (y0, y1, pooled_size[0], samples[0], height),
        (x0, x1, pooled_size[1], samples[1], width),
    ):
        size = ops.sub(end, start)
        line = _Line(size if aligned else ops.maximum(size, 1.0), bins, points, adaptive)
        along.append(line.averaged(_pixels(ops.add(line.places, ops.reshape(start, (count, 1, 1))), extent)))
    rows, columns = along  # (boxes, bins, pixels)
    chosen = ops.one_hot(_image("ROIAlign", number, images), images, data.dtype)
    chosen = ops.where(ops.expand(_column(ops.greater_equal(number, 0.0), 2), chosen.shape), chosen, 0.0)
    bins = pooled_size[0]
    rows = ops.mul(ops.reshape(chosen, (count, 1, images, 1)), ops.reshape(rows, (count, bins, 1, height)))
    pixels = ops.reshape(ops.transpose(data, (0, 2, 1, 3)), (images * height, channels * width))
    made = ops.matmul(ops.reshape(rows, (count * bins, images * height)), pixels)
    made = ops.matmul(ops.reshape(made, (count, bins * channels, width)), columns, tb=True)
    made = ops.transpose(ops.reshape(made, (count, bins, channels, pooled_size[1])), (0, 2, 1, 3))
    return _own_channels(made, pooled_size) if position_sensitive else made


def rroi_align(data: Node, rois: Node, pooled_size: Pair, spatial_scale: float, samples: Pair, adaptive: bool) -> Node:
    """The same of rotated boxes, (image, x, y of the center, width, height, angle in degrees)."""
    check_regions("RROIAlign", data, rois, 6)
    images, channels, height, width = data.shape
    count = rois.shape[0]
    number, (x, y, w, h, degrees) = _split(rois, data.dtype)
    angle = ops.mul(degrees, math.pi / 180)
    sine, cosine = _column(ops.sin(angle), 5), _column(ops.cos(angle), 5)
    sizes = [ops.maximum(ops.mul(v, spatial_scale), 1.0) for v in (h, w)]
    down, right = (_Line(s, n, k, adaptive) for s, n, k in zip(sizes, pooled_size, samples, strict=True))
    dy, dx = (ops.sub(line.places, _column(ops.mul(line.size, 0.5), 3)) for line in (down, right))
    dy = ops.reshape(dy, (count, *dy.shape[1:], 1, 1))
    dx = ops.reshape(dx, (count, 1, 1, *dx.shape[1:]))
    at_x = ops.add(ops.add(ops.mul(dx, cosine), ops.mul(dy, sine)), _column(ops.mul(x, spatial_scale), 5))
    at_y = ops.add(ops.sub(ops.mul(dy, cosine), ops.mul(dx, sine)), _column(ops.mul(y, spatial_scale), 5))
    share = ops.mul(
        ops.reshape(down.shares, (count, 1, samples[0], 1, 1)), ops.reshape(right.shares, (count, 1, 1, 1, samples[1]))
    )
    there = ops.logical_and(_near(at_y, height), _near(at_x, width))
    share = ops.where(ops.logical_and(there, _column(ops.greater_equal(number, 0.0), 5)), share, 0.0)
    pixels = ops.reshape(ops.transpose(data, (0, 2, 3, 1)), (images * height * width, channels))
    image = _column(_image("RROIAlign", number, images), 5)
    total: Node | None = None
    for row, row_share in _neighbours(at_y, height):
        for column, column_share in _neighbours(at_x, width):
            place = ops.add(ops.mul(ops.add(ops.mul(image, height), row), width), column)
            weight = ops.mul(ops.mul(row_share, column_share), share)
            value = ops.mul(ops.take(pixels, place, 0), ops.reshape(weight, (*weight.shape, 1)))
            total = value if total is None else ops.add(total, value)
    assert total is not None
    return ops.transpose(ops.sum(total, (2, 4)), (0, 3, 1, 2))


class _Line:
    """The points of all boxes along one axis, from where a box begins: `places` (boxes, bins, points).

    `shares` (boxes, 1, points) is what each point is in the mean of its bin.
    """

    def __init__(self, size: Node, bins: int, points: int, adaptive: bool):
        (count,) = size.shape
        self.size, shape = size, (count, bins, points)
        length = _column(ops.div(size, float(bins)), 3)
        number = ops.cast(ops.iota((1, 1, points), 2), size.dtype)
        used = ops.ceil(length) if adaptive else ops.full((count, 1, 1), float(points), size.dtype)
        step = ops.div(ops.mul(length, ops.add(number, 0.5)), used)
        self.places = ops.add(ops.mul(ops.cast(ops.iota(shape, 1), size.dtype), length), step)
        self.shares = ops.where(ops.less(number, used), ops.div(1.0, used), 0.0)

    def averaged(self, pixels: Node) -> Node:
        """Shares of pixels in points (boxes, bins, points, pixels) as shares in the means of bins."""
        return ops.sum(ops.mul(pixels, ops.reshape(self.shares, (*self.shares.shape, 1))), 2)


def check_regions(op: str, data: Node, rois: Node, columns: int) -> None:
    """Raise ShapeError unless these are images and rows of so many numbers."""
    if data.ty.rank != 4 or rois.ty.rank != 2 or rois.shape[1] != columns:
        raise ShapeError(
            with_user_location(f"{op}: data (N, C, H, W) and rois (R, {columns}) are needed: {data.ty}, {rois.ty}")
        )


def _split(rois: Node, dtype: str) -> tuple[Node, list[Node]]:
    """The numbers of images, and the other columns as floats of the image's type."""
    fixed = ops.stop_gradient(rois)
    columns = [ops.reshape(ops.part(fixed, 1, i, i + 1), (rois.shape[0],)) for i in range(rois.shape[1])]
    return columns[0], [ops.cast(c, dtype) for c in columns[1:]]


def _image(op: str, number: Node, images: int) -> Node:
    """Numbers of images as integers; those below 0 mean none."""
    help = f"the batch has {images} images, counted from 0"
    return ops.checked_index(number, images, counts=ops.greater_equal(number, 0.0), what=f"{op}: image", help=help)


def _column(x: Node, rank: int) -> Node:
    return ops.reshape(x, (x.shape[0], *(1,) * (rank - 1)))


def _near(place: Node, extent: int) -> Node:
    """Is this within a pixel of the image? Elsewhere it is 0."""
    return ops.logical_and(ops.greater_equal(place, -1.0), ops.less_equal(place, float(extent)))


def _clamped(place: Node, extent: int) -> Node:
    return ops.minimum(ops.maximum(place, 0.0), float(extent - 1))


def _pixels(place: Node, extent: int) -> Node:
    """The share of each pixel of a line in the value at a place: (*place, extent)."""
    at = ops.reshape(_clamped(place, extent), (*place.shape, 1))
    number = ops.cast(ops.iota((*(1,) * place.ty.rank, extent), place.ty.rank), place.dtype)
    share = ops.relu(ops.sub(1.0, ops.abs(ops.sub(at, number))))
    return ops.where(ops.reshape(_near(place, extent), at.shape), share, 0.0)


def _neighbours(place: Node, extent: int) -> list[tuple[Node, Node]]:
    """The pixels before and behind a place, and their shares in the value there."""
    at = _clamped(place, extent)
    low = ops.floor(at)
    behind = ops.sub(at, low)
    high = ops.minimum(ops.add(low, 1.0), float(extent - 1))
    return [(ops.cast(low, "i32"), ops.sub(1.0, behind)), (ops.cast(high, "i32"), behind)]


def _own_channels(made: Node, bins: Pair) -> Node:
    """Of (boxes, C, *bins) the channels that belong to each bin: (boxes, C / bins, *bins)."""
    count, channels, size = made.shape[0], made.shape[1], math.prod(bins)
    if channels % size:
        raise ShapeError(
            with_user_location(f"ROIAlign: {channels} channels are not divided by {bins[0]} x {bins[1]} bins")
        )
    parts = ops.reshape(made, (count, channels // size, size, size))
    own = ops.equal(ops.iota(parts.shape, 2), ops.iota(parts.shape, 3))
    return ops.reshape(ops.sum(ops.where(own, parts, 0.0), 2), (count, channels // size, *bins))
