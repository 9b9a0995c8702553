"""The gradient of a convolution's weights by tile multiplications, of bf16 activations in the NCHW16n layout
(conv_tile_blocks.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import SIDE, WORDS, Add, Sums
from gluongraph.codegen.contraction.conv_common import Conv, WriteWeights
from gluongraph.codegen.contraction.conv_tile_blocks import BlockedKernel, forward_axis
from gluongraph.codegen.rule import MAX_PARTIAL_SUMS, Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

HALF = WORDS // 2  # words of one pixel of 16 channels and images
SMALL = 512 * 1024  # bytes of weights up to which chunks own images, each with partial sums of all weights


class WeightGrad(BlockedKernel):
    """The gradient of w: output channels x input channels for each tap, summed over pixels, two at a time, and images.

    Parallel chunks own some rows of the images, with partial sums that are added at the end, or, if there are many
    weights, some output channels.
    """

    def __init__(self, conv: Conv, cpu: Cpu):
        super().__init__(conv, cpu)
        self.pairs = mk.ceildiv(conv.out[1], 2)
        self.rows, self.columns = forward_axis(conv, 0, conv.out[0]), forward_axis(conv, 1, 2 * self.pairs)
        self.down, self.across = mk.ceildiv(conv.o, SIDE), mk.ceildiv(conv.c, SIDE)
        self.apart = self.columns.phases[0].scale
        self.each = mk.ceildiv(self.columns.extent, self.apart)  # columns with the same remainder are contiguous
        self.line = self.each * self.apart * HALF
        self.lines = self.blocks * conv.out[0]
        # Full tiles of the upstream gradient are loaded in place: two pixels of 16 images are a row of words.
        self.g_in_place = cpu.tiles and conv.o % SIDE == 0 and conv.out[1] % 2 == 0
        g_line = self.down * self.pairs * WORDS
        self._x = self.blocks * self.across * self.rows.extent * self.line
        self._g = 0 if self.g_in_place else self.lines * g_line
        self.produced, self.pitch = self.down * SIDE, self.across * SIDE  # channels in whole tiles
        self._sums = self.taps * self.produced * self.pitch
        # Tiles of output and of input channels in a block of sums, and taps of a row of the kernel.
        self.shape = (2, 2, 1) if conv.kernel[1] == 1 else (1, 1, min(3, conv.kernel[1]))
        small = 4 * self._sums <= SMALL
        self.by_line = 1 if self.serial or not small else min(self.lines, MAX_PARTIAL_SUMS)
        self.by_channel = 1 if self.serial or small else min(mk.ceildiv(self.down, self.shape[0]), cpu.chunks)
        self.strip = max(1, cpu.l2 // 2 // (4 * (self._x // self.lines + g_line) + 1))

    @property
    def workspace(self) -> int:
        """Bytes."""
        return 4 * (self._x + self._g + self.by_line * self._sums)

    def emit_blocked(self, k: Kernel, x: Buf, g: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        xs = k.view(mk.workspace(k, workspace, "u8", self.workspace), "u32")
        sums = k.view(workspace, "f32", 4 * (self._x + self._g))
        self._copy_x(k, x, xs)
        if self.g_in_place:
            gs = k.view(g, "f16")  # TVM has no address of bf16
        else:
            gs = xs.at(self._x)
            self._copy_g(k, g, gs)
        self.unit.prepare(k)
        num_chunks = self.by_line * self.by_channel
        with k.loop(num_chunks, "parallel", "piece") as chunk, self.unit.thread(k):
            part = k.bind(tir.floordiv(chunk, self.by_channel), "part")
            own = sums.at(k.bind(part * self._sums, "sums"))
            lines = mk.chunk_range(k, self.lines, self.by_line, part)
            steps, channels = mk.ceildiv(self.down, self.shape[0]), tir.floormod(chunk, self.by_channel)
            high = mk.chunk_range(k, steps, self.by_channel, k.bind(channels, "channels"))
            self._chunk(k, xs, gs, own, lines, high)
        self._store_epilogue(k, sums, write)

    def _place(self, column: Value) -> Expr:
        """Return the position of a column in a packed row: columns with the same remainder by the stride are
        contiguous."""
        if self.apart == 1:
            return column
        return tir.floormod(column, self.apart) * self.each + tir.floordiv(column, self.apart)

    def _copy_x(self, k: Kernel, x: Buf, into: Buf) -> None:
        """Pack x into half tiles [block][channels][packed row][packed column]: words are pairs of images, columns
        channels."""
        conv, columns = self.conv, self.columns
        left, right = columns.inside

        def zeros(line: Expr, start: int, count: int) -> None:
            with k.loop(count, name="column") as u:
                at = k.bind(line + self._place(u + start) * HALF, "at")
                for i in range(0, HALF, SIDE):
                    k.store(into, amx.zeros(), at + i)

        def line(block: Expr, tile: Expr, u: Expr) -> Expr:
            return k.bind(((block * self.across + tile) * self.rows.extent + u) * self.line, "line")

        def channels(block: Expr, u: Expr, row: Expr, first: Expr, size: int) -> None:
            to = line(block, tir.floordiv(first, SIDE), u)

            def pixels(start: Value, count: int) -> None:
                """Pack one pixel, or two that are adjacent in memory."""
                pixel = row * conv.w + (start + left) * columns.skip - columns.before
                at = k.bind(((block * conv.c + first) * (conv.h * conv.w) + pixel) * SIDE, "at")
                found = [k.load(x, at + c * (conv.h * conv.w * SIDE), count * SIDE) for c in range(size)]
                square = [k.bind(mk.padded(tir.words(numbers), SIDE), "t") for numbers in found]
                square += [amx.zeros()] * (SIDE - size)
                transposed = mk.transposed(k, square)
                for i in range(count):
                    place = k.bind(to + self._place(start + (i + left)) * HALF, "place")
                    for r, words in enumerate(transposed[i * SIDE // 2 : (i + 1) * SIDE // 2]):
                        k.store(into, words, place + r * SIDE)

            mk.for_vectors(k, right - left, 2 if columns.skip == 1 else 1, pixels)
            zeros(to, 0, left)
            zeros(to, right, self.each * self.apart - right)

        def unit(_: Expr, unit: Expr) -> None:
            block = k.bind(tir.floordiv(unit, self.rows.extent), "block")
            u = k.bind(tir.floormod(unit, self.rows.extent), "u")
            inside = self.rows.holds(u)
            with k.when(inside):
                row = k.bind(u * self.rows.skip - self.rows.before, "row")
                mk.for_blocks(k, conv.c, SIDE, 0, self.across, partial(channels, block, u, row))
            with k.when(tir.logical("not", inside)), k.loop(self.across, name="tile") as tile:
                zeros(line(block, tile, u), 0, self.each * self.apart)

        self.for_units(k, self.blocks * self.rows.extent, unit)

    def _copy_g(self, k: Kernel, g: Buf, into: Buf) -> None:
        """Pack g into tiles [block][channels][row][pair of columns]: rows are channels, words pairs of images."""
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

                    mk.for_vectors(k, width, 2, pair)

            mk.for_blocks(k, conv.o, SIDE, tile, 1, channels)

        self.for_units(k, self.blocks * self.down * height, unit)

    def _chunk(
        self, k: Kernel, xs: Buf, gs: Buf, own: Buf, lines: tuple[Value, Value], high: tuple[Value, Value]
    ) -> None:
        """Compute all sums of some output channels over some lines, in strips of lines that fit L2."""
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

                mk.for_blocks(k, self.across, self.shape[1], 0, mk.ceildiv(self.across, self.shape[1]), columns)

            mk.for_blocks(k, self.down, self.shape[0], *high, rows)

    def _clear(self, k: Kernel, own: Buf, first: Value, count: Value) -> None:
        """Set the sums of some output channels to zero."""

        def some(o: Expr, height: int) -> None:
            with k.loop(self.taps, name="tap") as tap, k.loop(height * self.pitch, name="zero") as i:
                at = (tap * self.produced + o * SIDE) * self.pitch + i * SIDE
                k.store(own, tir.splat(tir.const(0, "f32"), SIDE), at)

        mk.for_blocks(k, self.down, self.shape[0], first, count, some)

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
        """Add some lines to the sums of some taps of a kernel row, for tiles of output channels by tiles of input
        channels."""
        conv, (o, height), (c, width), (kh, across) = self.conv, rows, columns, taps
        right = [(j, tap) for j in range(width) for tap in across]

        def at(i: int, j: int) -> Expr:
            tile, kw = right[j]
            return ((kh * conv.kernel[1] + kw) * self.produced + (o + i) * SIDE) * self.pitch + (c + tile) * SIDE

        # Elements of the gradient from pair of columns to pair, and of a row; rows from tile to tile; bytes within one.
        pair, line_of_g, rows_apart, pitch = WORDS, self.pairs * WORDS, conv.out[0], 0
        if self.g_in_place:
            pair, line_of_g, rows_apart = 2 * SIDE, conv.out[1] * SIDE, SIDE * conv.out[0]
            pitch = 2 * conv.out[0] * line_of_g

        def steps(add: Add) -> None:
            with k.loop(count, name="line") as number:
                line = k.bind(start + number, "line")
                block, y = k.bind(tir.floordiv(line, conv.out[0]), "block"), tir.floormod(line, conv.out[0])
                y = k.bind(y, "y")
                g_line = k.bind(((block * self.down + o) * rows_apart + y) * line_of_g, "g")
                row = y * self.rows.phases[0].scale + kh * (1 if conv.kernel[0] == 1 else conv.dilation[0])
                x_line = k.bind(((block * self.across + c) * self.rows.extent + row) * self.line, "x")
                with k.loop(self.pairs, name="pair") as p:
                    a = [(gs, g_line + i * (rows_apart * line_of_g) + p * pair) for i in range(height)]
                    b = []
                    for j, kw in right:
                        shift, remainder = divmod(kw * conv.dilation[1], self.apart)
                        place = remainder * self.each + shift + 2 * p
                        b.append((xs, x_line + (j * self.rows.extent * self.line + place * HALF)))
                    add(a, b, pitch=pitch)

        self.unit.block(k, (height, len(right)), steps, Sums(own, at, self.pitch), accumulate=True)

    def _store_epilogue(self, k: Kernel, sums: Buf, write: WriteWeights) -> None:
        """Add the chunks' partial sums, and store them through the epilogue in the order of the weights,
        [channel][tap]."""
        conv, taps = self.conv, self.taps

        def unit(_: Expr, o: Expr) -> None:
            if self.by_line > 1:
                self._total(k, sums, o)

            def vector(q: Value, lanes: int) -> None:
                each = tir.ramp(q, lanes)
                tap, channel = (tir.splat(tir.const(taps, "i32"), lanes) for _ in range(2))
                at = (tir.floormod(each, tap) * self.produced + o) * self.pitch + tir.floordiv(each, channel)
                write(o, q, k.bind(k.load(sums, at), "value"))

            mk.for_vectors(k, conv.q, SIDE, vector)

        self.for_units(k, conv.o, unit)

    def _total(self, k: Kernel, sums: Buf, o: Expr) -> None:
        """Add the chunks' partial sums of an output channel to those of the first chunk."""
        with k.loop(self.taps, name="tap") as tap, k.loop(self.across, name="c") as c:
            at = k.bind((tap * self.produced + o) * self.pitch + c * SIDE, "at")
            total = k.load(sums, at, SIDE)
            for part in range(1, self.by_line):
                total = total + k.load(sums, at + part * self._sums, SIDE)
            k.store(sums, total, at)
