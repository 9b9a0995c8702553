"""Kernel rules for NVIDIA GPUs: reductions by dlight's schedules, everything else with one thread per element.

A rule makes one kernel of a group, or several that follow each other:

* "transpose": one transposed matrix, through shared memory;
* "dlight": its reductions and contractions become stages of one kernel that a rule of dlight schedules, and what the
  group computes from them is written where that kernel stores its result, so that updates happen in place there;
* "threads": one thread for each element, of what has no fold, or one fold that dlight does not take;
* "each fold": a kernel for each, the values between them in a workspace; it declines nothing that has a fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gluongraph.codegen.cuda.cuda_math import CudaAlgebra, GpuKernel
from gluongraph.codegen.cuda.te_lower import Stages, fold_length, kept_shape, small, stage, transposition
from gluongraph.codegen.expr.evaluate import Evaluator, Load
from gluongraph.codegen.expr.expression import flat, unflatten
from gluongraph.codegen.rule import Bindings, Gpu, Rule, Target, bind, emit
from gluongraph.codegen.scan import SCAN
from gluongraph.codegen.tvm import te, tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group, Plan
from gluongraph.storage import aligned

LARGEST_GRID = 2**31 - 1  # threads, counted in 32 bits
MARGIN = 1024  # what the last thread blocks of a space may go beyond it, at most
SHORT = 32  # a fold of no more elements than this is done by one thread


@dataclass(frozen=True)
class Part:
    """One kernel: the values it stores, and the folds it does through a dlight schedule, if it does."""

    results: tuple[Node, ...]
    stages: Stages | None = None

    @property
    def schedule(self) -> str:
        """Who schedules it."""
        return f"dlight.{self.stages.rule}" if self.stages else "threads"


@dataclass(frozen=True)
class Lowering:
    """The kernels of a group in order; `kept` are values in the workspace, with their byte offsets there. So are `late`
    ones, where they are to lie over an operand: see `_late`."""

    parts: tuple[Part, ...]
    kept: tuple[tuple[Node, int], ...] = ()
    late: tuple[tuple[Node, int], ...] = ()

    @property
    def schedule(self) -> str:
        """Who schedules each part: 'dlight.Matmul', 'dlight.Matmul+threads'."""
        return "+".join(part.schedule for part in self.parts)

    @property
    def workspace(self) -> int:
        """Bytes between the kernels."""
        return max((at + aligned(n.ty.nbytes) for n, at in (*self.kept, *self.late)), default=0)


def _late(lowering: Lowering, inputs: Iterable[Node]) -> Lowering:
    """With room for results that may lie over an operand which other threads of their kernel still read: a row's new
    state, of which each element of the row reads the old. Such a result is copied to its place by a kernel of its own.
    """
    found, at = [], lowering.workspace
    for part in lowering.parts:
        for n in part.results:
            others = [m for m in part.results if m.shape != n.shape]
            if any(x.ty == n.ty and any(_reads(m, x) for m in others) for x in inputs):
                found.append((n, at))
                at += aligned(n.ty.nbytes)
    return replace(lowering, late=tuple(found))


def _reads(n: Node, x: Node) -> bool:
    """Is a value made of x?"""
    return any(m is x for m in topological([n]))


def _plain(group: Group) -> Group:
    """The group apart from what shares memory: lowerings are legal either way, and found before it is known."""
    return Group(group.body, group.pattern)


@dataclass(frozen=True)
class _Body:
    """What is looked at of a group: its results, and its folds with their lengths."""

    group: Group
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    folds: Mapping[Node, int]


@lru_cache(maxsize=512)
def _body(group: Group) -> _Body | None:
    """None where an op has no `lower` rule."""
    nodes, inputs = group.body.nodes(), tuple(group.body.inputs.values())
    if group.pattern == "scan" or any(n.op.lower is None and n.op.name != "input" for n in nodes):
        return None
    lengths = {n: length for n in nodes if n not in inputs and (length := fold_length(n)) is not None}
    return _Body(group, inputs, tuple(dict.fromkeys(group.body.outputs.values())), lengths)


# -- the rules: each is a lowering, or None


def _transpose(body: _Body, gpu: Gpu) -> Lowering | None:
    """A group around one transposed matrix, which goes through shared memory."""
    nodes = (n for n in body.group.body.nodes() if n.op.name == "transpose" and n.attrs["axes"] == (1, 0))
    transposed = [n for n in nodes if n.src[0] in body.inputs]
    if body.folds or len(transposed) != 1:
        return None
    if any(n.shape != transposed[0].shape or n.ty.size == 0 for n in body.results):
        return None
    stages = transposition(transposed[0], gpu.tvm)
    return Lowering((Part(body.results, stages),)) if stages else None


def _threads(body: _Body, gpu: Gpu) -> Lowering | None:
    """One thread for each element: what has no fold, or one that alone makes all results and is best done so."""
    if not body.folds:
        return Lowering(_pointwise(body.results))
    shapes = {n.shape for n in (*body.folds, *body.results)}
    return Lowering((Part(body.results),)) if len(body.folds) == 1 and len(shapes) == 1 else None


def _dlight(body: _Body, gpu: Gpu) -> Lowering | None:
    """One kernel for the whole group, which a rule of dlight schedules."""
    if not body.folds or (space := _one_space(body)) is None:
        return None
    stages = _stages(body.folds, body.inputs, space, gpu)
    return None if stages is None else Lowering((Part(body.results, stages),))


def _each_fold(body: _Body, gpu: Gpu) -> Lowering | None:
    """A kernel for each fold, its value in the workspace unless it is a result; then one for all the rest."""
    if not body.folds:
        return None
    parts: list[Part] = []
    kept: list[tuple[Node, int]] = []
    at = 0
    known: tuple[Node, ...] = body.inputs
    for n, length in body.folds.items():
        parts.append(Part((n,), _stages({n: length}, known, kept_shape(n), gpu)))
        if n not in body.results:
            kept.append((n, at))
            at += aligned(n.ty.nbytes)
        known = (*known, n)
    rest = [n for n in body.results if n not in body.folds]
    return Lowering((*parts, *_pointwise(rest)), tuple(kept))


def _pointwise(results: Iterable[Node]) -> tuple[Part, ...]:
    """One kernel for whatever is no fold; empty results need none."""
    filled = tuple(n for n in results if n.ty.size)
    return (Part(filled),) if filled else ()


def _one_space(body: _Body) -> tuple[int, ...] | None:
    """The shape that a kernel of all folds writes at, if there is one: that of the folds, or of rows made of them."""
    kept = kept_shape(next(iter(body.folds)))
    if any(kept_shape(n) != kept for n in body.folds):
        return None
    wide = {n.shape for n in body.results if _squeezed(n.shape) != _squeezed(kept)}
    if not wide:
        return kept
    space = next(iter(wide))
    return space if len(wide) == 1 and body.group.pattern == "rowwise" and space[: len(kept)] == kept else None


def _stages(folds: Mapping[Node, int], known: tuple[Node, ...], space: tuple[int, ...], gpu: Gpu) -> Stages | None:
    """Folds in a dlight schedule: not those of a few elements each, which take one thread least time."""
    short = len(folds) == 1 and all(length <= SHORT and n.op.kind != "contraction" for n, length in folds.items())
    if short or not small(folds, (*known, *folds)):
        return None
    return stage(tuple(folds), known, space, gpu.tvm)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in shape if d != 1)


def _write(kernel: GpuKernel, group: Group, bindings: Bindings, lowering: Lowering) -> None:
    """The kernels of a group, in order: each is a grid of threads, and becomes a launch of its own."""
    places = _Places(kernel, group, bindings, lowering)
    for part in lowering.parts:
        if part.stages:
            _write_scheduled(kernel, part, part.stages, places)
        else:
            _write_threads(kernel, part, places)
        places.done(part)


class _Places:
    """Where each value of a launch lies while one of its kernels runs: an argument, or a stretch of the workspace."""

    def __init__(self, kernel: GpuKernel, group: Group, bindings: Bindings, lowering: Lowering):
        self.kernel = kernel
        self.read: dict[Node, Buf] = bindings.by_node(group)
        self.write: dict[Node, list[Buf]] = {}
        for n, buf in zip(group.body.outputs.values(), bindings.outputs, strict=True):
            self.write.setdefault(n, []).append(buf)
        self.copies: dict[Node, list[Buf]] = {}  # where late results belong
        over = {j for j, _ in group.inplace}
        shared = {n for j, n in enumerate(group.body.outputs.values()) if j in over}
        for n, at in (*lowering.kept, *((n, at) for n, at in lowering.late if n in shared)):
            assert bindings.workspace is not None
            if n in self.write:
                self.copies[n] = self.write[n]
            self.write[n] = [kernel.view(bindings.workspace, n.dtype, at)]

    def done(self, part: Part) -> None:
        """What a kernel has computed is there to be read by the next."""
        for n in part.results:
            self.read.setdefault(n, self.write[n][0])
            for buf in self.copies.get(n, ()):
                self.kernel.copy(self.write[n][0], buf)

    def loads(self) -> dict[Node, Load]:
        """How to read each value that is in memory."""
        return {n: self._load(n, buf) for n, buf in self.read.items()}

    def _load(self, n: Node, buf: Buf) -> Load:
        return lambda *index: self.kernel.load(buf, flat(n.shape, index))

    def store(self, n: Node, value: Expr, index: tuple[Value, ...]) -> None:
        """Writes an element to wherever it belongs."""
        for buf in self.write[n]:
            self.kernel.store(buf, value, flat(n.shape, index))


def _write_threads(kernel: GpuKernel, part: Part, places: _Places) -> None:
    """A thread for each element; folds are loops of that thread. Results of one shape are computed together, all of
    them before the first is stored: one may overwrite what another reads."""
    spaces: dict[tuple[int, ...], list[Node]] = {}
    for n in part.results:
        spaces.setdefault(n.shape, []).append(n)
    for shapes in _grids(spaces):
        evaluator = Evaluator(CudaAlgebra(kernel), places.loads())
        with kernel.each(*map(math.prod, shapes)) as places_in:
            for shape, (at, inside) in zip(shapes, places_in, strict=True):
                with kernel.when(inside):
                    index = unflatten(at, shape)
                    values = [kernel.let(evaluator.element(n, index)) for n in spaces[shape]]
                    for n, value in zip(spaces[shape], values, strict=True):
                        places.store(n, value, index)


def _grids(shapes: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Spaces that are one grid together: as many as 32 bits can count the elements of."""
    found: list[list[tuple[int, ...]]] = []
    total = LARGEST_GRID
    for shape in shapes:
        size = math.prod(shape) + MARGIN
        if total + size > LARGEST_GRID:
            found.append([])
            total = 0
        found[-1].append(shape)
        total += size
    return found


def _write_scheduled(kernel: GpuKernel, part: Part, stages: Stages, places: _Places) -> None:
    """A scheduled kernel that computes the part's results where it stores its folds."""
    kept = kept_shape(stages.folds[0])

    def write(index: tuple[Value, ...], values: tuple[Expr, ...]) -> None:
        index = index[: len(stages.shape)]
        algebra = CudaAlgebra(kernel)
        stored = places.loads()
        for n, value in zip(stages.folds, values, strict=True):
            stored[n] = _constantly(kernel.let(algebra.cast(value, n.dtype)))
        evaluator = Evaluator(algebra, stored)
        wide = [n for n in part.results if n.shape == stages.shape]
        rows = [n for n in part.results if n.shape != stages.shape]
        at = {n: index if n in wide else _row_index(n.shape, kept, index) for n in part.results}
        results = {n: kernel.let(evaluator.element(n, at[n])) for n in part.results}
        for n in wide:
            places.store(n, results[n], at[n])
        if rows:
            with kernel.when(_all_zero(index[len(kept) :])):
                for n in rows:
                    places.store(n, results[n], at[n])

    sources = [(places.read[n], n.shape or (1,)) for n in stages.sources]
    te.place(stages.func, kernel, sources, write, stages.outside)


def _constantly(value: Expr) -> Load:
    return lambda *index: value


def _row_index(shape: tuple[int, ...], kept: tuple[int, ...], index: tuple[Value, ...]) -> tuple[Value, ...]:
    """The index of a row's value, whose shape may hold axes of extent 1 in other places than `kept` does."""
    rest = iter([i for i, n in zip(index, kept, strict=False) if n != 1])
    return tuple(0 if n == 1 else next(rest) for n in shape)


def _all_zero(index: tuple[Value, ...]) -> Expr:
    found: Expr = tir.const(True, "bool")
    for i in index:
        found = tir.logical("and", found, tir.compare("equal", i, tir.index(0)))
    return found


# -- the table of rules

Lower = Callable[[_Body, Gpu], Lowering | None]


@lru_cache(maxsize=2048)
def lowering(lower: Lower, group: Group, gpu: Gpu) -> Lowering | None:
    """The kernels that a rule makes of a group, or None where it declines."""
    body = _body(group)
    found = lower(body, gpu) if body is not None else None
    return _late(found, body.inputs) if found is not None and body is not None and body.folds else found


def _rule(name: str, lower: Lower) -> Rule[Gpu]:
    def claim(group: Group, gpu: Gpu) -> Candidate | None:
        found = lowering(lower, _plain(group), gpu)
        return None if found is None else Candidate(name, found.workspace, schedule=found.schedule)

    def emit(kernel: Kernel, group: Group, bindings: Bindings, gpu: Gpu) -> None:
        found = lowering(lower, _plain(group), gpu)
        assert found is not None and isinstance(kernel, GpuKernel)
        _write(kernel, group, bindings, found)

    return Rule(name, claim, emit)


RULES: tuple[Rule[Gpu], ...] = (
    SCAN,
    _rule("transpose", _transpose),
    _rule("dlight", _dlight),
    _rule("threads", _threads),
    _rule("each fold", _each_fold),
)


def table(plan: Plan, on: Target) -> str:
    """A line for each distinct kernel of a plan: who schedules it, thread blocks x threads, what it computes."""
    rows = [("kernel", "schedule", "grid", "computes")]
    for name, launch in plan.kernels.items():
        kernel = GpuKernel(name)
        emit(kernel, launch.group, launch.candidate, bind(kernel, launch), on)
        grids = " ".join(f"{blocks}x{threads}" for blocks, threads in te.grids(kernel.finish()))
        results = ", ".join(map(str, launch.group.outputs))
        rows.append((name, launch.candidate.described, grids, f"{launch.label}: {results}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=False)) + f"  {r[3]}" for r in rows)
