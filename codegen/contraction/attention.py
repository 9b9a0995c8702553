"""Attention and its gradients as one kernel each: a block of queries at a time, whose scores stay in cache.

A chunk of work is one head. Keys are transposed once, so that a row of scores is a row of vectors; then for each block
of queries: the scores of all keys that it attends to, their softmax row by row, and the GEMM with the values. Masked
keys of causal attention are skipped, except for the rest of a tile. The matrix of scores is never in memory: the
workspace of a chunk holds as many rows as a block has queries. (Dao et al.: FlashAttention, 2022; whole rows are
available, so the sum of a row is not rescaled while it grows.) Heads are read and written in place, by strides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from gluongraph.codegen.contraction import attention_tiles, gemm_strategy
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.attention_common import (
    MASKED_SCORE,
    NAMES,
    QUERIES,
    AttentionMask,
    AttentionViews,
    Heads,
    Rows,
    Shape,
    larger,
    largest,
)
from gluongraph.codegen.cpu.reduce import reduce_lanes
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.vector_math import exp_below
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group

BLOCK = QUERIES  # keys that a block of queries is multiplied with at a time
LONGEST = 1 << 14  # keys whose scores, for a block of queries, still fit a cache

Left = Callable[[Value, Value], Expr]  # (row, k) -> a scalar
Right = Callable[[Value, Value, int], Expr]  # (k, column, lanes) -> a vector
Write = Callable[[Value, Value, Expr], None]  # (row, column, vector)
Terms = Callable[[Expr, int], tuple[Value, Value]]  # (first row, rows of a tile) -> its first k, how many
IsNeeded = Callable[[Expr, int, Expr], Expr]  # (first row, rows, first column of a tile) -> is it needed?


def is_profitable(n: Node, cpu: Cpu) -> bool:
    """Should these kernels compute this attention or gradient, by its dtype and extents?"""
    if n.op.name not in NAMES or not (n.src[0].dtype == "f32" or attention_tiles.is_profitable(n, cpu)):
        return False
    shape = Shape.of(n)
    return min(shape.heads, shape.queries, shape.keys, shape.size, shape.width) >= 1 and shape.keys <= LONGEST


def _claim(group: Group, cpu: Cpu) -> Candidate | None:
    if (views := AttentionViews.of(group)) is None or not is_profitable(views.node, cpu):
        return None
    n = views.node
    if attention_tiles.is_profitable(n, cpu):
        return Candidate("attention", attention_tiles.workspace(n, cpu), tiles=True)
    return Candidate("attention", 4 * Shape.of(n).num_chunks(cpu) * _Slot.of(views, cpu).all)


@dataclass(frozen=True)
class _Slot:
    """The workspace of a chunk, in elements: transposed keys, rows of scores for a block of queries.

    For a gradient also transposed values, rows of score gradients, and the sums for keys and values where results are
    rounded.
    """

    shape: Shape
    row: int
    backward: bool
    rounded: bool

    @classmethod
    def of(cls, views: AttentionViews, cpu: Cpu) -> _Slot:
        n, shape = views.node, Shape.of(views.node)
        rounded = any(y.dtype != "f32" for y, _ in views.results.values())
        # A row is an odd number of vectors: at power-of-two distances the rows of a panel would share few cache sets.
        return cls(shape, (mk.ceildiv(shape.keys, cpu.lanes) | 1) * cpu.lanes, n.op.name == "attention_grad", rounded)

    @property
    def sizes(self) -> dict[str, int]:
        s, block = self.shape, self.shape.block * self.row
        found = {"keys": s.size * self.row, "scores": block}
        if self.backward:
            found |= {"values": s.width * self.row, "score_grads": block}
        if self.backward and self.rounded:
            found |= {"dk": s.keys * s.size, "dv": s.keys * s.width}
        return found

    @property
    def all(self) -> int:
        return sum(self.sizes.values())

    def parts(self, slot: Buf) -> dict[str, Buf]:
        """Return the buffers of a slot by name."""
        starts = accumulate(self.sizes.values(), initial=0)
        return {name: slot.at(at) for name, at in zip(self.sizes, starts, strict=False)}


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    views = AttentionViews.of(group)
    assert views is not None and bindings.workspace is not None
    n = views.node
    sources, results = views.memory(group, bindings)
    if attention_tiles.is_profitable(n, cpu):
        attention_tiles.emit(k, n, sources, results, bindings.workspace, cpu)
        return
    head = _Head(k, n, sources, _Slot.of(views, cpu), cpu, k.view(bindings.workspace, "f32"))
    body = head.forward if n.op.name == "attention" else head.backward
    mk.parallel_chunks(
        k, head.shape.heads, head.shape.num_chunks(cpu), lambda chunk, number: body(chunk, number, results)
    )


class _Head:
    """Emits the loops of one head."""

    def __init__(self, k: Kernel, n: Node, sources: list[Heads], slot: _Slot, cpu: Cpu, space: Buf):
        self.k, self.cpu, self.space, self.algebra = k, cpu, space, VectorAlgebra(k)
        self.shape, self.slot = slot.shape, slot
        self.scale, self.row = float(n.attrs["scale"]), slot.row
        backward = n.op.name == "attention_grad"
        self.g = sources[0]
        self.q, self.keys, self.v, *masks = sources[backward:]
        self.mask = AttentionMask(k, n, masks[0].buf if masks else None)

    # -- one head

    def forward(self, chunk: Expr, number: Expr, results: dict[int, Heads]) -> None:
        """y = softmax(scores) v"""
        k, shape, space = self.k, self.shape, self._slot(chunk)
        q, keys, v, y = (each.rows(k, number) for each in (self.q, self.keys, self.v, results[0]))
        scores = space["scores"]
        self._transpose(keys, shape.size, space["keys"])

        def block(first: Expr, rows: int) -> None:
            seen = self.mask.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, space["keys"], scores)
            factors, row_maxima = k.local("factors", rows, "f32"), self._row_maxima(scores, first, rows, seen)
            with k.loop(rows, name="r") as r:
                total = self._exponentials(scores, r, first, seen, k.let(k.load(row_maxima, r)))
                k.store(factors, tir.const(1.0, "f32") / total, r)
            out = y.at(k, first)

            def write(r: Value, j: Value, x: Expr) -> None:
                k.store(out.buf, x * tir.splat(k.load(factors, r), tir.lanes_of(x)), r * out.pitch + j)

            self._times_keys(first, rows, scores, v, shape.width, write)

        mk.for_blocks(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)

    def backward(self, chunk: Expr, number: Expr, results: dict[int, Heads]) -> None:
        """P = softmax(S);  dv = Pᵀ g;  dS = P (g vᵀ - Σ P g vᵀ) · scale;  dq = dS k;  dk = dSᵀ q"""
        k, shape, space = self.k, self.shape, self._slot(chunk)
        p, ds = space["scores"], space["score_grads"]
        g, q, keys, v = (each.rows(k, number) for each in (self.g, self.q, self.keys, self.v))
        outs = {i: each.rows(k, number) for i, each in results.items()}
        # Gradients of keys and values: left and right operand of their GEMM, and its columns.
        transposed, sums = {1: (ds, q, shape.size), 2: (p, g, shape.width)}, self._sums(outs, space)
        self._transpose(keys, shape.size, space["keys"])
        self._transpose(v, shape.width, space["values"])
        for i, to in sums.items():
            self._clear(to, transposed[i][2])
        self._pad_rows(ds, shape.block, 0.0)

        def block(first: Expr, rows: int) -> None:
            seen = self.mask.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, space["keys"], p)
            self._rows_times(first, rows, seen, g, shape.width, space["values"], self._into(ds, self.row))
            row_maxima = self._row_maxima(p, first, rows, seen)
            with k.loop(rows, name="r") as r:
                row_max = k.let(k.load(row_maxima, r))
                total = self._exponentials(p, r, first, seen, row_max)
                self._softmax_grad(p, ds, r, first, seen, total, row_max)
            if 0 in outs:
                dq = outs[0].at(k, first)
                self._times_keys(first, rows, ds, keys, shape.size, self._into(dq.buf, dq.pitch))
            for i, to in sums.items():
                left, right, size = transposed[i]
                self._add_transposed(first, rows, seen, left, right.at(k, first), size, to)

        mk.for_blocks(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)
        for i, source in sums.items():
            if source is not outs[i]:
                self._store_epilogue(source, transposed[i][2], outs[i])

    # -- its parts

    def _slot(self, chunk: Expr) -> dict[str, Buf]:
        return self.slot.parts(self.space.at(self.k.bind(chunk * self.slot.all, "slot")))

    def _sums(self, outs: dict[int, Rows], space: dict[str, Buf]) -> dict[int, Rows]:
        """Return where gradients of keys and values are summed: in the results, or in the workspace if results are
        16-bit."""
        apart = {1: ("dk", self.shape.size), 2: ("dv", self.shape.width)}
        found = {i: each for i, each in apart.items() if i in outs}
        return {i: Rows(space[name], size) if self.slot.rounded else outs[i] for i, (name, size) in found.items()}

    def _into(self, buf: Buf, pitch: Value) -> Write:
        """Return a function that stores vectors of a block in rows that are `pitch` elements apart."""
        return lambda r, j, x: self.k.store(buf, x, r * pitch + j)

    def _transpose(self, source: Rows, size: int, target: Buf) -> None:
        """Transpose an array [key][size] to [size][key]; rows are zero-padded to full vectors."""
        k, lanes, keys = self.k, self.cpu.lanes, self.shape.keys

        def square(at: Value, columns: int) -> None:
            for first, width, count in mk.split(size, lanes):
                with k.loop(count, name="d") as step:
                    d = k.bind(tir.index(step * lanes + first), "d")
                    rows = [
                        k.bind(mk.padded(k.load(source.buf, (at + c) * source.pitch + d, width), lanes), "t")
                        for c in range(columns)
                    ]
                    rows += [tir.splat(tir.const(0, "f32"), lanes)] * (lanes - columns)
                    for r, value in enumerate(mk.transposed(k, rows)[:width]):
                        k.store(target, value, (d + r) * self.row + at)

        mk.for_vectors(k, keys, lanes, square)

    def _scores(self, number: Expr, first: Expr, rows: int, seen: Value, q: Rows, transposed: Buf, scores: Buf) -> None:
        """scores[r, j] = q[first + r] · key[j] · scale, or MASKED_SCORE where the query does not see the key."""

        def write(r: Value, j: Value, x: Expr) -> None:
            value = x * tir.splat(tir.const(self.scale, "f32"), tir.lanes_of(x))
            self.k.store(scores, self.mask.select_visible(number, first + r, j, value, MASKED_SCORE), r * self.row + j)

        self._rows_times(first, rows, seen, q, self.shape.size, transposed, write)
        self._pad_rows(scores, rows, 2 * MASKED_SCORE)

    def _pad_rows(self, scores: Buf, rows: int, value: float) -> None:
        """Fill the lanes behind the last key: the last vector of a row is processed with all lanes."""
        if rest := -self.shape.keys % self.cpu.lanes:
            with self.k.loop(rows, name="r") as r:
                self.k.store(scores, tir.splat(tir.const(value, "f32"), rest), r * self.row + self.shape.keys)

    def _rows_times(
        self, first: Expr, rows: int, seen: Value, source: Rows, size: int, transposed: Buf, write: Write
    ) -> None:
        """write(r, j, x): GEMM of rows of `source` from `first` on with a transposed array, a block of keys at a time;
        tiles in which no query sees a key are skipped."""
        k = self.k
        source = source.at(k, first)

        def keys_from(start: Expr, count: int) -> None:
            self._gemm(
                rows,
                count,
                lambda i, tall: (0, size),
                lambda r, d: k.load(source.buf, r * source.pitch + d),
                lambda d, j, lanes: k.load(transposed, d * self.row + start + j, lanes),
                lambda r, j, x: write(r, start + j, x),
                needed=lambda i, tall, j: start + j < self.mask.keys(first + i + tall),
            )

        mk.for_blocks(k, self.shape.keys, BLOCK, 0, seen, keys_from)

    def _times_keys(self, first: Expr, rows: int, left: Buf, right: Rows, size: int, write: Write) -> None:
        """write(r, j, x): GEMM of the rows of a block with the rows of all keys that they see."""
        k = self.k
        self._gemm(
            rows,
            size,
            lambda i, tall: (0, self.mask.keys(first + i + tall)),
            lambda r, i: k.load(left, r * self.row + i),
            lambda i, j, lanes: k.load(right.buf, i * right.pitch + j, lanes),
            write,
            most=self.shape.keys,
        )

    def _add_transposed(
        self, first: Expr, rows: int, seen: Value, left: Buf, right: Rows, size: int, sums: Rows
    ) -> None:
        """sums[key] += Σ left[r, key] right[r] over the rows of a block that see the key."""
        k = self.k

        def keys_from(start: Expr, count: int) -> None:
            def terms(i: Expr, tall: int) -> tuple[Value, Value]:
                begin = tir.minimum(tir.maximum(self.mask.queries(start + i) - first, 0), rows)
                begin = k.bind(begin, "begin")
                return begin, k.bind(rows - begin, "terms")

            def write(i: Value, j: Value, x: Expr) -> None:
                at = k.bind(tir.index((start + i) * sums.pitch + j), "at")
                k.store(sums.buf, k.load(sums.buf, at, tir.lanes_of(x)) + x, at)

            self._gemm(
                count,
                size,
                terms if self.mask.is_prefix else lambda i, tall: (0, rows),
                lambda i, r: k.load(left, r * self.row + start + i),
                lambda r, j, lanes: k.load(right.buf, r * right.pitch + j, lanes),
                write,
            )

        mk.for_blocks(k, self.shape.keys, BLOCK, 0, seen, keys_from)

    def _gemm(
        self,
        m: int,
        n: int,
        terms: Terms,
        left: Left,
        right: Right,
        write: Write,
        needed: IsNeeded | None = None,
        most: int = 0,
    ) -> None:
        """write(i, j, Σ left(i, k) right(k, j)) for m x n elements, tile by tile; panels of `right` stay in cache.
        `most` is an upper bound of the terms, 0 where they are few."""
        k, lanes = self.k, self.cpu.lanes
        rows, vectors = gemm_strategy.outer_tile(m, n, lanes, self.cpu)
        width = vectors * lanes

        def panel(j: Expr, size: int) -> None:
            mk.for_blocks(k, m, rows, 0, mk.ceildiv(m, rows), lambda i, count: tile(i, count, j, size))

        def tile(i: Expr, count: int, j: Expr, size: int) -> None:
            if needed is None or not self.mask.is_prefix:
                sums(i, count, j, size)
                return
            with k.when(needed(i, count, j)):
                sums(i, count, j, size)

        def sums(i: Expr, count: int, j: Expr, size: int) -> None:
            cuts = mk.widths(size, lanes)
            acc = mk.Tile(k, count, cuts, "f32", most)
            begin, number = terms(i, count)
            with mk.chained(k, acc.settle, [number], most=[most]) as (each,):
                step = k.bind(begin + each, "step")
                vectors = [k.bind(right(step, j + v * lanes, cut), "b") for v, cut in enumerate(cuts)]
                for r in range(count):
                    scalar = k.bind(left(i + r, step), "a")
                    for v, vector in enumerate(vectors):
                        acc.add(r, v, scalar, vector)
            for r in range(count):
                for v in range(len(cuts)):
                    write(i + r, j + v * lanes, acc.get(r, v))

        mk.for_blocks(k, n, width, 0, mk.ceildiv(n, width), panel)

    # -- rows

    def _vectors(self, first: Expr, r: Expr, seen: Value) -> tuple[Expr, Expr]:
        """Return how many vectors of a row contain keys that its query sees, and that any query of its block sees."""
        lanes = self.cpu.lanes
        most = tir.minimum(tir.index(seen * (BLOCK // lanes)), mk.ceildiv(self.shape.keys, lanes))
        most = self.k.bind(most, "most")
        if not self.mask.is_prefix:
            return most, most
        own = tir.floordiv(self.mask.keys(first + r + 1) + (lanes - 1), lanes)
        return self.k.bind(own, "vectors"), most

    def _for_vectors(self, count: Expr, body: Callable[[Expr], None]) -> None:
        """Emit body(column) for `count` vectors of a row."""
        with self.k.loop(count, name="j") as j:
            body(self.k.bind(j * self.cpu.lanes, "j"))

    def _clear_masked(self, row: Buf, count: Expr, most: Expr) -> None:
        """Store 0 for the keys that only other queries of the block see: GEMMs read the row with them."""
        lanes = self.cpu.lanes
        if self.mask.is_prefix:
            zero = tir.splat(tir.const(0.0, "f32"), lanes)
            with self.k.loop(self.k.bind(most - count, "rest"), name="j") as j:
                self.k.store(row, zero, (count + j) * lanes)

    def _fold(self, start: float, count: Expr, fold: Callable[[Expr, Expr], Expr]) -> Expr:
        """Reduce all vectors of a row to one: accumulator = fold(column, accumulator), initially `start`."""
        k, lanes = self.k, self.cpu.lanes
        total = k.local("total", lanes, "f32")
        k.store(total, tir.splat(tir.const(start, "f32"), lanes), 0)
        self._for_vectors(count, lambda j: k.store(total, fold(j, k.load(total, 0, lanes)), 0))
        return k.load(total, 0, lanes)

    def _sum(self, count: Expr, value: Callable[[Expr], Expr]) -> Expr:
        """Return the sum of a row."""
        lanes = self._fold(0.0, count, lambda j, total: total + value(j))
        return self.k.let(reduce_lanes(self.k, self.algebra, "sum", lanes))

    def _row_maxima(self, scores: Buf, first: Expr, rows: int, seen: Value) -> Buf:
        """Return the largest score of each row. A loop of its own: the reductions of several rows overlap in an
        out-of-order processor, before the passes that depend on them."""
        k, lanes = self.k, self.cpu.lanes
        row_maxima = k.local("tops", rows, "f32")
        with k.loop(rows, name="r") as r:
            row = scores.at(k.bind(r * self.row, "row"))
            count, _ = self._vectors(first, r, seen)
            row_max = self._fold(4 * MASKED_SCORE, count, lambda j, row_max: larger(k.load(row, j, lanes), row_max))
            k.store(row_maxima, largest(k, row_max), r)
        return row_maxima

    def _exponentials(self, scores: Buf, r: Expr, first: Expr, seen: Value, row_max: Expr) -> Expr:
        """scores = exp(scores - the largest of the row); their sum."""
        k, lanes = self.k, self.cpu.lanes
        row = scores.at(k.bind(r * self.row, "row"))
        count, most = self._vectors(first, r, seen)

        def exponential(j: Expr) -> Expr:
            value = k.let(exp_below(k, k.let(k.load(row, j, lanes) - tir.splat(row_max, lanes))))
            k.store(row, value, j)
            return value

        total = self._sum(count, exponential)
        self._clear_masked(row, count, most)
        return total

    def _softmax_grad(self, p: Buf, ds: Buf, r: Expr, first: Expr, seen: Value, total: Expr, largest: Expr) -> None:
        """p = p / total;  ds = p (ds - Σ p ds) · scale, or 0 in a row that sees no key, whose weights are all equal."""
        k, lanes = self.k, self.cpu.lanes
        at = k.bind(r * self.row, "row")
        weights, score_grads = p.at(at), ds.at(at)
        count, most = self._vectors(first, r, seen)
        inverse = k.let(tir.const(1.0, "f32") / total)
        lowest, zero = tir.const(MASKED_SCORE, "f32"), tir.const(0.0, "f32")
        scale = k.let(tir.select(tir.compare("greater", largest, lowest), tir.const(self.scale, "f32"), zero))
        inner = self._sum(count, lambda j: k.load(weights, j, lanes) * k.load(score_grads, j, lanes))
        mean = k.let(inner * inverse)

        def one(j: Expr) -> None:
            weight = k.let(k.load(weights, j, lanes) * tir.splat(inverse, lanes))
            score_grad = (k.load(score_grads, j, lanes) - tir.splat(mean, lanes)) * weight
            score_grad = score_grad * tir.splat(scale, lanes)
            k.store(weights, weight, j)
            k.store(score_grads, score_grad, j)

        self._for_vectors(count, one)
        self._clear_masked(score_grads, count, most)

    def _clear(self, rows: Rows, size: int) -> None:
        zero = tir.const(0, "f32")
        self._each_key(rows, size, lambda r, j, lanes: tir.splat(zero, lanes))

    def _store_epilogue(self, sums: Rows, size: int, to: Rows) -> None:
        """Store the sums of all keys in the result."""
        self._each_key(to, size, lambda r, j, lanes: self.k.load(sums.buf, r * sums.pitch + j, lanes))

    def _each_key(self, rows: Rows, size: int, value: Callable[[Expr, Value, int], Expr]) -> None:
        """rows[r, j] = value(r, j, lanes) for all keys."""
        k = self.k
        with k.loop(self.shape.keys, name="r") as r:
            at = k.bind(tir.index(r * rows.pitch), "row")
            mk.for_vectors(k, size, self.cpu.lanes, lambda j, lanes: k.store(rows.buf, value(r, j, lanes), at + j))


ATTENTION = Rule("attention", _claim, _emit, takes_composite=is_profitable)
