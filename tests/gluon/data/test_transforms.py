"""Transforms of images; expected numbers without a formula beside them are those of MXNet 1.9.1."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, nd
from gluongraph.errors import DTypeError, MXNetError, ShapeError, TraceError
from gluongraph.gluon import nn
from gluongraph.gluon.data import DataLoader, SimpleDataset
from gluongraph.gluon.data.vision import transforms

X = np.random.RandomState(0).randint(0, 256, (12, 10, 3)).astype(np.uint8)
F = (X.astype(np.float32) / 255).transpose(2, 0, 1).copy()
ROW = (np.arange(72) * 29 % 256).astype(np.uint8).reshape(4, 6, 3)[:1, :2]


def array(values: Any) -> Any:
    return nd.array(values, dtype=values.dtype)


def test_to_tensor() -> None:
    for values in (X, np.stack([X, X[::-1]])):
        found = transforms.ToTensor()(array(values))
        assert found.dtype == np.float32
        expected = np.moveaxis(values, -1, -3).astype(np.float32) / np.float32(255)
        assert (found.asnumpy() == expected).all()
    with pytest.raises(ShapeError, match="has the axes"):
        transforms.ToTensor()(nd.zeros((2, 2)))


def test_normalize() -> None:
    for values in (F, np.stack([F, F])):
        found = transforms.Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))(array(values)).asnumpy()
        mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
        assert (found == (values - mean) / std).all()
    assert (transforms.Normalize(0.5, 2)(array(F)).asnumpy() == (F - np.float32(0.5)) / 2).all()
    with pytest.raises(DTypeError, match="use to_tensor"):
        transforms.Normalize()(array(X.transpose(2, 0, 1)))
    with pytest.raises(ShapeError, match="of 1 or 3 channels"):
        transforms.Normalize()(nd.zeros((4, 2, 2)))
    with pytest.raises(ShapeError, match="std has 2 numbers, the images 3"):
        transforms.Normalize(0, (1, 2))(array(F))


def test_sizes() -> None:
    x, batch = array(X), array(np.stack([X, X[::-1]]))
    assert transforms.Resize(6)(x).shape == (6, 6, 3) and transforms.Resize((7, 5))(x).shape == (5, 7, 3)
    assert transforms.Resize(5, keep_ratio=True)(x).shape == (6, 5, 3)
    assert transforms.Resize((7, 5))(batch).shape == (2, 5, 7, 3)
    assert (transforms.CenterCrop((4, 6))(x).asnumpy() == X[3:9, 3:7]).all()
    assert transforms.CenterCrop(20)(x).shape == (20, 20, 3)
    assert (transforms.CropResize(1, 2, 3, 4)(batch).asnumpy()[0] == X[2:6, 1:4]).all()
    assert transforms.CropResize(1, 2, 3, 4, (8, 9), 1)(x).shape == (9, 8, 3)
    with pytest.raises(ShapeError, match=r"9x4 at \(2, 0\) is not within 10x12"):
        transforms.CropResize(2, 0, 9, 4)(x)
    with pytest.raises(MXNetError, match=r"a number or \(width, height\)"):
        transforms.Resize((1, 2, 3))(x)


def test_random_crops() -> None:
    random.seed(1)
    padded = np.pad(X, ((2, 2), (2, 2), (0, 0)), constant_values=7)
    parts = {padded[y : y + 8, x : x + 6].tobytes() for y in range(9) for x in range(9)}
    crop = transforms.RandomCrop((6, 8), pad=2, pad_value=7)
    found = [crop(array(X)).asnumpy() for _ in range(10)]
    assert all(each.shape == (8, 6, 3) and each.tobytes() in parts for each in found)
    assert len({each.tobytes() for each in found}) > 3
    assert transforms.RandomCrop(20)(array(X)).shape == (20, 20, 3)
    assert transforms.RandomResizedCrop((5, 4), interpolation=2)(array(X)).shape == (4, 5, 3)
    with pytest.raises(ValueError, match="RandomCrop: pad is a number or"):
        transforms.RandomCrop(4, pad=(1, 2))


FLIPS: list[tuple[Callable[[float], Any], Any]] = [
    (transforms.RandomFlipLeftRight, X[:, ::-1]),
    (transforms.RandomFlipTopBottom, X[::-1]),
]


@pytest.mark.parametrize("flip,flipped", FLIPS)
def test_flips(flip: Callable[[float], Any], flipped: Any) -> None:
    assert (flip(1.0)(array(X)).asnumpy() == flipped).all()
    assert (flip(0.0)(array(X)).asnumpy() == X).all()
    mx.random.seed(3)
    turns = [(flip(0.5)(array(X)).asnumpy() == flipped).all() for _ in range(20)]
    assert 3 < sum(turns) < 17


def test_middle_rows_and_columns_of_odd_images_stay() -> None:
    """MXNet 1.9.1 leaves them uninitialized."""
    odd = array(np.arange(27, dtype=np.uint8).reshape(3, 3, 3))
    assert (nd.image.flip_left_right(odd).asnumpy() == odd.asnumpy()[:, ::-1]).all()
    assert (nd.image.flip_top_bottom(odd).asnumpy() == odd.asnumpy()[::-1]).all()


COLORS: list[tuple[str, float, list[int]]] = [
    ("random_brightness", 1.5, [0, 43, 87, 130, 174, 217]),
    ("random_contrast", 0.5, [33, 48, 62, 77, 91, 106]),
    ("random_saturation", 1.0, ROW.ravel().tolist()),
    ("random_hue", 0.25, [58, 0, 57, 145, 87, 144]),
]


@pytest.mark.parametrize("name,factor,expected", COLORS)
def test_colors(name: str, factor: float, expected: list[int]) -> None:
    """A range of one factor leaves nothing to chance. MXNet's hue is one less where it cuts 57.9999 off to 57."""
    found = getattr(nd.image, name)(array(ROW), factor, factor).asnumpy()
    assert found.dtype == np.uint8 and np.abs(found.ravel().astype(int) - expected).max() <= (name == "random_hue")


def test_color_formulas() -> None:
    f = X.astype(np.float32)
    luma = f @ np.array([0.299, 0.587, 0.114], np.float32)
    expected = {
        "random_brightness": f * 1.25,
        "random_contrast": f * 1.25 - 0.25 * luma.mean(),
        "random_saturation": f * 1.25 - 0.25 * luma[..., None],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(nd.image, name)(array(f), 1.25, 1.25).asnumpy(), values, atol=1e-3)
    turned = nd.image.random_hue(array(f), 1 / 3, 1 / 3).asnumpy()
    np.testing.assert_allclose(turned, f[..., [2, 0, 1]], atol=1e-3)  # a third of the circle: red becomes green
    alpha = np.array([0.1, -0.2, 0.3])
    axes = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    lit = nd.image.adjust_lighting(array(f), tuple(alpha)).asnumpy()
    np.testing.assert_allclose(lit, f + (axes * [55.46, 4.794, 1.148]) @ alpha, rtol=1e-5)


GRAY_STAYS = ["random_saturation", "random_hue"]


def test_gray_images() -> None:
    gray = array(X[..., :1])
    for name in GRAY_STAYS:
        assert (getattr(nd.image, name)(gray, 0.5, 0.5).asnumpy() == gray.asnumpy()).all()
    assert (nd.image.adjust_lighting(gray, (1, 1, 1)).asnumpy() == gray.asnumpy()).all()
    contrasted = nd.image.random_contrast(gray.astype("float32"), 0.0, 0.0).asnumpy()
    np.testing.assert_allclose(contrasted, X[..., 0].mean(), rtol=1e-6)


RANDOM: list[Any] = [
    transforms.RandomBrightness(0.5),
    transforms.RandomContrast(0.5),
    transforms.RandomSaturation(0.5),
    transforms.RandomHue(0.3),
    transforms.RandomColorJitter(0.5, 0.5, 0.5, 0.3),
    transforms.RandomLighting(0.5),
]


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: type(t).__name__)
def test_random_colors_follow_the_seed(transform: Any) -> None:
    found = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        made = transform(array(X))
        assert made.shape == X.shape and made.dtype == np.uint8
        found.append(made.asnumpy())
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any() and (found[0] != X).any()


def test_ranges_of_factors() -> None:
    white = array(np.full((1, 1, 3), 100, np.float32))
    factors = [transforms.RandomBrightness(0.25)(white).asnumpy()[0, 0, 0] / 100 for _ in range(50)]
    assert 0.75 <= min(factors) < 0.85 and 1.15 < max(factors) <= 1.25
    with pytest.raises(MXNetError, match="factors from 0 up, not from -1 to 1"):
        nd.image.random_brightness(white, -1, 1)
    assert (transforms.RandomColorJitter()(white).asnumpy() == 100).all()


def test_random_gray_and_apply() -> None:
    gray = transforms.RandomGray(1.0)(array(X)).asnumpy()
    assert gray.dtype == np.uint8 and np.abs(gray - (X @ [0.299, 0.587, 0.114])[..., None]).max() <= 1
    assert (transforms.RandomGray(0.0)(array(X)).asnumpy() == X).all()
    for kind in (transforms.RandomApply, transforms.HybridRandomApply):
        for given in (transforms.Cast("float64"), [transforms.Cast("float64")]):
            assert kind(given, p=1.0)(array(X)).dtype == np.float64
            assert kind(given, p=0.0)(array(X)).dtype == np.uint8


def test_rotations() -> None:
    x = array(F)
    assert (transforms.Rotate(0)(x).asnumpy() == F).all()
    np.testing.assert_allclose(transforms.Rotate(180)(x).asnumpy(), F[:, ::-1, ::-1], atol=1e-4)
    assert transforms.RandomRotation((-30, 30), zoom_in=True)(x).shape == F.shape
    assert transforms.RandomRotation((-30, 30), rotate_with_proba=0.0)(x) is x
    with pytest.raises(TypeError, match="use it after ToTensor"):
        transforms.Rotate(10)(array(X))
    with pytest.raises(ValueError, match="a lower and an upper limit"):
        transforms.RandomRotation((30, -30))
    with pytest.raises(ValueError, match="rotate_with_proba must be from 0 to 1, not 2"):
        transforms.RandomRotation((-30, 30), rotate_with_proba=2)


def test_compose() -> None:
    steps = [transforms.Resize(8), transforms.RandomFlipLeftRight(), lambda x: x, transforms.ToTensor()]
    chain = transforms.Compose(steps)
    assert len(steps) == 4 and chain(array(X)).shape == (3, 8, 8)
    hybrid = transforms.HybridCompose([transforms.CenterCrop(8), transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
    for each in (chain, hybrid):
        each.hybridize()  # nothing is compiled, whatever sizes images have
        assert each(array(X[:9])).shape == (3, 8, 8)
    with pytest.raises(ValueError, match="must be hybrid blocks"):
        transforms.HybridCompose([nn.Sequential()])


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_loader(workers: int) -> None:
    chain = transforms.Compose(
        [transforms.RandomResizedCrop(8), transforms.RandomColorJitter(0.1, 0.1, 0.1, 0.1), transforms.ToTensor()]
    )
    data = SimpleDataset([(array(X), 1)] * 4).transform_first(chain)
    ((images, labels),) = DataLoader(data, batch_size=4, num_workers=workers)
    assert images.shape == (4, 3, 8, 8) and labels.tolist() == [1] * 4
    assert len({x.asnumpy().tobytes() for x in images}) == 4


def test_in_a_network() -> None:
    """ToTensor, Normalize, Cast, fixed crops and flips are operators; the others say where their place is."""
    net = nn.HybridSequential()
    net.add(transforms.CropResize(0, 0, 8, 8), transforms.ToTensor(), transforms.Normalize(0.5, 0.25))
    x = array(X)
    expected = net(x).asnumpy()
    assert (expected == (F[:, :8, :8] - np.float32(0.5)) / np.float32(0.25)).all()
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-6)
    for transform in (
        transforms.Resize(4),
        transforms.RandomFlipLeftRight(),
        transforms.RandomHue(0.1),
        transforms.RandomLighting(1),
    ):
        net = nn.HybridSequential()
        net.add(transform)
        net.hybridize()
        with pytest.raises(TraceError, match="apply it in the dataset's transform"):
            net(x)


def test_gradients_flow_through_normalize() -> None:
    x = array(F)
    x.attach_grad()
    with autograd.record():
        y = transforms.Normalize(0.5, 0.25)(x)
    y.backward()
    assert (x.grad.asnumpy() == 4).all()
