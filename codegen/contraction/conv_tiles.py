"""Convolutions of bf16 and both their gradients by tile multiplications (amx.py), for the NCHW layout.

Activations are packed into tiles of one pixel each: 16 images by 32 channels where channels are summed over, 16
channels by 32 images for the gradient of the weights. A tap then reads full tiles, at any width, stride or dilation;
taps outside the image are skipped, so nothing is padded. Channels c and c + 16 of 32 share a word: packing weights,
which are stored [channel][tap], or pixels then only transposes squares of 16 x 16 words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels, Weights, WritePixels, WriteWeights
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

FEWEST = 8  # images: with fewer, tiles would be less than half full

_Row = Callable[[Value, Value, int], list[Expr]]  # (row of the tile, pixel, pixels) -> 16 vectors of words along them
_Rows = list[tuple[int, int, _Row | None]]  # how rows of a tile are read: (first, count, reader); None: zeros
_Square = Callable[[Expr, Expr, Expr, int], _Rows]


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Should tile multiplications compute this convolution?"""
    whole = conv.c // conv.groups % SIDE == conv.o // conv.groups % SIDE == 0
    return amx.unit(cpu) is not None and dtype == "bf16" and whole and conv.n >= FEWEST


class _Tiled(Job):
    """Common parts of the convolution and its gradients."""

    def __init__(self, conv: Conv, cpu: Cpu):
        super().__init__(conv, cpu, "f32")
        unit = amx.unit(cpu)
        assert unit is not None
        self.unit = unit
        self.taps = conv.kernel[0] * conv.kernel[1]
        self.blocks = mk.ceildiv(conv.n, SIDE)

    def copy(self, k: Kernel, into: Buf, size: tuple[int, int, int], pixels: int, square: _Square) -> None:
        """Pack activations into tiles [group][side][deep][pixel]; `size` is the groups, the sides, and the elements
        along the summed index. `square(group, side, deep, depth)` returns how the rows of a tile are read that begins
        with element `deep` of the summed index and has `depth` elements: 32, or the rest."""
        groups, sides, extent = size
        deep = mk.ceildiv(extent, DEPTH)

        def unit(_: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, deep), "outer") if deep > 1 else unit
            group, side = k.bind(tir.floordiv(outer, sides), "group"), k.bind(tir.floormod(outer, sides), "side")

            def tile(start: Expr, depth: int) -> None:
                for first, count, words in square(group, side, start, depth):
                    with k.loop(count, name="row") as r:
                        row = k.bind(r + first, "row")
                        mk.for_vectors(k, pixels, SIDE, partial(store_columns, row, words))

            def store_columns(row: Expr, words: _Row | None, pixel: Value, width: int) -> None:
                at = k.bind((unit * pixels + pixel) * WORDS + row * SIDE, "at")
                columns = [amx.zeros()] * width
                if words is not None:
                    columns = mk.transposed(k, words(row, pixel, width))[:width]
                for i, column in enumerate(columns):
                    k.store(into, column, at + i * WORDS)

            mk.for_blocks(k, extent, DEPTH, k.bind(tir.floormod(unit, deep), "deep") if deep > 1 else 0, 1, tile)

        self.for_units(k, groups * sides * deep, unit)

    def row_of_pairs(self, k: Kernel, read: Callable[[Value], Expr], depth: int) -> list[Expr]:
        """Return 16 vectors of words along the summed index, from vectors of bf16 values: i paired with i + 16; zeros
        from `depth` on."""
        low, high = min(SIDE, depth), max(0, depth - SIDE)
        found = [amx.words(k, read(i), read(i + SIDE) if i < high else None) for i in range(low)]
        return found + [amx.zeros()] * (SIDE - low)

    def rows_of_pairs(self, k: Kernel, read: _Row, depth: int) -> _Rows:
        """Return how rows of words are read where the summed index is the row of the tile; `read` gives bf16 values."""
        low, high = min(SIDE, depth), max(0, depth - SIDE)

        def both(row: Value, pixel: Value, width: int) -> list[Expr]:
            pairs = zip(read(row, pixel, width), read(row + SIDE, pixel, width), strict=True)
            return [amx.words(k, first, second) for first, second in pairs]

        def one(row: Value, pixel: Value, width: int) -> list[Expr]:
            return [amx.words(k, first) for first in read(row, pixel, width)]

        cut = ((0, high, both), (high, low - high, one), (low, SIDE - low, None))
        return [(first, count, words) for first, count, words in cut if count]

    def image(self, k: Kernel, number: Value) -> Expr:
        """Return the index of an image, clamped to the last one."""
        return k.bind(tir.minimum(number, self.conv.n - 1), "image") if self.conv.n % SIDE else tir.index(number)

    def inside(self, axis: int, at: Expr, tap: Expr) -> tuple[Expr | None, Expr]:
        """Return the condition that the row (column) of x that a row of y reads under a tap exists, or None if it
        always does, and the row."""
        conv = self.conv
        size, out = (conv.h, conv.w)[axis], conv.out[axis]
        source = at * conv.stride[axis] + tap * conv.dilation[axis] - conv.padding[axis]
        last = (out - 1) * conv.stride[axis] + (conv.kernel[axis] - 1) * conv.dilation[axis] - conv.padding[axis]
        if conv.padding[axis] == 0 and last < size:
            return None, source
        return tir.logical("and", source >= 0, source < size), source


class _ToImages(_Tiled):
    """A convolution whose result is images: forward, or the gradient of the data."""

    images_down: bool  # are images the rows of a block of sums, and channels its columns?

    def __init__(self, conv: Conv, cpu: Cpu):
        super().__init__(conv, cpu)
        self.source, self.target, self.reduced, self.produced = self._sides()
        self.pixels = self.source[0] * self.source[1]
        self.deep = mk.ceildiv(self.reduced, DEPTH)
        self.high = self.produced // SIDE
        images = 2 if self.blocks % 2 == 0 else 1  # tiles of a block
        self.shape = (images, min(2, self.high)) if self.images_down else (min(4 // images, self.high), images)
        self.strip = SIDE  # pixels of a block, one after another in a plane
        self._copied = conv.groups * self.blocks * self.deep * self.pixels * WORDS
        self._weights = conv.groups * self.high * self.taps * self.deep * WORDS
        # Elements between rows of a strip's sums; not a power of two, else all rows would share few cache sets.
        self.pitch = self.strip * self.shape[1] * SIDE + SIDE
        self._slot = self.shape[0] * SIDE * self.pitch

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        """Return rows and columns of source and target, and the channels of a group that are summed over, and that are
        produced."""

    @abstractmethod
    def tap(self, axis: int, at: Expr, tap: Expr) -> tuple[Expr | None, Expr]:
        """Return the condition that the source row (column) of a target row under a tap exists, or None if it always
        does, and the source row."""

    @abstractmethod
    def square(self, k: Kernel, read: Pixels, group: Expr, side: Expr, deep: Expr, depth: int) -> _Rows:
        """Return how `copy` reads the rows of a tile of activations."""

    @abstractmethod
    def weight(self, k: Kernel, w: Weights, group: Expr, tile: Expr, deep: Expr, depth: int, q: Expr) -> list[Expr]:
        """Return 16 vectors of words along q, where 16 adjacent channels and their taps are contiguous."""

    # What they share.

    @property
    def images(self) -> int:
        """Tiles of images in a block."""
        return self.shape[0 if self.images_down else 1]

    @property
    def channels(self) -> int:
        """Tiles of channels in a block."""
        return self.shape[1 if self.images_down else 0]

    @property
    def units(self) -> tuple[int, int, int, int]:
        """Units of work along images, groups, strips and channels."""
        strips = mk.ceildiv(self.target[0] * self.target[1], self.strip)
        return self.blocks // self.images, self.conv.groups, strips, mk.ceildiv(self.high, self.channels)

    @property
    def workspace(self) -> int:
        """Bytes."""
        images, groups, strips, channels = self.units
        slots = self.num_chunks(images * groups * strips * channels) * self._slot
        return 4 * (self._copied + self._weights + slots)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        mk.workspace(k, workspace, "u8", self.workspace)
        words = k.view(workspace, "u32")
        weights = words.at(self._copied)
        sums = k.view(workspace, "f32", 4 * (self._copied + self._weights))
        self.copy(k, words, (self.conv.groups, self.blocks, self.reduced), self.pixels, partial(self.square, k, read))
        self._copy_weights(k, weights, w)
        self.unit.prepare(k)
        images, groups, strips, channels = self.units
        total = images * groups * strips * channels
        num_chunks = self.num_chunks(total)
        with k.loop(num_chunks, "parallel", "piece") as chunk, self.unit.thread(k):
            slot = sums.at(k.bind(chunk * self._slot, "slot"))
            first, count = mk.chunk_range(k, total, num_chunks, chunk)
            with k.loop(count, name="unit") as u:
                at = k.bind(tir.index(first + u), "unit")
                rest = k.bind(tir.floordiv(at, channels), "rest")
                outer = k.bind(tir.floordiv(rest, strips), "outer")
                place = (
                    k.bind(tir.floordiv(outer, groups) * self.images, "images"),
                    k.bind(tir.floormod(outer, groups), "group"),
                    k.bind(tir.floormod(rest, strips), "strip"),
                )

                def block(first: Expr, size: int) -> None:
                    self._block(k, words, weights, slot, write, place, first, size)

                mk.for_blocks(k, self.high, self.channels, k.bind(tir.floormod(at, channels), "channels"), 1, block)

    def _copy_weights(self, k: Kernel, into: Buf, w: Weights) -> None:
        """Pack the weights into tiles [group][produced channels][tap][deep]."""
        deep, taps = self.deep, self.taps

        def unit(_: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, deep), "outer")
            group = k.bind(tir.floordiv(outer, self.high), "group")
            tile = k.bind(tir.floormod(outer, self.high), "tile")
            number = k.bind(tir.floormod(unit, deep), "deep")

            def square(start: Expr, depth: int) -> None:
                with k.loop(taps, name="q") as v:
                    q = k.bind(v * SIDE, "q")
                    for i, row in enumerate(mk.transposed(k, self.weight(k, w, group, tile, start, depth, q))):
                        channel, tap = tir.floordiv(q + i, taps), tir.floormod(q + i, taps)
                        at = k.bind(((outer * taps + tap) * deep + number) * WORDS + channel * SIDE, "at")
                        k.store(into, row, at)

            mk.for_blocks(k, self.reduced, DEPTH, number, 1, square)

        self.for_units(k, self.conv.groups * self.high * deep, unit)

    def _block(
        self,
        k: Kernel,
        pixels: Buf,
        weights: Buf,
        sums: Buf,
        write: WritePixels,
        place: tuple[Expr, Expr, Expr],
        channel: Expr,
        size: int,
    ) -> None:
        """Compute a strip of pixels of some images, and `size` tiles of channels, and store it through the epilogue."""
        images, group, strip = place
        shape = (self.shape[0], size) if self.images_down else (size, self.shape[1])
        line = shape[1] * SIDE  # the sums of a row, of one pixel

        def pixel_run(start: Expr, count: int) -> None:
            with k.loop(count, name="pixel") as p:
                here = k.bind(start + p, "pixel")
                y, x = tir.floordiv(here, self.target[1]), tir.floormod(here, self.target[1])
                at = Sums(sums, lambda i, j: p * line + (i * SIDE * self.pitch + j * SIDE), self.pitch)
                steps = partial(self._steps, k, pixels, weights, (images, group, channel, k.bind(y), k.bind(x)), size)
                self.unit.block(k, shape, steps, at, accumulate=False)
            self._store_epilogue(k, sums, write, (images, group, start, channel), shape, count)

        mk.for_blocks(k, self.target[0] * self.target[1], self.strip, strip, 1, pixel_run)

    def _steps(self, k: Kernel, pixels: Buf, weights: Buf, place: tuple[Expr, ...], size: int, add: Add) -> None:
        """Emit the loops over taps and channels that one pixel is summed over."""
        images, group, channel, y, x = place
        with k.loop(self.conv.kernel[0], name="kh") as kh:
            there, row = self.tap(0, y, kh)
            with _when(k, there), k.loop(self.conv.kernel[1], name="kw") as kw:
                here, column = self.tap(1, x, kw)
                with _when(k, here), k.loop(self.deep, name="k") as d:
                    source = k.bind(row * self.source[1] + column, "source")
                    tap = k.bind(kh * self.conv.kernel[1] + kw, "tap")
                    left = [
                        (pixels, (((group * self.blocks + images + i) * self.deep + d) * self.pixels + source) * WORDS)
                        for i in range(self.images)
                    ]
                    right = [
                        (weights, (((group * self.high + channel + i) * self.taps + tap) * self.deep + d) * WORDS)
                        for i in range(size)
                    ]
                    add(left, right) if self.images_down else add(right, left)

    def _store_epilogue(
        self,
        k: Kernel,
        sums: Buf,
        write: WritePixels,
        place: tuple[Expr, Expr, Expr, Expr],
        shape: tuple[int, int],
        count: int,
    ) -> None:
        """Transpose the strip's sums to pixels, and store them through the epilogue."""
        images, group, pixel, channel = place
        line = shape[1] * SIDE
        first_image, first_channel = images * SIDE, group * self.produced + channel * SIDE
        left = self.conv.n - first_image
        ragged = self.conv.n % (self.images * SIDE) != 0
        with (
            k.loop(tir.minimum(left, shape[0] * SIDE) if self.images_down and ragged else shape[0] * SIDE) as r,
            k.loop(shape[1], name="tile") as t,
        ):
            at = k.bind(r * self.pitch + t * SIDE, "at")
            rows = [k.bind(k.load(sums, at + i * line, SIDE), "t") for i in range(count)]
            rows += [tir.splat(tir.const(0, "f32"), SIDE)] * (SIDE - count)
            for i, column in enumerate(mk.transposed(k, rows)):
                k.store(sums, column, at + i * line)
            number = tir.maximum(tir.minimum(left - t * SIDE, SIDE), 0) if not self.images_down and ragged else SIDE
            with k.loop(number, name="column") as c:
                value = k.bind(k.load(sums, at + c * line, count), "value")
                inner = k.bind(t * SIDE + c, "inner")
                image, produced = (r, inner) if self.images_down else (inner, r)
                write(k.bind(first_image + image, "image"), k.bind(first_channel + produced, "channel"), pixel, value)


def _when(k: Kernel, condition: Expr | None) -> AbstractContextManager[None]:
    return nullcontext() if condition is None else k.when(condition)


class Forward(_ToImages):
    """Images x channels: the weights' words are pairs of rows of their tiles."""

    images_down = True

    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return (conv.h, conv.w), conv.out, self.inputs, self.outputs

    def tap(self, axis: int, at: Expr, tap: Expr) -> tuple[Expr | None, Expr]:
        return self.inside(axis, at, tap)

    def square(self, k: Kernel, read: Pixels, group: Expr, side: Expr, deep: Expr, depth: int) -> _Rows:
        channel = k.bind(group * self.reduced + deep, "channel")

        def words(row: Value, pixel: Value, width: int) -> list[Expr]:
            image = self.image(k, side * SIDE + row)
            return self.row_of_pairs(k, lambda i: read(image, channel + i, pixel, width), depth)

        return [(0, SIDE, words)]

    def weight(self, k: Kernel, w: Weights, group: Expr, tile: Expr, deep: Expr, depth: int, q: Expr) -> list[Expr]:
        o, at = k.bind(group * self.produced + tile * SIDE, "o"), k.bind(deep * self.taps + q, "at")
        second = SIDE * self.taps
        return [
            amx.words(k, w(o + i, at, SIDE), w(o + i, at + second, SIDE) if depth > SIDE else None) for i in range(SIDE)
        ]


class DataGrad(_ToImages):
    """Channels x images: the weights' words are pairs along rows of their tiles."""

    images_down = False

    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return conv.out, (conv.h, conv.w), self.outputs, self.inputs

    def tap(self, axis: int, at: Expr, tap: Expr) -> tuple[Expr | None, Expr]:
        conv = self.conv
        stride = conv.stride[axis]
        dilated = at + conv.padding[axis] - tap * conv.dilation[axis]
        inside = tir.logical("and", dilated >= 0, dilated <= (conv.out[axis] - 1) * stride)
        if stride == 1:
            return inside, dilated
        inside = tir.logical("and", inside, tir.compare("equal", tir.floormod(dilated, stride), tir.index(0)))
        return inside, tir.floordiv(dilated, stride)

    def square(self, k: Kernel, read: Pixels, group: Expr, side: Expr, deep: Expr, depth: int) -> _Rows:
        channel = k.bind(group * self.reduced + deep, "channel")

        def across(row: Value, pixel: Value, width: int) -> list[Expr]:
            return [read(self.image(k, side * SIDE + i), channel + row, pixel, width) for i in range(SIDE)]

        return self.rows_of_pairs(k, across, depth)

    def weight(self, k: Kernel, w: Weights, group: Expr, tile: Expr, deep: Expr, depth: int, q: Expr) -> list[Expr]:
        o, at = k.bind(group * self.reduced + deep, "o"), k.bind(tile * (SIDE * self.taps) + q, "at")
        return self.row_of_pairs(k, lambda i: w(o + i, at, SIDE), depth)


class WeightGrad(_Tiled):
    """The gradient of w: for each tap, output channels x input channels, summed over pixels and images.

    A line is a row of pixels of 32 images. All taps and channels are computed for one strip of lines while its tiles
    are in cache, and added to sums in the workspace.
    """

    def __init__(self, conv: Conv, cpu: Cpu):
        super().__init__(conv, cpu)
        self.deep = mk.ceildiv(conv.n, DEPTH)
        self.down, self.across = self.outputs // SIDE, self.inputs // SIDE  # tiles of a group
        self.lines = self.deep * conv.out[0]
        bytes_of_line = 4 * WORDS * (self.down * conv.out[1] + self.across * conv.stride[0] * conv.w)
        self.strip = min(self.lines, max(mk.ceildiv(64, conv.out[1]), cpu.l2 // bytes_of_line))
        self._x = conv.groups * self.across * self.deep * conv.h * conv.w * WORDS
        self._g = conv.groups * self.down * self.deep * conv.out[0] * conv.out[1] * WORDS
        self._sums = conv.o * conv.q

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * (self._x + self._g + self._sums)

    @property
    def units(self) -> tuple[int, int, int, int]:
        """Units of work along groups, output channels, input channels and taps."""
        return self.conv.groups, mk.ceildiv(self.down, 2), mk.ceildiv(self.across, 2), self.taps

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        conv = self.conv
        mk.workspace(k, workspace, "u8", self.workspace)
        xs = k.view(workspace, "u32")
        gs = xs.at(self._x)
        sums = k.view(workspace, "f32", 4 * (self._x + self._g))
        self.copy(k, xs, (conv.groups, self.across, conv.n), conv.h * conv.w, partial(self._columns, k, x))
        self.copy(k, gs, (conv.groups, self.down, conv.n), conv.out[0] * conv.out[1], partial(self._rows, k, g))
        if self.strip < self.lines:
            self._clear(k, sums)
        self.unit.prepare(k)
        groups, down, across, taps = self.units
        total = groups * down * across * taps
        num_chunks = self.num_chunks(total)
        with k.loop(num_chunks, "parallel", "piece") as chunk, self.unit.thread(k):
            first, count = mk.chunk_range(k, total, num_chunks, chunk)
            with k.loop(mk.ceildiv(self.lines, self.strip), name="strip") as s, k.loop(count, name="unit") as u:
                at = k.bind(tir.index(first + u), "unit")
                rest = k.bind(tir.floordiv(at, taps), "rest")
                outer = k.bind(tir.floordiv(rest, across), "outer")
                place = k.bind(tir.floordiv(outer, down), "group"), k.bind(tir.floormod(at, taps), "tap")

                def rows(o: Expr, height: int) -> None:
                    def columns(c: Expr, width: int) -> None:
                        self._strip(k, xs, gs, sums, (*place, o, c), s, (height, width))

                    mk.for_blocks(k, self.across, 2, k.bind(tir.floormod(rest, across), "x"), 1, columns)

                mk.for_blocks(k, self.down, 2, k.bind(tir.floormod(outer, down), "y"), 1, rows)
        self._store_epilogue(k, sums, write)

    def _columns(self, k: Kernel, x: Pixels, group: Expr, side: Expr, deep: Expr, depth: int) -> _Rows:
        """Return how tiles of x are read: words are pairs of images, columns are channels."""
        channel = k.bind(group * self.inputs + side * SIDE, "channel")

        def across(row: Value, pixel: Value, width: int) -> list[Expr]:
            return [x(deep + row, channel + i, pixel, width) for i in range(SIDE)]

        return self.rows_of_pairs(k, across, depth)

    def _rows(self, k: Kernel, g: Pixels, group: Expr, side: Expr, deep: Expr, depth: int) -> _Rows:
        """Return how tiles of g are read: rows are channels, words pairs of images."""
        channel = k.bind(group * self.outputs + side * SIDE, "channel")

        def words(row: Value, pixel: Value, width: int) -> list[Expr]:
            return self.row_of_pairs(k, lambda i: g(deep + i, channel + row, pixel, width), depth)

        return [(0, SIDE, words)]

    def _at(self, group: Value, tap: Value, o: Value, c: Value) -> Expr:
        """Return the position of the sum of a tap and two channels of a group."""
        return ((group * self.taps + tap) * self.outputs + o) * self.inputs + c

    def _strip(
        self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Expr, ...], strip: Expr, shape: tuple[int, int]
    ) -> None:
        """Add a strip's terms to the sums of one tap and `shape` tiles of channels."""
        conv, (group, tap, o, c) = self.conv, place
        kh, kw = k.bind(tir.floordiv(tap, conv.kernel[1]), "kh"), k.bind(tir.floormod(tap, conv.kernel[1]), "kw")
        left, right = self._span(k, 1, kw)
        start = k.bind(strip * self.strip, "start")
        lines = k.bind(tir.minimum(self.lines - start, self.strip), "lines") if self.lines % self.strip else self.strip
        g_tiles = [(group * self.down + o + i) * self.deep for i in range(shape[0])]
        x_tiles = [(group * self.across + c + j) * self.deep for j in range(shape[1])]

        def steps(add: Add) -> None:
            with k.loop(lines, name="line") as number:
                line = k.bind(start + number, "line")
                d, y = k.bind(tir.floordiv(line, conv.out[0]), "d"), k.bind(tir.floormod(line, conv.out[0]), "y")
                there, row = self.inside(0, y, kh)
                with _when(k, there):
                    g_line = [k.bind((t + d) * (conv.out[0] * conv.out[1]) + y * conv.out[1] + left) for t in g_tiles]
                    column = left * conv.stride[1] + kw * conv.dilation[1] - conv.padding[1]
                    x_line = [k.bind((t + d) * (conv.h * conv.w) + row * conv.w + column) for t in x_tiles]
                    with k.loop(right - left, name="x") as w:
                        a = [(gs, (at + w) * WORDS) for at in g_line]
                        b = [(xs, (at + w * conv.stride[1]) * WORDS) for at in x_line]
                        add(a, b)

        def at(i: int, j: int) -> Expr:
            return self._at(group, tap, o * SIDE + i * SIDE, c * SIDE + j * SIDE)

        self.unit.block(k, shape, steps, Sums(sums, at, self.inputs), accumulate=self.strip < self.lines)

    def _clear(self, k: Kernel, sums: Buf) -> None:
        def unit(_: Expr, unit: Expr) -> None:
            with k.loop(self._sums // self.outputs // SIDE, name="zero") as i:
                at = (unit * (self._sums // self.outputs // SIDE) + i) * SIDE
                k.store(sums, tir.splat(tir.const(0, "f32"), SIDE), at)

        self.for_units(k, self.outputs, unit)

    def _span(self, k: Kernel, axis: int, tap: Expr) -> tuple[Expr, Expr]:
        """Return the first and last + 1 of the result's rows (columns) whose source under a tap exists."""
        conv, stride = self.conv, self.conv.stride[axis]
        size, out = (conv.h, conv.w)[axis], conv.out[axis]
        shift = conv.padding[axis] - tap * conv.dilation[axis]
        first = k.bind(tir.maximum(tir.floordiv(shift + (stride - 1), stride), 0), "first")
        last = k.bind(tir.minimum(tir.floordiv(shift + (size - 1), stride) + 1, out), "last")
        return first, k.bind(tir.maximum(first, last), "last")

    def _store_epilogue(self, k: Kernel, sums: Buf, write: WriteWeights) -> None:
        """Store the sums through the epilogue in the order of the weights, [channel][tap]."""
        conv, taps = self.conv, self.taps

        def unit(_: Expr, o: Expr) -> None:
            group, row = k.bind(tir.floordiv(o, self.outputs), "group"), k.bind(tir.floormod(o, self.outputs), "row")

            def vector(q: Value, lanes: int) -> None:
                if taps == 1:
                    value = k.load(sums, self._at(group, 0, row, q), lanes)
                else:
                    each = tir.ramp(q, lanes)
                    tap, channel = (tir.splat(tir.const(taps, "i32"), lanes) for _ in range(2))
                    value = k.load(sums, self._at(group, tir.floormod(each, tap), row, tir.floordiv(each, channel)))
                write(o, q, k.bind(value, "value"))

            mk.for_vectors(k, conv.q, SIDE, vector)

        self.for_units(k, conv.o, unit)
