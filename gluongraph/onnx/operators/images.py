"""Resampling: Resize and Upsample axis by axis, as sums of a few slices; GridSample at places that are data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.mxops.shapes import row_major
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import operator
from gluongraph.storage import Array

MODES = ("nearest", "linear", "cubic")
Ints = tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How one axis is resampled."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _places(how: Sampling, n: int, size: int, scale: float, begin: float, end: float) -> Array:
    """Where the elements of the result lie in the source."""
    at = np.arange(size, dtype=np.float64)
    length = scale * n
    if how.coordinates == "asymmetric":
        return at / scale
    if how.coordinates == "align_corners":
        return at * (n - 1) / (length - 1) if length != 1 else np.zeros(size)
    if how.coordinates == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if length > 1 else np.full(size, -0.5)
    if how.coordinates == "half_pixel_symmetric":
        return n / 2 * (1 - size / length) + (at + 0.5) / scale - 0.5
    if how.coordinates == "tf_crop_and_resize":
        if size == 1:
            return np.full(1, 0.5 * (begin + end) * (n - 1))
        return begin * (n - 1) + at * (end - begin) * (n - 1) / (size - 1)
    return (at + 0.5) / scale - 0.5


def _nearest(places: Array, n: int, rule: str) -> Array:
    rounded = {
        "floor": np.floor(places),
        "ceil": np.ceil(places),
        "round_prefer_floor": np.ceil(places - 0.5),
        "round_prefer_ceil": np.floor(places + 0.5),
    }[rule]
    return np.clip(rounded, 0, n - 1).astype(np.int32)


def _kernel(how: Sampling, x: Array) -> Any:
    """The weight of an element at a distance."""
    x = np.abs(x)
    if how.mode == "linear":
        return np.maximum(1 - x, 0)
    a = how.cubic
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _weights(how: Sampling, places: Array, n: int, scale: float) -> tuple[Array, Array]:
    """Which elements each place reads, and their weights: (size, taps) each."""
    squeeze = min(scale, 1.0) if how.antialias else 1.0
    radius = (1 if how.mode == "linear" else 2) / squeeze
    first = np.floor(places - radius).astype(np.int64) + 1
    taps = math.ceil(2 * radius) + (squeeze < 1)
    index = first[:, None] + np.arange(taps)
    weight = _kernel(how, (index - places[:, None]) * squeeze)
    if how.exclude_outside or how.antialias:
        weight = np.where((index >= 0) & (index < n), weight, 0.0) if how.exclude_outside else weight
        weight = weight / weight.sum(1, keepdims=True)
    return np.clip(index, 0, n - 1).astype(np.int32), weight


def _along(at: NodeContext, x: Node, axis: int, size: int, scale: float, how: Sampling, roi: Sequence[float]) -> Node:
    """One axis resampled."""
    n = x.shape[axis]
    places = _places(how, n, size, scale, *roi)
    if how.mode == "nearest":
        y = ops.take(x, ops.literal(_nearest(places, n, how.nearest)), axis)
    else:
        y = _mixed(at, x, axis, *_weights(how, places, n, scale))
    if how.coordinates != "tf_crop_and_resize":
        return y
    inside = np.asarray((places >= 0) & (places <= n - 1))
    if inside.all():
        return y
    mask = ops.reshape(ops.literal(inside), tuple(size if a == axis else 1 for a in range(x.ty.rank)))
    return ops.where(mask, y, how.extrapolation)


def _mixed(at: NodeContext, x: Node, axis: int, index: Array, weight: Array) -> Node:
    """For each place along the axis the sum of the elements that it reads, by their weights."""
    shape = tuple(len(index) if a == axis else 1 for a in range(x.ty.rank))

    def part(tap: int) -> Node:
        w = ops.reshape(at.constant(weight[:, tap].astype(np.float32)), shape)
        return ops.mul(ops.take(x, ops.literal(index[:, tap]), axis), w)

    return reduce(ops.add, [part(tap) for tap in range(index.shape[1]) if weight[:, tap].any()])


def _resized(
    at: NodeContext, x: Node, sizes: Sequence[int], scales: Sequence[float], how: Sampling, roi: Sequence[float] = ()
) -> Node:
    at.room(sizes)
    given, rank = x.dtype, x.ty.rank
    y = ops.cast(x, "f32") if how.mode != "nearest" and given not in ("f32", "f64") else x
    for a, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        crops = how.coordinates == "tf_crop_and_resize"
        region = (roi[a], roi[a + rank]) if roi else (0.0, 1.0)
        if size != x.shape[a] or scale != 1.0 or (crops and region != (0.0, 1.0)):
            y = _along(at, y, a, size, scale, how, region)
    if y.dtype != given and given[0] in "iu":
        y = ops.round(y)
    return ops.cast(y, given)


@operator("Upsample", since=9, static=("scales",))
def upsample(at: NodeContext, x: Node, scales: Node, *, mode: str = "nearest") -> Node:
    """More elements along axes; what later versions call Resize"""
    factors = [float(n) for n in at.known(scales, "scales")]
    how = Sampling(at.choose("mode", mode, "nearest", "linear"), "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resized(at, x, [int(n * f) for n, f in zip(x.shape, factors, strict=True)], factors, how)


@operator("Resize", since=10, static=("scales",))
def resize_by_scales(at: NodeContext, x: Node, scales: Node, *, mode: str = "nearest") -> Node:
    """More or fewer elements along axes"""
    return upsample(at, x, scales, mode=mode)


@operator("Resize", since=11, static=("roi", "scales", "sizes"))
def resize(
    at: NodeContext,
    x: Node,
    roi: Node | None = None,
    scales: Node | None = None,
    sizes: Node | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Node:
    """More or fewer elements along axes, to given sizes or by given factors"""
    at.choose("mode", mode, *MODES)
    at.choose("nearest_mode", nearest_mode, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    at.choose(
        "coordinate_transformation_mode", coordinate_transformation_mode, "half_pixel", "half_pixel_symmetric",
        "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    )  # fmt: skip
    how = Sampling(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias),
        extrapolation_value,
    )  # fmt: skip
    chosen = at.axes(tuple(range(x.ty.rank)) if axes is None else axes, x.ty.rank)
    extents, factors = list(x.shape), [1.0] * x.ty.rank
    regions = [*(0.0,) * x.ty.rank, *(1.0,) * x.ty.rank]
    region = at.known(roi, "roi").reshape(-1) if roi is not None else ()
    for k, a in enumerate(chosen):
        if len(region):
            regions[a], regions[a + x.ty.rank] = float(region[k]), float(region[k + len(chosen)])
    wanted = at.ints(sizes, "sizes")
    given = at.known(scales, "scales").reshape(-1) if scales is not None and scales.ty.size else None
    if wanted:
        _to_sizes(at, x, chosen, wanted, keep_aspect_ratio_policy, extents, factors)
    elif given is not None:
        for a, factor in zip(chosen, given, strict=True):
            crops = how.coordinates == "tf_crop_and_resize"
            span = regions[a + x.ty.rank] - regions[a] if crops else 1.0
            extents[a], factors[a] = math.floor(x.shape[a] * span * float(factor)), float(factor)
    else:
        raise at.wrong("neither scales nor sizes")
    return _resized(at, x, extents, factors, how, regions)


def _to_sizes(
    at: NodeContext, x: Node, axes: Ints, wanted: Ints, policy: str, extents: list[int], factors: list[float]
) -> None:
    """Extents and factors that sizes ask for; one factor for all axes where their proportion is kept."""
    ratios = [n / x.shape[a] for a, n in zip(axes, wanted, strict=True)]
    if at.choose("keep_aspect_ratio_policy", policy, "stretch", "not_larger", "not_smaller") != "stretch":
        ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(ratios)
        wanted = tuple(math.floor(r * x.shape[a] + 0.5) for a, r in zip(axes, ratios, strict=True))
    for a, n, ratio in zip(axes, wanted, ratios, strict=True):
        extents[a], factors[a] = n, ratio


# -- GridSample


def _mirrored(at: Node, low: float, high: float) -> Node:
    """Places outside of a span, reflected at its ends as often as it takes."""
    span = high - low
    if span <= 0:
        return ops.full(at.shape, 0.0, at.dtype)
    away = ops.abs(ops.sub(at, low))
    turns, rest = ops.floor(ops.div(away, span)), ops.mod(away, ops.full((), span, at.dtype))
    odd = ops.greater(ops.mod(turns, ops.full((), 2.0, at.dtype)), 0.5)
    return ops.where(odd, ops.sub(high, rest), ops.add(rest, low))


@dataclass(frozen=True)
class Grid:
    """An array (n, c, the axes) that is read at places."""

    x: Node
    padding: str
    align: bool

    def read(self, places: Sequence[Node]) -> Node:
        """The elements (n, c, places) at whole numbers, (n, places) for each axis; outside as the padding says."""
        size = self.x.shape[2:]
        inside: list[Node] = []
        whole: list[Node] = []
        for place, n in zip(places, size, strict=True):
            if self.padding == "reflection":
                place = _mirrored(place, 0.0, n - 1.0) if self.align else _mirrored(place, -0.5, n - 0.5)
            inside.append(ops.logical_and(ops.greater_equal(place, 0.0), ops.less_equal(place, n - 1.0)))
            whole.append(ops.cast(ops.round(ops.minimum(ops.maximum(place, 0.0), n - 1.0)), "i32"))
        flat = row_major(whole, size)
        n, c = self.x.shape[:2]
        rows = ops.reshape(self.x, (n, c, math.prod(size)))
        wide = (n, c, flat.shape[1])
        found = ops.gather(rows, ops.broadcast_to(ops.expand_dims(flat, 1), wide), 2)
        if self.padding != "zeros":
            return found
        within = ops.expand_dims(reduce(ops.logical_and, inside), 1)
        return ops.where(ops.broadcast_to(within, wide), found, 0.0)


def _cubic(t: Node) -> list[Node]:
    """The weights of the four elements around a place, a = -0.75."""
    a = -0.75

    def far(x: Any) -> Node:
        return ops.sub(ops.mul(ops.add(ops.mul(ops.sub(ops.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)

    def near(x: Any) -> Node:
        return ops.add(ops.mul(ops.mul(ops.sub(ops.mul(x, a + 2), a + 3), x), x), 1.0)

    return [far(ops.add(t, 1.0)), near(t), near(ops.sub(1.0, t)), far(ops.sub(2.0, t))]


@operator("GridSample", since=16)
def grid_sample(
    at: NodeContext, x: Node, grid: Node, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Node:
    """x at places from -1 to 1 that the grid names, the last axis of x first"""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    at.choose("mode", mode, *MODES)
    at.choose("padding_mode", padding_mode, "zeros", "border", "reflection")
    size, points = x.shape[2:], math.prod(grid.shape[1:-1])
    if grid.shape[-1] != len(size) or (mode == "cubic" and len(size) != 2):
        raise at.unsupported(f"mode={mode!r} with a grid {grid.ty} on {x.ty}")
    source = Grid(x, padding_mode, bool(align_corners))
    flat = ops.reshape(grid, (grid.shape[0], points, len(size)))
    places: list[Node] = []
    for k, n in enumerate(reversed(size)):
        unit = ops.squeeze(ops.part(flat, 2, k, k + 1), 2)
        half = ops.mul(ops.add(unit, 1.0), 0.5)
        place = ops.mul(half, n - 1.0) if align_corners else ops.sub(ops.mul(half, float(n)), 0.5)
        if padding_mode == "border" and mode != "cubic":
            place = ops.minimum(ops.maximum(place, 0.0), n - 1.0)
        elif padding_mode == "reflection" and mode != "cubic":
            low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
            place = ops.minimum(ops.maximum(_mirrored(place, low, high), 0.0), n - 1.0)
        places.insert(0, place)
    made = _sampled(source, places, mode)
    return ops.reshape(made, (*x.shape[:2], *grid.shape[1:-1]))


def _sampled(source: Grid, places: list[Node], mode: str) -> Node:
    if mode == "nearest":
        return source.read([ops.round(p) for p in places])
    below = [ops.floor(p) for p in places]
    apart = [ops.sub(p, b) for p, b in zip(places, below, strict=True)]
    offsets = (0.0, 1.0) if mode == "linear" else (-1.0, 0.0, 1.0, 2.0)
    weights = [[ops.sub(1.0, t), t] if mode == "linear" else _cubic(t) for t in apart]

    def part(tap: tuple[int, ...]) -> Node:
        value = source.read([ops.add(b, offsets[k]) for b, k in zip(below, tap, strict=True)])
        weight = reduce(ops.mul, [weights[axis][k] for axis, k in enumerate(tap)])
        return ops.mul(value, ops.expand_dims(weight, 1))

    return reduce(ops.add, map(part, itertools.product(range(len(offsets)), repeat=len(places))))
