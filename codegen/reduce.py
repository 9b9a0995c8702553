"""Pattern "reduce": sums and the like over leading, trailing or all axes, several of one space in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.expression import Expressions, always, inner_index, merged_from, size_of, unflatten
from gluongraph.codegen.loops import PARALLEL, offered
from gluongraph.codegen.math import CpuAlgebra, identity
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES
from gluongraph.ir import Node, topological
from gluongraph.plan import Candidate, Group

COLUMN_VECTORS = 4  # vectors side by side that a pass over rows sums up

Done = Callable[[Value, int, dict[Node, Expr]], None]  # done(first kept element, lanes, sum of each reduction)


def folds(group: Group) -> list[Node]:
    """The reductions of a group."""
    return [n for n in group.body.nodes() if n.op.kind == "reduce" and "axes" in n.attrs]


@dataclass(frozen=True)
class Space:
    """The domain as [before][kept][after]: sums run over `before` and `after`."""

    domain: tuple[int, ...]
    start: int  # first kept axis
    stop: int  # first axis behind

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the three parts."""
        d, start, stop = self.domain, self.start, self.stop
        return size_of(d[:start]), size_of(d[start:stop]), size_of(d[stop:])


def space_of(group: Group) -> Space | None:
    """The one space of all reductions, if their kept axes lie side by side."""
    found = {(n.src[0].shape, tuple(n.attrs["axes"])) for n in folds(group)}
    if len(found) != 1:
        return None
    ((domain, axes),) = found
    kept = [a for a in range(len(domain)) if a not in axes]
    if not kept:
        return Space(domain, 0, 0)
    if kept != list(range(kept[0], kept[-1] + 1)):
        return None
    return Space(domain, kept[0], kept[-1] + 1)


def wide(dtype: str) -> str:
    """What sums of a dtype are kept in."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Reductions over one space, none of which needs another."""
    if group.pattern != "reduce" or (space := space_of(group)) is None:
        return None
    roots = folds(group)
    inner = topological([n.src[0] for n in roots])
    if any(n in roots for n in inner):
        return None
    candidate = offered("reduce", group)
    if candidate is None:
        return None
    tail = space.start if space.sizes[2] == 1 else space.stop
    if merged_from(inner, space.domain) > tail and len(space.domain) - tail > 1:
        return None
    kept_shape = {n.shape for n in group.body.outputs.values()}
    if len(kept_shape) != 1:
        return None
    return Candidate("reduce", candidate.cost, _Plan(group, space, cpu).workspace)


class _Plan:
    """How the work is cut: columns across pieces, or rows across pieces with a second stage."""

    def __init__(self, group: Group, space: Space, cpu: Cpu):
        self.roots, self.space, self.cpu = folds(group), space, cpu
        self.before, self.kept, self.after = space.sizes
        big = self.before * self.kept * self.after >= PARALLEL
        self.columns = self.after == 1 and self.kept > 1  # vectors run along the kept axes
        self.width = cpu.lanes * (COLUMN_VECTORS if self.kept >= cpu.chunks * COLUMN_VECTORS * cpu.lanes else 1)
        across = mk.ceildiv(self.kept, self.width) if self.columns else self.kept
        self.units = across
        rows = self.before if self.columns or self.kept > 1 else self.before * self.after
        self.split = big and across < cpu.chunks and rows >= 8 * cpu.chunks
        self.parts = cpu.chunks if self.split else 1
        self.pieces = min(across, cpu.chunks) if big and not self.split else 1

    @property
    def workspace(self) -> int:
        if not self.split:
            return 0
        return sum(self.parts * self.kept * DTYPES[wide(n.dtype)].nbytes + 64 for n in self.roots)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """Sum, then the elementwise work on the sums."""
    space = space_of(group)
    assert space is not None
    _Emit(k, group, bindings, cpu, _Plan(group, space, cpu)).run()


class _Emit:
    def __init__(self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, plan: _Plan):
        self.k, self.group, self.bindings, self.cpu, self.plan = k, group, bindings, cpu, plan
        self.algebra = CpuAlgebra(k)

    def run(self) -> None:
        """In one stage; or shares of the rows first, then the sums of what they left in the workspace."""
        k, plan = self.k, self.plan
        if plan.split:
            partial = self._partials()
            self._shares(partial)
            self._join(partial)
            return

        def unit(_: Expr, u: Expr) -> None:
            if plan.columns:
                self._columns(u, 0, plan.before, self._finish)
            else:
                self._kept(u, 0, None, self._finish)

        mk.spread(k, plan.units, plan.pieces, unit)

    def _partials(self) -> dict[Node, Buf]:
        found, at = {}, 0
        for n in self.plan.roots:
            dtype = wide(n.dtype)
            assert self.bindings.workspace is not None
            found[n] = self.k.view(self.bindings.workspace, dtype, at)
            at += -(-self.plan.parts * self.plan.kept * DTYPES[dtype].nbytes // 64) * 64
        return found

    def _shares(self, partial: dict[Node, Buf]) -> None:
        """Every part sums up its share of the rows."""
        k, plan = self.k, self.plan
        rows = plan.before if plan.columns or plan.kept > 1 else plan.before * plan.after
        with k.loop(plan.parts, "parallel", "part") as part, k.loop(plan.units, name="unit") as u:
            first, count = mk.share(k, rows, plan.parts, part)

            def keep(at: Value, lanes: int, totals: dict[Node, Expr]) -> None:
                for n, total in totals.items():
                    k.store(partial[n], total, part * plan.kept + at)

            if plan.columns:
                self._columns(u, first, count, keep)
            else:
                self._kept(u, first, count, keep)

    def _join(self, partial: dict[Node, Buf]) -> None:
        """The second stage: what the parts left, folded in their order."""
        k, plan, lanes = self.k, self.plan, self.cpu.lanes

        def fold(at: Expr, width: int) -> None:
            totals = {}
            for n, buf in partial.items():
                total = k.load(buf, at, width)
                for p in range(1, plan.parts):
                    total = k.let(self.algebra.fold(n.op.name, total, k.load(buf, at + p * plan.kept, width)))
                totals[n] = total
            self._finish(at, width, totals)

        mk.runs(k, plan.kept, lanes, 0, mk.ceildiv(plan.kept, lanes), fold)

    def _columns(self, unit: Expr, first: Value, rows: Value, done: Done) -> None:
        """Vectors of kept elements, summed over rows."""
        k, plan = self.k, self.plan
        space = plan.space

        def block(start: Expr, size: int) -> None:
            cuts = mk.widths(size, self.cpu.lanes)
            sums = {(n, v): self._new(n, lanes) for n in plan.roots for v, lanes in enumerate(cuts)}
            with k.loop(rows, name="row") as r:
                row = k.let(tir.index(first + r))
                expressions = Expressions(k, self.group, self.bindings)
                for v, lanes in enumerate(cuts):
                    at = start + v * self.cpu.lanes
                    index = (*inner_index(row, tir.ramp(at, lanes), space.domain, space.start),)
                    for n in plan.roots:
                        self._add(n, sums[n, v], lanes, expressions.at(n.src[0], index))
            for v, lanes in enumerate(cuts):
                done(start + v * self.cpu.lanes, lanes, {n: k.let(k.load(sums[n, v], 0, lanes)) for n in plan.roots})

        mk.runs(k, plan.kept, plan.width, unit, 1, block)

    def _kept(self, unit: Expr, first: Value, count: Value | None, done: Done) -> None:
        """One kept element: sums along what lies behind it, for everything before it."""
        k, plan, lanes = self.k, self.plan, self.cpu.lanes
        space = plan.space
        flat_all = plan.kept == 1
        sums = {n: self._new(n, lanes) for n in plan.roots}
        rest = {n: self._new(n, 1) for n in plan.roots}
        inner = plan.before * plan.after if flat_all and count is None else plan.after

        def body(outer: tuple[Value, ...], at: Value, width: int) -> None:
            expressions = Expressions(k, self.group, self.bindings)
            tail = len(space.domain) - len(outer)
            index = (*outer, *((0,) * (tail - 1)), *((tir.ramp(at, width),) if tail else ()))
            for n in plan.roots:
                value = expressions.at(n.src[0], index)
                if width == lanes:
                    self._add(n, sums[n], lanes, value)
                else:
                    self._add(
                        n, rest[n], 1, fold_lanes(k, self.algebra, n.op.name, self.algebra.cast(value, wide(n.dtype)))
                    )

        if flat_all and count is not None:  # a share of one long row
            full = k.let(tir.floordiv(count, lanes)) if not isinstance(count, int) else count // lanes
            with k.loop(full, name="step") as s:
                body((), k.let(tir.index(first + s * lanes)), lanes)
            left = k.let(count - full * lanes) if not isinstance(count, int) else count - full * lanes
            with k.loop(left, name="rest") as s:
                body((), k.let(tir.index(first + full * lanes + s)), 1)
        else:
            rows = 1 if flat_all else (plan.before if count is None else count)
            with k.loop(rows, name="before") as b:
                outer = (
                    ()
                    if flat_all
                    else (
                        *unflatten(k.let(tir.index(first + b)), space.domain[: space.start]),
                        *unflatten(unit, space.domain[space.start : space.stop]),
                    )
                )
                mk.runs(k, inner, lanes, 0, mk.ceildiv(inner, lanes), lambda at, w: body(outer, at, w))
        totals = {}
        for n in plan.roots:
            whole = fold_lanes(k, self.algebra, n.op.name, k.load(sums[n], 0, lanes))
            totals[n] = k.let(self.algebra.fold(n.op.name, whole, k.load(rest[n], 0, 1)))
        done(unit, 1, totals)

    def _new(self, n: Node, lanes: int) -> Buf:
        made = self.k.local("total", lanes, wide(n.dtype))
        self.k.store(made, tir.splat(identity(n.op.name, wide(n.dtype)), lanes), 0)
        return made

    def _add(self, n: Node, total: Buf, lanes: int, value: Expr) -> None:
        value = self.algebra.cast(value, wide(n.dtype))
        self.k.store(total, self.algebra.fold(n.op.name, self.k.load(total, 0, lanes), value), 0)

    def _finish(self, at: Value, lanes: int, totals: dict[Node, Expr]) -> None:
        """The elementwise work on finished sums, and the stores."""
        k = self.k
        known = {n: always(self.algebra.cast(total, n.dtype)) for n, total in totals.items()}
        expressions = Expressions(k, self.group, self.bindings, known)
        shape = next(iter(self.group.body.outputs.values())).shape
        start = tir.ramp(at, lanes)
        merged = lanes > 1 or len(shape) <= 1
        index = inner_index(0, start, shape, 0) if merged else unflatten(at, shape)
        values = [expressions.at(n, index) for n in self.group.body.outputs.values()]
        for buf, value in zip(self.bindings.outputs, values, strict=True):
            k.store(buf, value, at)


def fold_lanes(k: Kernel, algebra: CpuAlgebra, name: str, x: Expr) -> Expr:
    """All lanes folded into one: halves, as a fixed tree."""
    lanes = tir.lanes_of(x)
    while lanes > 1:
        x = k.let(x)
        half = lanes // 2
        folded = algebra.fold(name, tir.shuffle([x], range(half)), tir.shuffle([x], range(half, 2 * half)))
        if lanes % 2:
            last = tir.shuffle([x], [lanes - 1])
            if half == 1:
                folded = algebra.fold(name, folded, last)
            else:
                k_folded = k.let(folded)
                head = algebra.fold(name, tir.shuffle([k_folded], [0]), last)
                folded = tir.shuffle([head, k_folded], [0, *range(2, half + 1)])
        x, lanes = folded, half
    return x


REDUCE = Rule("reduce", claim, emit)
