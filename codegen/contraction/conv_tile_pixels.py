"""Convolutions of bf16 in the NCHW16n layout by tile multiplications (conv_tile_blocks.py): forward and the gradient of
the data. With a stride, rows and columns of that gradient with the same remainder are a convolution of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import DEPTH, SIDE, Add, Sums
from gluongraph.codegen.contraction.conv_common import Conv, Pair, Weights, WriteImages
from gluongraph.codegen.contraction.conv_tile_blocks import Axis, BlockedKernel, Phase, data_grad_axis, forward_axis
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

_Put = Callable[[Expr, int, Value, Value, int], None]  # see `_ToPixels._copy_weights`


def _pairs(depth: int, words: int) -> list[tuple[int, int, int]]:
    """Return how `depth` channels are paired in words, c with c + words: (first word, count, values in each word)."""
    low, high = min(words, depth), max(0, depth - words)
    cut = ((0, high, 2), (high, low - high, 1), (low, words - low, 0))
    return [(first, count, numbers) for first, count, numbers in cut if count]


class _ToImages(BlockedKernel):
    """A convolution whose result is images: tiles of produced channels times tiles of pixels."""

    def __init__(self, conv: Conv, cpu: Cpu):
        self.conv = conv
        self.source, self.target, self.reduced, self.produced = self._sides()
        # With up to 16 channels tiles are half as deep: words pair c with c + 8, not c + 16.
        super().__init__(conv, cpu, words=SIDE if self.reduced > SIDE else SIDE // 2)
        self.words, self.tile = self.unit.words, self.unit.words * SIDE  # of a row of weights, and of a tile
        self.rows, self.columns = self.axis(0), self.axis(1)
        self.deep, self.high = mk.ceildiv(self.reduced, DEPTH), mk.ceildiv(self.produced, SIDE)
        self.channels = min(2, self.high)  # tiles of a block
        self.run = 16 // self.channels  # pixels of a row whose sums are stored together
        self.count, self.scale = max(phase.count for phase in self.rows.phases), self.rows.phases[0].scale
        reach = max((at for phase in self.rows.phases for _, at in phase.taps), default=0)
        line = self.deep * self.columns.extent * self.tile
        # Strips of rows, each packed just before it is computed, so that the copy stays in L2.
        strips = max(mk.ceildiv(cpu.chunks, self.blocks), mk.ceildiv(4 * line * self.rows.extent, cpu.l2 // 2))
        self.down = min(strips, self.count)
        self.copied_rows = (mk.ceildiv(self.count, self.down) - 1) * self.scale + reach + 1  # of a strip
        self._copied = self.copied_rows * line  # elements, of a chunk
        self._weights = self.high * self.deep * self.taps * self.tile
        self.pitch = (self.run + 1) * SIDE  # not a power of two, else all rows would share few cache sets
        self._slot = self.channels * SIDE * self.pitch

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        """Return rows and columns of source and target, and the channels that are summed over, and that are
        produced."""

    @abstractmethod
    def axis(self, axis: int) -> Axis:
        """Return how rows (columns) of the source are packed and read."""

    @abstractmethod
    def square(self, k: Kernel, w: Weights, put: _Put, produced: Expr, size: int, start: Expr, depth: int) -> None:
        """Pack the weights between `size` produced channels and `depth` summed channels from `start` on."""

    # What they share.

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * (self._weights + self.num_chunks(self.blocks * self.down) * (self._copied + self._slot))

    def emit_blocked(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Emit the loops."""
        units = self.blocks * self.down
        num_chunks = self.num_chunks(units)
        weights = k.view(mk.workspace(k, workspace, "u8", self.workspace), "u32")
        copies = weights.at(self._weights)
        sums = k.view(workspace, "f32", 4 * (self._weights + num_chunks * self._copied))
        self._copy_weights(k, weights, w)
        self.unit.prepare(k)
        with k.loop(num_chunks, "parallel", "piece") as chunk, self.unit.thread(k):
            copy, slot = copies.at(k.bind(chunk * self._copied, "copy")), sums.at(k.bind(chunk * self._slot, "slot"))
            first, count = mk.chunk_range(k, units, num_chunks, chunk)
            with k.loop(count, name="unit") as u:
                at = k.bind(tir.index(first + u), "unit")
                block, y = k.bind(tir.floordiv(at, self.down), "block"), k.bind(tir.floormod(at, self.down), "y")
                top, strip = mk.chunk_range(k, self.count, self.down, y)
                self._copy(k, images, copy, block, top, strip)
                for rows in self.rows.phases:
                    inside = strip if rows.count == self.count else tir.minimum(rows.count - top, strip)
                    job = _Rows(self, k, copy, weights, slot, write, block, rows, top, inside)
                    mk.for_blocks(k, self.high, self.channels, 0, mk.ceildiv(self.high, self.channels), job.channels)

    def _copy(self, k: Kernel, images: Buf, into: Buf, block: Expr, top: Value, strip: Value) -> None:
        """Pack a strip into tiles [deep][packed row][packed column]: words are pairs of channels, columns images. One
        tile at a time, so that stores are contiguous."""
        (height, width), rows, columns = self.source, self.rows, self.columns
        first = k.bind(top * self.scale, "first")
        count = strip * self.scale + (self.copied_rows - mk.ceildiv(self.count, self.down) * self.scale)
        upper = k.bind(tir.minimum(tir.maximum(rows.inside[0] - first, 0), count), "upper")
        lower = k.bind(tir.maximum(tir.minimum(rows.inside[1] - first, count), upper), "lower")
        left, right = columns.inside

        def place(d: Expr, u: Value, column: Value) -> Expr:
            return ((d * self.copied_rows + u) * columns.extent + column) * self.tile

        def zeros(d: Expr, first: Value, count: Value, column: int, across: int) -> None:
            with k.loop(count, name="u") as u, k.loop(across * self.words, name="zero") as i:
                k.store(into, amx.zeros(), place(d, first + u, column) + i * SIDE)

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
                        k.store(into, amx.words(k, *found) if found else amx.zeros(), to + (c + word) * SIDE)

        mk.for_blocks(k, self.reduced, DEPTH, 0, self.deep, channels)

    def _copy_weights(self, k: Kernel, into: Buf, w: Weights) -> None:
        """Pack the weights into tiles [produced channels][deep][tap]: rows are produced channels, words pairs of summed
        channels."""
        taps = self.taps

        def unit(_: Expr, unit: Expr) -> None:
            tile, d = k.bind(tir.floordiv(unit, self.deep), "tile"), k.bind(tir.floormod(unit, self.deep), "d")
            to = k.bind(unit * (taps * self.tile), "to")

            def put(words: Expr, lanes: int, q: Value, at: Value, apart: int) -> None:
                """Scatter words along q, [channel][tap]: the first channel's to `at`, the others `apart` from each
                other."""
                each, width = tir.ramp(q, lanes), tir.splat(tir.const(taps, "i32"), lanes)
                place = tir.floormod(each, width) * self.tile + tir.floordiv(each, width) * apart + (to + at)
                k.store(into, words if lanes == SIDE else tir.shuffle([words], range(lanes)), place)

            def channels(produced: Expr, size: int) -> None:
                def square(start: Expr, depth: int) -> None:
                    if depth < self.words:
                        with k.loop(taps * self.tile // SIDE, name="zero") as i:
                            k.store(into, amx.zeros(), to + i * SIDE)
                    self.square(k, w, put, produced, size, start, depth)

                mk.for_blocks(k, self.reduced, DEPTH, d, 1, square)

            mk.for_blocks(k, self.produced, SIDE, tile, 1, channels)

        self.for_units(k, self.high * self.deep, unit)


@dataclass(frozen=True)
class _Rows:
    """Computes rows of a phase of a block: `count` of them from the `first`, where the packed strip begins."""

    job: _ToImages
    k: Kernel
    copied: Buf
    weights: Buf
    sums: Buf
    write: WriteImages
    block: Expr
    rows: Phase
    first: Value
    count: Value

    def channels(self, start: Expr, size: int) -> None:
        """Compute all pixels of the rows, of `size` tiles of channels."""
        k, job = self.k, self.job
        shape = size, 4 // size
        for columns in job.columns.phases:
            with k.loop(self.count, name="t") as t:
                run = partial(self._run, start, shape, columns, t)
                mk.for_blocks(k, columns.count, job.run, 0, mk.ceildiv(columns.count, job.run), run)

    def _run(self, channel: Expr, shape: Pair, columns: Phase, t: Expr, start: Expr, count: int) -> None:
        """Compute the sums of `count` adjacent pixels, and store them through the epilogue."""
        k, job = self.k, self.job

        def block(pixel: Expr, width: int) -> None:
            steps = partial(self._steps, channel, (shape[0], width), columns, t, k.bind(start + pixel, "x"))
            places = Sums(self.sums, lambda i, j: i * SIDE * job.pitch + (pixel + j) * SIDE, job.pitch)
            job.unit.block(k, (shape[0], width), steps, places, accumulate=False)

        mk.for_blocks(k, count, shape[1], 0, mk.ceildiv(count, shape[1]), block)
        row = k.bind((self.first + t) * self.rows.step + self.rows.first, "row")
        channels: Value = shape[0] * SIDE
        if job.produced % SIDE:
            channels = k.bind(tir.minimum(job.produced - channel * SIDE, channels), "channels")
        with k.loop(channels, name="c") as c, k.loop(count, name="pixel") as p:
            value = k.bind(k.load(self.sums, c * job.pitch + p * SIDE, SIDE), "value")
            column = k.bind((start + p) * columns.step + columns.first, "column")
            self.write(self.block, k.bind(channel * SIDE + c, "channel"), row, column, value)

    def _steps(self, channel: Expr, shape: Pair, columns: Phase, t: Expr, x: Expr, add: Add) -> None:
        """Emit the loops over channels and taps that adjacent pixels are summed over."""
        k, job, line = self.k, self.job, self.job.columns.extent
        with k.loop(job.deep, name="d") as d:
            plane = d * job.copied_rows + t * job.scale
            source = k.bind((plane * line + x * columns.scale) * job.tile, "source")
            produced = k.bind((channel * job.deep + d) * (job.taps * job.tile), "made")
            for kh, row in self.rows.taps:
                for kw, column in columns.taps:
                    tap, place = kh * job.conv.kernel[1] + kw, row * line + column
                    a = [(self.weights, produced + (i * job.deep * job.taps + tap) * job.tile) for i in range(shape[0])]
                    b = [(self.copied, source + (place + j * columns.scale) * job.tile) for j in range(shape[1])]
                    add(a, b)


class Forward(_ToImages):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return (conv.h, conv.w), conv.out, conv.c, conv.o

    def axis(self, axis: int) -> Axis:
        return forward_axis(self.conv, axis, self.conv.out[axis])

    def square(self, k: Kernel, w: Weights, put: _Put, produced: Expr, size: int, start: Expr, depth: int) -> None:
        with k.loop(size, name="i") as i:
            for first, count, numbers in _pairs(depth, self.words):

                def along(q: Value, lanes: int, i: Expr = i, first: int = first, numbers: int = numbers) -> None:
                    channels = [start + (first + n * self.words) for n in range(numbers)]
                    pair = [w(produced + i, channel * self.taps + q, lanes) for channel in channels]
                    put(amx.words(k, *pair), lanes, q, i * self.words + first, 1)

                mk.for_vectors(k, count * self.taps if numbers else 0, SIDE, along)


class DataGrad(_ToImages):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return conv.out, (conv.h, conv.w), conv.o, conv.c

    def axis(self, axis: int) -> Axis:
        return data_grad_axis(self.conv, axis)

    def square(self, k: Kernel, w: Weights, put: _Put, produced: Expr, size: int, start: Expr, depth: int) -> None:
        for first, count, numbers in _pairs(depth, self.words):
            if not numbers:
                continue
            with k.loop(count, name="i") as i:

                def along(q: Value, lanes: int, i: Expr = i, first: int = first, numbers: int = numbers) -> None:
                    channels = [start + i + (first + n * self.words) for n in range(numbers)]
                    pair = [w(channel, produced * self.taps + q, lanes) for channel in channels]
                    put(amx.words(k, *pair), lanes, q, i + first, self.words)

                mk.for_vectors(k, size * self.taps, SIDE, along)
