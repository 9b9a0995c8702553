"""The order of elements along an axis."""

from __future__ import annotations

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.builders import NUMBERS, check_axes, need, normal_axis
from gluongraph.ops.samples import each


def _argsort_type(x: TensorType, axis: int) -> TensorType:
    need("argsort", NUMBERS, x)
    check_axes("argsort", x, (axis,))
    return TensorType(x.shape, "i32")


def _argsort(x: Node, axis: int) -> Node:
    """Count, for each element, those before it: that is its place. Comparing all with all needs no loop that waits."""
    last = ops.moveaxis(x, axis, x.ty.rank - 1)
    n, whole = last.shape[-1], (*last.shape, last.shape[-1])
    here = ops.expand(ops.expand_dims(last, -1), whole)
    other = ops.expand(ops.expand_dims(last, -2), whole)
    number, of_other = (ops.iota(whole, len(whole) - k) for k in (2, 1))
    earlier = ops.logical_and(ops.equal(other, here), ops.less(of_other, number))
    before = ops.logical_or(ops.less(other, here), earlier)
    if is_float(x.dtype):  # NaN come last, as in numpy
        odd, odd_other = ops.isnan(here), ops.isnan(other)
        both = ops.logical_and(ops.logical_and(odd, odd_other), ops.less(of_other, number))
        before = ops.logical_or(before, ops.logical_or(both, ops.logical_and(odd, ops.logical_not(odd_other))))
    place = ops.sum(ops.cast(before, "i32"), -1)
    hit = ops.equal(ops.expand(ops.expand_dims(place, -2), whole), number)
    order = ops.sum(ops.where(hit, of_other, 0), -1)
    return ops.moveaxis(order, len(order.shape) - 1, axis) if n else ops.zeros(TensorType(x.shape, "i32"))


ARGSORT = composite(
    "argsort",
    _argsort,
    infer=_argsort_type,
    numpy=lambda x, axis: np.argsort(x, axis, kind="stable").astype(np.int32),
    grad=lambda g, y, x, axis: (None,),
    samples=each(
        (((3, 33),), {"axis": 1}),
        (((5, 2, 3),), {"axis": 0}),
        ((((4, 9), "i32", -3, 3),), {"axis": 1}),
        (((7,),), {"axis": 0}),
    ),
    doc="The indices that sort x along an axis, upwards; equal elements keep their order.",
)


def argsort(x: Node, axis: int = -1) -> Node:
    """The indices that sort x along an axis, upwards; equal elements keep their order."""
    return ARGSORT(x, axis=normal_axis("argsort", axis, x.ty.rank))
