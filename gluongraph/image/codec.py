"""Image files to arrays and back, through Pillow, which is looked for when the first image comes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from gluongraph.errors import FormatError
from gluongraph.host.interrupts import import_whole
from gluongraph.storage import Array

COLOR, GRAY, UNCHANGED = 1, 0, -1  # OpenCV's numbers, which are MXNet's


def _pillow() -> Any:
    try:
        return import_whole("PIL.Image")
    except ImportError as error:
        raise ImportError("reading and writing images needs Pillow: pip install 'gluongraph[data]'") from error


def decode(data: Any, flag: int = COLOR, to_rgb: bool = True) -> Array:
    """The picture in the bytes of an image file: uint8, (H, W, 3) in color, (H, W) in gray; -1 leaves it as it is.

    Raises:
        FormatError: the bytes are no image that Pillow knows.
        ImportError: Pillow is not installed.
    """
    if flag not in (COLOR, GRAY, UNCHANGED):
        raise ValueError(f"the flag of an image is 1 (color), 0 (gray) or -1 (as it is), not {flag!r}")
    module = _pillow()
    try:
        with module.open(io.BytesIO(data)) as image:
            if flag == UNCHANGED:
                wanted = image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB"
            else:
                wanted = "RGB" if flag == COLOR else "L"
            array = np.array(image.convert(wanted))
    except (OSError, SyntaxError) as error:  # SyntaxError is what Pillow says of a broken PNG
        raise FormatError(f"these {len(data)} bytes cannot be decoded as an image: {error}") from error
    if to_rgb or array.ndim == 2:
        return array
    channels = [2, 1, 0, 3][: array.shape[2]]
    return np.ascontiguousarray(array[..., channels])


def encode(image: Array, suffix: str, quality: int) -> bytes:
    """The bytes of an image file of a picture, (H, W), (H, W, 1) or (H, W, 3) in the order red, green, blue.

    Raises:
        ValueError: the suffix is neither .jpg, .jpeg nor .png.
        ImportError: Pillow is not installed.
    """
    how: dict[str, dict[str, Any]] = {
        ".jpg": {"format": "JPEG", "quality": quality},
        ".jpeg": {"format": "JPEG", "quality": quality},
        ".png": {"format": "PNG", "compress_level": min(max(quality, 0), 9)},
    }
    if suffix.lower() not in how:
        raise ValueError(f"images are written as {', '.join(how)}, not as {suffix!r}")
    picture = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    file = io.BytesIO()
    _pillow().fromarray(np.ascontiguousarray(picture, np.uint8)).save(file, **how[suffix.lower()])
    return file.getvalue()
