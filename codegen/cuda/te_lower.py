"""A group's body as tensor expressions: a stage for each reduction or contraction, the rest inlined."""

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
TREE = 160  # a stage repeats what it reads twice: expressions with more operations than this get a kernel of their own


@dataclass(frozen=True)
class Stages:
    """Folds that one kernel does, scheduled by a rule of dlight.

    `sources` are the arguments read in their own shape, `folds` what the last stage hands over at an index of `shape`;
    `outside` are positions of sources that the stages read beyond their ends too (see `te.place`).
    """

    rule: str
    func: PrimFunc
    sources: tuple[Node, ...]
    folds: tuple[Node, ...]
    shape: tuple[int, ...]
    outside: tuple[int, ...] = ()


class _Folds(Exception):
    """Raised by the probe when a rule reduces: over how many elements."""

    def __init__(self, length: int):
        self.length = length


class _Probe(CudaAlgebra):
    """Finds out whether a rule reduces."""

    def reduce(
        self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str, lanes: int | None = None
    ) -> Expr:
        raise _Folds(math.prod(extents))


def fold_length(n: Node) -> int | None:
    """Over how many elements n's rule reduces; None if it does not."""
    if n.op.kind in ("elementwise", "leaf", "movement") or n.op.lower is None:
        return None
    zeros = {s: _constant(s) for s in n.src}
    try:
        Evaluator(_Probe(Inline("probe")), zeros).lower(n, tuple(tir.variable(f"i{a}") for a in range(n.ty.rank)))
    except _Folds as found:
        return found.length
    return None


def _constant(s: Node) -> Load:
    return lambda *index: tir.const(0, s.dtype)


def kept_shape(n: Node) -> tuple[int, ...]:
    """The shape of a fold without the axes of extent 1 that `keepdims` leaves."""
    if n.attrs.get("keepdims"):
        return tuple(d for a, d in enumerate(n.shape) if a not in n.attrs["axes"])
    return n.shape


def _full_index(n: Node, at: tuple[Value, ...]) -> tuple[Value, ...]:
    """The index in n of an index in its kept shape."""
    if not n.attrs.get("keepdims"):
        return at
    rest = iter(at)
    return tuple(0 if a in n.attrs["axes"] else next(rest) for a in range(n.ty.rank))


def _kept_index(n: Node, at: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(i for a, i in enumerate(at) if a not in n.attrs["axes"]) if n.attrs.get("keepdims") else at


def small(roots: Iterable[Node], stored: Iterable[Node]) -> bool:
    """Is the expression of each root short enough to be repeated wherever it is read?"""
    size: dict[Node, int] = dict.fromkeys(stored, 1)
    roots = tuple(roots)
    for n in topological(roots):
        if n not in size:
            cost = 200 if n.op.kind == "random" else 1
            size[n] = cost + sum(size.get(s, 1) for s in n.src)
    return all(size[s] <= TREE for n in roots for s in n.src)


def stage(
    folds: tuple[Node, ...], known: Sequence[Node], shape: tuple[int, ...], options: dict[str, object]
) -> Stages | None:
    """The folds in one kernel, reading `known` values from memory, if a rule of dlight takes them.

    `shape` is that of the last stage: the folds' own, or the space that a row-wise group writes to. A schedule that
    has one thread block for many results is not taken: the rest of the machine would idle.
    """
    sources = tuple(n for n in known if _is_read(n, folds, known))
    if not all(n.ty.size for n in (*sources, *folds)):
        return None
    tensors = {n: te.placeholder(f"x{i}", placed(n.shape), n.dtype) for i, n in enumerate(sources)}
    made: dict[Node, te.Tensor] = {}
    algebra, outside = TeAlgebra(), set[Node]()
    stored: dict[Node, Load] = {n: _watched(n, t, algebra, outside) for n, t in tensors.items()}
    for n in folds:
        tensor = _fold_stage(n, stored, f"fold{len(made)}", algebra)
        if tensor is None:
            return None
        made[n] = tensor
        stored[n] = _fold_element(n, tensor)
    last = te.compute("finished", placed(shape), lambda *at: te.finished([_row(n, made[n], at) for n in folds]))
    stages = [*tensors.values(), last]
    rules = te.RULES if len(folds) == 1 else ("GeneralReduction", "RMSNorm")
    loose = tuple(i for i, n in enumerate(sources) if n in outside)
    found = [Stages(rule, func, sources, folds, shape, loose) for rule, func in te.schedules(stages, options, rules)]
    few = math.prod(shape) <= FEW  # then one block is all there is to have
    return next((s for s in found if te.grids(s.func)[0][0] > 1), found[0] if found and few else None)


def transposition(n: Node, options: dict[str, object]) -> Stages | None:
    """A matrix turned over by way of shared memory, so that both sides are read and written in runs. It stands where
    folds do: what else the group computes is written where the turned elements are."""
    (x,) = n.src
    tensor = te.placeholder("x0", x.shape, x.dtype)
    last = te.compute("finished", n.shape, lambda i, j: tensor(j, i))
    found = te.schedules([tensor, last], options, ("Transpose",))
    return next((Stages(rule, func, (x,), (n,), n.shape) for rule, func in found if te.grids(func)[0][0] > 1), None)


def placed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a stage: one number is an array of one."""
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


def _watched(n: Node, tensor: te.Tensor, algebra: TeAlgebra, outside: set[Node]) -> Load:
    """How a stage reads n, which becomes one of those `outside` where an index may lie beyond its ends. So may one that
    the rule keeps within them: TVM drops that where the value is asked for under a condition that says the same, and a
    schedule then takes the read out of the condition."""

    def element(*index: Value) -> Expr:
        kept = any(te.is_conditional(i) for i in index)
        if kept or not all(algebra.ranges.within(i, extent) for i, extent in zip(index, n.shape, strict=True)):
            outside.add(n)
        return _element(tensor)(*index)

    return element


def _fold_element(n: Node, tensor: te.Tensor) -> Load:
    """How other stages read a fold: sums of 16-bit floats are held in f32."""
    algebra = TeAlgebra()

    def element(*index: Value) -> Expr:
        return algebra.cast(_element(tensor)(*_kept_index(n, index)), n.dtype)

    return element


def _fold_stage(n: Node, stored: dict[Node, Load], name: str, algebra: TeAlgebra) -> te.Tensor | None:
    """The stage of a fold; None if its rule does more than fold."""
    whole = True

    def element(*at: Value) -> Expr:
        nonlocal whole
        algebra.made = None
        for axis, extent in zip(at, placed(kept_shape(n)), strict=True):
            algebra.ranges.bind(axis, extent)
        value = Evaluator(algebra, stored).lower(n, _full_index(n, at[: len(kept_shape(n))]))
        whole = whole and algebra.made is not None and value.same_as(algebra.made)
        return value if whole else tir.const(0, n.dtype)

    tensor = te.compute(name, placed(kept_shape(n)), element)
    return tensor if whole else None


def _row(n: Node, tensor: te.Tensor, at: tuple[Value, ...]) -> Expr:
    """A fold's value for an index of the last stage: its own index, or the row that the index lies in."""
    return _element(tensor)(*at[: len(kept_shape(n))])
