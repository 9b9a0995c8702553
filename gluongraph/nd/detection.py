"""Boxes of detectors, as SSD has them: `nd.contrib.MultiBoxPrior`, `MultiBoxTarget`, `MultiBoxDetection`, `box_nms`.

Which anchor goes with which object, and which box is suppressed, is decided by looking at values: but for the anchors
themselves, which are made of shapes alone, these functions run in eager mode, and raise in a trace. Boxes are
(left, top, right, bottom) in parts of the image. Liu and others, SSD: Single Shot MultiBox Detector, 2016; the formulas
are those of MXNet 1.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.nd.function import function
from gluongraph.ndarray import NDArray, invoke

Values = np.ndarray[Any, Any]
VARIANCES = (0.1, 0.1, 0.2, 0.2)
LEAST = 1e-6  # an anchor that overlaps less is nobody's best one


def _prior(
    data: Node,
    sizes: float | Sequence[float] = (1.0,),
    ratios: float | Sequence[float] = (1.0,),
    clip: bool = False,
    steps: Sequence[float] = (-1.0, -1.0),
    offsets: Sequence[float] = (0.5, 0.5),
) -> Node:
    """Anchors of shape (1, height * width * (sizes + ratios - 1), 4) around every pixel of data (N, C, height, width).

    Of each pixel they are all sizes with the first ratio, then the first size with the other ratios. A size is in parts
    of the image's height, a ratio width over height; `steps` and `offsets` say (y, x) how far the centres are apart and
    where the first ones lie, in pixels of data; by default they fill the image.
    """
    height, width = data.shape[2:]
    extents, roots = np.atleast_1d(sizes), np.sqrt(np.atleast_1d(ratios))
    chosen = [(size, roots[0]) for size in extents] + [(extents[0], root) for root in roots[1:]]
    half = np.array([(size * height / width * ratio, size / ratio) for size, ratio in chosen]) / 2
    step = [given if given > 0 else 1 / extent for given, extent in zip(steps, (height, width), strict=True)]
    y, x = ((np.arange(extent) + first) * by for extent, first, by in zip((height, width), offsets, step, strict=True))
    centre = np.stack(np.broadcast_arrays(x[None, :, None], y[:, None, None]), axis=-1)
    boxes = np.concatenate([centre - half, centre + half], axis=-1).reshape(1, -1, 4)
    return ops.literal((boxes.clip(0, 1) if clip else boxes).astype(numpy_dtype(data.dtype)))


MultiBoxPrior = function(_prior, name="MultiBoxPrior")


def MultiBoxTarget(
    anchor: NDArray,
    label: NDArray,
    cls_pred: NDArray,
    overlap_threshold: float = 0.5,
    ignore_label: float = -1.0,
    negative_mining_ratio: float = -1.0,
    negative_mining_thresh: float = 0.5,
    minimum_negative_samples: int = 0,
    variances: Sequence[float] = VARIANCES,
) -> list[NDArray]:
    """What a detector is trained for: offsets (N, anchors * 4), their mask of 0 and 1, and classes (N, anchors).

    `anchor` is (1, anchors, 4); `label` (N, objects, 5) has a class and a box a row, and -1 behind the last object;
    `cls_pred` (N, classes + 1, anchors) is read by mining alone. Each object gets the anchor that overlaps it most, and
    all that do by more than `overlap_threshold`; the others are background, class 0. With a `negative_mining_ratio`,
    only so many of them for each anchor with an object are: those least sure to be background; the rest is ignored.
    """
    count = anchor.size // 4
    fits = anchor.shape == (1, count, 4) and label.ndim == 3 and label.shape[2] >= 5
    if not fits or cls_pred.shape[::2] != (len(label), count):
        _refuse(
            "MultiBoxTarget: (1, anchors, 4), (N, objects, 5) and (N, classes + 1, anchors)", anchor, label, cls_pred
        )
    anchors, labels, scores = anchor.asnumpy()[0], label.asnumpy(), cls_pred.asnumpy()
    offsets, mask = np.zeros((2, len(labels), count, 4), labels.dtype)
    classes = np.full((len(labels), count), ignore_label, labels.dtype)
    for n, rows in enumerate(labels):
        ends = np.flatnonzero(rows[:, 0] == -1)
        objects = rows[: ends[0]] if ends.size else rows
        if not len(objects):
            continue  # an image without objects teaches nothing, as in MXNet
        overlaps = _overlaps(anchors, objects[:, 1:5])
        match, positive = _matched(overlaps, overlap_threshold)
        negative = ~positive
        if negative_mining_ratio > 0:
            many = min(int(positive.sum() * negative_mining_ratio), int(negative.sum()))
            many = max(many, minimum_negative_samples)
            negative = _mined(scores[n], negative & (overlaps.max(1) < negative_mining_thresh), many)
        classes[n, negative] = 0
        classes[n, positive] = objects[match[positive], 0] + 1
        mask[n, positive] = 1
        offsets[n, positive] = _encoded(anchors[positive], objects[match[positive], 1:5], variances)
    flat = (len(labels), count * 4)
    return [NDArray(a, label.context) for a in (offsets.reshape(flat), mask.reshape(flat), classes)]


def MultiBoxDetection(
    cls_prob: NDArray,
    loc_pred: NDArray,
    anchor: NDArray,
    clip: bool = True,
    threshold: float = 0.01,
    background_id: int = 0,
    nms_threshold: float = 0.5,
    force_suppress: bool = False,
    variances: Sequence[float] = VARIANCES,
    nms_topk: int = -1,
) -> NDArray:
    """What a detector has found: rows (class, score, left, top, right, bottom) of shape (N, anchors, 6), best first.

    `cls_prob` is (N, classes + 1, anchors), `loc_pred` (N, anchors * 4), `anchor` (1, anchors, 4). Classes count
    without the background. A row whose class is -1 is none: its score is below `threshold`, or it overlaps a better
    one of its class (with `force_suppress`, of any) by more than `nms_threshold`.
    """
    count = anchor.size // 4
    many = (len(cls_prob), count)
    if cls_prob.shape[::2] != many or loc_pred.shape != (many[0], count * 4) or anchor.shape != (1, count, 4):
        _refuse(
            "MultiBoxDetection: (N, classes + 1, anchors), (N, anchors * 4), (1, anchors, 4)",
            cls_prob,
            loc_pred,
            anchor,
        )
    scores, anchors = cls_prob.asnumpy(), anchor.asnumpy()[0]
    deltas = loc_pred.asnumpy().reshape(len(scores), -1, 4)
    found = np.full((len(scores), len(anchors), 6), -1, scores.dtype)
    for n, (probable, delta) in enumerate(zip(scores, deltas, strict=True)):
        others = np.delete(probable, background_id, 0)
        best, score = others.argmax(0), others.max(0)
        kept = np.flatnonzero(score >= threshold)
        boxes = _decoded(anchors[kept], delta[kept], variances)
        boxes = boxes.clip(0, 1) if clip else boxes
        rows = np.column_stack([best[kept], score[kept], boxes])
        rows = rows[np.argsort(-rows[:, 1], kind="stable")]
        if 0 < nms_threshold <= 1 and len(rows):
            rows[nms_topk if nms_topk > 0 else len(rows) :, 0] = -1
            same = None if force_suppress else rows[:, 0]
            rows[~_kept(rows[:, 2:], same, nms_threshold) | (rows[:, 0] < 0), 0] = -1
        found[n, : len(rows)] = rows
    return NDArray(found, cls_prob.context)


def box_nms(
    data: NDArray,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    out_format: str = "corner",
) -> NDArray:
    """The rows (..., boxes, width) that no better one overlaps by more than `overlap_thresh`, best first; then -1.

    `coord_start`, `score_index` and `id_index` say where a row has its box, its score and its class. Left out are rows
    with a score up to `valid_thresh`, those of class `background_id`, and all behind the first `topk`. Gradients go to
    the rows that are left.
    """
    if in_format != out_format or in_format not in ("corner", "center"):
        message = f"box_nms: in_format and out_format are both 'corner' or both 'center', not {in_format}, {out_format}"
        raise MXNetError(with_user_location(message, help="convert the boxes before, by arithmetic on their columns"))
    shape, values = data.shape, data.asnumpy().reshape(-1, *data.shape[-2:])
    where = np.zeros(values.shape[:2], np.int64)  # of each row of the result, its place in data
    there = np.zeros((*values.shape[:2], 1), bool)
    for n, rows in enumerate(values):
        valid = rows[:, score_index] > valid_thresh
        if id_index >= 0 and background_id >= 0:
            valid &= rows[:, id_index] != background_id
        order = np.flatnonzero(valid)
        order = order[np.argsort(-rows[order, score_index], kind="stable")][: topk if topk > 0 else None]
        boxes = _corners(rows[order, coord_start : coord_start + 4], in_format)
        same = None if force_suppress or id_index < 0 else rows[order, id_index]
        order = order[_kept(boxes, same, overlap_thresh)]
        where[n, : len(order)] = order + n * len(rows)
        there[n, : len(order)] = True
    places, present = NDArray(where, data.context), NDArray(there, data.context)
    return invoke(_picked, data.reshape((-1, shape[-1])), places, present).reshape(shape)


def _picked(rows: Node, places: Node, present: Node) -> Node:
    """The rows at the places, and -1 where there is none."""
    picked = ops.take(rows, places, axis=0)
    return ops.where(ops.expand(present, picked.shape), picked, -1.0)


def _refuse(wanted: str, *arrays: NDArray) -> NoReturn:
    shapes = ", ".join(str(array.shape) for array in arrays)
    raise ShapeError(
        with_user_location(f"{wanted} are wanted, not {shapes}", help="transpose or reshape what a predictor gives")
    )


# -- boxes as numpy arrays


def _corners(boxes: Values, format: str) -> Values:
    """Boxes by their corners, given so or as (x, y, width, height) around their centres."""
    if format == "corner":
        return boxes
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


def _centre_and_size(boxes: Values) -> tuple[Values, Values]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def _overlaps(a: Values, b: Values) -> Values:
    """Intersection over union of each box of a with each of b; 0 where the union is empty."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = (high - low).clip(0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (a, b)]
    union = areas[0][:, None] + areas[1][None] - common
    ratio: Values = np.where(union > 0, common / np.where(union > 0, union, 1), 0)
    return ratio


def _encoded(anchors: Values, boxes: Values, variances: Sequence[float]) -> Values:
    """How far boxes are from anchors and how much larger, in their sizes and divided by the variances."""
    (at, size), (to, wanted) = _centre_and_size(anchors), _centre_and_size(boxes)
    offsets: Values = np.concatenate([(to - at) / size, np.log(wanted / size)], axis=-1) / np.asarray(variances)
    return offsets


def _decoded(anchors: Values, offsets: Values, variances: Sequence[float]) -> Values:
    """The boxes that are so far from the anchors: `_encoded` undone."""
    at, size = _centre_and_size(anchors)
    offsets = offsets * np.asarray(variances)
    centre, half = at + offsets[..., :2] * size, np.exp(offsets[..., 2:]) * size / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


# -- who goes with whom


def _matched(overlaps: Values, threshold: float) -> tuple[Values, Values]:
    """For each anchor its object, and whether it counts as one with an object, by overlaps (anchors, objects)."""
    match, positive = overlaps.argmax(1), np.zeros(len(overlaps), bool)
    if threshold > 0:
        positive = overlaps.max(1) > threshold
    left = overlaps.copy()
    for _ in range(overlaps.shape[1]):  # the best pair of those that are left, until each object has an anchor
        anchor, thing = np.unravel_index(left.argmax(), left.shape)
        if left[anchor, thing] <= LEAST:
            break
        match[anchor], positive[anchor] = thing, True
        left[anchor], left[:, thing] = -1, -1
    return match, positive


def _mined(scores: Values, candidates: Values, many: int) -> Values:
    """Of the candidates those that are least sure to be background, class 0 of scores (classes, anchors)."""
    likely = np.exp(scores - scores.max(0))
    background = (likely[0] / likely.sum(0))[candidates]
    chosen = np.zeros(len(candidates), bool)
    chosen[np.flatnonzero(candidates)[np.argsort(background, kind="stable")[:many]]] = True
    return chosen


def _kept(boxes: Values, classes: Values | None, threshold: float) -> Values:
    """Which boxes, best first, no better one of the same class overlaps by more than the threshold."""
    close = _overlaps(boxes, boxes) > threshold
    if classes is not None:
        close &= classes[:, None] == classes[None]
    kept = np.ones(len(boxes), bool)
    for i in range(len(boxes)):
        if kept[i]:
            kept[i + 1 :] &= ~close[i, i + 1 :]
    return kept
