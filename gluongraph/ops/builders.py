"""What builders and shape rules share: numbers become constants, shapes are broadcast, errors get their form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.errors import DTypeError, ShapeError, located
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ir.plain import extents, plain

Value = Node | float | int | bool  # what builders take for an array
Axes = int | Sequence[int] | None
Binary = Callable[[Value, Value], Node]  # a builder of two arrays

FLOATS = frozenset(name for name, row in DTYPES.items() if row.family == "float")
INTEGERS = frozenset(name for name, row in DTYPES.items() if row.family in ("int", "uint"))
NUMBERS = FLOATS | INTEGERS
ANY = frozenset(DTYPES)


def misfit(op: str, why: str, *types: TensorType, help: str = "") -> ShapeError:
    """The error for shapes that do not fit."""
    return ShapeError(located(f"{op}: {why}" + _of(types), help=help))


def wrong_dtype(op: str, why: str, *types: TensorType, help: str = "") -> DTypeError:
    """The error for element types that do not fit."""
    return DTypeError(located(f"{op}: {why}" + _of(types), help=help))


def _of(types: Sequence[TensorType]) -> str:
    return f": {' and '.join(map(str, types))}" if types else ""


def need(op: str, allowed: frozenset[str], *types: TensorType) -> None:
    """Raise DTypeError unless every type is one of those allowed."""
    for t in types:
        if t.dtype not in allowed:
            wanted = "a float type" if allowed == FLOATS else "an integer type" if allowed == INTEGERS else "numbers"
            to = "i32" if allowed == INTEGERS else "f32"
            raise wrong_dtype(op, f"needs {wanted}", t, help=f"convert it first, for example with cast(x, {to!r})")


def equal_types(op: str, *types: TensorType) -> TensorType:
    """The one type of all; raises unless shapes and dtypes are equal."""
    first = types[0]
    for t in types[1:]:
        if t.shape != first.shape:
            help = f"ops.{op} broadcasts; the op itself wants equal shapes"
            raise misfit(op, "shapes differ", *types, help=help)
        if t.dtype != first.dtype:
            raise wrong_dtype(op, "dtypes differ", *types, help="cast one of them; nothing is converted silently")
    return first


# -- values


def dtype_of(*values: Value) -> str:
    """The dtype that numbers among the values are given: that of the first node, else by Python's type."""
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
            located(f"{value!r} is no number of type {dtype}", help="cast the array to a float type first")
        )
    return ops.const(value, dtype, shape)


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
    """x repeated along the axes that it lacks, or has one element of."""
    if x.shape == shape:
        return x
    if x.op.name == "const":
        return ops.const(x.attrs["value"], x.dtype, shape)
    if x.ty.rank < len(shape):
        x = ops.reshape(x, (1,) * (len(shape) - x.ty.rank) + x.shape)
    return ops.expand(x, shape)


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


# -- axes


def normal_axis(op: str, axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        TypeError: it is no integer.
        ShapeError: there is no such axis.
    """
    axis = plain(axis)
    if not isinstance(axis, int):
        raise TypeError(located(f"{op}: an axis is an integer, not {axis!r}"))
    if not -rank <= axis < rank:
        raise ShapeError(located(f"{op}: there is no axis {axis} in {rank} axes", help=f"axes are 0 to {rank - 1}"))
    return axis % rank


def normal_axes(op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """The axes counted from the front, in order; all for None."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, Sequence) else (axis,)
    found = tuple(sorted(normal_axis(op, a, rank) for a in axes))
    if len(set(found)) < len(found):
        raise ShapeError(located(f"{op}: an axis is given twice: {axes}"))
    return found


def check_axes(op: str, x: TensorType, axes: Iterable[int]) -> None:
    """Raise ShapeError unless the axes exist, count from the front and differ."""
    axes = tuple(axes)
    if any(not 0 <= a < x.rank for a in axes) or len(set(axes)) < len(axes):
        raise misfit(op, f"axes {axes} do not fit", x, help=f"different axes from 0 to {x.rank - 1}")


def without(shape: tuple[int, ...], axes: Iterable[int], keepdims: bool = False) -> tuple[int, ...]:
    """The shape with these axes left out, or 1."""
    axes = set(axes)
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Two numbers from one or two."""
    given = extents(value)
    first, second = given * 2 if len(given) == 1 else given
    return (first, second)


def along(x: Node, axis: int, shape: tuple[int, ...]) -> Node:
    """A vector as an array of `shape` that varies along one axis only."""
    return ops.expand(ops.reshape(x, tuple(shape[axis] if a == axis else 1 for a in range(len(shape)))), shape)
