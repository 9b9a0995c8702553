"""ROIAlign and RROIAlign: against their formula point by point, gradients against differences, in compiled code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, gluon, nd
from gluongraph.errors import IndexRangeError, MXNetError, ShapeError
from gluongraph.test_utils import check_numeric_gradient

RNG = np.random.default_rng(3)
IMAGES = RNG.standard_normal((2, 12, 9, 11))
BOXES = np.array([[0, 5, 6, 80, 70], [1, -30, -9, 300, 90], [1, 20, 20, 21, 21], [-1, 0, 0, 5, 5], [0, 60, 40, 90, 71]])
TURNED = np.array([[0, 40, 30, 60, 20, 30], [1, 80, 60, 200, 5, 90], [1, 10, 10, 30, 60, -45], [-2, 9, 9, 9, 9, 0]])
BINS, SCALE = (2, 3), 1 / 8


def at(image: np.ndarray, y: float, x: float) -> Any:
    """The value of all channels between pixels; within a pixel of the image that of its edge, beyond it 0."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    rows, columns = 1 - np.minimum(abs(np.arange(height) - y), 1), 1 - np.minimum(abs(np.arange(width) - x), 1)
    return np.einsum("chw,h,w->c", image, rows, columns)


def pooled(images: np.ndarray, image: int, center: Any, size: Any, degrees: float, ratio: int) -> np.ndarray:
    """The bins of one region, by its center and size as (y, x)."""
    found = np.zeros((images.shape[1], *BINS))
    if image < 0:
        return found
    count = [ratio if ratio > 0 else math.ceil(s / b) for s, b in zip(size, BINS, strict=True)]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    for k in np.ndindex(*BINS):
        for i in np.ndindex(*count):
            dy, dx = ((k[a] + (i[a] + 0.5) / count[a]) * size[a] / BINS[a] - size[a] / 2 for a in (0, 1))
            point = center[0] + dy * cosine - dx * sine, center[1] + dx * cosine + dy * sine
            found[(slice(None), *k)] += at(images[image], *point) / math.prod(count)
    return found


def aligned_boxes(ratio: int, aligned: bool) -> np.ndarray:
    found = []
    for image, x0, y0, x1, y1 in BOXES:
        start = np.array([y0, x0]) * SCALE - 0.5 * aligned
        size = np.array([y1 - y0, x1 - x0]) * SCALE
        size = size if aligned else np.maximum(size, 1)
        found.append(pooled(IMAGES, int(image), start + size / 2, size, 0, ratio))
    return np.stack(found)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 1, 2, 3])
def test_boxes(ratio: int, aligned: bool) -> None:
    given = nd.array(IMAGES, dtype="float64"), nd.array(BOXES, dtype="float64")
    found = nd.contrib.ROIAlign(*given, BINS, SCALE, sample_ratio=ratio, aligned=aligned).asnumpy()
    expected = aligned_boxes(ratio, aligned)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    own = nd.contrib.ROIAlign(*given, BINS, SCALE, ratio, position_sensitive=True, aligned=aligned).asnumpy()
    for k in np.ndindex(2, *BINS):
        np.testing.assert_allclose(
            own[(slice(None), *k)], expected[:, k[0] * 6 + k[1] * 3 + k[2], k[1], k[2]], atol=1e-12
        )


@pytest.mark.parametrize("ratio", [-1, 2])
def test_turned_boxes(ratio: int) -> None:
    given = nd.array(IMAGES, dtype="float64"), nd.array(TURNED, dtype="float64")
    found = nd.contrib.RROIAlign(*given, BINS, SCALE, sampling_ratio=ratio).asnumpy()
    expected = []
    for image, x, y, w, h, degrees in TURNED:
        size = np.maximum(np.array([h, w]) * SCALE, 1)
        expected.append(pooled(IMAGES, int(image), np.array([y, x]) * SCALE, size, degrees, ratio))
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-12)


def test_gradients() -> None:
    boxes, turned = nd.array(BOXES[:3], dtype="float64"), nd.array(TURNED[:3], dtype="float64")
    images = IMAGES[:, :2, :4, :5]
    check_numeric_gradient(lambda x: nd.contrib.ROIAlign(x, boxes, BINS, SCALE), [images], dtype=np.float64)
    check_numeric_gradient(lambda x: nd.contrib.RROIAlign(x, turned, BINS, SCALE, 2), [images], dtype=np.float64)
    boxes.attach_grad()
    x = nd.array(images, dtype="float64")
    x.attach_grad()
    with autograd.record():
        y = nd.contrib.ROIAlign(x, boxes, BINS, SCALE, 2)
    y.backward()
    assert x.grad.asnumpy().any() and not boxes.grad.asnumpy().any()


def test_in_compiled_code() -> None:
    x, boxes, turned = nd.array(IMAGES), nd.array(BOXES), nd.array(TURNED)
    block = gluon.nn.HybridLambda(
        lambda F, x, a, b: (F.contrib.ROIAlign(x, a, BINS, SCALE, 2), F.contrib.RROIAlign(x, b, BINS, SCALE, 2))
    )
    eager = block(x, boxes, turned)
    block.hybridize()
    for found, expected in zip(block(x, boxes, turned), eager, strict=True):
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), atol=1e-5)


def test_errors() -> None:
    x, boxes = nd.array(IMAGES), nd.array(BOXES)
    with pytest.raises(IndexRangeError, match="ROIAlign: image 2"):
        nd.contrib.ROIAlign(x, boxes + nd.array([[2, 0, 0, 0, 0]]), BINS, SCALE, 2)
    with pytest.raises(ShapeError, match=r"rois \(R, 5\) are needed"):
        nd.contrib.ROIAlign(x, nd.array(TURNED), BINS, SCALE)
    with pytest.raises(ShapeError, match="12 channels are not divided by 5 x 1 bins"):
        nd.contrib.ROIAlign(x, boxes, (5, 1), SCALE, 2, position_sensitive=True)
    with pytest.raises(MXNetError, match="two positive numbers"):
        nd.contrib.RROIAlign(x, nd.array(TURNED), (0, 1), SCALE)
    block = gluon.nn.HybridLambda(lambda F, x, b: F.contrib.ROIAlign(x, b, BINS, SCALE))
    block.hybridize()
    with pytest.warns(UserWarning, match="how many points a bin has"):
        found = block(x, boxes)
    np.testing.assert_allclose(found.asnumpy(), aligned_boxes(-1, False), atol=1e-5)
