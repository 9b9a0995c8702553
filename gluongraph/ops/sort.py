"""Sorting along an axis."""

from __future__ import annotations

import numpy as np

from gluongraph.dtypes import is_float
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops import constants, elementwise, logic, movement, reduce
from gluongraph.ops.checks import NUMBERS, check_axes, need, normal_axis
from gluongraph.ops.samples import each


def _argsort_type(x: TensorType, axis: int) -> TensorType:
    need("argsort", NUMBERS, x)
    check_axes("argsort", x, (axis,))
    return TensorType(x.shape, "i32")


def _argsort(x: Node, axis: int) -> Node:
    """The position of an element is the number of elements before it: comparing all pairs has no sequential loop."""
    last = movement.moveaxis(x, axis, x.ty.rank - 1)
    n, whole = last.shape[-1], (*last.shape, last.shape[-1])
    here = movement.expand(movement.expand_dims(last, -1), whole)
    other = movement.expand(movement.expand_dims(last, -2), whole)
    number, of_other = (constants.iota(whole, len(whole) - k) for k in (2, 1))
    earlier = logic.logical_and(logic.equal(other, here), logic.less(of_other, number))
    before = logic.logical_or(logic.less(other, here), earlier)
    if is_float(x.dtype):  # NaN come last, as in numpy
        odd, odd_other = elementwise.isnan(here), elementwise.isnan(other)
        both = logic.logical_and(logic.logical_and(odd, odd_other), logic.less(of_other, number))
        before = logic.logical_or(before, logic.logical_or(both, logic.logical_and(odd, logic.logical_not(odd_other))))
    place = reduce.sum(elementwise.cast(before, "i32"), -1)
    hit = logic.equal(movement.expand(movement.expand_dims(place, -2), whole), number)
    order = reduce.sum(logic.where(hit, of_other, 0), -1)
    return movement.moveaxis(order, len(order.shape) - 1, axis) if n else constants.zeros(TensorType(x.shape, "i32"))


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
    doc="The indices that sort x along an axis, ascending and stable.",
)


def argsort(x: Node, axis: int = -1) -> Node:
    """The indices that sort x along an axis, ascending and stable."""
    return ARGSORT(x, axis=normal_axis("argsort", axis, x.ty.rank))
