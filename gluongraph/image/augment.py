"""Augmenters: changes of images, some at random, as objects that are called one after the other (mx.image.*Aug).

They take and give (height, width, channels); random choices come from Python's `random` and numpy's, as MXNet's do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.image import color
from gluongraph.image.functions import center_crop, color_normalize, imresize, pixels, random_crop, random_size_crop
from gluongraph.image.functions import resize_short as resized_short
from gluongraph.mxops import shapes
from gluongraph.ndarray import NDArray, invoke
from gluongraph.storage import Array, given_array

Size = tuple[int, int]


class Augmenter:
    """A change of an image: `augmenter(src)`. Subclasses hand their settings to `__init__`, and say `__call__`.

    >>> from gluongraph import image, nd
    >>> class Invert(image.Augmenter):
    ...     def __call__(self, src):
    ...         return 255 - src
    >>> Invert()(nd.array([[[55]]])).asnumpy().tolist()
    [[[200.0]]]
    """

    def __init__(self, **kwargs: Any):
        self._kwargs = {k: v.asnumpy() if isinstance(v, NDArray) else v for k, v in kwargs.items()}
        for name, value in self._kwargs.items():
            self._kwargs[name] = value.tolist() if isinstance(value, np.ndarray) else value

    def dumps(self) -> str:
        """Its name and settings as JSON: '["centercropaug", {"size": [3, 4], "interp": 2}]'."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: NDArray) -> NDArray:
        raise NotImplementedError(f"{type(self).__name__} says __call__(self, src)")


def _made(array: Array) -> NDArray:
    return NDArray(np.ascontiguousarray(array))


class SequentialAug(Augmenter):
    """Augmenters one after the other.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.SequentialAug([image.CastAug(), image.ResizeAug(2)])(src).shape
    (2, 3, 3)
    """

    def __init__(self, ts: Sequence[Augmenter]):
        super().__init__()
        self.ts = list(ts)

    def dumps(self) -> str:
        return json.dumps([type(self).__name__.lower(), [json.loads(t.dumps()) for t in self.ts]])

    def __call__(self, src: NDArray) -> NDArray:
        for each in self.ts:
            src = each(src)
        return src


class RandomOrderAug(SequentialAug):
    """Augmenters in a random order.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.RandomOrderAug([image.CastAug(), image.ResizeAug(2)])(src).shape
    (2, 3, 3)
    """

    def __call__(self, src: NDArray) -> NDArray:
        random.shuffle(self.ts)
        return super().__call__(src)


class ResizeAug(Augmenter):
    """The shorter side as long as `size`.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.ResizeAug(2)(src).shape
    (2, 3, 3)
    """

    def __init__(self, size: int, interp: int = 2):
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        return resized_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """(width, height) of `size`, whatever the proportions were.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.ForceResizeAug((2, 5))(src).shape
    (5, 2, 3)
    """

    def __init__(self, size: Size, interp: int = 2):
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        return imresize(src, *self.size, interp=self.interp)


class RandomCropAug(Augmenter):
    """A random part of (width, height) `size`.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.RandomCropAug((2, 3))(src).shape
    (3, 2, 3)
    """

    def __init__(self, size: Size, interp: int = 2):
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        return random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """A random part of a share `area` of the image and proportions `ratio`, resized to `size`.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.RandomSizedCropAug((2, 3), (0.5, 1.0), (0.75, 1.25))(src).shape
    (3, 2, 3)
    """

    def __init__(
        self, size: Size, area: float | tuple[float, float], ratio: tuple[float, float], interp: int = 2, **kwargs: Any
    ):
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.area, self.ratio, self.interp = size, kwargs.get("min_area", area), ratio, interp

    def __call__(self, src: NDArray) -> NDArray:
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class CenterCropAug(Augmenter):
    """The middle, of (width, height) `size`.

    >>> from gluongraph import image, nd
    >>> src = nd.zeros((4, 6, 3), dtype="uint8")
    >>> image.CenterCropAug((2, 3))(src).shape
    (3, 2, 3)
    """

    def __init__(self, size: Size, interp: int = 2):
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        return center_crop(src, self.size, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Left and right exchanged, with probability p.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.HorizontalFlipAug(p=1)(src).asnumpy().tolist()
    [[[40.0, 50.0, 60.0], [10.0, 20.0, 30.0]]]
    """

    def __init__(self, p: float):
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        return invoke(shapes.flip, src, axis=1) if random.random() < self.p else src


class CastAug(Augmenter):
    """The elements as another type.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.CastAug("int32")(src).asnumpy().tolist()
    [[[10, 20, 30], [40, 50, 60]]]
    """

    def __init__(self, typ: str = "float32"):
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: NDArray) -> NDArray:
        return src.astype(self.typ)


def _per_channel(given: Any) -> NDArray | None:
    """Numbers for the channels, as an array; None stays."""
    return given if given is None or isinstance(given, NDArray) else NDArray(given_array(given, np.float32, copy=True))


class ColorNormalizeAug(Augmenter):
    """(src - mean) / std per channel; None leaves one out.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.ColorNormalizeAug(mean=[10, 20, 30], std=[3, 3, 3])(src).asnumpy().tolist()
    [[[0.0, 0.0, 0.0], [10.0, 10.0, 10.0]]]
    """

    def __init__(self, mean: Any, std: Any):
        super().__init__(mean=mean, std=std)
        self.mean, self.std = map(_per_channel, (mean, std))

    def __call__(self, src: NDArray) -> NDArray:
        if self.mean is None:
            return src if self.std is None else src / self.std
        return color_normalize(src, self.mean, self.std)


class _Jitter(Augmenter):
    """A property of the colors, multiplied by 1 plus a random number up to the strength on either side."""

    def __init__(self, name: str, strength: float):
        super().__init__(**{name: strength})
        self._strength = strength

    def _factor(self) -> float:
        return 1.0 + random.uniform(-self._strength, self._strength)


class BrightnessJitterAug(_Jitter):
    """Another brightness, at random.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.BrightnessJitterAug(0)(src).asnumpy().tolist()
    [[[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]]
    """

    def __init__(self, brightness: float):
        super().__init__("brightness", brightness)
        self.brightness = brightness

    def __call__(self, src: NDArray) -> NDArray:
        return _made(color.brightness(pixels(src, "BrightnessJitterAug"), self._factor()))


class ContrastJitterAug(_Jitter):
    """Another contrast, at random.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.ContrastJitterAug(0.2)(src).shape
    (1, 2, 3)
    """

    def __init__(self, contrast: float):
        super().__init__("contrast", contrast)
        self.contrast = contrast

    def __call__(self, src: NDArray) -> NDArray:
        return _made(color.contrast(pixels(src, "ContrastJitterAug"), self._factor()))


class SaturationJitterAug(_Jitter):
    """Another saturation, at random.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.SaturationJitterAug(0.2)(src).shape
    (1, 2, 3)
    """

    def __init__(self, saturation: float):
        super().__init__("saturation", saturation)
        self.saturation = saturation

    def __call__(self, src: NDArray) -> NDArray:
        return _made(color.saturation(pixels(src, "SaturationJitterAug"), self._factor()))


# RGB as brightness and two colors (YIQ, NTSC's), and back.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_RGB = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])


class HueJitterAug(_Jitter):
    """Colors turned by up to hue half circles on either side, at random (in YIQ, as MXNet's).

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.HueJitterAug(0.1)(src).shape
    (1, 2, 3)
    """

    def __init__(self, hue: float):
        super().__init__("hue", hue)
        self.hue = hue

    def __call__(self, src: NDArray) -> NDArray:
        angle = random.uniform(-self.hue, self.hue) * np.pi
        u, w = np.cos(angle), np.sin(angle)
        turn = _RGB @ np.array([[1, 0, 0], [0, u, -w], [0, w, u]]) @ _YIQ
        image = pixels(src, "HueJitterAug")
        return _made((image.astype(np.float32) @ turn.T.astype(np.float32)).astype(image.dtype))


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation changed at random, in a random order; 0 leaves one out.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.ColorJitterAug(0.1, 0.2, 0.2)(src).shape
    (1, 2, 3)
    """

    def __init__(self, brightness: float, contrast: float, saturation: float):
        every = ((BrightnessJitterAug, brightness), (ContrastJitterAug, contrast), (SaturationJitterAug, saturation))
        super().__init__([make(strength) for make, strength in every if strength > 0])


class LightingAug(Augmenter):
    """Noise along the main axes of natural colors, of standard deviation `alphastd` (AlexNet's).

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.LightingAug(0.1, [1, 1, 1], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])(src).shape
    (1, 2, 3)
    """

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any):
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd = alphastd
        self.eigval, self.eigvec = np.asarray(eigval, np.float32), np.asarray(eigvec, np.float32)

    def __call__(self, src: NDArray) -> NDArray:
        alpha = np.random.normal(0, self.alphastd, size=(3,))
        shift = (self.eigvec * alpha) @ self.eigval
        image = pixels(src, "LightingAug")
        return _made(image + shift.astype(image.dtype))


class RandomGrayAug(Augmenter):
    """Gray in all channels, with probability p.

    >>> from gluongraph import image, nd
    >>> src = nd.array([[[10, 20, 30], [40, 50, 60]]])
    >>> image.RandomGrayAug(p=0)(src).asnumpy().tolist()
    [[[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]]
    """

    def __init__(self, p: float):
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        if random.random() >= self.p:
            return src
        image = pixels(src, "RandomGrayAug")
        return _made(np.repeat(color.gray(image), image.shape[2], axis=2))


# ImageNet's colors: mean and standard deviation per channel, eigenvalues and eigenvectors (Krizhevsky et al., 2012).
_MEAN, _STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)
_EIGENVALUES = (55.46, 4.794, 1.148)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


def CreateAugmenter(
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """The usual augmenters for images of data_shape (channels, height, width); mean=True and std=True are ImageNet's.

    Raises:
        AssertionError: rand_resize without rand_crop.

    >>> from gluongraph import image
    >>> [type(a).__name__ for a in image.CreateAugmenter((3, 4, 4), resize=8, rand_mirror=True)]
    ['ResizeAug', 'CenterCropAug', 'HorizontalFlipAug', 'CastAug']
    """
    size = (data_shape[2], data_shape[1])
    if rand_resize and not rand_crop:
        raise AssertionError("CreateAugmenter: rand_resize crops at random too; give rand_crop=True")
    found: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        found.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        found.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        found.append(HorizontalFlipAug(0.5))
    found.append(CastAug())
    if brightness or contrast or saturation:
        found.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        found.append(HueJitterAug(hue))
    if pca_noise > 0:
        found.append(LightingAug(pca_noise, _EIGENVALUES, _EIGENVECTORS))
    if rand_gray > 0:
        found.append(RandomGrayAug(rand_gray))
    mean, std = (_MEAN if mean is True else mean), (_STD if std is True else std)
    if mean is not None or std is not None:
        found.append(ColorNormalizeAug(mean, std))
    return found
