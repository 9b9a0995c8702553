"""Winograd convolution along rows and columns with vectors over channels (conv_direct_nchwc.py), for few images.

A tile of pixels is evaluated at the points of both directions (winograd.py). With six and six, 4x4 pixels of 3x3 taps
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
from gluongraph.codegen.contraction.winograd import Points, columns_made, taps_inside
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

# Points down and across. Forward it is fewer, and rounding less: a relu behind it that comes out on the other side of 0
# has another gradient.
NUMBERS: dict[str, Pair] = {"conv2d": (4, 6), "conv2d_data_grad": (6, 6), "conv2d_weight_grad": (6, 6)}
WORTH = 0.5  # products at points, of those of the taps that lie inside
PIXELS = 256  # of all images: for fewer, evaluating weights costs what is saved
Values = list[Expr | None]


def tile(op: str, conv: Conv) -> Pair:
    """Rows and columns of the convolution's result in one tile."""
    down, across = NUMBERS[op]
    return columns_made(conv.kernel[0], down), columns_made(conv.kernel[1], across)


def is_supported(conv: Conv, cpu: Cpu) -> bool:
    """Are taps three by three, of neighbouring pixels, and do channels fill vectors?"""
    lanes, (down, across) = mk.lanes(cpu, "f32"), conv.padding
    whole = lanes > 1 and conv.c % lanes == conv.o % lanes == 0
    plain = conv.kernel == (3, 3) and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
    return whole and plain and down < 3 and across < 3


def is_profitable(op: str, conv: Conv, cpu: Cpu) -> bool:
    """Is it worth while: do images not fill vectors themselves, and do tiles cover them well, and are there enough?"""
    if not is_supported(conv, cpu) or conv.n % mk.lanes(cpu, "f32") == 0:
        return False
    size = (conv.h, conv.w) if op == "conv2d_data_grad" else conv.out
    made = math.prod(mk.ceildiv(*pair) for pair in zip(size, tile(op, conv), strict=True))
    inside = math.prod(taps_inside(conv, axis) for axis in range(2))
    enough = PIXELS // 2 if op == "conv2d_weight_grad" else PIXELS  # which is evaluated once, from sums in cache
    return made * math.prod(NUMBERS[op]) < WORTH * inside and conv.n * math.prod(size) >= enough


def columns(points: Points, values: Sequence[Expr | None]) -> Values:
    """Numbers that are convolved, at the points."""
    return points.columns(values)


def taps(points: Points, values: Sequence[Expr | None]) -> Values:
    """Taps, or what is convolved with them to be a gradient of some, at the points."""
    return points.divided(points.taps(values))


@dataclass(frozen=True)
class Planes:
    """Activations at the points: [strip][point][block][tile][channel of the block]."""

    frame: Frame
    images: int
    tiles: Pair  # of an image: down, across
    step: Pair  # rows and columns from one to the next
    reach: Pair  # rows and columns that one reads
    lines: int  # rows of tiles of a strip; all strips have as many
    numbers: Pair  # of points, down and across
    evaluate: Callable[[Points, Sequence[Expr | None]], Values]

    @property
    def number(self) -> int:
        """Tiles of a strip."""
        return self.lines * self.tiles[1]

    @property
    def strips(self) -> int:
        """Of all images."""
        return self.images * self.tiles[0] // self.lines

    @property
    def plane(self) -> int:
        """Elements from one point to the next: an odd number of vectors, else the points would share few cache sets."""
        return (self.frame.blocks * self.number | 1) * self.frame.lanes

    def elements(self, images: int) -> int:
        """Of so many images."""
        return images * self.tiles[0] // self.lines * self.strip

    @property
    def strip(self) -> int:
        """Elements of one."""
        return math.prod(self.numbers) * self.plane

    def fill(self, k: Kernel, job: Job, read: Pixels, into: Buf) -> None:
        """Evaluate the job's images: down each column of a row of tiles, then across each tile."""
        lanes, (down, across), (high, wide), blocks = self.frame.lanes, self.tiles, self.reach, self.frame.blocks
        width, line = (across - 1) * self.step[1] + wide, self.frame.whole[1]
        first, then = (Points(k, lanes, job.dtype, number) for number in self.numbers)

        def unit(_: Expr, unit: Expr) -> None:
            frame = k.local("frame", self.frame.plane, job.dtype)
            half = k.local("half", self.numbers[0] * width * lanes, job.dtype)
            self.frame.fill_one(k, job, read, unit, frame)
            image, block = k.bind(tir.floordiv(unit, blocks), "image"), k.bind(tir.floormod(unit, blocks), "block")
            with k.loop(down, name="line") as row:
                with k.loop(width, name="column") as x:
                    top = k.bind((row * (self.step[0] * line) + x) * lanes, "top")
                    found = loaded(k, frame, top, line * lanes, high, lanes)
                    put(k, self.evaluate(first, found), half, x * lanes, width * lanes)
                number = k.bind(image * down + row, "line")
                strip, inner = tir.floordiv(number, self.lines), tir.floormod(number, self.lines)
                to = k.bind(strip * self.strip + (block * self.number + inner * across) * lanes, "to")
                with k.loop(across, name="tile") as t, k.loop(self.numbers[0], name="p") as p:
                    at = k.bind((p * width + t * self.step[1]) * lanes, "at")
                    values = self.evaluate(then, loaded(k, half, at, lanes, wide, lanes))
                    put(k, values, into, k.bind(to + t * lanes + p * (self.numbers[1] * self.plane), "at"), self.plane)

        job.spread(k, self.images * blocks, unit)


def source(op: str, conv: Conv, size: Pair, padding: Pair, tiles: Pair, channels: int, block: Pair, n: int) -> Planes:
    """Of what is convolved, with zeros around it, in blocks of so many channels and lanes, n rows of tiles a strip."""
    step, numbers = tile(op, conv), NUMBERS[op]
    frame = _frame(size, padding, tiles, step, numbers, channels, block)
    return Planes(frame, conv.n, tiles, step, numbers, n, numbers, columns)


def gradient(conv: Conv, tiles: Pair, block: Pair) -> Planes:
    """Of the gradient of a convolution's result, with which that of the weights is made."""
    op = "conv2d_weight_grad"
    step = tile(op, conv)
    frame = _frame(conv.out, (0, 0), tiles, step, step, conv.o, block)
    return Planes(frame, conv.n, tiles, step, step, conv.n * tiles[0], NUMBERS[op], taps)


def _frame(size: Pair, padding: Pair, tiles: Pair, step: Pair, reach: Pair, channels: int, block: Pair) -> Frame:
    """With zeros for what tiles read outside of images."""
    down, across = (
        max((count - 1) * s + r, before + length)
        for count, s, r, before, length in zip(tiles, step, reach, padding, size, strict=True)
    )
    return Frame(1, channels, size, padding, (down, across), *block)


def square(
    k: Kernel,
    job: Job,
    size: Pair,
    read: Callable[[int, Value], Expr],
    turn: Sequence[Callable[[Sequence[Expr | None]], Values]],
    rows: int,
    write: Callable[[Expr, Values], None],
) -> None:
    """Turn vectors of a square of that size down, and then across, each as it is said; `write` gets so many rows."""
    (high, wide), lanes = size, job.lanes
    half = k.local("half", rows * wide * lanes, job.dtype)
    with k.loop(wide, name="column") as j:
        found = [k.bind(read(i, j), "d") for i in range(high)]
        put(k, turn[0](found), half, j * lanes, wide * lanes)
    with k.loop(rows, name="row") as i:
        write(i, turn[1](loaded(k, half, k.bind(i * (wide * lanes), "at"), lanes, wide, lanes)))


def loaded(k: Kernel, buf: Buf, at: Value, apart: int, count: int, lanes: int) -> list[Expr | None]:
    """So many vectors, by name."""
    return [k.bind(k.load(buf, at + i * apart, lanes), "d") for i in range(count)]


def put(k: Kernel, values: Values, into: Buf, at: Value, apart: int) -> None:
    """Store values so far apart."""
    for i, value in enumerate(values):
        assert value is not None  # nothing is known to be zero here
        k.store(into, value, at + i * apart)
