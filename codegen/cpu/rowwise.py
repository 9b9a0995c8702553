"""Pattern "rowwise": softmax, norms, cross entropy, their gradients, one row at a time: each stage is one pass over the
row while it is in cache."""

from __future__ import annotations

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.loops import PARALLEL, elementwise_candidate
from gluongraph.codegen.cpu.reduce import VECTORS, combine_vectors, reduce_lanes, reductions, totals
from gluongraph.codegen.expr.algebra import VectorAlgebra, accumulator_dtype, identity
from gluongraph.codegen.expr.evaluate import Load
from gluongraph.codegen.expr.expression import (
    Expressions,
    can_flatten_axes,
    flattened_axis,
    flattened_index,
    size_of,
    unflatten,
    uniform_load,
)
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group

BUFFERED = 8192  # elements of a row up to which values are buffered between passes, in L1 or near it
LONG = 512  # elements of a row from which the next row is prefetched: of shorter ones the hardware prefetcher does it


def _space(group: Group) -> tuple[tuple[int, ...], int] | None:
    """Return the common domain of the reductions, and its first reduced axis; None if they differ."""
    found = {(n.src[0].shape, tuple(n.attrs["axes"])) for n in reductions(group)}
    if len(found) != 1:
        return None
    ((domain, axes),) = found
    start = len(domain) - len(axes)
    return (domain, start) if axes == tuple(range(start, len(domain))) else None


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Claim groups whose reductions are all over the same trailing axes."""
    if group.pattern != "rowwise" or (space := _space(group)) is None:
        return None
    domain, start = space
    rows = size_of(domain[:start])
    if any(n.shape != domain and n.ty.size != rows for n in group.body.outputs.values()):
        return None
    if any(n.op.name == "gather" for n in group.body.nodes()):
        return None
    if len(domain) - start > 1 and not can_flatten_axes(group.body.nodes(), domain, start):
        return None
    return elementwise_candidate("rowwise", group)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Emit one row after another; rows are distributed over parallel chunks."""
    space = _space(group)
    assert space is not None
    domain, start = space
    rows = size_of(domain[:start])
    parallel = size_of(domain) >= PARALLEL // 4

    def one(_: Expr, row: Expr) -> None:
        _Row(k, group, bindings, cpu, domain, start, row).emit()

    mk.parallel_chunks(k, rows, min(rows, cpu.chunks) if parallel else 1, one)


class _Row:
    """Emits one row: its reductions stage by stage, then its outputs."""

    def __init__(
        self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, domain: tuple[int, ...], start: int, row: Expr
    ):
        self.k, self.group, self.bindings, self.cpu = k, group, bindings, cpu
        self.domain, self.start, self.row = domain, start, row
        self.columns = size_of(domain[start:])
        self.known: dict[Node, Load] = {}
        self.algebra = VectorAlgebra(k)
        self.buffers: dict[Node, Buf] = {}

    def emit(self) -> None:
        """Emit all stages and the outputs."""
        pending = reductions(self.group)
        stages = []
        while pending:
            ready = [n for n in pending if not any(m in pending for m in topological([n.src[0]]))]
            stages.append(ready)
            pending = [n for n in pending if n not in ready]
        buffered = self._values_to_buffer(stages)
        for stage in stages:
            self._stage(stage, buffered)
        self._results()

    def _values_to_buffer(self, stages: list[list[Node]]) -> set[Node]:
        """Return the row-sized values that are not free to recompute and are read by more than one pass."""
        if self.columns > BUFFERED:
            return set()
        outputs = [n for n in self.group.body.outputs.values() if n.shape == self.domain]
        seen: dict[Node, int] = {}
        for roots in [*[[n.src[0] for n in stage] for stage in stages], outputs]:
            stops = set(reductions(self.group))
            for n in _producers(roots, stops):
                seen[n] = seen.get(n, 0) + 1
        return {n for n, sweeps in seen.items() if sweeps > 1 and n.shape == self.domain and n.op.cost}

    def _index(self, at: Value, lanes: int) -> tuple[Value, ...]:
        return flattened_index(self.domain, unflatten(self.row, self.domain[: self.start]), tir.ramp(at, lanes))

    def _expressions(self) -> Expressions:
        """Return an evaluator that reads finished reductions and buffered rows."""
        known = dict(self.known)
        for n, buf in self.buffers.items():
            known[n] = self._row(buf)
        return Expressions(self.k, self.group, self.bindings, known)

    def _row(self, buf: Buf) -> Load:
        return lambda *index: self.k.load(buf, index[flattened_axis(self.domain, self.start)])

    def _stage(self, stage: list[Node], buffered: set[Node]) -> None:
        k, lanes = self.k, self.cpu.lanes
        full = self.columns // lanes
        flight = VECTORS if full >= 2 * VECTORS else 1  # independent accumulators, which hide the latency of additions
        sums = [{n: self._new(n, lanes) for n in stage} for _ in range(flight)] if full else []
        finished, settle = totals(k, sums, full // flight)
        found: dict[Node, Expr] = {}
        needed = _producers([m.src[0] for m in stage], set(reductions(self.group)))
        keep = [n for n in needed if n in buffered and n not in self.buffers]
        made = {n: k.local("row", self.columns, "f32" if n.dtype == "bf16" else n.dtype) for n in keep}
        # The first pass has brought this row into cache; later passes that compute can overlap loading the next row.
        expensive = any(n.op.cost and n.shape == self.domain for n in needed)
        prefetches = expensive and self.columns >= LONG and self.known

        def evaluate_pass(at: Value, width: int) -> dict[Node, Expr]:
            if prefetches:
                self._prefetch_next_row(at)
            expressions = self._expressions()
            index = self._index(at, width)
            for n, buf in made.items():
                k.store(buf, expressions.at(n, index), at)
            return {n: self.algebra.cast(expressions.at(n.src[0], index), accumulator_dtype(n.dtype)) for n in stage}

        def add(sums: dict[Node, Buf], at: Value) -> None:
            for n, value in evaluate_pass(at, lanes).items():
                k.store(sums[n], self.algebra.fold(n.op.name, k.load(sums[n], 0, lanes), value), 0)

        if full:
            with mk.chained(k, settle, [full // flight]) as (s,):
                for f, vectors in enumerate(sums):
                    add(vectors, k.let((s * flight + f) * lanes))
            for v in range(full - full % flight, full):
                add(sums[0], v * lanes)
            if settle is not None:
                settle()
            found = {n: combine_vectors(k, self.algebra, n, finished) for n in stage}
        if rest := self.columns % lanes:
            for n, value in evaluate_pass(full * lanes, rest).items():
                tail = reduce_lanes(k, self.algebra, n.op.name, value)
                found[n] = self.algebra.fold(n.op.name, found[n], tail) if full else tail
        for n, total in found.items():
            self.known[n] = uniform_load(k.let(self.algebra.cast(total, n.dtype)))
        self.buffers.update(made)

    def _prefetch_next_row(self, at: Value) -> None:
        """Prefetch the inputs of the next row at this position."""
        for n, buf in self.bindings.by_node(self.group).items():
            if n.shape == self.domain:
                self.k.prefetch(self.k.load(buf, (self.row + 1) * self.columns + at))

    def _results(self) -> None:
        k = self.k
        pairs = list(zip(self.group.body.outputs.values(), self.bindings.outputs, strict=True))
        row_outputs = [(n, buf) for n, buf in pairs if n.shape == self.domain]
        per_row_outputs = [(n, buf) for n, buf in pairs if n.shape != self.domain]

        def evaluate_pass(at: Value, width: int) -> None:
            at = k.let(at)
            expressions = self._expressions()
            values = [expressions.at(n, self._index(at, width)) for n, _ in row_outputs]
            for (_, buf), value in zip(row_outputs, values, strict=True):
                k.store(buf, value, self.row * self.columns + at)

        if row_outputs:
            mk.for_vectors(k, self.columns, self.cpu.lanes, evaluate_pass)
        expressions = self._expressions()
        # Last: an output may overwrite a per-row input, which the pass above reads.
        values = [expressions.at(n, unflatten(self.row, n.shape)) for n, _ in per_row_outputs]
        for (_, buf), value in zip(per_row_outputs, values, strict=True):
            k.store(buf, value, self.row)

    def _new(self, n: Node, lanes: int) -> Buf:
        made = self.k.local("total", lanes, accumulator_dtype(n.dtype))
        self.k.store(made, tir.splat(identity(n.op.name, accumulator_dtype(n.dtype)), lanes), 0)
        return made


def _producers(roots: list[Node], stops: set[Node]) -> list[Node]:
    """Return the nodes that the roots are computed from, down to `stops`, in topological order of a depth-first
    walk."""
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found and n not in stops:
            found[n] = None
            stack.extend(n.src)
    return list(reversed(found))


ROWWISE = Rule("rowwise", claim, emit)
