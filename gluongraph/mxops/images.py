"""MXNet's operators on lines, images and volumes, as builders over nodes: convolution, pooling, resizing, padding.

Layouts with the channels last are those of MXNet: data NWC, NHWC, NDHWC, weights (filters, *kernel, channels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node

Extents = int | Sequence[int]  # one number for each axis, or one for all

LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}  # by rank: channels first, channels last


def _is_last(op: str, data: Node, layout: str | None) -> bool:
    """Are the channels on the last axis? Raises unless the layout is one for data of this rank."""
    known = LAYOUTS.get(data.ty.rank)
    if known is None:
        raise ShapeError(
            with_user_location(f"{op}: data has the axes (N, C, W), (N, C, H, W) or (N, C, D, H, W), not {data.ty}")
        )
    if layout is not None and layout not in known:
        raise MXNetError(
            with_user_location(f"{op}: layout {layout!r} is none of {data.ty}; there are {', '.join(known)}")
        )
    return layout == known[1]


def _first(x: Node, last: bool) -> Node:
    return ops.moveaxis(x, x.ty.rank - 1, 1) if last else x


def _back(x: Node, last: bool) -> Node:
    return ops.moveaxis(x, 1, x.ty.rank - 1) if last else x


def _each(op: str, what: str, value: Extents | None, default: int, axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    if value is None or value == ():
        return (default,) * axes
    given = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(given) != axes:
        raise ShapeError(with_user_location(f"{op}: {what} is a number for each of {axes} axes, not {list(given)}"))
    return given


def _check_weight(op: str, weight: Node, kernel: tuple[int, ...], filters: int, at: int) -> None:
    """The weight has the kernel and the filters that the arguments say, where they do."""
    if kernel and weight.shape[2:] != kernel:
        raise ShapeError(with_user_location(f"{op}: kernel={kernel}, and the weight's is {weight.shape[2:]}"))
    if filters and weight.shape[at] != filters:
        raise ShapeError(
            with_user_location(f"{op}: {filters} filters, and {weight.shape[at]} in the weight {weight.ty}")
        )


def _with_bias(y: Node, bias: Node | None, no_bias: bool) -> Node:
    if bias is None or no_bias:
        return y
    return ops.add(y, ops.reshape(bias, (1, bias.ty.size, *(1,) * (y.ty.rank - 2))))


def Convolution(
    data: Node,
    weight: Node,
    bias: Node | None = None,
    kernel: Extents = (),
    stride: Extents | None = None,
    dilate: Extents | None = None,
    pad: Extents | None = None,
    num_filter: int = 0,
    num_group: int = 1,
    no_bias: bool = False,
    layout: str | None = None,
) -> Node:
    """Cross-correlation over one, two or three axes; weight (filters, channels / groups, *kernel), bias (filters,)."""
    last, axes = _is_last("Convolution", data, layout), data.ty.rank - 2
    w = _first(weight, last)
    _check_weight("Convolution", w, _each("Convolution", "kernel", kernel, 0, axes) if kernel else (), num_filter, 0)
    steps, around, apart = _strides("Convolution", stride, pad, dilate, axes)
    y = ops.conv(_first(data, last), w, steps, around, apart, num_group)
    return _back(_with_bias(y, bias, no_bias), last)


def _strides(
    op: str, stride: Extents | None, pad: Extents | None, dilate: Extents | None, axes: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return (
        _each(op, "stride", stride, 1, axes),
        _each(op, "pad", pad, 0, axes),
        _each(op, "dilate", dilate, 1, axes),
    )


def Deconvolution(
    data: Node,
    weight: Node,
    bias: Node | None = None,
    kernel: Extents = (),
    stride: Extents | None = None,
    dilate: Extents | None = None,
    pad: Extents | None = None,
    adj: Extents | None = None,
    target_shape: Extents | None = None,
    num_filter: int = 0,
    num_group: int = 1,
    no_bias: bool = True,
    layout: str | None = None,
) -> Node:
    """The gradient of a convolution for its data, as a layer: weight (channels, filters / groups, *kernel).

    An extent n becomes (n - 1) stride - 2 pad + dilate (kernel - 1) + 1 + adj; `target_shape` asks for extents instead
    of `pad` and `adj`.
    """
    last, axes = _is_last("Deconvolution", data, layout), data.ty.rank - 2
    x, w = _first(data, last), _first(weight, last)
    kernel = _each("Deconvolution", "kernel", kernel, 0, axes) if kernel else ()
    _check_weight("Deconvolution", w, kernel, num_filter // num_group, 1)
    steps, around, apart = _strides("Deconvolution", stride, pad, dilate, axes)
    more = _each("Deconvolution", "adj", adj, 0, axes)
    if target_shape:
        wanted = _each("Deconvolution", "target_shape", target_shape, 0, axes)
        around, more = _framing(x.shape[2:], w.shape[2:], steps, apart, wanted)
    y = ops.conv_transpose(x, w, steps, around, apart, num_group, more)
    return _back(_with_bias(y, bias, no_bias), last)


def _framing(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilate: Sequence[int], wanted: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """pad and adj by which a deconvolution has the extents wanted."""
    whole = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(size, kernel, stride, dilate, strict=True)]
    over = [n - w for n, w in zip(whole, wanted, strict=True)]
    if min(over) < 0:
        raise ShapeError(
            with_user_location(f"Deconvolution: target_shape {tuple(wanted)} is larger than {tuple(whole)}")
        )
    return tuple((o + 1) // 2 for o in over), tuple(o % 2 for o in over)


# -- pooling


def Pooling(
    data: Node,
    kernel: Extents = (),
    pool_type: str = "max",
    global_pool: bool = False,
    pooling_convention: str = "valid",
    stride: Extents | None = None,
    pad: Extents | None = None,
    p_value: int | None = None,
    count_include_pad: bool = True,
    layout: str | None = None,
) -> Node:
    """Over windows of one, two or three axes: "max", "avg", "sum", or "lp", the p_value-th root of the sum of powers.

    With pooling_convention="full" the last window may hang over. With "same", of data with one axis beside samples and
    channels, a window begins at every multiple of the stride, so that several may hang over the end; there is no `pad`.
    With `global_pool` the window is everything.
    """
    last, axes = _is_last("Pooling", data, layout), data.ty.rank - 2
    if pool_type not in _POOLS:
        raise MXNetError(with_user_location(f"Pooling: no pool_type {pool_type!r}; there are {', '.join(_POOLS)}"))
    if pooling_convention not in ("valid", "full", "same"):
        raise MXNetError(
            with_user_location(f"Pooling: no pooling_convention {pooling_convention!r}; there are valid, full, same")
        )
    if pool_type == "lp" and p_value not in (1, 2, 3):
        raise MXNetError(with_user_location(f"Pooling: p_value is 1, 2 or 3 for lp, not {p_value!r}"))
    if global_pool:
        inner = tuple(range(1, 1 + axes)) if last else tuple(range(2, 2 + axes))
        return _POOLS[pool_type](data, p_value, lambda x, reduce: reduce(x, inner, True))
    if not kernel:
        raise MXNetError(with_user_location("Pooling: needs a kernel, or global_pool=True"))
    how: dict[str, Any] = {
        "kernel": _each("Pooling", "kernel", kernel, 1, axes),
        "stride": _each("Pooling", "stride", stride, 1, axes),
        "padding": _each("Pooling", "pad", pad if pooling_convention != "same" or np.any(pad) else None, 0, axes),
        "ceil": pooling_convention == "full",
    }
    data = _first(data, last)
    if pooling_convention == "same":
        fill = -math.inf if pool_type == "max" else 0
        data, inside = _all_begun(data, how, fill), _all_begun(ops.full(data.shape, 1, data.dtype), how, 0)
        count_include_pad = True
    local: dict[Any, Callable[[Node], Node]] = {
        ops.max: lambda x: ops.max_pool(x, **how),
        ops.mean: lambda x: ops.avg_pool(x, **how, count_include_pad=count_include_pad),
        ops.sum: lambda x: ops.sum_pool(x, **how),
    }
    made = _POOLS[pool_type](data, p_value, lambda x, reduce: local[reduce](x))
    if pooling_convention == "same" and pool_type == "avg":
        made = ops.div(made, local[ops.mean](inside))  # the mean over what lies inside
    return _back(made, last)


def _all_begun(x: Node, how: Mapping[str, Any], fill: float) -> Node:
    """Data with so much behind its end that a window fits at every multiple of the stride."""
    if x.ty.rank != 3 or any(how["padding"]):
        what = f"pooling_convention='same' of {x.ty} with pad={how['padding']}"
        raise MXNetError(
            with_user_location(f"Pooling: {what}", help="it is for data (batch, channels, width), without pad")
        )
    (kernel,), (stride,) = how["kernel"], how["stride"]
    behind = (math.ceil(x.shape[2] / stride) - 1) * stride + kernel - x.shape[2]
    return ops.pad(x, (0, 0, 0), (0, 0, max(behind, 0)), fill)


def _lp(data: Node, p: int, over: Callable[..., Node]) -> Node:
    """The p-th root of the sum of p-th powers; of a negative sum, that of its absolute value, negated."""
    if p == 1:
        return over(data, ops.sum)
    if p == 2:
        return ops.sqrt(over(ops.mul(data, data), ops.sum))
    total = over(ops.mul(ops.mul(data, data), data), ops.sum)
    return ops.mul(ops.sign(total), ops.pow(ops.abs(total), 1 / 3))


# pool_type -> (data, p, over) -> the pooled data, where over(x, reduce) folds windows of x as `reduce` folds axes
_POOLS: dict[str, Callable[..., Node]] = {
    "max": lambda data, p, over: over(data, ops.max),
    "avg": lambda data, p, over: over(data, ops.mean),
    "sum": lambda data, p, over: over(data, ops.sum),
    "lp": _lp,
}


# -- resizing


def UpSampling(
    *data: Node,
    scale: int,
    sample_type: str,
    num_filter: int = 0,
    multi_input_mode: str = "concat",
    num_args: int = 0,
) -> Node:
    """Images `scale` times as high and wide: sample_type "nearest", or "bilinear" by a deconvolution with a weight.

    "nearest" takes several images, which all get the size of the first one's result and are joined along the channels,
    or added with multi_input_mode="sum". "bilinear" takes an image and a weight (channels, 1, k, k), k = 2 scale -
    scale % 2. `num_args` changes nothing.
    """
    if scale < 1 or sample_type not in ("nearest", "bilinear") or multi_input_mode not in ("concat", "sum"):
        raise MXNetError(
            with_user_location(
                f"UpSampling: scale={scale}, sample_type={sample_type!r}, multi_input_mode={multi_input_mode!r}",
                help="a scale of 1 or more; 'nearest' or 'bilinear'; 'concat' or 'sum'",
            )
        )
    if sample_type == "bilinear":
        image, weight = data
        return _bilinear(image, weight, scale)
    size = tuple(n * scale for n in data[0].shape[2:])
    made = [_repeated(x, size) for x in data]
    if multi_input_mode == "concat":
        return ops.concat(*made, axis=1)
    total = made[0]
    for each in made[1:]:
        total = ops.add(total, each)
    return total


def _bilinear(data: Node, weight: Node, scale: int) -> Node:
    kernel, pad = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
    channels = data.shape[1]
    return Deconvolution(data, weight, None, kernel, scale, 1, pad, num_filter=channels, num_group=channels)


def _repeated(x: Node, size: tuple[int, ...]) -> Node:
    """Each pixel as a square of pixels."""
    n, c, h, w = x.shape
    if size[0] % h or size[1] % w:
        raise ShapeError(with_user_location(f"UpSampling: {x.ty} cannot be enlarged to {size} by whole factors"))
    wide = ops.expand(ops.reshape(x, (n, c, h, 1, w, 1)), (n, c, h, size[0] // h, w, size[1] // w))
    return ops.reshape(wide, (n, c, *size))


def BilinearResize2D(
    data: Node,
    like: Node | None = None,
    height: int = 1,
    width: int = 1,
    scale_height: float | None = None,
    scale_width: float | None = None,
    mode: str = "size",
    align_corners: bool = True,
) -> Node:
    """Images of another height and width, interpolated linearly: of the size given, scaled, or with mode="like" alike.

    mode="odd_scale" scales h - 1 of an odd height h and adds 1; "to_even_up", "to_even_down", "to_odd_up" and
    "to_odd_down" make height and width even or odd by one pixel more or less.

    With `align_corners` the centers of the corner pixels stay the corners, otherwise the outer edges.
    """
    if mode not in ("size", "like", "odd_scale", *_PARITY):
        message = f"BilinearResize2D: no mode {mode!r}; there are size, like, odd_scale, {', '.join(_PARITY)}"
        raise MXNetError(with_user_location(message))
    if mode in _PARITY:
        odd, step = _PARITY[mode]
        height, width = (n if n % 2 == odd else n + step for n in data.shape[2:])
    elif mode == "odd_scale":
        if scale_height is None or scale_width is None:
            raise MXNetError(
                with_user_location("BilinearResize2D: mode='odd_scale' needs scale_height and scale_width")
            )
        height, width = (
            int((n - n % 2) * scale) + n % 2
            for n, scale in zip(data.shape[2:], (scale_height, scale_width), strict=True)
        )
    elif mode == "like":
        if like is None:
            raise MXNetError(
                with_user_location('BilinearResize2D: mode="like" needs `like`, images of the size that is wanted')
            )
        height, width = like.shape[2:]
    elif scale_height is not None and scale_width is not None:
        height, width = int(data.shape[2] * scale_height), int(data.shape[3] * scale_width)
    for axis, size in ((3, width), (2, height)):
        data = _mapped(data, axis, _interpolation(data.shape[axis], size, align_corners))
    return data


# mode -> whether extents become odd, and what is added to those that are not so
_PARITY = {"to_even_up": (0, 1), "to_even_down": (0, -1), "to_odd_up": (1, 1), "to_odd_down": (1, -1)}


def _interpolation(old: int, new: int, align_corners: bool) -> np.ndarray[Any, Any]:
    """The (new, old) matrix that interpolates linearly."""
    at = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    if not align_corners:
        at = np.maximum((np.arange(new) + 0.5) * (old / new) - 0.5, 0.0)
    low = np.minimum(at.astype(int), old - 1)
    matrix = np.zeros((new, old))
    np.add.at(matrix, (np.arange(new), low), 1 - (at - low))
    np.add.at(matrix, (np.arange(new), np.minimum(low + 1, old - 1)), at - low)
    return matrix


def AdaptiveAvgPooling2D(data: Node, output_size: Extents | None = None) -> Node:
    """The mean over as many windows as `output_size` says, which lie evenly and may share a pixel; 1 by default."""
    size = _each("AdaptiveAvgPooling2D", "output_size", output_size, 1, 2)
    for axis, new in ((3, size[1]), (2, size[0])):
        data = _mapped(data, axis, _averages(data.shape[axis], new))
    return data


def _averages(old: int, new: int) -> np.ndarray[Any, Any]:
    """The (new, old) matrix that takes means over windows from i old / new, rounded down, to the next, rounded up."""
    matrix = np.zeros((new, old))
    for i in range(new):
        begin, end = i * old // new, -(-(i + 1) * old // new)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix


def _mapped(x: Node, axis: int, matrix: np.ndarray[Any, Any]) -> Node:
    """A matrix applied along an axis."""
    lines = ops.moveaxis(x, axis, x.ty.rank - 1)
    flat = ops.reshape(lines, (x.ty.size // x.shape[axis], x.shape[axis]))
    made = ops.matmul(flat, ops.literal(matrix.astype(numpy_dtype(x.dtype))), tb=True)
    return ops.moveaxis(ops.reshape(made, (*lines.shape[:-1], len(matrix))), x.ty.rank - 1, axis)


# -- borders, and normalization over neighbours


def pad(data: Node, mode: str = "constant", pad_width: Sequence[int] = (), constant_value: float = 0.0) -> Node:
    """Elements put before and after on each axis: a constant, those at the "edge" again, or a mirror image ("reflect").

    `pad_width` has two numbers for each axis: how many before, how many after.
    """
    if len(pad_width) != 2 * data.ty.rank:
        raise ShapeError(
            with_user_location(f"pad: pad_width has two numbers for each axis of {data.ty}, not {list(pad_width)}")
        )
    before, after = tuple(pad_width[::2]), tuple(pad_width[1::2])
    if mode == "constant":
        return ops.pad(data, before, after, constant_value)
    if mode not in ("edge", "reflect"):
        raise MXNetError(with_user_location(f"pad: no mode {mode!r}; there are constant, edge and reflect"))
    for axis, (front, behind) in enumerate(zip(before, after, strict=True)):
        if front or behind:
            data = (_edged if mode == "edge" else _mirrored)(data, axis, front, behind)
    return data


def _edged(x: Node, axis: int, front: int, behind: int) -> Node:
    def repeated(at: int, count: int) -> list[Any]:
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return [ops.expand(ops.part(x, axis, at, at + 1), shape)] if count else []

    return ops.concat(*repeated(0, front), x, *repeated(x.shape[axis] - 1, behind), axis=axis)


def _mirrored(x: Node, axis: int, front: int, behind: int) -> Node:
    size = x.shape[axis]
    if max(front, behind) >= size:
        raise ShapeError(
            with_user_location(f"pad: a mirror image of {max(front, behind)} elements needs more than {x.ty} has")
        )
    left = [ops.flip(ops.part(x, axis, 1, front + 1), axis)] if front else []
    right = [ops.flip(ops.part(x, axis, size - 1 - behind, size - 1), axis)] if behind else []
    return ops.concat(*left, x, *right, axis=axis)


def LRN(data: Node, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Node:
    """data / (knorm + alpha / nsize * sum of squares over nsize neighbouring channels) ** beta"""
    if nsize % 2 == 0:
        raise MXNetError(
            with_user_location(f"LRN: nsize is odd, so that as many neighbours lie on either side; not {nsize}")
        )
    n, channels, *rest = data.shape
    squares = ops.reshape(ops.mul(data, data), (n, 1, channels, math.prod(rest)))
    means = ops.avg_pool2d(squares, (nsize, 1), (1, 1), (nsize // 2, 0))
    return ops.mul(data, ops.pow(ops.add(ops.mul(ops.reshape(means, data.shape), alpha), knorm), -beta))


def L2Normalization(data: Node, eps: float = 1e-10, mode: str = "instance") -> Node:
    """data / sqrt(sum of squares + eps): over each "instance", the "channel" axis 1, or the "spatial" axes."""
    rank = data.ty.rank
    over = {"instance": tuple(range(1, rank)), "channel": (1,), "spatial": tuple(range(2, rank))}
    if not over.get(mode):
        help = f"the modes are {', '.join(over)}"
        raise MXNetError(with_user_location(f"L2Normalization: mode {mode!r} has no axes in {data.ty}", help=help))
    total = ops.sum(ops.mul(data, data), over[mode], True)
    return ops.mul(data, ops.rsqrt(ops.add(total, eps)))
