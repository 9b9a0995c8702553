"""Pattern "reduce": reductions over any axes, several over one domain in one pass, with an epilogue on their results.

Axes that all reads step through evenly count as one (`loops.merged_axes`). Where the last of them is reduced, vectors
run along it and their lanes are folded at the end; where it is kept, vectors of results are summed row after row. A
large space with few results is cut along the sum: the parts lie in a workspace and are folded in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.loops import PARALLEL, merged_axes, offered, weight
from gluongraph.codegen.expr.algebra import VectorAlgebra, identity, wide
from gluongraph.codegen.expr.evaluate import Index
from gluongraph.codegen.expr.expression import Expressions, always, size_of, unflatten
from gluongraph.codegen.rule import SHARES, Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group
from gluongraph.storage import aligned

VECTORS = 4  # sums in flight, side by side
Totals = dict[Node, Expr]


def folds(group: Group) -> list[Node]:
    """The reductions of a group."""
    return [n for n in group.body.nodes() if n.op.kind == "reduce" and "axes" in n.attrs]


def space_of(group: Group) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and axes of all reductions, if they agree and none of them needs another."""
    roots = folds(group)
    found = {(n.src[0].shape, tuple(n.attrs["axes"])) for n in roots}
    inner = set(topological([n.src[0] for n in roots]))
    return found.pop() if len(found) == 1 and inner.isdisjoint(roots) else None


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Reductions over one space, whose results are all that is stored or read further."""
    if group.pattern != "reduce" or (space := space_of(group)) is None:
        return None
    shape, axes = space
    kept = size_of(tuple(d for a, d in enumerate(shape) if a not in axes))
    if offered("reduce", group) is None or any(n.ty.size != kept for n in group.body.outputs.values()):
        return None
    return Candidate("reduce", _Cut(group, cpu).workspace)


@dataclass(frozen=True)
class Run:
    """Axes that count as one: their sizes, and whether they are folded away."""

    parts: tuple[int, ...]
    folded: bool

    @property
    def size(self) -> int:
        """Elements along all of them."""
        return size_of(self.parts)


class _Cut:
    """How the work is cut: results across chunks, or the sums across parts with a second stage."""

    def __init__(self, group: Group, cpu: Cpu):
        space = space_of(group)
        assert space is not None
        shape, axes = space
        self.roots, self.cpu = folds(group), cpu
        kinds = [a in axes for a in range(len(shape))]
        merged, _ = merged_axes(group, [n.src[0] for n in self.roots], shape, kinds)
        self.runs: list[Run] = []
        at = 0
        for parts in merged:
            self.runs.append(Run(parts, bool(kinds) and kinds[at]))
            at += len(parts)
        self._place(size_of(shape) * weight(topological([n.src[0] for n in self.roots])))

    def _place(self, work: int) -> None:
        lanes, last = self.cpu.lanes, self.runs[-1]
        self.along_rows = last.folded
        self.outer_kept = [r for r in self.runs[:-1] if not r.folded]
        self.outer_folded = [r for r in self.runs[:-1] if r.folded]
        self.kept = size_of(tuple(r.size for r in self.runs if not r.folded))
        rows = size_of(tuple(r.size for r in self.outer_kept))
        vectors = VECTORS if last.size >= VECTORS * lanes else 1
        self.block = lanes * vectors  # results side by side
        self.blocks = 1 if self.along_rows else mk.ceildiv(last.size, self.block)
        self.units = rows * self.blocks
        self.first = self.outer_folded[0].size if self.outer_folded else last.size // lanes  # what parts share
        big = work >= PARALLEL
        self.split = big and self.units < SHARES and self.first >= 4 * SHARES
        self.split = self.split and (bool(self.outer_folded) or self.along_rows)
        self.parts = SHARES if self.split else 1
        self.num_chunks = min(self.units, self.cpu.chunks) if big else 1

    @property
    def workspace(self) -> int:
        """Bytes for the parts of all sums."""
        return sum(map(self.bytes_of, self.roots)) if self.split else 0

    def bytes_of(self, n: Node) -> int:
        """Bytes for the parts of one sum."""
        return aligned(self.parts * self.kept * DTYPES[wide(n.dtype)].nbytes)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Sum, then the elementwise work on the sums."""
    _Emit(k, group, bindings, cpu).run()


Done = Callable[[Value, int, Totals], None]  # done(first result, how many, their totals)


class _Emit:
    def __init__(self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu):
        self.k, self.group, self.bindings, self.cpu = k, group, bindings, cpu
        self.cut = _Cut(group, cpu)
        self.algebra = VectorAlgebra(k)

    def run(self) -> None:
        k, cut = self.k, self.cut
        if not cut.split:
            mk.parallel_chunks(k, cut.units, cut.num_chunks, lambda _, u: self._unit(u, None, self._finish))
            return
        partial = self._partials()
        with k.loop(cut.parts, "parallel", "part") as part:

            def keep(at: Value, lanes: int, totals: Totals) -> None:
                for n, total in totals.items():
                    k.store(partial[n], total, part * cut.kept + at)

            with k.loop(cut.units, name="unit") as u:
                self._unit(u, part, keep)

        def fold(at: Value, lanes: int) -> None:
            made = {}
            for n, buf in partial.items():
                total = k.load(buf, at, lanes)
                for p in range(1, cut.parts):
                    total = k.let(self.algebra.fold(n.op.name, total, k.load(buf, at + p * cut.kept, lanes)))
                made[n] = total
            self._finish(at, lanes, made)

        mk.for_vectors(k, cut.kept, self.cpu.lanes, fold)

    def _partials(self) -> dict[Node, Buf]:
        found, at = {}, 0
        for n in self.cut.roots:
            assert self.bindings.workspace is not None
            found[n] = self.k.view(self.bindings.workspace, wide(n.dtype), at)
            at += self.cut.bytes_of(n)
        return found

    def _unit(self, unit: Expr, part: Expr | None, done: Done) -> None:
        """One result, or one block of results side by side; of one part if `part` is given."""
        k, cut = self.k, self.cut
        k.ranges.bind(unit, cut.units)
        row = unit if cut.blocks == 1 else k.let(tir.floordiv(unit, cut.blocks), "row")
        k.ranges.bind(row, cut.units // cut.blocks)
        kept = unflatten(row, tuple(r.size for r in cut.outer_kept))
        if cut.along_rows:
            self._along(kept, part, lambda totals: done(row, 1, totals))
            return
        width = cut.runs[-1].size

        def block(start: Value, size: int) -> None:
            cuts = mk.widths(size, self.cpu.lanes)
            sums = [self._new(lanes) for lanes in cuts]
            wholes, settle = totals(k, sums, self._terms(part))
            with self._rows(part, settle) as folded:
                expressions = Expressions(k, self.group, self.bindings)
                for v, lanes in enumerate(cuts):
                    last = expressions.along(start + v * self.cpu.lanes, lanes, width)
                    self._add(sums[v], expressions, self._index(kept, folded, last), lanes)
            for v, lanes in enumerate(cuts):
                found = {n: k.let(k.load(buf, 0, lanes)) for n, buf in wholes[v].items()}
                done(row * width + (start + v * self.cpu.lanes), lanes, found)

        number = tir.index(0) if cut.blocks == 1 else k.let(tir.floormod(unit, cut.blocks), "block")
        mk.for_blocks(k, width, cut.block, number, 1, block)

    def _terms(self, part: Expr | None) -> int:
        """Terms along the folded axes but the last, or of one part of the first of them."""
        return size_of(tuple(self._outer(part)))

    def _outer(self, part: Expr | None) -> list[int]:
        """Steps of the loops over the folded axes but the last."""
        sizes = [r.size for r in self.cut.outer_folded]
        return [mk.ceildiv(sizes[0], self.cut.parts), *sizes[1:]] if sizes and part is not None else sizes

    @contextmanager
    def _rows(self, part: Expr | None, settle: mk.Settle | None, each: int = 1) -> Iterator[Index]:
        """Loops over the folded axes but the last, or over one part of the first of them, for `each` terms."""
        k, most = self.k, self._outer(part)
        if not most or part is None:
            with mk.chained(k, settle, most, each) as at:
                yield at
            return
        size = self.cut.outer_folded[0].size
        first, count = mk.chunk_range(k, size, self.cut.parts, part)
        with mk.chained(k, settle, [count, *most[1:]], each, most) as (i, *inner):
            row = k.let(tir.index(first + i), "at")
            k.ranges.bind(row, size)
            yield (row, *inner)

    def _along(self, kept: Index, part: Expr | None, done: Callable[[Totals], None]) -> None:
        """One result: vectors along the last axis, several sums in flight, what fills no vector in a sum of its own."""
        k, lanes, n = self.k, self.cpu.lanes, self.cut.runs[-1].size
        full, rest = divmod(n, lanes)
        shared = part is not None and not self.cut.outer_folded  # the last axis itself is cut
        flight = 1 if shared or full < 2 * VECTORS else VECTORS
        sums = [self._new(lanes) for _ in range(flight)] if full else []
        left = [self._new(rest)] if rest else []
        steps = mk.ceildiv(full, self.cut.parts) if shared else full // flight + full % flight + (rest > 0)
        wholes, settle = totals(k, [*sums, *left], self._terms(part) * steps)
        outer, inner = mk.settle_in_outer_or_inner(settle, steps)

        def add(folded: Index, sum: dict[Node, Buf], at: Value, width: int) -> None:
            expressions = Expressions(k, self.group, self.bindings)
            self._add(sum, expressions, self._index(kept, folded, expressions.along(at, width, n)), width)

        with self._rows(part, outer, steps) as folded:
            if shared:
                assert part is not None
                first, count = mk.chunk_range(k, full, self.cut.parts, part)
                with mk.chained(k, inner, [count], most=[steps]) as (v,):
                    add(folded, sums[0], (first + v) * lanes, lanes)
                if rest:
                    with k.when(tir.compare("equal", part, tir.index(0))):
                        add(folded, left[0], full * lanes, rest)
            else:
                with mk.chained(k, inner, [full // flight]) as (v,):
                    for f in range(flight if full else 0):
                        add(folded, sums[f], (v * flight + f) * lanes, lanes)
                for v in range(full - full % flight, full):
                    add(folded, sums[0], v * lanes, lanes)
                if rest:
                    add(folded, left[0], full * lanes, rest)
            if inner is not None:
                inner()
        done({root: combined(k, self.algebra, root, wholes) for root in self.cut.roots})

    def _index(self, kept: Index, folded: Index, last: Value) -> Index:
        """The index in the space from the positions along its runs."""
        kept_at, folded_at = iter(kept), iter(folded)
        index: list[Value] = []
        for run in self.cut.runs[:-1]:
            index += unflatten(next(folded_at if run.folded else kept_at), run.parts)
        return (*index, *unflatten(last, self.cut.runs[-1].parts))

    def _new(self, lanes: int) -> dict[Node, Buf]:
        """A sum of so many lanes for each root."""
        made = {}
        for n in self.cut.roots:
            dtype = wide(n.dtype)
            made[n] = self.k.local("total", lanes, dtype)
            self.k.store(made[n], tir.splat(identity(n.op.name, dtype), lanes), 0)
        return made

    def _add(self, sums: dict[Node, Buf], expressions: Expressions, index: Index, lanes: int) -> None:
        for n, buf in sums.items():
            value = self.algebra.cast(expressions.at(n.src[0], index), buf.dtype)
            self.k.store(buf, self.algebra.fold(n.op.name, self.k.load(buf, 0, lanes), value), 0)

    def _finish(self, at: Value, lanes: int, totals: Totals) -> None:
        """The elementwise work on finished sums, and the stores."""
        k = self.k
        known = {n: always(self.algebra.cast(total, n.dtype)) for n, total in totals.items()}
        expressions = Expressions(k, self.group, self.bindings, known)
        place = expressions.along(at, lanes, self.cut.kept)
        outputs = self.group.body.outputs.values()
        values = [expressions.at(n, unflatten(place, n.shape)) for n in outputs]
        for buf, value in zip(self.bindings.outputs, values, strict=True):
            k.store(buf, value, at)


def totals(k: Kernel, sums: list[dict[Node, Buf]], terms: int) -> tuple[list[dict[Node, Buf]], mk.Settle | None]:
    """Where sums of so many terms are in the end, and what ends a chain of those that are added (`mk.totals`)."""
    places = [(i, n) for i, vectors in enumerate(sums) for n in vectors if n.op.name == "sum"]
    found, settle = mk.totals(k, [sums[i][n] for i, n in places], terms)
    wholes = [dict(vectors) for vectors in sums]
    for (i, n), buf in zip(places, found, strict=True):
        wholes[i][n] = buf
    return wholes, settle


def combined(k: Kernel, algebra: VectorAlgebra, n: Node, sums: list[dict[Node, Buf]]) -> Expr:
    """One number out of several vectors of a sum, the last of which may be shorter."""
    name = n.op.name
    vectors = [k.let(k.load(sum[n], 0, sum[n].size)) for sum in sums]
    whole = [v for v in vectors if tir.lanes_of(v) == tir.lanes_of(vectors[0])]
    others = vectors[len(whole) :]
    while len(whole) > 1:
        whole = [k.let(algebra.fold(name, a, b)) for a, b in zip(whole[::2], whole[1::2], strict=True)]
    total = fold_lanes(k, algebra, name, whole[0])
    for v in others:
        total = algebra.fold(name, total, fold_lanes(k, algebra, name, v))
    return k.let(total)


def fold_lanes(k: Kernel, algebra: VectorAlgebra, name: str, x: Expr) -> Expr:
    """All lanes folded into one: halves, as a fixed tree; an odd lane in the middle waits for the next round."""
    lanes = tir.lanes_of(x)
    while lanes > 1:
        x, half = k.let(x), lanes // 2
        folded = algebra.fold(name, tir.shuffle([x], range(half)), tir.shuffle([x], range(lanes - half, lanes)))
        if lanes % 2:
            folded = tir.shuffle([k.let(folded), tir.shuffle([x], [half])], range(half + 1))
        x, lanes = folded, lanes - half
    return x


REDUCE = Rule("reduce", claim, emit)
