"""GEMM on CPUs: register-blocked loops, written straight into a kernel.

C[b, i, j] = sum over k of A[b, i, k] * B[b, k, j]. Two forms:

* outer: for each k, vectors of a row of B times scalars of a column of A, added to a tile of accumulators in registers.
  A tile is stored once, after the last k, so that the epilogue (an optimizer's update, for example) runs once.

      for each pass over k                        one; of a long k several: partial sums are spilled between them
          pack A, if it is packed                 in parallel; and B, if it is packed ahead
          for each chunk of C                     in parallel
              for each block of its columns       as many panels of a tile's width as fit part of L2
                  pack B, if it is packed here
                  for each tile's rows of the chunk
                      for each panel of the block
                          for each k of the pass

  Threads pack A in the order in which they compute chunks: with the rows halved, each of two threads reads the part it
  has packed, which is still in its own caches; fetching it from another core's caches takes longer than packing it.
  B is packed again for each chunk of its columns, unless chunks have many rows and all columns: then it is packed
  ahead, once for all chunks.
* inner: where both operands are contiguous along k (x W^T): vectors along k, reduced over their lanes at the end.

The order in which the terms of an element of C are added depends on shapes and target only, never on threads. A long
sum is made of chains of at most `microkernel.CHAIN` terms, which bounds its rounding error; in the outer form a pass
has one chain or several.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.gemm_strategy import APART, ROWS, Kind, Strategy, choose
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.errors import CompileError

Write = Callable[[Expr, Expr, Expr, Expr], None]
Around = Callable[[Expr, Expr, Expr], AbstractContextManager[None]]
Left = Callable[[int, "_Pass", Expr], Expr]  # (row of the tile, pass, number of its term) -> element of A
STREAMS = 4  # panels that are written side by side
# Terms that a turn of the innermost loop adds, if each pass has so many times some. A core of which another machine has
# the other thread starts half as many instructions: multiply-adds then wait for all that is in the loop beside them.
TURNS = (4, 2, 1)


@dataclass(frozen=True)
class Operand:
    """A matrix per batch element: `read(batch, i, j, lanes)` gives elements from (i, j) along its contiguous index.
    `memory` is where all of it lies, row by row or column by column, if it lies so."""

    read: Callable[[Value, Value, Value, int], Expr]
    kind: Kind = ROWS
    memory: Buf | None = None


def alone(batch: Expr, i: Expr, j: Expr) -> AbstractContextManager[None]:
    """Nothing around a run."""
    return nullcontext()


def workspace(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> int:
    """Bytes of workspace that `emit` needs for such a product."""
    return choose(batch, m, n, kk, a, b, cpu).workspace(batch, m, n, kk, cpu)


@dataclass(frozen=True)
class Product:
    """What is multiplied, and where it goes. `write(batch, i, j, value)` is called for each finished part of a row,
    once per element: `value` holds the elements (i, j), (i, j+1), ... A run from column j on, as many as a tile has and
    fewer at the end of a row, is written one part after another, within `around(batch, i, j)`."""

    batch: int
    m: int
    n: int
    kk: int
    a: Operand
    b: Operand
    write: Write
    cpu: Cpu
    workspace: Buf | None = None
    around: Around = alone


def emit(k: Kernel, of: Product, strategy: Strategy | None = None) -> None:
    """Write the loops of the product, by default in the way that `choose` finds."""
    if min(of.batch, of.m, of.n) < 1 or of.kk < 1:
        raise CompileError(
            f"{k.name}: a product of {of.batch} x [{of.m}, {of.kk}] and [{of.kk}, {of.n}] has nothing to do"
        )
    how = strategy or choose(of.batch, of.m, of.n, of.kk, of.a.kind, of.b.kind, of.cpu)
    need = how.workspace(of.batch, of.m, of.n, of.kk, of.cpu)
    space = mk.workspace(k, of.workspace, how.dtype, need) if need else None
    _Job(k, of, how, space).passes()


@dataclass(frozen=True)
class _Pass:
    """Terms of the sums: `count` of them from the `first`. Do sums begin with them, and end?"""

    first: Value
    count: Value
    begins: Expr | bool = True
    ends: Expr | bool = True


@dataclass(frozen=True)
class _Job:
    """The product that is being written."""

    k: Kernel
    of: Product
    how: Strategy
    space: Buf | None

    @property
    def lanes(self) -> int:
        return mk.lanes(self.of.cpu, self.how.dtype)

    def passes(self) -> None:
        """The whole product, pass after pass."""
        k, span, passes = self.k, self.how.span(self.of.kk), self.how.passes(self.of.kk)
        if passes == 1:
            self._pass(_Pass(0, self.of.kk))
            return
        with k.loop(passes, name="pass") as number:
            first = k.bind(number * span, "first")
            count = k.bind(tir.minimum(self.of.kk - first, span), "count")
            self._pass(_Pass(first, count, number < 1, number >= passes - 1))

    def _pass(self, terms: _Pass) -> None:
        """Some terms of all sums."""
        how = self.how
        if how.pack_a or how.ahead:
            self._pack(terms)
        units = self.of.batch * how.grid[0] * how.grid[1]
        mk.parallel_chunks(self.k, units, how.num_chunks(self.of.batch, self.of.cpu), partial(self._unit, terms))

    def _unit(self, terms: _Pass, chunk: Expr, unit: Expr) -> None:
        """One chunk of the grid of one batch element."""
        k, (down, across) = self.k, self.how.grid
        batch = k.bind(tir.floordiv(unit, down * across), "batch") if self.of.batch > 1 else tir.index(0)
        y = k.bind(tir.floormod(tir.floordiv(unit, across), down), "y") if down > 1 else tir.index(0)
        x = k.bind(tir.floormod(unit, across), "x") if across > 1 else tir.index(0)
        width = self.how.width(self.of.cpu)
        row0, rows = mk.chunk_range(k, mk.ceildiv(self.of.m, self.how.rows), down, y)
        panel0, panels = mk.chunk_range(k, mk.ceildiv(self.of.n, width), across, x)
        if self.how.form == "inner":
            self._inner(batch, row0, rows, panel0, panels)
        else:
            self._outer(terms, chunk, batch, row0, rows, panel0, panels)

    def _value(self, operand: Operand, batch: Value, i: Value, j: Value, lanes: int) -> Expr:
        return tir.cast(operand.read(batch, i, j, lanes), self.how.dtype)

    def _outer(
        self, terms: _Pass, chunk: Expr, batch: Expr, row0: Value, rows: Value, panel0: Value, panels: Value
    ) -> None:
        """A chunk, block after block."""
        k, how, width = self.k, self.how, self.how.vectors * self.lanes
        packed_a, packed_b = self._packed_a(batch), self._packed_b(batch if how.ahead else chunk)

        def block(first: Value, count: Value) -> None:
            begin = 0 if how.ahead else first
            if packed_b is not None and not how.ahead:
                self._pack_b(packed_b, batch, terms, begin, first, count)

            def tiles(i: Expr, height: int) -> None:
                left = self._left(packed_a, batch, i)

                def tile(j: Expr, size: int) -> None:
                    self._tile(terms, left, self._right(packed_b, begin, j), batch, i, height, j, size)

                mk.for_blocks(k, self.of.n, width, first, count, tile)

            mk.for_blocks(k, self.of.m, how.rows, row0, rows, tiles)

        self._blocks(panel0, panels, mk.ceildiv(mk.ceildiv(self.of.n, width), how.grid[1]), how.block, block)

    def _blocks(self, first: Value, count: Value, most: int, size: int, body: Callable[[Value, Value], None]) -> None:
        """body(first, count) for blocks of `count` steps, of which there are `most` at the most."""
        k = self.k
        if most <= size:
            body(first, count)
            return
        with k.loop(tir.floordiv(count + (size - 1), size), name="block") as number:
            start = k.bind(tir.index(first + number * size), "first")
            body(start, k.bind(tir.minimum(size, first + count - start), "count"))

    def _packed_a(self, batch: Expr) -> Buf | None:
        """Where packed A lies."""
        if not self.how.pack_a:
            return None
        return self._space().at(self.k.bind(batch * self.how.slot_a(self.of.m, self.of.kk), "packed"))

    def _packed_b(self, chunk: Expr) -> Buf | None:
        """Where a chunk packs blocks of B, or where all of a batch element's lies: behind all of A."""
        if not self.how.pack_b:
            return None
        of = self.of
        at = chunk * self.how.slot_b(of.n, of.kk, of.cpu) + self.how.size_a(of.batch, of.m, of.kk)
        return self._space().at(self.k.bind(at, "packed"))

    def _pack(self, terms: _Pass) -> None:
        """Copy A, and B if that is done ahead, in parallel."""
        k, how = self.k, self.how
        tiles, panels = mk.ceildiv(self.of.m, how.rows), mk.ceildiv(self.of.n, how.width(self.of.cpu))
        parts = min(self.of.cpu.chunks, max(tiles if how.pack_a else 1, panels if how.ahead else 1))

        def unit(_: Expr, unit: Expr) -> None:
            batch = k.bind(tir.floordiv(unit, parts), "batch") if self.of.batch > 1 else tir.index(0)
            part = k.bind(tir.floormod(unit, parts), "part") if self.of.batch > 1 else unit
            if how.ahead:
                slot = self._packed_b(batch)
                assert slot is not None
                self._pack_b(slot, batch, terms, 0, *mk.chunk_range(k, panels, parts, part))
            if how.pack_a:
                self._pack_a(batch, terms, *mk.chunk_range(k, tiles, parts, part))

        units = self.of.batch * parts
        mk.parallel_chunks(k, units, 1 if how.serial else mk.num_chunks(units, self.of.cpu), unit)

    def _pack_a(self, batch: Expr, terms: _Pass, first: Value, count: Value) -> None:
        """Copy some tiles of rows of A: as [k][row] where a column is contiguous, else as [row][k]."""
        k, slot = self.k, self._packed_a(batch)
        assert slot is not None
        if self.of.a.kind.contiguous == "j":
            mk.for_blocks(k, self.of.m, self.how.rows, first, count, partial(self._pack_rows, slot, batch, terms))
            return
        with k.loop(terms.count, name="k") as at:  # of all tiles: it lies on one page
            mk.for_blocks(k, self.of.m, self.how.rows, first, count, partial(self._pack_column, slot, batch, terms, at))

    def _tile_of_a(self, slot: Buf, i: Expr) -> Buf:
        """Packed A of the tile that begins with row i."""
        at = tir.floordiv(i, self.how.rows) * self.how.packed_tile(self.of.kk)
        return slot.at(self.k.bind(at, "tile"))

    @property
    def _line_of_a(self) -> int:
        """Elements between rows of A that are packed as they lie."""
        return self.how.span(self.of.kk) + APART

    def _pack_rows(self, slot: Buf, batch: Expr, terms: _Pass, i: Expr, rows: int) -> None:
        k, to = self.k, self._tile_of_a(slot, i)

        def vector(r: Expr, at: Value, lanes: int) -> None:
            k.store(to, self._value(self.of.a, batch, i + r, terms.first + at, lanes), r * self._line_of_a + at)

        with k.loop(rows, name="r") as r:
            self._along(terms, partial(vector, r))

    def _along(self, terms: _Pass, body: Callable[[Value, int], None]) -> None:
        """body(at, lanes) for vectors of terms of a pass; only the last of all may be shorter."""
        k, lanes = self.k, self.lanes
        if isinstance(terms.count, int):
            mk.for_vectors(k, terms.count, lanes, body)
            return
        with k.loop(tir.floordiv(terms.count, lanes), name="v") as v:
            body(k.bind(v * lanes, "at"), lanes)
        if rest := self.of.kk % lanes:
            with k.when(terms.ends):
                body(k.bind(terms.count - rest, "at"), rest)

    def _pack_column(self, slot: Buf, batch: Expr, terms: _Pass, step: Expr, i: Expr, rows: int) -> None:
        k, tall, to = self.k, self.how.tall, self._tile_of_a(slot, i)
        at, column = k.bind(step * tall, "at"), k.bind(terms.first + step, "column")
        whole = i + tall <= self.of.m  # then a little of the next tile's rows comes along
        with k.when(whole):
            for r, lanes in _powers(tall, self.lanes):
                k.store(to, self._value(self.of.a, batch, i + r, column, lanes), at + r)
        with k.when(tir.logical("not", whole)), k.loop(rows, name="r") as r:
            k.store(to, self._value(self.of.a, batch, i + r, column, 1), at + r)

    def _space(self) -> Buf:
        assert self.space is not None
        return self.space

    def _plain_a(self, batch: Expr, i: Expr, r: int, terms: _Pass, step: Expr) -> Expr:
        return self._value(self.of.a, batch, i + r, terms.first + step, 1)

    def _left(self, slot: Buf | None, batch: Expr, i: Expr) -> Left:
        """What reads the rows of the tile that begins with row i."""
        if slot is None:
            return partial(self._plain_a, batch, i)
        return partial(self._read_packed, self._tile_of_a(slot, i))

    def _read_packed(self, tile: Buf, r: int, terms: _Pass, step: Expr) -> Expr:
        along_k = self.of.a.kind.contiguous == "j"
        return self.k.load(tile, step + r * self._line_of_a if along_k else step * self.how.tall + r)

    def _right(self, slot: Buf | None, begin: Value, j: Expr) -> Buf | None:
        """The packed panel that begins with column j, if B is packed, in a slot that begins with panel `begin`."""
        if slot is None:
            return None
        at = (j - begin * (self.how.vectors * self.lanes)) * self.how.span(self.of.kk)
        return slot.at(self.k.bind(at, "panel"))

    def _pack_b(self, slot: Buf, batch: Expr, terms: _Pass, begin: Value, first: Value, count: Value) -> None:
        """Copy some of B to panels, in a slot that begins with panel `begin`: row after row, the vectors of a row side
        by side, the last filled with zeros."""
        k, width = self.k, self.how.vectors * self.lanes

        def pack_transposed(j: Expr, size: int) -> None:
            panel = self._right(slot, begin, j)
            assert panel is not None
            for v, lanes in enumerate(mk.widths(size, self.lanes)):
                at = k.bind(j + v * self.lanes, "j")
                self._along(terms, partial(self._pack_square, panel.at(v * self.lanes), batch, terms, at, lanes))

        def line(step: Expr, j: Expr, size: int) -> None:
            panel = self._right(slot, begin, j)
            assert panel is not None
            row, to = k.bind(terms.first + step, "row"), k.bind(step * width, "to")
            for v, lanes in enumerate(mk.widths(size, self.lanes)):
                at = v * self.lanes
                k.store(panel, mk.padded(self._value(self.of.b, batch, row, j + at, lanes), self.lanes), to + at)

        def some(first: Value, count: Value) -> None:
            with k.loop(terms.count, name="k") as step:
                mk.for_blocks(k, self.of.n, width, first, count, partial(line, step))

        if self.of.b.kind.contiguous == "i":
            mk.for_blocks(k, self.of.n, width, first, count, pack_transposed)
        else:
            self._blocks(first, count, mk.ceildiv(self.of.n, width), STREAMS, some)

    def _pack_square(
        self, panel: Buf, batch: Expr, terms: _Pass, j: Expr, columns: int, step: Value, rows: int
    ) -> None:
        """Pack one vector's width of columns that are contiguous along k: squares, transposed in registers; at the end
        of k, where no whole square is left, element by element."""
        k, side, width = self.k, self.lanes, self.how.vectors * self.lanes
        row, to = k.bind(terms.first + step, "row"), k.bind(step * width, "to")
        if rows < side:
            with k.loop(rows, name="r") as r:
                k.store(panel, mk.zeros(self.how.dtype, side), to + r * width)
                with k.loop(columns, name="c") as c:
                    k.store(panel, self._value(self.of.b, batch, row + r, j + c, 1), to + r * width + c)
            return
        square = [k.bind(self._value(self.of.b, batch, row, j + c, side), "t") for c in range(columns)]
        square += [mk.zeros(self.how.dtype, side)] * (side - columns)
        for r, value in enumerate(mk.transposed(k, square)):
            k.store(panel, value, to + r * width)

    def _tile(
        self, terms: _Pass, left: Left, panel: Buf | None, batch: Expr, i: Expr, rows: int, j: Expr, size: int
    ) -> None:
        """Add the terms of a pass to a tile's sums, and hand them on after the last. A panel's vectors are whole: of
        shorter ones LLVM makes loops that keep their sums in memory."""
        k, width = self.k, self.how.vectors * self.lanes
        cuts = mk.widths(size, self.lanes)
        summed = cuts if panel is None else (self.lanes,) * len(cuts)
        kk, passes = self.of.kk, self.how.passes(self.of.kk)
        acc = mk.Tile(k, rows, summed, self.how.dtype, kk if passes == 1 else 0)
        waiting = self._waiting(batch, i, j)
        places = [(r, v, r * width + v * self.lanes) for r in range(rows) for v in range(len(cuts))]

        def go_on(waiting: Buf) -> None:
            """From the sums of the passes before."""
            with k.when(tir.logical("not", terms.begins)):
                for r, v, at in places:
                    acc.put(r, v, k.load(waiting, at, summed[v]) + acc.get(r, v))

        if waiting is not None and kk <= mk.CHAIN:
            go_on(waiting)

        def add(step: Expr) -> None:
            right = []
            for v, lanes in enumerate(summed):
                at = v * self.lanes
                if panel is None:
                    value = self._value(self.of.b, batch, terms.first + step, j + at, lanes)
                else:
                    value = k.load(panel, step * width + at, lanes)
                right.append(k.bind(value, "b"))
            for r in range(rows):
                scalar = k.bind(left(r, terms, step), "a")
                for v in range(len(cuts)):
                    acc.add(r, v, scalar, right[v])

        chain = self.how.chain(kk, self.of.cpu)
        turn = next(size for size in TURNS if kk % size == chain % size == 0)
        turns = kk // turn if passes == 1 else tir.floordiv(terms.count, turn)
        with mk.chained(k, acc.settle, [turns], turn, [kk // turn], chain // turn) as (number,):
            for term in range(turn):
                add(k.bind(number * turn + term, "k"))
        if waiting is not None and kk > mk.CHAIN:
            go_on(waiting)

        def finish() -> None:
            self._store_epilogue(rows, cuts, acc.get, batch, i, j)

        if waiting is None:
            finish()
            return
        with k.when(tir.logical("not", terms.ends)):
            for r, v, at in places:
                k.store(waiting, acc.get(r, v), at)
        with k.when(terms.ends):
            finish()

    def _waiting(self, batch: Expr, i: Expr, j: Expr) -> Buf | None:
        """Where a tile's sums wait for the next pass, if there are several: tile after tile, behind what is packed."""
        how, width = self.how, self.how.vectors * self.lanes
        if how.passes(self.of.kk) == 1:
            return None
        tall, wide = mk.ceildiv(self.of.m, how.rows) * how.rows, mk.ceildiv(self.of.n, width) * width
        packed = how.packed(self.of.batch, self.of.m, self.of.n, self.of.kk, self.of.cpu)
        return self._space().at(self.k.bind((batch * tall + i) * wide + j * how.rows + packed, "sums"))

    def _store_epilogue(
        self, rows: int, cuts: Sequence[int], get: Callable[[int, int], Expr], batch: Expr, i: Expr, j: Expr
    ) -> None:
        """Write the vectors of the tile at (i, j), of which the first `cuts` lanes count, as a loop over its rows: what
        is written behind a product may be a whole optimizer, and unrolled with the tile it would take the compiler
        long."""
        k = self.k
        vectors = [[get(r, v) for v in range(len(cuts))] for r in range(rows)]
        *places, width = itertools.accumulate(map(tir.lanes_of, vectors[0]), initial=0)
        done = k.local("done", rows * width, self.how.dtype)
        for r, row in enumerate(vectors):
            for place, vector in zip(places, row, strict=True):
                k.store(done, vector, r * width + place)
        with k.loop(rows, name="r") as r, self.of.around(batch, i + r, j):
            for v, place in enumerate(places):
                self.of.write(batch, i + r, j + sum(cuts[:v]), k.load(done, r * width + place, cuts[v]))

    def _inner(self, batch: Expr, row0: Value, rows: Value, panel0: Value, panels: Value) -> None:
        k, columns = self.k, self.how.vectors

        def panel(j: Expr, size: int) -> None:
            mk.for_blocks(
                k, self.of.m, self.how.rows, row0, rows, lambda i, count: self._dots(batch, i, count, j, size)
            )

        mk.for_blocks(k, self.of.n, columns, panel0, panels, panel)

    def _dots(self, batch: Expr, i: Expr, rows: int, j: Expr, columns: int) -> None:
        """A tile of dot products along k."""
        k, lanes = self.k, self.lanes
        acc = mk.Tile(k, rows, (lanes,) * columns, self.how.dtype, self.of.kk // lanes)

        def step(at: Value, width: int) -> None:
            right = [self._along_k(self.of.b, batch, at, j + c, width) for c in range(columns)]
            for r in range(rows):
                left = self._along_k(self.of.a, batch, i + r, at, width)
                for c in range(columns):
                    acc.add(r, c, left, right[c])

        if full := self.of.kk // lanes:
            with mk.chained(k, acc.settle, [full]) as (s,):
                step(k.bind(s * lanes, "k"), lanes)
        if rest := self.of.kk % lanes:
            step(tir.index(self.of.kk - rest), rest)
            if acc.settle is not None:
                acc.settle()
        groups = list(_powers(columns))

        def summed(r: int, v: int) -> Expr:
            c, group = groups[v]
            return mk.lane_sums(k, [acc.get(r, c + g) for g in range(group)])

        cuts = [group for _, group in groups]
        self._store_epilogue(rows, cuts, summed, batch, i, j)

    def _along_k(self, operand: Operand, batch: Value, i: Value, j: Value, width: int) -> Expr:
        return self.k.bind(mk.padded(self._value(operand, batch, i, j, width), self.lanes))


def _powers(count: int, most: int = 1 << 30) -> Iterator[tuple[int, int]]:
    """The count as (first, power of two up to `most`): 7 -> (0, 4), (4, 2), (6, 1)."""
    first = 0
    while first < count:
        size = min(most, 1 << (count - first).bit_length() - 1)
        yield first, size
        first += size
