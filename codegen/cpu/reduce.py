"""Pattern "reduce": reductions over any axes, several over one domain in one pass, with an epilogue on their results.

Adjacent axes that all reads traverse with a uniform stride are merged (`loops.merged_axes`). If the last merged axis is
reduced, vectors run along it and their lanes are reduced at the end; else vectors of results are accumulated row by
row. A large domain with few results is split along the reduction: partial results are stored in a workspace and
combined in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.loops import PARALLEL, elementwise_candidate, merged_axes, weight
from gluongraph.codegen.expr.algebra import VectorAlgebra, accumulator_dtype, identity
from gluongraph.codegen.expr.evaluate import Index
from gluongraph.codegen.expr.expression import Expressions, size_of, unflatten, uniform_load
from gluongraph.codegen.rule import MAX_PARTIAL_SUMS, Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group
from gluongraph.storage import aligned

VECTORS = 4  # independent accumulators, which hide the latency of additions
Totals = dict[Node, Expr]


def reductions(group: Group) -> list[Node]:
    """Return the reductions of a group."""
    return [n for n in group.body.nodes() if n.op.kind == "reduce" and "axes" in n.attrs]


def reduction_domain(group: Group) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return shape and axes of all reductions if they agree and no reduction depends on another; else None."""
    roots = reductions(group)
    found = {(n.src[0].shape, tuple(n.attrs["axes"])) for n in roots}
    inner = set(topological([n.src[0] for n in roots]))
    return found.pop() if len(found) == 1 and inner.isdisjoint(roots) else None


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Claim groups of reductions over one domain, whose outputs have the size of the results."""
    if group.pattern != "reduce" or (space := reduction_domain(group)) is None:
        return None
    shape, axes = space
    num_results = size_of(tuple(d for a, d in enumerate(shape) if a not in axes))
    if elementwise_candidate("reduce", group) is None or any(
        n.ty.size != num_results for n in group.body.outputs.values()
    ):
        return None
    return Candidate("reduce", _Partition(group, cpu).workspace)


@dataclass(frozen=True)
class MergedAxes:
    """Axes that are merged into one: their sizes, and whether they are reduced."""

    parts: tuple[int, ...]
    reduced: bool

    @property
    def size(self) -> int:
        """Elements along all of them."""
        return size_of(self.parts)


class _Partition:
    """How the work is partitioned: results across parallel chunks, or the reduction into parts with a second stage."""

    def __init__(self, group: Group, cpu: Cpu):
        space = reduction_domain(group)
        assert space is not None
        shape, axes = space
        self.roots, self.cpu = reductions(group), cpu
        kinds = [a in axes for a in range(len(shape))]
        merged, _ = merged_axes(group, [n.src[0] for n in self.roots], shape, kinds)
        self.runs: list[MergedAxes] = []
        at = 0
        for parts in merged:
            self.runs.append(MergedAxes(parts, bool(kinds) and kinds[at]))
            at += len(parts)
        self._place(size_of(shape) * weight(topological([n.src[0] for n in self.roots])))

    def _place(self, work: int) -> None:
        lanes, last = self.cpu.lanes, self.runs[-1]
        self.reduces_last_axis = last.reduced
        self.outer_results = [r for r in self.runs[:-1] if not r.reduced]
        self.outer_reduced = [r for r in self.runs[:-1] if r.reduced]
        self.num_results = size_of(tuple(r.size for r in self.runs if not r.reduced))
        rows = size_of(tuple(r.size for r in self.outer_results))
        vectors = VECTORS if last.size >= VECTORS * lanes else 1
        self.block = lanes * vectors  # adjacent results
        self.blocks = 1 if self.reduces_last_axis else mk.ceildiv(last.size, self.block)
        self.units = rows * self.blocks
        self.first = (
            self.outer_reduced[0].size if self.outer_reduced else last.size // lanes
        )  # extent that is split into parts
        big = work >= PARALLEL
        self.split = big and self.units < MAX_PARTIAL_SUMS and self.first >= 4 * MAX_PARTIAL_SUMS
        self.split = self.split and (bool(self.outer_reduced) or self.reduces_last_axis)
        self.parts = MAX_PARTIAL_SUMS if self.split else 1
        self.num_chunks = min(self.units, self.cpu.chunks) if big else 1

    @property
    def workspace(self) -> int:
        """Bytes of the partial results of all reductions."""
        return sum(map(self.bytes_of, self.roots)) if self.split else 0

    def bytes_of(self, n: Node) -> int:
        """Return the bytes of the partial results of one reduction."""
        return aligned(self.parts * self.num_results * DTYPES[accumulator_dtype(n.dtype)].nbytes)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Emit the reductions, then the elementwise epilogue on their results."""
    _Emit(k, group, bindings, cpu).run()


Done = Callable[[Value, int, Totals], None]  # done(first result, number of results, their values)


class _Emit:
    def __init__(self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu):
        self.k, self.group, self.bindings, self.cpu = k, group, bindings, cpu
        self.partition = _Partition(group, cpu)
        self.algebra = VectorAlgebra(k)

    def run(self) -> None:
        k, partition = self.k, self.partition
        if not partition.split:
            mk.parallel_chunks(k, partition.units, partition.num_chunks, lambda _, u: self._unit(u, None, self._finish))
            return
        partial = self._partials()
        with k.loop(partition.parts, "parallel", "part") as part:

            def store_partial(at: Value, lanes: int, totals: Totals) -> None:
                for n, total in totals.items():
                    k.store(partial[n], total, part * partition.num_results + at)

            with k.loop(partition.units, name="unit") as u:
                self._unit(u, part, store_partial)

        def fold(at: Value, lanes: int) -> None:
            made = {}
            for n, buf in partial.items():
                total = k.load(buf, at, lanes)
                for p in range(1, partition.parts):
                    total = k.let(
                        self.algebra.fold(n.op.name, total, k.load(buf, at + p * partition.num_results, lanes))
                    )
                made[n] = total
            self._finish(at, lanes, made)

        mk.for_vectors(k, partition.num_results, self.cpu.lanes, fold)

    def _partials(self) -> dict[Node, Buf]:
        found, at = {}, 0
        for n in self.partition.roots:
            assert self.bindings.workspace is not None
            found[n] = self.k.view(self.bindings.workspace, accumulator_dtype(n.dtype), at)
            at += self.partition.bytes_of(n)
        return found

    def _unit(self, unit: Expr, part: Expr | None, done: Done) -> None:
        """Compute one result, or one block of adjacent results; only a part of the reduction if `part` is set."""
        k, partition = self.k, self.partition
        k.ranges.bind(unit, partition.units)
        row = unit if partition.blocks == 1 else k.let(tir.floordiv(unit, partition.blocks), "row")
        k.ranges.bind(row, partition.units // partition.blocks)
        result_index = unflatten(row, tuple(r.size for r in partition.outer_results))
        if partition.reduces_last_axis:
            self._reduce_last_axis(result_index, part, lambda totals: done(row, 1, totals))
            return
        width = partition.runs[-1].size

        def block(start: Value, size: int) -> None:
            cuts = mk.widths(size, self.cpu.lanes)
            sums = [self._new(lanes) for lanes in cuts]
            finished, settle = totals(k, sums, self._terms(part))
            with self._rows(part, settle) as reduced:
                expressions = Expressions(k, self.group, self.bindings)
                for v, lanes in enumerate(cuts):
                    last = expressions.along(start + v * self.cpu.lanes, lanes, width)
                    self._add(sums[v], expressions, self._index(result_index, reduced, last), lanes)
            for v, lanes in enumerate(cuts):
                found = {n: k.let(k.load(buf, 0, lanes)) for n, buf in finished[v].items()}
                done(row * width + (start + v * self.cpu.lanes), lanes, found)

        number = tir.index(0) if partition.blocks == 1 else k.let(tir.floormod(unit, partition.blocks), "block")
        mk.for_blocks(k, width, partition.block, number, 1, block)

    def _terms(self, part: Expr | None) -> int:
        """Return the number of terms along the outer reduced axes, or of one part of the first of them."""
        return size_of(tuple(self._outer(part)))

    def _outer(self, part: Expr | None) -> list[int]:
        """Return the extents of the loops over the outer reduced axes."""
        sizes = [r.size for r in self.partition.outer_reduced]
        return [mk.ceildiv(sizes[0], self.partition.parts), *sizes[1:]] if sizes and part is not None else sizes

    @contextmanager
    def _rows(self, part: Expr | None, settle: mk.Settle | None, each: int = 1) -> Iterator[Index]:
        """Loops over the outer reduced axes, or over one part of the first of them; the body adds `each` terms."""
        k, most = self.k, self._outer(part)
        if not most or part is None:
            with mk.chained(k, settle, most, each) as at:
                yield at
            return
        size = self.partition.outer_reduced[0].size
        first, count = mk.chunk_range(k, size, self.partition.parts, part)
        with mk.chained(k, settle, [count, *most[1:]], each, most) as (i, *inner):
            row = k.let(tir.index(first + i), "at")
            k.ranges.bind(row, size)
            yield (row, *inner)

    def _reduce_last_axis(self, result_index: Index, part: Expr | None, done: Callable[[Totals], None]) -> None:
        """Compute one result: vectors along the last axis, several accumulators, one more for the partial vector."""
        k, lanes, n = self.k, self.cpu.lanes, self.partition.runs[-1].size
        full, rest = divmod(n, lanes)
        shared = part is not None and not self.partition.outer_reduced  # the last axis itself is cut
        flight = 1 if shared or full < 2 * VECTORS else VECTORS
        sums = [self._new(lanes) for _ in range(flight)] if full else []
        left = [self._new(rest)] if rest else []
        steps = mk.ceildiv(full, self.partition.parts) if shared else full // flight + full % flight + (rest > 0)
        finished, settle = totals(k, [*sums, *left], self._terms(part) * steps)
        outer, inner = mk.settle_in_outer_or_inner(settle, steps)

        def add(reduced: Index, sum: dict[Node, Buf], at: Value, width: int) -> None:
            expressions = Expressions(k, self.group, self.bindings)
            self._add(sum, expressions, self._index(result_index, reduced, expressions.along(at, width, n)), width)

        with self._rows(part, outer, steps) as reduced:
            if shared:
                assert part is not None
                first, count = mk.chunk_range(k, full, self.partition.parts, part)
                with mk.chained(k, inner, [count], most=[steps]) as (v,):
                    add(reduced, sums[0], (first + v) * lanes, lanes)
                if rest:
                    with k.when(tir.compare("equal", part, tir.index(0))):
                        add(reduced, left[0], full * lanes, rest)
            else:
                with mk.chained(k, inner, [full // flight]) as (v,):
                    for f in range(flight if full else 0):
                        add(reduced, sums[f], (v * flight + f) * lanes, lanes)
                for v in range(full - full % flight, full):
                    add(reduced, sums[0], v * lanes, lanes)
                if rest:
                    add(reduced, left[0], full * lanes, rest)
            if inner is not None:
                inner()
        done({root: combine_vectors(k, self.algebra, root, finished) for root in self.partition.roots})

    def _index(self, result_index: Index, reduced: Index, last: Value) -> Index:
        """Return the index in the domain from the positions along its merged axes."""
        result_at, reduced_at = iter(result_index), iter(reduced)
        index: list[Value] = []
        for run in self.partition.runs[:-1]:
            index += unflatten(next(reduced_at if run.reduced else result_at), run.parts)
        return (*index, *unflatten(last, self.partition.runs[-1].parts))

    def _new(self, lanes: int) -> dict[Node, Buf]:
        """Return an accumulator of `lanes` lanes for each reduction, initialized with its identity."""
        made = {}
        for n in self.partition.roots:
            dtype = accumulator_dtype(n.dtype)
            made[n] = self.k.local("total", lanes, dtype)
            self.k.store(made[n], tir.splat(identity(n.op.name, dtype), lanes), 0)
        return made

    def _add(self, sums: dict[Node, Buf], expressions: Expressions, index: Index, lanes: int) -> None:
        for n, buf in sums.items():
            value = self.algebra.cast(expressions.at(n.src[0], index), buf.dtype)
            self.k.store(buf, self.algebra.fold(n.op.name, self.k.load(buf, 0, lanes), value), 0)

    def _finish(self, at: Value, lanes: int, totals: Totals) -> None:
        """Compute the epilogue on finished results, and store the outputs."""
        k = self.k
        known = {n: uniform_load(self.algebra.cast(total, n.dtype)) for n, total in totals.items()}
        expressions = Expressions(k, self.group, self.bindings, known)
        place = expressions.along(at, lanes, self.partition.num_results)
        outputs = self.group.body.outputs.values()
        values = [expressions.at(n, unflatten(place, n.shape)) for n in outputs]
        for buf, value in zip(self.bindings.outputs, values, strict=True):
            k.store(buf, value, at)


def totals(k: Kernel, sums: list[dict[Node, Buf]], terms: int) -> tuple[list[dict[Node, Buf]], mk.Settle | None]:
    """Return the buffers of the finished results of `terms` terms, and the function that ends a chain of those that
    are sums (`mk.totals`)."""
    places = [(i, n) for i, vectors in enumerate(sums) for n in vectors if n.op.name == "sum"]
    found, settle = mk.totals(k, [sums[i][n] for i, n in places], terms)
    finished = [dict(vectors) for vectors in sums]
    for (i, n), buf in zip(places, found, strict=True):
        finished[i][n] = buf
    return finished, settle


def combine_vectors(k: Kernel, algebra: VectorAlgebra, n: Node, sums: list[dict[Node, Buf]]) -> Expr:
    """Reduce several accumulator vectors, the last of which may be shorter, to a scalar."""
    name = n.op.name
    vectors = [k.let(k.load(sum[n], 0, sum[n].size)) for sum in sums]
    full = [v for v in vectors if tir.lanes_of(v) == tir.lanes_of(vectors[0])]
    shorter = vectors[len(full) :]
    while len(full) > 1:
        full = [k.let(algebra.fold(name, a, b)) for a, b in zip(full[::2], full[1::2], strict=True)]
    total = reduce_lanes(k, algebra, name, full[0])
    for v in shorter:
        total = algebra.fold(name, total, reduce_lanes(k, algebra, name, v))
    return k.let(total)


def reduce_lanes(k: Kernel, algebra: VectorAlgebra, name: str, x: Expr) -> Expr:
    """Reduce all lanes to one, in halves, as a fixed tree; an odd lane in the middle is kept for the next round."""
    lanes = tir.lanes_of(x)
    while lanes > 1:
        x, half = k.let(x), lanes // 2
        reduced = algebra.fold(name, tir.shuffle([x], range(half)), tir.shuffle([x], range(lanes - half, lanes)))
        if lanes % 2:
            reduced = tir.shuffle([k.let(reduced), tir.shuffle([x], [half])], range(half + 1))
        x, lanes = reduced, lanes - half
    return x


REDUCE = Rule("reduce", claim, emit)
