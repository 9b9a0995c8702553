"""Pooling over windows that overlap or extend over the edge, with full vectors; and the gradient of averages.

Separable: first the image rows of each row of windows are reduced to one line, the largest element or the sum of each
column, padded with the neutral element. Then the columns of a line are reduced window by window. So no vector checks
for an edge, and a window of 3 x 3 takes 3 + 3 steps.

The gradient of an average whose windows move by one pixel is such a pooling of the upstream gradient: a pixel gets a
share of each window that covers it, and these windows are a window of the upstream gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ops.pool import covered

Sizes = Sequence[int]  # along the rows and the columns
ROWS = 16  # of a window, at most: the loop over them is unrolled
STEP = 4  # stride along a row, at most: a vector of results reads as many vectors of the line


def is_profitable(pool: Node) -> bool:
    """Is this a pooling, or a gradient, with windows that this module supports?"""
    a = pool.attrs
    if pool.op.name == "avg_pool2d_grad":
        return bool(a["kernel"][0] <= ROWS and tuple(a["stride"]) == (1, 1))
    return pool.op.name in ("max_pool2d", "avg_pool2d") and a["kernel"][0] <= ROWS and a["stride"][1] <= STEP


def _counts_equal(image: Sizes, windows: Sizes, attrs: Mapping[str, Any]) -> bool:
    """Do all windows average the same number of elements? Elements beyond the padding are never counted."""
    axes = zip(image, windows, attrs["kernel"], attrs["stride"], attrs["padding"], strict=True)
    return all(
        (count - 1) * stride + kernel <= size + 2 * padding and (attrs["count_include_pad"] or not padding)
        for size, count, kernel, stride, padding in axes
    )


class _Counts:
    """How many elements each window of an average has, as a product of a number for its row and one for its column."""

    def __init__(self, image: Sizes, attrs: Mapping[str, Any]):
        self.image, self.attrs = image, attrs

    def rows(self, row: Value) -> Expr:
        """Return the number of rows of the windows in this row of windows."""
        return self._along(0, tir.index(row))

    def columns(self, at: Value, lanes: int) -> Expr:
        """Return the numbers of columns of the windows from `at` on."""
        return self._along(1, tir.ramp(at, lanes))

    def _along(self, axis: int, place: Expr) -> Expr:
        counted = self.attrs["count_include_pad"]
        return tir.cast(covered(tir, place, self.image[axis], axis, counted, self.attrs), "f32")


class OverlappingPool:
    """Emits one such pooling: the layout of its lines, and its loops."""

    def __init__(self, pool: Node, cpu: Cpu):
        self.cpu, self.is_gradient = cpu, pool.op.name == "avg_pool2d_grad"
        self.largest = pool.op.name == "max_pool2d"
        self.image, self.small = pool.src[0].shape[2:], pool.shape[2:]
        self.kernel, self.stride, self.padding = (pool.attrs[name] for name in ("kernel", "stride", "padding"))
        averaged = (self.small, self.image) if self.is_gradient else (self.image, self.small)
        equal = self.largest or _counts_equal(*averaged, pool.attrs)
        self.counts = None if equal else _Counts(averaged[0], pool.attrs)
        if self.is_gradient:
            self.padding = tuple(k - 1 - p for k, p in zip(self.kernel, self.padding, strict=True))
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
                shares = self._shares_of_rows(k, r * self.stride[0] + top, count)
                columns = partial(self._columns, k, source.at(start), line, shares)
                mk.for_vectors(k, self.image[1], self.cpu.lanes, columns)
        with k.loop(self.small[0], name="row") as row:
            line = pooling.at(k.let(row * self.width, "line"))
            place = k.let(row * self.small[1], "place")
            mk.for_vectors(
                k, self.small[1], self.cpu.lanes, lambda at, n: store(place + at, self._windows(k, line, row, at, n))
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

    def _shares_of_rows(self, k: Kernel, first: Value, count: int) -> list[Expr | None]:
        """Return what `count` rows of the image are multiplied by before they are added: shares of windows of a
        gradient, where these differ."""
        if self.counts is None or not self.is_gradient:
            return [None] * count
        return [k.let(tir.const(1.0, "f32") / self.counts.rows(first + r), "share") for r in range(count)]

    def _columns(self, k: Kernel, source: Buf, line: Buf, shares: list[Expr | None], at: Value, lanes: int) -> None:
        """Reduce rows of the image, one for each share, to some columns of a line."""
        rows = []
        for r, share in enumerate(shares):
            row = tir.cast(k.load(source, r * self.image[1] + at, lanes), "f32")
            rows.append(k.let(row if share is None else row * tir.splat(share, lanes)))
        total = self._reduce(k, rows)
        if self.counts is not None and self.is_gradient:
            total = total / self.counts.columns(at, lanes)
        k.store(line, total, self.padding[1] + at)

    def _windows(self, k: Kernel, line: Buf, row: Value, at: Value, lanes: int) -> Expr:
        """Return some results of a row, from the columns of its line."""
        step, columns = self.stride[1], []
        for j in range(self.kernel[1]):
            run = k.let(k.load(line, at * step + j, lanes * step))
            columns.append(run if step == 1 else k.let(tir.shuffle([run], range(0, lanes * step, step))))
        total = self._reduce(k, columns)
        if self.largest or (self.is_gradient and self.counts is not None):  # of a gradient these were shares
            return total
        if self.counts is None:
            return total * (1.0 / math.prod(self.kernel))
        return total / (tir.splat(self.counts.rows(row), lanes) * self.counts.columns(at, lanes))

    def _reduce(self, k: Kernel, parts: list[Expr]) -> Expr:
        total = parts[0]
        for part in parts[1:]:
            total = k.let(CpuAlgebra(k).binary("maximum" if self.largest else "add", total, part))
        return total
