"""Reductions over axes: sums, means, products, extremes, norms, and where they lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import DTYPES, is_float
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import row

Axes = tuple[int, ...]
Reduce = Callable[[Node, Axes], Node]  # with the axes kept


def _kept(build: Callable[..., Node]) -> Reduce:
    return lambda x, axes: build(x, axis=axes, keepdims=True)


def _extreme(build: Callable[..., Node], highest: bool) -> Reduce:
    """The extreme of no elements is the worst number of the type."""

    def reduce(x: Node, axes: Axes) -> Node:
        if all(x.shape[a] for a in axes):
            if x.dtype == "bool":
                return ops.cast(build(ops.cast(x, "u8"), axis=axes, keepdims=True), "bool")
            return build(x, axis=axes, keepdims=True)
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
        return ops.full(shape, worst(x.dtype, highest), x.dtype)

    return reduce


def _first_extreme(highest: bool) -> Reduce:
    """The extreme along one axis, of equal ones the first: it gets the gradient, as that of max(dim) in PyTorch."""

    def reduce(x: Node, axes: Axes) -> Node:
        place = (ops.argmax if highest else ops.argmin)(x, axis=axes[0], keepdims=True)
        return ops.gather(x, ops.cast(place, "i32"), axes[0])

    return reduce


def worst(dtype: str, highest: bool) -> float | int | bool:
    about = DTYPES[dtype]
    if about.family == "float":
        return -math.inf if highest else math.inf
    if about.family == "bool":
        return not highest
    bits, signed = 8 * about.nbytes, about.family == "int"
    if highest:
        return -(1 << (bits - 1)) if signed else 0
    return (1 << (bits - signed)) - 1


def _mean(x: Node, axes: Axes) -> Node:
    if is_float(x.dtype):
        return ops.mean(x, axis=axes, keepdims=True)
    total = ops.sum(x, axis=axes, keepdims=True)
    return ops.cast(ops.div(ops.cast(total, "f64"), float(x.ty.size // max(total.ty.size, 1))), x.dtype)


def _norm(x: Node, axes: Axes) -> Node:
    """The gradient where all are 0 is 0, as in PyTorch: padding that is normalized must not spoil the others'."""
    wide = ops.cast(x, "f32") if x.dtype in ("f16", "bf16") or not is_float(x.dtype) else x
    total = ops.sum(ops.mul(wide, wide), axis=axes, keepdims=True)
    none = ops.equal(total, 0)
    return ops.cast(ops.where(none, 0, ops.sqrt(ops.where(none, 1, total))), x.dtype)


def _log_sum_exp(x: Node, axes: Axes) -> Node:
    if not all(x.shape[a] for a in axes):
        return ops.log(ops.sum(ops.exp(x), axis=axes, keepdims=True))
    wide = x if is_float(x.dtype) else ops.cast(x, "f32")
    top = ops.stop_gradient(ops.max(wide, axis=axes, keepdims=True))
    top = ops.where(ops.isfinite(top), top, 0.0)
    return ops.cast(ops.add(ops.log(ops.sum(ops.exp(ops.sub(wide, top)), axis=axes, keepdims=True)), top), x.dtype)


_TABLE: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes: ops.sum(ops.abs(x), axis=axes, keepdims=True),
    "ReduceL2": _norm,
    "ReduceLogSum": lambda x, axes: ops.log(ops.sum(x, axis=axes, keepdims=True)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(ops.amax, True),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(ops.amin, False),
    "ReduceProd": _kept(ops.prod),
    "ReduceSum": _kept(ops.sum),
    "ReduceSumSquare": lambda x, axes: ops.sum(ops.mul(x, x), axis=axes, keepdims=True),
}


def _by_attribute(build: Reduce) -> Any:
    def reduce(at: NodeContext, x: Node, *, axes: Axes | None = None, keepdims: int = 1) -> Node:
        return _reduced(at, build, x, axes, keepdims)

    return reduce


def _by_input(build: Reduce) -> Any:
    def reduce(
        at: NodeContext, x: Node, axes: Node | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Node:
        over = at.ints(axes, "axes")
        if len(over or ()) == 1 and at.from_torch("aten.max.dim", "aten.min.dim"):
            return _reduced(at, _first_extreme(at.from_torch("aten.max.dim")), x, over, keepdims)
        return _reduced(at, build, x, () if noop_with_empty_axes and not over else over or None, keepdims)

    return reduce


def _reduced(at: NodeContext, build: Reduce, x: Node, axes: Axes | None, keepdims: int) -> Node:
    over = tuple(range(x.ty.rank)) if axes is None else tuple(sorted(at.axes(axes, x.ty.rank)))
    y = build(x, over)
    return y if keepdims else ops.reshape(y, tuple(n for a, n in enumerate(x.shape) if a not in over))


for _name, _build in _TABLE.items():
    row(_name, _by_attribute(_build))
    row(_name, _by_input(_build), since=13 if _name == "ReduceSum" else 18, static=("axes",))


def _found(build: Any) -> Any:
    def find(at: NodeContext, x: Node, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Node:
        axis = at.axis(axis, x.ty.rank)
        place = build(ops.flip(x, axis) if select_last_index else x, axis=axis, keepdims=bool(keepdims))
        if select_last_index:
            place = ops.sub(x.shape[axis] - 1, place)
        return ops.cast(place, "i64")

    return find


row("ArgMax", _found(ops.argmax))
row("ArgMin", _found(ops.argmin))
