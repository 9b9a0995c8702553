"""Matrix products of bf16 operands on CPUs with AMX: two-dimensional registers of 16 rows of 64 bytes.

One instruction adds to a tile of C, 16 x 16 float32, the product of a tile of A, 16 rows of 32 elements of k, and a
tile of B, 16 pairs of neighbouring k of 16 columns. Both operands are copied first into such tiles, one behind another
along k, with zeros where k ends; all threads copy. Then each piece of work takes 32 rows of C through its columns, 32
by 32 elements at a time: four tiles that stay in registers while k passes by. What a thread must do first, asking Linux
for the tiles and describing them, is part of the kernel, so that it runs wherever it is loaded.

(Intel 64 and IA-32 Architectures Software Developer's Manual, on AMX; Linux, Documentation/arch/x86/xstate.rst.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.gemm import Kind, Operand, Write
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tir import Buf, Expr, Kernel

SIDE = 16  # rows of a tile, and 32-bit words of a row
DEPTH = 2 * SIDE  # elements of k that one instruction adds up
BLOCK = 2 * SIDE  # rows and columns of C that the tiles hold at a time
STRIPE = 4 * BLOCK  # columns of C that are summed before they are handed on: memory likes longer runs
WORDS = SIDE * SIDE  # of a tile
SMALLEST = 1 << 16  # multiply-adds for which copying pays
ASK_FOR_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), as arguments of `syscall`


def suits(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> bool:
    """Is this a product for tiles?"""
    return cpu.tiles and a.dtype == b.dtype == "bf16" and min(m, n, kk) >= SIDE and batch * m * n * kk >= SMALLEST


def workspace(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> int:
    """Bytes of workspace that `emit` needs."""
    sizes = _Sizes(batch, m, n, kk, cpu)
    return 4 * (sizes.words_a + sizes.words_b + sizes.pieces * BLOCK * STRIPE)


@dataclass(frozen=True)
class _Sizes:
    """How a product is cut. Tiles come in pairs, since C is made in blocks of two by two."""

    batch: int
    m: int
    n: int
    kk: int
    cpu: Cpu

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
    def columns(self) -> int:
        """Pieces that the columns of a block of rows are cut into: one, unless there are few rows."""
        return min(mk.ceildiv(self.n, STRIPE), max(1, self.cpu.chunks // (self.batch * self.down)))

    @property
    def units(self) -> int:
        return self.batch * self.down * self.columns

    @property
    def pieces(self) -> int:
        return mk.pieces(self.units, self.cpu, self.batch * self.m * self.n * self.kk)


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
) -> None:
    """Write the loops of the product; `write` as in gemm.emit."""
    assert workspace is not None
    sizes = _Sizes(batch, m, n, kk, cpu)
    words = k.view(workspace, "u32")
    sums = k.view(workspace, "f32", 4 * (sizes.words_a + sizes.words_b))
    tiles_b = words.at(sizes.words_a)
    _copy(k, sizes, m, 2 * sizes.down, words, partial(_rows_of_a, k, a), a.kind.contiguous == "j")
    _copy(k, sizes, n, 2 * sizes.across, tiles_b, partial(_columns_of_b, k, b), b.kind.contiguous == "j")
    k.call("syscall", *ASK_FOR_TILES)
    job = _Job(k, sizes, words, tiles_b, sums, write)
    with k.loop(sizes.pieces, "parallel", "piece") as piece:
        job.describe_tiles()
        first, count = mk.share(k, sizes.units, sizes.pieces, piece)
        with k.loop(count, name="unit") as u:
            job.unit(k.bind(piece * (BLOCK * STRIPE), "sums"), k.bind(tir.index(first + u), "unit"))
        k.intrinsic("llvm.x86.tilerelease")


# -- copying

_Read = Callable[[Expr, Expr, int, Expr, int], list[Expr]]  # (batch, start, size, k, depth) -> 16 vectors of 16 words


def _copy(k: Kernel, sizes: _Sizes, extent: int, blocks: int, to: Buf, read: _Read, straight: bool) -> None:
    """Copy an operand to tiles: [batch][block of rows of A, or columns of B][k]. `read` gives 16 vectors of 16 words;
    where they lie the other way round in the operand, they are turned. What no row or column fills stays as it is."""
    used = mk.ceildiv(extent, SIDE)

    def tile(at: Expr, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> None:
        rows = read(batch, start, size, deep, depth)
        for r, row in enumerate(rows if straight else mk.transposed(k, rows)):
            k.store(to, row, at + r * SIDE)

    def unit(_: Expr, unit: Expr) -> None:
        batch = k.bind(tir.floordiv(unit, used), "batch") if sizes.batch > 1 else tir.index(0)
        block = k.bind(tir.floormod(unit, used), "block") if sizes.batch > 1 else unit

        def line(start: Expr, size: int) -> None:
            base = k.bind((batch * blocks + tir.floordiv(start, SIDE)) * (sizes.deep * WORDS), "base")
            for first, depth, count in mk.split(sizes.kk, DEPTH):
                with k.loop(count, name="k") as step:
                    deep = k.bind(step * DEPTH + first, "deep")
                    at = k.bind(base + tir.floordiv(deep, DEPTH) * WORDS, "at")
                    tile(at, batch, start, size, deep, depth)

        mk.runs(k, extent, SIDE, block, 1, line)

    units = sizes.batch * used
    mk.spread(k, units, mk.pieces(units, sizes.cpu, sizes.batch * extent * sizes.kk * 16), unit)


def _rows_of_a(k: Kernel, a: Operand, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> list[Expr]:
    """Rows of A as words along k; or, where rows lie along memory, words of neighbouring k along the rows."""
    if a.kind.contiguous == "j":
        return _along_k(k, lambda r: a.read(batch, start + r, deep, depth), size)
    return _across(k, lambda p: a.read(batch, start, deep + p, size), depth)


def _columns_of_b(k: Kernel, b: Operand, batch: Expr, start: Expr, size: int, deep: Expr, depth: int) -> list[Expr]:
    """Words of neighbouring k along the columns of B; or, where k lies along memory, columns as words along k."""
    if b.kind.contiguous == "j":
        return _across(k, lambda p: b.read(batch, deep + p, start, size), depth)
    return _along_k(k, lambda c: b.read(batch, deep, start + c, depth), size)


def _along_k(k: Kernel, read: Callable[[int], Expr], size: int) -> list[Expr]:
    """Words of vectors along k: each holds two neighbours."""
    rows = []
    for r in range(SIDE):
        if r >= size:
            rows.append(_zero())
            continue
        bits = k.bind(mk.padded(_bits(read(r)), DEPTH))
        rows.append(_words(k, tir.shuffle([bits], range(0, DEPTH, 2)), tir.shuffle([bits], range(1, DEPTH, 2))))
    return rows


def _across(k: Kernel, read: Callable[[int], Expr], depth: int) -> list[Expr]:
    """Words of two vectors, of neighbouring k."""
    bits = [k.bind(mk.padded(_bits(read(p)), SIDE)) if p < depth else _zero() for p in range(DEPTH)]
    return [_words(k, bits[p], bits[p + 1]) for p in range(0, DEPTH, 2)]


def _bits(x: Expr) -> Expr:
    """bf16 numbers as the upper halves of words."""
    return tir.bitcast(tir.cast(x, "f32"), "u32")


def _words(k: Kernel, first: Expr, second: Expr) -> Expr:
    return k.bind((first >> tir.splat(tir.const(16, "u32"), SIDE)) | second, "words")


def _zero() -> Expr:
    return tir.splat(tir.const(0, "u32"), SIDE)


# -- multiplying


@dataclass(frozen=True)
class _Job:
    """The product that is being written."""

    k: Kernel
    sizes: _Sizes
    a: Buf
    b: Buf
    sums: Buf
    write: Write

    def describe_tiles(self) -> None:
        """Eight tiles of 16 rows of 64 bytes, for the thread that runs here."""
        described = self.k.local("tiles", SIDE, "u32")
        for at in range(SIDE):
            word = {0: 1, 12: 0x10101010, 13: 0x10101010}.get(at, 64 | 64 << 16 if 4 <= at < 8 else 0)
            self.k.store(described, word, at)
        self.k.intrinsic("llvm.x86.ldtilecfg", self.k.address(described, 0))

    def unit(self, sums: Expr, unit: Expr) -> None:
        """A block of rows of C, through its share of the columns."""
        k, s = self.k, self.sizes
        batch = k.bind(tir.floordiv(unit, s.down * s.columns), "batch") if s.batch > 1 else tir.index(0)
        y = k.bind(tir.floormod(tir.floordiv(unit, s.columns), s.down), "y")
        stripes = mk.ceildiv(s.n, STRIPE)
        first, count = mk.share(k, stripes, s.columns, k.bind(tir.floormod(unit, s.columns), "x"))

        def rows(i: Expr, height: int) -> None:
            def stripe(j: Expr, width: int) -> None:
                with k.loop(mk.ceildiv(width, BLOCK), name="block") as block:
                    self._block(k.bind(sums + block * BLOCK), batch, y, k.bind(tir.floordiv(j, BLOCK) + block, "x"))
                with k.loop(height, name="r") as r:
                    for start, lanes, steps in mk.split(width, SIDE):
                        with k.loop(steps, name="c") as c:
                            at = k.bind(c * SIDE + start, "at")
                            self.write(batch, i + r, j + at, k.load(self.sums, sums + r * STRIPE + at, lanes))

            mk.runs(k, s.n, STRIPE, first, count, stripe)

        mk.runs(k, s.m, BLOCK, y, 1, rows)

    def _block(self, sums: Expr, batch: Expr, y: Expr, x: Expr) -> None:
        """The sums of one block, through tiles 0 to 3, into memory."""
        k, s = self.k, self.sizes
        line = s.deep * WORDS
        a = k.bind((batch * (2 * s.down) + y * 2) * line, "a")
        b = k.bind((batch * (2 * s.across) + x * 2) * line, "b")
        for t in range(4):
            k.intrinsic("llvm.x86.tilezero", t)
        with k.loop(s.deep, name="k") as step:
            at = k.bind(step * WORDS, "at")
            for t, (buf, start) in enumerate(((self.a, a), (self.a, a + line), (self.b, b), (self.b, b + line)), 4):
                k.intrinsic("llvm.x86.tileloadd64", t, k.address(buf, start + at), 64)
            for t in range(4):
                k.intrinsic("llvm.x86.tdpbf16ps", t, 4 + t // 2, 6 + t % 2)
        for t in range(4):
            place = sums + (t // 2 * SIDE * STRIPE + t % 2 * SIDE)
            k.intrinsic("llvm.x86.tilestored64", t, k.address(self.sums, place), 4 * STRIPE)
