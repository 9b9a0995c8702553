"""Resampling of images: nearest, linear and cubic, and samples at places that are data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.storage import Array
from gluongraph.torch.aten.context import OpContext, cast, constant
from gluongraph.torch.aten.pool import mapped
from gluongraph.torch.aten.table import aten

Ints = Sequence[int]
Scales = Sequence[float | None] | None


def _targets(
    x: Node, size: Ints | None, factors: Scales | float, *more: float | None
) -> tuple[list[int], list[float | None]]:
    """The new extents, and the factors where those were given."""
    extents = x.shape[2:]
    if size is not None:
        given = (factors if isinstance(factors, (list, tuple)) else (factors, *more)) if factors is not None else ()
        return list(size), list(given) or [None] * len(extents)
    assert factors is not None and not isinstance(factors, float)
    return [math.floor(n * (f or 1.0)) for n, f in zip(extents, factors, strict=True)], list(factors)


def _step(n: int, new: int, factor: float | None, align: bool = False) -> float:
    """How far apart samples lie in the source."""
    if align:
        return (n - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / factor if factor else n / new


# -- nearest


def _nearest(exact: bool, *overloads: str) -> None:
    @aten(*overloads)
    def nearest(
        at: OpContext, input: Node, output_size: Ints | None, scale_factors: Scales = None, *scales: Any
    ) -> Node:
        sizes, factors = _targets(input, output_size, scale_factors, *scales)
        x = input
        for a, (new, factor) in enumerate(zip(sizes, factors, strict=True)):
            n = x.shape[a + 2]
            step = np.float32(_step(n, new, factor))
            place = np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0.0)) * step)
            index = np.clip(place, 0, n - 1).astype(np.int32)
            x = _taken(x, a + 2, index)
        return x


def _taken(x: Node, axis: int, index: Array) -> Node:
    """Lines by number; whole repetitions as an expansion, whose gradient is a sum."""
    n = x.shape[axis]
    if len(index) % n == 0 and np.array_equal(index, np.repeat(np.arange(n), len(index) // n)):
        r = len(index) // n
        apart = ops.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
        told = ops.broadcast_to(apart, (*x.shape[: axis + 1], r, *x.shape[axis + 1 :]))
        return ops.reshape(told, (*x.shape[:axis], n * r, *x.shape[axis + 1 :]))
    return ops.take(x, constant(index), axis)


for _axes in (1, 2, 3):
    _nearest(False, f"upsample_nearest{_axes}d.vec", f"upsample_nearest{_axes}d.default")
    _nearest(True, f"_upsample_nearest_exact{_axes}d.vec", f"_upsample_nearest_exact{_axes}d.default")


# -- linear and cubic


def _linear_weight(distance: Array) -> Array:
    return np.asarray(np.maximum(1.0 - np.abs(distance), 0.0))


def _cubic_weight(a: float) -> Callable[[Array], Array]:
    def weight(distance: Array) -> Array:
        x = np.abs(distance)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))

    return weight


def _matrix(n: int, new: int, step: float, align: bool, cubic: bool, antialias: bool) -> Array:
    """(old, new): the weights of the elements in each sample."""
    at = np.arange(new) * step if align and not antialias else (np.arange(new) + 0.5) * step - 0.5
    if not (align or cubic or antialias):
        at = np.maximum(at, 0.0)
    wide = max(step, 1.0) if antialias else 1.0
    weight = _cubic_weight(-0.5 if antialias else -0.75) if cubic else _linear_weight
    reach = math.ceil((2 if cubic else 1) * wide) + 1
    first = np.floor(at).astype(np.int64) - reach
    matrix = np.zeros((n, new))
    for tap in range(2 * reach + 2):
        index = first + tap
        share = weight((index - at) / wide)
        if antialias:
            share = np.where((index >= 0) & (index < n), share, 0.0)
        np.add.at(matrix, (np.clip(index, 0, n - 1), np.arange(new)), share)
    return matrix / matrix.sum(0) if antialias else matrix


def _smooth(name: str, axes: int, cubic: bool, antialias: bool) -> None:
    @aten(f"{name}.vec", f"{name}.default")
    def smooth(
        at: OpContext,
        input: Node,
        output_size: Ints | None,
        align_corners: bool,
        scale_factors: Scales = None,
        *scales: Any,
    ) -> Node:
        sizes, factors = _targets(input, output_size, scale_factors, *scales)
        if (antialias or not cubic) and tuple(sizes) == input.shape[2:]:  # copied, whatever the factors
            return input
        x = input
        for a, (new, factor) in enumerate(zip(sizes, factors, strict=True)):
            n = x.shape[a + 2]
            if new != n or factor not in (None, 1.0):
                step = _step(n, new, factor, align_corners)
                x = mapped(x, a + 2, _matrix(n, new, step, align_corners, cubic, antialias))
        return x


_smooth("upsample_linear1d", 1, False, False)
_smooth("upsample_bilinear2d", 2, False, False)
_smooth("upsample_trilinear3d", 3, False, False)
_smooth("upsample_bicubic2d", 2, True, False)
_smooth("_upsample_bilinear2d_aa", 2, False, True)
_smooth("_upsample_bicubic2d_aa", 2, True, True)


# -- samples at places that are data


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sampler(
    at: OpContext, input: Node, grid: Node, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Node:
    """Samples of images or volumes at points (x, y) or (x, y, z) between -1 and 1"""
    size, last = input.shape[2:], grid.ty.rank - 1
    points = [ops.reshape(ops.part(grid, last, k, k + 1), grid.shape[:-1]) for k in range(len(size))][::-1]
    places = [
        ((v + 1.0) * ((n - 1) / 2) if align_corners else ((v + 1.0) * n - 1.0) / 2.0)
        for v, n in zip(points, size, strict=True)
    ]

    def held(v: Node, n: int) -> Node:
        return _within(v, n, padding_mode, align_corners)

    if interpolation_mode == 2:
        taps = [_cubic_taps(v, n, held) for v, n in zip(places, size, strict=True)]
    else:
        places = [held(v, n) for v, n in zip(places, size, strict=True)]
        taps = [[(ops.round(v), None)] if interpolation_mode == 1 else _linear_taps(v) for v in places]
    total: Node | None = None
    for chosen in itertools.product(*taps):
        weight: Node | None = None
        for _, share in chosen:
            weight = share if weight is None else weight if share is None else weight * share
        part = _read(input, [ops.stop_gradient(place) for place, _ in chosen], weight)
        total = part if total is None else total + part
    assert total is not None
    return total


Taps = list[tuple[Node, Node | None]]


def _linear_taps(v: Node) -> Taps:
    """The places on both sides of a point along an axis, and their weights."""
    below = ops.stop_gradient(ops.floor(v))
    part = v - below
    return [(below, 1.0 - part), (below + 1.0, part)]


def _cubic_taps(v: Node, n: int, held: Callable[[Node, int], Node]) -> Taps:
    """Four places around a point along an axis, each brought within the image, and their weights."""
    below = ops.stop_gradient(ops.floor(v))
    part, a = v - below, -0.75

    def near(x: Node) -> Node:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0

    def far(x: Node) -> Node:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = (far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part))
    return [(ops.round(held(below + float(k - 1), n)), w) for k, w in enumerate(weights)]


def _within(place: Node, n: int, padding_mode: int, align: bool) -> Node:
    """A place in pixels brought within the image: at its edge, or mirrored; or left where it is."""
    if padding_mode == 0:
        return place
    if padding_mode == 2:
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        if span == 0:
            return place * 0.0
        away = ops.abs(place - low)
        turns = ops.stop_gradient(ops.floor(away / span))
        rest = away - turns * span
        odd = ops.equal(turns - ops.floor(turns / 2.0) * 2.0, 1.0)
        place = ops.where(odd, span - rest, rest) + low
    inside = ops.logical_and(ops.greater(place, 0.0), ops.less(place, n - 1.0))  # no gradient at the edge
    return ops.where(inside, place, ops.stop_gradient(ops.minimum(ops.maximum(place, 0.0), n - 1.0)))


def _read(x: Node, places: Sequence[Node], weight: Node | None) -> Node:
    """The elements at places (N, ...) for each axis, times a weight; 0 outside."""
    n, c, *size = x.shape
    inside, row = None, None
    for v, m in zip(places, size, strict=True):
        hit = ops.logical_and(ops.greater_equal(v, 0.0), ops.less_equal(v, m - 1.0))
        inside = hit if inside is None else ops.logical_and(inside, hit)
        index = cast(ops.minimum(ops.maximum(v, 0.0), m - 1.0), "i32")
        row = index if row is None else row * m + index
    assert inside is not None and row is not None
    place = ops.reshape(row, (n, 1, row.ty.size // n))
    pixels = ops.gather(ops.reshape(x, (n, c, math.prod(size))), ops.broadcast_to(place, (n, c, place.shape[2])), 2)
    share = cast(inside, x.dtype) if weight is None else ops.where(inside, weight, 0.0)
    return ops.reshape(pixels, (n, c, *row.shape[1:])) * ops.reshape(share, (n, 1, *row.shape[1:]))


@aten("affine_grid_generator.default")
def affine_grid(at: OpContext, theta: Node, size: Ints, align_corners: bool) -> Node:
    """The points that affine maps (N, 2, 3) or (N, 3, 4) take the pixels of an image or a volume to"""
    n, _, *extents = size

    def line(k: int) -> Array:
        return np.linspace(-1, 1, k) if align_corners and k > 1 else (np.arange(k) * 2 + 1) / k - 1

    axes = np.meshgrid(*map(line, extents), indexing="ij")[::-1]  # x first
    count = math.prod(extents)
    points = np.stack([*axes, np.ones_like(axes[0])], -1).reshape(count, len(extents) + 1)
    every = ops.broadcast_to(constant(points, theta.dtype), (n, *points.shape))
    return ops.reshape(ops.matmul(every, theta, tb=True), (n, *extents, len(extents)))
