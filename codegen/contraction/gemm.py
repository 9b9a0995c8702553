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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.gemm_strategy import ROW_MAJOR, ROW_PADDING, OperandKind, Strategy, choose
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.errors import CompileError

Write = Callable[[Expr, Expr, Expr, Expr], None]
RunContext = Callable[[Expr, Expr, Expr], AbstractContextManager[None]]
Left = Callable[[int, "_Pass", Expr], Expr]  # (row of the tile, pass, index of the term in it) -> element of A
STREAMS = 4  # panels that are packed at the same time
# Unroll factors of the innermost loop; the first that divides the terms of a pass is taken. Where the core's other
# hardware thread is busy, only half as many instructions are issued, and loop overhead delays the multiply-adds.
UNROLL = (4, 2, 1)


@dataclass(frozen=True)
class Operand:
    """A matrix per batch element: `read(batch, i, j, lanes)` gives elements from (i, j) along its contiguous index.
    `memory` is the buffer that stores it densely in row-major or column-major order, if there is one."""

    read: Callable[[Value, Value, Value, int], Expr]
    kind: OperandKind = ROW_MAJOR
    memory: Buf | None = None


def no_context(batch: Expr, i: Expr, j: Expr) -> AbstractContextManager[None]:
    """Return a context that does nothing, for epilogues that need none."""
    return nullcontext()


def workspace(batch: int, m: int, n: int, kk: int, a: OperandKind, b: OperandKind, cpu: Cpu) -> int:
    """Return the bytes of workspace that `emit` needs for a GEMM of this shape."""
    return choose(batch, m, n, kk, a, b, cpu).workspace(batch, m, n, kk, cpu)


@dataclass(frozen=True)
class Gemm:
    """A GEMM: shape, operands and epilogue. `write(batch, i, j, value)` stores the finished elements (i, j), (i, j+1),
    ... of C; each element is passed exactly once. The elements that a tile has of a row are a run: they are passed from
    left to right within the context `run_context(batch, i, j)`."""

    batch: int
    m: int
    n: int
    kk: int
    a: Operand
    b: Operand
    write: Write
    cpu: Cpu
    workspace: Buf | None = None
    run_context: RunContext = no_context


def emit(k: Kernel, gemm: Gemm, strategy: Strategy | None = None) -> None:
    """Emit the loops of the GEMM, by default with the strategy that `choose` returns."""
    if min(gemm.batch, gemm.m, gemm.n) < 1 or gemm.kk < 1:
        raise CompileError(
            f"{k.name}: a product of {gemm.batch} x [{gemm.m}, {gemm.kk}] and [{gemm.kk}, {gemm.n}] is empty"
        )
    strategy = strategy or choose(gemm.batch, gemm.m, gemm.n, gemm.kk, gemm.a.kind, gemm.b.kind, gemm.cpu)
    need = strategy.workspace(gemm.batch, gemm.m, gemm.n, gemm.kk, gemm.cpu)
    space = mk.workspace(k, gemm.workspace, strategy.dtype, need) if need else None
    _Job(k, gemm, strategy, space).passes()


@dataclass(frozen=True)
class _Pass:
    """A pass over k: the `count` terms of every sum from term `first` on."""

    first: Value
    count: Value
    is_first: Expr | bool = True
    is_last: Expr | bool = True


@dataclass(frozen=True)
class _Job:
    """The GEMM that is emitted."""

    k: Kernel
    gemm: Gemm
    strategy: Strategy
    space: Buf | None

    @property
    def lanes(self) -> int:
        return mk.lanes(self.gemm.cpu, self.strategy.dtype)

    def passes(self) -> None:
        """Emit all passes over k."""
        k, span, passes = self.k, self.strategy.span(self.gemm.kk), self.strategy.passes(self.gemm.kk)
        if passes == 1:
            self._pass(_Pass(0, self.gemm.kk))
            return
        with k.loop(passes, name="pass") as number:
            first = k.bind(number * span, "first")
            count = k.bind(tir.minimum(self.gemm.kk - first, span), "count")
            self._pass(_Pass(first, count, number < 1, number >= passes - 1))

    def _pass(self, terms: _Pass) -> None:
        """Emit one pass: packing, then the chunks of C in parallel."""
        strategy = self.strategy
        if strategy.pack_a or strategy.ahead:
            self._pack(terms)
        units = self.gemm.batch * strategy.grid[0] * strategy.grid[1]
        mk.parallel_chunks(
            self.k, units, strategy.num_chunks(self.gemm.batch, self.gemm.cpu), partial(self._unit, terms)
        )

    def _unit(self, terms: _Pass, chunk: Expr, unit: Expr) -> None:
        """Emit one chunk of the grid of one batch element."""
        k, (down, across) = self.k, self.strategy.grid
        batch = k.bind(tir.floordiv(unit, down * across), "batch") if self.gemm.batch > 1 else tir.index(0)
        y = k.bind(tir.floormod(tir.floordiv(unit, across), down), "y") if down > 1 else tir.index(0)
        x = k.bind(tir.floormod(unit, across), "x") if across > 1 else tir.index(0)
        width = self.strategy.width(self.gemm.cpu)
        row0, rows = mk.chunk_range(k, mk.ceildiv(self.gemm.m, self.strategy.rows), down, y)
        panel0, panels = mk.chunk_range(k, mk.ceildiv(self.gemm.n, width), across, x)
        if self.strategy.form == "inner":
            self._inner(batch, row0, rows, panel0, panels)
        else:
            self._outer(terms, chunk, batch, row0, rows, panel0, panels)

    def _value(self, operand: Operand, batch: Value, i: Value, j: Value, lanes: int) -> Expr:
        return tir.cast(operand.read(batch, i, j, lanes), self.strategy.dtype)

    def _outer(
        self, terms: _Pass, chunk: Expr, batch: Expr, row0: Value, rows: Value, panel0: Value, panels: Value
    ) -> None:
        """Emit a chunk of the outer form, one block of columns after another."""
        k, strategy, width = self.k, self.strategy, self.strategy.vectors * self.lanes
        packed_a, packed_b = self._packed_a(batch), self._packed_b(batch if strategy.ahead else chunk)

        def block(first: Value, count: Value) -> None:
            begin = 0 if strategy.ahead else first
            if packed_b is not None and not strategy.ahead:
                self._pack_b(packed_b, batch, terms, begin, first, count)

            def tiles(i: Expr, height: int) -> None:
                left = self._left(packed_a, batch, i)

                def tile(j: Expr, size: int) -> None:
                    self._tile(terms, left, self._right(packed_b, begin, j), batch, i, height, j, size)

                mk.for_blocks(k, self.gemm.n, width, first, count, tile)

            mk.for_blocks(k, self.gemm.m, strategy.rows, row0, rows, tiles)

        self._blocks(
            panel0, panels, mk.ceildiv(mk.ceildiv(self.gemm.n, width), strategy.grid[1]), strategy.block, block
        )

    def _blocks(self, first: Value, count: Value, most: int, size: int, body: Callable[[Value, Value], None]) -> None:
        """Call body(first, count) for consecutive blocks of at most `size` steps; `count` is at most `most`."""
        k = self.k
        if most <= size:
            body(first, count)
            return
        with k.loop(tir.floordiv(count + (size - 1), size), name="block") as number:
            start = k.bind(tir.index(first + number * size), "first")
            body(start, k.bind(tir.minimum(size, first + count - start), "count"))

    def _packed_a(self, batch: Expr) -> Buf | None:
        """Return packed A of a batch element; None if A is not packed."""
        if not self.strategy.pack_a:
            return None
        return self._space().at(self.k.bind(batch * self.strategy.slot_a(self.gemm.m, self.gemm.kk), "packed"))

    def _packed_b(self, chunk: Expr) -> Buf | None:
        """Return packed B, stored after packed A: of a chunk, or of a batch element if B is packed ahead; else None."""
        if not self.strategy.pack_b:
            return None
        gemm = self.gemm
        at = chunk * self.strategy.slot_b(gemm.n, gemm.kk, gemm.cpu) + self.strategy.size_a(gemm.batch, gemm.m, gemm.kk)
        return self._space().at(self.k.bind(at, "packed"))

    def _pack(self, terms: _Pass) -> None:
        """Pack A, and B if it is packed ahead, in parallel."""
        k, strategy = self.k, self.strategy
        tiles, panels = mk.ceildiv(self.gemm.m, strategy.rows), mk.ceildiv(self.gemm.n, strategy.width(self.gemm.cpu))
        parts = min(self.gemm.cpu.chunks, max(tiles if strategy.pack_a else 1, panels if strategy.ahead else 1))

        def unit(_: Expr, unit: Expr) -> None:
            batch = k.bind(tir.floordiv(unit, parts), "batch") if self.gemm.batch > 1 else tir.index(0)
            part = k.bind(tir.floormod(unit, parts), "part") if self.gemm.batch > 1 else unit
            if strategy.ahead:
                slot = self._packed_b(batch)
                assert slot is not None
                self._pack_b(slot, batch, terms, 0, *mk.chunk_range(k, panels, parts, part))
            if strategy.pack_a:
                self._pack_a(batch, terms, *mk.chunk_range(k, tiles, parts, part))

        units = self.gemm.batch * parts
        mk.parallel_chunks(k, units, 1 if strategy.serial else mk.num_chunks(units, self.gemm.cpu), unit)

    def _pack_a(self, batch: Expr, terms: _Pass, first: Value, count: Value) -> None:
        """Pack some tiles of rows of A: as [k][row] where a column is contiguous, else as [row][k]."""
        k, slot = self.k, self._packed_a(batch)
        assert slot is not None
        if self.gemm.a.kind.contiguous == "j":
            mk.for_blocks(
                k, self.gemm.m, self.strategy.rows, first, count, partial(self._pack_rows, slot, batch, terms)
            )
            return
        with k.loop(terms.count, name="k") as at:  # outermost: a column of A is contiguous
            mk.for_blocks(
                k, self.gemm.m, self.strategy.rows, first, count, partial(self._pack_column, slot, batch, terms, at)
            )

    def _tile_of_a(self, slot: Buf, i: Expr) -> Buf:
        """Return packed A of the tile that begins with row i."""
        at = tir.floordiv(i, self.strategy.rows) * self.strategy.packed_tile(self.gemm.kk)
        return slot.at(self.k.bind(at, "tile"))

    @property
    def _line_of_a(self) -> int:
        """Elements between the rows of A where it is packed as [row][k]."""
        return self.strategy.span(self.gemm.kk) + ROW_PADDING

    def _pack_rows(self, slot: Buf, batch: Expr, terms: _Pass, i: Expr, rows: int) -> None:
        k, to = self.k, self._tile_of_a(slot, i)

        def vector(r: Expr, at: Value, lanes: int) -> None:
            k.store(to, self._value(self.gemm.a, batch, i + r, terms.first + at, lanes), r * self._line_of_a + at)

        with k.loop(rows, name="r") as r:
            self._along(terms, partial(vector, r))

    def _along(self, terms: _Pass, body: Callable[[Value, int], None]) -> None:
        """Call body(at, lanes) for vectors of the terms of a pass; only the last vector of the last pass is shorter."""
        k, lanes = self.k, self.lanes
        if isinstance(terms.count, int):
            mk.for_vectors(k, terms.count, lanes, body)
            return
        with k.loop(tir.floordiv(terms.count, lanes), name="v") as v:
            body(k.bind(v * lanes, "at"), lanes)
        if rest := self.gemm.kk % lanes:
            with k.when(terms.is_last):
                body(k.bind(terms.count - rest, "at"), rest)

    def _pack_column(self, slot: Buf, batch: Expr, terms: _Pass, step: Expr, i: Expr, rows: int) -> None:
        k, packed_stride, to = self.k, self.strategy.packed_stride, self._tile_of_a(slot, i)
        at, column = k.bind(step * packed_stride, "at"), k.bind(terms.first + step, "column")
        whole = i + packed_stride <= self.gemm.m  # full vectors, with rows of the next tile
        with k.when(whole):
            for r, lanes in tir.powers_of_two(packed_stride, self.lanes):
                k.store(to, self._value(self.gemm.a, batch, i + r, column, lanes), at + r)
        with k.when(tir.logical("not", whole)), k.loop(rows, name="r") as r:
            k.store(to, self._value(self.gemm.a, batch, i + r, column, 1), at + r)

    def _space(self) -> Buf:
        assert self.space is not None
        return self.space

    def _plain_a(self, batch: Expr, i: Expr, r: int, terms: _Pass, step: Expr) -> Expr:
        return self._value(self.gemm.a, batch, i + r, terms.first + step, 1)

    def _left(self, slot: Buf | None, batch: Expr, i: Expr) -> Left:
        """Return a function that reads elements of A for the tile that begins with row i."""
        if slot is None:
            return partial(self._plain_a, batch, i)
        return partial(self._read_packed, self._tile_of_a(slot, i))

    def _read_packed(self, tile: Buf, r: int, terms: _Pass, step: Expr) -> Expr:
        along_k = self.gemm.a.kind.contiguous == "j"
        return self.k.load(tile, step + r * self._line_of_a if along_k else step * self.strategy.packed_stride + r)

    def _right(self, slot: Buf | None, begin: Value, j: Expr) -> Buf | None:
        """Return the packed panel that begins with column j, in a slot that begins with panel `begin`; None if B is
        not packed."""
        if slot is None:
            return None
        at = (j - begin * (self.strategy.vectors * self.lanes)) * self.strategy.span(self.gemm.kk)
        return slot.at(self.k.bind(at, "panel"))

    def _pack_b(self, slot: Buf, batch: Expr, terms: _Pass, begin: Value, first: Value, count: Value) -> None:
        """Pack some panels of B, in a slot that begins with panel `begin`: row-major, the last vector of a row
        zero-padded."""
        k, width = self.k, self.strategy.vectors * self.lanes

        def pack_transposed(j: Expr, size: int) -> None:
            panel = self._right(slot, begin, j)
            assert panel is not None

            def columns(start: Value, lanes: int) -> None:
                at = k.bind(j + start, "j")
                self._along(terms, partial(self._pack_square, panel.at(start), batch, terms, at, lanes))

            mk.for_vectors(k, size, self.lanes, columns)

        def line(step: Expr, j: Expr, size: int) -> None:
            panel = self._right(slot, begin, j)
            assert panel is not None
            row, to = k.bind(terms.first + step, "row"), k.bind(step * width, "to")
            for v, lanes in enumerate(mk.widths(size, self.lanes)):
                at = v * self.lanes
                k.store(panel, mk.padded(self._value(self.gemm.b, batch, row, j + at, lanes), self.lanes), to + at)

        def some(first: Value, count: Value) -> None:
            with k.loop(terms.count, name="k") as step:
                mk.for_blocks(k, self.gemm.n, width, first, count, partial(line, step))

        if self.gemm.b.kind.contiguous == "i":
            mk.for_blocks(k, self.gemm.n, width, first, count, pack_transposed)
        else:
            self._blocks(first, count, mk.ceildiv(self.gemm.n, width), STREAMS, some)

    def _pack_square(
        self, panel: Buf, batch: Expr, terms: _Pass, j: Expr, columns: int, step: Value, rows: int
    ) -> None:
        """Pack a vector's width of columns that are contiguous along k: squares are transposed in registers; at the end
        of k, where no full square is left, element by element."""
        k, side, width = self.k, self.lanes, self.strategy.vectors * self.lanes
        row, to = k.bind(terms.first + step, "row"), k.bind(step * width, "to")
        if rows < side:
            with k.loop(rows, name="r") as r:
                k.store(panel, mk.zeros(self.strategy.dtype, side), to + r * width)
                with k.loop(columns, name="c") as c:
                    k.store(panel, self._value(self.gemm.b, batch, row + r, j + c, 1), to + r * width + c)
            return
        square = [k.bind(self._value(self.gemm.b, batch, row, j + c, side), "t") for c in range(columns)]
        square += [mk.zeros(self.strategy.dtype, side)] * (side - columns)
        for r, value in enumerate(mk.transposed(k, square)):
            k.store(panel, value, to + r * width)

    def _tile(
        self, terms: _Pass, left: Left, panel: Buf | None, batch: Expr, i: Expr, rows: int, j: Expr, size: int
    ) -> None:
        """Add the terms of a pass to a tile's sums, and store them through the epilogue after the last pass. Vectors of
        a panel have all lanes: for shorter ones LLVM generates loops that keep the sums in memory."""
        k, width = self.k, self.strategy.vectors * self.lanes
        cuts = mk.widths(size, self.lanes)
        summed = cuts if panel is None else (self.lanes,) * len(cuts)
        kk, passes = self.gemm.kk, self.strategy.passes(self.gemm.kk)
        acc = mk.Tile(k, rows, summed, self.strategy.dtype, kk if passes == 1 else 0)
        spilled = self._spilled(batch, i, j)
        places = [(r, v, r * width + v * self.lanes) for r in range(rows) for v in range(len(cuts))]

        def add_spilled(spilled: Buf) -> None:
            """Add the sums of the previous passes."""
            with k.when(tir.logical("not", terms.is_first)):
                for r, v, at in places:
                    acc.put(r, v, k.load(spilled, at, summed[v]) + acc.get(r, v))

        if spilled is not None and kk <= mk.CHAIN:
            add_spilled(spilled)

        def add(step: Expr) -> None:
            right = []
            for v, lanes in enumerate(summed):
                at = v * self.lanes
                if panel is None:
                    value = self._value(self.gemm.b, batch, terms.first + step, j + at, lanes)
                else:
                    value = k.load(panel, step * width + at, lanes)
                right.append(k.bind(value, "b"))
            for r in range(rows):
                scalar = k.bind(left(r, terms, step), "a")
                for v in range(len(cuts)):
                    acc.add(r, v, scalar, right[v])

        chain = self.strategy.chain(kk, self.gemm.cpu)
        unroll = next(size for size in UNROLL if kk % size == chain % size == 0)
        iterations = kk // unroll if passes == 1 else tir.floordiv(terms.count, unroll)
        with mk.chained(k, acc.settle, [iterations], unroll, [kk // unroll], chain // unroll) as (number,):
            for term in range(unroll):
                add(k.bind(number * unroll + term, "k"))
        if spilled is not None and kk > mk.CHAIN:
            add_spilled(spilled)

        def finish() -> None:
            self._store_epilogue(rows, cuts, acc.get, batch, i, j)

        if spilled is None:
            finish()
            return
        with k.when(tir.logical("not", terms.is_last)):
            for r, v, at in places:
                k.store(spilled, acc.get(r, v), at)
        with k.when(terms.is_last):
            finish()

    def _spilled(self, batch: Expr, i: Expr, j: Expr) -> Buf | None:
        """Return where the partial sums of a tile are spilled between passes, after the packed operands; None if there
        is one pass."""
        strategy, width = self.strategy, self.strategy.vectors * self.lanes
        if strategy.passes(self.gemm.kk) == 1:
            return None
        padded_rows, padded_columns = (
            mk.ceildiv(self.gemm.m, strategy.rows) * strategy.rows,
            mk.ceildiv(self.gemm.n, width) * width,
        )
        packed = strategy.packed(self.gemm.batch, self.gemm.m, self.gemm.n, self.gemm.kk, self.gemm.cpu)
        return self._space().at(
            self.k.bind((batch * padded_rows + i) * padded_columns + j * strategy.rows + packed, "sums")
        )

    def _store_epilogue(
        self, rows: int, cuts: Sequence[int], get: Callable[[int, int], Expr], batch: Expr, i: Expr, j: Expr
    ) -> None:
        """Store the tile at (i, j) through the epilogue; of vector v the first `cuts[v]` lanes are valid. The rows are
        a loop, not unrolled: the epilogue may be an optimizer's update, and a copy per row would compile slowly."""
        k = self.k
        vectors = [[get(r, v) for v in range(len(cuts))] for r in range(rows)]
        *places, width = itertools.accumulate(map(tir.lanes_of, vectors[0]), initial=0)
        done = k.local("done", rows * width, self.strategy.dtype)
        for r, row in enumerate(vectors):
            for place, vector in zip(places, row, strict=True):
                k.store(done, vector, r * width + place)
        with k.loop(rows, name="r") as r, self.gemm.run_context(batch, i + r, j):
            for v, place in enumerate(places):
                self.gemm.write(batch, i + r, j + sum(cuts[:v]), k.load(done, r * width + place, cuts[v]))

    def _inner(self, batch: Expr, row0: Value, rows: Value, panel0: Value, panels: Value) -> None:
        k, columns = self.k, self.strategy.vectors

        def panel(j: Expr, size: int) -> None:
            mk.for_blocks(
                k, self.gemm.m, self.strategy.rows, row0, rows, lambda i, count: self._dots(batch, i, count, j, size)
            )

        mk.for_blocks(k, self.gemm.n, columns, panel0, panels, panel)

    def _dots(self, batch: Expr, i: Expr, rows: int, j: Expr, columns: int) -> None:
        """Emit a tile of dot products along k."""
        k, lanes = self.k, self.lanes
        acc = mk.Tile(k, rows, (lanes,) * columns, self.strategy.dtype, self.gemm.kk // lanes)

        def step(at: Value, width: int) -> None:
            right = [self._along_k(self.gemm.b, batch, at, j + c, width) for c in range(columns)]
            for r in range(rows):
                left = self._along_k(self.gemm.a, batch, i + r, at, width)
                for c in range(columns):
                    acc.add(r, c, left, right[c])

        if full := self.gemm.kk // lanes:
            with mk.chained(k, acc.settle, [full]) as (s,):
                step(k.bind(s * lanes, "k"), lanes)
        if rest := self.gemm.kk % lanes:
            step(tir.index(self.gemm.kk - rest), rest)
            if acc.settle is not None:
                acc.settle()
        groups = list(tir.powers_of_two(columns))

        def summed(r: int, v: int) -> Expr:
            c, group = groups[v]
            return mk.lane_sums(k, [acc.get(r, c + g) for g in range(group)])

        cuts = [group for _, group in groups]
        self._store_epilogue(rows, cuts, summed, batch, i, j)

    def _along_k(self, operand: Operand, batch: Value, i: Value, j: Value, width: int) -> Expr:
        return self.k.bind(mk.padded(self._value(operand, batch, i, j, width), self.lanes))
