"""GEMM of bf16 operands in AMX tiles (amx.py), on CPUs with AMX or AVX512-BF16.

Operands are packed into tiles (amx_pack.py), except an A of whole tiles whose rows are contiguous along k: its tiles
are loaded in place. A chunk of work computes its rows of C, 32 at a time, over a stripe of columns whose B
stays in L2, in blocks of 32 x 32 elements; then over the next stripe. Chunks have either some rows and all columns, and
all threads pack B before; or some columns and all rows, and each packs the B of a stripe when it gets there.

Tile multiplications leave a core's other units idle. Other work is therefore interleaved with them: the sums of one
block are stored while the next block is computed, and A is packed for the next rows if all columns are one stripe.

Where B is contiguous along k, as in x W^T, and C has few rows, C^T = B^T A^T is computed and its sums are transposed:
that is less work than transposing W, which is then read once and not written again.

B is loaded from L2 for every block, and so are the long parts of A. Their tiles are loaded with a non-temporal hint, so
that L1 keeps the rest of A, which every block of its rows reads, and the sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.contraction.amx_pack import BLOCK, Copied, line
from gluongraph.codegen.contraction.gemm import Gemm, Operand, RunContext, Write
from gluongraph.codegen.contraction.gemm_strategy import OperandKind
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

MAX_STRIPE_BLOCKS = 32
CACHED_STEPS = 20  # steps along k of A, 2 KiB each, that stay in an L1 of 48 KiB besides two blocks of sums
FEW = 8  # C^T may be computed instead where C has at least so many times as many columns as rows
SMALLEST = 1 << 16  # multiply-adds from which packing pays


def is_profitable(batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu) -> bool:
    """Should this GEMM be computed in tiles, by AMX or AVX512-BF16?"""
    large = min(m, n, kk) >= SIDE and batch * m * n * kk >= SMALLEST
    return amx.unit(cpu) is not None and a.dtype == b.dtype == "bf16" and large


def tuning_variants(batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu) -> list[int]:
    """Return other numbers of blocks in a stripe that may be faster than the default; results are equal to the bit."""
    default = _sizes(batch, m, n, kk, a, b, cpu)
    most = min(2 * MAX_STRIPE_BLOCKS, default.across)
    return sorted(
        {max(1, min(most, default.stripe_blocks * part // 4)) for part in (1, 2, 8)} - {default.stripe_blocks}
    )


def workspace(
    batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu, stripe_blocks: int = 0
) -> int:
    """Return the bytes of workspace that `emit` needs; `stripe_blocks` is by default chosen from the cache size."""
    sizes = _sizes(batch, m, n, kk, a, b, cpu, stripe_blocks)
    return 4 * (sizes.words_a + sizes.words_b + sizes.num_chunks * 2 * BLOCK * BLOCK)


def run_width(
    batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu, stripe_blocks: int = 0
) -> int:
    """Return how many columns of a row are passed to `write` in one run."""
    return SIDE if _sizes(batch, m, n, kk, a, b, cpu, stripe_blocks).computes_transpose else BLOCK


class _Copy(Protocol):
    """Packs a part of the next rows of A: called at each step of the current computation, and once after it."""

    def __call__(self, part: Expr, parts: int, step: Expr | None = None) -> None: ...


@dataclass(frozen=True)
class _Sizes:
    """The tiling of a GEMM."""

    batch: int
    m: int
    n: int
    kk: int
    cpu: Cpu
    a_in_place: bool  # are tiles of A loaded without packing?
    forced_stripe: int = 0  # blocks in a stripe where a tuning variant sets them; 0: by default
    computes_transpose: bool = False  # is C^T computed? Then m and n are its rows and columns

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
        """Words of a packed block of rows of A, or of columns of B."""
        return line(self.kk)

    @property
    def owns_columns(self) -> bool:
        """Does each chunk own some columns, and pack what it needs of B itself? Where C has more columns than rows,
        each part of B is then read by one thread only, and stays in its L2 from packing to the last use."""
        large = self.line * self.across > self._room
        many = self.across >= self.down if large else self.across > max(self.down, self.cpu.chunks)
        return many and self.batch == 1 and self.work >= mk.SERIAL_WORK

    @property
    def packs_a_first(self) -> bool:
        """Is all of A packed before the chunks begin? Else a chunk packs each block of its rows just before its use."""
        return self.stripes > 1 and not self.a_in_place

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.batch * self.m * self.n * self.kk

    @property
    def _room(self) -> int:
        """Words of B that stay in L2: five eighths of it."""
        return self.cpu.l2 * 5 // 8 // 4

    @property
    def words_a(self) -> int:
        """Words of packed A: of all of it, or of two blocks for each chunk."""
        if self.a_in_place:
            return 0
        return self.line * (self.batch * self.down if self.packs_a_first else 2 * self.num_chunks)

    @property
    def words_b(self) -> int:
        return self.line * (self.num_chunks * self.stripe_blocks if self.owns_columns else self.batch * self.across)

    @property
    def stripe_blocks(self) -> int:
        """Blocks in a stripe, whose B stays in L2. Stripes are of equal size; chunks that own columns have equally
        many."""
        if self.forced_stripe:
            return self.forced_stripe
        most, each = (
            max(1, min(MAX_STRIPE_BLOCKS, self._room // self.line)),
            self.cpu.chunks if self.owns_columns else 1,
        )
        return mk.ceildiv(self.across, each * mk.ceildiv(self.across, each * most))

    @property
    def stripe_columns(self) -> int:
        """Columns of C in a stripe."""
        return BLOCK * self.stripe_blocks

    @property
    def stripes(self) -> int:
        return mk.ceildiv(self.n, self.stripe_columns)

    @property
    def parts(self) -> int:
        """Parallel chunks along the rows."""
        return 1 if self.owns_columns else mk.num_chunks(self.batch * self.down, self.cpu, self.work)

    @property
    def columns(self) -> int:
        """Parallel chunks along the columns."""
        return min(self.stripes, self.cpu.chunks) if self.owns_columns else 1

    @property
    def num_chunks(self) -> int:
        return self.parts * self.columns


def _sizes(
    batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu, stripe_blocks: int = 0
) -> _Sizes:
    """Return the tiling of A B, or of B^T A^T if that transposes fewer words."""
    transposed = (a.contiguous == "i") * m * kk // 2 + (b.contiguous == "i") * n * kk // 2
    computes_transpose = (a.contiguous == "j") * m * kk // 2 + (b.contiguous == "j") * n * kk // 2 + m * n
    exchange = FEW * m <= n and computes_transpose < transposed
    along, rows, columns = (b.contiguous == "i", n, m) if exchange else (a.contiguous == "j", m, n)
    a_in_place = cpu.tiles and along and rows % BLOCK == 0 and kk % DEPTH == 0
    return _Sizes(batch, rows, columns, kk, cpu, a_in_place, stripe_blocks, exchange)


def emit(k: Kernel, gemm: Gemm, stripe_blocks: int = 0) -> None:
    """Emit the loops of the GEMM; `stripe_blocks` as in `workspace`."""
    unit, a, b, kk = amx.unit(gemm.cpu), gemm.a, gemm.b, gemm.kk
    assert gemm.workspace is not None and unit is not None
    sizes = _sizes(gemm.batch, gemm.m, gemm.n, kk, a.kind, b.kind, gemm.cpu, stripe_blocks)
    if sizes.computes_transpose:
        a, b = _transposed(b), _transposed(a)
    words = k.view(gemm.workspace, "u32")
    sums = k.view(gemm.workspace, "f32", 4 * (sizes.words_a + sizes.words_b))
    left: Copied | Buf
    if sizes.a_in_place:
        assert a.memory is not None
        left = k.view(a.memory, "f16")  # TVM has no address of bf16
    else:
        along = a.kind.contiguous == "j"
        left = Copied(k, words, a.read, gemm.batch, sizes.m, kk, along=along, transposed=not along)
        if sizes.packs_a_first:
            left.all(gemm.cpu)
    along, there = b.kind.contiguous == "i", words.at(sizes.words_a)
    right = Copied(k, there, _transposed(b).read, gemm.batch, sizes.n, kk, along=along, transposed=along)
    if not sizes.owns_columns:
        right.all(gemm.cpu)
    unit.prepare(k)
    job = _Job(k, unit, sizes, left, right, sums, gemm.write, gemm.run_context)
    with k.loop(sizes.num_chunks, "parallel", "piece") as chunk, unit.thread(k):
        job.chunk(chunk)


def _transposed(x: Operand) -> Operand:
    """Return the operand transposed."""
    kind = replace(x.kind, contiguous="i" if x.kind.contiguous == "j" else "j")
    return Operand(lambda batch, i, j, lanes: x.read(batch, j, i, lanes), kind, x.memory)


@dataclass(frozen=True)
class _Job:
    """The GEMM that is emitted."""

    k: Kernel
    unit: amx.Unit
    sizes: _Sizes
    a: Copied | Buf  # a buffer if it is read in place
    b: Copied
    sums: Buf
    write: Write
    run_context: RunContext

    def chunk(self, chunk: Expr) -> None:
        """Compute the chunk's block rows of C, one stripe after another."""
        k, s = self.k, self.sizes
        first, count = mk.chunk_range(k, s.batch * s.down, s.parts, k.bind(tir.floordiv(chunk, s.columns), "part"))
        first_stripe, stripes = mk.chunk_range(k, s.stripes, s.columns, k.bind(tir.floormod(chunk, s.columns), "x"))

        def slot(unit: Value) -> Expr:
            """Return where packed A of a block row is stored: two slots, used alternately."""
            return k.bind((chunk * 2 + tir.floormod(unit, 2)) * s.line, "slot")

        def through(j: Expr, width: int) -> None:
            if s.owns_columns:
                self.b.some(
                    tir.floordiv(j, BLOCK), mk.ceildiv(width, BLOCK), k.bind(chunk * (s.stripe_blocks * s.line), "b")
                )
            if isinstance(self.a, Copied) and not s.packs_a_first:
                self.a.part(*self._block_of(tir.index(first)), slot(0))
            with k.loop(count, name="unit") as u:
                unit = k.bind(tir.index(first + u), "unit")

                def copy(part: Expr, parts: int, step: Expr | None = None) -> None:
                    """Pack the next block of rows: some of it at each step of a part, or at the part's end."""
                    if isinstance(self.a, Buf) or s.packs_a_first or self.a.copies_rows != (step is not None):
                        return
                    with k.when(u + 1 < count):
                        place = (*self._block_of(k.bind(unit + 1, "next")), slot(u + 1))
                        if step is not None:
                            self.a.rows(*place, step, part, parts)
                        else:
                            self.a.part(*place, part, parts)

                batch, y = self._block_of(unit)
                if isinstance(self.a, Buf) or s.packs_a_first:
                    a = k.bind(unit * (BLOCK * s.kk if isinstance(self.a, Buf) else s.line), "a")
                else:
                    a = slot(u)
                self._rows(chunk, batch, a, k.bind(y * BLOCK, "i"), j, width, copy)

        mk.for_blocks(k, s.n, s.stripe_columns, first_stripe, stripes, through)

    def _block_of(self, unit: Expr) -> tuple[Expr, Expr]:
        """Return the batch element and the block row in it, of a block row counted over all batch elements."""
        if self.sizes.batch == 1:
            return tir.index(0), unit
        down = self.sizes.down
        return self.k.bind(tir.floordiv(unit, down), "batch"), self.k.bind(tir.floormod(unit, down), "y")

    def _rows(self, chunk: Expr, batch: Expr, a: Expr, i: Expr, j: Expr, width: int, copy: _Copy) -> None:
        """Compute a block row of a stripe. Each block of columns is a part for `copy`."""
        k, s = self.k, self.sizes
        blocks = mk.ceildiv(width, BLOCK)
        b = k.bind(chunk * s.stripe_blocks if s.owns_columns else batch * s.across + tir.floordiv(j, BLOCK), "b")

        def slot(block: Value) -> Expr:
            return k.bind((chunk * 2 + tir.floormod(block, 2)) * (BLOCK * BLOCK), "sums")

        with k.loop(blocks, name="block") as block:

            def last(part: Expr, parts: int) -> None:
                with k.when(block > 0):
                    self._write(slot(block + 1), batch, i, k.bind(j + (block - 1) * BLOCK, "j"), BLOCK, part, parts)

            b_at = k.bind((b + block) * s.line, "b")
            self._block(slot(block), a, b_at, last, lambda step: copy(block, blocks, step))
            copy(block, blocks)
        done = (blocks - 1) * BLOCK
        self._write(slot(tir.index(blocks - 1)), batch, i, k.bind(j + done, "j"), width - done, tir.index(0), 1)

    def _block(
        self, sums: Expr, a: Expr, b: Expr, last: Callable[[Expr, int], None], also: Callable[[Expr], None]
    ) -> None:
        """Compute the sums of one block into memory. `last(part, parts)` stores a part of the previous block through
        the epilogue; `also(step)` is called at every step along k."""
        k, s, interleaved = self.k, self.sizes, self.unit.single_pass
        parts = max(p for p in ((1, 2, 4) if s.computes_transpose else (1, 2, 4, 8, 16, 32)) if p <= s.deep)
        busy = parts if interleaved else 0  # steps with which stores are interleaved

        def steps(add: Add) -> None:
            for first, end in itertools.pairwise(sorted({0, busy, min(CACHED_STEPS, s.deep), s.deep})):
                with k.loop(end - first, name="k") as number:
                    step = k.bind(number + first, "step")
                    left, pitch = self._left(a, step)
                    right = _pair(self.b.to, k.bind(b + step * (2 * WORDS), "at"), WORDS)
                    add(left, right, non_temporal="b" if first < CACHED_STEPS else "ab", pitch=pitch)
                    if first < busy:
                        last(step, parts)
                    if interleaved:
                        also(step)

        places = Sums(self.sums, lambda i, j: sums + (i * SIDE * BLOCK + j * SIDE), BLOCK)
        self.unit.block(k, (2, 2), steps, places, accumulate=False)
        if not interleaved:
            last(tir.index(0), 1)
            with k.loop(s.deep, name="k") as step:
                also(step)

    def _left(self, a: Expr, step: Expr) -> tuple[list[amx.TileAddress], int]:
        """Return the two tiles of A of a step, of a block that begins at `a`, and the bytes between their rows."""
        if isinstance(self.a, Buf):
            return _pair(self.a, self.k.bind(a + step * DEPTH, "at"), SIDE * self.sizes.kk), 2 * self.sizes.kk
        return _pair(self.a.to, self.k.bind(a + step * (2 * WORDS), "at"), WORDS), 0

    def _write(self, sums: Expr, batch: Expr, i: Expr, j: Expr, width: int, part: Expr, parts: int) -> None:
        """Store one part of a block through the epilogue, as far as it is within C."""
        k, count = self.k, (4 if self.sizes.computes_transpose else BLOCK) // parts
        with k.loop(count, name="r") as number:
            at = k.bind(part * count + number, "at")
            if self.sizes.computes_transpose:
                self._square(sums, batch, i, j, k.bind(tir.floordiv(at, 2), "y"), k.bind(tir.floormod(at, 2), "x"))
            else:
                self._row(k.bind(sums + at * BLOCK, "sums"), batch, k.bind(i + at, "i"), j, width)

    def _row(self, sums: Expr, batch: Expr, i: Expr, j: Expr, width: int) -> None:
        k, m = self.k, self.sizes.m
        with k.when(i < m) if m % BLOCK else nullcontext(), self.run_context(batch, i, j):
            for at, lanes in zip(range(0, width, SIDE), mk.widths(width, SIDE), strict=True):
                self.write(batch, i, j + at, k.load(self.sums, sums + at, lanes))

    def _square(self, sums: Expr, batch: Expr, i: Expr, j: Expr, y: Expr, x: Expr) -> None:
        """Store a quarter of a block of C^T through the epilogue: transposed in place, then by rows of C."""
        k, (columns, rows) = self.k, (self.sizes.m, self.sizes.n)
        start = k.bind(sums + (y * BLOCK + x) * SIDE, "square")
        places = [start + r * BLOCK for r in range(SIDE)]
        square = [k.bind(k.load(self.sums, at, SIDE), "t") for at in places]
        for at, transposed in zip(places, mk.transposed(k, square), strict=True):
            k.store(self.sums, transposed, at)

        def lines(column: Expr, lanes: int) -> None:
            with k.loop(SIDE, name="r") as r:
                row = k.bind(j + x * SIDE + r, "row")
                with k.when(row < rows) if rows % BLOCK else nullcontext(), self.run_context(batch, row, column):
                    self.write(batch, row, column, k.load(self.sums, start + r * BLOCK, lanes))

        line = k.bind(tir.floordiv(i, SIDE) + y, "line")
        with k.when(line < mk.ceildiv(columns, SIDE)) if columns % BLOCK else nullcontext():
            mk.for_blocks(k, columns, SIDE, line, 1, lines)


def _pair(buf: Buf, at: Expr, apart: int) -> list[amx.TileAddress]:
    """Return the two tiles of a step, `apart` elements from each other."""
    return [(buf, at), (buf, at + apart)]
