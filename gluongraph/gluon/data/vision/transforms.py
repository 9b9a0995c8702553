"""What is done to an image before training, as blocks: (H, W, C) in, and after ToTensor (C, H, W).

Their place is a dataset's `transform_first`, sample by sample: they run in numpy, in the loader's workers, and
`hybridize()` changes nothing about that. ToTensor, Normalize and Cast may stand in a network, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import image
from gluongraph.errors import with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.nn import HybridSequential, Lambda, Sequential
from gluongraph.image import color
from gluongraph.ir.plain import plain
from gluongraph.nd import image as nd_image
from gluongraph.ndarray import NDArray
from gluongraph.ranges import FINITE, FRACTION, NOT_NEGATIVE, POSITIVE, Range, check_count, check_range

Size = int | Sequence[int]


def _pair(owner: HybridBlock, size: Size) -> tuple[int, int]:
    """Width and height."""
    given = plain(size)
    first, *rest = given if isinstance(given, (tuple, np.ndarray)) else (given,)
    pair = (first, rest[0] if rest else first)
    for extent in pair:
        check_count(owner, "size", extent)
    return pair


def _check_each(owner: HybridBlock, name: str, numbers: Any, allowed: Range = FINITE) -> None:
    """Raise unless a number, or each of several, is in a range; arrays are taken as they are."""
    for number in numbers if isinstance(numbers, (tuple, list)) else (numbers,):
        check_range(owner, name, number, allowed)


class _Transform(HybridBlock):
    """A transform. A compiled one would have to be made anew, in seconds, for each size of images."""

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: transforms run in numpy."""


class Compose(Sequential):
    """Transforms, or other functions of an image, one after another.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> change = transforms.Compose([transforms.CenterCrop(2), transforms.ToTensor()])
    >>> change(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (3, 2, 2)
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        super().__init__()
        self.add(*(each if isinstance(each, Block) else Lambda(each) for each in transforms))

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: transforms run in numpy."""


class HybridCompose(HybridSequential):
    """Transforms one after another. Raises ValueError if one is no hybrid block.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> change = transforms.HybridCompose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    >>> change(nd.zeros((2, 1, 1), dtype="uint8")).asnumpy().tolist()
    [[[-1.0], [-1.0]]]
    """

    def __init__(self, transforms: Sequence[HybridBlock]):
        super().__init__()
        self.add(*transforms)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: transforms run in numpy."""


class Cast(_Transform):
    """The elements as another type.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.Cast("float32")(nd.array([1, 2], dtype="uint8")).asnumpy().tolist()
    [1.0, 2.0]
    """

    def __init__(self, dtype: Any = "float32"):
        super().__init__()
        self._dtype = dtype

    def forward(self, x: NDArray) -> NDArray:
        return x.astype(self._dtype)


class ToTensor(_Transform):
    """Pixels of 0 to 255, (H, W, C) or (N, H, W, C), as float32 of 0 to 1, (C, H, W) or (N, C, H, W).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.ToTensor()(nd.array([[[0], [255]]], dtype="uint8")).asnumpy().tolist()
    [[[0.0, 1.0]]]
    >>> transforms.ToTensor()(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (3, 4, 6)
    """

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.to_tensor(x)


class Normalize(_Transform):
    """(x - mean) / std of (C, H, W) or (N, C, H, W), with one number for all channels or one for each.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.Normalize(mean=(0.5, 0.0, 1.0), std=(0.5, 0.25, 1.0))(nd.ones((3, 1, 1))).asnumpy().tolist()
    [[[1.0]], [[4.0]], [[0.0]]]

    Raises:
        ShapeError: another rank, or other than 1 or 3 channels.
    """

    def __init__(self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0):
        super().__init__()
        _check_each(self, "mean", mean)
        _check_each(self, "std", std, POSITIVE)
        self._mean, self._std = mean, std

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.normalize(x, self._mean, self._std)


class Resize(_Transform):
    """The image at another size: (width, height), or one number for both or, with `keep_ratio`, the shorter side.

    `interpolation`: 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 Lanczos; by OpenCV's formulas, as in MXNet.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> image = nd.zeros((4, 6, 3), dtype="uint8")
    >>> transforms.Resize((3, 2))(image).shape, transforms.Resize(2, keep_ratio=True)(image).shape
    ((2, 3, 3), (2, 3, 3))
    """

    def __init__(self, size: Size, keep_ratio: bool = False, interpolation: int = 1):
        super().__init__()
        _pair(self, size)
        self._size, self._keep, self._interpolation = size, keep_ratio, interpolation

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.resize(x, self._size, self._keep, self._interpolation)


class CenterCrop(_Transform):
    """The middle part of that size, a number or (width, height); enlarged if the image is smaller.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.CenterCrop((2, 1))(nd.arange(12).reshape((3, 4, 1))).asnumpy().tolist()
    [[[5.0], [6.0]]]
    """

    def __init__(self, size: Size, interpolation: int = 1):
        super().__init__()
        self._size, self._interpolation = _pair(self, size), interpolation

    def forward(self, x: NDArray) -> NDArray:
        return image.center_crop(x, self._size, self._interpolation)[0]


class CropResize(_Transform):
    """The part at (x, y) of that width and height; then resized to `size`, if that is given.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.CropResize(x=1, y=0, width=2, height=1)(nd.arange(12).reshape((3, 4, 1))).asnumpy().tolist()
    [[[1.0], [2.0]]]
    """

    def __init__(
        self, x: int, y: int, width: int, height: int, size: Size | None = None, interpolation: int | None = None
    ):
        super().__init__()
        for name, value, least in (("x", x, 0), ("y", y, 0), ("width", width, 1), ("height", height, 1)):
            check_count(self, name, value, least)
        if size:
            _pair(self, size)
        self._place, self._size = (x, y, width, height), size
        self._interpolation = 1 if interpolation is None else interpolation

    def forward(self, x: NDArray) -> NDArray:
        part = nd_image.crop(x, *self._place)
        return nd_image.resize(part, self._size, False, self._interpolation) if self._size else part


class RandomCrop(_Transform):
    """A part of that size at a random place, after `pad` pixels of `pad_value` were put around the image.

    `pad` is a number, or (top, bottom, left, right).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomCrop((5, 3), pad=1)(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (3, 5, 3)

    Raises:
        ValueError: `pad` has other than 1 or 4 numbers.
    """

    def __init__(
        self, size: Size, pad: int | Sequence[int] | None = None, pad_value: float = 0, interpolation: int = 1
    ):
        super().__init__()
        check_range(self, "pad_value", pad_value)
        self._size, self._pad_value, self._interpolation = _pair(self, size), pad_value, interpolation
        given = plain(pad)
        self._pad = (given,) * 4 if isinstance(given, int | float) else tuple(given or ())
        for number in self._pad:
            check_count(self, "pad", number, 0)
        if len(self._pad) not in (0, 4):
            raise ValueError(
                with_user_location(f"RandomCrop: pad is a number or (top, bottom, left, right), not {pad!r}")
            )

    def forward(self, x: NDArray) -> NDArray:
        if self._pad:
            top, bottom, left, right = self._pad
            x = image.copyMakeBorder(x, top, bottom, left, right, value=self._pad_value)
        return image.random_crop(x, self._size, self._interpolation)[0]


class RandomResizedCrop(_Transform):
    """A random part whose share of the area and ratio of the sides lie in these ranges, resized to `size`.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomResizedCrop((5, 3))(nd.zeros((8, 8, 3), dtype="uint8")).shape
    (3, 5, 3)
    """

    def __init__(
        self,
        size: Size,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: int = 1,
    ):
        super().__init__()
        _check_each(self, "scale", scale, POSITIVE)
        _check_each(self, "ratio", ratio, POSITIVE)
        self._args = _pair(self, size), scale, ratio, interpolation

    def forward(self, x: NDArray) -> NDArray:
        return image.random_size_crop(x, *self._args)[0]


class RandomFlipLeftRight(_Transform):
    """Left and right exchanged, with probability p.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomFlipLeftRight(p=1.0)(nd.array([[[1], [2]]])).asnumpy().tolist()
    [[[2.0], [1.0]]]
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        check_range(self, "p", p, FRACTION)
        self._p = p

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.random_flip_left_right(x, self._p)


class RandomFlipTopBottom(_Transform):
    """Top and bottom exchanged, with probability p.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomFlipTopBottom(p=1.0)(nd.array([[[1]], [[2]]])).asnumpy().tolist()
    [[[2.0]], [[1.0]]]
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        check_range(self, "p", p, FRACTION)
        self._p = p

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.random_flip_top_bottom(x, self._p)


class _Jitter(_Transform):
    """A change by a factor that is drawn from max(0, 1 - strength) to 1 + strength."""

    _change: Callable[..., NDArray]
    _argument: str  # its name

    def __init__(self, strength: float):
        super().__init__()
        check_range(self, self._argument, strength, NOT_NEGATIVE)
        self._range = max(0.0, 1 - strength), 1 + strength

    def forward(self, x: NDArray) -> NDArray:
        return type(self)._change(x, *self._range)


class RandomBrightness(_Jitter):
    """x * f, with f drawn from max(0, 1 - brightness) to 1 + brightness.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomBrightness(0.0)(nd.full((1, 1, 3), 8.0)).asnumpy().tolist()  # f = 1
    [[[8.0, 8.0, 8.0]]]
    """

    _change, _argument = staticmethod(nd_image.random_brightness), "brightness"

    def __init__(self, brightness: float):
        super().__init__(brightness)


class RandomContrast(_Jitter):
    """x * f + (1 - f) * mean brightness, with f drawn from max(0, 1 - contrast) to 1 + contrast.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomContrast(0.5)(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (4, 6, 3)
    """

    _change, _argument = staticmethod(nd_image.random_contrast), "contrast"

    def __init__(self, contrast: float):
        super().__init__(contrast)


class RandomSaturation(_Jitter):
    """x * f + (1 - f) * gray, with f drawn from max(0, 1 - saturation) to 1 + saturation.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomSaturation(0.5)(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (4, 6, 3)
    """

    _change, _argument = staticmethod(nd_image.random_saturation), "saturation"

    def __init__(self, saturation: float):
        super().__init__(saturation)


class RandomHue(_Jitter):
    """Colors turned by f full circles, with f drawn from max(0, 1 - hue) to 1 + hue.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomHue(0.5)(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (4, 6, 3)
    """

    _change, _argument = staticmethod(nd_image.random_hue), "hue"

    def __init__(self, hue: float):
        super().__init__(hue)


class RandomColorJitter(_Transform):
    """Brightness, contrast, saturation and hue changed at random, in a random order.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomColorJitter(brightness=0.5, hue=0.1)(nd.zeros((4, 6, 3), dtype="uint8")).shape
    (4, 6, 3)
    """

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0):
        super().__init__()
        self._strengths = brightness, contrast, saturation, hue
        for name, strength in zip(("brightness", "contrast", "saturation", "hue"), self._strengths, strict=True):
            check_range(self, name, strength, NOT_NEGATIVE)

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.random_color_jitter(x, *self._strengths)


class RandomLighting(_Transform):
    """Noise along the main axes of natural colors, of standard deviation alpha (AlexNet's).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomLighting(0.0)(nd.full((1, 1, 3), 8.0)).asnumpy().tolist()
    [[[8.0, 8.0, 8.0]]]
    """

    def __init__(self, alpha: float):
        super().__init__()
        check_range(self, "alpha", alpha, NOT_NEGATIVE)
        self._alpha = alpha

    def forward(self, x: NDArray) -> NDArray:
        return nd_image.random_lighting(x, self._alpha)


class RandomGray(_Transform):
    """Gray in all channels, with probability p.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> gray = transforms.RandomGray(p=1.0)(nd.array([[[0, 100, 200]]], dtype="uint8"))
    >>> gray.shape, len(set(gray.reshape((-1,)).tolist()))
    ((1, 1, 3), 1)
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        check_range(self, "p", p, FRACTION)
        self._p = p

    def forward(self, x: NDArray) -> NDArray:
        array = image.pixels(x, "RandomGray")
        if random.random() >= self._p:
            return x
        return NDArray(np.repeat(color.gray(array), 3, axis=2), x.context)


class Rotate(_Transform):
    """A float32 image (C, H, W), or a batch, turned clockwise; `zoom_in` or `zoom_out` avoids what black corners hide.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.Rotate(30)(nd.zeros((3, 4, 6))).shape
    (3, 4, 6)

    Raises:
        TypeError: the images are not float32.
    """

    def __init__(self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False):
        super().__init__()
        check_range(self, "rotation_degrees", rotation_degrees)
        self._args = rotation_degrees, zoom_in, zoom_out

    def forward(self, x: NDArray) -> NDArray:
        return image.imrotate(x, *self._args)


class RandomRotation(_Transform):
    """`Rotate` by an angle drawn from between two limits, with probability `rotate_with_proba`.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.RandomRotation((-10, 10))(nd.zeros((3, 4, 6))).shape
    (3, 4, 6)

    Raises:
        ValueError: the limits are not in order, or the probability is none.
    """

    def __init__(
        self,
        angle_limits: tuple[float, float],
        zoom_in: bool = False,
        zoom_out: bool = False,
        rotate_with_proba: float = 1.0,
    ):
        super().__init__()
        _check_each(self, "angle_limits", angle_limits)
        if not angle_limits[0] < angle_limits[1]:
            raise ValueError(
                with_user_location(f"RandomRotation: angle_limits are a lower and an upper limit, not {angle_limits}")
            )
        check_range(self, "rotate_with_proba", rotate_with_proba, FRACTION)
        self._args, self._probability = (angle_limits, zoom_in, zoom_out), rotate_with_proba

    def forward(self, x: NDArray) -> NDArray:
        if np.random.random() > self._probability:
            return x
        return image.random_rotate(x, *self._args)


class RandomApply(Sequential):
    """All of the transforms (a list, or one) with probability p, else none.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> double = transforms.Compose([lambda x: x * 2])
    >>> transforms.RandomApply(double, p=1.0)(nd.array([1.0])).asnumpy().tolist()
    [2.0]
    """

    def __init__(self, transforms: Any, p: float = 0.5):
        super().__init__()
        check_range(self, "p", p, FRACTION)
        self.p = p
        self.add(*(transforms if isinstance(transforms, (list, tuple)) else [transforms]))

    def forward(self, x: NDArray) -> Any:
        return x if self.p < random.random() else super().forward(x)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: transforms run in numpy."""


class HybridRandomApply(HybridCompose):
    """`RandomApply` of hybrid blocks.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon.data.vision import transforms
    >>> transforms.HybridRandomApply([transforms.Cast("int32")], p=1.0)(nd.array([1.0])).asnumpy().tolist()
    [1]
    """

    def __init__(self, transforms: Any, p: float = 0.5):
        super().__init__(transforms if isinstance(transforms, (list, tuple)) else [transforms])
        check_range(self, "p", p, FRACTION)
        self.p = p

    def forward(self, x: NDArray) -> Any:
        return x if self.p < random.random() else super().forward(x)


__all__ = [
    "Cast",
    "CenterCrop",
    "Compose",
    "CropResize",
    "HybridCompose",
    "HybridRandomApply",
    "Normalize",
    "RandomApply",
    "RandomBrightness",
    "RandomColorJitter",
    "RandomContrast",
    "RandomCrop",
    "RandomFlipLeftRight",
    "RandomFlipTopBottom",
    "RandomGray",
    "RandomHue",
    "RandomLighting",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSaturation",
    "Resize",
    "Rotate",
    "ToTensor",
]
