"""What type rules share: the sets of element types, axes counted from either end, and the form of their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gluongraph.dtypes import DTYPES
from gluongraph.errors import DTypeError, ShapeError, with_user_location
from gluongraph.ir.graph import TensorType
from gluongraph.ir.plain import extents, plain

Axes = int | Sequence[int] | None
Infer = Callable[..., TensorType]

FLOATS = frozenset(name for name, row in DTYPES.items() if row.family == "float")
INTEGERS = frozenset(name for name, row in DTYPES.items() if row.family in ("int", "uint"))
NUMBERS = FLOATS | INTEGERS
ANY = frozenset(DTYPES)


def misfit(op: str, why: str, *types: TensorType, help: str = "") -> ShapeError:
    """The error for shapes that do not fit."""
    return ShapeError(with_user_location(f"{op}: {why}" + _of(types), help=help))


def wrong_dtype(op: str, why: str, *types: TensorType, help: str = "") -> DTypeError:
    """The error for element types that do not fit."""
    return DTypeError(with_user_location(f"{op}: {why}" + _of(types), help=help))


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


def alike(op: str, allowed: frozenset[str], result: str = "") -> Infer:
    """Equal shapes and dtypes among those allowed -> the same, or `result`."""

    def infer(*types: TensorType) -> TensorType:
        x = equal_types(op, *types)
        need(op, allowed, x)
        return TensorType(x.shape, result) if result else x

    return infer


# -- axes and extents


def normal_axis(op: str, axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        TypeError: it is no integer.
        ShapeError: there is no such axis.
    """
    axis = plain(axis)
    if not isinstance(axis, int):
        raise TypeError(with_user_location(f"{op}: an axis is an integer, not {axis!r}"))
    if not -rank <= axis < rank:
        raise ShapeError(
            with_user_location(f"{op}: there is no axis {axis} in {rank} axes", help=f"axes are 0 to {rank - 1}")
        )
    return axis % rank


def normal_axes(op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """The axes counted from the front, in order; all for None."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, Sequence) else (axis,)
    found = tuple(sorted(normal_axis(op, a, rank) for a in axes))
    if len(set(found)) < len(found):
        raise ShapeError(with_user_location(f"{op}: an axis is given twice: {axes}"))
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
