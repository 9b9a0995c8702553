"""Attention and its gradients as one kernel each: a block of queries at a time, whose scores stay in cache.

A piece of parallel work is one head. Keys are turned once, so that a row of scores is a row of vectors; then for each
block of queries: the scores of all keys that it sees, their softmax row by row, and the products with the values. What
a causal query cannot see is not computed, but for the rest of its block. The matrix of scores is never in memory: the
workspace of a piece holds as many rows as a block has queries. (Dao et al.: FlashAttention, 2022; with whole rows at
hand, the sum of a row need not be corrected as it grows.)
"""

from __future__ import annotations

from collections.abc import Callable

from gluongraph.codegen import attention_tiles, gemm_choice, tir
from gluongraph.codegen import microkernel as mk
from gluongraph.codegen.heads import QUERIES, UNSEEN, Shape, Sight, larger, largest
from gluongraph.codegen.math import VectorAlgebra
from gluongraph.codegen.reduce import fold_lanes
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.codegen.vector_math import exp_below
from gluongraph.ir import Node
from gluongraph.plan import Candidate, Group

NAMES = ("attention", "attention_grad")
BLOCK = QUERIES  # keys that a block of queries is multiplied with at a time
LONGEST = 1 << 14  # keys whose scores, for a block of queries, still find room in a cache

Left = Callable[[Value, Value], Expr]  # (row, k) -> a number
Right = Callable[[Value, Value, int], Expr]  # (k, column, lanes) -> a vector
Write = Callable[[Value, Value, Expr], None]  # (row, column, vector)


def suits(n: Node, cpu: Cpu) -> bool:
    """Is this attention, or its gradient, in a type and of a size that the kernels are good for?"""
    if n.op.name not in NAMES or not (n.src[0].dtype == "f32" or attention_tiles.suits(n, cpu)):
        return False
    shape = Shape.of(n)
    return min(shape.heads, shape.queries, shape.keys, shape.size, shape.width) >= 1 and shape.keys <= LONGEST


def _claim(group: Group, cpu: Cpu) -> Candidate | None:
    if (n := _node(group)) is None or not suits(n, cpu):
        return None
    if attention_tiles.suits(n, cpu):
        return Candidate("attention", attention_tiles.workspace(n, cpu), tiles=True)
    shape, rows = Shape.of(n), 1 if n.op.name == "attention" else 2
    turned = shape.size if rows == 1 else shape.size + shape.width
    return Candidate("attention", shape.pieces(cpu) * _slot(shape, turned, rows, cpu) * 4)


def _slot(shape: Shape, turned: int, rows: int, cpu: Cpu) -> int:
    """Elements of the workspace of a piece: turned keys (and values), and rows of scores for a block of queries."""
    return _row(shape, cpu) * (turned + rows * shape.block)


def _row(shape: Shape, cpu: Cpu) -> int:
    """Elements of a row of scores in the workspace: whole vectors, an odd number of them, since the rows of a panel
    would share few sets of a cache if they lay a power of two apart."""
    return (mk.ceildiv(shape.keys, cpu.lanes) | 1) * cpu.lanes


def _node(group: Group) -> Node | None:
    """The attention of a group that holds nothing else."""
    found = [n for n in group.body.nodes() if n.op.name in NAMES]
    if group.pattern != "opaque" or len(found) != 1 or any(s.op.name != "input" for s in found[0].src):
        return None
    return found[0] if all(n in (found[0], *_items(group)) for n in group.body.outputs.values()) else None


def _items(group: Group) -> list[Node]:
    return [n for n in group.body.nodes() if n.op.name == "item"]


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    n, memory = _node(group), bindings.by_node(group)
    assert n is not None and bindings.workspace is not None
    results: dict[int, Buf] = {}
    for each, buf in zip(group.body.outputs.values(), bindings.outputs, strict=True):
        results[each.attrs["index"] if each.op.name == "item" else 0] = buf
    sources = [memory[s] for s in n.src]
    if attention_tiles.suits(n, cpu):
        attention_tiles.emit(k, n, sources, results, bindings.workspace, cpu)
        return
    head = _Head(k, n, sources, cpu, k.view(bindings.workspace, "f32"))
    body = head.forward if n.op.name == "attention" else head.backward
    mk.spread(k, head.shape.heads, head.shape.pieces(cpu), lambda piece, number: body(piece, number, results))


class _Head:
    """The loops of one head."""

    def __init__(self, k: Kernel, n: Node, sources: list[Buf], cpu: Cpu, space: Buf):
        self.k, self.cpu, self.space, self.algebra = k, cpu, space, VectorAlgebra(k)
        self.shape = Shape.of(n)
        self.scale = float(n.attrs["scale"])
        backward = n.op.name == "attention_grad"
        self.g = sources[0] if backward else None
        self.q, self.key, self.v, *masks = sources[backward:]
        self.sight = Sight(k, n, masks[0] if masks else None)
        self.row = _row(self.shape, cpu)

    # -- one head

    def forward(self, piece: Expr, number: Expr, results: dict[int, Buf]) -> None:
        """y = softmax(scores) v"""
        k, shape = self.k, self.shape
        slot = self.space.at(k.bind(piece * _slot(shape, shape.size, 1, self.cpu), "slot"))
        q, keys, v = self._of(self.q, number, shape.queries * shape.size), *self._keys(number)
        y = self._of(results[0], number, shape.queries * shape.width)
        scores = slot.at(shape.size * self.row)
        self._turn(keys, shape.size, slot)

        def block(first: Expr, rows: int) -> None:
            seen = self.sight.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, slot, scores)
            sums, tops = k.local("sums", rows, "f32"), k.local("tops", rows, "f32")
            self._each_row(rows, lambda r: self._exponentials(scores, r, seen, sums, tops))
            out = y.at(k.bind(first * shape.width, "y"))
            self._clear(out, rows * shape.width)

            def keys_from(start: Expr, count: int) -> None:
                self._product(
                    rows,
                    shape.width,
                    count,
                    lambda r, i: k.load(scores, r * self.row + start + i),
                    lambda i, j, lanes: k.load(v, (start + i) * shape.width + j, lanes),
                    self._adding(out, shape.width),
                )

            mk.runs(k, shape.keys, BLOCK, 0, seen, keys_from)
            self._each_row(rows, lambda r: self._scaled(out, r, shape.width, k.load(sums, r)))

        mk.runs(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)

    def backward(self, piece: Expr, number: Expr, results: dict[int, Buf]) -> None:
        """P = softmax(S);  dv = Pᵀ g;  dS = P (g vᵀ - Σ P g vᵀ) · scale;  dq = dS k;  dk = dSᵀ q"""
        k, shape = self.k, self.shape
        assert self.g is not None
        slot = self.space.at(k.bind(piece * _slot(shape, shape.size + shape.width, 2, self.cpu), "slot"))
        values = slot.at(shape.size * self.row)
        p = slot.at((shape.size + shape.width) * self.row)
        ds = p.at(shape.block * self.row)
        q, g = (
            self._of(self.q, number, shape.queries * shape.size),
            self._of(self.g, number, shape.queries * shape.width),
        )
        keys, v = self._keys(number)
        self._turn(keys, shape.size, slot)
        self._turn(v, shape.width, values)
        sizes = (shape.queries * shape.size, shape.keys * shape.size, shape.keys * shape.width)
        outs = {i: self._of(results[i], number, sizes[i]) for i in results}
        for i, out in outs.items():
            self._clear(out, sizes[i])

        def keep(r: Value, j: Value, x: Expr) -> None:
            k.store(ds, x, r * self.row + j)

        self._fill_up(ds, shape.block, 0.0)

        def block(first: Expr, rows: int) -> None:
            seen = self.sight.blocks(first, rows, BLOCK)
            self._scores(number, first, rows, seen, q, slot, p)
            self._rows_times(
                first, rows, seen, g, shape.width, values, lambda r, j, x: k.store(ds, x, r * self.row + j)
            )
            sums, tops = k.local("sums", rows, "f32"), k.local("tops", rows, "f32")
            self._each_row(rows, lambda r: self._exponentials(p, r, seen, sums, tops))
            self._each_row(rows, lambda r: self._softmax_grad(p, ds, r, seen, k.load(sums, r), k.load(tops, r)))

            def keys_from(start: Expr, count: int) -> None:
                if 0 in outs:  # dq
                    self._product(
                        rows,
                        shape.size,
                        count,
                        lambda r, i: k.load(ds, r * self.row + start + i),
                        lambda i, j, lanes: k.load(keys, (start + i) * shape.size + j, lanes),
                        self._adding(outs[0].at(k.bind(first * shape.size, "dq")), shape.size),
                    )
                for i, left, right, size in ((1, ds, q, shape.size), (2, p, g, shape.width)):
                    if i in outs:  # dk, dv
                        self._turned_product(count, rows, start, first, left, right, size, outs[i])

            mk.runs(k, shape.keys, BLOCK, 0, seen, keys_from)

        mk.runs(k, shape.queries, BLOCK, 0, mk.ceildiv(shape.queries, BLOCK), block)

    def _turned_product(
        self, count: int, rows: int, start: Expr, first: Expr, left: Buf, right: Buf, size: int, out: Buf
    ) -> None:
        """out[start + i] += Σ left[r, start + i] right[first + r] over the rows of a block."""
        k = self.k
        self._product(
            count,
            size,
            rows,
            lambda i, r: k.load(left, r * self.row + start + i),
            lambda r, j, lanes: k.load(right, (first + r) * size + j, lanes),
            self._adding(out.at(k.bind(start * size, "out")), size),
        )

    # -- its parts

    def _of(self, buf: Buf, number: Expr, size: int) -> Buf:
        """What of an array belongs to the head of that number."""
        return buf.at(self.k.bind(number * size, "head"))

    def _keys(self, number: Expr) -> tuple[Buf, Buf]:
        shape = self.shape
        return self._of(self.key, number, shape.keys * shape.size), self._of(self.v, number, shape.keys * shape.width)

    def _turn(self, source: Buf, size: int, target: Buf) -> None:
        """Rows of `size` numbers, one a key, into rows of a number of every key; what fills the last vector is 0."""
        k, lanes, keys = self.k, self.cpu.lanes, self.shape.keys

        def square(at: Value, columns: int) -> None:
            for first, width, count in mk.split(size, lanes):
                with k.loop(count, name="d") as step:
                    d = k.bind(tir.index(step * lanes + first), "d")
                    rows = [
                        k.bind(mk.padded(k.load(source, (at + c) * size + d, width), lanes), "t")
                        for c in range(columns)
                    ]
                    rows += [tir.splat(tir.const(0, "f32"), lanes)] * (lanes - columns)
                    for r, value in enumerate(mk.transposed(k, rows)[:width]):
                        k.store(target, value, (d + r) * self.row + at)

        mk.along(k, keys, lanes, square)

    def _scores(self, number: Expr, first: Expr, rows: int, seen: Value, q: Buf, turned: Buf, scores: Buf) -> None:
        """scores[r, j] = q[first + r] · key[j] · scale, or the lowest score where that key is not seen."""

        def write(r: Value, j: Value, x: Expr) -> None:
            value = x * tir.splat(tir.const(self.scale, "f32"), tir.lanes_of(x))
            self.k.store(scores, self.sight.only(number, first + r, j, value, UNSEEN), r * self.row + j)

        self._rows_times(first, rows, seen, q, self.shape.size, turned, write)
        self._fill_up(scores, rows, 2 * UNSEEN)

    def _fill_up(self, scores: Buf, rows: int, value: float) -> None:
        """The last vector of a row is worked on as a whole: what is no key in it."""
        if rest := -self.shape.keys % self.cpu.lanes:
            with self.k.loop(rows, name="r") as r:
                self.k.store(scores, tir.splat(tir.const(value, "f32"), rest), r * self.row + self.shape.keys)

    def _rows_times(
        self, first: Expr, rows: int, seen: Value, source: Buf, size: int, turned: Buf, write: Write
    ) -> None:
        """write(r, j, x): products of rows of `source` from `first` on with turned ones, a block of keys at a time."""
        k = self.k
        source = source.at(k.bind(first * size, "rows"))

        def keys_from(start: Expr, count: int) -> None:
            self._product(
                rows,
                count,
                size,
                lambda r, d: k.load(source, r * size + d),
                lambda d, j, lanes: k.load(turned, d * self.row + start + j, lanes),
                lambda r, j, x: write(r, start + j, x),
            )

        mk.runs(k, self.shape.keys, BLOCK, 0, seen, keys_from)

    def _product(self, m: int, n: int, kk: int, left: Left, right: Right, write: Write) -> None:
        """write(i, j, Σ left(i, k) right(k, j)) for m x n elements, tile by tile; panels of `right` stay in cache."""
        k, lanes = self.k, self.cpu.lanes
        rows, vectors = gemm_choice.outer_tile(m, n, lanes, self.cpu)
        width = vectors * lanes

        def panel(j: Expr, size: int) -> None:
            mk.runs(k, m, rows, 0, mk.ceildiv(m, rows), lambda i, count: tile(i, count, j, size))

        def tile(i: Expr, count: int, j: Expr, size: int) -> None:
            cuts = mk.widths(size, lanes)
            acc = mk.Tile(k, count, cuts, "f32")
            with k.loop(kk, name="k") as step:
                vectors = [k.bind(right(step, j + v * lanes, cut), "b") for v, cut in enumerate(cuts)]
                for r in range(count):
                    scalar = k.bind(left(i + r, step), "a")
                    for v, vector in enumerate(vectors):
                        acc.add(r, v, scalar, vector)
            for r in range(count):
                for v in range(len(cuts)):
                    write(i + r, j + v * lanes, acc.get(r, v))

        mk.runs(k, n, width, 0, mk.ceildiv(n, width), panel)

    def _adding(self, out: Buf, size: int) -> Write:
        """Adds to rows of `size` numbers."""

        def write(i: Value, j: Value, x: Expr) -> None:
            at = self.k.bind(tir.index(i * size + j), "at")
            self.k.store(out, self.k.load(out, at, tir.lanes_of(x)) + x, at)

        return write

    # -- rows

    def _each_row(self, rows: int, body: Callable[[Expr], None]) -> None:
        with self.k.loop(rows, name="r") as r:
            body(r)

    def _sweep(self, seen: Value, body: Callable[[Expr], None]) -> None:
        """body(column) for the vectors of a row that are seen in part."""
        lanes = self.cpu.lanes
        count = tir.minimum(tir.index(seen * (BLOCK // lanes)), mk.ceildiv(self.shape.keys, lanes))
        with self.k.loop(self.k.bind(count, "vectors"), name="j") as j:
            body(self.k.bind(j * lanes, "j"))

    def _folded(self, start: float, seen: Value, fold: Callable[[Expr, Expr], Expr]) -> Expr:
        """A vector into which all vectors of a row are folded: fold(column, so far) from `start`."""
        k, lanes = self.k, self.cpu.lanes
        total = k.local("total", lanes, "f32")
        k.store(total, tir.splat(tir.const(start, "f32"), lanes), 0)
        self._sweep(seen, lambda j: k.store(total, fold(j, k.load(total, 0, lanes)), 0))
        return k.load(total, 0, lanes)

    def _sum(self, seen: Value, value: Callable[[Expr], Expr]) -> Expr:
        """The sum of a row."""
        lanes = self._folded(0.0, seen, lambda j, total: total + value(j))
        return self.k.let(fold_lanes(self.k, self.algebra, "sum", lanes))

    def _exponentials(self, scores: Buf, r: Expr, seen: Value, sums: Buf, tops: Buf) -> None:
        """scores = exp(scores - the largest of the row), their sum, and which that was."""
        k, lanes = self.k, self.cpu.lanes
        row = scores.at(k.bind(r * self.row, "row"))
        top = largest(k, self._folded(4 * UNSEEN, seen, lambda j, top: larger(k.load(row, j, lanes), top)))
        k.store(tops, top, r)

        def exponential(j: Expr) -> Expr:
            value = k.let(exp_below(k, k.let(k.load(row, j, lanes) - tir.splat(top, lanes))))
            k.store(row, value, j)
            return value

        k.store(sums, self._sum(seen, exponential), r)

    def _softmax_grad(self, p: Buf, ds: Buf, r: Expr, seen: Value, total: Expr, largest: Expr) -> None:
        """p = p / total;  ds = p (ds - Σ p ds) · scale, or 0 in a row that sees nothing: it weighs all keys alike."""
        k, lanes = self.k, self.cpu.lanes
        at = k.bind(r * self.row, "row")
        weights, slopes = p.at(at), ds.at(at)
        inverse = k.let(tir.const(1.0, "f32") / total)
        lowest, zero = tir.const(UNSEEN, "f32"), tir.const(0.0, "f32")
        scale = k.let(tir.select(tir.compare("greater", largest, lowest), tir.const(self.scale, "f32"), zero))
        inner = self._sum(seen, lambda j: k.load(weights, j, lanes) * k.load(slopes, j, lanes))
        mean = k.let(inner * inverse)

        def one(j: Expr) -> None:
            weight = k.let(k.load(weights, j, lanes) * tir.splat(inverse, lanes))
            slope = (k.load(slopes, j, lanes) - tir.splat(mean, lanes)) * weight
            slope = slope * tir.splat(scale, lanes)
            k.store(weights, weight, j)
            k.store(slopes, slope, j)

        self._sweep(seen, one)

    def _scaled(self, out: Buf, r: Expr, size: int, total: Expr) -> None:
        """Row r of `out` over `total`."""
        k = self.k
        inverse = k.let(tir.const(1.0, "f32") / total)

        def one(at: Value, lanes: int) -> None:
            place = k.bind(tir.index(r * size + at), "at")
            k.store(out, k.load(out, place, lanes) * tir.splat(inverse, lanes), place)

        mk.along(k, size, self.cpu.lanes, one)

    def _clear(self, out: Buf, size: int) -> None:
        zero = tir.const(0, "f32")
        mk.along(self.k, size, self.cpu.lanes, lambda at, lanes: self.k.store(out, tir.splat(zero, lanes), at))


ATTENTION = Rule("attention", _claim, _emit)
