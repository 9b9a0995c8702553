"""How a GEMM is computed on a CPU: tiles, blocks, packing, parallel chunks; from shapes, operand layouts and target
alone.

codegen/contraction/gemm.py explains the forms and writes their loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.rule import Cpu
from gluongraph.dtypes import DTYPES, is_float


@dataclass(frozen=True)
class OperandKind:
    """What a strategy depends on of an operand: which index of element (i, j) is contiguous in memory, the dtype, and
    whether an element is read by a plain load (else it is recomputed or converted, and should be read once)."""

    contiguous: str = "j"  # or "i"
    dtype: str = "f32"
    plain: bool = True


ROW_MAJOR = OperandKind()  # float32, row-major, read by plain loads


@dataclass(frozen=True)
class Strategy:
    """How a GEMM is computed; `choose` decides from shapes, operand kinds and target."""

    form: str  # "outer" or "inner"
    rows: int  # rows of a tile
    vectors: int  # outer: vectors across a tile; inner: columns of a tile
    pack_a: bool  # outer: A is packed in the order in which tiles read it
    pack_b: bool  # outer: B is packed into panels as wide as a tile
    grid: tuple[int, int]  # chunks of C of one batch element: along rows, along columns
    dtype: str  # of the sums
    serial: bool  # too little work for several threads
    block: int = 1  # outer: panels of B that stay in L2 while all rows of A are multiplied with them
    depth: int = 0  # outer: terms of a sum that one pass adds up; 0: all
    ahead: bool = False  # outer: all of B is packed once, before the chunks begin

    def span(self, kk: int) -> int:
        """Return the terms of a sum that one pass adds up."""
        return self.depth or kk

    def passes(self, kk: int) -> int:
        """Return the number of passes over k."""
        return mk.ceildiv(kk, self.span(kk))

    def chain(self, kk: int, cpu: Cpu) -> int:
        """Return the terms that one accumulator of the outer form adds up: those of a pass, also where there is only
        one pass because packing does not need more."""
        return self.depth or _depth(kk, mk.lanes(cpu, self.dtype)) or kk

    def __str__(self) -> str:
        """Return a name that is unique among the strategies of one GEMM; tuning records store it."""
        packs = "a" * self.pack_a + "b" * self.pack_b or "nothing"
        down, across = self.grid
        return (
            f"{self.form} {self.rows}x{self.vectors}, {down}x{across} pieces, packs {packs},"
            f" blocks of {self.block}{' ahead' * self.ahead}{f', passes of {self.depth}' if self.depth else ''}"
        )

    def width(self, cpu: Cpu) -> int:
        """Return the columns of a tile."""
        return self.vectors * (1 if self.form == "inner" else mk.lanes(cpu, self.dtype))

    def num_chunks(self, batch: int, cpu: Cpu) -> int:
        """Return the number of parallel chunks of all batch elements."""
        return 1 if self.serial else mk.num_chunks(batch * self.grid[0] * self.grid[1], cpu)

    def workspace(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Return the bytes of workspace that `emit` needs."""
        return (self.packed(batch, m, n, kk, cpu) + self.spilled(batch, m, n, kk, cpu)) * DTYPES[self.dtype].nbytes

    def packed(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Return the elements of packed A and B."""
        slots = batch if self.ahead else self.num_chunks(batch, cpu)
        return self.size_a(batch, m, kk) + slots * self.slot_b(n, kk, cpu)

    def spilled(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Return the elements of partial sums that are spilled between passes, in full tiles."""
        if self.passes(kk) == 1:
            return 0
        width = self.vectors * mk.lanes(cpu, self.dtype)
        return batch * mk.ceildiv(m, self.rows) * self.rows * mk.ceildiv(n, width) * width

    @property
    def packed_stride(self) -> int:
        """Elements between the columns of a packed tile [k][row]: its rows, rounded up so that full vectors fit."""
        return mk.ceildiv(self.rows, 4) * 4

    def packed_tile(self, kk: int) -> int:
        """Return the elements of a packed tile of A of one pass: as [k][row], or as [row][k] with padding."""
        return self.packed_stride * (self.span(kk) + ROW_PADDING)

    def slot_a(self, m: int, kk: int) -> int:
        """Return the elements of packed A of one batch element."""
        return mk.ceildiv(m, self.rows) * self.packed_tile(kk) if self.pack_a else 0

    def size_a(self, batch: int, m: int, kk: int) -> int:
        """Return the elements of packed A of all batch elements."""
        return batch * self.slot_a(m, kk)

    def panel(self, kk: int, cpu: Cpu) -> int:
        """Return the elements of a panel of B of one pass."""
        return self.vectors * mk.lanes(cpu, self.dtype) * self.span(kk)

    def slot_b(self, n: int, kk: int, cpu: Cpu) -> int:
        """Return the elements of packed B: of one batch element if it is packed ahead, else of a chunk's block."""
        panels = mk.ceildiv(n, self.width(cpu)) if self.ahead else self.block
        return panels * self.panel(kk, cpu) if self.pack_b else 0


def choose(batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu) -> Strategy:
    """Return the default strategy for a GEMM."""
    dtype = mk.accumulator(a.dtype, b.dtype)
    lanes = mk.lanes(cpu, dtype)
    work = batch * m * n * kk
    along_k = a.contiguous == "j" and b.contiguous == "i" and is_float(dtype) and lanes > 1
    if along_k and kk >= 2 * lanes and (m < 64 or n < lanes):
        rows, columns = _inner_tile(m, n, cpu)
        grid = _grid(batch, m, n, rows, columns, lambda *_: 0.0, work, cpu)
        return Strategy("inner", rows, columns, False, False, grid, dtype, work < mk.SERIAL_WORK)
    rows, vectors = outer_tile(m, n, lanes, cpu, SHORT_ROWS if kk <= SHORT else cpu.registers)
    width, nbytes = vectors * lanes, DTYPES[dtype].nbytes

    def large(columns: int) -> bool:
        """Does a tile read only a cache line or two on each of many pages, of an operand with rows this long?"""
        return columns >= WIDE and kk * columns * nbytes >= cpu.l2 // 4

    many = m >= (SOME if large(n) else MANY)
    pack_b = b.contiguous == "i" or not b.plain or (many and kk * n * nbytes > cpu.l1)
    pack_a = ((a.contiguous == "i" and large(m)) or not a.plain) and n > width  # several tiles read the same rows
    strategy = Strategy("outer", rows, vectors, pack_a, pack_b, (1, 1), dtype, work < mk.SERIAL_WORK)
    return _with_grid(strategy, batch, m, n, kk, cpu)


def _with_grid(strategy: Strategy, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> Strategy:
    """Return an outer strategy with the best grid and blocks for its tiles."""
    rows, width, nbytes = strategy.rows, strategy.vectors * mk.lanes(cpu, strategy.dtype), DTYPES[strategy.dtype].nbytes
    pack_a, pack_b, work = strategy.pack_a, strategy.pack_b, batch * m * n * kk
    deep = pack_a or kk * width * nbytes > cpu.l2 // 8 or (pack_b and kk >= LONG and m < FEW)
    strategy = replace(strategy, depth=_depth(kk, mk.lanes(cpu, strategy.dtype)) if deep else 0)
    # Measured: a quarter of L2 is better than half of it, since all of A is streamed through L2 as well.
    most = max(1, cpu.l2 // nbytes // (4 * strategy.panel(kk, cpu)))

    def memory_cost(down: int, across: int) -> float:
        """Return what packing and reading operands adds to the time of each multiply-add."""
        block = min(most * width, mk.ceildiv(n, across))
        of_b, of_a = (PACKING * pack_b + READING) * down / m, (PACKING + FETCHING * _fetched(down, cpu)) * pack_a / n
        return of_b + of_a + READING / block

    panels = mk.ceildiv(n, width)
    pays_ahead = cpu.l2 // 12 <= panels * strategy.panel(kk, cpu) * nbytes <= cpu.l2 // 3
    if pack_b and pays_ahead and batch == 1 and m >= max(TALL, 3 * n):
        return replace(strategy, grid=(min(cpu.chunks, mk.ceildiv(m, rows)), 1), block=panels, ahead=True)
    down, across = _grid(batch, m, n, rows, width, memory_cost, work, cpu)
    block = min(most, mk.ceildiv(panels, across))
    if pack_b and block > 2 and mk.ceildiv(m, down) * strategy.span(kk) * nbytes <= cpu.l2 // 16:
        block = 1  # A stays in L2 by itself, and a panel is read as soon as it is packed
    return replace(strategy, grid=(down, across), block=block, ahead=False)


def _fetched(down: int, cpu: Cpu) -> float:
    """Return how many times packed A is read from another core's cache on average, of rows in `down` chunks."""
    return sum(max(threads / down - 1, 0.0) for threads in _thread_counts(cpu)) / len(_thread_counts(cpu))


def _thread_counts(cpu: Cpu) -> tuple[int, ...]:
    """Return the numbers of threads for which chunks are balanced."""
    return 2, 4, cpu.chunks


# Approximate terms of a pass: a panel of B of this length stays in L1. For very long sums it is the square root of the
# number of terms, since the rounding error grows with the number of passes too.
DEPTH = 256
ROW_PADDING = 16  # elements between packed rows: at power-of-two distances they would share few cache sets
# Where few rows are multiplied with a panel of B, packing and first reading it is much of the work: it is faster in L1,
# with several passes over k.
LONG, FEW = 512, 384  # terms from which, and rows of C up to which, this is done
MANY, SOME = 112, 64  # rows of C from which B is packed although its rows are contiguous: by default; if B is large
# Rows from which B is packed once for all chunks, if they are three times the columns and B of a pass fills between a
# twelfth and a third of L2. Each chunk then reads A once, which saves more than reading B that another thread packed.
TALL = 1024
WIDE = 192  # columns from which an operand of many terms counts as large
# Times in multiply-adds, for an element.
PACKING = 40.0  # to pack it, mostly the strided read
FETCHING = 60.0  # to read it if another thread has packed it
READING = 4.0  # to read it again from beyond L2
# Short sums are computed in tiles of few rows: most of the time goes into the epilogue's loads and stores, and the
# hardware prefetcher follows only a few rows at a time.
SHORT, SHORT_ROWS = 64, 4
# What the tuner tries besides the default: so many tile shapes, and these grids.
TILES, GRIDS = 3, ((8, 1), (4, 2), (2, 4), (1, 8), (4, 1), (2, 2), (1, 4))


def tuning_variants(batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu) -> list[Strategy]:
    """Return other strategies that may be faster than the default: other tiles, grids, blocks or packing. All add the
    terms of a sum in the same order as the default, so results are equal to the bit.
    """
    default = choose(batch, m, n, kk, a, b, cpu)
    if default.form == "inner":
        candidates = [
            replace(default, rows=min(m, r), vectors=c) for r, c in ((4, 4), (6, 4), (2, 8), (3, 8)) if c <= n
        ]
        return _distinct(default, candidates)
    lanes = mk.lanes(cpu, default.dtype)
    tiles = outer_tiles(m, n, lanes, cpu)[:TILES]
    candidates = [
        _with_grid(replace(default, rows=rows, vectors=vectors), batch, m, n, kk, cpu) for rows, vectors in tiles
    ]
    down, across = mk.ceildiv(m, default.rows), mk.ceildiv(n, default.vectors * lanes)
    if batch == 1 and not default.serial:
        candidates += [replace(default, grid=(y, x)) for y, x in GRIDS if y <= down and x <= across]
    candidates += [replace(default, block=max(1, default.block * part // 4)) for part in (1, 2, 8)]
    packed = [replace(default, pack_a=not default.pack_a)]
    if b.contiguous == "j":
        packed.append(replace(default, pack_b=not default.pack_b))
    return _distinct(default, candidates + [_with_grid(strategy, batch, m, n, kk, cpu) for strategy in packed])


def _distinct(default: Strategy, candidates: Sequence[Strategy]) -> list[Strategy]:
    """Return the candidates without duplicates and without the default."""
    return [strategy for strategy in dict.fromkeys(candidates) if strategy != default]


def _depth(kk: int, lanes: int) -> int:
    """Return the terms of one of several even passes, a multiple of the lanes; 0 if one pass is enough."""
    passes = mk.ceildiv(kk, max(DEPTH, math.isqrt(kk)))
    return mk.ceildiv(mk.ceildiv(kk, passes), lanes) * lanes if passes > 1 else 0


def outer_tile(m: int, n: int, lanes: int, cpu: Cpu, most: int = 32) -> tuple[int, int]:
    """Return the rows, at most `most`, and vectors of the tile with the least estimated time for the GEMM."""
    return outer_tiles(m, n, lanes, cpu, most)[0]


def outer_tiles(m: int, n: int, lanes: int, cpu: Cpu, most: int = 32) -> list[tuple[int, int]]:
    """Return for each number of vectors the tile with most rows, in the order of estimated time."""
    total = mk.ceildiv(n, lanes)
    tiles = []
    for vectors in range(1, min(total, 8) + 1):
        room = (cpu.registers - vectors - 1) // vectors
        if room < 1:
            break
        rows = mk.ceildiv(m, mk.ceildiv(m, min(m, room, most)))  # even tiles
        cost = sum(
            count_r * count_v * max(r * v / 2, (r + v) / 2, 4.0) + 0.5 * count_r * count_v
            for _, r, count_r in mk.split(m, rows)
            for _, v, count_v in mk.split(total, vectors)
        )
        tiles.append((cost, rows, vectors))
    return [(rows, vectors) for _, rows, vectors in sorted(tiles)]


def _inner_tile(m: int, n: int, cpu: Cpu) -> tuple[int, int]:
    """Return the rows and columns of a tile of dot products; the columns are a power of two."""
    columns = 4 if cpu.registers >= 32 else 2
    while m * columns < cpu.registers // 4 and columns * 2 <= min(n, 8):
        columns *= 2
    most = max(1, (cpu.registers - columns - 1) // columns)
    return mk.ceildiv(m, mk.ceildiv(m, most)), columns


def _grid(
    batch: int, m: int, n: int, rows: int, width: int, memory_cost: Callable[[int, int], float], work: int, cpu: Cpu
) -> tuple[int, int]:
    """Return the chunks of C of one batch element along rows and columns: balanced for several numbers of threads, and
    with little of the time that `memory_cost(down, across)` adds to each multiply-add."""
    if work < mk.SERIAL_WORK or batch >= cpu.chunks:
        return 1, 1
    want = mk.ceildiv(cpu.chunks, batch)
    down, across = mk.ceildiv(m, rows), mk.ceildiv(n, width)
    best = (float("inf"), 1, 1)
    for x in range(1, min(want, across) + 1):
        y = min(want // x, down)
        tiles = [(i + 1) * down // y - i * down // y for i in range(y)]
        sizes = [t * ((j + 1) * across // x - j * across // x) for t in tiles for j in range(x)] * batch
        best = min(best, (_imbalance(sizes, cpu) * (1 + memory_cost(y, x)), y, x))
    return best[1], best[2]


def _imbalance(sizes: list[int], cpu: Cpu) -> float:
    """Return how much longer the busiest thread works than the average one, averaged over numbers of threads."""
    total, ratios = sum(sizes), []
    for threads in _thread_counts(cpu):
        cut = [len(sizes) * t // threads for t in range(threads + 1)]
        ratios.append(max(sum(sizes[a:b]) for a, b in itertools.pairwise(cut)) * threads / total)
    return sum(ratios) / len(ratios)
