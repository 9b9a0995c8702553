"""Attention of bf16 operands in AMX tiles (amx.py), forward and backward; scores and softmax are float32.

A chunk of work is one head. Operands are first packed into tiles. Then, a block of queries at a time: the scores of
all keys that the block attends to, their softmax row by row, whose weights are stored as tiles, and the GEMMs with
those. The gradients of keys and values are summed with keys along rows, so that weights and gradients of scores need no
transposition: two rows of queries make a row of pairs. No T x S matrix is ever in memory. (Dao et al.: FlashAttention,
2022.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import DEPTH, SIDE, WORDS, Add, Sums
from gluongraph.codegen.contraction.attention_common import (
    MASKED_SCORE,
    AttentionMask,
    Heads,
    Rows,
    Shape,
    larger,
    largest,
)
from gluongraph.codegen.cpu.reduce import reduce_lanes
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.vector_math import exp_below
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node

PAIR = 2 * SIDE  # rows, or columns, of two adjacent tiles of sums; and terms that one step adds up
SCALES = (1e-6, 1e6)  # range of `scale` in which a masked score stays finite when it is scaled


def is_profitable(n: Node, cpu: Cpu) -> bool:
    """Should tile multiplications compute this attention? With fewer queries or keys than a pair of tiles has rows,
    separate GEMMs are faster."""
    (small, large), shape = SCALES, Shape.of(n)
    fits = min(shape.queries, shape.keys) >= PAIR and small <= abs(n.attrs["scale"]) <= large
    return fits and amx.unit(cpu) is not None and n.src[0].dtype == "bf16"


def workspace(n: Node, cpu: Cpu) -> int:
    """Return the bytes of workspace that `emit` needs."""
    sizes = _Sizes(Shape.of(n), n.op.name == "attention_grad")
    return 4 * sizes.shape.num_chunks(cpu) * sizes.all


def emit(k: Kernel, n: Node, sources: list[Heads], results: dict[int, Heads], space: Buf, cpu: Cpu) -> None:
    """Emit the loops; `results` by result index."""
    unit = amx.unit(cpu)
    assert unit is not None
    head = _Head(k, n, sources, space, unit)
    unit.prepare(k)
    body = head.forward if n.op.name == "attention" else head.backward
    count = head.shape.num_chunks(cpu)
    with k.loop(count, "parallel", "piece") as chunk, unit.thread(k):
        slot = k.bind(chunk * head.sizes.all, "slot")
        first, number = mk.chunk_range(k, head.shape.heads, count, chunk)
        with k.loop(number, name="unit") as u:
            body(_Memory(head.sizes, head.words.at(slot), head.sums.at(slot)), k.bind(first + u, "head"), results)


def _pairs(extent: int) -> int:
    """Return how many pairs of tiles hold that many rows or columns."""
    return mk.ceildiv(extent, PAIR)


@dataclass(frozen=True)
class _Sizes:
    """The workspace of a chunk: operands in tiles, and rows of sums. Extents are in pairs of tiles."""

    shape: Shape
    backward: bool

    @property
    def keys(self) -> int:
        return _pairs(self.shape.keys)

    @property
    def queries(self) -> int:
        return _pairs(self.shape.queries)

    @property
    def block(self) -> int:
        return _pairs(self.shape.block)

    @property
    def size(self) -> int:
        return _pairs(self.shape.size)

    @property
    def width(self) -> int:
        return _pairs(self.shape.width)

    @property
    def pitch(self) -> int:
        """Elements between rows of scores: no power of two, else all would share few cache sets."""
        return PAIR * self.keys + SIDE

    @property
    def words(self) -> dict[str, int]:
        """Pairs of tiles of each operand by name: pairs of lines of tiles, times tiles of a line."""
        s, t, r, d, e = self.keys, self.queries, self.block, self.size, self.width
        if not self.backward:
            return {"q": t * d, "k": s * d, "v": e * s, "p": r * s}
        return {
            **{"q": t * d, "g": t * e, "k": s * d, "v": s * e},  # for scores and their gradients
            **{"key": d * s, "query": d * t, "upstream": e * t},  # operands of the GEMMs that give the gradients
            **{"p": s * r, "ds": s * r, "score_grads": r * s},
        }

    @property
    def sums(self) -> dict[str, int]:
        """Elements of each array of sums by name."""
        rows, wide = PAIR * self.block, PAIR * max(self.size, self.width) + SIDE
        found = {"scores": rows * self.pitch, "out": rows * wide}
        if self.backward:
            found |= {"dp": rows * self.pitch}
            found |= {"dk": PAIR * self.size * self.pitch, "dv": PAIR * self.width * self.pitch}
        return found

    @property
    def all(self) -> int:
        """Elements of 4 bytes, in total."""
        return 2 * WORDS * sum(self.words.values()) + sum(self.sums.values())


class _Memory:
    """The buffers of a chunk's workspace by name."""

    def __init__(self, sizes: _Sizes, words: Buf, sums: Buf):
        self._at: dict[str, Buf] = {}
        at = 0
        for name, pairs in sizes.words.items():
            self._at[name] = words.at(at)
            at += 2 * WORDS * pairs
        for name, count in sizes.sums.items():
            self._at[name] = sums.at(at)
            at += count

    def __getitem__(self, name: str) -> Buf:
        return self._at[name]


@dataclass(frozen=True)
class _Tiles:
    """An operand: lines of `deep` tiles each, from tile `first` of each line on."""

    buf: Buf
    deep: int
    first: Value = 0

    def pair(self, k: Kernel, number: Value, step: Expr) -> list[tuple[Buf, Expr]]:
        """Return the addresses of the tiles of a pair of lines at a step."""
        at = k.bind((number * (2 * self.deep) + self.first + step) * WORDS, "at")
        return [(self.buf, at), (self.buf, at + self.deep * WORDS)]


class _Head:
    """Emits the loops of one head."""

    def __init__(self, k: Kernel, n: Node, sources: list[Heads], space: Buf, unit: amx.Unit):
        self.k, self.unit, self.algebra, self.scale = k, unit, VectorAlgebra(k), float(n.attrs["scale"])
        backward = n.op.name == "attention_grad"
        self.shape, self.sizes = Shape.of(n), _Sizes(Shape.of(n), backward)
        self.words, self.sums = k.view(space, "u32"), k.view(space, "f32")
        self.g = sources[0]
        self.q, self.keys, self.v, *masks = sources[backward:]
        self.mask = AttentionMask(k, n, masks[0].buf if masks else None)

    def forward(self, memory: _Memory, number: Expr, results: dict[int, Heads]) -> None:
        """y = softmax(scores) v"""
        k, s, z = self.k, self.shape, self.sizes
        q, keys, v, y = (each.rows(k, number) for each in (self.q, self.keys, self.v, results[0]))
        self._pack_rows(q, s.queries, s.size, memory["q"], z.size)
        self._pack_rows(keys, s.keys, s.size, memory["k"], z.size, transposed=True)
        self._pack_columns(v, s.keys, s.width, memory["v"], z.keys)
        scores, out = memory["scores"], memory["out"]

        def block(first: Expr, rows: int) -> None:
            self._scores(first, rows, memory["q"], memory["k"], z.size, scores)
            row_maxima, sums = self._row_maxima(number, first, rows, scores), k.local("sums", rows, "f32")
            with k.loop(rows, name="r") as r:
                k.store(
                    sums, self._weights(scores, r, self._seen(first, r), k.let(k.load(row_maxima, r)), memory["p"]), r
                )
            self._multiply(first, rows, z.width, _Tiles(memory["p"], z.keys), _Tiles(memory["v"], z.keys), out)
            with k.loop(rows, name="r") as r:
                over = k.let(tir.const(1.0, "f32") / k.load(sums, r))
                self._store_epilogue(out, r, y, first + r, s.width, over)

        mk.for_blocks(k, s.queries, s.block, 0, mk.ceildiv(s.queries, s.block), block)

    def backward(self, memory: _Memory, number: Expr, results: dict[int, Heads]) -> None:
        """P = softmax(S);  dv = Pᵀ g;  dS = P (g vᵀ - Σ P g vᵀ) · scale;  dq = dS k;  dk = dSᵀ q"""
        k, s, z = self.k, self.shape, self.sizes
        g, q, keys, v = (each.rows(k, number) for each in (self.g, self.q, self.keys, self.v))
        self._pack_rows(q, s.queries, s.size, memory["q"], z.size)
        self._pack_rows(g, s.queries, s.width, memory["g"], z.width)
        self._pack_rows(keys, s.keys, s.size, memory["k"], z.size, transposed=True)
        self._pack_rows(v, s.keys, s.width, memory["v"], z.width, transposed=True)
        outs = {i: each.rows(k, number) for i, each in results.items()}
        # Gradients of keys and values: the names of their GEMM's operands, and of their sums.
        transposed = {1: ("query", q, s.size, "ds", "dk"), 2: ("upstream", g, s.width, "p", "dv")}
        if 0 in outs:
            self._pack_columns(keys, s.keys, s.size, memory["key"], z.keys)
        for i in outs.keys() & transposed.keys():
            name, source, size, _, sums = transposed[i]
            self._pack_columns(source, s.queries, size, memory[name], z.queries, transposed=True)
            self._clear(memory[sums], PAIR * _pairs(size) * z.pitch)

        def block(first: Expr, rows: int) -> None:
            seen = self.mask.blocks(first, rows, PAIR)
            self._scores(first, rows, memory["q"], memory["k"], z.size, memory["scores"])
            self._scores(first, rows, memory["g"], memory["v"], z.width, memory["dp"])
            self._score_grads(number, first, rows, seen, memory)
            if 0 in outs:
                out = memory["out"]
                self._multiply(
                    first, rows, z.size, _Tiles(memory["score_grads"], z.keys), _Tiles(memory["key"], z.keys), out
                )
                with k.loop(rows, name="r") as r:
                    self._store_epilogue(out, r, outs[0], first + r, s.size)
            start = k.bind(tir.floordiv(first, DEPTH), "deep")
            for i in sorted(outs.keys() & transposed.keys()):
                name, _, size, right, sums = transposed[i]
                left, by = _Tiles(memory[name], z.queries, start), _Tiles(memory[right], z.block)
                self._accumulate_product(_pairs(size), seen, _pairs(rows), left, by, memory[sums])

        mk.for_blocks(k, s.queries, s.block, 0, mk.ceildiv(s.queries, s.block), block)
        for i in sorted(outs.keys() & transposed.keys()):
            self._store_transposed(memory[transposed[i][4]], outs[i], transposed[i][2])

    # -- operands into tiles

    def _read(self, source: Rows, at: Expr, width: int) -> Callable[[int], Expr]:
        """Return a function that reads `width` elements at `at` of a row, by the row's distance from it."""
        return lambda row: self.k.load(source.buf, at + row * source.pitch, width)

    def _pack_rows(self, source: Rows, rows: int, columns: int, to: Buf, deep: int, transposed: bool = False) -> None:
        """Pack 16 rows of a matrix at a time into a line of tiles, to be summed over columns: rows of A, or columns of
        B if `transposed`.

        An odd number of lines of B is padded with a line of zeros: its weights are 0, but 0 times uninitialized memory
        may be NaN.
        """
        k, lines = self.k, mk.ceildiv(rows, SIDE)

        def line(start: Expr, size: int) -> None:
            for first, depth, count in mk.split(columns, DEPTH):
                with k.loop(count, name="k") as step:
                    at = k.bind(start * source.pitch + step * DEPTH + first, "from")
                    rows = amx.tile_rows_along_k(k, self._read(source, at, depth), size)
                    place = tir.floordiv(start, SIDE) * deep + tir.floordiv(first, DEPTH) + step
                    self._tile(to, place, rows, transposed)

        mk.for_blocks(k, rows, SIDE, 0, lines, line)
        if transposed and lines % 2:
            with k.loop(deep, name="k") as step:
                self._tile(to, lines * deep + step, [amx.zeros()] * SIDE, transposed=False)

    def _pack_columns(
        self, source: Rows, rows: int, columns: int, to: Buf, deep: int, transposed: bool = False
    ) -> None:
        """Pack 16 columns of a matrix at a time into a line of tiles, to be summed over rows: columns of B, or rows of
        A if `transposed`."""
        k = self.k

        def across(start: Expr, depth: int) -> None:
            for first, width, count in mk.split(columns, SIDE):
                with k.loop(count, name="line") as line:
                    at = k.bind(start * source.pitch + line * SIDE + first, "from")
                    rows = amx.tile_rows_across_k(k, self._read(source, at, width), depth)
                    place = (line + first // SIDE) * deep + tir.floordiv(start, DEPTH)
                    self._tile(to, place, rows, transposed)

        mk.for_blocks(k, rows, DEPTH, 0, mk.ceildiv(rows, DEPTH), across)

    def _tile(self, to: Buf, place: Expr, rows: list[Expr], transposed: bool) -> None:
        at = self.k.bind(place * WORDS, "tile")
        for r, row in enumerate(mk.transposed(self.k, rows) if transposed else rows):
            self.k.store(to, row, at + r * SIDE)

    # -- GEMMs

    def _seen(self, first: Expr, r: Expr) -> Value:
        """How many pairs of tiles hold the keys that query `first + r` sees, or one that shares a pair with it."""
        return self.mask.blocks(first + tir.floordiv(r, PAIR) * PAIR, PAIR, PAIR)

    def _scores(self, first: Expr, rows: int, left: Buf, right: Buf, deep: int, out: Buf) -> None:
        """out[r, j] = left[first + r] · right[j] for the keys that are seen."""
        line = self.k.bind(tir.floordiv(first, PAIR), "line")
        with self.k.loop(_pairs(rows), name="y") as y, self.k.loop(self._seen(first, y * PAIR), name="x") as x:
            at = self.k.bind(y * (PAIR * self.sizes.pitch) + x * PAIR, "sums")
            self._block(_Tiles(left, deep), line + y, _Tiles(right, deep), x, deep, out, at, self.sizes.pitch)

    def _multiply(self, first: Expr, rows: int, across: int, left: _Tiles, right: _Tiles, out: Buf) -> None:
        """out = left right, summed over the keys that are seen."""
        with self.k.loop(_pairs(rows), name="y") as y, self.k.loop(across, name="x") as x:
            at = self.k.bind(y * (PAIR * self._pitch) + x * PAIR, "sums")
            self._block(left, y, right, x, self._seen(first, y * PAIR), out, at, self._pitch)

    def _accumulate_product(self, down: int, seen: Value, deep: int, left: _Tiles, right: _Tiles, out: Buf) -> None:
        """out += left right for the keys that are seen, which are its columns."""
        with self.k.loop(seen, name="x") as x, self.k.loop(down, name="y") as y:
            at = self.k.bind(y * (PAIR * self.sizes.pitch) + x * PAIR, "sums")
            self._block(left, y, right, x, deep, out, at, self.sizes.pitch, accumulate=True)

    @property
    def _pitch(self) -> int:
        """Elements between rows of the result of a GEMM with keys or values."""
        return PAIR * max(self.sizes.size, self.sizes.width) + SIDE

    def _block(
        self,
        left: _Tiles,
        y: Value,
        right: _Tiles,
        x: Value,
        deep: Value,
        out: Buf,
        at: Expr,
        pitch: int,
        accumulate: bool = False,
    ) -> None:
        k = self.k

        def steps(add: Add) -> None:
            with k.loop(deep, name="k") as step:
                add(left.pair(k, y, step), right.pair(k, x, step))

        sums = Sums(out, lambda i, j: at + (i * SIDE * pitch + j * SIDE), pitch)
        self.unit.block(k, (2, 2), steps, sums, accumulate=accumulate)

    # -- rows of scores

    def _row_maxima(self, number: Expr, first: Expr, rows: int, scores: Buf) -> Buf:
        """Return for each row the score that is the largest after scaling. A loop of its own: the reductions of several
        rows overlap in an out-of-order processor, before the passes that depend on them."""
        row_maxima = self.k.local("tops", rows, "f32")
        with self.k.loop(rows, name="r") as r:
            seen = self._seen(first, r)
            self._mask_scores(number, first, r, rows, seen, scores)
            self.k.store(row_maxima, self._row_max(scores, r, seen), r)
        return row_maxima

    def _mask_scores(self, number: Expr, first: Expr, r: Expr, rows: int, seen: Value, scores: Buf) -> None:
        """Store MASKED_SCORE (before scaling) for keys that this query does not see, a lower score behind the last
        key."""
        k, s = self.k, self.shape
        row = scores.at(k.bind(r * self.sizes.pitch, "row"))
        unseen = MASKED_SCORE / self.scale

        def one(j: Value, lanes: int) -> None:
            at = k.bind(tir.index(j), "j")
            k.store(row, self.mask.select_visible(number, first + r, at, k.load(row, at, lanes), unseen), at)

        if self.mask.tensor is not None:
            mk.for_vectors(k, s.keys, SIDE, one)
        elif self.mask.causal:  # from the first vector on with a masked key
            start = k.bind(tir.maximum(tir.floordiv(first + (r + self.mask.offset + 1), SIDE), 0), "start")
            end = k.bind(tir.index(seen * (PAIR // SIDE)), "end")
            with k.loop(k.bind(tir.maximum(end - start, 0), "count"), name="v") as v:
                one((start + v) * SIDE, SIDE)
        for at, width, _ in mk.split(_pairs(s.keys) * PAIR - s.keys, SIDE):
            k.store(row, tir.splat(tir.const(2 * unseen, "f32"), width), s.keys + at)

    def _vectors(self, seen: Value, body: Callable[[Expr], None]) -> None:
        """Emit body(j) for each pair of vectors of a row that contains a key that is seen."""
        with self.k.loop(seen, name="j") as j:
            body(self.k.bind(tir.index(j), "j"))

    def _accumulator(self, value: float) -> Buf:
        """Return a vector accumulator of a sum or maximum, initialized with `value`."""
        total = self.k.local("total", SIDE, "f32")
        self.k.store(total, tir.splat(tir.const(value, "f32"), SIDE), 0)
        return total

    def _sum(self, lanes: Buf) -> Expr:
        return self.k.let(reduce_lanes(self.k, self.algebra, "sum", self.k.load(lanes, 0, SIDE)))

    def _row_max(self, scores: Buf, r: Expr, seen: Value) -> Expr:
        k, sign = self.k, 1.0 if self.scale > 0 else -1.0
        row, lanes = (
            scores.at(k.bind(r * self.sizes.pitch, "row")),
            self._accumulator(4 * MASKED_SCORE / abs(self.scale)),
        )

        def one(j: Expr) -> None:
            first, second = (k.load(row, j * PAIR + half, SIDE) for half in (0, SIDE))
            both = larger(first, second) if sign > 0 else larger(-first, -second)
            k.store(lanes, larger(k.let(both), k.load(lanes, 0, SIDE)), 0)

        self._vectors(seen, one)
        return k.let(largest(k, k.load(lanes, 0, SIDE)) * tir.const(sign, "f32"))

    def _exponential(self, row: Buf, at: Expr, row_max: Expr) -> Expr:
        """exp((score - row_max) · scale): exactly 1 for the largest, since scaling follows the subtraction."""
        k = self.k
        below = k.let(k.load(row, at, SIDE) - tir.splat(row_max, SIDE))
        return k.let(exp_below(k, below, self.scale))

    def _weights(self, scores: Buf, r: Expr, seen: Value, row_max: Expr, to: Buf) -> Expr:
        """Store exp((scores - row_max) · scale) as rows of tiles of A; return their sum."""
        k, lanes = self.k, self._accumulator(0.0)
        row = scores.at(k.bind(r * self.sizes.pitch, "row"))
        line = k.bind(tir.floordiv(r, SIDE) * (self.sizes.keys * WORDS) + tir.floormod(r, SIDE) * SIDE, "line")

        def one(j: Expr) -> None:
            found = [self._exponential(row, j * PAIR + half, row_max) for half in (0, SIDE)]
            k.store(lanes, k.load(lanes, 0, SIDE) + (found[0] + found[1]), 0)
            k.store(to, tir.pack_bf16(*found), line + j * WORDS)

        self._vectors(seen, one)
        return self._sum(lanes)

    def _score_grads(self, number: Expr, first: Expr, rows: int, seen: Value, memory: _Memory) -> None:
        """Store weights and score gradients of a block as tiles whose words pair adjacent queries, and the gradients
        also as rows of A."""
        k, scores, dp = self.k, memory["scores"], memory["dp"]
        row_maxima, factors = self._row_maxima(number, first, rows, scores), k.local("factors", 3 * rows, "f32")
        with k.loop(rows, name="r") as r:
            self._factors(scores, dp, r, self._seen(first, r), k.let(k.load(row_maxima, r)), factors)
        for start, count, steps in mk.split(rows, 2):
            with k.loop(steps, name="r") as step:
                self._pair_of_rows(first, k.bind(step * 2 + start, "r"), count, seen, memory, factors)
        if empty := PAIR * _pairs(rows) // 2 - mk.ceildiv(rows, 2):
            with k.loop(empty, name="r") as step:
                r = k.bind((step + mk.ceildiv(rows, 2)) * 2, "r")
                self._vectors(seen, lambda j: self._store_words(memory, r, j, [amx.zeros()] * 4))

    def _factors(self, scores: Buf, dp: Buf, r: Expr, seen: Value, row_max: Expr, to: Buf) -> None:
        """scores = exp((scores - row_max) · scale); store in `to` 1 / their sum, their weighted mean gradient, and the
        scale of gradients, which is 0 in a row that sees no key, whose weights are all equal.
        """
        k, total, inner = self.k, self._accumulator(0.0), self._accumulator(0.0)
        at = k.bind(r * self.sizes.pitch, "row")
        row, score_grads = scores.at(at), dp.at(at)

        def one(j: Expr) -> None:
            positions = [j * PAIR + half for half in (0, SIDE)]
            found = [self._exponential(row, place, row_max) for place in positions]
            k.store(total, k.load(total, 0, SIDE) + (found[0] + found[1]), 0)
            for x, place in zip(found, positions, strict=True):
                k.store(row, x, place)
                k.store(inner, k.load(inner, 0, SIDE) + x * k.load(score_grads, place, SIDE), 0)

        self._vectors(seen, one)
        over = k.let(tir.const(1.0, "f32") / self._sum(total))
        sees = tir.compare("greater", row_max * tir.const(self.scale, "f32"), tir.const(MASKED_SCORE / 2, "f32"))
        scale = tir.select(sees, tir.const(self.scale, "f32"), tir.const(0.0, "f32"))
        for i, x in enumerate((over, self._sum(inner) * over, scale)):
            k.store(to, x, r * 3 + i)

    def _pair_of_rows(self, first: Expr, r: Expr, count: int, seen: Value, memory: _Memory, factors: Buf) -> None:
        """p = exp / sum;  ds = p (dp - mean) · scale, of `count` queries: two, or the last one."""
        k = self.k
        row_factors = [
            [k.let(tir.splat(k.let(k.load(factors, (r + i) * 3 + f)), SIDE)) for f in range(3)] for i in range(count)
        ]

        def one(j: Expr) -> None:
            p: list[list[Expr]] = []
            ds: list[list[Expr]] = []
            for i, (over, mean, scale) in enumerate(row_factors):
                at = k.bind((r + i) * self.sizes.pitch + j * PAIR, "at")
                p.append([k.let(k.load(memory["scores"], at + half, SIDE) * over) for half in (0, SIDE)])
                score_grads = [k.load(memory["dp"], at + half, SIDE) - mean for half in (0, SIDE)]
                ds.append(
                    [k.let(score_grad * (weight * scale)) for score_grad, weight in zip(score_grads, p[i], strict=True)]
                )
                self._store_row(memory["score_grads"], r + i, j, tir.pack_bf16(*ds[i]))
            if count == 1:
                nothing = [tir.splat(tir.const(0.0, "f32"), SIDE)] * 2
                p, ds = [*p, nothing], [*ds, nothing]
            self._store_words(
                memory, r, j, [tir.pack_bf16_pairs(x[0][half], x[1][half]) for x in (p, ds) for half in (0, 1)]
            )

        own = self._seen(first, r)
        self._vectors(own, one)
        if self.mask.is_prefix:  # keys that only other queries of the block see
            with k.loop(k.bind(seen - own, "rest"), name="j") as j:
                self._store_words(memory, r, k.bind(own + j, "j"), [amx.zeros()] * 4)

    def _store_row(self, to: Buf, r: Expr, j: Expr, words: Expr) -> None:
        """Store score gradients of one query for two vectors of keys: a row of a tile of A."""
        line = tir.floordiv(r, SIDE) * (self.sizes.keys * WORDS) + tir.floormod(r, SIDE) * SIDE
        self.k.store(to, words, self.k.bind(line, "line") + j * WORDS)

    def _store_words(self, memory: _Memory, r: Expr, j: Expr, words: list[Expr]) -> None:
        """Store weights and score gradients of two queries for two vectors of keys: a row of two tiles of B each."""
        deep = self.sizes.block
        inside = tir.floordiv(r, DEPTH) * WORDS + tir.floordiv(tir.floormod(r, DEPTH), 2) * SIDE
        at = self.k.bind(j * (2 * deep * WORDS) + inside, "at")
        for name, both in (("p", words[:2]), ("ds", words[2:])):
            for half, row in enumerate(both):
                self.k.store(memory[name], row, at + half * deep * WORDS)

    # -- results

    def _store_epilogue(self, out: Buf, r: Expr, to: Rows, row: Expr, columns: int, over: Expr | None = None) -> None:
        """Store a row of sums, times `over`, in the result."""
        k = self.k

        def one(j: Value, lanes: int) -> None:
            x = k.load(out, r * self._pitch + j, lanes)
            k.store(to.buf, x if over is None else x * tir.splat(over, lanes), row * to.pitch + j)

        mk.for_vectors(k, columns, SIDE, one)

    def _store_transposed(self, sums: Buf, to: Rows, columns: int) -> None:
        """Transpose sums [column][key] and store them in the result, [key][column]."""
        k, pitch = self.k, self.sizes.pitch

        def keys(start: Expr, rows: int) -> None:
            for first, width, count in mk.split(columns, SIDE):
                with k.loop(count, name="c") as c:
                    column = k.bind(c * SIDE + first, "column")
                    square = [k.bind(k.load(sums, (column + i) * pitch + start, SIDE), "t") for i in range(SIDE)]
                    for r, x in enumerate(mk.transposed(k, square)[:rows]):
                        k.store(to.buf, tir.shuffle([x], range(width)), (start + r) * to.pitch + column)

        mk.for_blocks(k, self.shape.keys, SIDE, 0, mk.ceildiv(self.shape.keys, SIDE), keys)

    def _clear(self, sums: Buf, size: int) -> None:
        zero = tir.splat(tir.const(0.0, "f32"), SIDE)
        with self.k.loop(size // SIDE, name="v") as v:
            self.k.store(sums, zero, v * SIDE)
