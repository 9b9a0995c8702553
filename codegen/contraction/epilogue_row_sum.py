"""Sums along the rows of a GEMM's result, computed in its epilogue: no pass over the result afterwards.

The epilogue receives runs, contiguous parts of a row, and different threads may store the runs of a row. So each run
has its own partial sum, and at the end the partial sums of a row are added from left to right: the order of additions
depends on the tiling, never on threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.reduce import reduce_lanes
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.expression import flat
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel
from gluongraph.ir.graph import Node


def workspace(summed: Node, run: int) -> int:
    """Return the bytes of workspace for the partial sums of all runs of `run` columns."""
    return 4 * summed.ty.size * mk.ceildiv(summed.src[0].shape[-1], run)


class RowSums:
    """The float32 row sums `summed`, of runs of `run` columns; `space` holds the partial sums of the runs."""

    def __init__(self, k: Kernel, summed: Node, run: int, space: Buf, to: Buf, cpu: Cpu):
        self.k, self.summed, self.run, self.space, self.to, self.cpu = k, summed, run, space, to, cpu
        self.total: Buf | None = None  # of the current run

    @contextmanager
    def run_context(self, batch: Expr, i: Expr, j: Expr) -> Iterator[None]:
        """Sum the elements passed to `add` within this context, the run that begins at (i, j), and store the sum."""
        k, (*_, m, _) = self.k, self.summed.src[0].shape
        self.total = k.local("total", self.cpu.lanes, "f32")
        k.store(self.total, tir.splat(tir.const(0.0, "f32"), self.cpu.lanes), 0)
        yield
        total = reduce_lanes(k, VectorAlgebra(k), "sum", k.load(self.total, 0, self.cpu.lanes))
        number = tir.floordiv(j, self.run)
        k.store(self.space, total, number * self.summed.ty.size + flat((1, m), (batch, i)))

    def add(self, value: Expr) -> None:
        """Add some elements of the current run."""
        k, lanes = self.k, tir.lanes_of(value)
        assert self.total is not None
        k.store(self.total, k.load(self.total, 0, lanes) + value, 0)

    def finish(self) -> None:
        """Add the partial sums of each row."""
        k, rows, (*_, n) = self.k, self.summed.ty.size, self.summed.src[0].shape

        def some(at: tir.Value, lanes: int) -> None:
            total = k.local("total", lanes, "f32")
            k.store(total, tir.splat(tir.const(0.0, "f32"), lanes), 0)
            runs = mk.ceildiv(n, self.run)
            (row_sum,), settle = mk.totals(k, [total], runs)
            with mk.chained(k, settle, [runs]) as (run,):
                k.store(total, k.load(total, 0, lanes) + k.load(self.space, run * rows + at, lanes), 0)
            k.store(self.to, k.load(row_sum, 0, lanes), at)

        mk.for_vectors(k, rows, self.cpu.lanes, some)
