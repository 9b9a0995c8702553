"""Helpers of builders: numbers become constants, arrays are broadcast as in numpy."""

from __future__ import annotations

from collections.abc import Callable

from gluongraph.errors import DTypeError, with_user_location
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import constants, movement
from gluongraph.ops.checks import FLOATS, misfit

Value = Node | float | int | bool  # what builders take for an array
Binary = Callable[[Value, Value], Node]  # a builder of two arrays


def dtype_of(*values: Value) -> str:
    """Return the dtype of Python numbers among the values: that of the first node, else by Python's type."""
    for v in values:
        if isinstance(v, Node):
            return v.dtype
    if all(isinstance(v, bool) for v in values):
        return "bool"
    return "i32" if all(isinstance(v, int) for v in values) else "f32"


def lift(value: Value, dtype: str, shape: tuple[int, ...] = ()) -> Node:
    """A node as it is; a number as a constant.

    Raises:
        DTypeError: a number with a fraction where integers are expected.
    """
    if isinstance(value, Node):
        return value
    if dtype not in FLOATS and value != int(value):
        raise DTypeError(
            with_user_location(f"{value!r} is no number of type {dtype}", help="cast the array to a float type first")
        )
    return constants.const(value, dtype, shape)


def broadcast_shape(op: str, *types: TensorType) -> tuple[int, ...]:
    """The shape that all broadcast to, by numpy's rule."""
    rank = max(t.rank for t in types)
    shape = [1] * rank
    for t in types:
        for axis, n in enumerate(t.shape, rank - t.rank):
            if n != 1:
                if shape[axis] not in (1, n):
                    help = "sizes must be equal or 1, counted from the last axis; reshape or expand one of them"
                    raise misfit(op, "shapes do not broadcast", *types, help=help)
                shape[axis] = n
    return tuple(shape)


def broadcast_to(x: Node, shape: tuple[int, ...]) -> Node:
    """Repeat x along missing axes and axes of size 1."""
    if x.shape == shape:
        return x
    if x.op.name == "const":
        return constants.const(x.attrs["value"], x.dtype, shape)
    if x.ty.rank < len(shape):
        x = movement.reshape(x, (1,) * (len(shape) - x.ty.rank) + x.shape)
    return movement.expand(x, shape)


def broadcast(op: str, *values: Value, dtype: str | None = None) -> tuple[Node, ...]:
    """The values as nodes of one shape; numbers take `dtype`, or that of the nodes."""
    dtype = dtype or dtype_of(*values)
    nodes = tuple(lift(v, dtype) for v in values)
    shape = nodes[0].shape
    if all(n.shape == shape for n in nodes):
        return nodes
    shape = broadcast_shape(op, *(n.ty for n in nodes))
    return tuple(broadcast_to(n, shape) for n in nodes)


def broadcasting(op: Op) -> Binary:
    """The builder of a binary op: numbers are lifted, shapes are broadcast."""

    def build(x: Value, y: Value) -> Node:
        return op(*broadcast(op.name, x, y))

    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.doc
    return build


def along(x: Node, axis: int, shape: tuple[int, ...]) -> Node:
    """A vector as an array of `shape` that varies along one axis only."""
    lined_up = tuple(shape[axis] if a == axis else 1 for a in range(len(shape)))
    return movement.expand(movement.reshape(x, lined_up), shape)
