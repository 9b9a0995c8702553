"""Pooling over windows of images (N, C, H, W): the largest element or the average, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import constants, logic, movement
from gluongraph.ops.checks import FLOATS, equal_types, misfit, need, pair
from gluongraph.ops.movement import both, clamped
from gluongraph.ops.samples import array, each

Pair = tuple[int, int]
Shape = tuple[int, ...]


def places(size: int, kernel: int, stride: int, padding: int, ceil: bool) -> int:
    """Return the number of positions of a window along an axis. With `ceil` the last may reach beyond the end."""
    count = (size + 2 * padding - kernel + (stride - 1 if ceil else 0)) // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _pooled(x: Shape, how: dict[str, Any]) -> Shape:
    sizes = (places(x[2 + a], how["kernel"][a], how["stride"][a], how["padding"][a], how["ceil"]) for a in (0, 1))
    return (*x[:2], *sizes)


def _check(op: str, x: TensorType, how: dict[str, Any], *results: TensorType) -> TensorType:
    """The type of the pooled x; raises unless the window fits and `results` have that type."""
    need(op, FLOATS, x)
    if x.rank != 4:
        raise misfit(op, "needs images (N, C, H, W)", x)
    if min(*how["kernel"], *how["stride"]) < 1 or min(how["padding"]) < 0:
        raise misfit(op, "kernel and stride are 1 or more, padding 0 or more", x)
    if any(p >= k for p, k in zip(how["padding"], how["kernel"], strict=True)):
        raise misfit(op, f"padding {how['padding']} is not below the kernel {how['kernel']}", x)
    y = TensorType(_pooled(x.shape, how), x.dtype)
    if min(y.shape[2:]) < 1:
        raise misfit(op, "the window is larger than the padded image", x, help="smaller kernel, or more padding")
    equal_types(op, y, *results)
    return y


def _max_type(x: TensorType, **how: Any) -> TensorType:
    return _check("max_pool2d", x, how)


def _max_grad_type(x: TensorType, y: TensorType, g: TensorType, **how: Any) -> TensorType:
    _check("max_pool2d_grad", x, how, y, g)
    return x


def _avg_type(x: TensorType, count_include_pad: bool, **how: Any) -> TensorType:
    return _check("avg_pool2d", x, how)


def _avg_grad_type(g: TensorType, shape: Shape, count_include_pad: bool, **how: Any) -> TensorType:
    x = TensorType(shape, g.dtype)
    _check("avg_pool2d_grad", x, how, g)
    return x


# -- in numpy: one pass for each position in the window, over a strided view


def _border(size: int, count: int, kernel: int, stride: int, padding: int) -> Pair:
    """Return how far the windows reach beyond the image, before and after."""
    return padding, max((count - 1) * stride + kernel - size - padding, 0)


def _borders(x: Shape, how: dict[str, Any]) -> tuple[Pair, Pair]:
    y = _pooled(x, how)
    rows, columns = (_border(x[2 + a], y[2 + a], how["kernel"][a], how["stride"][a], how["padding"][a]) for a in (0, 1))
    return rows, columns


def _framed(x: Any, how: dict[str, Any], value: float) -> Any:
    """Return a copy padded by `value` as far as windows reach beyond the image; x itself if none does."""
    (top, bottom), (left, right) = _borders(x.shape, how)
    if not (top or bottom or left or right):
        return x
    (n, c, h, w) = x.shape
    framed = np.full((n, c, top + h + bottom, left + w + right), value, x.dtype)
    framed[:, :, top : top + h, left : left + w] = x
    return framed


def _inner(framed: Any, shape: Shape, how: dict[str, Any]) -> Any:
    (top, _), (left, _) = _borders(shape, how)
    return framed[:, :, top : top + shape[2], left : left + shape[3]]


def _offsets(y: Shape, how: dict[str, Any]) -> Iterator[tuple[slice, slice]]:
    """Iterate over the rows and columns of a padded image at one position of each window, position by position."""
    (kh, kw), (sh, sw) = how["kernel"], how["stride"]
    for i in range(kh):
        for j in range(kw):
            yield slice(i, i + (y[2] - 1) * sh + 1, sh), slice(j, j + (y[3] - 1) * sw + 1, sw)


def _max(x: Any, **how: Any) -> Any:
    framed = _framed(x, how, -math.inf)
    views = (framed[:, :, rows, columns] for rows, columns in _offsets(_pooled(x.shape, how), how))
    y = next(views).copy()
    for view in views:
        np.maximum(y, view, out=y)
    return y


def _max_grad(x: Any, y: Any, g: Any, **how: Any) -> Any:
    framed = _framed(x, how, -math.inf)
    total = np.zeros(framed.shape, g.dtype)
    waiting = np.ones(y.shape, bool)  # windows whose largest element has not been found
    for rows, columns in _offsets(y.shape, how):
        hit = framed[:, :, rows, columns] == y
        hit &= waiting
        waiting ^= hit
        total[:, :, rows, columns] += g * hit
    return _inner(total, x.shape, how)


def _counts(x: Shape, count_include_pad: bool, how: dict[str, Any]) -> Any:
    """Return the divisor of each window's sum: one number, or one for each window."""
    y = _pooled(x, how)
    rows, columns = (
        np.array([covered(np, o, x[2 + a], a, count_include_pad, how) for o in range(y[2 + a])]) for a in (0, 1)
    )
    counts = rows[:, None] * columns
    return int(counts[0, 0]) if (counts == counts[0, 0]).all() else counts


def covered(e: Any, place: Any, size: int, axis: int, count_include_pad: bool, how: Mapping[str, Any]) -> Any:
    """Return how many elements the window at a place covers along an axis, with or without padding. `e` has `minimum`
    and `maximum` of whatever numbers the places are."""
    kernel, stride, padding = how["kernel"][axis], how["stride"][axis], how["padding"][axis]
    start = place * stride - padding
    end = e.minimum(start + kernel, size + padding if count_include_pad else size)
    return end - (start if count_include_pad else e.maximum(start, 0))


def _avg(x: Any, count_include_pad: bool, **how: Any) -> Any:
    framed = _framed(x, how, 0.0)
    views = (framed[:, :, rows, columns] for rows, columns in _offsets(_pooled(x.shape, how), how))
    y = next(views).astype(np.float32 if x.dtype.itemsize == 2 else x.dtype)
    for view in views:
        y += view
    y /= np.asarray(_counts(x.shape, count_include_pad, how), y.dtype)
    return y.astype(x.dtype, copy=False)


def _avg_grad(g: Any, shape: Shape, count_include_pad: bool, **how: Any) -> Any:
    share = g / np.asarray(_counts(shape, count_include_pad, how), g.dtype)
    total = _framed(np.zeros(shape, g.dtype), how, 0.0)
    for rows, columns in _offsets(g.shape, how):
        total[:, :, rows, columns] += share
    return _inner(total, shape, how)


# -- in a kernel


def _pixel(e: Any, place: Any, k: Any, size: int, axis: int, how: dict[str, Any]) -> tuple[Any, Any]:
    """The pixel (clamped) at k of the window at this place, and whether it is in the image."""
    stride, padding = how["stride"][axis], how["padding"][axis]
    over = _border(
        size, places(size, how["kernel"][axis], stride, padding, how["ceil"]), how["kernel"][axis], stride, padding
    )
    at = place * stride + k
    return clamped(e, at - padding if padding else at, size, over[0] > 0, over[1] > 0)


def _max_lower(e: Any, i: Any, x: Any, **how: Any) -> Any:
    """Outside the image the nearest pixel is read instead: it lies in the window too, so the largest stays."""
    n, c, *place = i

    def element(*k: Any) -> Any:
        return x(n, c, *(_pixel(e, place[a], k[a], x.shape[2 + a], a, how)[0] for a in (0, 1)))

    return e.reduce("max", how["kernel"], element, x.dtype)


def _avg_lower(e: Any, i: Any, x: Any, count_include_pad: bool, **how: Any) -> Any:
    n, c, *place = i
    share = _share(e, place, x.shape, x.dtype, count_include_pad, how)

    def element(*k: Any) -> Any:
        (row, above), (column, beside) = (_pixel(e, place[a], k[a], x.shape[2 + a], a, how) for a in (0, 1))
        value, inside = x(n, c, row, column) * share, both(e, above, beside)
        return value if inside is None else e.where(inside, value, e.const(0, x.dtype))

    return e.reduce("sum", how["kernel"], element, x.dtype)


def _share(e: Any, place: Any, x: Shape, dtype: str, count_include_pad: bool, how: dict[str, Any]) -> Any:
    """1 / the number of elements of the window at this place."""
    counts = _counts(x, count_include_pad, how)
    if isinstance(counts, int):
        return e.const(1 / counts, dtype)
    rows, columns = (covered(_Plain(e), place[a], x[2 + a], a, count_include_pad, how) for a in (0, 1))
    return e.const(1, dtype) / e.cast(rows * columns, dtype)


class _Plain:
    """np.minimum and np.maximum, by a target's algebra."""

    def __init__(self, e: Any):
        self.minimum: Callable[..., Any] = lambda x, y: e.binary("minimum", x, y)
        self.maximum: Callable[..., Any] = lambda x, y: e.binary("maximum", x, y)


def _over(e: Any, pixel: Any, r: Any, count: int, axis: int, how: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the clamped position of the r-th last window over a pixel, the offset of the pixel in it, if it exists."""
    kernel, stride, padding = how["kernel"][axis], how["stride"][axis], how["padding"][axis]
    at = pixel + padding
    place = (e.binary("floordiv", at, stride) if stride > 1 else at) - r
    k = at - place * stride
    place, inside = clamped(e, place, count)
    return place, k, both(e, inside, e.binary("less", k, kernel) if kernel % stride or stride > kernel else None)


def _overlap(how: dict[str, Any]) -> tuple[int, ...]:
    """Return the largest number of windows that cover a pixel, along each axis."""
    return tuple(-(-k // s) for k, s in zip(how["kernel"], how["stride"], strict=True))


def _avg_grad_lower(e: Any, i: Any, g: Any, shape: Shape, count_include_pad: bool, **how: Any) -> Any:
    n, c, *pixel = i

    def element(*r: Any) -> Any:
        (row, _, above), (column, _, beside) = (_over(e, pixel[a], r[a], g.shape[2 + a], a, how) for a in (0, 1))
        value = g(n, c, row, column) * _share(e, (row, column), shape, g.dtype, count_include_pad, how)
        return e.where(both(e, above, beside), value, e.const(0, g.dtype))

    return e.reduce("sum", _overlap(how), element, g.dtype)


def _max_grad_lower(e: Any, i: Any, x: Any, y: Any, g: Any, **how: Any) -> Any:
    """A pixel gets the gradient of each window whose largest element it is, unless an earlier one equals it."""
    n, c, *pixel = i
    here = x(*i)

    def element(*r: Any) -> Any:
        (row, kr, above), (column, kc, beside) = (_over(e, pixel[a], r[a], y.shape[2 + a], a, how) for a in (0, 1))
        largest = y(n, c, row, column)
        gets = both(e, above, beside, e.binary("equal", here, largest))
        for k in np.ndindex(*how["kernel"]):
            if k == (how["kernel"][0] - 1, how["kernel"][1] - 1):
                break  # clamped windows do not count
            (h, inside_h), (w, inside_w) = (
                _pixel(e, p, k[a], x.shape[2 + a], a, how) for a, p in enumerate((row, column))
            )
            same_row = both(e, e.binary("equal", kr, k[0]), e.binary("greater", kc, k[1]))
            earlier = e.binary("logical_or", e.binary("greater", kr, k[0]), same_row)
            taken = both(e, earlier, inside_h, inside_w, e.binary("equal", x(n, c, h, w), largest))
            gets = both(e, gets, e.unary("logical_not", taken))
        return e.where(gets, g(n, c, row, column), e.const(0, g.dtype))

    return e.reduce("sum", _overlap(how), element, g.dtype)


# -- the ops


def _max_grad_grad(gg: Node, z: Node, x: Node, y: Node, g: Node, **how: Any) -> tuple[None, None, Node]:
    """Read gg at the first largest element of each window."""
    (top, bottom), (left, right) = _borders(x.shape, how)
    before, after = (0, 0, top, left), (0, 0, bottom, right)
    framed, moved = movement.pad(x, before, after, -math.inf), movement.pad(gg, before, after)
    found, waiting = constants.zeros(y.ty), constants.full(y.shape, True, "bool")
    for rows, columns in _offsets(y.shape, how):
        window = (
            (0, 0, rows.start, columns.start),
            (*y.shape[:2], rows.stop, columns.stop),
            (1, 1, rows.step, columns.step),
        )
        hit = logic.logical_and(waiting, logic.equal(movement.slice(framed, *window), y))
        waiting = logic.logical_and(waiting, logic.logical_not(hit))
        found = logic.where(hit, movement.slice(moved, *window), found)
    return None, None, found


def _flops(places: TensorType, how: dict[str, Any]) -> int:
    """One operation for each element of each window."""
    height, width = how["kernel"]
    return places.size * int(height * width)


def _how(kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False) -> dict[str, Any]:
    return {
        "kernel": pair(kernel),
        "stride": pair(kernel if stride is None else stride),
        "padding": pair(padding),
        "ceil": ceil,
    }


_CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 3, 7, 6), _how(2)),
    ((2, 3, 9, 8), _how(3, 2, 1)),
    ((1, 2, 7, 8), _how((3, 2), (2, 3), (1, 0), ceil=True)),
    ((1, 2, 6, 7), _how(2, 1)),
    ((1, 2, 8, 8), _how(2, 3, 0, ceil=True)),
)


def _tied(rng: np.random.Generator) -> Any:
    """Gradients of max pooling where windows have several largest elements, and where they have one."""
    for number, (shape, how) in enumerate(_CASES):
        for dtype in ("f32", "f64") if number < 2 else ("f32",):
            x = array(rng, shape, dtype)
            x = np.rint(x) if number % 2 else x
            y = _max(x, **how)
            yield (x, y, array(rng, y.shape, dtype)), how


MAX_POOL2D: Op = Op(
    "max_pool2d",
    kind="window",
    pattern="pool",
    traits=frozenset({"moves", "selects"}),
    infer=_max_type,
    numpy=_max,
    grad=lambda g, y, x, **how: (MAX_POOL2D_GRAD(x, y, g, **how),),
    lower=_max_lower,
    samples=each(*(((x,), how) for x, how in _CASES)),
    flops=lambda y, x, **how: _flops(y, how),
    doc="The largest element of each window.",
)
MAX_POOL2D_GRAD: Op = Op(
    "max_pool2d_grad",
    kind="window",
    pattern="pool",
    traits=frozenset({"compares_equal", "moves"}),
    infer=_max_grad_type,
    numpy=_max_grad,
    grad=_max_grad_grad,
    lower=_max_grad_lower,
    samples=_tied,
    flops=lambda y, x, was, g, **how: _flops(g, how),
    doc="The gradient of max_pool2d for its image: each window's first largest element gets it.",
)
AVG_POOL2D: Op = Op(
    "avg_pool2d",
    kind="window",
    pattern="pool",
    infer=_avg_type,
    numpy=_avg,
    grad=lambda g, y, x, **how: (AVG_POOL2D_GRAD(g, shape=x.shape, **how),),
    lower=_avg_lower,
    samples=each(*(((x,), {"count_include_pad": n % 2 == 1, **how}) for n, (x, how) in enumerate(_CASES))),
    flops=lambda y, x, **how: _flops(y, how),
    doc="The average of each window; with `count_include_pad` the padding counts as zeros.",
)
AVG_POOL2D_GRAD: Op = Op(
    "avg_pool2d_grad",
    kind="window",
    pattern="pool",
    infer=_avg_grad_type,
    numpy=_avg_grad,
    grad=lambda gg, y, g, shape, **how: (AVG_POOL2D(gg, **how),),
    lower=_avg_grad_lower,
    samples=each(
        *(
            ((_pooled(x, how),), {"shape": x, "count_include_pad": n % 2 == 0, **how})
            for n, (x, how) in enumerate(_CASES)
        )
    ),
    flops=lambda y, g, **how: _flops(g, how),
    doc="The gradient of avg_pool2d for its image, of shape `shape`.",
)


def max_pool2d(
    x: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil: bool = False,
) -> Node:
    """The largest element of each window; windows do not overlap unless `stride` is given."""
    return MAX_POOL2D(x, **_how(kernel, stride, padding, ceil))


def avg_pool2d(
    x: Node,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The average of each window; with `count_include_pad` the padding counts as zeros."""
    return AVG_POOL2D(x, count_include_pad=count_include_pad, **_how(kernel, stride, padding, ceil))
