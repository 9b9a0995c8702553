"""The gradient of a convolution's weights by Winograd along rows and columns, with vectors over channels, for few
images (winograd_2d.py).

As in conv_direct_nchwc.py, with points in the place of taps: a register block holds some output channels times vectors
of input channels at one point, summed over all tiles. When the sums of all points are complete, they are transformed
back in cache.
"""

from __future__ import annotations

import math
from functools import partial

from gluongraph.codegen.contraction import conv_direct_nchwc, winograd_2d
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv
from gluongraph.codegen.contraction.winograd import WinogradTransform
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

OP = "conv2d_weight_grad"
POINTS_2D = winograd_2d.POINTS_2D[OP]
COUNT = math.prod(POINTS_2D)


class WeightGrad(conv_direct_nchwc.ToWeights):
    """The gradient of w."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        down, across = (mk.ceildiv(*pair) for pair in zip(conv.out, winograd_2d.tile(OP, conv), strict=True))
        size, tiles, block = (conv.h, conv.w), (down, across), (self.lanes, self.lanes)
        self.x = winograd_2d.source(OP, conv, size, conv.padding, tiles, conv.c, block, conv.n * down)
        self.g = winograd_2d.gradient(conv, tiles, (self.rows, self.lanes))

    def sources(self) -> tuple[conv_direct_nchwc.Copied, conv_direct_nchwc.Copied]:
        return self.x, self.g

    def sum(
        self, k: Kernel, xs: Buf, gs: Buf, sums: Buf, place: tuple[Expr, Expr], rows: int, c: Expr, vectors: int
    ) -> None:
        lanes, number = self.lanes, self.x.number
        plane = (self.rows * self.vectors | 1) * lanes
        transformed_sums = k.local("made", COUNT * plane, self.dtype)
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
                    k.store(transformed_sums, acc.get(r, v), p * plane + (r * self.vectors + v) * lanes)
        self._unpack_and_store(k, transformed_sums, plane, sums, rows, vectors)

    def _unpack_and_store(
        self, k: Kernel, transformed_sums: Buf, plane: int, sums: Buf, rows: int, vectors: int
    ) -> None:
        """Transform the sums back to those of taps: [output channel][tap][input channel]."""
        lanes, (high, wide) = self.lanes, self.conv.kernel
        transforms = (WinogradTransform(k, lanes, self.dtype, number) for number in POINTS_2D)
        inverse = [
            partial(of_axis.inverse, count=taps) for of_axis, taps in zip(transforms, self.conv.kernel, strict=True)
        ]
        with k.loop(rows, name="r") as r, k.loop(vectors, name="v") as v:
            at = k.bind((r * self.vectors + v) * lanes, "at")

            def read(i: int, j: Value) -> Expr:
                return k.load(transformed_sums, (i * POINTS_2D[1] + j) * plane + at, lanes)

            def write(row: Expr, values: winograd_2d.Values) -> None:
                to = k.bind((r * self.taps + row * wide) * self.width + v * lanes, "to")
                winograd_2d.store_vectors(k, values, sums, to, self.width)

            winograd_2d.transform_2d(k, self, POINTS_2D, read, inverse, high, write)
