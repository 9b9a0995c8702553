"""Kernels for NVIDIA GPUs: folds by dlight's schedules, everything else one thread an element.

A group becomes one kernel where that is possible, else several that follow each other:

* its reductions and contractions become stages of one kernel that a rule of dlight schedules, and what the group
  computes from them is written where that kernel stores its result, so that updates happen in place there;
* where no rule takes all of them together, each gets a kernel and the values between them lie in a workspace;
* a fold that no rule takes, and all that is no fold, is done by one thread for each element ("threads").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gluongraph.codegen.cpu import scan
from gluongraph.codegen.cuda.cuda_math import CudaAlgebra, GpuKernel
from gluongraph.codegen.cuda.te_lower import Stages, fold_length, kept_shape, small, stage, transposition
from gluongraph.codegen.expr.evaluate import Load, Pull
from gluongraph.codegen.expr.expression import flat, unflatten
from gluongraph.codegen.rule import Bindings, bind
from gluongraph.codegen.targets import TARGETS
from gluongraph.codegen.tvm import te, tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Value
from gluongraph.ir.graph import Node, topological
from gluongraph.ir.plan import Candidate, Group, Plan
from gluongraph.storage import aligned

THREADS = "threads"
LARGEST_GRID = 2**31 - 1  # threads, counted in 32 bits
MARGIN = 1024  # what the last thread blocks of a space may go beyond it, at most
SHORT = 32  # a fold of no more elements than this is done by one thread


@dataclass(frozen=True)
class Part:
    """One kernel: the values it stores, and the folds it does through a dlight schedule, if it does."""

    results: tuple[Node, ...]
    stages: Stages | None = None

    @property
    def rule(self) -> str:
        """Who schedules it."""
        return f"dlight.{self.stages.rule}" if self.stages else THREADS


@dataclass(frozen=True)
class Lowering:
    """The kernels of a group in order; `kept` are values in the workspace, with their byte offsets there. So are `late`
    ones, where they are to lie over an operand: see `_late`."""

    parts: tuple[Part, ...]
    kept: tuple[tuple[Node, int], ...] = ()
    late: tuple[tuple[Node, int], ...] = ()

    @property
    def rule(self) -> str:
        """The rules of all parts: 'dlight.Matmul', 'dlight.Matmul+threads'."""
        return "+".join(part.rule for part in self.parts)

    @property
    def workspace(self) -> int:
        """Bytes between the kernels."""
        return max((at + aligned(n.ty.nbytes) for n, at in (*self.kept, *self.late)), default=0)


def claim(group: Group) -> Candidate | None:
    """A candidate for any group whose ops have `lower` rules: `rule` names what schedules each of its kernels."""
    if group.pattern == "scan":
        return scan.claim(group)
    if any(n.op.lower is None and n.op.name != "input" for n in group.body.nodes()):
        return None
    lowering = lowered(_plain(group))
    return Candidate(lowering.rule, lowering.workspace)


def emit(kernel: GpuKernel, group: Group, bindings: Bindings) -> None:
    """Write the kernels of a group, in order: each is a grid of threads, and becomes a launch of its own."""
    if group.pattern == "scan":  # the loop runs on the host
        scan.emit(kernel, group, bindings, lambda _, inner, candidate, places: emit(kernel, inner, places))
        return
    lowering = lowered(_plain(group))
    places = _Places(kernel, group, bindings, lowering)
    for part in lowering.parts:
        if part.stages:
            _scheduled(kernel, part, part.stages, places)
        else:
            _threads(kernel, part, places)
        places.done(part)


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


@lru_cache(maxsize=512)
def lowered(group: Group) -> Lowering:
    """How a group becomes kernels."""
    inputs = tuple(group.body.inputs.values())
    results = tuple(dict.fromkeys(group.body.outputs.values()))
    lengths = {n: fold_length(n) for n in group.body.nodes() if n not in inputs}
    folds = {n: length for n, length in lengths.items() if length is not None}
    if not folds:
        return _turned(lengths, results, inputs) or Lowering(_pointwise(results))
    return _late(_together(group, folds, results, inputs) or _apart(folds, results, inputs), inputs)


def _turned(nodes: Iterable[Node], results: tuple[Node, ...], inputs: tuple[Node, ...]) -> Lowering | None:
    """A group around one transposed matrix."""
    turned = [n for n in nodes if n.op.name == "transpose" and n.attrs["axes"] == (1, 0) and n.src[0] in inputs]
    if len(turned) != 1 or any(n.shape != turned[0].shape or n.ty.size == 0 for n in results):
        return None
    stages = transposition(turned[0], TARGETS["cuda"].tvm)
    return Lowering((Part(results, stages),)) if stages else None


def _pointwise(results: Iterable[Node]) -> tuple[Part, ...]:
    """One kernel for whatever is no fold; empty results need none."""
    filled = tuple(n for n in results if n.ty.size)
    return (Part(filled),) if filled else ()


def _together(
    group: Group, folds: Mapping[Node, int], results: tuple[Node, ...], inputs: tuple[Node, ...]
) -> Lowering | None:
    """One kernel for the whole group."""
    first = next(iter(folds))
    kept = kept_shape(first)
    if any(kept_shape(n) != kept for n in folds):
        return None
    wide = {n.shape for n in results if _squeezed(n.shape) != _squeezed(kept)}
    if len(wide) > 1 or (wide and (group.pattern != "rowwise" or next(iter(wide))[: len(kept)] != kept)):
        return None
    space = next(iter(wide)) if wide else kept
    if (stages := _stages(folds, inputs, space)) is not None:
        return Lowering((Part(results, stages),))
    alike = len(folds) == 1 and all(n.shape == first.shape for n in results)
    return Lowering((Part(results),)) if alike else None


def _stages(folds: Mapping[Node, int], known: tuple[Node, ...], space: tuple[int, ...]) -> Stages | None:
    """Folds in a dlight schedule: not those of a few elements each, which take one thread least time."""
    short = len(folds) == 1 and all(length <= SHORT and n.op.kind != "contraction" for n, length in folds.items())
    if short or not small(folds, (*known, *folds)):
        return None
    return stage(tuple(folds), known, space, TARGETS["cuda"].tvm)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in shape if d != 1)


def _apart(folds: Mapping[Node, int], results: tuple[Node, ...], inputs: tuple[Node, ...]) -> Lowering:
    """A kernel for each fold, its value in the workspace unless it is a result; then one for all the rest."""
    parts: list[Part] = []
    kept: list[tuple[Node, int]] = []
    at = 0
    known: tuple[Node, ...] = inputs
    for n, length in folds.items():
        parts.append(Part((n,), _stages({n: length}, known, kept_shape(n))))
        if n not in results:
            kept.append((n, at))
            at += aligned(n.ty.nbytes)
        known = (*known, n)
    rest = [n for n in results if n not in folds]
    return Lowering((*parts, *_pointwise(rest)), tuple(kept))


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


def _threads(kernel: GpuKernel, part: Part, places: _Places) -> None:
    """A thread for each element; folds are loops of that thread. Results of one shape are computed together, all of
    them before the first is stored: one may overwrite what another reads."""
    spaces: dict[tuple[int, ...], list[Node]] = {}
    for n in part.results:
        spaces.setdefault(n.shape, []).append(n)
    for shapes in _grids(spaces):
        pull = Pull(CudaAlgebra(kernel), places.loads())
        with kernel.each(*map(math.prod, shapes)) as places_in:
            for shape, (at, inside) in zip(shapes, places_in, strict=True):
                with kernel.when(inside):
                    index = unflatten(at, shape)
                    values = [kernel.let(pull.element(n, index)) for n in spaces[shape]]
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


def _scheduled(kernel: GpuKernel, part: Part, stages: Stages, places: _Places) -> None:
    """A scheduled kernel that computes the part's results where it stores its folds."""
    kept = kept_shape(stages.folds[0])

    def write(index: tuple[Value, ...], values: tuple[Expr, ...]) -> None:
        index = index[: len(stages.shape)]
        algebra = CudaAlgebra(kernel)
        stored = places.loads()
        for n, value in zip(stages.folds, values, strict=True):
            stored[n] = _constantly(kernel.let(algebra.cast(value, n.dtype)))
        pull = Pull(algebra, stored)
        wide = [n for n in part.results if n.shape == stages.shape]
        rows = [n for n in part.results if n.shape != stages.shape]
        at = {n: index if n in wide else _row_index(n.shape, kept, index) for n in part.results}
        results = {n: kernel.let(pull.element(n, at[n])) for n in part.results}
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


def table(plan: Plan) -> str:
    """A line for each distinct kernel of a plan: the rule that made it, thread blocks x threads, what it computes."""
    rows = [("kernel", "rule", "grid", "computes")]
    for name, launch in plan.kernels.items():
        kernel = GpuKernel(name)
        emit(kernel, launch.group, bind(kernel, launch))
        grids = " ".join(f"{blocks}x{threads}" for blocks, threads in te.grids(kernel.finish()))
        results = ", ".join(map(str, launch.group.outputs))
        rows.append((name, launch.candidate.rule, grids, f"{launch.label}: {results}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=False)) + f"  {r[3]}" for r in rows)
