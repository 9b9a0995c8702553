"""The gradient of a convolution's weights by Winograd's algorithm, with vectors over images (winograd.py).

Strips of rows are transformed into the Winograd domain: the whole upstream gradient, and the images some channels at a
time. A register block holds some channels of each at one point and row of taps, vectors over images that are reduced
over their lanes when a strip is done. Parallel chunks own some strips, and then partial sums, or some output channels;
sums are added in a fixed order and transformed back.
"""

from __future__ import annotations

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Pair, WriteWeights, sizes
from gluongraph.codegen.contraction.conv_direct_nchwn_weights import SMALL
from gluongraph.codegen.contraction.winograd import POINTS, WinogradKernel, WinogradTransform
from gluongraph.codegen.rule import MAX_PARTIAL_SUMS, Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

LANE_SUM = 1.5  # cycles to reduce the lanes of one vector, where many are reduced together
LONG = 64  # vectors to add, if possible, before a lane reduction


class WeightGrad(WinogradKernel):
    """The gradient of w: its tiling, and its loops."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.tiles = mk.ceildiv(conv.out[1], self.across)
        self.rows, self.transform_data = self._tile_shape()
        self.steps = mk.ceildiv(conv.o, self.rows)
        small = conv.o * conv.q * DTYPES[dtype].nbytes <= SMALL
        self.by_channel = 1 if self.serial or small else min(self.steps, MAX_PARTIAL_SUMS)
        self.strip = self._strip()
        self.strips = mk.ceildiv(conv.out[0], self.strip)  # of a block
        self.all_strips = mk.ceildiv(conv.n, self.lanes) * self.strips
        self.by_strip = 1 if self.serial else min(self.all_strips, MAX_PARTIAL_SUMS // self.by_channel)
        if not self.serial:
            self.by_channel = min(self.steps, cpu.chunks // self.by_strip)
        self._sums = POINTS * self.height * self.each * conv.c
        # Elements from one channel to the next, an odd number of vectors, else they would share few cache sets.
        self._x = ((self.strip + self.height - 1) * self.tiles | 1) * self.lanes
        self._g = (self.strip * self.tiles | 1) * self.lanes
        room = max(self._room() - self.each * self._g, self.transform_data * self._x)
        chunks = mk.ceildiv(conv.c, min(conv.c, room // self._x))
        self.chunk = (
            mk.ceildiv(mk.ceildiv(conv.c, chunks), self.transform_data) * self.transform_data
        )  # channels transformed at once

    @property
    def each(self) -> int:
        """Maximum number of output channels of a parallel chunk."""
        return mk.ceildiv(self.steps, self.by_channel) * self.rows

    def _room(self) -> int:
        """Return how many elements per point fit the cache."""
        return self.cpu.l2 // 2 // (POINTS * DTYPES[self.dtype].nbytes)

    def _strip(self) -> int:
        """Return the rows of a strip: enough for LONG additions per lane reduction, if the transformed gradient then
        fits half of the room."""
        most = self._room() // 2 // (self.each * self.tiles * self.lanes)
        rows = max(1, min(most, mk.ceildiv(LONG, self.tiles)))
        return mk.ceildiv(self.conv.out[0], mk.ceildiv(self.conv.out[0], rows))

    @property
    def workspace(self) -> int:
        """Bytes of the partial sums of all chunks."""
        return self.by_strip * self.by_channel * self._sums * DTYPES[self.dtype].nbytes

    def _tile_shape(self) -> Pair:
        """Return output and input channels of a register block with the least estimated cycles for a strip."""
        conv = self.conv
        best = (float("inf"), 1, 1)
        for columns in range(1, min(conv.c, self.cpu.registers) + 1):
            room = (self.cpu.registers - 2) // (columns + 1)
            if room < 1:
                break
            rows = mk.ceildiv(conv.o, mk.ceildiv(conv.o, min(conv.o, room)))
            cost = 0.0
            for _, r, tall in mk.split(conv.o, rows):
                for _, c, wide in mk.split(conv.c, columns):
                    vectors = mk.ceildiv(r * c, self.lanes // 2) * (self.lanes // 2)
                    cost += tall * wide * (LONG * (max(r * c / 2, 4.0) + 0.1 * (r + c)) + LANE_SUM * vectors)
            best = min(best, (cost, rows, columns))
        return best[1], best[2]

    def emit_blocked(self, k: Kernel, xs: Buf, gs: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops for activations in the NCHWn layout."""
        conv, sums = self.conv, self.slots(k, workspace)

        def unit(chunk: Expr, _: Expr) -> None:
            part = k.bind(tir.floormod(chunk, self.by_channel), "part")
            share = k.bind(tir.floordiv(chunk, self.by_channel), "share")
            first, count = mk.chunk_range(k, self.all_strips, self.by_strip, share)
            channels = self._channels(k, part)
            own = sums.at(k.bind(chunk * self._sums, "sums"))
            with k.loop(self._sums // self.rows, name="i") as i:
                k.store(own, tir.splat(tir.const(0, self.dtype), self.rows), i * self.rows)
            # Memory of the thread, which the next chunk finds in cache; a workspace for each chunk would not be there.
            x = k.local("strip", POINTS * (self.chunk * self._x + self.each * self._g), self.dtype)
            g = x.at(POINTS * self.chunk * self._x)
            with k.loop(count, name="strip") as s:
                strip = k.bind(first + s, "strip")
                block = k.bind(tir.floordiv(strip, self.strips), "block")
                top = k.bind(tir.floormod(strip, self.strips) * self.strip, "top")
                bottom = k.bind(tir.minimum(top + self.strip, conv.out[0]), "bottom")
                self._transform_g(k, gs, g, block, top, bottom, channels)
                for c, chunk, chunks in mk.split(conv.c, self.chunk):
                    with k.loop(chunks, name="chunk") as i:
                        start = k.bind(i * chunk + c, "chunk")
                        self._transform_x(k, xs, x, block, top, bottom, start, chunk)
                        self._multiply(k, x, g, own.at(start), top, bottom, channels, chunk)

        num_chunks = self.by_strip * self.by_channel
        mk.parallel_chunks(k, num_chunks, num_chunks, unit)
        mk.parallel_chunks(k, self.by_channel, self.by_channel, lambda _, part: self._finish(k, sums, part, write))

    def _channels(self, k: Kernel, part: Expr) -> tuple[Value, Value]:
        """Return the first and last + 1 output channel of a part."""
        first, count = mk.chunk_range(k, self.steps, self.by_channel, part)
        return k.bind(first * self.rows, "o"), k.bind(tir.minimum((first + count) * self.rows, self.conv.o), "o")

    def _transform_x(
        self, k: Kernel, xs: Buf, into: Buf, block: Expr, top: Expr, bottom: Expr, start: Expr, chunk: int
    ) -> None:
        """Transform the rows of x that a strip reads, of some channels: [point][channel][row][tile]."""
        conv, transform = self.conv, WinogradTransform(k, self.lanes, self.dtype)
        above = k.bind(top - conv.padding[0], "above")
        first = k.bind(tir.maximum(above, 0), "first")
        last = k.bind(tir.minimum(bottom + (self.height - 1 - conv.padding[0]), conv.h), "last")
        with k.loop(chunk, name="c") as c, k.loop(tir.maximum(last - first, 0), name="h") as h:
            row = k.bind(((block * conv.c + start + c) * conv.h + first + h) * (conv.w * self.lanes), "row")
            to = k.bind(c * self._x + (first + h - above) * (self.tiles * self.lanes), "to")
            for tile, columns in self.tiles_of(k, xs, row, conv.w, -conv.padding[1], POINTS, self.tiles):
                at = k.bind(to + tile * self.lanes, "at")
                self.put(k, transform.transform_data(columns), into, at, self.chunk * self._x)

    def _transform_g(
        self, k: Kernel, gs: Buf, into: Buf, block: Expr, top: Expr, bottom: Expr, channels: tuple[Value, Value]
    ) -> None:
        """Transform the rows of a strip of the upstream gradient, of some channels: [point][channel][row][tile]."""
        conv, transform, (start, stop) = self.conv, WinogradTransform(k, self.lanes, self.dtype), channels
        with k.loop(stop - start, name="o") as i, k.loop(bottom - top, name="h") as h:
            o = k.bind(start + i, "o")
            row = k.bind(((block * conv.o + o) * conv.out[0] + top + h) * (conv.out[1] * self.lanes), "row")
            to = k.bind(i * self._g + h * (self.tiles * self.lanes), "to")
            for tile, columns in self.tiles_of(k, gs, row, conv.out[1], 0, self.across, self.tiles):
                at = k.bind(to + tile * self.lanes, "at")
                self.put(k, transform.transform_filter(columns), into, at, self.each * self._g)

    def _multiply(
        self, k: Kernel, x: Buf, g: Buf, sums: Buf, top: Expr, bottom: Expr, channels: tuple[Value, Value], chunk: int
    ) -> None:
        """Add a strip of some channels to the sums: [point][kernel row][output channel of the chunk][input channel]."""
        conv, lanes, (start, stop) = self.conv, self.lanes, channels
        steps = tir.floordiv(stop - start + (self.rows - 1), self.rows)
        with k.nest((POINTS, self.height)) as (p, kh), k.loop(steps, name="step") as s:
            of_part = k.bind(s * self.rows, "of_part")
            o = k.bind(start + of_part, "o")
            # The rows of the strip whose source row under these taps exists.
            high = k.bind(tir.maximum(top, conv.padding[0] - kh), "high")
            low = k.bind(tir.minimum(bottom, (conv.h + conv.padding[0]) - kh), "low")
            long = k.bind(tir.maximum(low - high, 0) * self.tiles, "long")
            skip = k.bind((high - top) * (self.tiles * lanes), "skip")
            at_g = k.bind((p * self.each + of_part) * self._g + skip, "at_g")
            at_x = k.bind(p * self.chunk * self._x + skip + kh * (self.tiles * lanes), "at_x")
            to = k.bind(((p * self.height + kh) * self.each + of_part) * conv.c, "to")
            number: Value = self.rows
            if conv.o % self.rows:
                number = k.bind(tir.minimum(conv.o - o, self.rows), "number")
            for size in sizes(k, number, self.rows, conv.o):
                for first, columns, count in mk.split(chunk, self.transform_data):
                    with k.loop(count, name="c") as i:
                        c = k.bind(i * columns + first, "c")
                        acc = mk.Tile(k, size, (lanes,) * columns, self.dtype)
                        with k.loop(long, name="t") as t:
                            rows = (at_g + r * self._g + t * lanes for r in range(size))
                            left = [k.bind(k.load(g, at, lanes), "g") for at in rows]
                            for j in range(columns):
                                right = k.bind(k.load(x, at_x + (c + j) * self._x + t * lanes, lanes), "x")
                                for r in range(size):
                                    acc.add(r, j, left[r], right)
                        self._add(k, acc, sums, k.bind(to + c, "to"))

    def _add(self, k: Kernel, acc: mk.Tile, sums: Buf, to: Expr) -> None:
        """Reduce the accumulators over their lanes, and add a vector for each output channel to the sums."""
        width, zero = len(acc.widths), tir.splat(tir.const(0, self.dtype), self.lanes)
        values = [acc.get(r, v) for r in range(acc.rows) for v in range(width)]
        totals = []
        for at in range(0, len(values), self.lanes):
            group = values[at : at + self.lanes]
            size = 1 << (len(group) - 1).bit_length()
            totals.append(mk.lane_sums(k, group + [zero] * (size - len(group))))
        for r in range(acc.rows):
            found = tir.shuffle(totals, range(r * width, (r + 1) * width))
            at = k.bind(to + r * self.conv.c, "at")
            k.store(sums, k.load(sums, at, width) + found, at)

    def _finish(self, k: Kernel, sums: Buf, part: Expr, write: WriteWeights) -> None:
        """Add the chunks' partial sums for some output channels, transform them back, and store them through the
        epilogue."""
        conv, (start, stop) = self.conv, self._channels(k, part)
        weights = k.local("weights", conv.q, self.dtype)
        with k.loop(stop - start, name="o") as o:
            with k.loop(self.height, name="kh") as kh:

                def vector(c: Value, lanes: int, o: Expr = o, kh: Expr = kh) -> None:
                    transform, totals = WinogradTransform(k, lanes, self.dtype), []
                    for p in range(POINTS):
                        at = k.bind(part * self._sums + ((p * self.height + kh) * self.each + o) * conv.c + c, "at")
                        total = k.load(sums, at, lanes)
                        for chunk in range(1, self.by_strip):
                            total = total + k.load(sums, at + chunk * self.by_channel * self._sums, lanes)
                        totals.append(k.bind(total, "total"))
                    for tap, value in enumerate(transform.inverse(transform.scaled(totals), self.taps)):
                        at = (c * self.height + kh) * self.taps + tap
                        k.store(weights, value, tir.ramp(at, lanes, self.height * self.taps))

                mk.for_vectors(k, conv.c, self.lanes, vector)

            def store(q: Value, lanes: int, o: Expr = o) -> None:
                write(k.bind(start + o, "o"), q, k.bind(k.load(weights, q, lanes), "total"))

            mk.for_vectors(k, conv.q, self.lanes, store)
