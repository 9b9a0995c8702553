"""Convolution of images (N, C, H, W) and its two gradients, each linear in both of its sources.

All three are one trilinear form, so the gradients of each are the other two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import elementwise
from gluongraph.ops.checks import FLOATS, misfit, need, pair, wrong_dtype
from gluongraph.ops.matmul import product, summed_in, widened
from gluongraph.ops.movement import both, clamped
from gluongraph.ops.samples import each

Pair = tuple[int, int]
Shape = tuple[int, ...]


def extent(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return the number of positions of the window."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _check(op: str, x: TensorType, w: TensorType, y: Shape | None, how: dict[str, Any]) -> Shape:
    """The shape of x * w; raises unless x, w (and y, where given) are image, weight and result of one convolution."""
    stride, padding, dilation, groups = how["stride"], how["padding"], how["dilation"], how["groups"]
    need(op, FLOATS, x)
    if x.dtype != w.dtype:
        raise wrong_dtype(op, "dtypes differ", x, w, help="cast one of them")
    if x.rank != 4 or w.rank != 4:
        raise misfit(op, "needs images (N, C, H, W) and a weight (O, C/groups, KH, KW)", x, w)
    if min(*stride, *dilation, *w.shape[2:], groups) < 1 or min(padding) < 0:
        raise misfit(op, "kernel, stride, dilation and groups are 1 or more, padding 0 or more", x, w)
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        help = f"with groups={groups} a weight for {x.shape[1]} channels has {x.shape[1] / groups:g} on axis 1"
        raise misfit(op, "channels do not fit", x, w, help=help)
    size = tuple(extent(x.shape[2 + a], w.shape[2 + a], stride[a], padding[a], dilation[a]) for a in (0, 1))
    if min(size) < 1:
        raise misfit(op, "the window is larger than the padded image", x, w, help="smaller kernel, or more padding")
    shape = (x.shape[0], w.shape[0], *size)
    if y is not None and y != shape:
        raise misfit(op, f"the gradient has shape {y}, the result {shape}", x, w)
    return shape


def _conv_type(x: TensorType, w: TensorType, dtype: str | None = None, **how: Any) -> TensorType:
    return TensorType(_check("conv2d", x, w, None, how), summed_in("conv2d", x, dtype))


def _data_type(g: TensorType, w: TensorType, shape: Shape, dtype: str | None = None, **how: Any) -> TensorType:
    _check("conv2d_data_grad", TensorType(shape, g.dtype), w, g.shape, how)
    return TensorType(shape, summed_in("conv2d_data_grad", g, dtype))


def _weight_type(x: TensorType, g: TensorType, shape: Shape, dtype: str | None = None, **how: Any) -> TensorType:
    _check("conv2d_weight_grad", x, TensorType(shape, g.dtype), g.shape, how)
    return TensorType(shape, summed_in("conv2d_weight_grad", g, dtype))


# -- in numpy: im2col of a few images at a time, so that it stays in cache, then a GEMM

_CACHED = 1 << 20  # bytes


def _padded(x: Any, padding: Pair) -> Any:
    if padding == (0, 0):
        return x
    (n, c, h, w), (ph, pw) = x.shape, padding
    y = np.zeros((n, c, h + 2 * ph, w + 2 * pw), x.dtype)
    y[:, :, ph : ph + h, pw : pw + w] = x
    return y


def _windows(x: Any, kernel: Shape, size: Shape, stride: Pair, dilation: Pair) -> Any:
    """A view (N, C, KH, KW, OH, OW) of a padded image."""
    n, c, h, w = x.strides
    steps = (n, c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1])
    return as_strided(x, (*x.shape[:2], *kernel, *size), steps, writeable=False)


def _portions(images: int, nbytes: int) -> Iterator[slice]:
    """Slices of the images, each with columns of about _CACHED bytes, given the bytes of one image's columns."""
    step = max(1, _CACHED // max(nbytes, 1))
    return (slice(start, start + step) for start in range(0, images, step))


def _conv(x: Any, w: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    n, outputs = len(x), w.shape[0]
    size = tuple(extent(x.shape[2 + a], w.shape[2 + a], stride[a], padding[a], dilation[a]) for a in (0, 1))
    windows = _windows(_padded(x, padding), w.shape[2:], size, stride, dilation)
    matrix = w.reshape(groups, outputs // groups, -1)
    y = np.empty((n, groups, outputs // groups, size[0] * size[1]), x.dtype)
    for some in _portions(n, windows[:1].nbytes):
        columns = windows[some].reshape(-1, groups, matrix.shape[2], y.shape[3])
        y[some] = product(matrix, columns)
    return y.reshape(n, outputs, *size)


def _conv_data(g: Any, w: Any, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    (n, c, height, width), size, kernel, (ph, pw) = shape, g.shape[2:], w.shape[2:], padding
    matrix = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
    rows = g.reshape(n, groups, matrix.shape[2], -1)
    x = np.zeros((n, c, height + 2 * ph, width + 2 * pw), g.dtype)
    for some in _portions(n, c * math.prod(kernel) * math.prod(size) * g.itemsize):
        columns = product(matrix, rows[some]).reshape(-1, c, *kernel, *size)
        for i, j in np.ndindex(*kernel):
            top, left = i * dilation[0], j * dilation[1]
            lines = slice(top, top + (size[0] - 1) * stride[0] + 1, stride[0])
            x[some, :, lines, left : left + (size[1] - 1) * stride[1] + 1 : stride[1]] += columns[:, :, i, j]
    return x[:, :, ph : ph + height, pw : pw + width]


def _conv_weight(x: Any, g: Any, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    n, c = len(x), x.shape[1]
    windows = _windows(_padded(x, padding), shape[2:], g.shape[2:], stride, dilation)
    windows = windows.transpose(1, 2, 3, 0, 4, 5)  # all pixels of all images are one long inner axis
    pixels = g.transpose(1, 0, 2, 3)
    w = np.zeros((groups, shape[0] // groups, c // groups * shape[2] * shape[3]), np.result_type(g, np.float32))
    for some in _portions(n, windows[:, :, :, :1].nbytes):
        columns = windows[:, :, :, some].reshape(groups, w.shape[2], -1)
        w += product(pixels[:, some].reshape(groups, w.shape[1], -1), columns.swapaxes(1, 2))
    return w.reshape(shape).astype(g.dtype, copy=False)


def _sums(numpy: Callable[..., Any]) -> Callable[..., Any]:
    """Add the attribute `dtype`, that of the result, to a numpy implementation."""

    def summed(first: Any, second: Any, dtype: str | None = None, **how: Any) -> Any:
        return numpy(*widened(dtype, first, second), **how)

    return summed


# -- in a kernel: each result is a sum of products


@dataclass(frozen=True)
class _Widened:
    """A source of a lowering rule, cast to another dtype."""

    e: Any
    source: Any
    dtype: str

    @property
    def shape(self) -> Shape:
        shape: Shape = self.source.shape
        return shape

    def __call__(self, *index: Any) -> Any:
        return self.e.cast(self.source(*index), self.dtype)


def _terms(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Add the attribute `dtype`, that of the result, to a lowering rule."""

    def lowered(e: Any, i: Any, first: Any, second: Any, dtype: str | None = None, **how: Any) -> Any:
        if dtype is not None:
            first, second = _Widened(e, first, dtype), _Widened(e, second, dtype)
        return lower(e, i, first, second, **how)

    return lowered


def _pixel(
    e: Any, place: Any, k: Any, x: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[tuple[Any, Any], Any]:
    """The pixel (clamped) at k of the window at this place, and whether it is in the image (None: always)."""
    at, fits = [], []
    for a, p in enumerate(padding):
        pixel = place[a] * stride[a] + k[a] * dilation[a]
        pixel, inside = clamped(e, pixel - p if p else pixel, x[2 + a], p > 0, p > 0)
        at.append(pixel)
        fits.append(inside)
    return (at[0], at[1]), both(e, *fits)


def _conv_lower(e: Any, i: Any, x: Any, w: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    n, o, *place = i
    _, per_group, kh, kw = w.shape
    group = _group_of(e, o, w.shape[0], groups)

    def element(c: Any, *k: Any) -> Any:
        at, inside = _pixel(e, place, k, x.shape, stride, padding, dilation)
        term = x(n, group * per_group + c, *at) * w(o, c, *k)
        return term if inside is None else e.where(inside, term, e.const(0, x.dtype))

    return e.reduce("sum", (per_group, kh, kw), element, x.dtype)


def _group_of(e: Any, channel: Any, channels: int, groups: int) -> Any:
    return e.binary("floordiv", channel, channels // groups) if groups > 1 else 0


def _data_lower(
    e: Any, i: Any, g: Any, w: Any, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Any:
    n, channel, *pixel = i
    outputs, per_group, kh, kw = w.shape
    group = _group_of(e, channel, shape[1], groups)
    c = channel - group * per_group

    def element(o: Any, *k: Any) -> Any:
        (row, above), (column, beside) = (
            window_over(e, pixel[a] + padding[a] - k[a] * dilation[a], stride[a], g.shape[2 + a]) for a in (0, 1)
        )
        term = g(n, group * (outputs // groups) + o, row, column) * w(group * (outputs // groups) + o, c, *k)
        return e.where(both(e, above, beside), term, e.const(0, g.dtype))

    return e.reduce("sum", (outputs // groups, kh, kw), element, g.dtype)


def window_over(e: Any, start: Any, stride: int, places: int) -> tuple[Any, Any]:
    """The place (clamped) of the window that begins at `start`, and whether there is one."""
    place, whole = start, None
    if stride > 1:
        place = e.binary("floordiv", start, stride)
        whole = e.binary("equal", place * stride, start)
    moved, inside = clamped(e, place, places)
    return moved, both(e, whole, inside)


def _weight_lower(
    e: Any, i: Any, x: Any, g: Any, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Any:
    o, c, *k = i
    channel = _group_of(e, o, shape[0], groups) * shape[1] + c

    def element(n: Any, *place: Any) -> Any:
        at, inside = _pixel(e, place, k, x.shape, stride, padding, dilation)
        term = x(n, channel, *at) * g(n, o, *place)
        return term if inside is None else e.where(inside, term, e.const(0, x.dtype))

    return e.reduce("sum", (g.shape[0], *g.shape[2:]), element, x.dtype)


# -- the ops


def _how(stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> dict[str, Any]:
    return {"stride": pair(stride), "padding": pair(padding), "dilation": pair(dilation), "groups": groups}


def _flops(places: TensorType, w: Shape) -> int:
    """A multiplication and an addition for each element of x * w and of its window, padding included."""
    return 2 * places.size * math.prod(w[1:])


# (x, w, settings): odd sizes, windows that do not fill the image, rows and columns that differ
_CASES: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 7, 6), (4, 3, 3, 3), _how(padding=1)),
    ((2, 4, 8, 9), (6, 2, 3, 2), _how((2, 3), (1, 0), groups=2)),
    ((1, 2, 9, 8), (3, 2, 2, 3), _how(2, (2, 1), (3, 2))),
    ((2, 3, 5, 5), (3, 1, 3, 3), _how(groups=3)),
    ((2, 5, 4, 3), (7, 5, 1, 1), _how()),
    ((1, 1, 12, 12), (20, 1, 5, 5), _how()),
)


_LOW = {"dtype": "f32"}


def _low(*shapes: Shape) -> tuple[Any, ...]:
    return tuple((shape, "bf16", -2, 2) for shape in shapes)


def _result(x: Shape, w: Shape, how: dict[str, Any]) -> Shape:
    return _check("conv2d", TensorType(x), TensorType(w), None, how)


CONV2D: Op = Op(
    "conv2d",
    kind="contraction",
    pattern="conv",
    infer=_conv_type,
    numpy=_sums(_conv),
    grad=lambda g, y, x, w, dtype=None, **how: (
        DATA_GRAD(elementwise.cast(g, x.dtype), w, shape=x.shape, **how),
        WEIGHT_GRAD(x, elementwise.cast(g, x.dtype), shape=w.shape, **how),
    ),
    lower=_terms(_conv_lower),
    samples=each(
        *(((x, w), how) for x, w, how in _CASES),
        *((_low(x, w), how | _LOW) for x, w, how in _CASES[:2]),
    ),
    flops=lambda y, x, w, **how: _flops(y, w.shape),
    numeric="low",
    doc="y[n, o, i, j] = Σ x[n, c, i s + k d - p, j s + l d - p] w[o, c, k, l]",
)
DATA_GRAD: Op = Op(
    "conv2d_data_grad",
    kind="contraction",
    pattern="conv",
    infer=_data_type,
    numpy=_sums(_conv_data),
    grad=lambda gg, y, g, w, shape, dtype=None, **how: (
        CONV2D(elementwise.cast(gg, w.dtype), w, **how),
        WEIGHT_GRAD(elementwise.cast(gg, g.dtype), g, shape=w.shape, **how),
    ),
    lower=_terms(_data_lower),
    samples=each(
        *(((_result(x, w, how), w), {"shape": x, **how}) for x, w, how in _CASES),
        *((_low(_result(x, w, how), w), {"shape": x, **how, **_LOW}) for x, w, how in _CASES[:2]),
    ),
    flops=lambda y, g, w, **how: _flops(g, w.shape),
    numeric="low",
    doc="The gradient of conv2d for its image, of shape `shape`.",
)
WEIGHT_GRAD: Op = Op(
    "conv2d_weight_grad",
    kind="contraction",
    pattern="conv",
    infer=_weight_type,
    numpy=_sums(_conv_weight),
    grad=lambda gw, y, x, g, shape, dtype=None, **how: (
        DATA_GRAD(g, elementwise.cast(gw, g.dtype), shape=x.shape, **how),
        CONV2D(x, elementwise.cast(gw, x.dtype), **how),
    ),
    lower=_terms(_weight_lower),
    samples=each(
        *(((x, _result(x, w, how)), {"shape": w, **how}) for x, w, how in _CASES),
        *((_low(x, _result(x, w, how)), {"shape": w, **how, **_LOW}) for x, w, how in _CASES[:2]),
    ),
    flops=lambda y, x, g, **how: _flops(g, y.shape),
    numeric="low",
    doc="The gradient of conv2d for its weight, of shape `shape`.",
)


def conv2d(
    x: Node,
    w: Node,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """y[n, o, i, j] = Σ x[n, c, i s + k d - p, j s + l d - p] w[o, c, k, l], within groups of channels."""
    return CONV2D(x, w, **_how(stride, padding, dilation, groups))


def conv2d_data_grad(g: Node, w: Node, shape: Sequence[int], **how: Any) -> Node:
    """The gradient of conv2d for its image; settings as there."""
    return DATA_GRAD(g, w, shape=tuple(shape), **_how(**how))


def conv2d_weight_grad(x: Node, g: Node, shape: Sequence[int], **how: Any) -> Node:
    """The gradient of conv2d for its weight; settings as there."""
    return WEIGHT_GRAD(x, g, shape=tuple(shape), **_how(**how))
