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
    NAMES,
    QUERIES,
    UNSEEN,
    AttentionMask,
    Heads,
    Places,
    Rows,
    Shape,
    larger,
    largest,
)
from gluongraph.codegen.cpu.reduce import fold_lanes
from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.vector_math import exp_below
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group

BLOCK = QUERIES  # keys that a block of queries is multiplied with at a time
LONGEST = 1 << 14  # keys whose scores, for a block of queries, still find room in a cache

Left = Callable[[Value, Value], Expr]  # (row, k) -> a number
Right = Callable[[Value, Value, int], Expr]  # (k, column, lanes) -> a vector
Write = Callable[[Value, Value, Expr], None]  # (row, column, vector)
Terms = Callable[[Expr, int], tuple[Value, Value]]  # (first row, rows of a tile) -> its first k, how many
Wanted = Callable[[Expr, int, Expr], Expr]  # (first row, rows, first column of a tile) -> is it needed?


def is_profitable(n: Node, cpu: Cpu) -> bool:
    """Is this attention, or its gradient, in a type and of a size that the kernels are good for?"""
    if n.op.name not in NAMES or not (n.src[0].dtype == "f32" or attention_tiles.is_profitable(n, cpu)):
        return False
    shape = Shape.of(n)
    return min(shape.heads, shape.queries, shape.keys, shape.size, shape.width) >= 1 and shape.keys <= LONGEST


def _claim(group: Group, cpu: Cpu) -> Candidate | None:
    if (places := Places.of(group)) is None or not is_profitable(places.node, cpu):
        return None
    n = places.node
    if attention_tiles.is_profitable(n, cpu):
        return Candidate("attention", attention_tiles.workspace(n, cpu), tiles=True)
    return Candidate("attention", 4 * Shape.of(n).num_chunks(cpu) * _Slot.of(places, cpu).all)


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
    def of(cls, places: Places, cpu: Cpu) -> _Slot:
        n, shape = places.node, Shape.of(places.node)
        rounded = any(y.dtype != "f32" for y, _ in places.results.values())
        # A row is whole vectors, an odd number of them, since the rows of a panel would share few sets of a cache if
        # they lay a power of two apart.
        return cls(shape, (mk.ceildiv(shape.keys, cpu.lanes) | 1) * cpu.lanes, n.op.name == "attention_grad", rounded)

    @property
    def sizes(self) -> dict[str, int]:
        s, block = self.shape, self.shape.block * self.row
        found = {"keys": s.size * self.row, "scores": block}
        if self.backward:
            found |= {"values": s.width * self.row, "slopes": block}
        if self.backward and self.rounded:
            found |= {"dk": s.keys * s.size, "dv": s.keys * s.width}
        return found

    @property
    def all(self) -> int:
        return sum(self.sizes.values())

    def parts(self, slot: Buf) -> dict[str, Buf]:
        """Where they lie."""
        starts = accumulate(self.sizes.values(), initial=0)
        return {name: slot.at(at) for name, at in zip(self.sizes, starts, strict=False)}


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    places = Places.of(group)
    assert places is not None and bindings.workspace is not None
    n = places.node
    sources, results = places.memory(group, bindings)
    if attention_tiles.is_profitable(n, cpu):
        attention_tiles.emit(k, n, sources, results, bindings.workspace, cpu)
        return
    head = _Head(k, n, sources, _Slot.of(places, cpu), cpu, k.view(bindings.workspace, "f32"))
    body = head.forward if n.op.name == "attention" else head.backward
    mk.parallel_chunks(
        k, head.shape.heads, head.shape.num_chunks(cpu), lambda chunk, number: body(chunk, number, results)
    )


class _Head:
    """The loops of one head."""

    def __init__(self, k: Kernel, n: Node, sources: list[Heads], slot: _Slot, cpu: Cpu, space: Buf):
        self.k, self.cpu, self.space, self.algebra = k, cpu, space, VectorAlgebra(k)
        self.shape, self.slot = slot.shape, slot
        self.scale, self.row = float(n.attrs["scale"]), slot.row
        backward = n.op.name == "attention_grad"
        self.g = sources[0]
        self.q, self.keys, self.v, *masks = sources[backward:]
        self.sight = AttentionMask(k, n, masks[0].buf if masks else None)

    # -- one head

    def forward(self, chunk: Expr, number: Expr, results: dict[int, Heads]) -> None:
        """y = softmax(scores) v"""
        k, shape, space = self.k, self.shape, self._slot(chunk)
        q, keys, v, y = (each.rows(k, number) for each in (self.q, self.keys, self.v, results[0]))
        scores = space["scores"]
        self._turn(keys, shape.size, space["keys"])

        def block(first: Expr, rows: int) -> None:
            seen = self.sight.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, space["keys"], scores)
            factors, tops = k.local("factors", rows, "f32"), self._tops(scores, first, rows, seen)
            with k.loop(rows, name="r") as r:
                total = self._exponentials(scores, r, first, seen, k.let(k.load(tops, r)))
                k.store(factors, tir.const(1.0, "f32") / total, r)
            out = y.at(k, first)

            def write(r: Value, j: Value, x: Expr) -> None:
                k.store(out.buf, x * tir.splat(k.load(factors, r), tir.lanes_of(x)), r * out.pitch + j)

            self._times_keys(first, rows, scores, v, shape.width, write)

        mk.for_blocks(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)

    def backward(self, chunk: Expr, number: Expr, results: dict[int, Heads]) -> None:
        """P = softmax(S);  dv = Pᵀ g;  dS = P (g vᵀ - Σ P g vᵀ) · scale;  dq = dS k;  dk = dSᵀ q"""
        k, shape, space = self.k, self.shape, self._slot(chunk)
        p, ds = space["scores"], space["slopes"]
        g, q, keys, v = (each.rows(k, number) for each in (self.g, self.q, self.keys, self.v))
        outs = {i: each.rows(k, number) for i, each in results.items()}
        # Gradients of keys and values: the left and the right side of their product, and its columns.
        transposed, sums = {1: (ds, q, shape.size), 2: (p, g, shape.width)}, self._sums(outs, space)
        self._turn(keys, shape.size, space["keys"])
        self._turn(v, shape.width, space["values"])
        for i, to in sums.items():
            self._clear(to, transposed[i][2])
        self._fill_up(ds, shape.block, 0.0)

        def block(first: Expr, rows: int) -> None:
            seen = self.sight.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, space["keys"], p)
            self._rows_times(first, rows, seen, g, shape.width, space["values"], self._into(ds, self.row))
            tops = self._tops(p, first, rows, seen)
            with k.loop(rows, name="r") as r:
                top = k.let(k.load(tops, r))
                total = self._exponentials(p, r, first, seen, top)
                self._softmax_grad(p, ds, r, first, seen, total, top)
            if 0 in outs:
                dq = outs[0].at(k, first)
                self._times_keys(first, rows, ds, keys, shape.size, self._into(dq.buf, dq.pitch))
            for i, to in sums.items():
                left, right, size = transposed[i]
                self._add_turned(first, rows, seen, left, right.at(k, first), size, to)

        mk.for_blocks(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)
        for i, source in sums.items():
            if source is not outs[i]:
                self._store_epilogue(source, transposed[i][2], outs[i])

    # -- its parts

    def _slot(self, chunk: Expr) -> dict[str, Buf]:
        return self.slot.parts(self.space.at(self.k.bind(chunk * self.slot.all, "slot")))

    def _sums(self, outs: dict[int, Rows], space: dict[str, Buf]) -> dict[int, Rows]:
        """Where gradients of keys and values are summed: where they belong, unless they are rounded there."""
        apart = {1: ("dk", self.shape.size), 2: ("dv", self.shape.width)}
        found = {i: each for i, each in apart.items() if i in outs}
        return {i: Rows(space[name], size) if self.slot.rounded else outs[i] for i, (name, size) in found.items()}

    def _into(self, buf: Buf, pitch: Value) -> Write:
        """What writes vectors of a block into rows that lie so far apart."""
        return lambda r, j, x: self.k.store(buf, x, r * pitch + j)

    def _turn(self, source: Rows, size: int, target: Buf) -> None:
        """Rows of `size` numbers, one a key, into rows of a number of every key; what fills the last vector is 0."""
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
        """scores[r, j] = q[first + r] · key[j] · scale, or the lowest score where that key is not seen."""

        def write(r: Value, j: Value, x: Expr) -> None:
            value = x * tir.splat(tir.const(self.scale, "f32"), tir.lanes_of(x))
            self.k.store(scores, self.sight.only(number, first + r, j, value, UNSEEN), r * self.row + j)

        self._rows_times(first, rows, seen, q, self.shape.size, transposed, write)
        self._fill_up(scores, rows, 2 * UNSEEN)

    def _fill_up(self, scores: Buf, rows: int, value: float) -> None:
        """The last vector of a row is worked on as a whole: what is no key in it."""
        if rest := -self.shape.keys % self.cpu.lanes:
            with self.k.loop(rows, name="r") as r:
                self.k.store(scores, tir.splat(tir.const(value, "f32"), rest), r * self.row + self.shape.keys)

    def _rows_times(
        self, first: Expr, rows: int, seen: Value, source: Rows, size: int, transposed: Buf, write: Write
    ) -> None:
        """write(r, j, x): products of rows of `source` from `first` on with turned ones, a block of keys at a time; not
        those of tiles in which no query sees a key."""
        k = self.k
        source = source.at(k, first)

        def keys_from(start: Expr, count: int) -> None:
            self._product(
                rows,
                count,
                lambda i, tall: (0, size),
                lambda r, d: k.load(source.buf, r * source.pitch + d),
                lambda d, j, lanes: k.load(transposed, d * self.row + start + j, lanes),
                lambda r, j, x: write(r, start + j, x),
                wanted=lambda i, tall, j: start + j < self.sight.keys(first + i + tall),
            )

        mk.for_blocks(k, self.shape.keys, BLOCK, 0, seen, keys_from)

    def _times_keys(self, first: Expr, rows: int, left: Buf, right: Rows, size: int, write: Write) -> None:
        """write(r, j, x): products of rows of a block with the rows of all keys that they see."""
        k = self.k
        self._product(
            rows,
            size,
            lambda i, tall: (0, self.sight.keys(first + i + tall)),
            lambda r, i: k.load(left, r * self.row + i),
            lambda i, j, lanes: k.load(right.buf, i * right.pitch + j, lanes),
            write,
            most=self.shape.keys,
        )

    def _add_turned(self, first: Expr, rows: int, seen: Value, left: Buf, right: Rows, size: int, sums: Rows) -> None:
        """sums[key] += Σ left[r, key] right[r] over the rows of a block that see the key."""
        k = self.k

        def keys_from(start: Expr, count: int) -> None:
            def terms(i: Expr, tall: int) -> tuple[Value, Value]:
                begin = tir.minimum(tir.maximum(self.sight.queries(start + i) - first, 0), rows)
                begin = k.bind(begin, "begin")
                return begin, k.bind(rows - begin, "terms")

            def write(i: Value, j: Value, x: Expr) -> None:
                at = k.bind(tir.index((start + i) * sums.pitch + j), "at")
                k.store(sums.buf, k.load(sums.buf, at, tir.lanes_of(x)) + x, at)

            self._product(
                count,
                size,
                terms if self.sight.ends else lambda i, tall: (0, rows),
                lambda i, r: k.load(left, r * self.row + start + i),
                lambda r, j, lanes: k.load(right.buf, r * right.pitch + j, lanes),
                write,
            )

        mk.for_blocks(k, self.shape.keys, BLOCK, 0, seen, keys_from)

    def _product(
        self,
        m: int,
        n: int,
        terms: Terms,
        left: Left,
        right: Right,
        write: Write,
        wanted: Wanted | None = None,
        most: int = 0,
    ) -> None:
        """write(i, j, Σ left(i, k) right(k, j)) for m x n elements, tile by tile; panels of `right` stay in cache.
        Sums that may be long have `most` terms."""
        k, lanes = self.k, self.cpu.lanes
        rows, vectors = gemm_strategy.outer_tile(m, n, lanes, self.cpu)
        width = vectors * lanes

        def panel(j: Expr, size: int) -> None:
            mk.for_blocks(k, m, rows, 0, mk.ceildiv(m, rows), lambda i, count: tile(i, count, j, size))

        def tile(i: Expr, count: int, j: Expr, size: int) -> None:
            if wanted is None or not self.sight.ends:
                sums(i, count, j, size)
                return
            with k.when(wanted(i, count, j)):
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
        """How many vectors of a row hold keys that its query sees, and all queries of its block."""
        lanes = self.cpu.lanes
        most = tir.minimum(tir.index(seen * (BLOCK // lanes)), mk.ceildiv(self.shape.keys, lanes))
        most = self.k.bind(most, "most")
        if not self.sight.ends:
            return most, most
        own = tir.floordiv(self.sight.keys(first + r + 1) + (lanes - 1), lanes)
        return self.k.bind(own, "vectors"), most

    def _sweep(self, count: Expr, body: Callable[[Expr], None]) -> None:
        """body(column) for so many vectors of a row."""
        with self.k.loop(count, name="j") as j:
            body(self.k.bind(j * self.cpu.lanes, "j"))

    def _blank(self, row: Buf, count: Expr, most: Expr) -> None:
        """0 for the keys that other queries of the block see: products take them as they come."""
        lanes = self.cpu.lanes
        if self.sight.ends:
            zero = tir.splat(tir.const(0.0, "f32"), lanes)
            with self.k.loop(self.k.bind(most - count, "rest"), name="j") as j:
                self.k.store(row, zero, (count + j) * lanes)

    def _folded(self, start: float, count: Expr, fold: Callable[[Expr, Expr], Expr]) -> Expr:
        """A vector into which all vectors of a row are folded: fold(column, so far) from `start`."""
        k, lanes = self.k, self.cpu.lanes
        total = k.local("total", lanes, "f32")
        k.store(total, tir.splat(tir.const(start, "f32"), lanes), 0)
        self._sweep(count, lambda j: k.store(total, fold(j, k.load(total, 0, lanes)), 0))
        return k.load(total, 0, lanes)

    def _sum(self, count: Expr, value: Callable[[Expr], Expr]) -> Expr:
        """The sum of a row."""
        lanes = self._folded(0.0, count, lambda j, total: total + value(j))
        return self.k.let(fold_lanes(self.k, self.algebra, "sum", lanes))

    def _tops(self, scores: Buf, first: Expr, rows: int, seen: Value) -> Buf:
        """The largest score of each row. A loop of its own: what is done with one waits until all of its row is known,
        and processors go on with the next rows meanwhile."""
        k, lanes = self.k, self.cpu.lanes
        tops = k.local("tops", rows, "f32")
        with k.loop(rows, name="r") as r:
            row = scores.at(k.bind(r * self.row, "row"))
            count, _ = self._vectors(first, r, seen)
            top = self._folded(4 * UNSEEN, count, lambda j, top: larger(k.load(row, j, lanes), top))
            k.store(tops, largest(k, top), r)
        return tops

    def _exponentials(self, scores: Buf, r: Expr, first: Expr, seen: Value, top: Expr) -> Expr:
        """scores = exp(scores - the largest of the row); their sum."""
        k, lanes = self.k, self.cpu.lanes
        row = scores.at(k.bind(r * self.row, "row"))
        count, most = self._vectors(first, r, seen)

        def exponential(j: Expr) -> Expr:
            value = k.let(exp_below(k, k.let(k.load(row, j, lanes) - tir.splat(top, lanes))))
            k.store(row, value, j)
            return value

        total = self._sum(count, exponential)
        self._blank(row, count, most)
        return total

    def _softmax_grad(self, p: Buf, ds: Buf, r: Expr, first: Expr, seen: Value, total: Expr, largest: Expr) -> None:
        """p = p / total;  ds = p (ds - Σ p ds) · scale, or 0 in a row that sees nothing: it weighs all keys alike."""
        k, lanes = self.k, self.cpu.lanes
        at = k.bind(r * self.row, "row")
        weights, score_grads = p.at(at), ds.at(at)
        count, most = self._vectors(first, r, seen)
        inverse = k.let(tir.const(1.0, "f32") / total)
        lowest, zero = tir.const(UNSEEN, "f32"), tir.const(0.0, "f32")
        scale = k.let(tir.select(tir.compare("greater", largest, lowest), tir.const(self.scale, "f32"), zero))
        inner = self._sum(count, lambda j: k.load(weights, j, lanes) * k.load(score_grads, j, lanes))
        mean = k.let(inner * inverse)

        def one(j: Expr) -> None:
            weight = k.let(k.load(weights, j, lanes) * tir.splat(inverse, lanes))
            score_grad = (k.load(score_grads, j, lanes) - tir.splat(mean, lanes)) * weight
            score_grad = score_grad * tir.splat(scale, lanes)
            k.store(weights, weight, j)
            k.store(score_grads, score_grad, j)

        self._sweep(count, one)
        self._blank(score_grads, count, most)

    def _clear(self, rows: Rows, size: int) -> None:
        zero = tir.const(0, "f32")
        self._each_key(rows, size, lambda r, j, lanes: tir.splat(zero, lanes))

    def _store_epilogue(self, sums: Rows, size: int, to: Rows) -> None:
        """Sums for all keys, where their rows belong."""
        self._each_key(to, size, lambda r, j, lanes: self.k.load(sums.buf, r * sums.pitch + j, lanes))

    def _each_key(self, rows: Rows, size: int, value: Callable[[Expr, Value, int], Expr]) -> None:
        """rows[r, j] = value(r, j, lanes) for all keys."""
        k = self.k
        with k.loop(self.shape.keys, name="r") as r:
            at = k.bind(tir.index(r * rows.pitch), "row")
            mk.for_vectors(k, size, self.cpu.lanes, lambda j, lanes: k.store(rows.buf, value(r, j, lanes), at + j))


ATTENTION = Rule("attention", _claim, _emit, takes_composite=is_profitable)
