"""Augmenters of mx.image: sizes, values, probabilities, settings as text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from gluongraph import image, nd
from gluongraph.image import color

IMAGE = np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype(np.uint8)
X = nd.array(IMAGE, dtype="uint8")
F = nd.array(IMAGE)


@pytest.mark.parametrize(
    ("augmenter", "shape"),
    [
        (image.ResizeAug(10), (10, 15, 3)),
        (image.ForceResizeAug((7, 9)), (9, 7, 3)),
        (image.RandomCropAug((7, 9)), (9, 7, 3)),
        (image.CenterCropAug((7, 9)), (9, 7, 3)),
        (image.RandomSizedCropAug((7, 9), (0.2, 1.0), (0.5, 2.0)), (9, 7, 3)),
        (image.SequentialAug([image.ResizeAug(10), image.CenterCropAug((8, 8))]), (8, 8, 3)),
    ],
)
def test_sizes(augmenter: image.Augmenter, shape: tuple[int, ...]) -> None:
    made = augmenter(X)
    assert made.shape == shape and made.dtype is np.uint8


def test_the_middle() -> None:
    assert (image.CenterCropAug((10, 6))(X).asnumpy() == IMAGE[7:13, 10:20]).all()


def test_flips_and_gray_with_their_probabilities() -> None:
    assert (image.HorizontalFlipAug(1)(X).asnumpy() == IMAGE[:, ::-1]).all() and image.HorizontalFlipAug(0)(X) is X
    gray = image.RandomGrayAug(1)(X).asnumpy()
    assert (gray == gray[..., :1]).all() and image.RandomGrayAug(0)(X) is X
    random.seed(0)
    flipped = sum(image.HorizontalFlipAug(0.3)(X) is not X for _ in range(400))
    assert flipped / 400 == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize(
    ("augmenter", "change"),
    [
        (image.BrightnessJitterAug(0.5), color.brightness),
        (image.ContrastJitterAug(0.5), color.contrast),
        (image.SaturationJitterAug(0.5), color.saturation),
    ],
)
def test_jitter_draws_from_pythons_random(augmenter: image.Augmenter, change: Callable[..., np.ndarray]) -> None:
    random.seed(3)
    made = augmenter(F).asnumpy()
    random.seed(3)
    np.testing.assert_allclose(made, change(IMAGE.astype(np.float32), 1 + random.uniform(-0.5, 0.5)), rtol=1e-6)


def test_hue_keeps_the_brightness() -> None:
    made = image.HueJitterAug(0.9)(F).asnumpy()
    assert np.abs(made - IMAGE).max() > 1
    np.testing.assert_allclose(made @ color.LUMA, IMAGE.astype(np.float32) @ color.LUMA, atol=1.0)
    np.testing.assert_allclose(image.HueJitterAug(0.0)(F).asnumpy(), IMAGE, atol=1.0)


def test_cast_and_normalize() -> None:
    assert image.CastAug()(X).dtype is np.float32
    made = image.ColorNormalizeAug([1, 2, 3], [2, 2, 4])(F.copy()).asnumpy()
    np.testing.assert_allclose(made, (IMAGE - [1.0, 2, 3]) / [2, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(image.ColorNormalizeAug(None, [2, 2, 4])(F).asnumpy(), IMAGE / [2.0, 2, 4], rtol=1e-6)


def test_lighting_shifts_all_pixels_alike() -> None:
    np.random.seed(0)
    shift = image.LightingAug(5.0, [55.46, 4.794, 1.148], np.eye(3))(F).asnumpy() - IMAGE
    assert np.ptp(shift, axis=(0, 1)) == pytest.approx([0, 0, 0], abs=1e-3) and np.abs(shift).max() > 1


def test_settings_as_text() -> None:
    assert image.CenterCropAug((3, 4)).dumps() == '["centercropaug", {"size": [3, 4], "interp": 2}]'
    both = json.loads(image.SequentialAug([image.CastAug(), image.HorizontalFlipAug(0.5)]).dumps())
    assert both == ["sequentialaug", [["castaug", {"type": "float32"}], ["horizontalflipaug", {"p": 0.5}]]]


def test_the_usual_augmenters() -> None:
    every = image.CreateAugmenter(
        (3, 16, 16),
        resize=20,
        rand_crop=True,
        rand_resize=True,
        rand_mirror=True,
        mean=True,
        std=True,
        brightness=0.1,
        contrast=0.1,
        saturation=0.1,
        hue=0.1,
        pca_noise=0.1,
        rand_gray=0.1,
    )
    assert [type(a).__name__ for a in every] == [
        "ResizeAug",
        "RandomSizedCropAug",
        "HorizontalFlipAug",
        "CastAug",
        "ColorJitterAug",
        "HueJitterAug",
        "LightingAug",
        "RandomGrayAug",
        "ColorNormalizeAug",
    ]
    x = X
    for each in every:
        x = each(x)
    assert x.shape == (16, 16, 3) and x.dtype is np.float32
    assert [type(a).__name__ for a in image.CreateAugmenter((3, 8, 8))] == ["CenterCropAug", "CastAug"]
    with pytest.raises(AssertionError, match="rand_crop"):
        image.CreateAugmenter((3, 8, 8), rand_resize=True)
    with pytest.raises(NotImplementedError, match="__call__"):
        image.Augmenter()(X)
