"""Matrix products of bf16 operands in tiles (tiles.py), on CPUs with AMX or AVX512-BF16.

Both operands are copied first into tiles, one behind another along k, with zeros where k ends; all threads copy. Then
each piece of work takes its rows of C, 32 at a time, through a stripe of columns whose B stays in L2, 32 by 32 elements
at a time; and then through the next stripe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tiles, tir
from gluongraph.codegen.gemm import Around, Operand, Write, alone
from gluongraph.codegen.gemm_choice import Kind
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tiles import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.tir import Buf, Expr, Kernel

BLOCK = 2 * SIDE  # rows and columns of C that are summed at a time
LONGEST = 32  # blocks of a stripe, which are summed before they are handed on: memory likes long runs
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
    return 4 * (sizes.words_a + sizes.words_b + sizes.pieces * BLOCK * sizes.pitch)


def run(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu, long: int = 0) -> int:
    """Columns of a row that are written one after another."""
    return _Sizes(batch, m, n, kk, cpu, long).stripe


@dataclass(frozen=True)
class _Sizes:
    """How a product is cut. Tiles come in pairs, since C is made in blocks of two by two."""

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
    def words_a(self) -> int:
        return self.batch * 2 * self.down * self.deep * WORDS

    @property
    def words_b(self) -> int:
        return self.batch * 2 * self.across * self.deep * WORDS

    @property
    def long(self) -> int:
        """Blocks in a stripe: their B fits half of L2."""
        room = self.cpu.l2 // 2 // (BLOCK * DEPTH * 2 * self.deep)
        return self.given or max(1, min(LONGEST, room, self.across))

    @property
    def stripe(self) -> int:
        """Columns of C that are made one block after another."""
        return BLOCK * self.long

    @property
    def pitch(self) -> int:
        """Elements between rows of sums: no power of two, else all would share few cache sets."""
        return self.stripe + SIDE

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
    tiles_b = words.at(sizes.words_a)
    _copy(k, sizes, m, 2 * sizes.down, words, partial(_rows_of_a, k, a), a.kind.contiguous == "j")
    _copy(k, sizes, n, 2 * sizes.across, tiles_b, partial(_columns_of_b, k, b), b.kind.contiguous == "j")
    unit.prepare(k)
    job = _Job(k, unit, sizes, words, tiles_b, sums, write, around)
    with k.loop(sizes.pieces, "parallel", "piece") as piece, unit.thread(k):
        job.piece(k.bind(piece * (BLOCK * sizes.pitch), "sums"), piece)


# -- copying

_Read = Callable[[Expr, Expr, int, Expr, int], list[Expr]]  # (batch, start, size, k, depth) -> 16 vectors of 16 words


def _copy(k: Kernel, sizes: _Sizes, extent: int, blocks: int, to: Buf, read: _Read, straight: bool) -> None:
    """Copy an operand to tiles: [batch][block of rows of A, or columns of B][k]. `read` gives 16 vectors of 16 words;
    where they lie the other way round in the operand, they are turned. What no row or column fills stays as it is. A
    unit of work has two tiles side by side: a line of memory that k runs across holds words of both."""
    used = mk.ceildiv(extent, SIDE)
    pairs = mk.ceildiv(used, 2)

    def tile(at: Expr, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> None:
        rows = read(batch, start, size, deep, depth)
        for r, row in enumerate(rows if straight else mk.transposed(k, rows)):
            k.store(to, row, at + r * SIDE)

    def unit(_: Expr, unit: Expr) -> None:
        batch = k.bind(tir.floordiv(unit, pairs), "batch") if sizes.batch > 1 else tir.index(0)
        block = k.bind((tir.floormod(unit, pairs) if sizes.batch > 1 else unit) * 2, "block")
        count = 2 if used % 2 == 0 else k.bind(tir.minimum(used - block, 2), "count")

        def step(deep: Expr, depth: int) -> None:
            def one(start: Expr, size: int) -> None:
                line = (batch * blocks + tir.floordiv(start, SIDE)) * sizes.deep
                tile(k.bind((line + tir.floordiv(deep, DEPTH)) * WORDS, "at"), batch, start, size, deep, depth)

            mk.runs(k, extent, SIDE, block, count, one)

        for first, depth, times in mk.split(sizes.kk, DEPTH):
            with k.loop(times, name="k") as number:
                step(k.bind(number * DEPTH + first, "deep"), depth)

    units = sizes.batch * pairs
    mk.spread(k, units, mk.pieces(units, sizes.cpu, sizes.batch * extent * sizes.kk * 16), unit)


def _rows_of_a(k: Kernel, a: Operand, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> list[Expr]:
    """Rows of A as words along k; or, where rows lie along memory, words of neighbouring k along the rows."""
    if a.kind.contiguous == "j":
        return tiles.along(k, lambda r: a.read(batch, start + r, deep, depth), size)
    return tiles.across(k, lambda p: a.read(batch, start, deep + p, size), depth)


def _columns_of_b(k: Kernel, b: Operand, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> list[Expr]:
    """Words of neighbouring k along the columns of B; or, where k lies along memory, columns as words along k."""
    if b.kind.contiguous == "j":
        return tiles.across(k, lambda p: b.read(batch, deep + p, start, size), depth)
    return tiles.along(k, lambda c: b.read(batch, deep, start + c, depth), size)


# -- multiplying


@dataclass(frozen=True)
class _Job:
    """The product that is being written."""

    k: Kernel
    unit: tiles.Unit
    sizes: _Sizes
    a: Buf
    b: Buf
    sums: Buf
    write: Write
    around: Around

    def piece(self, sums: Expr, piece: Expr) -> None:
        """Its blocks of rows of C, through its stripes one after the other."""
        k, s = self.k, self.sizes
        first, count = mk.share(k, s.batch * s.down, s.parts, k.bind(tir.floordiv(piece, s.columns), "part"))
        stripe, stripes = mk.share(k, s.stripes, s.columns, k.bind(tir.floormod(piece, s.columns), "x"))

        def through(j: Expr, width: int) -> None:
            with k.loop(count, name="unit") as u:
                unit = k.bind(tir.index(first + u), "unit")
                batch = k.bind(tir.floordiv(unit, s.down), "batch") if s.batch > 1 else tir.index(0)
                y = k.bind(tir.floormod(unit, s.down), "y")
                mk.runs(k, s.m, BLOCK, y, 1, lambda i, height: self._rows(sums, batch, y, i, height, j, width))

        mk.runs(k, s.n, s.stripe, stripe, stripes, through)

    def _rows(self, sums: Expr, batch: Expr, y: Expr, i: Expr, height: int, j: Expr, width: int) -> None:
        """A block of rows within a stripe."""
        k, s = self.k, self.sizes
        with k.loop(mk.ceildiv(width, BLOCK), name="block") as block:
            self._block(k.bind(sums + block * BLOCK), batch, y, k.bind(tir.floordiv(j, BLOCK) + block, "x"))
        with k.loop(height, name="r") as r, self.around(batch, i + r, j):
            for start, lanes, steps in mk.split(width, SIDE):
                with k.loop(steps, name="c") as c:
                    at = k.bind(c * SIDE + start, "at")
                    self.write(batch, i + r, j + at, k.load(self.sums, sums + r * s.pitch + at, lanes))

    def _block(self, sums: Expr, batch: Expr, y: Expr, x: Expr) -> None:
        """The sums of one block into memory."""
        k, s = self.k, self.sizes
        line = s.deep * WORDS
        a = k.bind((batch * (2 * s.down) + y * 2) * line, "a")
        b = k.bind((batch * (2 * s.across) + x * 2) * line, "b")

        def steps(add: Add) -> None:
            with k.loop(s.deep, name="k") as step:
                at = k.bind(step * WORDS, "at")
                add([(self.a, a + at), (self.a, a + line + at)], [(self.b, b + at), (self.b, b + line + at)])

        places = Sums(self.sums, lambda i, j: sums + (i * SIDE * s.pitch + j * SIDE), s.pitch)
        self.unit.block(k, (2, 2), steps, places, more=False)
