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
class Kind:
    """What a strategy depends on: which index of element (i, j) runs along memory, the dtype, and whether reading is a
    plain load (else it recomputes something, and repeated reads are to be avoided)."""

    contiguous: str = "j"  # or "i"
    dtype: str = "f32"
    plain: bool = True


ROWS = Kind()  # float32 in rows, read as it lies


@dataclass(frozen=True)
class Strategy:
    """How a product is computed; decided by `choose` from shapes, kinds and target."""

    form: str  # "outer" or "inner"
    rows: int  # rows of a tile
    vectors: int  # outer: vectors across a tile; inner: columns of a tile
    pack_a: bool  # outer: A is copied into runs that tiles read one after another
    pack_b: bool  # outer: B is copied to panels, rows of as many columns as a tile has
    grid: tuple[int, int]  # chunks of work down and across one product
    dtype: str  # of the sums
    serial: bool  # too little work for several threads
    block: int = 1  # outer: panels of B that stay in L2 while rows of A pass by
    depth: int = 0  # outer: terms of a sum that one pass adds up; 0 if all
    ahead: bool = False  # outer: all of B is packed before the chunks begin, once for all of them

    def span(self, kk: int) -> int:
        """Terms of a sum that one pass adds up."""
        return self.depth or kk

    def passes(self, kk: int) -> int:
        """Over which sums are made."""
        return mk.ceildiv(kk, self.span(kk))

    def chain(self, kk: int, cpu: Cpu) -> int:
        """Terms that one accumulator of the outer form adds up: those of a pass, or of what would be one."""
        return self.depth or _depth(kk, mk.lanes(cpu, self.dtype)) or kk

    def __str__(self) -> str:
        """A name for it among those of one product."""
        packs = "a" * self.pack_a + "b" * self.pack_b or "nothing"
        down, across = self.grid
        return (
            f"{self.form} {self.rows}x{self.vectors}, {down}x{across} pieces, packs {packs},"
            f" blocks of {self.block}{' ahead' * self.ahead}{f', passes of {self.depth}' if self.depth else ''}"
        )

    def width(self, cpu: Cpu) -> int:
        """Columns of a tile."""
        return self.vectors * (1 if self.form == "inner" else mk.lanes(cpu, self.dtype))

    def num_chunks(self, batch: int, cpu: Cpu) -> int:
        """Parallel chunks of the whole product."""
        return 1 if self.serial else mk.num_chunks(batch * self.grid[0] * self.grid[1], cpu)

    def workspace(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Bytes that `emit` needs."""
        return (self.packed(batch, m, n, kk, cpu) + self.waiting(batch, m, n, kk, cpu)) * DTYPES[self.dtype].nbytes

    def packed(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Elements of all that is packed of both."""
        slots = batch if self.ahead else self.num_chunks(batch, cpu)
        return self.size_a(batch, m, kk) + slots * self.slot_b(n, kk, cpu)

    def waiting(self, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> int:
        """Elements of sums that wait for the next pass, in whole tiles."""
        if self.passes(kk) == 1:
            return 0
        width = self.vectors * mk.lanes(cpu, self.dtype)
        return batch * mk.ceildiv(m, self.rows) * self.rows * mk.ceildiv(n, width) * width

    @property
    def tall(self) -> int:
        """Elements between packed columns of a tile's rows, for which they are copied by whole vectors."""
        return mk.ceildiv(self.rows, 4) * 4

    def packed_tile(self, kk: int) -> int:
        """Elements of A for one tile and pass, packed: as [k][row], or as [row][k] with some room between rows."""
        return self.tall * (self.span(kk) + APART)

    def slot_a(self, m: int, kk: int) -> int:
        """Elements of packed A of one batch element."""
        return mk.ceildiv(m, self.rows) * self.packed_tile(kk) if self.pack_a else 0

    def size_a(self, batch: int, m: int, kk: int) -> int:
        """Elements of packed A of all of them."""
        return batch * self.slot_a(m, kk)

    def panel(self, kk: int, cpu: Cpu) -> int:
        """Elements of a panel of B of one pass."""
        return self.vectors * mk.lanes(cpu, self.dtype) * self.span(kk)

    def slot_b(self, n: int, kk: int, cpu: Cpu) -> int:
        """Elements of packed B of one batch element, if it is packed ahead, or what a chunk packs at a time."""
        panels = mk.ceildiv(n, self.width(cpu)) if self.ahead else self.block
        return panels * self.panel(kk, cpu) if self.pack_b else 0


def choose(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> Strategy:
    """The strategy for a product."""
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
        """Of rows as they are stored: does a tile read a line or two on each of many pages?"""
        return columns >= WIDE and kk * columns * nbytes >= cpu.l2 // 4

    many = m >= (SOME if large(n) else MANY)
    pack_b = b.contiguous == "i" or not b.plain or (many and kk * n * nbytes > cpu.l1)
    pack_a = ((a.contiguous == "i" and large(m)) or not a.plain) and n > width  # several tiles read the same rows
    how = Strategy("outer", rows, vectors, pack_a, pack_b, (1, 1), dtype, work < mk.SERIAL_WORK)
    return _cut(how, batch, m, n, kk, cpu)


def _cut(how: Strategy, batch: int, m: int, n: int, kk: int, cpu: Cpu) -> Strategy:
    """An outer strategy with the best grid and blocks for its tiles."""
    rows, width, nbytes = how.rows, how.vectors * mk.lanes(cpu, how.dtype), DTYPES[how.dtype].nbytes
    pack_a, pack_b, work = how.pack_a, how.pack_b, batch * m * n * kk
    deep = pack_a or kk * width * nbytes > cpu.l2 // 8 or (pack_b and kk >= LONG and m < FEW)
    how = replace(how, depth=_depth(kk, mk.lanes(cpu, how.dtype)) if deep else 0)
    # A quarter of L2 is measured to be better than half of it: all of A goes through it beside them.
    most = max(1, cpu.l2 // nbytes // (4 * how.panel(kk, cpu)))

    def passes(down: int, across: int) -> float:
        """What packing, and reading what passes by the blocks, adds to each multiply-add."""
        block = min(most * width, mk.ceildiv(n, across))
        of_b, of_a = (PACKING * pack_b + READING) * down / m, (PACKING + FETCHING * _fetched(down, cpu)) * pack_a / n
        return of_b + of_a + READING / block

    panels = mk.ceildiv(n, width)
    whole = cpu.l2 // 12 <= panels * how.panel(kk, cpu) * nbytes <= cpu.l2 // 3
    if pack_b and whole and batch == 1 and m >= max(TALL, 3 * n):
        return replace(how, grid=(min(cpu.chunks, mk.ceildiv(m, rows)), 1), block=panels, ahead=True)
    down, across = _grid(batch, m, n, rows, width, passes, work, cpu)
    block = min(most, mk.ceildiv(panels, across))
    if pack_b and block > 2 and mk.ceildiv(m, down) * how.span(kk) * nbytes <= cpu.l2 // 16:
        block = 1  # A stays in L2 by itself, and a panel is read as soon as it is packed
    return replace(how, grid=(down, across), block=block, ahead=False)


def _fetched(down: int, cpu: Cpu) -> float:
    """How many times all of what threads have packed is read by others, of rows in so many chunks."""
    return sum(max(threads / down - 1, 0.0) for threads in _threads(cpu)) / len(_threads(cpu))


def _threads(cpu: Cpu) -> tuple[int, ...]:
    """The numbers of threads that chunks are made for."""
    return 2, 4, cpu.chunks


# Terms of a pass, about: a panel of B so long stays in the first cache. Of very many terms it is their square root: the
# error of a sum grows with the number of passes too.
DEPTH = 256
APART = 16  # elements between packed rows: at powers of two they would share few places of a cache
# Where few rows pass over a panel of B, to pack and to read it first is a good part of the work: quicker in the first
# cache, by passes over terms.
LONG, FEW = 512, 384  # terms from which, and rows of C up to which
MANY, SOME = 112, 64  # rows of C from which B, small or large, is packed, though its rows lie along memory
# Rows from which, if they are three times the columns, and B of a pass has a good part of L2 but not most of it, B is
# packed once for all chunks, which pass over A once: it pays for fetching what another thread has packed.
TALL = 1024
WIDE = 192  # columns from which an operand of many terms counts as large
PACKING = 40.0  # time to pack an element, most of it for reading it in steps, in multiply-adds
FETCHING = 60.0  # and to read one that another thread has packed
READING = 4.0  # and to read one again from further away than L2
# Sums of few terms are made in tiles of few rows: they take the time of writing the result, and of the update behind
# it, which memory is fetched ahead for along a few rows at a time.
SHORT, SHORT_ROWS = 64, 4
# What a tuner tries besides: tiles, and chunks down and across.
TILES, GRIDS = 3, ((8, 1), (4, 2), (2, 4), (1, 8), (4, 1), (2, 2), (1, 4))


def tuning_variants(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> list[Strategy]:
    """What may turn out to be faster than what `choose` gives, by measurement: the same with another tile, other
    chunks, blocks or packing. All add up what they add up in the same order, so that no bit of a sum depends on it.
    """
    usual = choose(batch, m, n, kk, a, b, cpu)
    if usual.form == "inner":
        more = [replace(usual, rows=min(m, r), vectors=c) for r, c in ((4, 4), (6, 4), (2, 8), (3, 8)) if c <= n]
        return _distinct(usual, more)
    lanes = mk.lanes(cpu, usual.dtype)
    tiles = outer_tiles(m, n, lanes, cpu)[:TILES]
    more = [_cut(replace(usual, rows=rows, vectors=vectors), batch, m, n, kk, cpu) for rows, vectors in tiles]
    down, across = mk.ceildiv(m, usual.rows), mk.ceildiv(n, usual.vectors * lanes)
    if batch == 1 and not usual.serial:
        more += [replace(usual, grid=(y, x)) for y, x in GRIDS if y <= down and x <= across]
    more += [replace(usual, block=max(1, usual.block * part // 4)) for part in (1, 2, 8)]
    packed = [replace(usual, pack_a=not usual.pack_a)]
    if b.contiguous == "j":
        packed.append(replace(usual, pack_b=not usual.pack_b))
    return _distinct(usual, more + [_cut(how, batch, m, n, kk, cpu) for how in packed])


def _distinct(usual: Strategy, more: Sequence[Strategy]) -> list[Strategy]:
    return [how for how in dict.fromkeys(more) if how != usual]


def _depth(kk: int, lanes: int) -> int:
    """The terms of one of several even passes, in whole vectors; 0 if one is enough."""
    passes = mk.ceildiv(kk, max(DEPTH, math.isqrt(kk)))
    return mk.ceildiv(mk.ceildiv(kk, passes), lanes) * lanes if passes > 1 else 0


def outer_tile(m: int, n: int, lanes: int, cpu: Cpu, most: int = 32) -> tuple[int, int]:
    """Rows, so many at most, and vectors of the tile with the least estimated time for the whole product."""
    return outer_tiles(m, n, lanes, cpu, most)[0]


def outer_tiles(m: int, n: int, lanes: int, cpu: Cpu, most: int = 32) -> list[tuple[int, int]]:
    """For each number of vectors the tile with most rows, those of least estimated time first."""
    total = mk.ceildiv(n, lanes)
    found = []
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
        found.append((cost, rows, vectors))
    return [(rows, vectors) for _, rows, vectors in sorted(found)]


def _inner_tile(m: int, n: int, cpu: Cpu) -> tuple[int, int]:
    """Rows and columns of a tile of dot products; the columns are a power of two."""
    columns = 4 if cpu.registers >= 32 else 2
    while m * columns < cpu.registers // 4 and columns * 2 <= min(n, 8):
        columns *= 2
    most = max(1, (cpu.registers - columns - 1) // columns)
    return mk.ceildiv(m, mk.ceildiv(m, most)), columns


def _grid(
    batch: int, m: int, n: int, rows: int, width: int, passes: Callable[[int, int], float], work: int, cpu: Cpu
) -> tuple[int, int]:
    """Pieces down and across one product: even for any number of threads, and with little of what `passes(down,
    across)` adds to each multiply-add."""
    if work < mk.SERIAL_WORK or batch >= cpu.chunks:
        return 1, 1
    want = mk.ceildiv(cpu.chunks, batch)
    down, across = mk.ceildiv(m, rows), mk.ceildiv(n, width)
    best = (float("inf"), 1, 1)
    for x in range(1, min(want, across) + 1):
        y = min(want // x, down)
        tiles = [(i + 1) * down // y - i * down // y for i in range(y)]
        sizes = [t * ((j + 1) * across // x - j * across // x) for t in tiles for j in range(x)] * batch
        best = min(best, (_uneven(sizes, cpu) * (1 + passes(y, x)), y, x))
    return best[1], best[2]


def _uneven(sizes: list[int], cpu: Cpu) -> float:
    """How much longer the busiest thread works than the average one, over several numbers of threads."""
    total, ratios = sum(sizes), []
    for threads in _threads(cpu):
        cut = [len(sizes) * t // threads for t in range(threads + 1)]
        ratios.append(max(sum(sizes[a:b]) for a, b in itertools.pairwise(cut)) * threads / total)
    return sum(ratios) / len(ratios)
