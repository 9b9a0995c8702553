"""Bits of integers, by arithmetic: their digits along one more axis, and shifts as products and quotients by 2 ** n."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.ops.builders import broadcast_shape
from gluongraph.torch.aten.context import OpContext, Value, cast, constant
from gluongraph.torch.aten.table import aten


def _digits(x: Node) -> Node:
    """(...) -> (..., bits): 0 or 1, the lowest first; of signed integers without the highest, which is the sign."""
    powers = constant(np.array([1 << k for k in range(_count(x.dtype))], numpy_dtype(x.dtype)))
    return ops.mod(ops.floordiv(ops.expand_dims(x, -1), powers), cast(2, x.dtype))


def _count(dtype: str) -> int:
    bits = DTYPES[dtype].nbytes * 8
    return bits - 1 if DTYPES[dtype].family == "int" else bits


def _number(digits: Node, is_negative: Node | None) -> Node:
    """The reverse: of two's complement the sign counts -2 ** bits."""
    dtype, n = digits.dtype, digits.shape[-1]
    total = ops.sum(ops.mul(digits, constant(np.array([1 << k for k in range(n)], numpy_dtype(dtype)))), -1)
    if is_negative is None:
        return total
    return ops.add(total, ops.mul(cast(is_negative, dtype), cast(-(1 << n), dtype)))


def _bitwise(name: str, of_bools: Callable[[Node, Node], Node], of_digits: Callable[[Node, Node], Node]) -> None:
    @aten(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar", f"bitwise_{name}.Scalar_Tensor",
          f"__{name}__.Tensor", f"__{name}__.Scalar")  # fmt: skip
    def bitwise(at: OpContext, self: Value, other: Value) -> Node:
        a, b = cast(self, at.dtype), cast(other, at.dtype)
        if at.dtype == "bool":
            return of_bools(a, b)
        shape = broadcast_shape(at.name, a.ty, b.ty)
        a, b = ops.broadcast_to(a, shape), ops.broadcast_to(b, shape)
        signed = DTYPES[at.dtype].family == "int"
        zero = cast(0, at.dtype)
        sign = of_bools(ops.less(a, zero), ops.less(b, zero)) if signed else None
        return _number(of_digits(_digits(a), _digits(b)), sign)


_bitwise("and", ops.logical_and, ops.mul)
_bitwise("or", ops.logical_or, ops.maximum)
_bitwise("xor", ops.not_equal, lambda a, b: ops.mod(ops.add(a, b), cast(2, a.dtype)))


@aten("bitwise_not.default")
def bitwise_not(at: OpContext, self: Node) -> Node:
    """Every bit the other one"""
    if self.dtype == "bool":
        return ops.logical_not(self)
    most = -1 if DTYPES[self.dtype].family == "int" else (1 << _count(self.dtype)) - 1
    return ops.sub(cast(most, self.dtype), self)


def _power(at: OpContext, shift: Value) -> Node:
    """2 ** shift, in the type of the result."""
    powers = np.array([1 << k for k in range(_count(at.dtype))], numpy_dtype(at.dtype))
    if not isinstance(shift, Node):
        return constant(powers[min(int(shift), len(powers) - 1)])
    return ops.take(constant(powers), ops.minimum(shift, cast(len(powers) - 1, shift.dtype)), 0)


@aten("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor", "__lshift__.Scalar")
def left_shift(at: OpContext, self: Node, other: Value) -> Node:
    """self times 2 ** other"""
    return ops.mul(cast(self, at.dtype), _power(at, other))


@aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Tensor", "__rshift__.Scalar")
def right_shift(at: OpContext, self: Node, other: Value) -> Node:
    """self by 2 ** other, rounded down"""
    return ops.floordiv(cast(self, at.dtype), _power(at, other))
