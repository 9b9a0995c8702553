"""Images at another size, by OpenCV's formulas, which are what MXNet resizes with.

A pixel of the result is a weighted sum of a few source pixels along each axis, its *taps*: `_taps` gives their places
and weights. Pixels lie at the centers of their squares, so that pixel i of the result is at (i + 1/2) * scale - 1/2 of
the source; beyond the border the border's pixel is repeated. Bytes are computed in fixed point as OpenCV does, with
11 bits for a weight.
"""

from __future__ import annotations

import functools
import math
import operator

import numpy as np

from gluongraph.errors import DTypeError, MXNetError, with_user_location
from gluongraph.storage import Array

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
METHODS = ("nearest", "bilinear", "bicubic", "area", "Lanczos")
_BITS = 11

Taps = tuple[Array, Array]


def resize(image: Array, width: int, height: int, interp: int = LINEAR) -> Array:
    """(H, W, C) as (height, width, C), in the same dtype.

    Raises:
        MXNetError: the size is not positive, the image has another rank, or there is no such method.
        DTypeError: the pixels are neither uint8 nor float32 nor float64.
    """
    if image.ndim != 3 or min(image.shape) < 1:
        raise MXNetError(with_user_location(f"resize: an image has shape (height, width, channels), not {image.shape}"))
    if interp not in range(len(METHODS)):
        known = ", ".join(f"{i} {name}" for i, name in enumerate(METHODS))
        raise MXNetError(with_user_location(f"resize: there is no interpolation {interp!r}; there are {known}"))
    if width < 1 or height < 1:
        raise MXNetError(with_user_location(f"resize: the new size must be positive, and is {width}x{height}"))
    if image.dtype not in (np.uint8, np.float32, np.float64) and interp != NEAREST:
        raise DTypeError(with_user_location(f"resize: pixels are uint8, float32 or float64, not {image.dtype}"))
    if image.shape[:2] == (height, width):
        return image.copy()
    rows, columns = (_taps(*each, interp) for each in ((height, image.shape[0]), (width, image.shape[1])))
    if interp == NEAREST:
        return image[rows[0], columns[0][:, 0]]
    halved = image.shape[:2] == (2 * height, 2 * width)
    if interp == AREA and (height > image.shape[0] or width > image.shape[1]):
        interp, rows, columns = LINEAR, _enlarged(height, image.shape[0]), _enlarged(width, image.shape[1])
    elif interp == LINEAR and halved:  # means of four: OpenCV adds them up without the fixed point
        interp = AREA
    if image.dtype == np.uint8 and interp != AREA:
        return _fixed_point(image, rows, columns, interp)
    accurate = image if image.dtype.kind == "f" else image.astype(np.float32)
    summed = _along(_along(accurate, columns, 1), rows, 0)
    if image.dtype.kind == "f":
        return summed
    return (np.floor(summed + 0.5) if halved else np.rint(summed)).clip(0, 255).astype(np.uint8)


def _taps(new: int, old: int, interp: int) -> Taps:
    """Places, from 0 to old - 1, and weights of the taps of each of `new` pixels: two arrays (new, taps)."""
    scale = 1 / (new / old)
    if interp == NEAREST:
        places = np.floor(np.arange(new) * scale).astype(np.int64)[:, None]
        return places.clip(0, old - 1), np.ones(places.shape)
    if interp == AREA:
        return _overlaps(new, old, scale)
    center = ((np.arange(new) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(center)
    part = (center - first).astype(np.float64)  # the way to the next pixel, 0 to 1
    if interp == LINEAR:
        offsets, weights = range(2), np.stack([1 - part, part], 1)
    elif interp == CUBIC:
        offsets, weights = range(-1, 3), _cubic(part)
    else:
        away = part[:, None] - np.arange(-3, 5)
        weights = np.sinc(away) * np.sinc(away / 4)
        offsets, weights = range(-3, 5), weights / weights.sum(1, keepdims=True)
    return (first.astype(np.int64)[:, None] + np.array(offsets)).clip(0, old - 1), weights


def _cubic(part: Array) -> Array:
    """Weights of Keys' convolution kernel (1981), a = -3/4, at distances 1 + part, part, 1 - part, 2 - part."""
    a = -0.75
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (part, 1 - part)]
    before = ((a * (part + 1) - 5 * a) * (part + 1) + 8 * a) * (part + 1) - 4 * a
    return np.stack([before, *near, 1 - before - near[0] - near[1]], 1)


def _overlaps(new: int, old: int, scale: float) -> Taps:
    """A pixel of the result is the mean over the interval of the source that it covers."""
    start = np.arange(new) * scale
    end = np.minimum(start + scale, old)
    places = np.floor(start).astype(np.int64)[:, None] + np.arange(math.ceil(scale) + 1)
    covered = np.minimum(end[:, None], places + 1) - np.maximum(start[:, None], places)
    return places.clip(0, old - 1), covered.clip(0, None) / (end - start)[:, None]


def _enlarged(new: int, old: int) -> Taps:
    """What OpenCV does for "area" where the image grows: a pixel, and a blend where the next one begins."""
    scale = 1 / (new / old)
    index = np.arange(new)
    first = np.floor(index * scale)
    part = (index + 1) - (first + 1) * (new / old)
    part = np.where(part <= 0, 0, part - np.floor(part)).astype(np.float32)
    places = (first.astype(np.int64)[:, None] + np.arange(2)).clip(0, old - 1)
    return places, np.stack([1 - part, part], 1).astype(np.float64)


def _along(image: Array, taps: Taps, axis: int) -> Array:
    """The weighted sums along an axis, in the dtype of the image."""
    places, weights = taps
    shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
    pairs = zip(places.T, weights.astype(image.dtype).T, strict=True)
    terms = (image.take(place, axis) * weight.reshape(shape) for place, weight in pairs)
    total: Array = functools.reduce(operator.add, terms)
    return total


def _fixed_point(image: Array, rows: Taps, columns: Taps, interp: int) -> Array:
    """Bytes, weighted by integers in units of 2**-11; the two weights of a bilinear row are applied one by one."""
    used, places = np.unique(rows[0], return_inverse=True)  # rows that nobody reads are not summed
    row_weights, column_weights = (np.rint(weights * (1 << _BITS)).astype(np.int32) for _, weights in (rows, columns))
    lines = _along(image[used].astype(np.int32), (columns[0], column_weights), 1)
    places = places.reshape(rows[0].shape)
    if interp != LINEAR:
        summed = _along(lines, (places, row_weights), 0)
        rounded = (summed + (1 << (2 * _BITS - 1))) >> (2 * _BITS)
    else:
        pairs = zip(places.T, row_weights.T, strict=True)
        above, below = ((lines[place] >> 4) * weight[:, None, None] >> 16 for place, weight in pairs)
        rounded = (above + below + 2) >> 2
    made: Array = rounded.clip(0, 255).astype(np.uint8)
    return made
