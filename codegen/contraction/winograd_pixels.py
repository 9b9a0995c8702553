"""Winograd convolutions with vectors over images (winograd.py) whose result is pixels: forward and the gradient of the
data.

A parallel chunk goes down some rows of a block of images. As many transformed rows of the source as the kernel has rows
lie in a ring buffer; a row of the result is summed from them point by point, in register blocks, and transformed back.
"""

from __future__ import annotations

from abc import abstractmethod

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Pair, Weights, WriteImages, sizes
from gluongraph.codegen.contraction.winograd import (
    POINTS,
    ConvSides,
    WinogradKernel,
    WinogradTransform,
    data_grad,
    forward,
)
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES


class _ToImages(WinogradKernel):
    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.source, self.target, self.reduced, self.produced, self.padding = self._sides()
        self.tiles = mk.ceildiv(self.target[1], self.across)
        self.rows, self.tiles_per_run = self._tile_shape()
        self.steps, self.runs = mk.ceildiv(self.produced, self.rows), self.tiles // self.tiles_per_run
        # Elements from one point to the next: of weights; of the ring buffer; of the sums of a run of tiles. The latter
        # two are odd numbers of vectors, else six points would share few cache sets.
        self._weights = self.steps * self.height * self.reduced * self.rows
        self._ring = (self.height * self.tiles * self.reduced | 1) * self.lanes
        self._sums = (self.produced * self.tiles_per_run | 1) * self.lanes
        blocks = mk.ceildiv(conv.n, self.lanes)
        self.down = 1 if self.serial else min(self.target[0], mk.ceildiv(cpu.chunks, blocks))
        self.units = blocks * self.down

    @abstractmethod
    def _sides(self) -> ConvSides:
        """Return source and result of the convolution."""

    @abstractmethod
    def weight(self, produced: Value, reduced: Value, row: Value, tap: int) -> tuple[Value, Value]:
        """Return (output channel, q) of the weight between two channels."""

    @property
    def workspace(self) -> int:
        """Bytes of the transformed weights."""
        return POINTS * self._weights * DTYPES[self.dtype].nbytes

    def _tile_shape(self) -> Pair:
        """Return channels and tiles of a register block with the least estimated cycles for a tile of all channels; of
        equals the one with the fewest tiles, whose transformed values stay in L1."""
        best = (float("inf"), 1, 1)
        for tiles_per_run in (count for count in range(1, self.tiles + 1) if self.tiles % count == 0):
            room = (self.cpu.registers - 1 - tiles_per_run) // tiles_per_run
            if room < 1:
                break
            rows = mk.ceildiv(self.produced, mk.ceildiv(self.produced, min(self.produced, room)))
            runs = mk.split(self.produced, rows)
            cost = (
                sum(steps * max(r * tiles_per_run / 2, (r + tiles_per_run) / 2, 4.0) for _, r, steps in runs)
                / tiles_per_run
            )
            best = min(best, (cost, tiles_per_run, rows))
        return best[2], best[1]

    def emit_blocked(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Emit the loops for source and result in the NCHWn layout."""
        weights = self.slots(k, workspace)
        self._transform_weights(k, w, weights)

        def unit(_: Expr, unit: Expr) -> None:
            block, y = k.bind(tir.floordiv(unit, self.down), "block"), k.bind(tir.floormod(unit, self.down), "y")
            top, rows = mk.chunk_range(k, self.target[0], self.down, y)
            # Memory of the thread, which the next chunk finds in cache; a workspace for each chunk would not be there.
            ring = k.local("ring", POINTS * (self._ring + self._sums) + self.across * self.lanes, self.dtype)
            sums = ring.at(POINTS * self._ring)
            with k.loop(rows, name="row") as r:
                row = k.bind(top + r, "row")
                self._transform_rows(k, images, ring, block, row, tir.compare("equal", r, tir.index(0)))
                with k.loop(self.runs, name="run") as run:
                    self._multiply(k, weights, ring, sums, row, run)
                    self._unpack_and_store(k, sums, write, block, row, run)

        self.for_units(k, self.units, unit)

    def _transform_weights(self, k: Kernel, w: Weights, into: Buf) -> None:
        """Transform the weights: [point][step][kernel row][summed channel][produced channel of the step]."""

        def unit(_: Expr, c: Expr) -> None:
            transform = WinogradTransform(k, 1, self.dtype)
            with k.nest((self.steps, self.height, self.rows)) as (step, kh, r):
                produced = k.bind(tir.minimum(step * self.rows + r, self.produced - 1), "made")
                taps = [k.bind(w(*self.weight(produced, c, kh, tap), 1), "w") for tap in range(self.taps)]
                at = k.bind(((step * self.height + kh) * self.reduced + c) * self.rows + r, "at")
                self.put(k, transform.scaled(transform.transform_filter(taps)), into, at, self._weights)

        self.for_units(k, self.reduced, unit)

    def _transform_rows(self, k: Kernel, images: Buf, ring: Buf, block: Expr, row: Expr, load_all: Expr) -> None:
        """Transform the row of the source that the target's row is the first to read, or all that it reads if
        `load_all`: [point][row of the ring buffer][run][channel][tile of the run]."""
        transform, behind = WinogradTransform(k, self.lanes, self.dtype), row + (self.height - self.padding[0])
        first = k.bind(tir.maximum(tir.select(load_all, row - self.padding[0], behind - 1), 0), "first")
        last = k.bind(tir.minimum(behind, self.source[0]), "last")
        width = self.source[1]
        with k.loop(tir.maximum(last - first, 0), name="h") as h, k.loop(self.reduced, name="c") as c:
            source = k.bind(first + h, "source")
            start = k.bind(((block * self.reduced + c) * self.source[0] + source) * (width * self.lanes), "start")
            slot = k.bind(tir.floormod(source, self.height) * self.runs, "slot")
            for tile, columns in self.tiles_of(k, images, start, width, -self.padding[1], POINTS, self.tiles):
                run, t = tir.floordiv(tile, self.tiles_per_run), tir.floormod(tile, self.tiles_per_run)
                at = k.bind((((slot + run) * self.reduced + c) * self.tiles_per_run + t) * self.lanes, "at")
                self.put(k, transform.transform_data(columns), ring, at, self._ring)

    def _multiply(self, k: Kernel, weights: Buf, ring: Buf, sums: Buf, row: Expr, run: Expr) -> None:
        """Compute the sums of a run of tiles: [point][produced channel][tile]. Rows outside of the source are
        skipped."""
        with k.loop(POINTS, name="point") as p, k.loop(self.steps, name="step") as step:
            number: Value = self.rows
            if self.produced % self.rows:
                number = k.bind(tir.minimum(self.produced - step * self.rows, self.rows), "number")
            for size in sizes(k, number, self.rows, self.produced):
                acc = mk.Tile(k, size, (self.lanes,) * self.tiles_per_run, self.dtype, self.height * self.reduced)
                outer, inner = mk.settle_in_outer_or_inner(acc.settle, self.reduced)
                with mk.chained(k, outer, [self.height], self.reduced) as (kh,):
                    source = k.bind(row + kh - self.padding[0], "source")
                    slot = tir.floormod(source + self.height, self.height) * self.runs + run
                    x = k.bind(p * self._ring + slot * (self.reduced * self.tiles_per_run * self.lanes), "x")
                    w = k.bind(p * self._weights + (step * self.height + kh) * (self.reduced * self.rows), "w")
                    inside = tir.logical("and", source >= 0, source < self.source[0])
                    with k.when(inside), mk.chained(k, inner, [self.reduced]) as (c,):
                        tiles = ((c * self.tiles_per_run + t) * self.lanes for t in range(self.tiles_per_run))
                        loaded = [k.bind(k.load(ring, x + at, self.lanes), "x") for at in tiles]
                        for r in range(size):
                            weight = k.bind(k.load(weights, w + c * self.rows + r), "w")
                            for t in range(self.tiles_per_run):
                                acc.add(r, t, weight, loaded[t])
                at = k.bind(p * self._sums + step * (self.rows * self.tiles_per_run * self.lanes), "at")
                for r in range(size):
                    for t in range(self.tiles_per_run):
                        k.store(sums, acc.get(r, t), at + (r * self.tiles_per_run + t) * self.lanes)

    def _unpack_and_store(self, k: Kernel, sums: Buf, write: WriteImages, block: Expr, row: Expr, run: Expr) -> None:
        """Transform the sums of a run of tiles back to columns, and store them through the epilogue, from memory: so
        the epilogue is emitted once, in a loop."""
        transform, columns = WinogradTransform(k, self.lanes, self.dtype), sums.at(POINTS * self._sums)
        with k.loop(self.produced, name="channel") as channel, k.loop(self.tiles_per_run, name="t") as t:
            at = k.bind((channel * self.tiles_per_run + t) * self.lanes, "at")
            produced = [k.bind(k.load(sums, at + p * self._sums, self.lanes), "m") for p in range(POINTS)]
            for i, value in enumerate(transform.inverse(produced, self.across)):
                k.store(columns, value, i * self.lanes)
            start = k.bind((run * self.tiles_per_run + t) * self.across, "start")
            count: Value = self.across
            if self.target[1] % self.across:
                count = k.bind(tir.minimum(self.target[1] - start, self.across), "count")
            with k.loop(count, name="i") as i:
                value = k.bind(k.load(columns, i * self.lanes, self.lanes), "value")
                write(block, channel, row, k.bind(start + i, "column"), value)


class Forward(_ToImages):
    def _sides(self) -> ConvSides:
        return forward(self.conv)

    def weight(self, produced: Value, reduced: Value, row: Value, tap: int) -> tuple[Value, Value]:
        return produced, (reduced * self.height + row) * self.taps + tap


class DataGrad(_ToImages):
    def _sides(self) -> ConvSides:
        return data_grad(self.conv)

    def weight(self, produced: Value, reduced: Value, row: Value, tap: int) -> tuple[Value, Value]:
        return reduced, (produced * self.height + (self.height - 1 - row)) * self.taps + (self.taps - 1 - tap)
