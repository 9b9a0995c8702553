"""Comparisons, logic, choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import operator, row

_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "And": ops.logical_and,
    "Equal": ops.equal,
    "Greater": ops.greater,
    "GreaterOrEqual": ops.greater_equal,
    "Less": ops.less,
    "LessOrEqual": ops.less_equal,
    "Or": ops.logical_or,
    "Xor": ops.not_equal,
}
for _name, _both in _TWO.items():
    row(_name, partial(lambda both, at, a, b: both(a, b), _both))


@operator("Not")
def logical_not(at: NodeContext, x: Node) -> Node:
    """Is x false?"""
    return ops.logical_not(x)


@operator("Where", since=9)
def where(at: NodeContext, condition: Node, x: Node, y: Node) -> Node:
    """x where the condition holds, else y"""
    return ops.where(condition, x, y)


@operator("IsNaN", since=9)
def is_nan(at: NodeContext, x: Node) -> Node:
    """Is x not a number?"""
    return ops.isnan(x)


@operator("IsInf", since=10)
def is_inf(at: NodeContext, x: Node, *, detect_negative: int = 1, detect_positive: int = 1) -> Node:
    """Is x infinite, of a sign that is asked for?"""
    infinite = ops.logical_and(ops.logical_not(ops.isfinite(x)), ops.logical_not(ops.isnan(x)))
    if not detect_negative:
        infinite = ops.logical_and(infinite, ops.greater(x, 0.0))
    return infinite if detect_positive else ops.logical_and(infinite, ops.less(x, 0.0))


@operator("BitShift", since=11)
def bit_shift(at: NodeContext, x: Node, by: Node, *, direction: str) -> Node:
    """x times, or divided by, a power of two"""
    at.choose("direction", direction, "LEFT", "RIGHT")
    signed = DTYPES[x.dtype].family == "int"
    bits = 8 * DTYPES[x.dtype].nbytes - (signed and direction == "RIGHT")
    powers = ops.literal((np.uint64(1) << np.arange(bits, dtype=np.uint64)).astype(numpy_dtype(x.dtype)))
    factor = ops.take(powers, ops.cast(ops.minimum(by, bits - 1), "i32"), 0)
    moved = ops.mul(x, factor) if direction == "LEFT" else ops.floordiv(x, factor)
    inside = ops.logical_and(ops.greater_equal(by, 0), ops.less(by, bits))
    beyond = ops.where(ops.less(x, 0), -1, 0) if signed and direction == "RIGHT" else ops.const(0, x.dtype)
    return ops.where(inside, moved, ops.cast(beyond, x.dtype))


@operator("Trilu", since=14, static=("k",))
def trilu(at: NodeContext, x: Node, k: Node | None = None, *, upper: int = 1) -> Node:
    """The elements on one side of a diagonal, others 0"""
    offset = 0 if k is None else int(at.number(k, "k"))
    rows, columns = (ops.iota(x.shape, x.ty.rank - n) for n in (2, 1)) if x.ty.size else (x, x)
    if not x.ty.size:
        return x
    above = ops.sub(columns, rows)
    kept = ops.greater_equal(above, offset) if upper else ops.less_equal(above, offset)
    return ops.where(kept, x, 0.0 if is_float(x.dtype) else False if x.dtype == "bool" else 0)
