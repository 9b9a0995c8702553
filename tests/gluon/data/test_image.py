"""Images in memory; expected numbers without a formula beside them are those of MXNet 1.9.1."""

from __future__ import annotations

import io
import random
import sys
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import image, nd
from gluongraph.errors import DTypeError, FormatError, MXNetError, TraceError
from gluongraph.gluon import nn

SMALL = (np.arange(20) * 37 % 256).astype(np.uint8).reshape(4, 5, 1)

# interpolation -> (width, height) -> pixels of SMALL resized as bytes
RESIZED: dict[int, dict[tuple[int, int], list[int]]] = {
    0: {
        (3, 3): [0, 37, 111, 185, 222, 40, 114, 151, 225],
        (3, 6): [0, 37, 111, 0, 37, 111, 185, 222, 40, 114, 151, 225, 114, 151, 225, 43, 80, 154],
    },
    1: {
        (3, 3): [43, 62, 124, 162, 96, 72, 67, 129, 162],
        (3, 6): [12, 74, 136, 105, 39, 100, 185, 34, 67, 138, 157, 77, 91, 153, 129, 55, 117, 178],
    },
    2: {
        (3, 3): [40, 61, 128, 192, 96, 56, 61, 130, 167],
        (3, 6): [0, 80, 145, 117, 21, 102, 215, 25, 61, 145, 166, 65, 80, 170, 130, 46, 111, 190],
    },
    3: {
        (3, 3): [61, 69, 115, 164, 121, 78, 76, 135, 156],
        (3, 6): [15, 67, 133, 107, 57, 98, 200, 47, 62, 129, 181, 94, 93, 145, 135, 58, 110, 176],
    },
    4: {
        (3, 3): [40, 55, 132, 204, 95, 56, 55, 136, 168],
        (3, 6): [0, 87, 143, 120, 13, 113, 225, 25, 67, 152, 166, 64, 68, 178, 131, 51, 104, 190],
    },
}
# The same in floating-point numbers, at (3, 3).
EXACT: dict[int, list[float]] = {
    0: [0, 37, 111, 185, 222, 40, 114, 151, 225],
    1: [43.167, 62.167, 123.833, 161.833, 95.5, 71.833, 67.167, 128.833, 162.056],
    2: [39.664, 60.598, 128.051, 191.537, 95.5, 55.759, 61.303, 130.402, 166.59],
    3: [61.05, 69.05, 115.45, 164.3, 121.1, 77.9, 75.55, 134.75, 155.55],
    4: [39.921, 55.37, 132.275, 203.916, 95.5, 56.285, 54.637, 135.63, 168.338],
}


def array(values: Any) -> Any:
    return nd.array(values, dtype=values.dtype)


@pytest.mark.parametrize("interp,size", [(i, size) for i, sizes in RESIZED.items() for size in sizes])
def test_resize_bytes(interp: int, size: tuple[int, int]) -> None:
    found = image.imresize(array(SMALL), *size, interp)
    assert found.shape == (size[1], size[0], 1) and found.dtype == np.uint8
    wrong = np.abs(found.asnumpy().ravel().astype(int) - RESIZED[interp][size])
    assert wrong.max() <= (0 if interp < 2 else 1)  # OpenCV adds the others up in floats where it has vectors


@pytest.mark.parametrize("interp", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resize_floats(interp: int, dtype: Any) -> None:
    found = image.imresize(array(SMALL.astype(dtype)), 3, 3, interp)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.asnumpy().ravel(), EXACT[interp], atol=1e-3)


@pytest.mark.parametrize("interp", range(5))
def test_resize_keeps_what_is_the_same_everywhere(interp: int) -> None:
    for dtype in (np.uint8, np.float32):
        for size in ((1, 1), (9, 2), (5, 4), (31, 17)):
            found = image.imresize(array(np.full((4, 5, 3), 201, dtype)), *size, interp).asnumpy()
            np.testing.assert_allclose(found, np.full((size[1], size[0], 3), 201), rtol=1e-6)


def test_halving_is_the_mean_of_four() -> None:
    values = np.random.RandomState(0).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    mean = values.reshape(3, 2, 4, 2, 3).mean((1, 3))
    for interp in (1, 3):
        assert (image.imresize(array(values), 4, 3, interp).asnumpy() == np.floor(mean + 0.5)).all()


def test_resize_into_another_array_and_by_size() -> None:
    out = nd.zeros((2, 2, 1), dtype="uint8")
    assert image.imresize(array(SMALL), 2, 2, out=out) is out and out.sum().asscalar() > 0
    big, small = (image.imresize(array(SMALL), *size, 9).asnumpy() for size in ((10, 8), (2, 2)))
    assert (big == image.imresize(array(SMALL), 10, 8, 2).asnumpy()).all()
    assert (small == image.imresize(array(SMALL), 2, 2, 3).asnumpy()).all()
    assert image.resize_short(array(SMALL), 8).shape == (8, 10, 1)
    assert image.resize_short(array(SMALL.reshape(5, 4, 1)), 8).shape == (10, 8, 1)


def test_resize_refuses() -> None:
    x = array(SMALL)
    for wrong, message in (((0, 3), "must be positive"), ((3, 3, 7), "no interpolation 7; there are 0 nearest")):
        with pytest.raises(MXNetError, match=message):
            image.imresize(x, *wrong)
    with pytest.raises(MXNetError, match="shape \\(height, width, channels\\), not \\(4, 5\\)"):
        image.imresize(array(SMALL[..., 0]), 2, 2)
    with pytest.raises(DTypeError, match="uint8, float32 or float64, not int32"):
        image.imresize(array(SMALL.astype(np.int32)), 2, 2)

    class Net(nn.HybridSequential):
        def forward(self, x: Any) -> Any:
            return image.imresize(x, 2, 2)

    net = Net()
    net.hybridize()
    with pytest.raises(TraceError, match="imresize works on images in memory"):
        net(array(SMALL.astype(np.float32)))


# -- parts


def test_crops() -> None:
    x = array(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    assert (image.fixed_crop(x, 1, 2, 3, 2).asnumpy() == x.asnumpy()[2:4, 1:4]).all()
    assert image.fixed_crop(x, 1, 2, 3, 2, (6, 5)).shape == (5, 6, 3)
    part, place = image.center_crop(x, (2, 2))
    assert place == (1, 1, 2, 2) and (part.asnumpy() == x.asnumpy()[1:3, 1:3]).all()
    part, place = image.center_crop(x, (8, 4))
    assert place == (0, 1, 4, 2) and part.shape == (4, 8, 3)
    assert image.scale_down((640, 480), (720, 120)) == (640, 106)


def test_random_crops_fall_where_mxnets_do() -> None:
    big = nd.zeros((50, 60, 3), dtype="uint8")
    random.seed(5)
    assert image.random_crop(big, (16, 12))[1] == (39, 16, 16, 12)
    part, place = image.random_size_crop(big, (8, 8), (0.08, 1), (3 / 4, 4 / 3))
    assert place == (8, 0, 52, 44) and part.shape == (8, 8, 3)
    assert image.random_size_crop(big, (8, 8), (1.0, 1.0), (9, 9))[1] == image.center_crop(big, (8, 8))[1]  # none fits


def test_borders() -> None:
    row = array(np.array([[[1], [2], [3]]], np.uint8))
    found = [image.copyMakeBorder(row, 0, 0, 2, 2, type=kind).asnumpy().ravel().tolist() for kind in range(5)]
    assert found == [
        [0, 0, 1, 2, 3, 0, 0],
        [1, 1, 1, 2, 3, 3, 3],
        [2, 1, 1, 2, 3, 3, 2],
        [2, 3, 1, 2, 3, 1, 2],
        [3, 2, 1, 2, 3, 2, 1],
    ]
    colored = image.copyMakeBorder(nd.zeros((1, 1, 3)), 1, 0, 0, 0, values=(1, 2, 3))
    assert colored.tolist() == [[[1, 2, 3]], [[0, 0, 0]]]
    with pytest.raises(MXNetError, match="no border 5"):
        image.copyMakeBorder(row, 1, 1, 1, 1, type=5)


def test_color_normalize_writes_into_its_argument() -> None:
    x = nd.array([[[2.0, 4.0, 6.0]]])
    assert image.color_normalize(x, nd.array([1, 2, 3]), nd.array([1, 2, 1])) is x
    assert x.tolist() == [[[1, 1, 3]]]


TURNED: dict[tuple[bool, bool], list[float]] = {  # zoom_in, zoom_out -> arange(12) as 3x4, turned by 30 degrees
    (False, False): [.2692, 1.3852, 3.9689, 4.5814, 1.201, 4.067, 6.933, 9.799, 3.1292, 7.0311, 8.3385, 3.9546],
    (True, False): [.9255, 2.6311, 4.501, 6.371, 2.6951, 4.565, 6.435, 8.3049, 4.629, 6.499, 8.3689, 9.4765],
    (False, True): [0, .4639, 3.1533, 0, 0, 3.3036, 7.6964, 4.7616, 0, 7.8467, 2.7203, 0],
}  # fmt: skip


def test_rotation() -> None:
    x = nd.array(np.arange(12).reshape(1, 3, 4))
    for zooms, expected in TURNED.items():
        np.testing.assert_allclose(image.imrotate(x, 30, *zooms).asnumpy().ravel(), expected, atol=1e-4)
    square = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    batch = image.imrotate(nd.array(np.stack([square, square])), nd.array([90, 180])).asnumpy()
    np.testing.assert_allclose(batch[0, 0], np.rot90(square[0]), atol=1e-5)
    np.testing.assert_allclose(batch[1, 0], square[0, ::-1, ::-1], atol=1e-5)
    assert (image.random_rotate(x, (-0.0, 0.0)).asnumpy() == x.asnumpy()).all()


def test_rotation_refuses() -> None:
    x = nd.zeros((1, 3, 4))
    with pytest.raises(ValueError, match="exclude one another"):
        image.imrotate(x, 1, True, True)
    with pytest.raises(TypeError, match="float32 images, not uint8"):
        image.imrotate(x.astype("uint8"), 1)
    with pytest.raises(TypeError, match="a single angle"):
        image.imrotate(x, nd.array([1, 2]))
    with pytest.raises(ValueError, match="1 images and 2 angles"):
        image.imrotate(x.expand_dims(0), nd.array([1, 2]))
    with pytest.raises(ValueError, match="takes \\(C, H, W\\)"):
        image.imrotate(nd.zeros((3, 4)), 1)


# -- files


def encoded(values: Any, suffix: str, **how: Any) -> bytes:
    module = pytest.importorskip("PIL.Image", reason="Pillow, which decodes images, is not installed")
    file = io.BytesIO()
    module.fromarray(values).save(file, suffix, **how)
    return file.getvalue()


def test_decoding(tmp_path: Any) -> None:
    rgb = np.random.RandomState(0).randint(0, 256, (6, 5, 3)).astype(np.uint8)
    data = encoded(rgb, "PNG")
    for source in (data, bytearray(data), np.frombuffer(data, np.uint8), nd.array(list(data), dtype="uint8")):
        assert (image.imdecode(source).asnumpy() == rgb).all()
    assert (image.imdecode(data, to_rgb=False).asnumpy() == rgb[..., ::-1]).all()
    gray = image.imdecode(data, flag=0).asnumpy()
    assert gray.shape == (6, 5, 1) and np.abs(gray[..., 0] - rgb @ [0.299, 0.587, 0.114]).max() <= 1
    transparent = np.dstack([rgb, rgb[..., :1]])
    assert (image.imdecode(encoded(transparent, "PNG")).asnumpy() == rgb).all()
    assert (image.imdecode(encoded(gray[..., 0], "PNG")).asnumpy() == gray).all()
    (tmp_path / "a.png").write_bytes(data)
    assert (mx.img.imread(str(tmp_path / "a.png")).asnumpy() == rgb).all()
    out = nd.zeros((6, 5, 3), dtype="uint8")
    assert image.imdecode(data, out=out) is out and (out.asnumpy() == rgb).all()


def test_what_cannot_be_decoded() -> None:
    whole = encoded(np.zeros((20, 20, 3), np.uint8), "PNG")
    for data in (b"", b"no image", whole[: len(whole) // 2]):
        with pytest.raises(FormatError, match="cannot be decoded as an image"):
            image.imdecode(data)
    with pytest.raises(ValueError, match="takes the bytes"):
        image.imdecode("a.png")
    with pytest.raises(ValueError, match=r"1 \(color\), 0 \(gray\)"):
        image.imdecode(whole, flag=2)
    with pytest.raises(MXNetError, match=r"imread: .*'none.png'"):
        image.imread("none.png")


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"needs Pillow: pip install 'gluongraph\[data\]'"):
        image.imdecode(b"some")
