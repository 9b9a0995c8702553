"""Sums along the rows of a matrix product, made while its elements are written: no pass over it afterwards.

Elements come in runs, a stretch of a row one after another, and each run may be another thread's. So a run has a place
of its own for its sum, and at the end every row adds up its runs from left to right: the order of additions depends on
how the product is cut, never on threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.reduce import fold_lanes
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.expression import flat
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel
from gluongraph.ir.graph import Node


def workspace(summed: Node, run: int) -> int:
    """Bytes of workspace for the sums of all runs of so many columns."""
    return 4 * summed.ty.size * mk.ceildiv(summed.src[0].shape[-1], run)


class RowSums:
    """The float32 sums `summed` over the last axis, of runs of `run` columns; `space` is for their sums."""

    def __init__(self, k: Kernel, summed: Node, run: int, space: Buf, to: Buf, cpu: Cpu):
        self.k, self.summed, self.run, self.space, self.to, self.cpu = k, summed, run, space, to, cpu
        self.total: Buf | None = None  # of the run that is being written

    @contextmanager
    def around(self, batch: Expr, i: Expr, j: Expr) -> Iterator[None]:
        """Within: the elements of the run from (i, j) on are added."""
        k, (*_, m, _) = self.k, self.summed.src[0].shape
        self.total = k.local("total", self.cpu.lanes, "f32")
        k.store(self.total, tir.splat(tir.const(0.0, "f32"), self.cpu.lanes), 0)
        yield
        total = fold_lanes(k, VectorAlgebra(k), "sum", k.load(self.total, 0, self.cpu.lanes))
        number = tir.floordiv(j, self.run)
        k.store(self.space, total, number * self.summed.ty.size + flat((1, m), (batch, i)))

    def add(self, value: Expr) -> None:
        """Some more elements of the run."""
        k, lanes = self.k, tir.lanes_of(value)
        assert self.total is not None
        k.store(self.total, k.load(self.total, 0, lanes) + value, 0)

    def finish(self) -> None:
        """The sum of each row from those of its runs."""
        k, rows, (*_, n) = self.k, self.summed.ty.size, self.summed.src[0].shape

        def some(at: tir.Value, lanes: int) -> None:
            total = k.local("total", lanes, "f32")
            k.store(total, tir.splat(tir.const(0.0, "f32"), lanes), 0)
            runs = mk.ceildiv(n, self.run)
            (whole,), settle = mk.totals(k, [total], runs)
            with mk.chained(k, settle, [runs]) as (run,):
                k.store(total, k.load(total, 0, lanes) + k.load(self.space, run * rows + at, lanes), 0)
            k.store(self.to, k.load(whole, 0, lanes), at)

        mk.for_vectors(k, rows, self.cpu.lanes, some)
