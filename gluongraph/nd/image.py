"""`mx.nd.image`: operators on images, one (H, W, C) or a batch (N, H, W, C); after `to_tensor`, (C, H, W).

`to_tensor`, `normalize`, `crop` and the flips are operators like all others. The others work on images in memory, by
numpy, and not within a trace: their place is a dataset's transform. Random ones draw from `mx.random`'s generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import ops, random
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.errors import DTypeError, MXNetError, ShapeError, with_user_location
from gluongraph.image import color, pixels, resample, short_side
from gluongraph.ir.graph import Node
from gluongraph.ir.plain import extents
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd.examples import document
from gluongraph.ndarray import NDArray, invoke
from gluongraph.storage import Array

Numbers = float | Sequence[float]


def _check_rank(op: str, data: Node) -> None:
    if data.ty.rank not in (3, 4):
        raise ShapeError(
            with_user_location(f"image.{op}: an image has the axes (H, W, C), a batch (N, H, W, C); not {data.ty}")
        )


def _to_tensor(data: Node) -> Node:
    _check_rank("to_tensor", data)
    scaled = ops.div(ops.cast(data, "f32"), 255.0)
    return ops.moveaxis(scaled, scaled.ty.rank - 1, scaled.ty.rank - 3)


def _normalize(data: Node, mean: tuple[float, ...], std: tuple[float, ...]) -> Node:
    if data.ty.rank not in (3, 4) or data.shape[-3] not in (1, 3):
        raise ShapeError(
            with_user_location(f"image.normalize: (C, H, W) or (N, C, H, W) of 1 or 3 channels, not {data.ty}")
        )
    if not is_float(data.dtype):
        raise DTypeError(
            with_user_location(f"image.normalize takes floating-point numbers, not {data.ty}", help="use to_tensor")
        )
    for name, given in (("mean", mean), ("std", std)):
        if len(given) not in (1, data.shape[-3]):
            raise ShapeError(
                with_user_location(f"image.normalize: {name} has {len(given)} numbers, the images {data.shape[-3]}")
            )
    middle, width = (ops.literal(np.array(x, numpy_dtype(data.dtype)).reshape(-1, 1, 1)) for x in (mean, std))
    return ops.div(ops.sub(data, middle), width)


def _crop(data: Node, x: int, y: int, width: int, height: int) -> Node:
    _check_rank("crop", data)
    high, wide = data.shape[-3:-1]
    if min(x, y) < 0 or min(width, height) < 1 or x + width > wide or y + height > high:
        raise ShapeError(with_user_location(f"image.crop: {width}x{height} at ({x}, {y}) is not within {wide}x{high}"))
    before = (None,) * (data.ty.rank - 3)
    return mxshapes.slice(data, (*before, y, x), (*before, y + height, x + width))


def _flip(data: Node, axis: int) -> Node:
    _check_rank("flip", data)
    return ops.flip(data, (data.ty.rank + axis,))


def to_tensor(data: NDArray) -> NDArray:
    """Pixels of 0 to 255, channels last, as float32 of 0 to 1, channels first."""
    return invoke(_to_tensor, data)


def normalize(data: NDArray, mean: Numbers = 0.0, std: Numbers = 1.0) -> NDArray:
    """(data - mean) / std of (C, H, W) or (N, C, H, W), with one number for all channels or one for each."""
    return invoke(_normalize, data, _tuple(mean), _tuple(std))


def crop(data: NDArray, x: int, y: int, width: int, height: int) -> NDArray:
    """The part at (x, y) of that width and height."""
    return invoke(_crop, data, x, y, width, height)


def flip_left_right(data: NDArray) -> NDArray:
    """Left and right exchanged."""
    return invoke(_flip, data, -2)


def flip_top_bottom(data: NDArray) -> NDArray:
    """Top and bottom exchanged."""
    return invoke(_flip, data, -3)


def _tuple(value: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in value) if isinstance(value, (tuple, list)) else (float(value),)


# -- in memory


def _mapped(op: str, data: NDArray, change: Callable[..., Array], *args: Any) -> NDArray:
    """change(image, *args) of an image, or of each of a batch."""
    array = pixels(data, f"image.{op}")
    if array.ndim not in (3, 4) or array.shape[-1] not in (1, 3):
        raise ShapeError(
            with_user_location(f"image.{op}: (H, W, C) or (N, H, W, C) of 1 or 3 channels, not {list(array.shape)}")
        )
    made = change(array, *args) if array.ndim == 3 else np.stack([change(image, *args) for image in array])
    return NDArray(np.ascontiguousarray(made), data.context)


def resize(data: NDArray, size: int | Sequence[int], keep_ratio: bool = False, interp: int = 1) -> NDArray:
    """Images of another size: (width, height), or one number for both sides or, with keep_ratio, the shorter."""
    given = extents(size)
    if len(given) not in (1, 2):
        raise MXNetError(with_user_location(f"image.resize: size is a number or (width, height), not {size!r}"))
    if keep_ratio and len(given) == 1:
        width, height = short_side(data.shape[-3:], given[0])
    else:
        width, height = given[0], given[-1]
    array = pixels(data, "image.resize")
    many = array if array.ndim == 4 else array[None]
    made = np.stack([resample.resize(image, width, height, interp) for image in many])
    return NDArray(made if array.ndim == 4 else made[0], data.context)


def _drawn(low: float, high: float) -> float:
    return float(random.uniform(float(low), float(high), shape=(1,)).asscalar())


def random_flip_left_right(data: NDArray, p: float = 0.5) -> NDArray:
    """Left and right exchanged, with probability p."""
    pixels(data, "image.random_flip_left_right")
    return flip_left_right(data) if _drawn(0.0, 1.0) < p else data.copy()


def random_flip_top_bottom(data: NDArray, p: float = 0.5) -> NDArray:
    """Top and bottom exchanged, with probability p."""
    pixels(data, "image.random_flip_top_bottom")
    return flip_top_bottom(data) if _drawn(0.0, 1.0) < p else data.copy()


def _adjusting(op: str, change: Callable[[Array, float], Array], what: str) -> Callable[..., NDArray]:
    def function(data: NDArray, min_factor: float, max_factor: float) -> NDArray:
        if not 0 <= min_factor <= max_factor:
            raise MXNetError(
                with_user_location(f"image.{op}: factors from 0 up, not from {min_factor} to {max_factor}")
            )
        pixels(data, f"image.{op}")
        return _mapped(op, data, change, _drawn(min_factor, max_factor))

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"{what} by a factor drawn from between min_factor and max_factor."
    return function


random_brightness = _adjusting("random_brightness", color.brightness, "The brightness changed")
random_contrast = _adjusting("random_contrast", color.contrast, "The distance from the mean brightness changed")
random_saturation = _adjusting("random_saturation", color.saturation, "The distance from the pixel's gray changed")
random_hue = _adjusting("random_hue", color.hue, "The colors turned by full circles")


def random_color_jitter(
    data: NDArray, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0
) -> NDArray:
    """Brightness, contrast and saturation by factors 1 - x to 1 + x, hue by -x to x circles, in a random order."""
    changes = [
        (brightness, 1.0, color.brightness),
        (contrast, 1.0, color.contrast),
        (saturation, 1.0, color.saturation),
        (hue, 0.0, color.hue),
    ]
    pixels(data, "image.random_color_jitter")
    for index in np.argsort(random.uniform(shape=(4,)).asnumpy(), kind="stable"):
        strength, middle, change = changes[index]
        if strength > 0:
            factor = middle + _drawn(-strength, strength)
            data = _mapped("random_color_jitter", data, change, factor)
    return data


def adjust_lighting(data: NDArray, alpha: Sequence[float]) -> NDArray:
    """data + the main axes of natural colors, weighted by the three numbers of alpha."""
    return _mapped("adjust_lighting", data, color.lighting, np.array(alpha))


def random_lighting(data: NDArray, alpha_std: float = 0.05) -> NDArray:
    """`adjust_lighting` by normally distributed numbers of that standard deviation (AlexNet's noise)."""
    pixels(data, "image.random_lighting")
    alpha = random.normal(0.0, float(alpha_std), shape=(3,)).asnumpy()
    return _mapped("random_lighting", data, color.lighting, alpha)


document(__name__, globals())
