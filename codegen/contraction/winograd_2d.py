"""Winograd convolution along rows and columns with vectors over channels (conv_direct_nchwc.py), for few images.

A tile of pixels is transformed in both directions (winograd.py). With six and six, 4x4 pixels of 3x3 taps
take 36 multiplications instead of 144; of normally distributed values, and of their absolute values, the mean error is
1.4 to 1.8 times that of direct sums, the largest about the same. With four and six, 2x4 pixels take 24 multiplications
instead of 72, as exact as direct sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels
from gluongraph.codegen.contraction.conv_direct_nchwc import Frame
from gluongraph.codegen.contraction.winograd import WinogradTransform, columns_per_tile, taps_inside
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

# Points along rows and columns. Forward has fewer, for smaller rounding errors: where they change the sign of the input
# of a relu, its gradient changes.
POINTS_2D: dict[str, Pair] = {"conv2d": (4, 6), "conv2d_data_grad": (6, 6), "conv2d_weight_grad": (6, 6)}
WORTH = 0.5  # multiplications in the Winograd domain, relative to those of direct convolution, below which it pays
PIXELS = 256  # of all images: with fewer, transforming the weights costs what is saved
Values = list[Expr | None]


def tile(op: str, conv: Conv) -> Pair:
    """Return the rows and columns of the convolution's result in one tile."""
    down, across = POINTS_2D[op]
    return columns_per_tile(conv.kernel[0], down), columns_per_tile(conv.kernel[1], across)


def is_supported(conv: Conv, cpu: Cpu) -> bool:
    """Is the kernel 3x3, with stride, dilation and groups of 1, and do channels fill vectors?"""
    lanes, (down, across) = mk.lanes(cpu, "f32"), conv.padding
    whole = lanes > 1 and conv.c % lanes == conv.o % lanes == 0
    plain = conv.kernel == (3, 3) and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
    return whole and plain and down < 3 and across < 3


def is_profitable(op: str, conv: Conv, cpu: Cpu) -> bool:
    """Is it faster than direct convolution: images do not fill vectors, tiles cover them with little padding, and there
    are enough pixels?"""
    if not is_supported(conv, cpu) or conv.n % mk.lanes(cpu, "f32") == 0:
        return False
    size = (conv.h, conv.w) if op == "conv2d_data_grad" else conv.out
    tiles = math.prod(mk.ceildiv(*pair) for pair in zip(size, tile(op, conv), strict=True))
    inside = math.prod(taps_inside(conv, axis) for axis in range(2))
    enough = PIXELS // 2 if op == "conv2d_weight_grad" else PIXELS  # weights are transformed once, from sums in cache
    return tiles * math.prod(POINTS_2D[op]) < WORTH * inside and conv.n * math.prod(size) >= enough


def transform_data(transform: WinogradTransform, values: Sequence[Expr | None]) -> Values:
    """Transform pixels of the source."""
    return transform.transform_data(values)


def transform_filter(transform: WinogradTransform, values: Sequence[Expr | None]) -> Values:
    """Transform taps, or pixels of the upstream gradient for the gradient of the weights."""
    return transform.scaled(transform.transform_filter(values))


@dataclass(frozen=True)
class TransformedImages:
    """Transformed activations: [strip][point][block][tile][channel of the block]."""

    frame: Frame
    images: int
    tiles: Pair  # of an image: down, across
    step: Pair  # rows and columns from one to the next
    reach: Pair  # rows and columns that one reads
    lines: int  # rows of tiles of a strip; all strips have as many
    points: Pair  # along rows and columns
    transform: Callable[[WinogradTransform, Sequence[Expr | None]], Values]

    @property
    def number(self) -> int:
        """Tiles of a strip."""
        return self.lines * self.tiles[1]

    @property
    def strips(self) -> int:
        """Strips of all images."""
        return self.images * self.tiles[0] // self.lines

    @property
    def plane(self) -> int:
        """Elements from one point to the next: an odd number of vectors, else the points would share few cache sets."""
        return (self.frame.blocks * self.number | 1) * self.frame.lanes

    def elements(self, images: int) -> int:
        """Return the elements of `images` images."""
        return images * self.tiles[0] // self.lines * self.strip

    @property
    def strip(self) -> int:
        """Elements of a strip."""
        return math.prod(self.points) * self.plane

    def fill(self, k: Kernel, job: Job, read: Pixels, into: Buf) -> None:
        """Transform the job's images: each column of a row of tiles, then the rows of each tile."""
        lanes, (down, across), (high, wide), blocks = self.frame.lanes, self.tiles, self.reach, self.frame.blocks
        width, line = (across - 1) * self.step[1] + wide, self.frame.padded[1]
        first, then = (WinogradTransform(k, lanes, job.dtype, number) for number in self.points)

        def unit(_: Expr, unit: Expr) -> None:
            frame = k.local("frame", self.frame.plane, job.dtype)
            half = k.local("half", self.points[0] * width * lanes, job.dtype)
            self.frame.fill_one(k, job, read, unit, frame)
            image, block = k.bind(tir.floordiv(unit, blocks), "image"), k.bind(tir.floormod(unit, blocks), "block")
            with k.loop(down, name="line") as row:
                with k.loop(width, name="column") as x:
                    top = k.bind((row * (self.step[0] * line) + x) * lanes, "top")
                    found = load_vectors(k, frame, top, line * lanes, high, lanes)
                    store_vectors(k, self.transform(first, found), half, x * lanes, width * lanes)
                number = k.bind(image * down + row, "line")
                strip, inner = tir.floordiv(number, self.lines), tir.floormod(number, self.lines)
                to = k.bind(strip * self.strip + (block * self.number + inner * across) * lanes, "to")
                with k.loop(across, name="tile") as t, k.loop(self.points[0], name="p") as p:
                    at = k.bind((p * width + t * self.step[1]) * lanes, "at")
                    values = self.transform(then, load_vectors(k, half, at, lanes, wide, lanes))
                    store_vectors(
                        k, values, into, k.bind(to + t * lanes + p * (self.points[1] * self.plane), "at"), self.plane
                    )

        job.for_units(k, self.images * blocks, unit)


def source(
    op: str, conv: Conv, size: Pair, padding: Pair, tiles: Pair, channels: int, block: Pair, n: int
) -> TransformedImages:
    """Return the layout of the transformed source, zero-padded, in blocks of `block` (channels, lanes), with n rows of
    tiles per strip."""
    step, points = tile(op, conv), POINTS_2D[op]
    frame = _frame(size, padding, tiles, step, points, channels, block)
    return TransformedImages(frame, conv.n, tiles, step, points, n, points, transform_data)


def gradient(conv: Conv, tiles: Pair, block: Pair) -> TransformedImages:
    """Return the layout of the transformed upstream gradient, for the gradient of the weights."""
    op = "conv2d_weight_grad"
    step = tile(op, conv)
    frame = _frame(conv.out, (0, 0), tiles, step, step, conv.o, block)
    return TransformedImages(frame, conv.n, tiles, step, step, conv.n * tiles[0], POINTS_2D[op], transform_filter)


def _frame(size: Pair, padding: Pair, tiles: Pair, step: Pair, reach: Pair, channels: int, block: Pair) -> Frame:
    """Return the layout of images with zero padding for all that tiles read outside of them."""
    down, across = (
        max((count - 1) * s + r, before + length)
        for count, s, r, before, length in zip(tiles, step, reach, padding, size, strict=True)
    )
    return Frame(1, channels, size, padding, (down, across), *block)


def transform_2d(
    k: Kernel,
    job: Job,
    size: Pair,
    read: Callable[[int, Value], Expr],
    transforms: Sequence[Callable[[Sequence[Expr | None]], Values]],
    rows: int,
    write: Callable[[Expr, Values], None],
) -> None:
    """Transform a square of vectors, read with `read(row, column)`: columns by transforms[0], then rows by
    transforms[1]; `write(row, values)` gets `rows` rows."""
    (high, wide), lanes = size, job.lanes
    half = k.local("half", rows * wide * lanes, job.dtype)
    with k.loop(wide, name="column") as j:
        found = [k.bind(read(i, j), "d") for i in range(high)]
        store_vectors(k, transforms[0](found), half, j * lanes, wide * lanes)
    with k.loop(rows, name="row") as i:
        write(i, transforms[1](load_vectors(k, half, k.bind(i * (wide * lanes), "at"), lanes, wide, lanes)))


def load_vectors(k: Kernel, buf: Buf, at: Value, apart: int, count: int, lanes: int) -> list[Expr | None]:
    """Load `count` vectors, `apart` elements from each other."""
    return [k.bind(k.load(buf, at + i * apart, lanes), "d") for i in range(count)]


def store_vectors(k: Kernel, values: Values, into: Buf, at: Value, apart: int) -> None:
    """Store vectors, `apart` elements from each other."""
    for i, value in enumerate(values):
        assert value is not None  # no zero columns were passed to the transforms
        k.store(into, value, at + i * apart)
