"""Convolutions of bf16 images in blocks of 16 (images.py) and both their gradients as products of tiles (tiles.py).

A tile is one pixel of 16 images by 32 channels, or, for the gradient of the weights, 16 channels by two pixels of 16
images. Images lie side by side already: to pair what meets in a sum is all that copying is, and sums come out as
vectors of images, in rows of channels. What taps reach is copied, with zeros around, so that none is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tiles, tir
from gluongraph.codegen.images import Conv, Job, Pair, Weights, WriteImages, WriteWeights
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tiles import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value

FEWEST = 8  # channels: of fewer, tiles would be emptier than half
HALF = WORDS // 2  # words of one pixel of 16 channels and images
SMALL = 512 * 1024  # bytes of weights up to which pieces own images, each with sums of its own


def suits(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is this a convolution for tiles, its images in blocks?"""
    many = conv.groups == 1 and min(conv.c, conv.o) >= FEWEST and conv.n % SIDE == 0
    return tiles.unit(cpu) is not None and dtype == "bf16" and many


@dataclass(frozen=True)
class _Phase:
    """Rows (or columns) `first`, `first + step`, ... of the result, `count` of them. Number t reads the copy, under a
    tap of the kernel, at `t * scale` and the offset that comes with the tap."""

    first: int
    step: int
    count: int
    scale: int
    taps: tuple[Pair, ...]


@dataclass(frozen=True)
class _Axis:
    """Rows (or columns) of a source of `size`, copied to `extent` places: place u is that of number u * skip - before,
    or zero where there is none."""

    size: int
    before: int
    skip: int
    extent: int
    phases: tuple[_Phase, ...]

    @property
    def inside(self) -> tuple[int, int]:
        """The first place, and the one behind the last, that are not zero."""
        first = min(mk.ceildiv(self.before, self.skip), self.extent)
        return first, max(first, min(mk.ceildiv(self.size + self.before, self.skip), self.extent))

    def holds(self, place: Expr) -> Expr:
        """Is it one of them?"""
        first, last = self.inside
        return tir.logical("and", place >= first, place < last)


def _reading(conv: Conv, axis: int, count: int) -> _Axis:
    """What `count` rows (columns) of y read of x. Of one tap what a stride leaves out is not copied."""
    taps, stride, dilation = conv.kernel[axis], conv.stride[axis], conv.dilation[axis]
    skip = stride if taps == 1 else 1
    phase = _Phase(0, 1, count, stride // skip, tuple((tap, tap * dilation) for tap in range(taps)))
    extent = (count - 1) * phase.scale + (taps - 1) * dilation + 1
    return _Axis((conv.h, conv.w)[axis], conv.padding[axis], skip, extent, (phase,))


def _read_by(conv: Conv, axis: int) -> _Axis:
    """What rows (columns) of x read of y's gradient: those that are a stride apart alike."""
    size, out, stride = (conv.h, conv.w)[axis], conv.out[axis], conv.stride[axis]
    found = []
    for first in range(min(stride, size)):
        spread = [(tap, first + conv.padding[axis] - tap * conv.dilation[axis]) for tap in range(conv.kernel[axis])]
        taps = tuple((tap, at // stride) for tap, at in spread if at % stride == 0)
        found.append(_Phase(first, stride, mk.ceildiv(size - first, stride), 1, taps))
    before = max((-at for phase in found for _, at in phase.taps), default=0)
    before = max(before, 0)
    extent = max((phase.count + at for phase in found for _, at in phase.taps), default=0) + before
    moved = (_Phase(p.first, p.step, p.count, p.scale, tuple((tap, at + before) for tap, at in p.taps)) for p in found)
    return _Axis(out, before, 1, max(extent, 1), tuple(moved))


_Put = Callable[[Expr, int, Value, Value, int], None]  # see `_ToPixels._copy_weights`


def _pairs(depth: int, words: int) -> list[tuple[int, int, int]]:
    """How words are made of so many channels, c with c + words: (first word, words, numbers in each of them)."""
    low, high = min(words, depth), max(0, depth - words)
    cut = ((0, high, 2), (high, low - high, 1), (low, words - low, 0))
    return [(first, count, numbers) for first, count, numbers in cut if count]


class _InBlocks(Job):
    """What the three have in common."""

    def __init__(self, conv: Conv, cpu: Cpu, words: int = SIDE):
        super().__init__(conv, cpu, "f32")
        unit = tiles.unit(cpu, words)
        assert unit is not None
        self.unit = unit
        self.taps = conv.kernel[0] * conv.kernel[1]
        self.blocks = conv.n // SIDE


class _ToPixels(_InBlocks):
    """A convolution whose result is pixels: tiles of channels that are made times tiles of pixels."""

    def __init__(self, conv: Conv, cpu: Cpu):
        self.conv = conv
        self.source, self.target, self.reduced, self.made = self._sides()
        # Of up to 16 channels tiles are half as deep: words are pairs of c and c + 8, not c + 16.
        super().__init__(conv, cpu, words=SIDE if self.reduced > SIDE else SIDE // 2)
        self.words, self.tile = self.unit.words, self.unit.words * SIDE  # of a row of weights, and of a tile
        self.rows, self.columns = self.axis(0), self.axis(1)
        self.deep, self.high = mk.ceildiv(self.reduced, DEPTH), mk.ceildiv(self.made, SIDE)
        self.channels = min(2, self.high)  # tiles of a block
        self.run = 16 // self.channels  # pixels of a row whose sums are handed on together
        self.count, self.scale = max(phase.count for phase in self.rows.phases), self.rows.phases[0].scale
        reach = max((at for phase in self.rows.phases for _, at in phase.taps), default=0)
        line = self.deep * self.columns.extent * self.tile
        # Strips of rows, each copied when it has its turn, so that a cache holds the copy.
        strips = max(mk.ceildiv(cpu.chunks, self.blocks), mk.ceildiv(4 * line * self.rows.extent, cpu.l2 // 2))
        self.down = min(strips, self.count)
        self.held = (mk.ceildiv(self.count, self.down) - 1) * self.scale + reach + 1  # places of rows
        self._copied = self.held * line  # by a piece
        self._weights = self.high * self.deep * self.taps * self.tile
        self.pitch = (self.run + 1) * SIDE  # not a power of two, else all rows would share few places of a cache
        self._slot = self.channels * SIDE * self.pitch

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        """Source and target rows and columns; channels that are summed over, and that are made."""

    @abstractmethod
    def axis(self, axis: int) -> _Axis:
        """How rows (columns) of the source are copied and read."""

    @abstractmethod
    def square(self, k: Kernel, w: Weights, put: _Put, made: Expr, size: int, start: Expr, depth: int) -> None:
        """Put the weights of `size` channels from `made` on, and of `depth` from `start` on that are summed over."""

    # What they share.

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * (self._weights + self.pieces(self.blocks * self.down) * (self._copied + self._slot))

    def emit_in_blocks(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Write the loops."""
        units = self.blocks * self.down
        pieces = self.pieces(units)
        weights = k.view(mk.workspace(k, workspace, "u8", self.workspace), "u32")
        copies = weights.at(self._weights)
        sums = k.view(workspace, "f32", 4 * (self._weights + pieces * self._copied))
        self._copy_weights(k, weights, w)
        self.unit.prepare(k)
        with k.loop(pieces, "parallel", "piece") as piece, self.unit.thread(k):
            copy, slot = copies.at(k.bind(piece * self._copied, "copy")), sums.at(k.bind(piece * self._slot, "slot"))
            first, count = mk.share(k, units, pieces, piece)
            with k.loop(count, name="unit") as u:
                at = k.bind(tir.index(first + u), "unit")
                block, y = k.bind(tir.floordiv(at, self.down), "block"), k.bind(tir.floormod(at, self.down), "y")
                top, strip = mk.share(k, self.count, self.down, y)
                self._copy(k, images, copy, block, top, strip)
                for rows in self.rows.phases:
                    inside = strip if rows.count == self.count else tir.minimum(rows.count - top, strip)
                    job = _Rows(self, k, copy, weights, slot, write, block, rows, top, inside)
                    mk.runs(k, self.high, self.channels, 0, mk.ceildiv(self.high, self.channels), job.channels)

    def _copy(self, k: Kernel, images: Buf, into: Buf, block: Expr, top: Value, strip: Value) -> None:
        """Tiles [deep][place of row][of column] of a strip: words are pairs of channels, columns images. A whole
        tile at a time, so that it is written in one run."""
        (height, width), rows, columns = self.source, self.rows, self.columns
        first = k.bind(top * self.scale, "first")
        count = strip * self.scale + (self.held - mk.ceildiv(self.count, self.down) * self.scale)
        upper = k.bind(tir.minimum(tir.maximum(rows.inside[0] - first, 0), count), "upper")
        lower = k.bind(tir.maximum(tir.minimum(rows.inside[1] - first, count), upper), "lower")
        left, right = columns.inside

        def place(d: Expr, u: Value, column: Value) -> Expr:
            return ((d * self.held + u) * columns.extent + column) * self.tile

        def zeros(d: Expr, first: Value, count: Value, column: int, across: int) -> None:
            with k.loop(count, name="u") as u, k.loop(across * self.words, name="zero") as i:
                k.store(into, tiles.zeros(), place(d, first + u, column) + i * SIDE)

        with k.loop(self.deep, name="d") as d:
            zeros(d, 0, upper, 0, columns.extent)
            zeros(d, lower, count - lower, 0, columns.extent)
            for column, across in ((0, left), (right, columns.extent - right)):
                if across:
                    zeros(d, upper, lower - upper, column, across)

        def channels(start: Expr, depth: int) -> None:
            d = k.bind(tir.floordiv(start, DEPTH), "d")
            with k.loop(lower - upper, name="u") as u, k.loop(right - left, name="x") as x:
                row = (first + upper + u) * rows.skip - rows.before
                pixel = row * width + (x + left) * columns.skip - columns.before
                at = k.bind(((block * self.reduced + start) * (height * width) + pixel) * SIDE, "at")
                to = k.bind(place(d, upper + u, left + x), "to")
                for word, words, numbers in _pairs(depth, self.words):
                    with k.loop(words, name="c") as c:
                        channels = [c + (word + i * self.words) for i in range(numbers)]
                        found = [k.load(images, at + channel * (height * width * SIDE), SIDE) for channel in channels]
                        k.store(into, tiles.words(k, *found) if found else tiles.zeros(), to + (c + word) * SIDE)

        mk.runs(k, self.reduced, DEPTH, 0, self.deep, channels)

    def _copy_weights(self, k: Kernel, into: Buf, w: Weights) -> None:
        """Tiles [channels that are made][deep][tap]: rows are channels that are made, words pairs of the others."""
        taps = self.taps

        def unit(_: Expr, unit: Expr) -> None:
            tile, d = k.bind(tir.floordiv(unit, self.deep), "tile"), k.bind(tir.floormod(unit, self.deep), "d")
            to = k.bind(unit * (taps * self.tile), "to")

            def put(words: Expr, lanes: int, q: Value, at: Value, apart: int) -> None:
                """Words along q, taps within channels: the first channel's at `at`, the next `apart` from them."""
                each, width = tir.ramp(q, lanes), tir.splat(tir.const(taps, "i32"), lanes)
                place = tir.floormod(each, width) * self.tile + tir.floordiv(each, width) * apart + (to + at)
                k.store(into, words if lanes == SIDE else tir.shuffle([words], range(lanes)), place)

            def channels(made: Expr, size: int) -> None:
                def square(start: Expr, depth: int) -> None:
                    if depth < self.words:
                        with k.loop(taps * self.tile // SIDE, name="zero") as i:
                            k.store(into, tiles.zeros(), to + i * SIDE)
                    self.square(k, w, put, made, size, start, depth)

                mk.runs(k, self.reduced, DEPTH, d, 1, square)

            mk.runs(k, self.made, SIDE, tile, 1, channels)

        self.spread(k, self.high * self.deep, unit)


@dataclass(frozen=True)
class _Rows:
    """Rows of a phase of a block, that are being written: `count` of them from the `first`, where the copy begins."""

    job: _ToPixels
    k: Kernel
    copied: Buf
    weights: Buf
    sums: Buf
    write: WriteImages
    block: Expr
    rows: _Phase
    first: Value
    count: Value

    def channels(self, start: Expr, size: int) -> None:
        """All their pixels, of `size` tiles of channels."""
        k, job = self.k, self.job
        shape = size, 4 // size
        for columns in job.columns.phases:
            with k.loop(self.count, name="t") as t:
                run = partial(self._run, start, shape, columns, t)
                mk.runs(k, columns.count, job.run, 0, mk.ceildiv(columns.count, job.run), run)

    def _run(self, channel: Expr, shape: Pair, columns: _Phase, t: Expr, start: Expr, count: int) -> None:
        """Pixels one after another: their sums, and then what is made of them."""
        k, job = self.k, self.job

        def block(pixel: Expr, width: int) -> None:
            steps = partial(self._steps, channel, (shape[0], width), columns, t, k.bind(start + pixel, "x"))
            places = Sums(self.sums, lambda i, j: i * SIDE * job.pitch + (pixel + j) * SIDE, job.pitch)
            job.unit.block(k, (shape[0], width), steps, places, more=False)

        mk.runs(k, count, shape[1], 0, mk.ceildiv(count, shape[1]), block)
        row = k.bind((self.first + t) * self.rows.step + self.rows.first, "row")
        channels: Value = shape[0] * SIDE
        if job.made % SIDE:
            channels = k.bind(tir.minimum(job.made - channel * SIDE, channels), "channels")
        with k.loop(channels, name="c") as c, k.loop(count, name="pixel") as p:
            value = k.bind(k.load(self.sums, c * job.pitch + p * SIDE, SIDE), "value")
            column = k.bind((start + p) * columns.step + columns.first, "column")
            self.write(self.block, k.bind(channel * SIDE + c, "channel"), row, column, value)

    def _steps(self, channel: Expr, shape: Pair, columns: _Phase, t: Expr, x: Expr, add: Add) -> None:
        """All that some neighbouring pixels are summed from."""
        k, job, line = self.k, self.job, self.job.columns.extent
        with k.loop(job.deep, name="d") as d:
            plane = d * job.held + t * job.scale
            source = k.bind((plane * line + x * columns.scale) * job.tile, "source")
            made = k.bind((channel * job.deep + d) * (job.taps * job.tile), "made")
            for kh, row in self.rows.taps:
                for kw, column in columns.taps:
                    tap, place = kh * job.conv.kernel[1] + kw, row * line + column
                    a = [(self.weights, made + (i * job.deep * job.taps + tap) * job.tile) for i in range(shape[0])]
                    b = [(self.copied, source + (place + j * columns.scale) * job.tile) for j in range(shape[1])]
                    add(a, b)


class Forward(_ToPixels):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return (conv.h, conv.w), conv.out, conv.c, conv.o

    def axis(self, axis: int) -> _Axis:
        return _reading(self.conv, axis, self.conv.out[axis])

    def square(self, k: Kernel, w: Weights, put: _Put, made: Expr, size: int, start: Expr, depth: int) -> None:
        with k.loop(size, name="i") as i:
            for first, count, numbers in _pairs(depth, self.words):

                def along(q: Value, lanes: int, i: Expr = i, first: int = first, numbers: int = numbers) -> None:
                    channels = [start + (first + n * self.words) for n in range(numbers)]
                    pair = [w(made + i, channel * self.taps + q, lanes) for channel in channels]
                    put(tiles.words(k, *pair), lanes, q, i * self.words + first, 1)

                mk.along(k, count * self.taps if numbers else 0, SIDE, along)


class DataGrad(_ToPixels):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return conv.out, (conv.h, conv.w), conv.o, conv.c

    def axis(self, axis: int) -> _Axis:
        return _read_by(self.conv, axis)

    def square(self, k: Kernel, w: Weights, put: _Put, made: Expr, size: int, start: Expr, depth: int) -> None:
        for first, count, numbers in _pairs(depth, self.words):
            if not numbers:
                continue
            with k.loop(count, name="i") as i:

                def along(q: Value, lanes: int, i: Expr = i, first: int = first, numbers: int = numbers) -> None:
                    channels = [start + i + (first + n * self.words) for n in range(numbers)]
                    pair = [w(channel, made * self.taps + q, lanes) for channel in channels]
                    put(tiles.words(k, *pair), lanes, q, i + first, self.words)

                mk.along(k, size * self.taps, SIDE, along)


class WeightGrad(_InBlocks):
    """The gradient of w: output channels x input channels for each tap, summed over pixels, two at a time, and images.

    Pieces of work own some rows of the images, with sums of their own that are added up at the end, or, of many
    weights, some output channels.
    """

    def __init__(self, conv: Conv, cpu: Cpu):
        super().__init__(conv, cpu)
        self.pairs = mk.ceildiv(conv.out[1], 2)
        self.rows, self.columns = _reading(conv, 0, conv.out[0]), _reading(conv, 1, 2 * self.pairs)
        self.down, self.across = mk.ceildiv(conv.o, SIDE), mk.ceildiv(conv.c, SIDE)
        self.apart = self.columns.phases[0].scale
        self.each = mk.ceildiv(self.columns.extent, self.apart)  # columns of one remainder by it, side by side
        self.line = self.each * self.apart * HALF
        self.lines = self.blocks * conv.out[0]
        self._x = self.blocks * self.across * self.rows.extent * self.line
        self._g = self.lines * self.down * self.pairs * WORDS
        self.made, self.pitch = self.down * SIDE, self.across * SIDE  # channels in whole tiles
        self._sums = self.taps * self.made * self.pitch
        # Tiles of output and of input channels in a block of sums, and taps of a row of the kernel.
        self.shape = (2, 2, 1) if conv.kernel[1] == 1 else (1, 1, min(3, conv.kernel[1]))
        small = 4 * self._sums <= SMALL
        self.by_line = 1 if self.serial or not small else min(self.lines, cpu.chunks)
        self.by_channel = 1 if self.serial or small else min(mk.ceildiv(self.down, self.shape[0]), cpu.chunks)
        self.strip = max(1, cpu.l2 // 2 // (4 * (self._x + self._g) // self.lines + 1))

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * (self._x + self._g + self.by_line * self._sums)

    def emit_in_blocks(self, k: Kernel, x: Buf, g: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Write the loops."""
        xs = k.view(mk.workspace(k, workspace, "u8", self.workspace), "u32")
        gs, sums = xs.at(self._x), k.view(workspace, "f32", 4 * (self._x + self._g))
        self._copy_x(k, x, xs)
        self._copy_g(k, g, gs)
        self.unit.prepare(k)
        pieces = self.by_line * self.by_channel
        with k.loop(pieces, "parallel", "piece") as piece, self.unit.thread(k):
            part = k.bind(tir.floordiv(piece, self.by_channel), "part")
            own = sums.at(k.bind(part * self._sums, "sums"))
            lines = mk.share(k, self.lines, self.by_line, part)
            steps, channels = mk.ceildiv(self.down, self.shape[0]), tir.floormod(piece, self.by_channel)
            high = mk.share(k, steps, self.by_channel, k.bind(channels, "channels"))
            self._piece(k, xs, gs, own, lines, high)
        self._hand_on(k, sums, write)

    def _place(self, column: Value) -> Expr:
        """Where a column lies in a row: those that a stride brings together are neighbours."""
        if self.apart == 1:
            return column
        return tir.floormod(column, self.apart) * self.each + tir.floordiv(column, self.apart)

    def _copy_x(self, k: Kernel, x: Buf, into: Buf) -> None:
        """Halves of tiles [block][channels][place of row][of column]: words are pairs of images, columns channels."""
        conv, columns = self.conv, self.columns
        left, right = columns.inside

        def zeros(line: Expr, start: int, count: int) -> None:
            with k.loop(count, name="column") as u:
                at = k.bind(line + self._place(u + start) * HALF, "at")
                for i in range(0, HALF, SIDE):
                    k.store(into, tiles.zeros(), at + i)

        def line(block: Expr, tile: Expr, u: Expr) -> Expr:
            return k.bind(((block * self.across + tile) * self.rows.extent + u) * self.line, "line")

        def channels(block: Expr, u: Expr, row: Expr, first: Expr, size: int) -> None:
            to = line(block, tir.floordiv(first, SIDE), u)

            def pixels(start: Value, count: int) -> None:
                """Two neighbours, if nothing lies between them, or one."""
                pixel = row * conv.w + (start + left) * columns.skip - columns.before
                at = k.bind(((block * conv.c + first) * (conv.h * conv.w) + pixel) * SIDE, "at")
                found = [k.load(x, at + c * (conv.h * conv.w * SIDE), count * SIDE) for c in range(size)]
                square = [k.bind(mk.padded(tir.words(numbers), SIDE), "t") for numbers in found]
                square += [tiles.zeros()] * (SIDE - size)
                turned = mk.transposed(k, square)
                for i in range(count):
                    place = k.bind(to + self._place(start + (i + left)) * HALF, "place")
                    for r, words in enumerate(turned[i * SIDE // 2 : (i + 1) * SIDE // 2]):
                        k.store(into, words, place + r * SIDE)

            mk.along(k, right - left, 2 if columns.skip == 1 else 1, pixels)
            zeros(to, 0, left)
            zeros(to, right, self.each * self.apart - right)

        def unit(_: Expr, unit: Expr) -> None:
            block = k.bind(tir.floordiv(unit, self.rows.extent), "block")
            u = k.bind(tir.floormod(unit, self.rows.extent), "u")
            inside = self.rows.holds(u)
            with k.when(inside):
                row = k.bind(u * self.rows.skip - self.rows.before, "row")
                mk.runs(k, conv.c, SIDE, 0, self.across, partial(channels, block, u, row))
            with k.when(tir.logical("not", inside)), k.loop(self.across, name="tile") as tile:
                zeros(line(block, tile, u), 0, self.each * self.apart)

        self.spread(k, self.blocks * self.rows.extent, unit)

    def _copy_g(self, k: Kernel, g: Buf, into: Buf) -> None:
        """Tiles [block][channels][row][pair of columns]: rows are channels, words pairs of images."""
        conv, (height, width) = self.conv, self.conv.out

        def unit(_: Expr, unit: Expr) -> None:
            outer, row = k.bind(tir.floordiv(unit, height), "outer"), k.bind(tir.floormod(unit, height), "row")
            block, tile = (
                k.bind(tir.floordiv(outer, self.down), "block"),
                k.bind(tir.floormod(outer, self.down), "tile"),
            )

            def channels(first: Expr, size: int) -> None:
                with k.loop(size, name="c") as c:
                    at = k.bind(((block * conv.o + first + c) * height + row) * (width * SIDE), "at")
                    to = k.bind(unit * (self.pairs * WORDS) + c * SIDE, "to")

                    def pair(start: Value, count: int) -> None:
                        words = mk.padded(tir.words(k.load(g, at + start * SIDE, count * SIDE)), SIDE)
                        k.store(into, words, to + tir.floordiv(start, 2) * WORDS)

                    mk.along(k, width, 2, pair)

            mk.runs(k, conv.o, SIDE, tile, 1, channels)

        self.spread(k, self.blocks * self.down * height, unit)

    def _piece(
        self, k: Kernel, xs: Buf, gs: Buf, own: Buf, lines: tuple[Value, Value], high: tuple[Value, Value]
    ) -> None:
        """All sums of some output channels, of as many lines at a time as a cache holds."""
        self._clear(k, own, *high)
        with k.loop(tir.floordiv(lines[1] + (self.strip - 1), self.strip), name="strip") as s:
            start = k.bind(tir.index(lines[0] + s * self.strip), "start")
            count = k.bind(tir.minimum(lines[1] - s * self.strip, self.strip), "lines")

            def rows(o: Expr, height: int) -> None:
                def columns(c: Expr, width: int) -> None:
                    with k.loop(self.conv.kernel[0], name="kh") as kh:
                        for first, taps, repeats in mk.split(self.conv.kernel[1], self.shape[2]):
                            for tap in range(first, first + taps * repeats, taps):
                                block = (o, height), (c, width), (kh, range(tap, tap + taps))
                                self._block(k, xs, gs, own, start, count, *block)

                mk.runs(k, self.across, self.shape[1], 0, mk.ceildiv(self.across, self.shape[1]), columns)

            mk.runs(k, self.down, self.shape[0], *high, rows)

    def _clear(self, k: Kernel, own: Buf, first: Value, count: Value) -> None:
        """The sums of some output channels."""

        def some(o: Expr, height: int) -> None:
            with k.loop(self.taps, name="tap") as tap, k.loop(height * self.pitch, name="zero") as i:
                at = (tap * self.made + o * SIDE) * self.pitch + i * SIDE
                k.store(own, tir.splat(tir.const(0, "f32"), SIDE), at)

        mk.runs(k, self.down, self.shape[0], first, count, some)

    def _block(
        self,
        k: Kernel,
        xs: Buf,
        gs: Buf,
        own: Buf,
        start: Expr,
        count: Expr,
        rows: tuple[Expr, int],
        columns: tuple[Expr, int],
        taps: tuple[Expr, Sequence[int]],
    ) -> None:
        """What some lines add to some taps of a row of the kernel: tiles of output channels by tiles of input ones."""
        conv, (o, height), (c, width), (kh, across) = self.conv, rows, columns, taps
        right = [(j, tap) for j in range(width) for tap in across]

        def at(i: int, j: int) -> Expr:
            tile, kw = right[j]
            return ((kh * conv.kernel[1] + kw) * self.made + (o + i) * SIDE) * self.pitch + (c + tile) * SIDE

        def steps(add: Add) -> None:
            with k.loop(count, name="line") as number:
                line = k.bind(start + number, "line")
                block, y = k.bind(tir.floordiv(line, conv.out[0]), "block"), tir.floormod(line, conv.out[0])
                y = k.bind(y, "y")
                g_line = k.bind(((block * self.down + o) * conv.out[0] + y) * (self.pairs * WORDS), "g")
                row = y * self.rows.phases[0].scale + kh * (1 if conv.kernel[0] == 1 else conv.dilation[0])
                x_line = k.bind(((block * self.across + c) * self.rows.extent + row) * self.line, "x")
                with k.loop(self.pairs, name="pair") as p:
                    a = [(gs, g_line + (i * conv.out[0] * self.pairs + p) * WORDS) for i in range(height)]
                    b = []
                    for j, kw in right:
                        shift, remainder = divmod(kw * conv.dilation[1], self.apart)
                        place = remainder * self.each + shift + 2 * p
                        b.append((xs, x_line + (j * self.rows.extent * self.line + place * HALF)))
                    add(a, b)

        self.unit.block(k, (height, len(right)), steps, Sums(own, at, self.pitch), more=True)

    def _hand_on(self, k: Kernel, sums: Buf, write: WriteWeights) -> None:
        """The pieces' sums added up, in the order of the weights, whose taps lie within their channels."""
        conv, taps = self.conv, self.taps

        def unit(_: Expr, o: Expr) -> None:
            if self.by_line > 1:
                self._total(k, sums, o)

            def vector(q: Value, lanes: int) -> None:
                each = tir.ramp(q, lanes)
                tap, channel = (tir.splat(tir.const(taps, "i32"), lanes) for _ in range(2))
                at = (tir.floormod(each, tap) * self.made + o) * self.pitch + tir.floordiv(each, channel)
                write(o, q, k.bind(k.load(sums, at), "value"))

            mk.along(k, conv.q, SIDE, vector)

        self.spread(k, conv.o, unit)

    def _total(self, k: Kernel, sums: Buf, o: Expr) -> None:
        """What the pieces found for an output channel, added up where the first of them has it."""
        with k.loop(self.taps, name="tap") as tap, k.loop(self.across, name="c") as c:
            at = k.bind((tap * self.made + o) * self.pitch + c * SIDE, "at")
            total = k.load(sums, at, SIDE)
            for part in range(1, self.by_line):
                total = total + k.load(sums, at + part * self._sums, SIDE)
            k.store(sums, total, at)
