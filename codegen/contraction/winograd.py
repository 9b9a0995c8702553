"""Winograd convolution along rows in the NCHWn layout: fewer multiplications, of columns and taps that are transformed.

A row of columns and a row of taps are coefficients of polynomials, and the columns of the result are coefficients of
their product. So both are evaluated at six points (0, 3/4, -3/4, 3/2, -3/2, infinity), multiplied there, summed over
channels and rows of taps, and transformed back once: four columns of three taps take six multiplications instead of
twelve, two of five six instead of ten, and so do as many gradients of taps. Transforms work on vectors over images.
S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
Networks, 2016.

Rounding: with N terms summed at a point and u = 2**-24, an error is at most (N + 12) u * a N max|x| max|w| to first
order, a = 28 for three taps, 34 for their gradients, 40 for five; of direct sums of three 3 N u * 3 N max|x| max|w|.
These points keep a low (1, -1, 2, -2 make it 48 to 58): of normally distributed values the error is 1.0 to 1.6 times
that of direct sums, of values far from 0 less than theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel

POINTS = 6  # interpolation points along a row
TAPS = range(3, POINTS)  # widths of kernels that so many points support
PAIRS = {4: (1.0,), 6: (0.75, 1.5)}  # by the number of points: the points besides 0 and infinity, each with both signs

CHANNELS = 12  # with fewer, the transforms cost what they save
WORTH = 0.65  # multiplications in the Winograd domain, relative to those of direct convolution, below which it pays
# Geometric mean of input and output channels, times lanes: above, the transformed weights exceed the caches in forward
# and data gradient, sooner the more lanes use each of them.
MANY = 128 * 16


def is_supported(conv: Conv) -> bool:
    """Is the kernel three to five taps wide, with stride, dilation and groups of 1?"""
    return conv.kernel[1] in TAPS and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)


def columns_per_tile(taps: int, points: int = POINTS) -> int:
    """Return the columns of the result in one tile."""
    return points + 1 - taps


def is_profitable(op: str, conv: Conv, cpu: Cpu) -> bool:
    """Is it faster than the direct algorithm: enough channels, not too many, and little padding of rows to tiles?"""
    many = op != "conv2d_weight_grad" and conv.c * conv.o * cpu.lanes**2 > MANY**2
    if not is_supported(conv) or min(conv.c, conv.o) < CHANNELS or many:
        return False
    taps = conv.kernel[1]
    tiles = mk.ceildiv(conv.w if op == "conv2d_data_grad" else conv.out[1], columns_per_tile(taps))
    return tiles > 1 and tiles * POINTS < WORTH * taps_inside(conv, 1)


def taps_inside(conv: Conv, axis: int) -> int:
    """Return how many (pixel, tap) pairs along rows or columns are inside the image, with stride 1."""
    places = range(-conv.padding[axis], conv.out[axis] - conv.padding[axis])
    return sum(0 <= place + tap < (conv.h, conv.w)[axis] for place in places for tap in range(conv.kernel[axis]))


class ConvSides(NamedTuple):
    """Source and result of a convolution: rows and columns of both, channels that are summed over, and that are
    produced, and the zero padding above and left of the source."""

    source: Pair
    target: Pair
    reduced: int
    made: int
    padding: Pair


def forward(conv: Conv) -> ConvSides:
    """Return those of the convolution itself."""
    return ConvSides((conv.h, conv.w), conv.out, conv.c, conv.o, conv.padding)


def data_grad(conv: Conv) -> ConvSides:
    """Return those of the data gradient, a convolution of the upstream gradient with the kernel rotated by 180
    degrees."""
    padding = (conv.kernel[0] - 1 - conv.padding[0], conv.kernel[1] - 1 - conv.padding[1])
    return ConvSides(conv.out, (conv.h, conv.w), conv.o, conv.c, padding)


class WinogradTransform:
    """Winograd transforms along one axis, to `number` points and back, on vectors of `lanes` lanes. None is zero."""

    def __init__(self, k: Kernel, lanes: int, dtype: str, number: int = POINTS):
        self._k, self._lanes, self._dtype, self._pairs = k, lanes, dtype, PAIRS[number]

    def transform_data(self, d: Sequence[Expr | None]) -> list[Expr | None]:
        """Transform pixels of the source; a point's row is the polynomial that is zero at all other points."""
        all_points, transformed = _polynomial(self._pairs), []
        for point in self._pairs:
            others = _polynomial([other for other in self._pairs if other != point])
            even, odd = self._sum(others, d[2::2]), self._sum(others, d[1::2])
            transformed += [self._plus(even, point, odd), self._plus(even, -point, odd)]
        return [self._sum(all_points, d[0::2]), *transformed, self._sum(all_points, d[1::2])]

    def transform_filter(self, w: Sequence[Expr | None]) -> list[Expr | None]:
        """Transform taps, or pixels of a gradient in their place, except for the factors of `scaled`."""

        def at(point: float) -> list[Expr | None]:
            halves: list[Expr | None] = [None, None]  # even powers, odd powers
            for i, x in enumerate(w):
                halves[i % 2] = self._plus(halves[i % 2], point**i, x)
            return [self._plus(halves[0], 1, halves[1]), self._plus(halves[0], -1, halves[1])]

        return [w[0], *(value for point in self._pairs for value in at(point)), w[-1]]

    def scaled(self, values: Sequence[Expr | None]) -> list[Expr | None]:
        """Divide values in the Winograd domain by the points' divisors: either the transformed taps, or sums of
        products with them."""
        zero = _polynomial(self._pairs)[0]
        divisors = [zero, *(d for point in self._pairs for d in (self._divisor(point),) * 2), 1.0]
        return [self._plus(None, 1 / divisor, value) for value, divisor in zip(values, divisors, strict=True)]

    def _divisor(self, point: float) -> float:
        """Return the product of a point's distances to the others: the value of its polynomial at the point."""
        return 2 * point**2 * math.prod(point**2 - other**2 for other in self._pairs if other != point)

    def inverse(self, m: Sequence[Expr | None], count: int) -> list[Expr | None]:
        """Transform sums of products back to `count` pixels, or taps."""
        pairs = [(m[i], m[i + 1]) for i in range(1, len(m) - 1, 2)]
        sums = [self._plus(plus, 1, minus) for plus, minus in pairs]
        differences = [self._plus(plus, -1, minus) for plus, minus in pairs]
        ends, found = {0: m[0], count - 1: m[-1]}, []
        for i in range(count):
            value = ends.get(i)
            for point, part in zip(self._pairs, differences if i % 2 else sums, strict=True):
                value = self._plus(value, point**i, part)
            found.append(value)
        return found

    def _sum(self, factors: Sequence[float], values: Sequence[Expr | None]) -> Expr | None:
        """Return the sum of factors times values, added from the last to the first."""
        total: Expr | None = None
        for factor, value in reversed(list(zip(factors, values, strict=False))):
            total = self._plus(total, factor, value)
        return total

    def _plus(self, x: Expr | None, factor: float, y: Expr | None) -> Expr | None:
        """Return x + factor * y."""
        if y is None or (x is None and factor == 1):
            return x if y is None else y
        if x is not None and abs(factor) == 1:
            return self._k.bind(x + y if factor == 1 else x - y, "sum")
        scale = tir.splat(tir.const(factor, self._dtype), self._lanes)
        if x is None:
            return self._k.bind(y * scale, "sum")
        return self._k.bind(tir.llvm("llvm.fmuladd", self._dtype, self._lanes, y, scale, x), "sum")


def _polynomial(points: Sequence[float]) -> list[float]:
    """Return the coefficients of even powers of the product of x**2 - point**2, the lowest first."""
    coefficients = [1.0]
    for point in points:
        shifted = zip([0.0, *coefficients], [*coefficients, 0.0], strict=True)
        coefficients = [high - point**2 * low for high, low in shifted]
    return coefficients


class WinogradKernel(Job):
    """A Winograd convolution or gradient along rows, with vectors over images; each point has a plane of its own."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.height, self.taps = conv.kernel
        self.across = columns_per_tile(self.taps)

    def tiles_of(
        self, k: Kernel, images: Buf, row: Expr, width: int, first: int, size: int, tiles: int
    ) -> Iterator[tuple[Expr, list[Expr | None]]]:
        """Loops over the tiles of the row that begins at `row`: (tile, its `size` columns); the first tile's start at
        column `first`."""

        def inside(tile: int) -> tuple[bool, ...]:
            return tuple(0 <= tile * self.across + first + i < width for i in range(size))

        for there, run in groupby(range(tiles), key=inside):
            found = list(run)
            with k.loop(len(found), name="tile") as t:
                tile = k.bind(t + found[0], "tile")
                at = k.bind(row + (tile * self.across + first) * self.lanes, "at")
                columns = (k.load(images, at + i * self.lanes, self.lanes) for i in range(size))
                yield tile, [k.bind(d, "d") if known else None for d, known in zip(columns, there, strict=True)]

    def put(self, k: Kernel, values: Sequence[Expr | None], into: Buf, at: Expr, plane: int) -> None:
        """Store transformed values, one in the plane of each point; planes are `plane` elements apart."""
        zero = tir.splat(tir.const(0, self.dtype), self.lanes)
        for p, value in enumerate(values):
            k.store(into, zero if value is None else value, at + p * plane)
