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
from gluongraph.codegen.contraction import winograd_2d as planes
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels, Weights, WritePixels
from gluongraph.codegen.contraction.conv_direct_nchwc import unpack_and_store
from gluongraph.codegen.contraction.winograd import Points, Sides, data_grad, forward
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

ROOM = 0.6  # of the second cache, for a strip at the points
CHUNK = 4  # blocks of channels whose weights are evaluated at once, at most


class _ToPixels(Job):
    op: str  # that it is

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.source, self.target, self.reduced, self.made, padding = self._sides()
        self.tile, self.numbers = planes.tile(self.op, conv), planes.NUMBERS[self.op]
        self.count = math.prod(self.numbers)
        self.down, self.across = (mk.ceildiv(*pair) for pair in zip(self.target, self.tile, strict=True))
        self.lines = self._lines()
        tiles, block = (self.down, self.across), (self.lanes, self.lanes)
        self.planes = planes.source(self.op, conv, self.source, padding, tiles, self.reduced, block, self.lines)
        self.rows, self.vectors = self._block_shape()
        self.width = self.vectors * self.lanes
        self.panels = mk.ceildiv(self.made, self.width)
        blocks = self.planes.frame.blocks
        self.chunk = next(n for n in range(min(CHUNK, blocks), 0, -1) if blocks % n == 0)
        # Elements from one point to the next, an odd number of vectors, else the points would share few cache sets.
        self._weights = (self.chunk * self.width | 1) * self.lanes
        self._sums = (self.planes.number * self.vectors | 1) * self.lanes

    @abstractmethod
    def _sides(self) -> Sides:
        """What is read and made."""

    @abstractmethod
    def _taps(self, k: Kernel, w: Weights, made: Expr, reduced: Expr, into: Buf) -> None:
        """All taps between a vector of channels that are made and as many that are summed over, which begin there:
        [channel that is summed over][tap][channel that is made]."""

    @property
    def workspace(self) -> int:
        """Bytes: the source at the points."""
        return self.planes.elements(self.conv.n) * DTYPES[self.dtype].nbytes

    def _lines(self) -> int:
        """Rows of tiles of a strip: as many as divide all, and whose values at the points a part of the cache holds."""
        each = self.count * self.across * self.reduced * DTYPES[self.dtype].nbytes
        total, most = self.conv.n * self.down, max(1, int(self.cpu.l2 * ROOM / each))
        return next(n for n in range(min(total, most), 0, -1) if total % n == 0)

    def _block_shape(self) -> Pair:
        """Tiles and vectors of channels of a register block, by the least estimated cycles for a strip."""
        total, tiles = self.made // self.lanes, self.lines * self.across
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
        """Write the loops."""
        values = self.slots(k, workspace)
        self.planes.fill(k, self, read, values)

        def unit(_: Expr, unit: Expr) -> None:
            strip = k.bind(tir.floordiv(unit, self.panels), "strip")
            own = values.at(k.bind(strip * self.planes.strip, "own"))
            # Memory of the thread, which the next chunk finds in cache; a workspace for each chunk would not be there.
            weights = k.local("weights", self.count * self._weights, self.dtype)
            sums = k.local("sums", self.count * self._sums, self.dtype)

            def channels(first: Expr, size: int) -> None:
                vectors = size // self.lanes
                with k.loop(self.planes.frame.blocks // self.chunk, name="chunk") as chunk:
                    self._evaluate_weights(k, w, chunk, first, vectors, weights)
                    self._multiply(k, own, weights, sums, chunk, vectors)
                with k.loop(self.lines, name="line") as line:
                    self._finish(k, sums, write, strip, line, first, size)

            mk.for_blocks(k, self.made, self.width, k.bind(tir.floormod(unit, self.panels), "panel"), 1, channels)

        self.spread(k, self.planes.strips * self.panels, unit)

    def _points(self, k: Kernel) -> list[Points]:
        """Down and across."""
        return [Points(k, self.lanes, self.dtype, number) for number in self.numbers]

    def _evaluate_weights(self, k: Kernel, w: Weights, chunk: Expr, first: Expr, vectors: int, into: Buf) -> None:
        """Weights of a chunk at the points: [point][channel that is summed over][channel that is made]."""
        lanes, (high, wide) = self.lanes, self.conv.kernel
        points, taps = self._points(k), k.local("taps", lanes * high * wide * lanes, self.dtype)
        with k.loop(self.chunk, name="block") as b, k.loop(vectors, name="v") as v:
            start = k.bind((chunk * self.chunk + b) * lanes, "start")
            self._taps(k, w, k.bind(first + v * lanes, "made"), start, taps)
            with k.loop(lanes, name="c") as c:
                to = k.bind((b * lanes + c) * self.width + v * lanes, "to")

                def read(i: int, j: Value, c: Expr = c) -> Expr:
                    return k.load(taps, ((c * high + i) * wide + j) * lanes, lanes)

                def write(row: Expr, values: planes.Values, to: Expr = to) -> None:
                    planes.put(
                        k, values, into, k.bind(to + row * (self.numbers[1] * self._weights), "to"), self._weights
                    )

                turn = (partial(planes.taps, of_axis) for of_axis in points)
                planes.square(k, self, (high, wide), read, (*turn,), self.numbers[0], write)

    def _multiply(self, k: Kernel, values: Buf, weights: Buf, sums: Buf, chunk: Expr, vectors: int) -> None:
        """Add a chunk's products to the sums, the first's in place of them: [point][tile][channel that is made]."""
        lanes, number = self.lanes, self.planes.number
        with k.loop(self.count, name="p") as p:
            for first, rows, count in mk.split(number, self.rows):
                with k.loop(count, name="t") as t:
                    tile = k.bind(t * rows + first, "tile")
                    acc = mk.Tile(k, rows, (lanes,) * vectors, self.dtype)
                    with k.loop(self.chunk, name="block") as b:
                        block = (chunk * self.chunk + b) * number + tile
                        x = k.bind(p * self.planes.plane + block * lanes, "x")
                        u = k.bind(p * self._weights + b * (lanes * self.width), "u")
                        with k.loop(lanes, name="c") as c:
                            at = k.bind(c * self.width + u, "at")
                            right = [k.bind(k.load(weights, at + v * lanes, lanes), "w") for v in range(vectors)]
                            for r in range(rows):
                                value = k.bind(k.load(values, x + c + r * lanes), "x")
                                for v in range(vectors):
                                    acc.add(r, v, value, right[v])
                    to = k.bind(p * self._sums + tile * self.width, "to")
                    for again in (False, True) if self.chunk < self.planes.frame.blocks else (False,):
                        with k.when(chunk > 0 if again else tir.compare("equal", tir.index(chunk), tir.index(0))):
                            for r in range(rows):
                                for v in range(vectors):
                                    at, made = k.bind(to + r * self.width + v * lanes, "at"), acc.get(r, v)
                                    k.store(sums, k.load(sums, at, lanes) + made if again else made, at)

    def _finish(
        self, k: Kernel, sums: Buf, write: WritePixels, strip: Expr, line: Expr, first: Expr, channels: int
    ) -> None:
        """Turn the sums of a row of tiles back to rows of pixels, and hand them on."""
        lanes, (high, wide), (height, width) = self.lanes, self.tile, self.target
        pixels = k.local("pixels", (high * width) * self.width + lanes**2, self.dtype)

        back = [partial(of_axis.back, count=made) for of_axis, made in zip(self._points(k), self.tile, strict=True)]
        for start, columns, count in mk.split(width, wide):
            with k.loop(count, name="tile") as t, k.loop(channels // lanes, name="v") as v:
                at = k.bind((line * self.across + start // wide + t) * self.width + v * lanes, "at")
                to = k.bind((start + t * wide) * self.width + v * lanes, "to")

                def read(i: int, j: Value, at: Expr = at) -> Expr:
                    return k.load(sums, (i * self.numbers[1] + j) * self._sums + at, lanes)

                def keep(row: Expr, values: planes.Values, to: Expr = to, columns: int = columns) -> None:
                    at = k.bind(to + row * (width * self.width), "at")
                    planes.put(k, values[:columns], pixels, at, self.width)

                planes.square(k, self, self.numbers, read, back, high, keep)
        row = k.bind(strip * self.lines + line, "line")
        image, inner = k.bind(tir.floordiv(row, self.down), "image"), k.bind(tir.floormod(row, self.down), "inner")

        def hand_on(start: Expr, rows: int) -> None:
            sizes = (rows * width, self.width, channels)
            unpack_and_store(k, self, pixels, sizes, partial(write, image), first, k.bind(start * width, "pixel"))

        mk.for_blocks(k, height, high, inner, 1, hand_on)


class Forward(_ToPixels):
    """y from x and w."""

    op = "conv2d"

    def _sides(self) -> Sides:
        return forward(self.conv)

    def _taps(self, k: Kernel, w: Weights, made: Expr, reduced: Expr, into: Buf) -> None:
        side, taps = self.lanes, self.conv.kernel[0] * self.conv.kernel[1]

        def square(q: Value, n: int) -> None:
            rows = [k.bind(mk.padded(w(made + i, reduced * taps + q, n), side), "t") for i in range(side)]
            for i, row in enumerate(mk.transposed(k, rows)[:n]):
                k.store(into, row, (q + i) * side)

        mk.for_vectors(k, side * taps, side, square)


class DataGrad(_ToPixels):
    """The gradient of x from that of y."""

    op = "conv2d_data_grad"

    def _sides(self) -> Sides:
        return data_grad(self.conv)

    def _taps(self, k: Kernel, w: Weights, made: Expr, reduced: Expr, into: Buf) -> None:
        side, taps = self.lanes, self.conv.kernel[0] * self.conv.kernel[1]
        with k.loop(side, name="c") as c:

            def square(tap: Value, n: int, c: Expr = c) -> None:
                rows = [k.bind(mk.padded(w(reduced + c, (made + i) * taps + tap, n), side), "t") for i in range(side)]
                for i, row in enumerate(mk.transposed(k, rows)[:n]):
                    k.store(into, row, (c * taps + (taps - 1 - tap - i)) * side)

            mk.for_vectors(k, taps, side, square)
