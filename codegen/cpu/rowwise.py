"""Pattern "rowwise": softmax, norms, cross entropy, their gradients, a row at a time: each stage sweeps it in cache."""

from __future__ import annotations

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.loops import PARALLEL, offered
from gluongraph.codegen.cpu.reduce import VECTORS, combined, fold_lanes, folds, totals
from gluongraph.codegen.expr.algebra import VectorAlgebra, identity, wide
from gluongraph.codegen.expr.evaluate import Load
from gluongraph.codegen.expr.expression import Expressions, always, as_one, count_as_one, place_of, size_of, unflatten
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group

BUFFERED = 8192  # elements of a row that may be kept between sweeps, in the first cache or near it
LONG = 512  # elements of a row that memory has to be asked for: of shorter ones the processor finds the next by itself


def _space(group: Group) -> tuple[tuple[int, ...], int] | None:
    """The domain, and its first reduced axis."""
    found = {(n.src[0].shape, tuple(n.attrs["axes"])) for n in folds(group)}
    if len(found) != 1:
        return None
    ((domain, axes),) = found
    start = len(domain) - len(axes)
    return (domain, start) if axes == tuple(range(start, len(domain))) else None


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Groups whose reductions all run over the same trailing axes."""
    if group.pattern != "rowwise" or (space := _space(group)) is None:
        return None
    domain, start = space
    rows = size_of(domain[:start])
    if any(n.shape != domain and n.ty.size != rows for n in group.body.outputs.values()):
        return None
    if any(n.op.name == "gather" for n in group.body.nodes()):
        return None
    if len(domain) - start > 1 and not count_as_one(group.body.nodes(), domain, start):
        return None
    return offered("rowwise", group)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """One row after another; rows are shared out among chunks."""
    space = _space(group)
    assert space is not None
    domain, start = space
    rows = size_of(domain[:start])
    parallel = size_of(domain) >= PARALLEL // 4

    def one(_: Expr, row: Expr) -> None:
        _Row(k, group, bindings, cpu, domain, start, row).emit()

    mk.parallel_chunks(k, rows, min(rows, cpu.chunks) if parallel else 1, one)


class _Row:
    """One row: its reductions stage by stage, then its outputs."""

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
        """All stages."""
        pending = folds(self.group)
        stages = []
        while pending:
            ready = [n for n in pending if not any(m in pending for m in topological([n.src[0]]))]
            stages.append(ready)
            pending = [n for n in pending if n not in ready]
        kept = self._worth_keeping(stages)
        for stage in stages:
            self._stage(stage, kept)
        self._results()

    def _worth_keeping(self, stages: list[list[Node]]) -> set[Node]:
        """Whole-row values that cost something and are read by more than one sweep."""
        if self.columns > BUFFERED:
            return set()
        outputs = [n for n in self.group.body.outputs.values() if n.shape == self.domain]
        seen: dict[Node, int] = {}
        for roots in [*[[n.src[0] for n in stage] for stage in stages], outputs]:
            stops = set(folds(self.group))
            for n in _above(roots, stops):
                seen[n] = seen.get(n, 0) + 1
        return {n for n, sweeps in seen.items() if sweeps > 1 and n.shape == self.domain and n.op.cost}

    def _index(self, at: Value, lanes: int) -> tuple[Value, ...]:
        return as_one(self.domain, unflatten(self.row, self.domain[: self.start]), tir.ramp(at, lanes))

    def _expressions(self) -> Expressions:
        """Values over what is known by now: finished reductions, and rows on the stack."""
        known = dict(self.known)
        for n, buf in self.buffers.items():
            known[n] = self._row(buf)
        return Expressions(self.k, self.group, self.bindings, known)

    def _row(self, buf: Buf) -> Load:
        return lambda *index: self.k.load(buf, index[place_of(self.domain, self.start)])

    def _stage(self, stage: list[Node], kept: set[Node]) -> None:
        k, lanes = self.k, self.cpu.lanes
        full = self.columns // lanes
        flight = VECTORS if full >= 2 * VECTORS else 1  # sums side by side: each waits for its last addition
        sums = [{n: self._new(n, lanes) for n in stage} for _ in range(flight)] if full else []
        wholes, settle = totals(k, sums, full // flight)
        found: dict[Node, Expr] = {}
        needed = _above([m.src[0] for m in stage], set(folds(self.group)))
        keep = [n for n in needed if n in kept and n not in self.buffers]
        made = {n: k.local("row", self.columns, "f32" if n.dtype == "bf16" else n.dtype) for n in keep}
        # What this row needs has come with its first sweep; while this one computes, memory can bring the next row.
        expensive = any(n.op.cost and n.shape == self.domain for n in needed)
        ahead = expensive and self.columns >= LONG and self.known

        def sweep(at: Value, width: int) -> dict[Node, Expr]:
            if ahead:
                self._fetch_next(at)
            expressions = self._expressions()
            index = self._index(at, width)
            for n, buf in made.items():
                k.store(buf, expressions.at(n, index), at)
            return {n: self.algebra.cast(expressions.at(n.src[0], index), wide(n.dtype)) for n in stage}

        def add(sums: dict[Node, Buf], at: Value) -> None:
            for n, value in sweep(at, lanes).items():
                k.store(sums[n], self.algebra.fold(n.op.name, k.load(sums[n], 0, lanes), value), 0)

        if full:
            with mk.chained(k, settle, [full // flight]) as (s,):
                for f, vectors in enumerate(sums):
                    add(vectors, k.let((s * flight + f) * lanes))
            for v in range(full - full % flight, full):
                add(sums[0], v * lanes)
            if settle is not None:
                settle()
            found = {n: combined(k, self.algebra, n, wholes) for n in stage}
        if rest := self.columns % lanes:
            for n, value in sweep(full * lanes, rest).items():
                tail = fold_lanes(k, self.algebra, n.op.name, value)
                found[n] = self.algebra.fold(n.op.name, found[n], tail) if full else tail
        for n, total in found.items():
            self.known[n] = always(k.let(self.algebra.cast(total, n.dtype)))
        self.buffers.update(made)

    def _fetch_next(self, at: Value) -> None:
        """Ask memory for what the next row has at this place."""
        for n, buf in self.bindings.by_node(self.group).items():
            if n.shape == self.domain:
                self.k.fetch(self.k.load(buf, (self.row + 1) * self.columns + at))

    def _results(self) -> None:
        k = self.k
        pairs = list(zip(self.group.body.outputs.values(), self.bindings.outputs, strict=True))
        whole = [(n, buf) for n, buf in pairs if n.shape == self.domain]
        single = [(n, buf) for n, buf in pairs if n.shape != self.domain]

        def sweep(at: Value, width: int) -> None:
            at = k.let(at)
            expressions = self._expressions()
            values = [expressions.at(n, self._index(at, width)) for n, _ in whole]
            for (_, buf), value in zip(whole, values, strict=True):
                k.store(buf, value, self.row * self.columns + at)

        if whole:
            mk.for_vectors(k, self.columns, self.cpu.lanes, sweep)
        expressions = self._expressions()
        # At last: where a value of the row is overwritten, the sweep above has read the old one.
        values = [expressions.at(n, unflatten(self.row, n.shape)) for n, _ in single]
        for (_, buf), value in zip(single, values, strict=True):
            k.store(buf, value, self.row)

    def _new(self, n: Node, lanes: int) -> Buf:
        made = self.k.local("total", lanes, wide(n.dtype))
        self.k.store(made, tir.splat(identity(n.op.name, wide(n.dtype)), lanes), 0)
        return made


def _above(roots: list[Node], stops: set[Node]) -> list[Node]:
    """The nodes that the roots are computed from, down to finished reductions."""
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found and n not in stops:
            found[n] = None
            stack.extend(n.src)
    return list(reversed(found))


ROWWISE = Rule("rowwise", claim, emit)
