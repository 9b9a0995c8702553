"""Convolution over one, two or three axes, and its transpose, made of those of images.

A line is an image of one row. Of a volume, the slices that a window spans become channels: what remains is one
convolution of images, whose weight is the volume's in another shape, so that its gradient is the weight's and may be
fused with the update. Only the slices are copied, each once for every position in a window; a sum of one convolution
per position would instead write and read the result as often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import movement
from gluongraph.ops.checks import FLOATS, misfit, need
from gluongraph.ops.conv import conv2d, conv2d_data_grad, extent, window_over
from gluongraph.ops.movement import clamped
from gluongraph.ops.samples import each

Shape = tuple[int, ...]


# -- the slices of a volume (N, C, D, H, W) that windows along D span: (N, places, C, kernel, H, W)


def _spanned_type(
    x: TensorType, kernel: int, stride: int, padding: int, dilation: int, op: str = "depth_windows"
) -> TensorType:
    need(op, FLOATS, x)
    if x.rank != 5:
        raise misfit(op, "needs volumes (N, C, D, H, W)", x)
    if min(kernel, stride, dilation) < 1 or padding < 0:
        raise misfit(op, "kernel, stride and dilation are 1 or more, padding 0 or more", x)
    n, c, depth, h, w = x.shape
    places = extent(depth, kernel, stride, padding, dilation)
    if places < 1:
        raise misfit(op, "the window is larger than the padded volume", x, help="smaller kernel, or more padding")
    return TensorType((n, places, c, kernel, h, w), x.dtype)


def _stacked_type(g: TensorType, depth: int, **how: Any) -> TensorType:
    n, c, h, w = g.shape[0], g.shape[2], *g.shape[4:]
    x = TensorType((n, c, depth, h, w), g.dtype)
    if _spanned_type(x, **how, op="depth_windows_grad") != g:
        raise misfit("depth_windows_grad", f"no windows of a depth of {depth}", g)
    return x


def _taps(depth: int, places: int, kernel: int, stride: int, padding: int, dilation: int) -> Iterator[Any]:
    """For each place in the window: itself, the windows that have a slice there, and those slices."""
    for k in range(kernel):
        at = k * dilation - padding
        first = max(0, -(at // stride))
        last = min(places - 1, (depth - 1 - at) // stride)
        if first <= last:
            yield k, slice(first, last + 1), slice(first * stride + at, last * stride + at + 1, stride)


def _spanned(x: Any, **how: int) -> Any:
    n, c, depth, h, w = x.shape
    places = extent(depth, how["kernel"], how["stride"], how["padding"], how["dilation"])
    y = np.zeros((n, places, c, how["kernel"], h, w), x.dtype)
    for k, windows, slices in _taps(depth, places, **how):
        y[:, windows, :, k] = x[:, :, slices].swapaxes(1, 2)
    return y


def _stacked(g: Any, depth: int, **how: int) -> Any:
    n, places, c, _, h, w = g.shape
    x = np.zeros((n, c, depth, h, w), g.dtype)
    for k, windows, slices in _taps(depth, places, **how):
        x[:, :, slices] += g[:, windows, :, k].swapaxes(1, 2)
    return x


def _spanned_lower(e: Any, i: Any, x: Any, kernel: int, stride: int, padding: int, dilation: int) -> Any:
    n, place, c, k, h, w = i
    at = place * stride + k * dilation
    at, inside = clamped(e, at - padding if padding else at, x.shape[2], padding > 0, padding > 0)
    value = x(n, c, at, h, w)
    return value if inside is None else e.where(inside, value, e.const(0, x.dtype))


def _stacked_lower(e: Any, i: Any, g: Any, depth: int, kernel: int, stride: int, padding: int, dilation: int) -> Any:
    n, c, at, h, w = i

    def element(k: Any) -> Any:
        place, inside = window_over(e, at + padding - k * dilation, stride, g.shape[1])
        return e.where(inside, g(n, place, c, k, h, w), e.const(0, g.dtype))

    return e.reduce("sum", (kernel,), element, g.dtype)


_CASES: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 3, 5, 2, 3), {"kernel": 3, "stride": 1, "padding": 1, "dilation": 1}),
    ((1, 2, 9, 3, 2), {"kernel": 2, "stride": 3, "padding": 2, "dilation": 2}),
    ((2, 2, 4, 1, 5), {"kernel": 4, "stride": 2, "padding": 0, "dilation": 1}),
)

DEPTH_WINDOWS: Op = Op(
    "depth_windows",
    kind="movement",
    infer=_spanned_type,
    numpy=_spanned,
    grad=lambda g, y, x, **how: (DEPTH_WINDOWS_GRAD(g, depth=x.shape[2], **how),),
    lower=_spanned_lower,
    samples=each(*(((x,), how) for x, how in _CASES)),
    doc="y[n, o, c, k, h, w] = x[n, c, o s + k d - p, h, w], 0 outside",
)
DEPTH_WINDOWS_GRAD: Op = Op(
    "depth_windows_grad",
    kind="reduce",
    infer=_stacked_type,
    numpy=_stacked,
    grad=lambda gg, y, g, depth, **how: (DEPTH_WINDOWS(gg, **how),),
    lower=_stacked_lower,
    samples=each(*(((_spanned_type(TensorType(x), **how).shape,), {"depth": x[2], **how}) for x, how in _CASES)),
    doc="The gradient of depth_windows for its volume, which is `depth` deep.",
)


# -- the builders


def conv(
    x: Node, w: Node, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int = 1
) -> Node:
    """y[n, o, i...] = Σ x[n, c, i s + k d - p...] w[o, c, k...], over the one to three axes behind the channels."""
    axes = _axes_of("conv", x, w)
    if axes == 1:
        y = conv2d(_as_image(x), _as_image(w), (1, *stride), (0, *padding), (1, *dilation), groups)
        return movement.reshape(y, (*y.shape[:2], y.shape[3]))
    if axes == 2:
        return conv2d(x, w, stride, padding, dilation, groups)
    depth = {"kernel": w.shape[2], "stride": stride[0], "padding": padding[0], "dilation": dilation[0]}
    spanned = DEPTH_WINDOWS(x, **depth)
    y = conv2d(_as_channels(spanned), _joined(w), stride[1:], padding[1:], dilation[1:], groups)
    return movement.transpose(movement.reshape(y, (x.shape[0], spanned.shape[1], *y.shape[1:])), (0, 2, 1, 3, 4))


def conv_transpose(
    g: Node,
    w: Node,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    output_padding: Sequence[int] = (0, 0, 0),
) -> Node:
    """The gradient of `conv` for its data, given g for the result: each g[n, o, i...] times w, added where it was read.

    Of the extents that `conv` would turn into those of g, it has the smallest plus `output_padding`, which lies below
    the stride.
    """
    axes = _axes_of("conv_transpose", g, w)
    if any(not 0 <= more < s for more, s in zip(output_padding, stride, strict=False)):
        raise misfit("conv_transpose", f"output_padding {tuple(output_padding)} is not below the stride", g.ty, w.ty)
    size = tuple(
        (g.shape[2 + a] - 1) * stride[a] - 2 * padding[a] + dilation[a] * (w.shape[2 + a] - 1) + 1 + output_padding[a]
        for a in range(axes)
    )
    if min(size) < 1:
        raise misfit("conv_transpose", f"padding {tuple(padding)} leaves nothing of the result", g.ty, w.ty)
    shape = (g.shape[0], w.shape[1] * groups, *size)
    if axes == 1:
        how: dict[str, Any] = {"stride": (1, *stride), "padding": (0, *padding), "dilation": (1, *dilation)}
        x = conv2d_data_grad(_as_image(g), _as_image(w), (*shape[:2], 1, *size), groups=groups, **how)
        return movement.reshape(x, shape)
    if axes == 2:
        how = {"stride": stride, "padding": padding, "dilation": dilation}
        return conv2d_data_grad(g, w, shape, groups=groups, **how)
    depth = {"kernel": w.shape[2], "stride": stride[0], "padding": padding[0], "dilation": dilation[0]}
    n, o, places, *inner = g.shape
    flat = movement.reshape(movement.transpose(g, (0, 2, 1, 3, 4)), (n * places, o, *inner))
    how = {"stride": stride[1:], "padding": padding[1:], "dilation": dilation[1:]}
    spanned = conv2d_data_grad(flat, _joined(w), (n * places, shape[1] * w.shape[2], *size[1:]), groups=groups, **how)
    spanned = movement.reshape(spanned, (n, places, shape[1], w.shape[2], *size[1:]))
    return DEPTH_WINDOWS_GRAD(spanned, depth=size[0], **depth)


def _axes_of(op: str, x: Node, w: Node) -> int:
    if x.ty.rank != w.ty.rank or x.ty.rank not in (3, 4, 5):
        help = "data (N, C, axes) and a weight (O, C/groups, kernel) for one, two or three axes"
        raise misfit(op, "data and weight do not fit", x.ty, w.ty, help=help)
    return x.ty.rank - 2


def _as_image(x: Node) -> Node:
    return movement.reshape(x, (*x.shape[:2], 1, x.shape[2]))


def _as_channels(spanned: Node) -> Node:
    n, places, c, kernel, h, w = spanned.shape
    return movement.reshape(spanned, (n * places, c * kernel, h, w))


def _joined(w: Node) -> Node:
    return movement.reshape(w, (w.shape[0], w.shape[1] * w.shape[2], *w.shape[3:]))
