"""Boxes of detectors: what MXNet 1.9.1 gives for small cases, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, nd
from gluongraph.errors import MXNetError, ShapeError, TraceError

ANCHORS = [[0, 0.1, 0.2, 0.3], [0.15, 0.2, 0.4, 0.4], [0.63, 0.05, 0.88, 0.98], [0.66, 0.45, 0.8, 0.8]]
ANCHORS = nd.array([[*ANCHORS, [0.57, 0.3, 0.92, 0.9]]])
OBJECTS = nd.array([[[0, 0.1, 0.08, 0.52, 0.92], [1, 0.55, 0.2, 0.9, 0.88], [-1] * 5]])
SCORES = nd.array([[[0, 0, 0, 0, 0], [3, 1, 0, 0, 0], [0, 0, 0, 0, 0]]])  # sure of the background: anchor 3, not 0


def near(found: nd.NDArray, expected: Any) -> None:
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=2e-6)


def test_anchors() -> None:
    x = nd.ones((1, 1, 1, 2))
    left = [[0.0625, 0.125, 0.4375, 0.875], [0.125, 0.25, 0.375, 0.75], [-0.015165, 0.234835, 0.515165, 0.765165]]
    right = np.add(left, [0.5, 0, 0.5, 0])
    near(nd.contrib.MultiBoxPrior(x, sizes=[0.75, 0.5], ratios=[1, 2]), [[*left, *right]])
    where = {"steps": (0.5, 0.25), "offsets": (0, 1), "clip": True}
    expected = [[[0.0625, 0, 0.4375, 0.375], [0.3125, 0, 0.6875, 0.375]]]
    near(nd.contrib.MultiBoxPrior(x, sizes=0.75, **where), expected)
    compiled = mx.compile(lambda x: nd.contrib.MultiBoxPrior(x, sizes=[0.75, 0.5], ratios=[1, 2]) + 0 * x.sum())
    near(compiled.predict(x), [[*left, *right]])


def test_targets() -> None:
    offsets, mask, classes = nd.contrib.MultiBoxTarget(ANCHORS, OBJECTS, SCORES)
    first = [1.4, 10, 2.593969, 7.175423, -1.2, 0.268818, 1.682361, -1.565459]
    near(offsets, [[*[0] * 4, *first, *[0] * 4, -0.571428, -1, 0, 0.625816]])
    near(mask, [[0] * 4 + [1] * 8 + [0] * 4 + [1] * 4])
    near(classes, [[0, 1, 2, 0, 2]])
    near(nd.contrib.MultiBoxTarget(ANCHORS, nd.full((2, 1, 5), -1), nd.zeros((2, 3, 5)))[2], np.full((2, 5), -1))


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        ({"negative_mining_ratio": 0.5}, [0, 1, 2, -1, 2]),  # 1.5 negatives are one: the one least sure
        ({"negative_mining_ratio": 0.1}, [-1, 1, 2, -1, 2]),
        ({"negative_mining_ratio": 0.1, "minimum_negative_samples": 1, "ignore_label": -7.0}, [0, 1, 2, -7, 2]),
        ({"negative_mining_ratio": 0.5, "negative_mining_thresh": 0.01}, [-1, 1, 2, -1, 2]),
        ({"overlap_threshold": 0.9}, [0, 1, 0, 0, 2]),  # each object has its best anchor, whatever the threshold
    ],
)
def test_which_anchors_are_background(options: Any, classes: Any) -> None:
    near(nd.contrib.MultiBoxTarget(ANCHORS, OBJECTS, SCORES, **options)[2], [classes])


BOXES = [[0.1, 0.08, 0.52, 0.92], [0.08, 0.2, 0.56, 0.95], [0.15, 0.3, 0.62, 0.91], [0.55, 0.2, 0.9, 0.88]]
PROBABLE = nd.array([[[0] * 4, [0.9, 0.8, 0.7, 0.1], [0.1, 0.2, 0.3, 0.9]]])


def detected(anchors: Any, **options: Any) -> nd.NDArray:
    return nd.contrib.MultiBoxDetection(PROBABLE, nd.array([[0] * 8 + [1, 2, 0, 0.5] + [0] * 4]), anchors, **options)


def test_detections() -> None:
    best = [[0, 0.9, *BOXES[0]], [1, 0.9, *BOXES[3]]]
    moved = [0, 0.7, 0.197, 0.389923, 0.667, 1]
    near(detected(nd.array([BOXES])), [[*best, [-1, 0.8, *BOXES[1]], moved]])
    near(detected(nd.array([BOXES]), threshold=0.75), [[*best, [-1, 0.8, *BOXES[1]], [-1] * 6]])
    assert detected(nd.array([BOXES]), clip=False).asnumpy().max() > 1
    assert detected(nd.array([BOXES]), nms_topk=1).asnumpy()[0, :, 0].tolist() == [0, -1, -1, -1]
    assert detected(nd.array([BOXES]), nms_threshold=-1.0).asnumpy()[0, :, 0].tolist() == [0, 1, 0, 0]
    assert detected(nd.array([BOXES]), background_id=2).asnumpy()[0, 0, 0] == 1, (
        "classes 0 and 1, of which 0 is nowhere"
    )


ROWS = nd.array(
    [
        [0, 0.5, 0.1, 0.1, 0.2, 0.2],
        [1, 0.4, 0.1, 0.1, 0.2, 0.2],
        [0, 0.3, 0.1, 0.1, 0.14, 0.14],
        [2, 0.6, 0.5, 0.5, 0.7, 0.8],
    ]
)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"overlap_thresh": 0.1, "id_index": 0, "force_suppress": True}, [3, 0]),
        ({"overlap_thresh": 0.1, "id_index": 0}, [3, 0, 1]),
        ({"overlap_thresh": 0.1, "id_index": 0, "background_id": 2}, [0, 1]),
        ({"overlap_thresh": 0.1}, [3, 0]),
        ({"overlap_thresh": 0.5}, [3, 0, 2]),
        ({"topk": 2}, [3, 0]),
        ({"valid_thresh": 0.5}, [3]),
    ],
)
def test_which_boxes_are_left(options: Any, left: list[int]) -> None:
    rows = ROWS.copy()
    rows.attach_grad()
    with autograd.record():
        found = nd.contrib.box_nms(rows, **options)
    near(found, [*(ROWS.asnumpy()[i] for i in left), *[[-1] * 6] * (4 - len(left))])
    found.backward(nd.arange(1, 5).reshape((4, 1)).broadcast_to((4, 6)))
    slopes = [left.index(i) + 1 if i in left else 0 for i in range(4)]
    near(rows.grad, np.repeat(np.reshape(slopes, (4, 1)), 6, 1))


def test_boxes_around_centres_and_more_axes() -> None:
    boxes = ROWS.asnumpy()[:, 2:]
    around = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    rows = nd.array(np.concatenate([ROWS.asnumpy()[:, :2], around], 1)[None, None])
    found = nd.contrib.box_nms(rows, 0.1, in_format="center", out_format="center")
    assert found.shape == (1, 1, 4, 6) and found.asnumpy()[0, 0, :, 0].tolist() == [2, 0, -1, -1]


def test_what_is_refused() -> None:
    with pytest.raises(
        ShapeError, match=r"MultiBoxTarget: .*not \(1, 5, 4\), \(1, 3, 5\), \(1, 5, 3\)(.|\n)*transpose"
    ):
        nd.contrib.MultiBoxTarget(ANCHORS, OBJECTS, SCORES.transpose((0, 2, 1)))
    with pytest.raises(ShapeError, match="MultiBoxDetection"):
        detected(ANCHORS)
    with pytest.raises(MXNetError, match=r"box_nms: in_format(.|\n)*help"):
        nd.contrib.box_nms(ROWS, out_format="center")
    with pytest.raises(TraceError, match="of a traced value"):
        mx.compile(nd.contrib.box_nms).predict(ROWS)
