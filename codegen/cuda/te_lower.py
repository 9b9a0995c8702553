"""A group's body as tensor expressions: a stage for each fold, that is a reduction or contraction, the rest inlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gluongraph.codegen.cuda.cuda_math import CudaAlgebra, TeAlgebra
from gluongraph.codegen.expr.evaluate import Evaluator, Load
from gluongraph.codegen.tvm import te, tir
from gluongraph.codegen.tvm.tir import Expr, Inline, PrimFunc, Value
from gluongraph.ir.graph import Node, topological

FEW = 32  # results that one warp can hold
MAX_REPEATED_OPS = 160  # operations; a stage inlines what it reads at each use, so larger expressions get a kernel


@dataclass(frozen=True)
class Stages:
    """Folds that one kernel computes, scheduled by a rule of dlight.

    `sources` are the arguments, read in their own shape; `folds` are the values that the last stage passes to the
    epilogue at an index of `shape`; `out_of_bounds` are positions of sources that may be read beyond their ends
    (`te.emit_scheduled`).
    """

    rule: str
    func: PrimFunc
    sources: tuple[Node, ...]
    folds: tuple[Node, ...]
    shape: tuple[int, ...]
    out_of_bounds: tuple[int, ...] = ()


class _FoldFound(Exception):
    """Raised by the probe if a `lower` rule reduces; `length` is the number of terms."""

    def __init__(self, length: int):
        self.length = length


class _Probe(CudaAlgebra):
    """Finds out whether a `lower` rule reduces."""

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        raise _FoldFound(math.prod(extents))


def fold_length(n: Node) -> int | None:
    """Return over how many elements n's `lower` rule reduces; None if it does not."""
    if n.op.kind in ("elementwise", "leaf", "movement") or n.op.lower is None:
        return None
    zeros = {s: _constant(s) for s in n.src}
    try:
        Evaluator(_Probe(Inline("probe")), zeros).lower(n, tuple(tir.variable(f"i{a}") for a in range(n.ty.rank)))
    except _FoldFound as found:
        return found.length
    return None


def _constant(s: Node) -> Load:
    return lambda *index: tir.const(0, s.dtype)


def squeezed_shape(n: Node) -> tuple[int, ...]:
    """Return the shape of a fold without the axes of extent 1 that `keepdims` leaves."""
    if n.attrs.get("keepdims"):
        return tuple(d for a, d in enumerate(n.shape) if a not in n.attrs["axes"])
    return n.shape


def _full_index(n: Node, at: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the index in n of an index in its squeezed shape."""
    if not n.attrs.get("keepdims"):
        return at
    rest = iter(at)
    return tuple(0 if a in n.attrs["axes"] else next(rest) for a in range(n.ty.rank))


def _squeezed_index(n: Node, at: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(i for a, i in enumerate(at) if a not in n.attrs["axes"]) if n.attrs.get("keepdims") else at


def is_cheap_to_repeat(roots: Iterable[Node], stored: Iterable[Node]) -> bool:
    """Are the expressions that the roots read small enough to be inlined at each use?"""
    size: dict[Node, int] = dict.fromkeys(stored, 1)
    roots = tuple(roots)
    for n in topological(roots):
        if n not in size:
            cost = 200 if n.op.kind == "random" else 1
            size[n] = cost + sum(size.get(s, 1) for s in n.src)
    return all(size[s] <= MAX_REPEATED_OPS for n in roots for s in n.src)


def schedule_folds(
    folds: tuple[Node, ...], known: Sequence[Node], shape: tuple[int, ...], options: dict[str, object]
) -> Stages | None:
    """Return the folds in one kernel, which reads `known` values from memory, if a rule of dlight can schedule them.

    `shape` is that of the last stage: the folds' own, or the domain of a row-wise group. A schedule that computes many
    results in one thread block is rejected: the other multiprocessors would idle.
    """
    sources = tuple(n for n in known if _is_read(n, folds, known))
    if not all(n.ty.size for n in (*sources, *folds)):
        return None
    tensors = {n: te.placeholder(f"x{i}", stage_shape(n.shape), n.dtype) for i, n in enumerate(sources)}
    fold_stages: dict[Node, te.Tensor] = {}
    algebra, out_of_bounds = TeAlgebra(), set[Node]()
    stored: dict[Node, Load] = {n: _bounds_checked_load(n, t, algebra, out_of_bounds) for n, t in tensors.items()}
    for n in folds:
        tensor = _fold_stage(n, stored, f"fold{len(fold_stages)}", algebra)
        if tensor is None:
            return None
        fold_stages[n] = tensor
        stored[n] = _fold_element(n, tensor)
    last = te.compute(
        "finished", stage_shape(shape), lambda *at: te.finished([_folded_value(n, fold_stages[n], at) for n in folds])
    )
    stages = [*tensors.values(), last]
    rules = te.RULES if len(folds) == 1 else ("GeneralReduction", "RMSNorm")
    out_of_bounds_positions = tuple(i for i, n in enumerate(sources) if n in out_of_bounds)
    candidates = [
        Stages(rule, func, sources, folds, shape, out_of_bounds_positions)
        for rule, func in te.schedules(stages, options, rules)
    ]
    few = math.prod(shape) <= FEW  # then one thread block is accepted
    return next((s for s in candidates if te.grids(s.func)[0][0] > 1), candidates[0] if candidates and few else None)


def transposition(n: Node, options: dict[str, object]) -> Stages | None:
    """Return a schedule that transposes a matrix through shared memory, so that loads and stores are coalesced. It
    takes the place of a fold: the rest of the group is its epilogue."""
    (x,) = n.src
    tensor = te.placeholder("x0", x.shape, x.dtype)
    last = te.compute("finished", n.shape, lambda i, j: tensor(j, i))
    candidates = te.schedules([tensor, last], options, ("Transpose",))
    return next(
        (Stages(rule, func, (x,), (n,), n.shape) for rule, func in candidates if te.grids(func)[0][0] > 1), None
    )


def stage_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a stage: a scalar is an array of one element."""
    return shape or (1,)


def _is_read(source: Node, folds: tuple[Node, ...], stored: Sequence[Node]) -> bool:
    """Does some fold read this value?"""
    seen: set[Node] = set()
    stack = [s for n in folds for s in n.src]
    while stack:
        n = stack.pop()
        if n is source:
            return True
        if n not in seen and n not in stored:
            seen.add(n)
            stack.extend(n.src)
    return False


def _element(tensor: te.Tensor) -> Load:
    return lambda *index: tensor(*map(tir.index, index or (0,)))


def _bounds_checked_load(n: Node, tensor: te.Tensor, algebra: TeAlgebra, out_of_bounds: set[Node]) -> Load:
    """Return the Load by which a stage reads n; it adds n to `out_of_bounds` if an index may be beyond its ends. That
    includes clamped indices: under an equivalent condition TVM simplifies the clamp away, and a schedule may then move
    the read out of the condition."""

    def element(*index: Value) -> Expr:
        kept = any(te.is_conditional(i) for i in index)
        if kept or not all(algebra.ranges.within(i, extent) for i, extent in zip(index, n.shape, strict=True)):
            out_of_bounds.add(n)
        return _element(tensor)(*index)

    return element


def _fold_element(n: Node, tensor: te.Tensor) -> Load:
    """Return the Load by which other stages read a fold: sums of 16-bit floats are stored in f32."""
    algebra = TeAlgebra()

    def element(*index: Value) -> Expr:
        return algebra.cast(_element(tensor)(*_squeezed_index(n, index)), n.dtype)

    return element


def _fold_stage(n: Node, stored: dict[Node, Load], name: str, algebra: TeAlgebra) -> te.Tensor | None:
    """Return the stage of a fold; None if its `lower` rule computes more than the fold."""
    is_only_fold = True

    def element(*at: Value) -> Expr:
        nonlocal is_only_fold
        algebra.last_fold = None
        for axis, extent in zip(at, stage_shape(squeezed_shape(n)), strict=True):
            algebra.ranges.bind(axis, extent)
        value = Evaluator(algebra, stored).lower(n, _full_index(n, at[: len(squeezed_shape(n))]))
        is_only_fold = is_only_fold and algebra.last_fold is not None and value.same_as(algebra.last_fold)
        return value if is_only_fold else tir.const(0, n.dtype)

    tensor = te.compute(name, stage_shape(squeezed_shape(n)), element)
    return tensor if is_only_fold else None


def _folded_value(n: Node, tensor: te.Tensor, at: tuple[Value, ...]) -> Expr:
    """Return a fold's value for an index of the last stage, which is its own index or one in the fold's row."""
    return _element(tensor)(*at[: len(squeezed_shape(n))])
