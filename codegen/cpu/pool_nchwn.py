"""Pooling in the blocked layout (N/k, C, H, W, k), over windows that do not overlap, and the gradients.

A vector is one pixel of k images, so that a window is a few full vectors, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable

from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node

Store = Callable[[Value, Value, Expr], None]  # (row, column, values of the images)


class BlockedPool:
    """Emits one pooling in the blocked layout, or its gradient."""

    def __init__(self, k: Kernel, pool: Node, sources: list[Buf], plane: Expr, store: Store):
        self.k, self.pool, self.sources, self.plane, self.store = k, pool, sources, plane, store
        self.grad = "_grad" in pool.op.name
        self.lanes = pool.shape[-1]
        self.small = pool.src[-1].shape[2:4] if self.grad else pool.shape[2:4]
        self.image = pool.shape[2:4] if self.grad else pool.src[0].shape[2:4]
        self.rows, self.columns = pool.attrs["kernel"]
        self.window = [(r, c) for r in range(self.rows) for c in range(self.columns)]
        self.algebra = CpuAlgebra(k)

    def emit(self) -> None:
        """Emit one channel of one block of images."""
        with self.k.loop(self.small[0], name="row") as row, self.k.loop(self.small[1], name="column") as column:
            (self._scatter_gradient if self.grad else self._reduce_window)(row, column)
        if self.grad:
            height, width = (count * step for count, step in zip(self.small, (self.rows, self.columns), strict=True))
            self._store_zeros(0, width, height, self.image[1] - width)
            self._store_zeros(height, 0, self.image[0] - height, self.image[1])

    def _load(self, buf: Buf, size: tuple[int, ...], row: Value, column: Value) -> Expr:
        at = (self.plane * size[0] + row) * size[1] + column
        return self.k.let(tir.cast(self.k.load(buf, self.k.let(at * self.lanes), self.lanes), "f32"))

    def _load_window(self, row: Expr, column: Expr) -> list[Expr]:
        """Load the pixels of a window."""
        return [
            self._load(self.sources[0], self.image, row * self.rows + r, column * self.columns + c)
            for r, c in self.window
        ]

    def _reduce_window(self, row: Expr, column: Expr) -> None:
        largest = self.pool.op.name.startswith("max")
        total, *others = self._load_window(row, column)
        for part in others:
            total = self.k.let(self.algebra.binary("maximum" if largest else "add", total, part))
        self.store(row, column, total if largest else total * (1.0 / len(self.window)))

    def _scatter_gradient(self, row: Expr, column: Expr) -> None:
        rest, zero = self._load(self.sources[-1], self.small, row, column), tir.splat(tir.const(0.0, "f32"), self.lanes)
        if len(self.sources) == 1:
            parts = [self.k.let(rest * (1.0 / len(self.window)))] * len(self.window)
        else:
            best, parts = self._load(self.sources[1], self.small, row, column), []
            for x in self._load_window(row, column):
                hit = tir.compare("equal", x, best)  # the first of equal maxima gets the gradient
                parts.append(self.k.let(tir.select(hit, rest, zero)))
                rest = self.k.let(tir.select(hit, zero, rest), "rest")
        for (r, c), part in zip(self.window, parts, strict=True):
            self.store(row * self.rows + r, column * self.columns + c, part)

    def _store_zeros(self, top: int, left: int, height: int, width: int) -> None:
        """Store zeros where no window is."""
        if height and width:
            with self.k.loop(height, name="row") as row, self.k.loop(width, name="column") as column:
                self.store(row + top, column + left, tir.splat(tir.const(0.0, "f32"), self.lanes))
