"""Reductions over one axis or more; the cumulative sum; and mean, argmax, argmin, built of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import constants, elementwise, logic, movement, sums
from gluongraph.ops.checks import FLOATS, NUMBERS, Axes, check_axes, misfit, need, normal_axes, normal_axis, without
from gluongraph.ops.samples import each

_HALF = 2  # bytes of the floats whose sums and products are accumulated in f32

_SAMPLES = each(
    (((3, 33),), {"axes": (1,), "keepdims": False}),
    (((2, 3, 17),), {"axes": (0, 2), "keepdims": True}),
    (((5, 9),), {"axes": (0,), "keepdims": False}),
    (((5, 9),), {"axes": (0, 1), "keepdims": False}),
    (((7,),), {"axes": (0,), "keepdims": True}),
    (((2, 3, 17),), {"axes": (1,), "keepdims": False}),
    ((((4, 5), "i32", -3, 3),), {"axes": (1,), "keepdims": False}),
)


def _folded(op: str) -> Callable[..., TensorType]:
    def infer(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
        need(op, NUMBERS, x)
        check_axes(op, x, axes)
        if op in ("max", "min") and any(x.shape[a] == 0 for a in axes):
            raise misfit(op, "an empty axis has no largest or smallest element", x)
        return TensorType(without(x.shape, axes, keepdims), x.dtype)

    return infer


def _lower(name: str) -> Callable[..., Any]:
    def lower(e: Any, i: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        kept = list(i) if keepdims else _with_gaps(i, axes, len(x.shape))

        def element(*r: Any) -> Any:
            at = list(kept)
            for a, k in zip(axes, r, strict=True):
                at[a] = k
            return x(*at)

        return e.reduce(name, tuple(x.shape[a] for a in axes), element, x.dtype)

    return lower


def _with_gaps(i: Any, axes: tuple[int, ...], rank: int) -> list[Any]:
    """Insert a placeholder for each reduced axis into the index."""
    rest = iter(i)
    return [None if a in axes else next(rest) for a in range(rank)]


def _wide(fold: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction in the dtype of x; 16-bit floats accumulate in f32."""

    def numpy(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        dtype = x.dtype
        if dtype.itemsize == _HALF:
            return fold(x, axes, np.float32, keepdims).astype(dtype)
        return fold(x, axes, dtype, keepdims)

    return numpy


def spread(g: Node, x: Node, axes: tuple[int, ...]) -> Node:
    """Broadcast a reduction over `axes` (kept or not) back to the shape of x."""
    return movement.expand(movement.reshape(g, without(x.shape, axes, keepdims=True)), x.shape)


def _prod_grad(g: Node, y: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> tuple[Node]:
    """y / x, and where x is 0 the product of the others: 0 unless it is the only zero."""
    zero = logic.equal(x, 0)
    zeros = spread(SUM(elementwise.cast(zero, x.dtype), axes=axes, keepdims=keepdims), x, axes)
    others = spread(PROD(logic.where(zero, 1, x), axes=axes, keepdims=keepdims), x, axes)
    divide = elementwise.div if is_float(x.dtype) else elementwise.floordiv  # integer division is exact here
    rest = logic.where(logic.equal(zeros, elementwise.cast(zero, x.dtype)), divide(others, logic.where(zero, 1, x)), 0)
    return (spread(g, x, axes) * rest,)


def _extreme_grad(g: Node, y: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> tuple[Node]:
    """Every element that equals the result gets the gradient, as in MXNet."""
    return (logic.where(logic.equal(x, spread(y, x, axes)), spread(g, x, axes), 0),)


SUM = Op(
    "sum",
    kind="reduce",
    infer=_folded("sum"),
    numpy=_wide(sums.total),
    grad=lambda g, y, x, axes, keepdims: (spread(g, x, axes),),
    lower=_lower("sum"),
    samples=_SAMPLES,
    doc="The sum over the axes.",
)
PROD = Op(
    "prod",
    kind="reduce",
    infer=_folded("prod"),
    numpy=_wide(lambda x, axes, dtype, keepdims: np.multiply.reduce(x, axes, dtype, keepdims=keepdims)),
    grad=_prod_grad,
    lower=_lower("prod"),
    samples=_SAMPLES,
    doc="The product over the axes.",
)
MAX = Op(
    "max",
    kind="reduce",
    traits=frozenset({"selects"}),
    infer=_folded("max"),
    numpy=lambda x, axes, keepdims: np.maximum.reduce(x, axes, keepdims=keepdims),
    grad=_extreme_grad,
    lower=_lower("max"),
    samples=_SAMPLES,
    doc="The largest over the axes.",
)
MIN = Op(
    "min",
    kind="reduce",
    traits=frozenset({"selects"}),
    infer=_folded("min"),
    numpy=lambda x, axes, keepdims: np.minimum.reduce(x, axes, keepdims=keepdims),
    grad=_extreme_grad,
    lower=_lower("min"),
    samples=_SAMPLES,
    doc="The smallest over the axes.",
)


def sum(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The sum over an axis or several, or over all."""
    return SUM(x, axes=normal_axes("sum", axis, x.ty.rank), keepdims=keepdims)


def prod(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The product over an axis or several, or over all."""
    return PROD(x, axes=normal_axes("prod", axis, x.ty.rank), keepdims=keepdims)


def max(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The largest element over an axis or several, or over all."""
    return MAX(x, axes=normal_axes("max", axis, x.ty.rank), keepdims=keepdims)


def min(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The smallest element over an axis or several, or over all."""
    return MIN(x, axes=normal_axes("min", axis, x.ty.rank), keepdims=keepdims)


def _cumsum_type(x: TensorType, axis: int) -> TensorType:
    need("cumsum", NUMBERS, x)
    check_axes("cumsum", x, (axis,))
    return x


def _cumsum_lower(e: Any, i: Any, x: Any, axis: int) -> Any:
    def element(k: Any) -> Any:
        return e.where(e.binary("less_equal", k, i[axis]), x(*i[:axis], k, *i[axis + 1 :]), e.const(0, x.dtype))

    return e.reduce("sum", (x.shape[axis],), element, x.dtype)


CUMSUM = Op(
    "cumsum",
    kind="reduce",
    infer=_cumsum_type,
    numpy=sums.running,
    grad=lambda g, y, x, axis: (movement.flip(cumsum(movement.flip(g, axis), axis), axis),),
    lower=_cumsum_lower,
    samples=each(
        (((3, 33),), {"axis": 1}),
        (((2, 3, 17),), {"axis": 1}),
        (((7,),), {"axis": 0}),
        ((((5, 9), "i32", -3, 3),), {"axis": 0}),
    ),
    doc="The running sum along an axis.",
)


def cumsum(x: Node, axis: int) -> Node:
    """The running sum along an axis."""
    return CUMSUM(x, axis=normal_axis("cumsum", axis, x.ty.rank))


# -- composites: mean, amax, amin, argmax, argmin


def average(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """The sum over the axes, divided by the number of elements."""
    return sum(x, axes, keepdims) * (1 / math.prod(x.shape[a] for a in axes))


def _shared_grad(g: Node, y: Node, x: Node, axes: tuple[int, ...], keepdims: bool) -> tuple[Node]:
    """Elements that equal the result share the gradient equally."""
    best = logic.equal(x, spread(y, x, axes))
    parts = sum(elementwise.cast(best, x.dtype), axes, keepdims)
    return (logic.where(best, spread(g / parts, x, axes), 0),)


def _shared(name: str, build: Callable[..., Node], doc: str) -> Op:
    return composite(
        name,
        lambda x, axes, keepdims: build(x, axes, keepdims),
        infer=_folded(name.removeprefix("a")),
        grad=_shared_grad,
        samples=_SAMPLES,
        doc=doc,
    )


AMAX = _shared("amax", max, "The largest over the axes; equal ones share the gradient evenly, as in PyTorch's amax.")
AMIN = _shared("amin", min, "The smallest over the axes; equal ones share the gradient evenly, as in PyTorch's amin.")


def amax(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The largest element over an axis or several, or over all; equal ones share the gradient."""
    return AMAX(x, axes=normal_axes("amax", axis, x.ty.rank), keepdims=keepdims)


def amin(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The smallest element over an axis or several, or over all; equal ones share the gradient."""
    return AMIN(x, axes=normal_axes("amin", axis, x.ty.rank), keepdims=keepdims)


def _mean_type(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    need("mean", FLOATS, x)
    check_axes("mean", x, axes)
    if any(x.shape[a] == 0 for a in axes):
        raise misfit("mean", "there are no elements", x)
    return TensorType(without(x.shape, axes, keepdims), x.dtype)


MEAN = composite(
    "mean",
    average,
    infer=_mean_type,
    grad=lambda g, y, x, axes, keepdims: (spread(g * (1 / math.prod(x.shape[a] for a in axes)), x, axes),),
    samples=each(
        (((3, 33),), {"axes": (1,), "keepdims": False}),
        (((2, 3, 17),), {"axes": (0, 2), "keepdims": True}),
        (((5, 9),), {"axes": (0, 1), "keepdims": False}),
    ),
    doc="The sum over the axes, divided by the number of elements.",
)


def mean(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The mean over an axis or several, or over all."""
    return MEAN(x, axes=normal_axes("mean", axis, x.ty.rank), keepdims=keepdims)


def _first_hit(hit: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    """The first index along the axis where `hit` holds."""
    n = hit.shape[axis]
    places = logic.where(hit, constants.iota(hit.shape, axis, "i32"), n - 1)
    return elementwise.cast(min(places, axis, keepdims), dtype)


def _extreme(x: Node, extreme: Node, axis: int) -> Node:
    """Where x equals its extreme along the axis; if there is a NaN, where x is NaN."""
    equal = logic.equal(x, spread(extreme, x, (axis,)))
    return logic.logical_or(equal, elementwise.isnan(x)) if is_float(x.dtype) else equal


def _argmax(x: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    return _first_hit(_extreme(x, max(x, axis), axis), axis, keepdims, dtype)


def _argmin(x: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    return _first_hit(_extreme(x, min(x, axis), axis), axis, keepdims, dtype)


_ARG_SAMPLES = each(
    (((3, 33),), {"axis": 1, "keepdims": False, "dtype": "i32"}),
    (((2, 3, 17),), {"axis": 1, "keepdims": True, "dtype": "i64"}),
    ((((4, 9), "i32", 0, 3),), {"axis": 0, "keepdims": False, "dtype": "i32"}),
)


ARGMAX = composite(
    "argmax",
    _argmax,
    samples=_ARG_SAMPLES,
    doc="The index of the first largest element; of the first NaN, if there is one.",
)
ARGMIN = composite(
    "argmin",
    _argmin,
    samples=_ARG_SAMPLES,
    doc="The index of the first smallest element; of the first NaN, if there is one.",
)


def argmax(x: Node, axis: int = -1, keepdims: bool = False, dtype: str = "i32") -> Node:
    """The index of the first largest element along an axis."""
    return ARGMAX(x, axis=normal_axis("argmax", axis, x.ty.rank), keepdims=keepdims, dtype=dtype)


def argmin(x: Node, axis: int = -1, keepdims: bool = False, dtype: str = "i32") -> Node:
    """The index of the first smallest element along an axis."""
    return ARGMIN(x, axis=normal_axis("argmin", axis, x.ty.rank), keepdims=keepdims, dtype=dtype)
