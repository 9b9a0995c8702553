"""Minimal filtering along rows of images in blocks: fewer products, of columns and taps that were added up before.

A row of columns and a row of taps are coefficients of polynomials, and the columns of the result are coefficients of
their product. So both are evaluated at six points (0, 3/4, -3/4, 3/2, -3/2, infinity), multiplied there, summed over
channels and rows of taps, and turned back once: four columns of three taps take six products instead of twelve, two of
five six instead of ten, and so do as many gradients of taps. Vectors are pixels of several images, added whole.
S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural
Networks, 2016.

Rounding: with N numbers summed at a point and u = 2**-24, an error is at most (N + 12) u * a N max|x| max|w| to first
order, a = 28 for three taps, 34 for their gradients, 40 for five; of direct sums of three 3 N u * 3 N max|x| max|w|.
These points keep a low (1, -1, 2, -2 make it 48 to 58): of normally distributed numbers the error is 1.0 to 1.6 times
that of direct sums, of numbers far from 0 less than theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.images import Conv, Job
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tir import Buf, Expr, Kernel

POINTS = 6
TAPS = range(3, POINTS)  # of a row of the kernel, that go by so many points
INNER, OUTER = 0.75, 1.5
_IN, _OUT = INNER**2, OUTER**2
# What taps at a point are divided by: the product of its distances to the others.
DIVISORS = (_IN * _OUT, *(2 * _IN * (_IN - _OUT),) * 2, *(2 * _OUT * (_OUT - _IN),) * 2, 1.0)

CHANNELS = 12  # with fewer, evaluating costs what it saves
WORTH = 0.65  # products at points, of those of the taps that lie inside
# Input and output channels, times lanes: above, weights at the points lie too far off for forward and data, the more so
# the more products a vector takes.
MANY = 128 * 16


def can(conv: Conv) -> bool:
    """Is each row of taps short, and of neighbouring columns?"""
    return conv.kernel[1] in TAPS and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)


def columns_made(taps: int) -> int:
    """Columns of the convolution's result in one tile."""
    return POINTS + 1 - taps


def suits(op: str, conv: Conv, cpu: Cpu) -> bool:
    """Is it worth while: are channels enough, and not too many, and do tiles cover rows well?"""
    many = op != "conv2d_weight_grad" and conv.c * conv.o * cpu.lanes**2 > MANY**2
    if not can(conv) or min(conv.c, conv.o) < CHANNELS or many:
        return False
    taps = conv.kernel[1]
    tiles = mk.ceildiv(conv.w if op == "conv2d_data_grad" else conv.out[1], columns_made(taps))
    columns = range(-conv.padding[1], conv.out[1] - conv.padding[1])
    inside = sum(0 <= column + tap < conv.w for column in columns for tap in range(taps))
    return tiles > 1 and tiles * POINTS < WORTH * inside


class Points:
    """Evaluates vectors of so many lanes at the points, and turns products back. None stands for zero."""

    def __init__(self, k: Kernel, lanes: int, dtype: str):
        self._k, self._lanes, self._dtype = k, lanes, dtype

    def columns(self, d: Sequence[Expr | None]) -> list[Expr | None]:
        """Six columns of what is convolved: each point's polynomial, which is zero at the others."""
        first, last = (self._plus(self._plus(d[i + 4], -(_IN + _OUT), d[i + 2]), _IN * _OUT, d[i]) for i in (0, 1))
        return [first, *self._both(d, _OUT, INNER), *self._both(d, _IN, OUTER), last]

    def _both(self, d: Sequence[Expr | None], other: float, point: float) -> list[Expr | None]:
        even, odd = self._plus(d[4], -other, d[2]), self._plus(d[3], -other, d[1])
        return [self._plus(even, point, odd), self._plus(even, -point, odd)]

    def taps(self, w: Sequence[Expr | None]) -> list[Expr | None]:
        """Taps, or columns of a gradient in their place, not yet divided."""

        def at(point: float) -> list[Expr | None]:
            halves: list[Expr | None] = [None, None]  # even powers, odd powers
            for i, x in enumerate(w):
                halves[i % 2] = self._plus(halves[i % 2], point**i, x)
            return [self._plus(halves[0], 1, halves[1]), self._plus(halves[0], -1, halves[1])]

        return [w[0], *at(INNER), *at(OUTER), w[-1]]

    def divided(self, values: Sequence[Expr | None]) -> list[Expr | None]:
        """Taps at the points, or sums of products with them, by the points' divisors."""
        return [self._plus(None, 1 / divisor, value) for value, divisor in zip(values, DIVISORS, strict=True)]

    def back(self, m: Sequence[Expr | None], count: int) -> list[Expr | None]:
        """Sums of products as so many columns, or taps."""
        sums = [self._plus(m[i], 1, m[i + 1]) for i in (1, 3)]
        differences = [self._plus(m[i], -1, m[i + 1]) for i in (1, 3)]
        ends = {0: m[0], count - 1: m[5]}
        found = []
        for i in range(count):
            inner, outer = differences if i % 2 else sums
            found.append(self._plus(self._plus(ends.get(i), INNER**i, inner), OUTER**i, outer))
        return found

    def _plus(self, x: Expr | None, factor: float, y: Expr | None) -> Expr | None:
        """x + factor * y."""
        if y is None or (x is None and factor == 1):
            return x if y is None else y
        if x is not None and abs(factor) == 1:
            return self._k.bind(x + y if factor == 1 else x - y, "sum")
        scale = tir.splat(tir.const(factor, self._dtype), self._lanes)
        if x is None:
            return self._k.bind(y * scale, "sum")
        return self._k.bind(tir.llvm("llvm.fmuladd", self._dtype, self._lanes, y, scale, x), "sum")


class Filtering(Job):
    """A convolution or a gradient of one, by values at points, each point's in a plane of its own."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.height, self.taps = conv.kernel
        self.across = columns_made(self.taps)

    def tiles_of(
        self, k: Kernel, images: Buf, row: Expr, width: int, first: int, size: int, tiles: int
    ) -> Iterator[tuple[Expr, list[Expr | None]]]:
        """Loops over the tiles of a row that begins there: (tile, its `size` columns), which start at `first`."""

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
        """Store values at the points, planes of that many elements apart."""
        zero = tir.splat(tir.const(0, self.dtype), self.lanes)
        for p, value in enumerate(values):
            k.store(into, zero if value is None else value, at + p * plane)
