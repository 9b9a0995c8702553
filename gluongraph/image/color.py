"""Brightness, contrast, saturation, hue and lighting of images in memory: numpy arrays (H, W, C) of RGB or gray.

The formulas are those of MXNet's image operators; results are cut off at the ends of the bytes' range. Gray images have
no saturation, hue or lighting to change.
"""

from __future__ import annotations

import numpy as np

from gluongraph.storage import Array

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
# Eigenvectors of ImageNet's colors times their eigenvalues (Krizhevsky et al., 2012).
_COLOR_AXES = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32
) * np.array([55.46, 4.794, 1.148], np.float32)


def _like(values: Array, image: Array) -> Array:
    return values.clip(0, 255).astype(np.uint8) if image.dtype == np.uint8 else values.astype(image.dtype)


def brightness(image: Array, factor: float) -> Array:
    """image * factor"""
    return _like(image.astype(np.float32) * np.float32(factor), image)


def contrast(image: Array, factor: float) -> Array:
    """image * factor + (1 - factor) * mean brightness"""
    mean = image.mean((0, 1), dtype=np.float64)
    gray = float(mean @ LUMA) if image.shape[2] == 3 else float(mean[0])
    return _like(image.astype(np.float32) * np.float32(factor) + np.float32((1 - factor) * gray), image)


def saturation(image: Array, factor: float) -> Array:
    """image * factor + (1 - factor) * brightness of the pixel"""
    if image.shape[2] == 1:
        return image.copy()
    values = image.astype(np.float32)
    return _like(values * np.float32(factor) + np.float32(1 - factor) * gray(values), image)


def gray(image: Array) -> Array:
    """The brightness of each pixel, (H, W, 1), in the image's dtype."""
    return _like((image.astype(np.float32) @ LUMA)[..., None], image)


def hue(image: Array, turns: float) -> Array:
    """The colors turned by so many full circles, at the same lightness and saturation (HLS)."""
    if image.shape[2] == 1:
        return image.copy()
    rgb = image.astype(np.float32)
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, low = rgb.max(2), rgb.min(2)
    spread = np.where(high == low, 1, high - low)
    sixths = np.select(
        [high == red, high == green],
        [(green - blue) / spread, 2 + (blue - red) / spread],
        4 + (red - green) / spread,
    )
    # Each channel is a trapezoid over the circle, whose middle is at 0 for red, at 2 sixths for green, 4 for blue.
    away = [np.abs((sixths + 6 * turns - middle + 3) % 6 - 3) for middle in (0, 2, 4)]
    share = (2 - np.stack(away, 2)).clip(0, 1)
    return _like(low[..., None] + (high - low)[..., None] * share, image)


def lighting(image: Array, alpha: Array) -> Array:
    """image + the three main axes of natural colors, weighted by alpha (AlexNet's noise)."""
    if image.shape[2] == 1:
        return image.copy()
    return _like(image.astype(np.float32) + _COLOR_AXES @ np.asarray(alpha, np.float32), image)
