"""Movement: every element of the result is one element of a source, or a constant."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.ir.graph import OPS, Node, Op, TensorType
from gluongraph.ops import constants
from gluongraph.ops.checks import Axes, check_axes, misfit, normal_axes, normal_axis, without, wrong_dtype
from gluongraph.ops.samples import each

Shape = tuple[int, ...]

# -- reshape


def _reshape_type(x: TensorType, shape: Shape) -> TensorType:
    if math.prod(shape) != x.size or any(n < 0 for n in shape):
        raise misfit("reshape", f"{x.size} elements do not fill {shape}", x)
    return TensorType(shape, x.dtype)


def _reshape_lower(e: Any, i: Any, x: Any, shape: Shape) -> Any:
    """By the row-major position; unchanged leading and trailing axes keep their index."""
    front = 0
    while front < min(len(shape), len(x.shape)) and shape[front] == x.shape[front]:
        front += 1
    position: Any = 0
    for k, n in zip(i[front:], shape[front:], strict=True):
        position = position * n + k
    tail: list[Any] = []
    rest = x.shape[front:]
    for number, n in enumerate(reversed(rest)):
        last = number == len(rest) - 1  # needs no remainder: it is below n
        tail.append(0 if n == 1 else position if last else e.binary("floormod", position, n))
        position = position if n == 1 or last else e.binary("floordiv", position, n)
    return x(*i[:front], *reversed(tail))


RESHAPE = Op(
    "reshape",
    kind="movement",
    traits=frozenset({"free"}),
    infer=_reshape_type,
    numpy=lambda x, shape: np.reshape(x, shape),
    grad=lambda g, y, x, shape: (reshape(g, x.shape),),
    lower=_reshape_lower,
    samples=each(
        (((3, 34),), {"shape": (2, 51)}),
        (((2, 3, 17),), {"shape": (2, 51)}),
        (((6, 5),), {"shape": (2, 3, 1, 5)}),
        (((),), {"shape": (1, 1)}),
        (((1, 7),), {"shape": (7,)}),
        (((1,),), {"shape": ()}),
        ((((4, 6), "i32", -9, 9),), {"shape": (24,)}),
    ),
    doc="The elements in the same order in another shape.",
)


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The elements in the same order in another shape; one size may be -1."""
    shape = tuple(shape)
    if -1 in shape:
        known = -math.prod(shape)
        if shape.count(-1) > 1 or known <= 0 or x.ty.size % known:
            raise misfit("reshape", f"no size for the -1 in {shape}", x.ty)
        shape = tuple(x.ty.size // known if n == -1 else n for n in shape)
    return x if shape == x.shape else RESHAPE(x, shape=shape)


# -- transpose


def _transpose_type(x: TensorType, axes: Shape) -> TensorType:
    if sorted(axes) != list(range(x.rank)):
        raise misfit("transpose", f"axes {axes} are not those of", x, help="name each axis once")
    return TensorType(tuple(x.shape[a] for a in axes), x.dtype)


def _inverse(axes: Shape) -> Shape:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


TRANSPOSE = Op(
    "transpose",
    kind="movement",
    infer=_transpose_type,
    numpy=lambda x, axes: x.transpose(axes),
    grad=lambda g, y, x, axes: (transpose(g, _inverse(axes)),),
    lower=lambda e, i, x, axes: x(*(i[a] for a in _inverse(axes))),
    samples=each(
        (((3, 33),), {"axes": (1, 0)}),
        (((2, 3, 17),), {"axes": (2, 0, 1)}),
        (((2, 3, 4, 5),), {"axes": (0, 2, 1, 3)}),
        ((((4, 5), "i32", -3, 3),), {"axes": (1, 0)}),
    ),
    doc="The axes in another order: axis k of the result is axis axes[k] of x.",
)


def transpose(x: Node, axes: Sequence[int] | None = None) -> Node:
    """The axes in another order, reversed without `axes`."""
    rank = x.ty.rank
    order = range(rank - 1, -1, -1) if axes is None else [normal_axis("transpose", a, rank) for a in axes]
    return TRANSPOSE(x, axes=tuple(order))


# -- expand


def _expand_type(x: TensorType, shape: Shape) -> TensorType:
    if len(shape) != x.rank or any(n != m and n != 1 for n, m in zip(x.shape, shape, strict=True)):
        raise misfit("expand", f"does not broadcast to {shape}", x, help="only axes of size 1 are repeated")
    return TensorType(shape, x.dtype)


def _repeated(x: Node, shape: Shape) -> Shape:
    return tuple(a for a, n in enumerate(shape) if n != x.shape[a])


def _expand_grad(g: Node, y: Node, x: Node, shape: Shape) -> tuple[Node]:
    """The sum over repeated axes; looked up by name, since reductions import movement."""
    return (OPS["sum"](g, axes=_repeated(x, shape), keepdims=True),)


EXPAND = Op(
    "expand",
    kind="movement",
    traits=frozenset({"free"}),
    infer=_expand_type,
    numpy=lambda x, shape: np.broadcast_to(x, shape),
    grad=_expand_grad,
    lower=lambda e, i, x, shape: x(*(0 if n == 1 else k for k, n in zip(i, x.shape, strict=True))),
    samples=each(
        (((3, 1),), {"shape": (3, 33)}),
        (((1, 3, 1),), {"shape": (2, 3, 17)}),
        (((1, 33),), {"shape": (3, 33)}),
        ((((1,), "i32", -3, 3),), {"shape": (7,)}),
    ),
    doc="Axes of size 1 repeated.",
)


def expand(x: Node, shape: Sequence[int]) -> Node:
    """Axes of size 1 repeated until the shape is reached."""
    shape = tuple(shape)
    return x if shape == x.shape else EXPAND(x, shape=shape)


# -- slice


def _slice_type(x: TensorType, begin: Shape, end: Shape, strides: Shape) -> TensorType:
    if not len(begin) == len(end) == len(strides) == x.rank:
        raise misfit("slice", f"from {begin} to {end} by {strides} does not name every axis of", x)
    for b, t, s, n in zip(begin, end, strides, x.shape, strict=True):
        if not (0 <= b <= t <= n and s >= 1):
            help = "0 <= begin <= end <= size and stride >= 1 on each axis; flip first to go backwards"
            raise misfit("slice", f"from {begin} to {end} by {strides} is not inside", x, help=help)
    return TensorType(tuple(-(-(t - b) // s) for b, t, s in zip(begin, end, strides, strict=True)), x.dtype)


def _slice_grad(g: Node, y: Node, x: Node, begin: Shape, end: Shape, strides: Shape) -> tuple[Node]:
    """g, with zeros for the elements that the slice leaves out."""
    for axis, s in enumerate(strides):
        if s > 1:
            front, n, behind = g.shape[:axis], g.shape[axis], g.shape[axis + 1 :]
            g = reshape(g, (*front, n, 1, *behind))
            g = pad(g, (0,) * g.ty.rank, tuple(s - 1 if a == axis + 1 else 0 for a in range(g.ty.rank)))
            g = reshape(g, (*front, n * s, *behind))
    room = tuple(n - b for n, b in zip(x.shape, begin, strict=True))
    g = slice(g, (0,) * g.ty.rank, tuple(map(min, g.shape, room)))
    return (pad(g, begin, tuple(r - n for r, n in zip(room, g.shape, strict=True))),)


SLICE = Op(
    "slice",
    kind="movement",
    infer=_slice_type,
    numpy=lambda x, begin, end, strides: x[tuple(map(builtins.slice, begin, end, strides))],
    grad=_slice_grad,
    lower=lambda e, i, x, begin, end, strides: x(*(b + k * s for k, b, s in zip(i, begin, strides, strict=True))),
    samples=each(
        (((5, 33),), {"begin": (1, 2), "end": (4, 30), "strides": (1, 1)}),
        (((2, 7, 17),), {"begin": (0, 1, 3), "end": (2, 7, 17), "strides": (1, 3, 2)}),
        (((7,),), {"begin": (2,), "end": (3,), "strides": (1,)}),
        ((((6, 9), "i32", -3, 3),), {"begin": (0, 1), "end": (6, 9), "strides": (2, 5)}),
    ),
    doc="Elements from begin up to end, by strides, on each axis.",
)


def slice(x: Node, begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None) -> Node:
    """Elements from begin up to end (left out), by strides of 1 or more, on each axis."""
    begin, end = tuple(begin), tuple(end)
    strides = (1,) * len(begin) if strides is None else tuple(strides)
    if begin == (0,) * x.ty.rank and end == x.shape and strides == (1,) * x.ty.rank:
        return x
    return SLICE(x, begin=begin, end=end, strides=strides)


def part(x: Node, axis: int, begin: int, end: int) -> Node:
    """A slice along one axis."""
    axis = normal_axis("slice", axis, x.ty.rank)
    return slice(
        x,
        tuple(begin if a == axis else 0 for a in range(x.ty.rank)),
        tuple(end if a == axis else n for a, n in enumerate(x.shape)),
    )


# -- concat


def _concat_type(*xs: TensorType, axis: int) -> TensorType:
    if not xs:
        raise misfit("concat", "there is nothing to join")
    check_axes("concat", xs[0], (axis,))
    for x in xs[1:]:
        if x.dtype != xs[0].dtype:
            raise wrong_dtype("concat", "dtypes differ", *xs, help="cast them to one dtype")
        if without(x.shape, (axis,)) != without(xs[0].shape, (axis,)):
            raise misfit("concat", f"sizes differ beside axis {axis}", *xs)
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return TensorType(tuple(shape), xs[0].dtype)


def _concat_grad(g: Node, y: Node, *xs: Node, axis: int) -> tuple[Node, ...]:
    starts = _starts(xs, axis)
    return tuple(part(g, axis, start, start + x.shape[axis]) for x, start in zip(xs, starts, strict=True))


def _starts(xs: Sequence[Any], axis: int) -> list[int]:
    return [sum(x.shape[axis] for x in xs[:k]) for k in range(len(xs))]


def _concat_lower(e: Any, i: Any, *xs: Any, axis: int) -> Any:
    """Read the last source that begins at or before the index."""
    found: Any = None
    for x, start in zip(xs, _starts(xs, axis), strict=True):
        if x.shape[axis] == 0:
            continue
        k = e.binary("minimum", e.binary("maximum", i[axis] - start, 0), x.shape[axis] - 1)
        here = x(*i[:axis], k, *i[axis + 1 :])
        found = here if found is None else e.where(e.binary("less", i[axis], start), found, here)
    return found


CONCAT = Op(
    "concat",
    kind="movement",
    infer=_concat_type,
    numpy=lambda *xs, axis: np.concatenate(xs, axis),
    grad=_concat_grad,
    lower=_concat_lower,
    samples=each(
        (((3, 4), (3, 1), (3, 7)), {"axis": 1}),
        (((2, 3, 5), (1, 3, 5)), {"axis": 0}),
        (((2, 3, 5), (2, 4, 5)), {"axis": 1}),
        (((7,),), {"axis": 0}),
        ((((2, 3), "i32", -3, 3), ((2, 2), "i32", -3, 3)), {"axis": 1}),
    ),
    doc="The arrays joined along an axis.",
)


def concat(*xs: Node, axis: int = 0) -> Node:
    """The arrays joined along an axis."""
    axis = normal_axis("concat", axis, xs[0].ty.rank) if xs else axis
    return xs[0] if len(xs) == 1 else CONCAT(*xs, axis=axis)


def stack(*xs: Node, axis: int = 0) -> Node:
    """Arrays of one shape along a new axis."""
    axis = normal_axis("stack", axis, xs[0].ty.rank + 1)
    return concat(*(reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs), axis=axis)


# -- pad


def _pad_type(x: TensorType, before: Shape, after: Shape, value: float | int | bool) -> TensorType:
    if not len(before) == len(after) == x.rank or min((*before, *after), default=0) < 0:
        raise misfit("pad", f"{before} and {after} are not two counts for each axis of", x, help="slice to cut off")
    return TensorType(tuple(b + n + a for b, n, a in zip(before, x.shape, after, strict=True)), x.dtype)


def _pad(x: Any, before: Shape, after: Shape, value: float | int | bool) -> Any:
    y = np.full([b + n + a for b, n, a in zip(before, x.shape, after, strict=True)], value, x.dtype)
    y[tuple(builtins.slice(b, b + n) for b, n in zip(before, x.shape, strict=True))] = x
    return y


def _pad_lower(e: Any, i: Any, x: Any, before: Shape, after: Shape, value: float | int | bool) -> Any:
    at, inside = [], None
    for k, b, n, a in zip(i, before, x.shape, after, strict=True):
        k, fits = clamped(e, k - b if b else k, n, below=b > 0, above=a > 0)
        at.append(k)
        inside = both(e, inside, fits)
    return x(*at) if inside is None else e.where(inside, x(*at), e.const(value, x.dtype))


def clamped(e: Any, k: Any, n: int, below: bool = True, above: bool = True) -> tuple[Any, Any]:
    """Return the index clamped to 0 .. n-1, and the condition that it was in range (None: always)."""
    fits, moved = None, k
    if below:
        fits, moved = e.binary("greater_equal", k, 0), e.binary("maximum", moved, 0)
    if above:
        fits, moved = both(e, fits, e.binary("less", k, n)), e.binary("minimum", moved, n - 1)
    return moved, fits


def both(e: Any, *conditions: Any) -> Any:
    """All of the conditions; None counts as true."""
    found = None
    for c in conditions:
        if c is not None:
            found = c if found is None else e.binary("logical_and", found, c)
    return found


PAD = Op(
    "pad",
    kind="movement",
    infer=_pad_type,
    numpy=_pad,
    grad=lambda g, y, x, before, after, value: (
        slice(g, before, tuple(b + n for b, n in zip(before, x.shape, strict=True))),
    ),
    lower=_pad_lower,
    samples=each(
        (((3, 7),), {"before": (0, 2), "after": (0, 3), "value": 0.0}),
        (((2, 3, 5),), {"before": (1, 0, 0), "after": (0, 0, 4), "value": -1.5}),
        (((7,),), {"before": (0,), "after": (0,), "value": 0.0}),
        ((((2, 3), "i32", -3, 3),), {"before": (1, 1), "after": (1, 1), "value": 7}),
    ),
    doc="The elements surrounded by one value.",
)


def pad(x: Node, before: Sequence[int], after: Sequence[int], value: float | int | bool = 0) -> Node:
    """Add `before` and `after` elements of `value` on each axis."""
    if not any((*before, *after)) and len(before) == len(after) == x.ty.rank:
        return x
    number = constants.const(value, x.dtype).attrs["value"]
    return PAD(x, before=tuple(before), after=tuple(after), value=number)


# -- flip


def _flip_type(x: TensorType, axes: Shape) -> TensorType:
    check_axes("flip", x, axes)
    return x


FLIP = Op(
    "flip",
    kind="movement",
    infer=_flip_type,
    numpy=lambda x, axes: np.flip(x, axes),
    grad=lambda g, y, x, axes: (flip(g, axes),),
    lower=lambda e, i, x, axes: x(*(x.shape[a] - 1 - k if a in axes else k for a, k in enumerate(i))),
    samples=each(
        (((3, 33),), {"axes": (1,)}),
        (((2, 3, 17),), {"axes": (0, 1)}),
        ((((5, 9), "i32", -3, 3),), {"axes": (0, 1)}),
    ),
    doc="The elements in reverse order along the axes.",
)


def flip(x: Node, axis: Axes = None) -> Node:
    """The elements in reverse order along an axis or several."""
    return FLIP(x, axes=normal_axes("flip", axis, x.ty.rank))


# -- reshapes


def expand_dims(x: Node, axis: int) -> Node:
    """A new axis of size 1 at this place of the result."""
    axis = normal_axis("expand_dims", axis, x.ty.rank + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(x: Node, axis: int) -> Node:
    """Without an axis of size 1."""
    axis = normal_axis("squeeze", axis, x.ty.rank)
    if x.shape[axis] != 1:
        raise misfit("squeeze", f"axis {axis} is not of size 1", x.ty)
    return reshape(x, (*x.shape[:axis], *x.shape[axis + 1 :]))


def moveaxis(x: Node, source: int, target: int) -> Node:
    """One axis at another place, the others in their order."""
    rank = x.ty.rank
    source, target = normal_axis("moveaxis", source, rank), normal_axis("moveaxis", target, rank)
    order = [a for a in range(rank) if a != source]
    order.insert(target, source)
    return x if source == target else transpose(x, order)
