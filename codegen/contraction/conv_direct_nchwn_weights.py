"""The gradient of a convolution's weights with vectors over images: sums over images and pixels of x times upstream
gradient.

In the NCHWn layout (conv_common.py) a tile of accumulators holds some output channels times some weights of a row of
the kernel, each a vector over images that is reduced over its lanes when its strip of rows is done. Parallel chunks own
either some output channels, or some images and then partial sums, which are added in a fixed order at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import (
    Conv,
    Job,
    Pixels,
    WriteWeights,
    channel_step,
    pack_blocked,
    plane,
    sizes,
)
from gluongraph.codegen.rule import MAX_PARTIAL_SUMS, Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

TAPS = 8  # taps of a kernel row in one tile, at most
SMALL = 512 * 1024  # bytes of weights up to which chunks may own images, each with partial sums of all weights


class WeightGrad(Job):
    """The gradient of w: its tiling, and its loops."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.blocks = mk.ceildiv(conv.n, self.lanes)
        self.taps = mk.ceildiv(conv.kernel[1], mk.ceildiv(conv.kernel[1], TAPS))
        self.rows, self.columns = self._tile_shape()
        self.steps = mk.ceildiv(self.outputs, self.rows)
        self.by_image, self.by_channel = self._splits()
        budget = cpu.l1 * 3 // 4 // (self.rows * conv.out[1] * self.lanes * DTYPES[dtype].nbytes)
        self.strip = max(1, min(conv.out[0], budget))
        self.together = max(1, min(self.blocks, budget // conv.out[0]))  # blocks in one tile
        copied = 0 if conv.blocks else self.blocks * self.lanes
        self._x = copied * conv.c * plane(conv, (conv.h, conv.w))
        self._g = copied * conv.o * plane(conv, conv.out)
        self._sums = mk.ceildiv(self.steps * conv.groups, self.by_channel) * self.rows * conv.q

    @property
    def workspace(self) -> int:
        """Bytes."""
        sums = self.by_image * self.by_channel * self._sums
        return (self._x + self._g + sums) * DTYPES[self.dtype].nbytes

    def _tile_shape(self) -> tuple[int, int]:
        """Return output and input channels of a tile; each pair of channels has `taps` accumulators."""
        best = (float("inf"), 1, 1)
        for columns in range(1, min(self.inputs, self.cpu.registers) + 1):
            across = columns * self.taps
            room = (self.cpu.registers - 2) // (across + 1)
            if room < 1:
                break
            rows = mk.ceildiv(self.outputs, mk.ceildiv(self.outputs, min(self.outputs, room)))
            cost = 0.0
            for _, r, tall in mk.split(self.outputs, rows):
                for _, c, wide in mk.split(self.inputs, columns):
                    a = c * self.taps
                    cost += tall * wide * (max(r * a / 2, (r + a) / 2, 4.0) + 0.1 * (r + a))
            best = min(best, (cost, rows, columns))
        return best[1], best[2]

    def _splits(self) -> tuple[int, int]:
        """Return the numbers of parallel chunks along images, and along output channels."""
        if self.serial:
            return 1, 1
        steps = self.steps * self.conv.groups
        small = self.conv.o * self.conv.q * DTYPES[self.dtype].nbytes <= SMALL
        images = min(self.blocks, MAX_PARTIAL_SUMS if small else MAX_PARTIAL_SUMS // min(steps, MAX_PARTIAL_SUMS))
        return images, min(steps, self.cpu.chunks // images)

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        conv, xs = self.conv, self.slots(k, workspace)
        gs, sums = xs.at(self._x), xs.at(self._x + self._g)
        pack_blocked(k, self, x, conv.c, (conv.h, conv.w), xs)
        pack_blocked(k, self, g, conv.o, conv.out, gs)
        self._sum(k, xs, gs, sums, write)

    def emit_blocked(self, k: Kernel, xs: Buf, gs: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops for activations in the NCHWn layout."""
        self._sum(k, xs, gs, self.slots(k, workspace), write)

    def _sum(self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, write: WriteWeights) -> None:
        conv = self.conv

        def unit(chunk: Expr, _: Expr) -> None:
            images = k.bind(tir.floordiv(chunk, self.by_channel), "images")
            first_block, blocks = mk.chunk_range(k, self.blocks, self.by_image, images)
            part = k.bind(tir.floormod(chunk, self.by_channel), "part")
            first, count = mk.chunk_range(k, self.steps * conv.groups, self.by_channel, part)
            own = sums.at(k.bind(chunk * self._sums, "sums"))
            with k.loop(self._sums // self.rows, name="q") as i:
                k.store(own, tir.splat(tir.const(0, self.dtype), self.rows), i * self.rows)
            self._unit(k, xs, gs, own, first_block, blocks, first, count)
            if self.by_image == 1:
                self._finish(k, [own], first, count, write)

        num_chunks = self.by_image * self.by_channel
        mk.parallel_chunks(k, num_chunks, num_chunks, unit)
        if self.by_image > 1:
            self._total(k, sums, write)

    def _unit(
        self, k: Kernel, xs: Buf, gs: Buf, own: Buf, block: Value, blocks: Value, first: Value, count: Value
    ) -> None:
        """Compute all sums of one chunk."""
        conv, height = self.conv, self.conv.out[0]
        together = self.together
        with k.loop(tir.floordiv(blocks + (together - 1), together), name="blocks") as b:
            start = k.bind(block + b * together, "block")
            number = k.bind(tir.minimum(blocks - b * together, together), "blocks")
            with k.loop(mk.ceildiv(height, self.strip), name="strip") as s:
                top = k.bind(s * self.strip, "top")
                bottom = k.bind(tir.minimum(top + self.strip, height), "bottom")
                steps = (conv.groups, self.outputs, self.rows, first, count)
                with channel_step(k, *steps) as (group, output, outputs):
                    row = k.bind((group * self.steps + tir.floordiv(output, self.rows) - first) * self.rows, "row")
                    for rows in sizes(k, outputs, self.rows, self.outputs):
                        place = (start, number, top, bottom, group, output)
                        self._tiles(k, xs, gs, own.at(row * conv.q), rows, place)

    def _tiles(self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, rows: int, place: tuple[Value, ...]) -> None:
        """Add the terms of a strip of some blocks to all sums of some output channels."""
        for c, columns, steps in mk.split(self.inputs, self.columns):
            with k.loop(steps, name="c") as step, k.loop(self.conv.kernel[0], name="kh") as kh:
                channel = k.bind(step * columns + c, "c")
                for tap, taps, repeats in mk.split(self.conv.kernel[1], self.taps):
                    for repeat in range(repeats):
                        tile = _Tile(self, rows, columns, tap + repeat * taps, taps)
                        tile.emit(k, xs, gs, sums, (*place, channel, kh))

    def _finish(self, k: Kernel, sums: list[Buf], first: Value, count: Value, write: WriteWeights) -> None:
        """Store the sums of the output channels of some steps through the epilogue: the total of the buffers, added in
        their order."""
        conv = self.conv
        with channel_step(k, conv.groups, self.outputs, self.rows, first, count) as (group, output, number):
            row = k.bind((group * self.steps + tir.floordiv(output, self.rows) - first) * self.rows, "row")
            with k.loop(number, name="r") as r:
                o = k.bind(group * self.outputs + output + r, "o")

                def vector(q: Value, lanes: int, o: Expr = o, at: Expr = row + r) -> None:
                    total = k.load(sums[0], at * conv.q + q, lanes)
                    for other in sums[1:]:
                        total = total + k.load(other, at * conv.q + q, lanes)
                    write(o, q, k.bind(total, "total"))

                mk.for_vectors(k, conv.q, self.lanes, vector)

    def _total(self, k: Kernel, sums: Buf, write: WriteWeights) -> None:
        """Add the partial sums of the chunks along images, and store them through the epilogue."""
        steps = self.steps * self.conv.groups

        def unit(_: Expr, part: Expr) -> None:
            first, count = mk.chunk_range(k, steps, self.by_channel, part)
            buffers = [sums.at((part + i * self.by_channel) * self._sums) for i in range(self.by_image)]
            self._finish(k, buffers, first, count, write)

        mk.parallel_chunks(k, self.by_channel, self.by_channel, unit)


class _Tile:
    """Accumulators for `rows` output channels times `columns` input channels times some taps of one kernel row."""

    def __init__(self, job: WeightGrad, rows: int, columns: int, tap: int, taps: int):
        self.job, self.rows, self.columns, self.tap, self.taps = job, rows, columns, tap, taps

    def emit(self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Value, ...]) -> None:
        """Emit the sum over a strip of rows of some blocks, added to `sums`: [output channel][q]."""
        conv, lanes = self.job.conv, self.job.lanes
        block, blocks, top, bottom, group, output, channel, kh = place
        acc = mk.Tile(k, self.rows, (lanes,) * (self.columns * self.taps), self.job.dtype)
        first, last = self._rows_inside(k, kh, top, bottom)
        with k.loop(blocks, name="b") as b, k.loop(tir.maximum(last - first, 0), name="h") as h:
            i = k.bind(first + h, "i")
            g_plane = (block + b) * conv.o + group * self.job.outputs + output
            x_plane = (block + b) * conv.c + group * self.job.inputs + channel
            x_row = i * conv.stride[0] + kh * conv.dilation[0] - conv.padding[0]
            g_row = k.bind((g_plane * plane(conv, conv.out) + i * conv.out[1]) * lanes, "g_row")
            x_row = k.bind((x_plane * plane(conv, (conv.h, conv.w)) + x_row * conv.w) * lanes, "x_row")
            for start, count, taps in self._pixels():
                with k.loop(count, name="w") as step:
                    w = k.bind(step + start, "w")
                    self._pixel(
                        k, xs, gs, acc, k.bind(x_row + w * (conv.stride[1] * lanes)), k.bind(g_row + w * lanes), taps
                    )
        self._add(k, acc, sums, k.bind((channel * conv.kernel[0] + kh) * conv.kernel[1] + self.tap, "q"))

    def _rows_inside(self, k: Kernel, kh: Value, top: Value, bottom: Value) -> tuple[Expr, Expr]:
        """Return the first and last + 1 of the strip's rows whose source row under this tap exists."""
        conv, stride = self.job.conv, self.job.conv.stride[0]
        shift = conv.padding[0] - kh * conv.dilation[0]
        first = k.bind(tir.maximum(top, tir.floordiv(shift + (stride - 1), stride)), "first")
        last = k.bind(tir.minimum(bottom, tir.floordiv(shift + (conv.h - 1), stride) + 1), "last")
        return first, last

    def _pixels(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Iterate over runs (first, count, taps) of result columns for which the same taps are inside the image."""
        conv = self.job.conv

        def inside(w: int) -> tuple[int, ...]:
            columns = (
                (t, w * conv.stride[1] + (self.tap + t) * conv.dilation[1] - conv.padding[1]) for t in range(self.taps)
            )
            return tuple(t for t, column in columns if 0 <= column < conv.w)

        for taps, run in groupby(range(conv.out[1]), key=inside):
            found = list(run)
            if taps:
                yield found[0], len(found), taps

    def _pixel(self, k: Kernel, xs: Buf, gs: Buf, acc: mk.Tile, x: Expr, g: Expr, taps: tuple[int, ...]) -> None:
        conv, lanes = self.job.conv, self.job.lanes
        step = plane(conv, conv.out) * lanes
        dtype = self.job.dtype
        left = [k.bind(tir.cast(k.load(gs, g + r * step, lanes), dtype), "g") for r in range(self.rows)]
        for c in range(self.columns):
            for t in taps:
                column = (self.tap + t) * conv.dilation[1] - conv.padding[1]
                at = x + (c * plane(conv, (conv.h, conv.w)) + column) * lanes
                right = k.bind(tir.cast(k.load(xs, at, lanes), dtype), "x")
                for r in range(self.rows):
                    acc.add(r, c * self.taps + t, left[r], right)

    def _add(self, k: Kernel, acc: mk.Tile, sums: Buf, q: Expr) -> None:
        """Reduce the accumulators over their lanes, some at a time, and add the results to the sums."""
        conv, lanes, width = self.job.conv, self.job.lanes, len(acc.widths)
        values = [acc.get(r, v) for r in range(self.rows) for v in range(width)]
        totals = []
        for at in range(0, len(values), lanes):
            group = values[at : at + lanes]
            size = 1 << (len(group) - 1).bit_length()
            totals.append(
                mk.lane_sums(k, group + [tir.splat(tir.const(0, self.job.dtype), lanes)] * (size - len(group)))
            )
        joined = conv.kernel[0] == 1 and self.taps == conv.kernel[1]  # then adjacent channels are adjacent in q
        run = width if joined else self.taps
        for r in range(self.rows):
            for v in range(0, width, run):
                found = tir.shuffle(totals, range(r * width + v, r * width + v + run))
                at = k.bind(q + (r * conv.q + v // self.taps * conv.kernel[0] * conv.kernel[1]), "at")
                k.store(sums, k.load(sums, at, run) + found, at)
