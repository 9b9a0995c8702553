"""Pooling over windows that overlap or extend over the edge, with full vectors.

Separable: first the image rows of each row of windows are reduced to one line, the largest element or the sum of each
column, padded with the neutral element. Then the columns of a line are reduced window by window. So no vector checks
for an edge, and a window of 3 x 3 takes 3 + 3 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node

ROWS = 16  # of a window, at most: the loop over them is unrolled
STEP = 4  # stride along a row, at most: a vector of results reads as many vectors of the line


def is_profitable(pool: Node) -> bool:
    """Is this a pooling, not a gradient, with windows that this module supports?"""
    if pool.op.name not in ("max_pool2d", "avg_pool2d"):
        return False
    small = pool.attrs["kernel"][0] <= ROWS and pool.attrs["stride"][1] <= STEP
    return small and (pool.op.name == "max_pool2d" or _counts_equal(pool))


def _counts_equal(pool: Node) -> bool:
    """Do all windows average the same number of elements? Elements beyond the padding are never counted."""
    a = pool.attrs
    axes = zip(pool.src[0].shape[2:], pool.shape[2:], a["kernel"], a["stride"], a["padding"], strict=True)
    return all(
        (count - 1) * stride + kernel <= size + 2 * padding and (a["count_include_pad"] or not padding)
        for size, count, kernel, stride, padding in axes
    )


class OverlappingPool:
    """Emits one such pooling: the layout of its lines, and its loops."""

    def __init__(self, pool: Node, cpu: Cpu):
        self.pool, self.cpu = pool, cpu
        self.largest = pool.op.name == "max_pool2d"
        self.image, self.small = pool.src[0].shape[2:], pool.shape[2:]
        self.kernel, self.stride, self.padding = (pool.attrs[name] for name in ("kernel", "stride", "padding"))
        reach = (self.small[1] - 1) * self.stride[1] + self.kernel[1]
        self.behind = max(reach - self.padding[1] - self.image[1], 0)
        self.width = self.padding[1] + self.image[1] + self.behind
        self.size = self.small[0] * self.width + cpu.lanes * self.stride[1]  # vectors may read behind the last line

    def plane(self, k: Kernel, source: Buf, pooling: Buf, plane: Expr, store: Callable[[Value, Expr], None]) -> None:
        """Emit one channel of one image; `store(pixel, values)` stores the results."""
        for first, top, count, rows in self._rows():
            with k.loop(rows, name="row") as r:
                start = k.let((plane * self.image[0] + (r * self.stride[0] + top)) * self.image[1], "start")
                line = pooling.at(k.let((r + first) * self.width, "line"))
                self._store_padding(k, line)
                columns = partial(self._columns, k, source.at(start), line, count)
                mk.for_vectors(k, self.image[1], self.cpu.lanes, columns)
        with k.loop(self.small[0], name="row") as row:
            line = pooling.at(k.let(row * self.width, "line"))
            place = k.let(row * self.small[1], "place")
            mk.for_vectors(
                k, self.small[1], self.cpu.lanes, lambda at, n: store(place + at, self._windows(k, line, at, n))
            )

    def _rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over runs of window rows that contain equally many image rows: (first window row, its first image
        row, image rows of each, window rows)."""

        def under(row: int) -> tuple[int, int]:
            top = row * self.stride[0] - self.padding[0]
            return max(-top, 0), min(top + self.kernel[0], self.image[0]) - max(top, 0)

        for (cut, count), group in groupby(range(self.small[0]), key=under):
            run = list(group)
            yield run[0], run[0] * self.stride[0] - self.padding[0] + cut, count, len(run)

    def _store_padding(self, k: Kernel, line: Buf) -> None:
        """Store the neutral element in the padding of a line."""
        neutral = -math.inf if self.largest else 0.0
        for start, count in ((0, self.padding[1]), (self.width - self.behind, self.behind)):
            for lanes in mk.widths(count, self.cpu.lanes):
                k.store(line, tir.splat(tir.const(neutral, "f32"), lanes), start)
                start += lanes

    def _columns(self, k: Kernel, source: Buf, line: Buf, count: int, at: Value, lanes: int) -> None:
        """Reduce `count` rows of the image to some columns of a line."""
        rows = [k.let(tir.cast(k.load(source, r * self.image[1] + at, lanes), "f32")) for r in range(count)]
        k.store(line, self._reduce(k, rows), self.padding[1] + at)

    def _windows(self, k: Kernel, line: Buf, at: Value, lanes: int) -> Expr:
        """Return some results of a row, from the columns of its line."""
        step, columns = self.stride[1], []
        for j in range(self.kernel[1]):
            run = k.let(k.load(line, at * step + j, lanes * step))
            columns.append(run if step == 1 else k.let(tir.shuffle([run], range(0, lanes * step, step))))
        total = self._reduce(k, columns)
        return total if self.largest else total * (1.0 / math.prod(self.kernel))

    def _reduce(self, k: Kernel, parts: list[Expr]) -> Expr:
        total = parts[0]
        for part in parts[1:]:
            total = k.let(CpuAlgebra(k).binary("maximum" if self.largest else "add", total, part))
        return total
