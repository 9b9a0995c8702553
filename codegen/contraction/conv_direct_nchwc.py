"""Direct convolutions with vectors over channels, for few images: forward and both gradients, register-blocked.

Activations are packed into the layout NCHWc, [image][group][block][row][column][channel of the block], padded with
zeros, so that no tap has to check for an edge. A tile of accumulators holds some adjacent pixels times some vectors of
output channels; for each input channel, a vector of weights is multiplied by one scalar of each pixel. Where the
gradient of the data is strided, the pixels with the same remainder of row and column read the same taps: each remainder
is a convolution of its own with stride 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels, Weights, WritePixels, WriteWeights
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES


def is_supported(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Does the target have vectors, and does the stride divide the image?"""
    even = all(size % stride == 0 for size, stride in zip((conv.h, conv.w), conv.stride, strict=True))
    return mk.lanes(cpu, dtype) > 1 and even


def is_profitable(conv: Conv, channels: int, cpu: Cpu, dtype: str) -> bool:
    """Do `channels` channels, of all groups together, fill vectors better than images do?"""
    lanes = mk.lanes(cpu, dtype)
    return is_supported(conv, cpu, dtype) and _filled(channels // conv.groups, lanes) > _filled(conv.n, lanes)


def _filled(number: int, lanes: int) -> float:
    """Return the fraction of lanes that are used by `number` elements in full vectors."""
    return number / (mk.ceildiv(number, lanes) * lanes)


@dataclass(frozen=True)
class Frame:
    """Zero-padded activations as blocks of `block` channels, one vector per pixel."""

    groups: int
    channels: int  # of a group
    size: Pair
    before: Pair  # rows of zeros above, columns of zeros at the left
    padded: Pair  # rows and columns including all zeros
    block: int
    lanes: int

    @property
    def blocks(self) -> int:
        """Blocks of a group."""
        return mk.ceildiv(self.channels, self.block)

    @property
    def plane(self) -> int:
        """Elements of a block."""
        return self.padded[0] * self.padded[1] * self.lanes

    def elements(self, images: int) -> int:
        """Return the elements of `images` images."""
        return images * self.groups * self.blocks * self.plane

    def fill(self, k: Kernel, job: Job, read: Pixels, into: Buf) -> None:
        """Pack the job's images."""

        def unit(_: Expr, unit: Expr) -> None:
            self.fill_one(k, job, read, unit, into.at(k.bind(unit * self.plane, "base")))

        job.for_units(k, job.conv.n * self.groups * self.blocks, unit)

    def fill_one(self, k: Kernel, job: Job, read: Pixels, unit: Expr, into: Buf) -> None:
        """Pack one block of channels, numbered through all groups and images."""
        outer = k.bind(tir.floordiv(unit, self.blocks), "outer")
        image, group = k.bind(tir.floordiv(outer, self.groups), "image"), tir.floormod(outer, self.groups)
        self._edges(k, job, into)

        def block(start: Expr, channels: int) -> None:
            first = k.bind(group * self.channels + start, "channel")
            square = partial(self._square, k, job, read, into, image, first, channels)
            mk.for_vectors(k, self.size[0] * self.size[1], self.lanes, square)

        mk.for_blocks(k, self.channels, self.block, k.bind(tir.floormod(unit, self.blocks), "block"), 1, block)

    def _square(
        self,
        k: Kernel,
        job: Job,
        read: Pixels,
        into: Buf,
        image: Expr,
        first: Expr,
        channels: int,
        pixel: Value,
        n: int,
    ) -> None:
        """Transpose `channels` channels of n pixels; n may be less than a vector's lanes."""
        rows = [
            k.bind(mk.padded(tir.cast(read(image, first + i, pixel, n), job.dtype), self.lanes), "t")
            for i in range(channels)
        ]
        rows += [tir.splat(tir.const(0, job.dtype), self.lanes)] * (self.lanes - channels)
        width = self.size[1]
        for i, column in enumerate(mk.transposed(k, rows)[:n]):
            row, at = tir.floordiv(pixel + i, width), tir.floormod(pixel + i, width)
            k.store(into, column, ((row + self.before[0]) * self.padded[1] + at + self.before[1]) * self.lanes)

    def _edges(self, k: Kernel, job: Job, into: Buf) -> None:
        """Store zeros above, below, and at both sides."""
        (height, width), (top, left), (rows, columns) = self.size, self.before, self.padded

        def zeros(start: Value, count: int) -> None:
            with k.loop(count, name="zero") as i:
                k.store(into, tir.splat(tir.const(0, job.dtype), self.lanes), (start + i) * self.lanes)

        if top:
            zeros(0, top * columns)
        if below := rows - top - height:
            zeros((top + height) * columns, below * columns)
        if columns > width:
            with k.loop(height, name="row") as row:
                start = k.bind((row + top) * columns, "start")
                for first, count in ((0, left), (left + width, columns - left - width)):
                    if count:
                        zeros(start + first, count)


@dataclass(frozen=True)
class Axis:
    """Along rows or columns: the pixels first, first + step, ... of the target, `count` of them. They have `taps` taps:
    the j-th is tap + j * apart of the kernel, and the i-th pixel reads the source there at i * stride + offset +
    j * shift."""

    first: int
    step: int
    count: int
    stride: int
    tap: int
    apart: int
    taps: int
    offset: int
    shift: int

    @property
    def reach(self) -> Pair:
        """First and last source pixel that is read; (0, -1) if none."""
        ends = [self.offset + j * self.shift for j in (0, self.taps - 1)]
        return (min(ends), max(ends) + (self.count - 1) * self.stride) if self.taps else (0, -1)


def unpack_and_store(
    k: Kernel,
    job: Job,
    strip: Buf,
    sizes: tuple[int, int, int],
    write: Callable[[Expr, Expr, Expr], None],
    first: Expr,
    start: Expr,
) -> None:
    """Transpose a finished strip, [pixel][channel] of `sizes` (pixels, width, channels), and store it with
    `write(channel, pixel, values along pixels)`, counted from `first` and `start`. The buffer has room for a square
    behind the strip."""
    side, (pixels, width, channels) = job.lanes, sizes
    done = strip.at(pixels * width)
    for channel, count, vectors in mk.split(channels, side):
        with k.loop(vectors, name="v") as v:
            inner = k.bind(v * side + channel, "inner")

            def square(pixel: Value, n: int, inner: Expr = inner, count: int = count) -> None:
                at = [k.bind((pixel + i) * width + inner, "at") for i in range(n)]
                rows = [k.bind(k.load(strip, a, side), "t") for a in at]
                rows += [tir.splat(tir.const(0, job.dtype), side)] * (side - n)
                columns = mk.transposed(k, rows)
                for i, value in enumerate(columns[:count]):
                    k.store(done, value if n == side else tir.shuffle([value], range(n)), i * n)
                with k.loop(count, name="channel") as c:
                    value = k.bind(k.load(done, c * n, n), "value")
                    write(k.bind(first + inner + c), k.bind(start + pixel), value)

            mk.for_vectors(k, pixels, side, square)


class _ToImages(Job):
    """A convolution whose result is images: forward, or the gradient of the data."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.taps = conv.kernel[0] * conv.kernel[1]
        self.target, self.reduced, self.produced = self._sides()
        self.axes = (self._axis(0), self._axis(1))
        self.frame = self._frame()
        self.tile, self.vectors = self._tile_shape()
        self.width = self.vectors * self.lanes
        self.panels = mk.ceildiv(self.produced, self.width)
        self.steps = self._steps()
        self._copy = self.frame.elements(conv.n)
        self._panel = self.frame.blocks * self.taps * self.lanes * self.width
        self._weights = conv.groups * self.panels * self._panel
        self.strip = self.steps * self.tile[0] * len(self.axes[0]) * self.target[1]  # pixels
        self._slot = self.strip * self.width + self.lanes * self.lanes

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, int, int]:
        """Return rows and columns of the target, and the channels of a group that are summed over, and that are
        produced."""

    @abstractmethod
    def _axis(self, axis: int) -> list[Axis]:
        """Return the pixels of the target along rows or columns, one Axis for those that read the same taps."""

    @abstractmethod
    def pack(self, k: Kernel, w: Weights, into: Buf) -> None:
        """Pack the weights: [group][panel][block][tap][channel that is summed over][produced channels]."""

    # What they share.

    @property
    def workspace(self) -> int:
        """Bytes."""
        slots = self.num_chunks(self.units) * self._slot
        return (self._copy + self._weights + slots) * DTYPES[self.dtype].nbytes

    @property
    def units(self) -> int:
        """Units of work: one panel of channels of one image each."""
        return self.conv.groups * self.panels * self.conv.n

    def _frame(self) -> Frame:
        conv = self.conv
        size = self._source()
        before, padded = [], []
        for axis in range(2):
            low = min(a.reach[0] for a in self.axes[axis])
            high = max(a.reach[1] for a in self.axes[axis])
            before.append(max(0, -low))
            padded.append(before[-1] + max(high + 1, size[axis]))
        lanes = self.lanes
        return Frame(conv.groups, self.reduced, size, (before[0], before[1]), (padded[0], padded[1]), lanes, lanes)

    @abstractmethod
    def _source(self) -> Pair:
        """Return rows and columns of the source."""

    def _tile_shape(self) -> tuple[Pair, int]:
        """Return rows and columns of a tile, and its vectors of channels, with the least estimated time for all
        channels. Rows divide those of the target; weights are assumed to be in L2."""
        height, width = self.axes[0][0].count, self.axes[1][0].count
        total = mk.ceildiv(self.produced, self.lanes)
        best = (float("inf"), 1, 1, 1)
        for vectors in range(1, min(total, 6) + 1):
            most = (self.cpu.registers - vectors - 1) // vectors
            for columns in {mk.ceildiv(width, mk.ceildiv(width, min(width, n))) for n in range(1, most + 1)}:
                for rows in (r for r in range(1, most // columns + 1) if height % r == 0):
                    if rows > 1 and columns < width:
                        continue
                    cost = 0.0
                    for _, c, across in mk.split(width, columns):
                        for _, v, panels in mk.split(total, vectors):
                            pixels = rows * c
                            step = max(pixels * v / 2, (pixels + v) / 2, 4.0) + 0.3 * v + 0.1 * pixels
                            cost += across * panels * (height // rows) * (step + 0.2)
                    best = min(best, (cost, rows, columns, vectors))
        return (best[1], best[2]), best[3]

    def _steps(self) -> int:
        """Return the rows of tiles in a strip: they divide those of the target, and fill a vector with pixels if
        possible."""
        total = self.axes[0][0].count // self.tile[0]
        pixels = self.tile[0] * len(self.axes[0]) * self.target[1]
        return next(s for s in range(1, total + 1) if total % s == 0 and (s * pixels >= self.lanes or s == total))

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        conv, space = self.conv, self.slots(k, workspace)
        weights = space.at(self._copy)
        self.frame.fill(k, self, read, space)
        self.pack(k, w, weights)

        def unit(chunk: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, conv.n), "outer")
            image = k.bind(tir.floormod(unit, conv.n), "image")
            group = k.bind(tir.floordiv(outer, self.panels), "group")
            strip = space.at(k.bind(chunk * self._slot + (self._copy + self._weights), "strip"))
            source = space.at(k.bind((image * conv.groups + group) * (self.frame.blocks * self.frame.plane), "source"))
            panel = weights.at(k.bind(outer * self._panel, "panel"))

            def channels(start: Expr, size: int) -> None:
                first = k.bind(group * self.produced + start, "channel")
                with k.loop(self.axes[0][0].count // self.tile[0] // self.steps, name="strip") as s:
                    for rows in self.axes[0]:
                        for columns in self.axes[1]:
                            self._strip(k, source, panel, strip, s, rows, columns, mk.ceildiv(size, self.lanes))
                    pixel = k.bind(s * self.strip, "pixel")
                    unpack_and_store(
                        k, self, strip, (self.strip, self.width, size), partial(write, image), first, pixel
                    )

            mk.for_blocks(k, self.produced, self.width, k.bind(tir.floormod(outer, self.panels), "panel"), 1, channels)

        self.for_units(k, self.units, unit)

    def _strip(
        self, k: Kernel, source: Buf, panel: Buf, strip: Buf, number: Expr, rows: Axis, columns: Axis, vectors: int
    ) -> None:
        """Compute the pixels of a strip that read these taps: [pixel][channel]."""
        with k.loop(self.steps, name="step") as step:
            inner = k.bind(step * self.tile[0], "row")
            top = k.bind(number * (self.steps * self.tile[0]) + inner, "top")
            for first, width, count in mk.split(columns.count, self.tile[1]):
                with k.loop(count, name="tile") as t:
                    left = k.bind(t * width + first, "left")
                    acc = self._tile(k, source, panel, (top, left), (rows, columns), width, vectors)
                    for i in range(self.tile[0] * width):
                        row = (inner + i // width) * rows.step + rows.first
                        column = (left + i % width) * columns.step + columns.first
                        at = k.bind((row * self.target[1] + column) * self.width, "at")
                        for v in range(vectors):
                            k.store(strip, acc.get(i, v), at + v * self.lanes)

    def _tile(
        self,
        k: Kernel,
        source: Buf,
        panel: Buf,
        at: tuple[Expr, Expr],
        axes: tuple[Axis, Axis],
        width: int,
        vectors: int,
    ) -> mk.Tile:
        rows, columns = axes
        of_block = rows.taps * columns.taps * self.lanes
        acc = mk.Tile(k, self.tile[0] * width, (self.lanes,) * vectors, self.dtype, self.frame.blocks * of_block)
        if not rows.taps or not columns.taps:
            return acc
        line = self.frame.padded[1]
        top = at[0] * rows.stride + (rows.offset + self.frame.before[0])
        left = at[1] * columns.stride + (columns.offset + self.frame.before[1])
        corner = k.bind(top * line + left, "corner")
        near = [(i // width * rows.stride * line + i % width * columns.stride) * self.lanes for i in range(acc.rows)]

        _, settle = mk.settle_in_outer_or_inner(acc.settle, of_block)

        def block(start: Expr, channels: int) -> None:
            number = k.bind(tir.floordiv(start, self.lanes), "block")
            with mk.chained(k, settle, [rows.taps, columns.taps], channels) as (kh, kw):
                place = corner + kh * (rows.shift * line) + kw * columns.shift
                x = k.bind(number * self.frame.plane + place * self.lanes, "x")
                tap = (kh * rows.apart + rows.tap) * self.conv.kernel[1] + kw * columns.apart + columns.tap
                w = k.bind((number * self.taps + tap) * (self.lanes * self.width), "w")
                with k.loop(channels, name="c") as c:
                    weight = k.bind(c * self.width + w, "ahead")
                    right = [k.bind(k.load(panel, weight + v * self.lanes, self.lanes), "w") for v in range(vectors)]
                    for i, offset in enumerate(near):
                        pixel = k.bind(k.load(source, x + c + offset), "x")
                        for v in range(vectors):
                            acc.add(i, v, pixel, right[v])

        if acc.settle is None or settle is not None:
            mk.for_blocks(k, self.reduced, self.lanes, 0, self.frame.blocks, block)
            return acc
        blocks = mk.CHAIN // of_block  # of a chain
        with k.loop(mk.ceildiv(self.frame.blocks, blocks), name="chain") as chain:
            first = k.bind(chain * blocks, "first")
            mk.for_blocks(k, self.reduced, self.lanes, first, tir.minimum(self.frame.blocks - first, blocks), block)
            acc.settle()
        return acc


class Forward(_ToImages):
    """y from x and w."""

    def _sides(self) -> tuple[Pair, int, int]:
        return self.conv.out, self.inputs, self.outputs

    def _source(self) -> Pair:
        return self.conv.h, self.conv.w

    def _axis(self, axis: int) -> list[Axis]:
        conv = self.conv
        taps, step, shift = conv.kernel[axis], conv.stride[axis], conv.dilation[axis]
        return [Axis(0, 1, conv.out[axis], step, 0, 1, taps, -conv.padding[axis], shift)]

    def pack(self, k: Kernel, w: Weights, into: Buf) -> None:
        side, taps, across = self.lanes, self.taps, mk.ceildiv(self.produced, self.lanes)

        def unit(_: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, self.frame.blocks), "outer")
            group = k.bind(tir.floordiv(outer, across), "group")
            vector = k.bind(tir.floormod(outer, across), "vector")
            panel = (group * self.panels + tir.floordiv(vector, self.vectors)) * self._panel
            base = k.bind(panel + tir.floormod(vector, self.vectors) * side, "base")

            def channels(start: Expr, size: int) -> None:
                def square(q: Value, n: int) -> None:
                    numbers = [tir.minimum(vector * side + i, self.produced - 1) for i in range(side)]
                    read = [w(group * self.produced + number, start * taps + q, n) for number in numbers]
                    rows = [k.bind(mk.padded(tir.cast(x, self.dtype), side), "t") for x in read]
                    for i, row in enumerate(mk.transposed(k, rows)[:n]):
                        channel, tap = tir.floordiv(q + i, taps), tir.floormod(q + i, taps)
                        at = (tir.floordiv(start, side) * taps + tap) * side + channel
                        k.store(into, row, base + at * self.width)

                mk.for_vectors(k, size * taps, side, square)

            mk.for_blocks(k, self.reduced, side, k.bind(tir.floormod(unit, self.frame.blocks), "block"), 1, channels)

        self.for_units(k, self.conv.groups * across * self.frame.blocks, unit)


class DataGrad(_ToImages):
    """The gradient of x from that of y, separately for each remainder of row and column by the stride."""

    def _sides(self) -> tuple[Pair, int, int]:
        return (self.conv.h, self.conv.w), self.outputs, self.inputs

    def _source(self) -> Pair:
        return self.conv.out

    def _axis(self, axis: int) -> list[Axis]:
        conv = self.conv
        size, stride = (conv.h, conv.w)[axis], conv.stride[axis]
        axes = []
        for first in range(stride):
            at = [(tap, first + conv.padding[axis] - tap * conv.dilation[axis]) for tap in range(conv.kernel[axis])]
            taps = [(tap, place // stride) for tap, place in at if place % stride == 0]
            tap, offset = taps[0] if taps else (0, 0)
            apart, shift = (taps[1][0] - tap, taps[1][1] - offset) if len(taps) > 1 else (1, 1)
            axes.append(Axis(first, stride, size // stride, 1, tap, apart, len(taps), offset, shift))
        return axes

    def pack(self, k: Kernel, w: Weights, into: Buf) -> None:
        side, taps, across = self.lanes, self.taps, mk.ceildiv(self.produced, self.lanes)

        def unit(_: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, across), "outer")
            group = k.bind(tir.floordiv(outer, self.frame.blocks), "group")
            start = k.bind(tir.floormod(outer, self.frame.blocks) * side, "start")

            def vector(first: Expr, n: int) -> None:
                number = tir.floordiv(first, side)
                panel = (group * self.panels + tir.floordiv(number, self.vectors)) * self._panel
                base = k.bind(panel + tir.floormod(number, self.vectors) * side, "base")
                with k.loop(tir.minimum(self.reduced - start, side), name="c") as c:
                    o = k.bind(group * self.reduced + start + c, "o")
                    at = k.bind(base + (tir.floordiv(start, side) * (taps * side) + c) * self.width, "at")
                    if taps == 1:
                        k.store(into, tir.cast(w(o, first, n), self.dtype), at)
                        return
                    with k.loop(n, name="i") as i, k.loop(taps, name="tap") as tap:
                        value = tir.cast(w(o, (first + i) * taps + tap, 1), self.dtype)
                        k.store(into, value, at + tap * (side * self.width) + i)

            mk.for_blocks(k, self.produced, side, k.bind(tir.floormod(unit, across), "vector"), 1, vector)

        self.for_units(k, self.conv.groups * across * self.frame.blocks, unit)


class Copied(Protocol):
    """Activations packed into blocks of channels."""

    def elements(self, images: int) -> int:
        """Return the elements of `images` images."""

    def fill(self, k: Kernel, job: Job, read: Pixels, into: Buf) -> None:
        """Pack the job's images."""


class ToWeights(Job):
    """The gradient of w: output channels times vectors of input channels. The sums of all taps are reordered to the
    layout of the weights while they are in cache."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.taps = conv.kernel[0] * conv.kernel[1]
        total = mk.ceildiv(self.inputs, self.lanes)
        self.vectors = min(total, 2)
        most = min((cpu.registers - self.vectors - 1) // self.vectors, self.lanes)
        self.rows = mk.ceildiv(self.outputs, mk.ceildiv(self.outputs, min(self.outputs, most)))
        self.width = self.vectors * self.lanes
        self.down, self.across = mk.ceildiv(self.outputs, self.rows), mk.ceildiv(total, self.vectors)
        self.units = conv.groups * self.down * self.across
        self._slot = self.rows * self.taps * self.width  # sums of all taps

    @abstractmethod
    def sources(self) -> tuple[Copied, Copied]:
        """Return packed x, and the upstream gradient packed in blocks of as many channels as a register block has
        rows."""

    @abstractmethod
    def sum(
        self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Expr, Expr], rows: int, c: Expr, vectors: int
    ) -> None:
        """Sum over all pixels, for these channels and all taps: [output channel][tap][input channel]. `place` is the
        group and the block of the upstream gradient."""

    @property
    def workspace(self) -> int:
        """Bytes."""
        copies = sum(source.elements(self.conv.n) for source in self.sources())
        return (copies + self.num_chunks(self.units) * self._slot) * DTYPES[self.dtype].nbytes

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        conv, space = self.conv, self.slots(k, workspace)
        left, right = self.sources()
        gs = space.at(left.elements(conv.n))
        slots = gs.at(right.elements(conv.n))
        left.fill(k, self, x, space)
        right.fill(k, self, g, gs)

        def unit(chunk: Expr, unit: Expr) -> None:
            # All output channels of a panel of x, the larger source, are computed in turn: the panel stays in cache.
            block, outer = (
                k.bind(tir.floormod(unit, self.down), "block"),
                k.bind(tir.floordiv(unit, self.down), "outer"),
            )
            group = k.bind(tir.floordiv(outer, self.across), "group")
            panel = k.bind(tir.floormod(outer, self.across), "panel")
            sums = slots.at(k.bind(chunk * self._slot, "sums"))

            def tiles(o: Expr, rows: int, c: Expr, columns: int) -> None:
                self.sum(k, space, gs, sums, (group, block), rows, c, mk.ceildiv(columns, self.lanes))
                self._store_epilogue(k, sums, write, k.bind(group * self.outputs + o, "o"), rows, c, columns)

            def output(o: Expr, rows: int) -> None:
                mk.for_blocks(k, self.inputs, self.width, panel, 1, lambda c, columns: tiles(o, rows, c, columns))

            mk.for_blocks(k, self.outputs, self.rows, block, 1, output)

        self.for_units(k, self.units, unit)

    def _store_epilogue(
        self, k: Kernel, sums: Buf, write: WriteWeights, first: Expr, rows: int, c: Expr, columns: int
    ) -> None:
        """Store sums [output channel][tap][input channel] through the epilogue in the order of the weights,
        [input channel][tap]."""

        def vector(row: Expr, q: Value, lanes: int) -> None:
            at, taps = tir.ramp(q, lanes), tir.splat(tir.const(self.taps, "i32"), lanes)
            place = tir.floormod(at, taps) * tir.splat(tir.const(self.width, "i32"), lanes) + tir.floordiv(at, taps)
            value = k.load(sums, place + tir.splat(tir.index(row * (self.taps * self.width)), lanes))
            write(k.bind(first + row, "o"), k.bind(c * self.taps + q, "q"), k.bind(value, "value"))

        with k.loop(rows, name="r") as row:
            mk.for_vectors(k, columns * self.taps, self.lanes, partial(vector, row))


class WeightGrad(ToWeights):
    """The gradient of w, summed over all pixels for one tap after another."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        reach = [(conv.out[a] - 1) * conv.stride[a] + (conv.kernel[a] - 1) * conv.dilation[a] + 1 for a in range(2)]
        padded = [max(r, p + size) for r, p, size in zip(reach, conv.padding, (conv.h, conv.w), strict=True)]
        self.x = Frame(
            conv.groups, self.inputs, (conv.h, conv.w), conv.padding, (padded[0], padded[1]), self.lanes, self.lanes
        )
        self.g = Frame(conv.groups, self.outputs, conv.out, (0, 0), conv.out, self.rows, self.lanes)

    def sources(self) -> tuple[Copied, Copied]:
        return self.x, self.g

    def sum(
        self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Expr, Expr], rows: int, c: Expr, vectors: int
    ) -> None:
        with k.loop(self.taps, name="tap") as tap:
            acc = self._tile(k, xs, gs, (*place, tap), rows, c, vectors)
            for r in range(rows):
                at = k.bind((tap + r * self.taps) * self.width, "at")
                for v in range(len(acc.widths)):
                    k.store(sums, acc.get(r, v), at + v * self.lanes)

    def _tile(
        self, k: Kernel, xs: Buf, gs: Buf, place: tuple[Expr, Expr, Expr], rows: int, c: Expr, vectors: int
    ) -> mk.Tile:
        conv, (group, block, tap) = self.conv, place
        acc = mk.Tile(k, rows, (self.lanes,) * vectors, self.dtype, conv.n * conv.out[0] * conv.out[1])
        outer, inner = mk.settle_in_outer_or_inner(acc.settle, conv.out[1])
        kh, kw = tir.floordiv(tap, conv.kernel[1]), tir.floormod(tap, conv.kernel[1])
        line = self.x.padded[1]
        corner = k.bind((kh * conv.dilation[0] * line + kw * conv.dilation[1]) * self.lanes, "corner")
        first = k.bind(tir.floordiv(c, self.lanes), "first")
        with mk.chained(k, outer, [conv.n, conv.out[0]], conv.out[1]) as (n, h):
            panel = n * conv.groups + group
            x = k.bind(
                (panel * self.x.blocks + first) * self.x.plane + h * (conv.stride[0] * line * self.lanes) + corner
            )
            g = k.bind((panel * self.g.blocks + block) * self.g.plane + h * (conv.out[1] * self.lanes), "g")
            with mk.chained(k, inner, [conv.out[1]]) as (w,):
                near, at = k.bind(x + w * (conv.stride[1] * self.lanes), "near"), k.bind(g + w * self.lanes, "at")
                right = [k.bind(k.load(xs, near + v * self.x.plane, self.lanes), "x") for v in range(vectors)]
                for r in range(rows):
                    left = k.bind(k.load(gs, at + r), "g")
                    for v in range(vectors):
                        acc.add(r, v, left, right[v])
        return acc
