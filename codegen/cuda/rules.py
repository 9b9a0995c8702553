"""Kernel rules for NVIDIA GPUs: reductions by dlight's schedules, everything else with one thread per element.

A fold is a reduction or contraction. A rule lowers a group to one kernel, or to several in order:

* "transpose": one transposed matrix, through shared memory;
* "dlight": the folds become stages of one kernel that a rule of dlight schedules, and what the group computes from them
  is the epilogue of that kernel, so that updates happen in place there;
* "threads": one thread for each element, for groups without a fold, or with one that dlight does not schedule;
* "each fold": a kernel for each fold, with intermediate values in a workspace; it claims every group with a fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gluongraph.codegen.cuda.cuda_math import CudaAlgebra, GpuKernel
from gluongraph.codegen.cuda.te_lower import (
    Stages,
    fold_length,
    is_cheap_to_repeat,
    schedule_folds,
    squeezed_shape,
    transposition,
)
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
MARGIN = 1024  # threads of the last thread block beyond a domain, at most
SHORT = 32  # elements of a fold up to which one thread computes it


@dataclass(frozen=True)
class Part:
    """One kernel: the values it stores, and the folds of its dlight schedule, if it has one."""

    results: tuple[Node, ...]
    stages: Stages | None = None

    @property
    def schedule(self) -> str:
        """The name of its schedule."""
        return f"dlight.{self.stages.rule}" if self.stages else "threads"


@dataclass(frozen=True)
class Lowering:
    """The kernels of a group in order. `intermediates` are values in the workspace, with their byte offsets; so are
    `copied_back` results if they are stored in place over an operand (`_with_copies`)."""

    parts: tuple[Part, ...]
    intermediates: tuple[tuple[Node, int], ...] = ()
    copied_back: tuple[tuple[Node, int], ...] = ()

    @property
    def schedule(self) -> str:
        """The schedules of the parts: 'dlight.Matmul', 'dlight.Matmul+threads'."""
        return "+".join(part.schedule for part in self.parts)

    @property
    def workspace(self) -> int:
        """Bytes of workspace."""
        return max((at + aligned(n.ty.nbytes) for n, at in (*self.intermediates, *self.copied_back)), default=0)


def _with_copies(lowering: Lowering, inputs: Iterable[Node]) -> Lowering:
    """Return the lowering with workspace for results that may be stored in place over an operand which other threads of
    their kernel still read: a row's new state, if each element of the row reads the old one. Such a result is copied to
    its buffer by a kernel of its own.
    """
    copied, at = [], lowering.workspace
    for part in lowering.parts:
        for n in part.results:
            others = [m for m in part.results if m.shape != n.shape]
            if any(x.ty == n.ty and any(_reads(m, x) for m in others) for x in inputs):
                copied.append((n, at))
                at += aligned(n.ty.nbytes)
    return replace(lowering, copied_back=tuple(copied))


def _reads(n: Node, x: Node) -> bool:
    """Does a value depend on x?"""
    return any(m is x for m in topological([n]))


def _without_aliases(group: Group) -> Group:
    """Return the group without its in-place pairs: lowerings are valid with and without, and chosen before these are
    known."""
    return Group(group.body, group.pattern)


@dataclass(frozen=True)
class _Body:
    """A group's body as the rules see it: its results, and its folds with their lengths."""

    group: Group
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    folds: Mapping[Node, int]


@lru_cache(maxsize=512)
def _body(group: Group) -> _Body | None:
    """Return a group's body; None if an op has no `lower` rule."""
    nodes, inputs = group.body.nodes(), tuple(group.body.inputs.values())
    if group.pattern == "scan" or any(n.op.lower is None and n.op.name != "input" for n in nodes):
        return None
    lengths = {n: length for n in nodes if n not in inputs and (length := fold_length(n)) is not None}
    return _Body(group, inputs, tuple(dict.fromkeys(group.body.outputs.values())), lengths)


# -- the rules: each returns a lowering, or None if it declines


def _transpose(body: _Body, gpu: Gpu) -> Lowering | None:
    """Lower a group around one transposed matrix, which goes through shared memory."""
    nodes = (n for n in body.group.body.nodes() if n.op.name == "transpose" and n.attrs["axes"] == (1, 0))
    transposed = [n for n in nodes if n.src[0] in body.inputs]
    if body.folds or len(transposed) != 1:
        return None
    if any(n.shape != transposed[0].shape or n.ty.size == 0 for n in body.results):
        return None
    stages = transposition(transposed[0], gpu.tvm)
    return Lowering((Part(body.results, stages),)) if stages else None


def _threads(body: _Body, gpu: Gpu) -> Lowering | None:
    """Lower a group without folds, or with one fold whose shape all results have, to one thread per element."""
    if not body.folds:
        return Lowering(_pointwise(body.results))
    shapes = {n.shape for n in (*body.folds, *body.results)}
    return Lowering((Part(body.results),)) if len(body.folds) == 1 and len(shapes) == 1 else None


def _dlight(body: _Body, gpu: Gpu) -> Lowering | None:
    """Lower the group to one kernel that a rule of dlight schedules."""
    if not body.folds or (space := _one_space(body)) is None:
        return None
    stages = _stages(body.folds, body.inputs, space, gpu)
    return None if stages is None else Lowering((Part(body.results, stages),))


def _each_fold(body: _Body, gpu: Gpu) -> Lowering | None:
    """Lower each fold to a kernel, whose value is in the workspace unless it is a result; then the rest to one more."""
    if not body.folds:
        return None
    parts: list[Part] = []
    intermediates: list[tuple[Node, int]] = []
    at = 0
    known: tuple[Node, ...] = body.inputs
    for n, length in body.folds.items():
        parts.append(Part((n,), _stages({n: length}, known, squeezed_shape(n), gpu)))
        if n not in body.results:
            intermediates.append((n, at))
            at += aligned(n.ty.nbytes)
        known = (*known, n)
    rest = [n for n in body.results if n not in body.folds]
    return Lowering((*parts, *_pointwise(rest)), tuple(intermediates))


def _pointwise(results: Iterable[Node]) -> tuple[Part, ...]:
    """Return one kernel for results that are no folds; empty results need none."""
    filled = tuple(n for n in results if n.ty.size)
    return (Part(filled),) if filled else ()


def _one_space(body: _Body) -> tuple[int, ...] | None:
    """Return the shape over which one kernel of all folds stores its results: that of the folds, or that of the rows
    computed from them; None if there is no such shape."""
    fold_shape = squeezed_shape(next(iter(body.folds)))
    if any(squeezed_shape(n) != fold_shape for n in body.folds):
        return None
    full_results = {n.shape for n in body.results if _squeezed(n.shape) != _squeezed(fold_shape)}
    if not full_results:
        return fold_shape
    space = next(iter(full_results))
    return (
        space
        if len(full_results) == 1 and body.group.pattern == "rowwise" and space[: len(fold_shape)] == fold_shape
        else None
    )


def _stages(folds: Mapping[Node, int], known: tuple[Node, ...], space: tuple[int, ...], gpu: Gpu) -> Stages | None:
    """Return folds in a dlight schedule; None for short ones, which are faster in one thread."""
    short = len(folds) == 1 and all(length <= SHORT and n.op.kind != "contraction" for n, length in folds.items())
    if short or not is_cheap_to_repeat(folds, (*known, *folds)):
        return None
    return schedule_folds(tuple(folds), known, space, gpu.tvm)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in shape if d != 1)


def _write(kernel: GpuKernel, group: Group, bindings: Bindings, lowering: Lowering) -> None:
    """Emit the kernels of a group, in order: each is a grid of threads with a launch of its own."""
    buffers = _ValueBuffers(kernel, group, bindings, lowering)
    for part in lowering.parts:
        if part.stages:
            _write_scheduled(kernel, part, part.stages, buffers)
        else:
            _write_threads(kernel, part, buffers)
        buffers.mark_computed(part)


class _ValueBuffers:
    """The buffer of each value while the kernels of a launch run: an argument, or a part of the workspace."""

    def __init__(self, kernel: GpuKernel, group: Group, bindings: Bindings, lowering: Lowering):
        self.kernel = kernel
        self.read: dict[Node, Buf] = bindings.by_node(group)
        self.write: dict[Node, list[Buf]] = {}
        for n, buf in zip(group.body.outputs.values(), bindings.outputs, strict=True):
            self.write.setdefault(n, []).append(buf)
        self.copies: dict[Node, list[Buf]] = {}  # the output buffers of results that are copied back
        over = {j for j, _ in group.inplace}
        shared = {n for j, n in enumerate(group.body.outputs.values()) if j in over}
        for n, at in (*lowering.intermediates, *((n, at) for n, at in lowering.copied_back if n in shared)):
            assert bindings.workspace is not None
            if n in self.write:
                self.copies[n] = self.write[n]
            self.write[n] = [kernel.view(bindings.workspace, n.dtype, at)]

    def mark_computed(self, part: Part) -> None:
        """Let the next kernels read what a kernel has computed, and emit its copies."""
        for n in part.results:
            self.read.setdefault(n, self.write[n][0])
            for buf in self.copies.get(n, ()):
                self.kernel.copy(self.write[n][0], buf)

    def loads(self) -> dict[Node, Load]:
        """Return the Load of each value that is in memory."""
        return {n: self._load(n, buf) for n, buf in self.read.items()}

    def _load(self, n: Node, buf: Buf) -> Load:
        return lambda *index: self.kernel.load(buf, flat(n.shape, index))

    def store(self, n: Node, value: Expr, index: tuple[Value, ...]) -> None:
        """Store an element in all buffers of a value."""
        for buf in self.write[n]:
            self.kernel.store(buf, value, flat(n.shape, index))


def _write_threads(kernel: GpuKernel, part: Part, buffers: _ValueBuffers) -> None:
    """Emit a kernel with a thread for each element; folds are loops of that thread. All results of one shape are
    computed before the first is stored: one may overwrite what another reads."""
    spaces: dict[tuple[int, ...], list[Node]] = {}
    for n in part.results:
        spaces.setdefault(n.shape, []).append(n)
    for shapes in _grids(spaces):
        evaluator = Evaluator(CudaAlgebra(kernel), buffers.loads())
        with kernel.each(*map(math.prod, shapes)) as elements:
            for shape, (at, inside) in zip(shapes, elements, strict=True):
                with kernel.when(inside):
                    index = unflatten(at, shape)
                    values = [kernel.let(evaluator.element(n, index)) for n in spaces[shape]]
                    for n, value in zip(spaces[shape], values, strict=True):
                        buffers.store(n, value, index)


def _grids(shapes: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the shapes that are computed in one grid each: as many as have at most LARGEST_GRID elements together."""
    grids: list[list[tuple[int, ...]]] = []
    total = LARGEST_GRID
    for shape in shapes:
        size = math.prod(shape) + MARGIN
        if total + size > LARGEST_GRID:
            grids.append([])
            total = 0
        grids[-1].append(shape)
        total += size
    return grids


def _write_scheduled(kernel: GpuKernel, part: Part, stages: Stages, buffers: _ValueBuffers) -> None:
    """Emit a scheduled kernel whose epilogue computes the part's results."""
    fold_shape = squeezed_shape(stages.folds[0])

    def write(index: tuple[Value, ...], values: tuple[Expr, ...]) -> None:
        index = index[: len(stages.shape)]
        algebra = CudaAlgebra(kernel)
        stored = buffers.loads()
        for n, value in zip(stages.folds, values, strict=True):
            stored[n] = uniform_load(kernel.let(algebra.cast(value, n.dtype)))
        evaluator = Evaluator(algebra, stored)
        full_results = [n for n in part.results if n.shape == stages.shape]
        rows = [n for n in part.results if n.shape != stages.shape]
        at = {n: index if n in full_results else _row_index(n.shape, fold_shape, index) for n in part.results}
        results = {n: kernel.let(evaluator.element(n, at[n])) for n in part.results}
        for n in full_results:
            buffers.store(n, results[n], at[n])
        if rows:
            with kernel.when(_all_zero(index[len(fold_shape) :])):
                for n in rows:
                    buffers.store(n, results[n], at[n])

    sources = [(buffers.read[n], n.shape or (1,)) for n in stages.sources]
    te.emit_scheduled(stages.func, kernel, sources, write, stages.out_of_bounds)


def uniform_load(value: Expr) -> Load:
    return lambda *index: value


def _row_index(shape: tuple[int, ...], fold_shape: tuple[int, ...], index: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the index of a per-row value, whose shape may have axes of extent 1 in other places than `fold_shape`."""
    rest = iter([i for i, n in zip(index, fold_shape, strict=False) if n != 1])
    return tuple(0 if n == 1 else next(rest) for n in shape)


def _all_zero(index: tuple[Value, ...]) -> Expr:
    condition: Expr = tir.const(True, "bool")
    for i in index:
        condition = tir.logical("and", condition, tir.compare("equal", i, tir.index(0)))
    return condition


# -- the table of rules

Lower = Callable[[_Body, Gpu], Lowering | None]


@lru_cache(maxsize=2048)
def lowering(lower: Lower, group: Group, gpu: Gpu) -> Lowering | None:
    """Return the kernels to which a rule lowers a group; None if it declines."""
    body = _body(group)
    result = lower(body, gpu) if body is not None else None
    return _with_copies(result, body.inputs) if result is not None and body is not None and body.folds else result


def _rule(name: str, lower: Lower) -> Rule[Gpu]:
    def claim(group: Group, gpu: Gpu) -> Candidate | None:
        result = lowering(lower, _without_aliases(group), gpu)
        return None if result is None else Candidate(name, result.workspace, schedule=result.schedule)

    def emit(kernel: Kernel, group: Group, bindings: Bindings, gpu: Gpu) -> None:
        result = lowering(lower, _without_aliases(group), gpu)
        assert result is not None and isinstance(kernel, GpuKernel)
        _write(kernel, group, bindings, result)

    return Rule(name, claim, emit)


RULES: tuple[Rule[Gpu], ...] = (
    SCAN,
    _rule("transpose", _transpose),
    _rule("dlight", _dlight),
    _rule("threads", _threads),
    _rule("each fold", _each_fold),
)


def table(plan: Plan, on: Target) -> str:
    """Return a table with a line for each distinct kernel of a plan: schedule, thread blocks x threads, results."""
    rows = [("kernel", "schedule", "grid", "computes")]
    for name, launch in plan.kernels.items():
        kernel = GpuKernel(name)
        emit(kernel, launch.group, launch.candidate, bind(kernel, launch), on)
        grids = " ".join(f"{blocks}x{threads}" for blocks, threads in te.grids(kernel.finish()))
        results = ", ".join(map(str, launch.group.outputs))
        rows.append((name, launch.candidate.described, grids, f"{launch.label}: {results}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=False)) + f"  {r[3]}" for r in rows)
