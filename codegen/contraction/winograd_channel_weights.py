"""The gradient of a convolution's weights by Winograd along rows and columns, with vectors over channels, for few
images (winograd_2d.py).

As in conv_direct_nchwc.py, with points in the place of taps: a register block holds some output channels times vectors
of input channels at one point, summed over all tiles. What is complete at all points is transformed back in cache.
"""

from __future__ import annotations

import math
from functools import partial

from gluongraph.codegen.contraction import conv_direct_nchwc
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction import winograd_2d as planes
from gluongraph.codegen.contraction.conv_common import Conv
from gluongraph.codegen.contraction.winograd import Points
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

OP = "conv2d_weight_grad"
NUMBERS = planes.NUMBERS[OP]
COUNT = math.prod(NUMBERS)


class WeightGrad(conv_direct_nchwc.ToWeights):
    """The gradient of w."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        down, across = (mk.ceildiv(*pair) for pair in zip(conv.out, planes.tile(OP, conv), strict=True))
        size, tiles, block = (conv.h, conv.w), (down, across), (self.lanes, self.lanes)
        self.x = planes.source(OP, conv, size, conv.padding, tiles, conv.c, block, conv.n * down)
        self.g = planes.gradient(conv, tiles, (self.rows, self.lanes))

    def sources(self) -> tuple[conv_direct_nchwc.Copied, conv_direct_nchwc.Copied]:
        return self.x, self.g

    def sum(
        self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Expr, Expr], rows: int, c: Expr, vectors: int
    ) -> None:
        lanes, number = self.lanes, self.x.number
        plane = (self.rows * self.vectors | 1) * lanes
        made = k.local("made", COUNT * plane, self.dtype)
        with k.loop(COUNT, name="p") as p:
            acc = mk.Tile(k, rows, (lanes,) * vectors, self.dtype, number)
            x = k.bind(p * self.x.plane + tir.floordiv(c, lanes) * (number * lanes), "x")
            g = k.bind(p * self.g.plane + place[1] * (number * lanes), "g")
            with mk.chained(k, acc.settle, [number]) as (t,):
                near, at = k.bind(x + t * lanes, "near"), k.bind(g + t * lanes, "at")
                right = [k.bind(k.load(xs, near + v * (number * lanes), lanes), "x") for v in range(vectors)]
                for r in range(rows):
                    left = k.bind(k.load(gs, at + r), "g")
                    for v in range(vectors):
                        acc.add(r, v, left, right[v])
            for r in range(rows):
                for v in range(vectors):
                    k.store(made, acc.get(r, v), p * plane + (r * self.vectors + v) * lanes)
        self._unpack_and_store(k, made, plane, sums, rows, vectors)

    def _unpack_and_store(self, k: Kernel, made: Buf, plane: int, sums: Buf, rows: int, vectors: int) -> None:
        """Sums at the points as those of taps: [output channel][tap][input channel]."""
        lanes, (high, wide) = self.lanes, self.conv.kernel
        points = (Points(k, lanes, self.dtype, number) for number in NUMBERS)
        back = [partial(of_axis.back, count=taps) for of_axis, taps in zip(points, self.conv.kernel, strict=True)]
        with k.loop(rows, name="r") as r, k.loop(vectors, name="v") as v:
            at = k.bind((r * self.vectors + v) * lanes, "at")

            def read(i: int, j: Value) -> Expr:
                return k.load(made, (i * NUMBERS[1] + j) * plane + at, lanes)

            def write(row: Expr, values: planes.Values) -> None:
                to = k.bind((r * self.taps + row * wide) * self.width + v * lanes, "to")
                planes.put(k, values, sums, to, self.width)

            planes.square(k, self, NUMBERS, read, back, high, write)
