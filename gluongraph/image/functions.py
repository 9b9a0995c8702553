"""Reading, resizing, cropping and turning images in memory, (height, width, channels).

Sizes are (width, height) and positions (x, y), as in MXNet. Random crops draw from Python's `random`, random angles
from `numpy.random`, as MXNet does: with the same seed they fall on the same places.
"""

from __future__ import annotations

import math
import random
from numbers import Real
from typing import Any

import numpy as np

from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, TraceError, with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.image import codec, resample
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array

Size = tuple[int, int]
Place = tuple[int, int, int, int]  # x, y, width, height

_BORDERS = ("constant", "edge", "symmetric", "wrap", "reflect")  # numpy's names of OpenCV's borders 0 to 4


def pixels(src: Any, what: str) -> Array:
    """The memory of an image.

    Raises:
        TraceError: within a trace, where an image has no numbers yet.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.pixels(src, "example").shape
    (4, 6, 3)
    """
    if not isinstance(src, NDArray):
        return np.asarray(src)
    if STATE.tracer is not None:
        raise TraceError(
            with_user_location(
                f"{what} works on images in memory, and is called within a trace",
                help="apply it in the dataset's transform, before the network",
            )
        )
    return src.storage.array


def _made(array: Array, out: NDArray | None = None) -> NDArray:
    made = NDArray(np.ascontiguousarray(array))
    if out is None:
        return made
    out[:] = made
    return out


def imdecode(buf: Any, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """The picture in the bytes of an image file: uint8 (H, W, 3), or (H, W, 1) with flag=0; BGR without `to_rgb`.

    Raises:
        ValueError: `buf` is text; or no image (FormatError).
        ImportError: Pillow is not installed.

    >>> import io
    >>> from PIL import Image
    >>> from gluongraph import image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (6, 4), (255, 0, 0)).save(file, "PNG")
    >>> picture = image.imdecode(file.getvalue())
    >>> picture.shape, picture[0, 0].asnumpy().tolist()
    ((4, 6, 3), [255, 0, 0])
    """
    if isinstance(buf, str):
        raise ValueError("imdecode takes the bytes of an image file; a path is read by imread")
    data = buf.asnumpy().tobytes() if isinstance(buf, NDArray) else bytes(buf)
    array = codec.decode(data, flag, bool(to_rgb))
    return _made(array[:, :, None] if array.ndim == 2 else array, out)


def imread(filename: str, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """`imdecode` of a file.

    Raises:
        ArgumentError: the name of the file is empty.
        MXNetError: it cannot be read; the cause is the OSError.

    >>> import tempfile
    >>> from PIL import Image
    >>> from gluongraph import image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (6, 4)).save(folder + "/black.png")
    ...     image.imread(folder + "/black.png").shape
    (4, 6, 3)
    """
    check_name("imread", filename, "mx.image.imread('cat.png')")
    try:
        with open(filename, "rb") as file:
            data = file.read()
    except OSError as error:
        raise MXNetError(with_user_location(f"imread: {error}")) from error
    return imdecode(data, flag, to_rgb, out)


def imresize(src: Any, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """The image as (h, w, channels).

    `interp`: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos; 9 takes 2 to enlarge, 3 to shrink and 1 otherwise,
    10 takes any.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.imresize(src, w=3, h=2).shape
    (2, 3, 3)
    """
    array = pixels(src, "imresize")
    return _made(resample.resize(array, w, h, _method(interp, array.shape[:2], (h, w))), out)


def _method(interp: int, old: tuple[int, ...], new: Size) -> int:
    if interp == 9:
        if new[0] > old[0] and new[1] > old[1]:
            return resample.CUBIC
        return resample.AREA if new[0] < old[0] and new[1] < old[1] else resample.LINEAR
    return random.randint(0, 4) if interp == 10 else interp


def resize_short(src: Any, size: int, interp: int = 2) -> NDArray:
    """The image resized so that its shorter side is `size`.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.resize_short(src, 2).shape
    (2, 3, 3)
    """
    return imresize(src, *short_side(src.shape, size), interp)


def short_side(shape: tuple[int, ...], size: int) -> Size:
    """Width and height that an image of shape (height, width, ...) has when its shorter side becomes `size`.

    >>> short_side((480, 640, 3), 240)
    (320, 240)
    """
    height, width = shape[:2]
    return (size, size * height // width) if height > width else (size * width // height, size)


def scale_down(src_size: Size, size: Size) -> Size:
    """`size` shrunk, in its own ratio, until it fits into `src_size`.

    >>> scale_down((640, 480), (720, 120))
    (640, 106)
    """
    (width, height), (limit_width, limit_height) = (float(size[0]), float(size[1])), src_size
    if limit_height < height:
        width, height = width * limit_height / height, limit_height
    if limit_width < width:
        width, height = limit_width, height * limit_width / width
    return int(width), int(height)


def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> NDArray:
    """The part of the image at (x0, y0) of that width and height, resized to `size` if that is another.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.fixed_crop(src, x0=1, y0=0, w=2, h=3).shape
    (3, 2, 3)
    """
    part = pixels(src, "fixed_crop")[y0 : y0 + h, x0 : x0 + w]
    if size is None or (w, h) == tuple(size):
        return _made(part)
    return imresize(part, *size, interp)


def center_crop(src: Any, size: Size, interp: int = 2) -> tuple[NDArray, Place]:
    """The middle part of that size, and its place; enlarged if the image is smaller.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> part, place = image.center_crop(src, (2, 2))
    >>> part.shape, place
    ((2, 2, 3), (2, 1, 2, 2))
    """
    (height, width), (w, h) = src.shape[:2], scale_down((src.shape[1], src.shape[0]), size)
    place = int((width - w) / 2), int((height - h) / 2), w, h
    return fixed_crop(src, *place, size, interp), place


def random_crop(src: Any, size: Size, interp: int = 2) -> tuple[NDArray, Place]:
    """A part of that size at a random place, and the place; enlarged if the image is smaller.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> part, place = image.random_crop(src, (2, 2))
    >>> part.shape
    (2, 2, 3)
    """
    (height, width), (w, h) = src.shape[:2], scale_down((src.shape[1], src.shape[0]), size)
    x0 = random.randint(0, width - w)
    place = x0, random.randint(0, height - h), w, h
    return fixed_crop(src, *place, size, interp), place


def random_size_crop(
    src: Any, size: Size, area: float | tuple[float, float], ratio: tuple[float, float], interp: int = 2
) -> tuple[NDArray, Place]:
    """A part whose share of the area and ratio of the sides lie in these ranges, resized to `size`; and its place.

    After ten parts that did not fit into the image the middle is taken.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> part, place = image.random_size_crop(src, (2, 2), area=(0.5, 1.0), ratio=(0.75, 1.25))
    >>> part.shape
    (2, 2, 3)
    """
    height, width = src.shape[:2]
    least, most = (area, 1.0) if isinstance(area, (int, float)) else area
    for _ in range(10):
        wanted = random.uniform(least, most) * height * width
        sides = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(wanted * sides)), round(math.sqrt(wanted / sides))
        if w <= width and h <= height:
            x0 = random.randint(0, width - w)
            place = x0, random.randint(0, height - h), w, h
            return fixed_crop(src, *place, size, interp), place
    return center_crop(src, size, interp)


def color_normalize(src: NDArray, mean: Any, std: Any = None) -> NDArray:
    """(src - mean) / std, written into src; what is None is left out.

    >>> from gluongraph import image, nd
    >>> image.color_normalize(nd.array([[[4.0]]]), nd.array([2.0]), nd.array([4.0])).asnumpy().tolist()
    [[[0.5]]]
    """
    if mean is not None:
        src -= mean
    if std is not None:
        src /= std
    return src


def copyMakeBorder(
    src: Any, top: int, bot: int, left: int, right: int, type: int = 0, value: float = 0, values: Any = ()
) -> NDArray:
    """The image with a border of so many pixels.

    `type`: 0 of one color (`value`, or `values` per channel), 1 the edge repeated, 2 mirrored, 3 the other side, 4
    mirrored without the edge itself.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.copyMakeBorder(src, top=1, bot=1, left=2, right=2).shape
    (6, 10, 3)
    """
    array = pixels(src, "copyMakeBorder")
    if type not in range(len(_BORDERS)):
        raise MXNetError(
            with_user_location(f"copyMakeBorder: there is no border {type!r}; there are 0 to {len(_BORDERS) - 1}")
        )
    widths = (top, bot), (left, right), (0, 0)
    if type:
        mode: Any = _BORDERS[type]
        return _made(np.pad(array, widths, mode=mode))
    made = np.pad(array, widths)
    made[...] = np.asarray(values or value, array.dtype)
    made[top : top + array.shape[0], left : left + array.shape[1]] = array
    return _made(made)


def imrotate(src: NDArray, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """Images (C, H, W) or (N, C, H, W) of float32 turned clockwise about their middle; what was outside is 0.

    `zoom_in` enlarges until nothing of the outside is seen, `zoom_out` shrinks until all of the image is. A batch takes
    one angle, or one for each image.

    Raises:
        TypeError: the images are not float32, or one image has several angles.
        ValueError: both zooms, another rank, or another number of angles than of images.

    >>> from gluongraph import image, nd
    >>> image.imrotate(nd.array([[[1, 2], [3, 4]]]), 180).asnumpy().round(3).tolist()
    [[[4.0, 3.0], [2.0, 1.0]]]
    """
    if zoom_in and zoom_out:
        raise ValueError("imrotate: `zoom_in` and `zoom_out` exclude one another")
    if src.dtype is not np.float32:
        raise TypeError(f"imrotate takes float32 images, not {np.dtype(src.dtype).name}; use it after ToTensor")
    array = pixels(src, "imrotate")
    if array.ndim == 3:
        if not isinstance(rotation_degrees, Real):
            raise TypeError("imrotate: a single image takes a single angle")
        return _made(_turned(array, float(rotation_degrees), zoom_in, zoom_out))
    if array.ndim != 4:
        raise ValueError(f"imrotate takes (C, H, W) or (N, C, H, W), not {array.shape}")
    angles = np.ravel(rotation_degrees.asnumpy() if isinstance(rotation_degrees, NDArray) else rotation_degrees)
    if isinstance(rotation_degrees, Real):
        angles = np.repeat(angles, len(array))
    if len(angles) != len(array):
        raise ValueError(f"imrotate: {len(array)} images and {len(angles)} angles")
    turned = [_turned(x, float(angle), zoom_in, zoom_out) for x, angle in zip(array, angles, strict=True)]
    return _made(np.stack(turned))


def _turned(image: Array, degrees: float, zoom_in: bool, zoom_out: bool) -> Array:
    """Each pixel is read, bilinearly, from where it was before the turn."""
    height, width = image.shape[1:]
    angle = math.radians(degrees)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    x, y = x - (width - 1) / 2, y - (height - 1) / 2
    zoom = _zoom(height, width, angle, zoom_in, zoom_out)
    from_x = (x * math.cos(angle) - y * math.sin(angle)) * zoom + (width - 1) / 2
    from_y = (x * math.sin(angle) + y * math.cos(angle)) * zoom + (height - 1) / 2
    left, above = np.floor(from_x).astype(int), np.floor(from_y).astype(int)
    total = np.zeros(image.shape)
    for place_y in (above, above + 1):
        for place_x in (left, left + 1):
            weight = (1 - np.abs(from_x - place_x)) * (1 - np.abs(from_y - place_y))
            inside = (place_x >= 0) & (place_x < width) & (place_y >= 0) & (place_y < height)
            total += image[:, place_y.clip(0, height - 1), place_x.clip(0, width - 1)] * (weight * inside)
    return total.astype(np.float32)


def _zoom(height: int, width: int, angle: float, zoom_in: bool, zoom_out: bool) -> float:
    if not zoom_in and not zoom_out:
        return 1.0
    diagonal, corner = math.hypot(height, width), math.atan2(height, width)
    ends = corner + abs(angle), corner - abs(angle)
    wide = max(abs(diagonal * math.cos(end)) for end in ends)
    high = max(abs(diagonal * math.sin(end)) for end in ends)
    return max(wide / width, high / height) if zoom_out else min(width / wide, height / high)


def random_rotate(
    src: NDArray, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """`imrotate` by angles drawn from between these limits, one for each image.

    >>> from gluongraph import image, nd
    >>> image.random_rotate(nd.ones((3, 4, 4)), (-10, 10)).shape
    (3, 4, 4)
    """
    count = None if src.ndim == 3 else len(src)
    return imrotate(src, np.random.uniform(*angle_limits, size=count), zoom_in, zoom_out)


__all__ = [
    "center_crop",
    "color_normalize",
    "copyMakeBorder",
    "fixed_crop",
    "imdecode",
    "imread",
    "imresize",
    "imrotate",
    "random_crop",
    "random_rotate",
    "random_size_crop",
    "resize_short",
    "scale_down",
]
