"""Matrix products of bf16 operands in tiles (tiles.py), on CPUs with AMX or AVX512-BF16.

Both operands are copied to tiles (tile_copy.py), B before, by all threads. Then each piece of work takes its rows of C,
32 at a time, through a stripe of columns whose B stays in L2, 32 by 32 elements at a time; and then through the next
stripe. What else there is to do is done among the steps of tiles, which leave a thread's other units idle: a block's
sums are handed on while the next block is added up, and A is copied for the next rows, if all columns are one stripe.

B comes from L2 at every block, and so does what is long of A. Tiles of theirs are loaded as passing by, so that the
first cache keeps the rest of A, which every block of its rows reads, and the sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tiles, tir
from gluongraph.codegen.gemm import Around, Operand, Write, alone
from gluongraph.codegen.gemm_choice import Kind
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tile_copy import BLOCK, Copied, line
from gluongraph.codegen.tiles import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value

LONGEST = 32  # blocks of a stripe
KEPT = 20  # steps along k of A, 2 KiB each, that stay in a first cache of 48 KiB beside two blocks of sums
SMALLEST = 1 << 16  # multiply-adds for which copying pays


def suits(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> bool:
    """Is this a product for tiles?"""
    large = min(m, n, kk) >= SIDE and batch * m * n * kk >= SMALLEST
    return tiles.unit(cpu) is not None and a.dtype == b.dtype == "bf16" and large


def others(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> list[int]:
    """Blocks in a stripe that may turn out to be faster than as many as the rule takes; no bit depends on them."""
    usual = _Sizes(batch, m, n, kk, cpu)
    most = min(2 * LONGEST, usual.across)
    return sorted({max(1, min(most, usual.long * part // 4)) for part in (1, 2, 8)} - {usual.long})


def workspace(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu, long: int = 0) -> int:
    """Bytes of workspace that `emit` needs; `long`: blocks in a stripe, by default as many as suit the cache."""
    sizes = _Sizes(batch, m, n, kk, cpu, long)
    return 4 * (sizes.words_a + sizes.words_b + sizes.pieces * 2 * BLOCK * BLOCK)


def run(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu, long: int = 0) -> int:
    """Columns of a row that are written one after another."""
    return BLOCK


@dataclass(frozen=True)
class _Sizes:
    """How a product is cut."""

    batch: int
    m: int
    n: int
    kk: int
    cpu: Cpu
    given: int = 0  # blocks in a stripe, where somebody says how many

    @property
    def down(self) -> int:
        return mk.ceildiv(self.m, BLOCK)

    @property
    def across(self) -> int:
        return mk.ceildiv(self.n, BLOCK)

    @property
    def deep(self) -> int:
        return mk.ceildiv(self.kk, DEPTH)

    @property
    def line(self) -> int:
        """Words of a block of rows of A, or of columns of B."""
        return line(self.kk)

    @property
    def ahead(self) -> bool:
        """Is A copied before as well? Else a piece copies each block of its rows when it comes to it."""
        return self.stripes > 1

    @property
    def words_a(self) -> int:
        """Of all of A, or of two blocks for each piece."""
        return self.line * (self.batch * self.down if self.ahead else 2 * self.pieces)

    @property
    def words_b(self) -> int:
        return self.line * self.batch * self.across

    @property
    def long(self) -> int:
        """Blocks in a stripe: their B fits five eighths of L2, and stripes are even."""
        room = self.cpu.l2 * 5 // 8 // (4 * self.line)
        most = max(1, min(LONGEST, room, self.across))
        return self.given or mk.ceildiv(self.across, mk.ceildiv(self.across, most))

    @property
    def stripe(self) -> int:
        """Columns of C that are made one block after another."""
        return BLOCK * self.long

    @property
    def stripes(self) -> int:
        return mk.ceildiv(self.n, self.stripe)

    @property
    def parts(self) -> int:
        """Pieces that the blocks of rows are shared out to."""
        return mk.pieces(self.batch * self.down, self.cpu, self.batch * self.m * self.n * self.kk)

    @property
    def columns(self) -> int:
        """Pieces that the stripes are shared out to: one, unless there are few rows."""
        return min(self.stripes, max(1, self.cpu.chunks // (self.batch * self.down))) if self.parts > 1 else 1

    @property
    def pieces(self) -> int:
        return self.parts * self.columns


def emit(
    k: Kernel,
    *,
    batch: int,
    m: int,
    n: int,
    kk: int,
    a: Operand,
    b: Operand,
    write: Write,
    cpu: Cpu,
    workspace: Buf | None,
    around: Around = alone,
    long: int = 0,
) -> None:
    """Write the loops of the product; `write` and `around` as in gemm.emit, `long` as in `workspace`."""
    unit = tiles.unit(cpu)
    assert workspace is not None and unit is not None
    sizes = _Sizes(batch, m, n, kk, cpu, long)
    words = k.view(workspace, "u32")
    sums = k.view(workspace, "f32", 4 * (sizes.words_a + sizes.words_b))
    left = Copied(k, words, a.read, batch, m, kk, along=a.kind.contiguous == "j", turned=a.kind.contiguous == "i")
    right = Copied(
        k,
        words.at(sizes.words_a),
        lambda batch, j, deep, lanes: b.read(batch, deep, j, lanes),
        batch,
        n,
        kk,
        along=b.kind.contiguous == "i",
        turned=b.kind.contiguous == "i",
    )
    if sizes.ahead:
        left.all(cpu)
    right.all(cpu)
    unit.prepare(k)
    job = _Job(k, unit, sizes, left, right, sums, write, around)
    with k.loop(sizes.pieces, "parallel", "piece") as piece, unit.thread(k):
        job.piece(piece)


@dataclass(frozen=True)
class _Job:
    """The product that is being written."""

    k: Kernel
    unit: tiles.Unit
    sizes: _Sizes
    a: Copied
    b: Copied
    sums: Buf
    write: Write
    around: Around

    def piece(self, piece: Expr) -> None:
        """Its blocks of rows of C, through its stripes one after the other."""
        k, s = self.k, self.sizes
        first, count = mk.share(k, s.batch * s.down, s.parts, k.bind(tir.floordiv(piece, s.columns), "part"))
        stripe, stripes = mk.share(k, s.stripes, s.columns, k.bind(tir.floormod(piece, s.columns), "x"))

        def slot(unit: Value) -> Expr:
            """Where A lies for the piece's block of rows of that number."""
            return k.bind((piece * 2 + tir.floormod(unit, 2)) * s.line, "slot")

        def through(j: Expr, width: int) -> None:
            if not s.ahead:
                self.a.part(*self._block_of(tir.index(first)), slot(0))
            with k.loop(count, name="unit") as u:
                unit = k.bind(tir.index(first + u), "unit")

                def copy(part: Expr, parts: int) -> None:
                    if not s.ahead:
                        with k.when(u + 1 < count):
                            self.a.part(*self._block_of(k.bind(unit + 1)), slot(u + 1), part, parts)

                batch, y = self._block_of(unit)
                a = k.bind(unit * s.line, "a") if s.ahead else slot(u)
                self._rows(piece, batch, a, k.bind(y * BLOCK, "i"), j, width, copy)

        mk.runs(k, s.n, s.stripe, stripe, stripes, through)

    def _block_of(self, unit: Expr) -> tuple[Expr, Expr]:
        """Batch element and block of rows, of all of them."""
        if self.sizes.batch == 1:
            return tir.index(0), unit
        down = self.sizes.down
        return self.k.bind(tir.floordiv(unit, down), "batch"), self.k.bind(tir.floormod(unit, down), "y")

    def _rows(
        self, piece: Expr, batch: Expr, a: Expr, i: Expr, j: Expr, width: int, copy: Callable[[Expr, int], None]
    ) -> None:
        """A block of rows within a stripe. After each block of columns `copy` does a part of its work."""
        k, s = self.k, self.sizes
        blocks = mk.ceildiv(width, BLOCK)
        b = k.bind(batch * s.across + tir.floordiv(j, BLOCK), "b")

        def slot(block: Value) -> Expr:
            return k.bind((piece * 2 + tir.floormod(block, 2)) * (BLOCK * BLOCK), "sums")

        with k.loop(blocks, name="block") as block:

            def last(row: Value, rows: int) -> None:
                with k.when(block > 0):
                    self._write(slot(block + 1), batch, i, row, rows, k.bind(j + (block - 1) * BLOCK, "j"), BLOCK)

            self._block(slot(block), a, k.bind((b + block) * s.line, "b"), last)
            copy(block, blocks)
        done = (blocks - 1) * BLOCK
        self._write(slot(tir.index(blocks - 1)), batch, i, 0, BLOCK, k.bind(j + done, "j"), width - done)

    def _write(self, sums: Expr, batch: Expr, i: Expr, row: Value, rows: int, j: Expr, width: int) -> None:
        """Hand on rows of a block, of those that C has."""
        k, m = self.k, self.sizes.m
        with k.loop(rows, name="r") as number:
            r = k.bind(row + number, "row")
            with k.when(i + r < m) if m % BLOCK else nullcontext(), self.around(batch, i + r, j):
                for at, lanes in zip(range(0, width, SIDE), mk.widths(width, SIDE), strict=True):
                    self.write(batch, i + r, j + at, k.load(self.sums, sums + r * BLOCK + at, lanes))

    def _block(self, sums: Expr, a: Expr, b: Expr, meanwhile: Callable[[Value, int], None]) -> None:
        """The sums of one block into memory, and `meanwhile(row, rows)` for all rows of the one before."""
        k, s, among = self.k, self.sizes, self.unit.once
        rows = next(r for r in (1, 2, 4, 8, 16, 32) if r * s.deep >= BLOCK)
        busy = BLOCK // rows if among else 0  # steps among which rows are handed on

        def steps(add: Add) -> None:
            for first, end in itertools.pairwise(sorted({0, busy, min(KEPT, s.deep), s.deep})):
                with k.loop(end - first, name="k") as number:
                    step = k.bind(number + first, "step")
                    at = k.bind(step * (2 * WORDS), "at")
                    add(_pair(self.a, a + at), _pair(self.b, b + at), passing="b" if first < KEPT else "ab")
                    if first < busy:
                        meanwhile(k.bind(step * rows), rows)

        places = Sums(self.sums, lambda i, j: sums + (i * SIDE * BLOCK + j * SIDE), BLOCK)
        self.unit.block(k, (2, 2), steps, places, more=False)
        if not among:
            meanwhile(0, BLOCK)


def _pair(operand: Copied, at: Expr) -> list[tiles.Place]:
    """The tiles of a step of a block."""
    return [(operand.to, at), (operand.to, at + WORDS)]
