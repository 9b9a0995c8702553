"""Packing of GEMM operands into AMX tiles (amx.py), in blocks of two tiles by all of k.

A block is 32 rows of A or 32 columns of B. A step along k has its two tiles one behind the other, so that the GEMM
reads memory in one direction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import DEPTH, SIDE, WORDS
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

BLOCK = 2 * SIDE  # rows of A, or columns of B


def line(kk: int) -> int:
    """Return the words of a block."""
    return 2 * WORDS * mk.ceildiv(kk, DEPTH)


@dataclass(frozen=True)
class Copied:
    """An operand packed into tiles: [batch][block][step along k][2]. `read(batch, i, deep, lanes)` gives elements of
    row (or column) i from `deep` on if memory is contiguous `along` k; else those at the same `deep` from i on. The
    vectors that are read are rows of the tiles, or columns if `transposed`. Rows and columns of a tile beyond the
    extent are not written."""

    k: Kernel
    to: Buf
    read: Callable[[Value, Value, Value, int], Expr]
    batch: int
    extent: int  # rows of A, or columns of B
    kk: int
    along: bool
    transposed: bool

    @property
    def blocks(self) -> int:
        """Blocks of one batch element."""
        return mk.ceildiv(self.extent, BLOCK)

    def all(self, cpu: Cpu) -> None:
        """Pack all of it in parallel: a chunk packs some blocks if memory is contiguous along k, else some steps of all
        blocks, so that long contiguous ranges are read."""
        k, blocks, steps = self.k, self.blocks, mk.ceildiv(self.kk, DEPTH)
        each = blocks if self.along else steps

        def unit(_: Expr, unit: Expr) -> None:
            batch = k.bind(tir.floordiv(unit, each), "batch") if self.batch > 1 else tir.index(0)
            at = k.bind(tir.floormod(unit, each), "at") if self.batch > 1 else unit

            def copy(block: Expr, step: Value, count: int) -> None:
                to = k.bind((batch * blocks + block) * line(self.kk), "to")
                mk.for_blocks(
                    k, self.kk, DEPTH, step, count, lambda deep, depth: self._step(batch, block, to, deep, depth)
                )

            if self.along:
                copy(at, 0, steps)
                return
            with k.loop(blocks, name="block") as block:
                copy(block, at, 1)

        units = self.batch * each
        mk.parallel_chunks(k, units, mk.num_chunks(units, cpu, self.batch * self.extent * self.kk * 16), unit)

    def some(self, first: Expr, count: int, to: Expr) -> None:
        """Pack `count` blocks of an operand of one batch element."""
        k, steps = self.k, mk.ceildiv(self.kk, DEPTH)

        def copy(block: Expr, step: Value, count: int) -> None:
            there = k.bind(to + block * line(self.kk), "to")
            at = k.bind(first + block, "block")
            mk.for_blocks(k, self.kk, DEPTH, step, count, lambda deep, d: self._step(tir.index(0), at, there, deep, d))

        if self.along:
            with k.loop(count, name="block") as block:
                copy(block, 0, steps)
            return
        with k.loop(steps, name="step") as step, k.loop(count, name="block") as block:
            copy(block, step, 1)

    @property
    def copies_rows(self) -> bool:
        """Are rows of the tiles contiguous in memory, so that they are copied without transposition?"""
        return self.along and not self.transposed

    def part(self, batch: Expr, block: Expr, to: Expr, part: Value = 0, parts: int = 1) -> None:
        """Pack one of `parts` even parts along k of a block."""
        first, steps = mk.chunk_range(self.k, mk.ceildiv(self.kk, DEPTH), parts, tir.index(part))
        mk.for_blocks(
            self.k, self.kk, DEPTH, first, steps, lambda deep, depth: self._step(batch, block, to, deep, depth)
        )

    def rows(self, batch: Expr, block: Expr, to: Expr, step: Expr, part: Expr, parts: int) -> None:
        """Pack one step of one of `parts` even parts of a block's rows, if `copies_rows`."""
        k = self.k
        first, rows = mk.chunk_range(k, BLOCK, parts, part)
        with k.loop(rows, name="row") as number:
            r = k.bind(tir.index(first + number), "r")
            i = k.bind(block * BLOCK + r, "i")
            at = k.bind(to + (tir.floordiv(r, SIDE) + step * 2) * WORDS + tir.floormod(r, SIDE) * SIDE, "at")

            def copy(deep: Expr, depth: int) -> None:
                k.store(self.to, amx.row(k, self.read(batch, i, deep, depth)), at)

            with k.when(i < self.extent) if self.extent % BLOCK else nullcontext():
                mk.for_blocks(k, self.kk, DEPTH, step, 1, copy)

    def _step(self, batch: Expr, block: Expr, to: Expr, deep: Expr, depth: int) -> None:
        """Pack both tiles of a step together: if memory is contiguous along k, a cache line may hold words of both."""
        k, used = self.k, mk.ceildiv(self.extent, SIDE)
        first = k.bind(block * 2, "first")
        count = 2 if used % 2 == 0 else k.bind(tir.minimum(used - first, 2), "count")

        def tile(start: Expr, size: int) -> None:
            if self.along:
                rows = amx.tile_rows_along_k(k, lambda r: self.read(batch, start + r, deep, depth), size)
            else:
                rows = amx.tile_rows_across_k(k, lambda p: self.read(batch, start, deep + p, size), depth)
            place = to + tir.floordiv(deep, DEPTH) * (2 * WORDS) + (tir.floordiv(start, SIDE) - first) * WORDS
            at = k.bind(place, "at")
            for r, row in enumerate(mk.transposed(k, rows) if self.transposed else rows):
                k.store(self.to, row, at + r * SIDE)

        mk.for_blocks(k, self.extent, SIDE, first, count, tile)
