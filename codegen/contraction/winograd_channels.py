"""Winograd convolutions along rows and columns with vectors over channels, for few images: forward and the gradient of
the data.

A parallel chunk owns a strip of tiles and some output channels. It transforms their weights, for some of the input
channels at a time, multiplies point by point, and transforms the sums back. So the transformed weights, up to four
times as large as the weights, never leave L2.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction import winograd_2d
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels, Weights, WritePixels
from gluongraph.codegen.contraction.conv_direct_nchwc import unpack_and_store
from gluongraph.codegen.contraction.winograd import ConvSides, WinogradTransform, data_grad, forward
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

ROOM = 0.6  # fraction of L2 for a transformed strip
CHUNK = 4  # blocks of channels whose weights are transformed at once, at most


class _ToImages(Job):
    op: str

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.source, self.target, self.reduced, self.produced, padding = self._sides()
        self.tile, self.points = winograd_2d.tile(self.op, conv), winograd_2d.POINTS_2D[self.op]
        self.count = math.prod(self.points)
        self.down, self.across = (mk.ceildiv(*pair) for pair in zip(self.target, self.tile, strict=True))
        self.lines = self._lines()
        tiles, block = (self.down, self.across), (self.lanes, self.lanes)
        self.images = winograd_2d.source(self.op, conv, self.source, padding, tiles, self.reduced, block, self.lines)
        self.rows, self.vectors = self._block_shape()
        self.width = self.vectors * self.lanes
        self.panels = mk.ceildiv(self.produced, self.width)
        blocks = self.images.frame.blocks
        self.chunk = next(n for n in range(min(CHUNK, blocks), 0, -1) if blocks % n == 0)
        # Elements from one point to the next, an odd number of vectors, else the points would share few cache sets.
        self._weights = (self.chunk * self.width | 1) * self.lanes
        self._sums = (self.images.number * self.vectors | 1) * self.lanes

    @abstractmethod
    def _sides(self) -> ConvSides:
        """Return source and result of the convolution."""

    @abstractmethod
    def _taps(self, k: Kernel, w: Weights, produced: Expr, reduced: Expr, into: Buf) -> None:
        """Load all taps between a vector of produced channels and as many summed channels, which begin at `produced`
        and `reduced`: [summed channel][tap][produced channel]."""

    @property
    def workspace(self) -> int:
        """Bytes of the transformed source."""
        return self.images.elements(self.conv.n) * DTYPES[self.dtype].nbytes

    def _lines(self) -> int:
        """Return the rows of tiles of a strip: the largest divisor of all rows whose transformed values fit the part of
        L2 that ROOM says."""
        each = self.count * self.across * self.reduced * DTYPES[self.dtype].nbytes
        total, most = self.conv.n * self.down, max(1, int(self.cpu.l2 * ROOM / each))
        return next(n for n in range(min(total, most), 0, -1) if total % n == 0)

    def _block_shape(self) -> Pair:
        """Return tiles and vectors of channels of a register block with the least estimated cycles for a strip."""
        total, tiles = self.produced // self.lanes, self.lines * self.across
        best = (float("inf"), 1, 1)
        for vectors in range(1, min(total, 4) + 1):
            most = (self.cpu.registers - vectors - 1) // vectors
            for rows in {mk.ceildiv(tiles, mk.ceildiv(tiles, min(tiles, n))) for n in range(1, most + 1)}:
                cost = 0.0
                for _, r, steps in mk.split(tiles, rows):
                    for _, v, panels in mk.split(total, vectors):
                        cost += steps * panels * (max(r * v / 2, (r + v) / 2, 4.0) + 0.3 * v + 0.1 * r + 0.2)
                best = min(best, (cost, rows, vectors))
        return best[1], best[2]

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        values = self.slots(k, workspace)
        self.images.fill(k, self, read, values)

        def unit(_: Expr, unit: Expr) -> None:
            strip = k.bind(tir.floordiv(unit, self.panels), "strip")
            own = values.at(k.bind(strip * self.images.strip, "own"))
            # Memory of the thread, which the next chunk finds in cache; a workspace for each chunk would not be there.
            weights = k.local("weights", self.count * self._weights, self.dtype)
            sums = k.local("sums", self.count * self._sums, self.dtype)

            def channels(first: Expr, size: int) -> None:
                vectors = size // self.lanes
                with k.loop(self.images.frame.blocks // self.chunk, name="chunk") as chunk:
                    self._transform_weights(k, w, chunk, first, vectors, weights)
                    self._multiply(k, own, weights, sums, chunk, vectors)
                with k.loop(self.lines, name="line") as line:
                    self._finish(k, sums, write, strip, line, first, size)

            mk.for_blocks(k, self.produced, self.width, k.bind(tir.floormod(unit, self.panels), "panel"), 1, channels)

        self.for_units(k, self.images.strips * self.panels, unit)

    def _transforms(self, k: Kernel) -> list[WinogradTransform]:
        """Return the transforms along columns and along rows."""
        return [WinogradTransform(k, self.lanes, self.dtype, number) for number in self.points]

    def _transform_weights(self, k: Kernel, w: Weights, chunk: Expr, first: Expr, vectors: int, into: Buf) -> None:
        """Transform the weights of a chunk of summed channels: [point][summed channel][produced channel]."""
        lanes, (high, wide) = self.lanes, self.conv.kernel
        transforms, taps = self._transforms(k), k.local("taps", lanes * high * wide * lanes, self.dtype)
        with k.loop(self.chunk, name="block") as b, k.loop(vectors, name="v") as v:
            start = k.bind((chunk * self.chunk + b) * lanes, "start")
            self._taps(k, w, k.bind(first + v * lanes, "made"), start, taps)
            with k.loop(lanes, name="c") as c:
                to = k.bind((b * lanes + c) * self.width + v * lanes, "to")

                def read(i: int, j: Value, c: Expr = c) -> Expr:
                    return k.load(taps, ((c * high + i) * wide + j) * lanes, lanes)

                def write(row: Expr, values: winograd_2d.Values, to: Expr = to) -> None:
                    winograd_2d.store_vectors(
                        k, values, into, k.bind(to + row * (self.points[1] * self._weights), "to"), self._weights
                    )

                filter_transforms = (partial(winograd_2d.transform_filter, of_axis) for of_axis in transforms)
                winograd_2d.transform_2d(k, self, (high, wide), read, (*filter_transforms,), self.points[0], write)

    def _multiply(self, k: Kernel, values: Buf, weights: Buf, sums: Buf, chunk: Expr, vectors: int) -> None:
        """Add a chunk's products to the sums, which the first chunk initializes: [point][tile][produced channel]."""
        lanes, number = self.lanes, self.images.number
        with k.loop(self.count, name="p") as p:
            for first, rows, count in mk.split(number, self.rows):
                with k.loop(count, name="t") as t:
                    tile = k.bind(t * rows + first, "tile")
                    acc = mk.Tile(k, rows, (lanes,) * vectors, self.dtype)
                    with k.loop(self.chunk, name="block") as b:
                        block = (chunk * self.chunk + b) * number + tile
                        x = k.bind(p * self.images.plane + block * lanes, "x")
                        u = k.bind(p * self._weights + b * (lanes * self.width), "u")
                        with k.loop(lanes, name="c") as c:
                            at = k.bind(c * self.width + u, "at")
                            right = [k.bind(k.load(weights, at + v * lanes, lanes), "w") for v in range(vectors)]
                            for r in range(rows):
                                value = k.bind(k.load(values, x + c + r * lanes), "x")
                                for v in range(vectors):
                                    acc.add(r, v, value, right[v])
                    to = k.bind(p * self._sums + tile * self.width, "to")
                    for accumulate in (False, True) if self.chunk < self.images.frame.blocks else (False,):
                        with k.when(chunk > 0 if accumulate else tir.compare("equal", tir.index(chunk), tir.index(0))):
                            for r in range(rows):
                                for v in range(vectors):
                                    at, produced = k.bind(to + r * self.width + v * lanes, "at"), acc.get(r, v)
                                    k.store(sums, k.load(sums, at, lanes) + produced if accumulate else produced, at)

    def _finish(
        self, k: Kernel, sums: Buf, write: WritePixels, strip: Expr, line: Expr, first: Expr, channels: int
    ) -> None:
        """Transform the sums of a row of tiles back to rows of pixels, and store them through the epilogue."""
        lanes, (high, wide), (height, width) = self.lanes, self.tile, self.target
        pixels = k.local("pixels", (high * width) * self.width + lanes**2, self.dtype)

        inverse = [
            partial(of_axis.inverse, count=produced)
            for of_axis, produced in zip(self._transforms(k), self.tile, strict=True)
        ]
        for start, columns, count in mk.split(width, wide):
            with k.loop(count, name="tile") as t, k.loop(channels // lanes, name="v") as v:
                at = k.bind((line * self.across + start // wide + t) * self.width + v * lanes, "at")
                to = k.bind((start + t * wide) * self.width + v * lanes, "to")

                def read(i: int, j: Value, at: Expr = at) -> Expr:
                    return k.load(sums, (i * self.points[1] + j) * self._sums + at, lanes)

                def store_tile(row: Expr, values: winograd_2d.Values, to: Expr = to, columns: int = columns) -> None:
                    at = k.bind(to + row * (width * self.width), "at")
                    winograd_2d.store_vectors(k, values[:columns], pixels, at, self.width)

                winograd_2d.transform_2d(k, self, self.points, read, inverse, high, store_tile)
        row = k.bind(strip * self.lines + line, "line")
        image, inner = k.bind(tir.floordiv(row, self.down), "image"), k.bind(tir.floormod(row, self.down), "inner")

        def store_rows(start: Expr, rows: int) -> None:
            sizes = (rows * width, self.width, channels)
            unpack_and_store(k, self, pixels, sizes, partial(write, image), first, k.bind(start * width, "pixel"))

        mk.for_blocks(k, height, high, inner, 1, store_rows)


class Forward(_ToImages):
    """y from x and w."""

    op = "conv2d"

    def _sides(self) -> ConvSides:
        return forward(self.conv)

    def _taps(self, k: Kernel, w: Weights, produced: Expr, reduced: Expr, into: Buf) -> None:
        side, taps = self.lanes, self.conv.kernel[0] * self.conv.kernel[1]

        def square(q: Value, n: int) -> None:
            rows = [k.bind(mk.padded(w(produced + i, reduced * taps + q, n), side), "t") for i in range(side)]
            for i, row in enumerate(mk.transposed(k, rows)[:n]):
                k.store(into, row, (q + i) * side)

        mk.for_vectors(k, side * taps, side, square)


class DataGrad(_ToImages):
    """The gradient of x from that of y."""

    op = "conv2d_data_grad"

    def _sides(self) -> ConvSides:
        return data_grad(self.conv)

    def _taps(self, k: Kernel, w: Weights, produced: Expr, reduced: Expr, into: Buf) -> None:
        side, taps = self.lanes, self.conv.kernel[0] * self.conv.kernel[1]
        with k.loop(side, name="c") as c:

            def square(tap: Value, n: int, c: Expr = c) -> None:
                rows = [
                    k.bind(mk.padded(w(reduced + c, (produced + i) * taps + tap, n), side), "t") for i in range(side)
                ]
                for i, row in enumerate(mk.transposed(k, rows)[:n]):
                    k.store(into, row, (c * taps + (taps - 1 - tap - i)) * side)

            mk.for_vectors(k, taps, side, square)
