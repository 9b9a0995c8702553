"""Arithmetic, comparisons, elementary functions and reductions.

Conventions of MXNet that are kept: a reduction over all axes has shape (1,), comparisons give 0 and 1 in the dtype of
their arguments, indices may come as floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.ops.builders import Binary, Value, broadcast, dtype_of
from gluongraph.ops.checks import INTEGERS

Axes = int | Sequence[int] | None


# -- arithmetic; numbers and broadcasting are the business of gluongraph.ops


def identity(data: Node) -> Node:
    """data"""
    return data


def add(lhs: Value, rhs: Value) -> Node:
    """lhs + rhs"""
    return ops.add(lhs, rhs)


def add_n(*args: Node) -> Node:
    """The sum of all arrays."""
    first, *rest = args
    for each in rest:
        first = ops.add(first, each)
    return first


def subtract(lhs: Value, rhs: Value) -> Node:
    """lhs - rhs"""
    return ops.sub(lhs, rhs)


def multiply(lhs: Value, rhs: Value) -> Node:
    """lhs * rhs"""
    return ops.mul(lhs, rhs)


def divide(lhs: Value, rhs: Value) -> Node:
    """lhs / rhs; of integers the quotient truncated towards zero, and 0 where rhs is 0"""
    if dtype_of(lhs, rhs) not in INTEGERS or not any(isinstance(each, Node) for each in (lhs, rhs)):
        return ops.div(lhs, rhs)
    x, y = broadcast("div", lhs, rhs)
    down = ops.floordiv(x, y)
    if x.dtype.startswith("u"):
        return down
    exact = ops.equal(ops.mul(down, y), x)
    return ops.where(ops.logical_or(exact, ops.greater_equal(down, 0)), down, ops.add(down, 1))


def modulo(lhs: Value, rhs: Value) -> Node:
    """lhs mod rhs, with the sign of rhs"""
    return ops.mod(lhs, rhs)


def power(base: Value, exp: Value) -> Node:
    """base ** exp"""
    return ops.pow(base, exp)


def maximum(lhs: Value, rhs: Value) -> Node:
    """The larger of the two, elementwise."""
    return ops.maximum(lhs, rhs)


def minimum(lhs: Value, rhs: Value) -> Node:
    """The smaller of the two, elementwise."""
    return ops.minimum(lhs, rhs)


def negative(data: Node) -> Node:
    """-data"""
    return ops.neg(data)


def _compared(compare: Binary, lhs: Value, rhs: Value) -> Node:
    """The comparison in the dtype of its arrays; of integers with a fraction, it is made in float64."""
    dtype = dtype_of(lhs, rhs)
    if not is_float(dtype) and _is_fraction(lhs, rhs):
        lhs, rhs = (ops.cast(x, "f64") if isinstance(x, Node) else x for x in (lhs, rhs))
    return ops.cast(compare(lhs, rhs), dtype)


def _is_fraction(*operands: Value) -> bool:
    return any(isinstance(x, float) and not x.is_integer() for x in operands)


def equal(lhs: Value, rhs: Value) -> Node:
    """1 where lhs == rhs, else 0"""
    return _compared(ops.equal, lhs, rhs)


def not_equal(lhs: Value, rhs: Value) -> Node:
    """1 where lhs != rhs, else 0"""
    return _compared(ops.not_equal, lhs, rhs)


def lesser(lhs: Value, rhs: Value) -> Node:
    """1 where lhs < rhs, else 0"""
    return _compared(ops.less, lhs, rhs)


def lesser_equal(lhs: Value, rhs: Value) -> Node:
    """1 where lhs <= rhs, else 0"""
    return _compared(ops.less_equal, lhs, rhs)


def greater(lhs: Value, rhs: Value) -> Node:
    """1 where lhs > rhs, else 0"""
    return _compared(ops.greater, lhs, rhs)


def greater_equal(lhs: Value, rhs: Value) -> Node:
    """1 where lhs >= rhs, else 0"""
    return _compared(ops.greater_equal, lhs, rhs)


def logical_and(lhs: Value, rhs: Value) -> Node:
    """1 where both are not 0, else 0"""
    return _compared(lambda x, y: ops.logical_and(ops.not_equal(x, 0), ops.not_equal(y, 0)), lhs, rhs)


def logical_or(lhs: Value, rhs: Value) -> Node:
    """1 where one of them is not 0, else 0"""
    return _compared(lambda x, y: ops.logical_or(ops.not_equal(x, 0), ops.not_equal(y, 0)), lhs, rhs)


def logical_xor(lhs: Value, rhs: Value) -> Node:
    """1 where exactly one of them is not 0, else 0"""
    return _compared(lambda x, y: ops.not_equal(ops.not_equal(x, 0), ops.not_equal(y, 0)), lhs, rhs)


def logical_not(data: Node) -> Node:
    """1 where data is 0, else 0"""
    return ops.cast(ops.equal(data, 0), data.dtype)


def abs(data: Node) -> Node:
    """|data|"""
    return ops.abs(data)


def sign(data: Node) -> Node:
    """-1, 0 or 1"""
    return ops.sign(data)


def exp(data: Node) -> Node:
    """e ** data"""
    return ops.exp(data)


def expm1(data: Node) -> Node:
    """e ** data - 1, exact near 0"""
    return ops.expm1(data)


def log(data: Node) -> Node:
    """The natural logarithm."""
    return ops.log(data)


def log1p(data: Node) -> Node:
    """log(1 + data), exact near 0"""
    return ops.log1p(data)


def log2(data: Node) -> Node:
    """The logarithm to base 2."""
    return ops.mul(ops.log(data), 1.0 / math.log(2.0))


def log10(data: Node) -> Node:
    """The logarithm to base 10."""
    return ops.mul(ops.log(data), 1.0 / math.log(10.0))


def sqrt(data: Node) -> Node:
    """The square root."""
    return ops.sqrt(data)


def rsqrt(data: Node) -> Node:
    """1 / sqrt(data)"""
    return ops.rsqrt(data)


def square(data: Node) -> Node:
    """data * data"""
    return ops.mul(data, data)


def reciprocal(data: Node) -> Node:
    """1 / data"""
    return ops.div(1.0, data)


def sin(data: Node) -> Node:
    """The sine."""
    return ops.sin(data)


def cos(data: Node) -> Node:
    """The cosine."""
    return ops.cos(data)


def tanh(data: Node) -> Node:
    """The hyperbolic tangent."""
    return ops.tanh(data)


def erf(data: Node) -> Node:
    """The error function."""
    return ops.erf(data)


def sigmoid(data: Node) -> Node:
    """1 / (1 + e ** -data)"""
    return ops.sigmoid(data)


def relu(data: Node) -> Node:
    """max(data, 0)"""
    return ops.relu(data)


def softsign(data: Node) -> Node:
    """data / (1 + |data|)"""
    return ops.div(data, ops.add(ops.abs(data), 1.0))


def softrelu(data: Node) -> Node:
    """log(1 + e ** data), without overflow"""
    above = ops.greater_equal(data, 0.0)  # both parts have the slope of one side at 0, so that their sum has 1/2 there
    return ops.add(ops.where(above, data, 0.0), ops.log1p(ops.exp(ops.where(above, ops.neg(data), data))))


def floor(data: Node) -> Node:
    """The next integer below."""
    return ops.floor(data) if is_float(data.dtype) else data


def ceil(data: Node) -> Node:
    """The next integer above."""
    return ops.ceil(data) if is_float(data.dtype) else data


def round(data: Node) -> Node:
    """The nearest integer; halves go away from zero, as in MXNet."""
    if not is_float(data.dtype):
        return data
    return ops.mul(ops.sign(data), ops.floor(ops.add(ops.abs(data), 0.5)))


def clip(data: Node, a_min: float, a_max: float) -> Node:
    """data held between a_min and a_max"""
    return ops.minimum(ops.maximum(data, a_min), a_max)


def _chooses_from(condition: tuple[int, ...], x: tuple[int, ...]) -> bool:
    return len(condition) == len(x) and all(a in (1, b) for a, b in zip(condition, x, strict=True))


def where(condition: Node, x: Node, y: Node) -> Node:
    """x where condition is not 0, else y; a condition of one axis chooses whole rows of x and y.

    Otherwise it has the axes of x, each as long as there or of 1 element.
    """
    if condition.ty.rank == 1 and isinstance(x, Node) and x.ty.rank > 1 and condition.shape == x.shape[:1]:
        condition = ops.reshape(condition, (*condition.shape, *(1,) * (x.ty.rank - 1)))
    elif isinstance(x, Node) and not _chooses_from(condition.shape, x.shape):
        help = f"its shape is {list(x.shape)}, or {list(x.shape[:1])} for a choice of rows"
        raise ShapeError(with_user_location(f"where: the condition {condition.ty} does not fit {x.ty}", help=help))
    if condition.dtype != "bool":
        condition = ops.not_equal(condition, 0)
    return ops.where(condition, x, y)


def cast(data: Node, dtype: Any) -> Node:
    """The elements as another type."""
    return ops.cast(data, dtype_name(dtype))


def detach(data: Node) -> Node:
    """x, apart from the record: what is computed from it does not depend on x."""
    return ops.stop_gradient(data, detached=True)


def stop_gradient(data: Node) -> Node:
    """data, through which no gradient flows"""
    return ops.stop_gradient(data)


def full_like(data: Node, fill_value: float, dtype: Any = None) -> Node:
    """An array of this shape, filled with one value."""
    return ops.full(data.shape, fill_value, data.dtype if dtype is None else dtype_name(dtype))


def zeros_like(data: Node, dtype: Any = None) -> Node:
    """Zeros of this shape."""
    return full_like(data, 0, dtype)


def ones_like(data: Node, dtype: Any = None) -> Node:
    """Ones of this shape."""
    return full_like(data, 1, dtype)


# -- reductions


def axes_of(data: Node, axis: Axes, exclude: bool = False) -> tuple[int, ...]:
    """The axes meant, not negative; () and None are all of them, with `exclude` too."""
    rank = data.ty.rank
    if axis is None or axis == ():
        return tuple(range(rank))
    given = axis if isinstance(axis, Sequence) else (axis,)
    for a in given:
        if not isinstance(a, int):
            raise TypeError(with_user_location(f"an axis of {data.ty} is an integer, not {a!r}"))
        if not -rank <= a < rank:
            raise ShapeError(
                with_user_location(f"axis {a} does not exist in {data.ty}", help=f"axes are 0 to {rank - 1}")
            )
    axes = {a % rank for a in given}
    return tuple(sorted(set(range(rank)) - axes if exclude else axes))


def _reduced(reduce: Any, data: Node, axis: Axes, keepdims: bool, exclude: bool) -> Node:
    axes = axes_of(data, axis, exclude)
    result = reduce(data, axis=axes, keepdims=keepdims)
    return result if result.ty.rank else ops.reshape(result, (1,))


def sum(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The sum over the axes given, or with `exclude` over all others."""
    return _reduced(ops.sum, data, axis, keepdims, exclude)


def mean(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The mean over the axes given, or with `exclude` over all others."""
    return _reduced(ops.mean, data, axis, keepdims, exclude)


def prod(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The product over the axes given, or with `exclude` over all others."""
    return _reduced(ops.prod, data, axis, keepdims, exclude)


def max(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The largest element over the axes given, or with `exclude` over all others."""
    return _reduced(ops.max, data, axis, keepdims, exclude)


def min(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The smallest element over the axes given, or with `exclude` over all others."""
    return _reduced(ops.min, data, axis, keepdims, exclude)


def norm(data: Node, ord: int = 2, axis: Axes = None, keepdims: bool = False, out_dtype: Any = None) -> Node:
    """The 2-norm (or 1-norm) over the axes given."""
    if ord not in (1, 2):
        raise MXNetError(with_user_location(f"norm: ord is 1 or 2, not {ord!r}"))
    if out_dtype is not None:
        data = ops.cast(data, dtype_name(out_dtype))
    if ord == 1:
        return sum(ops.abs(data), axis, keepdims)
    return ops.sqrt(sum(ops.mul(data, data), axis, keepdims))


def argmax(data: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """The index of the first largest element: in the dtype of data, or in float32 if that has only 8 or 16 bits.

    A NaN counts as larger than any number, and as smaller.
    """
    return _arg(ops.argmax, data, axis, keepdims)


def argmin(data: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """The index of the first smallest element, in the dtype that argmax says."""
    return _arg(ops.argmin, data, axis, keepdims)


def _arg(find: Any, data: Node, axis: int | None, keepdims: bool) -> Node:
    over = axes_of(data, axis)
    shape = tuple(1 if i in over else n for i, n in enumerate(data.shape) if keepdims or i not in over) or (1,)
    if axis is None:
        data = ops.reshape(data, (data.ty.size,))
    found = ops.reshape(find(data, axis=0 if axis is None else over[0]), shape)
    return ops.cast(found, data.dtype if data.dtype in ("f64", "i32", "i64") else "f32")


def argmax_channel(data: Node) -> Node:
    """The index of the first largest element along axis 1."""
    return argmax(data, 1)


def cumsum(a: Node, axis: int | None = None, dtype: Any = None) -> Node:
    """The running sum along an axis; of all elements in order without one."""
    if dtype is not None:
        a = ops.cast(a, dtype_name(dtype))
    if axis is None:
        a, axis = ops.reshape(a, (a.ty.size,)), 0
    (axis,) = axes_of(a, axis)
    return ops.cumsum(a, axis=axis)
