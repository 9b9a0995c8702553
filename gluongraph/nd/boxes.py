"""Boxes as detectors learn them: `nd.contrib.box_encode`, `box_decode`, `bipartite_matching`, as in MXNet 1.9.1."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops import ops as mxops
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd.function import function
from gluongraph.ndarray import NDArray


def _parts(boxes: Node) -> list[Node]:
    """The four numbers of each box, each of the shape of the boxes without the last axis."""
    return [mxshapes.slice_axis(boxes, axis=-1, begin=i, end=i + 1) for i in range(4)]


def _centred(boxes: Node) -> tuple[Node, Node, Node, Node]:
    """x and y of the centre, width and height of boxes (left, top, right, bottom)."""
    left, top, right, bottom = _parts(boxes)
    width, height = right - left, bottom - top
    return left + width * 0.5, top + height * 0.5, width, height


def _encode(samples: Node, matches: Node, anchors: Node, refs: Node, means: Node, stds: Node) -> tuple[Node, Node]:
    """What takes anchors (B, N, 4) to the boxes of refs (B, M, 4) named by `matches` (B, N), and a mask (B, N, 4).

    ((x - xa) / wa, (y - ya) / ha, log(w / wa), log(h / ha)), less `means` (4) and over `stds` (4); 0, as the mask,
    where samples (B, N) is not above 0.5. Boxes are (left, top, right, bottom).
    """
    count, size = refs.shape[1], anchors.shape[:2]
    chosen = mxshapes.one_hot(matches, count, dtype=refs.dtype)  # (B, N, M)
    x, y, width, height = _centred(ops.matmul(chosen, refs))
    xa, ya, wa, ha = _centred(anchors)
    found = mxshapes.concat(
        (x - xa) / wa, (y - ya) / ha, mxops.log(mxops.divide(width, wa)), mxops.log(mxops.divide(height, ha)), dim=-1
    )
    scaled = mxops.divide(mxops.subtract(found, means), stds)
    mask = ops.expand(ops.reshape(mxops.greater(samples, 0.5), (*size, 1)), (*size, 4))
    mask = ops.cast(mask, anchors.dtype)
    return mxops.where(mask, scaled, mxops.zeros_like(scaled)), mask


def _decode(
    data: Node,
    anchors: Node,
    std0: float = 1.0,
    std1: float = 1.0,
    std2: float = 1.0,
    std3: float = 1.0,
    clip: float = -1.0,
    format: str = "center",
) -> Node:
    """Boxes (left, top, right, bottom) from what a network gives, (B, N, 4), and anchors (1, N, 4).

    The centre is x wa std0 + xa, the width exp(w std2) wa; `clip` above 0 is the largest w std2. Anchors are
    (x, y, width, height) in the format "center", (left, top, right, bottom) in "corner".
    """
    if format not in ("center", "corner"):
        raise MXNetError(with_user_location(f"box_decode: format is 'center' or 'corner', not {format!r}"))
    x, y, w, h = _parts(data)
    xa, ya, wa, ha = _parts(anchors) if format == "center" else _centred(anchors)
    width, height = w * std2, h * std3
    if clip > 0:
        width, height = mxops.minimum(width, clip), mxops.minimum(height, clip)
    xs, ys = mxops.add(mxops.multiply(x * std0, wa), xa), mxops.add(mxops.multiply(y * std1, ha), ya)
    half_x, half_y = mxops.multiply(mxops.exp(width), wa) * 0.5, mxops.multiply(mxops.exp(height), ha) * 0.5
    return mxshapes.concat(xs - half_x, ys - half_y, xs + half_x, ys + half_y, dim=-1)


box_encode = function(_encode, "box_encode")
box_decode = function(_decode, "box_decode")


def bipartite_matching(
    data: NDArray, threshold: float = 0.0, is_ascend: bool = False, topk: int = -1
) -> tuple[NDArray, NDArray]:
    """Pairs of rows and columns of scores (..., R, C), the best score first, each row and column at most once.

    Gives the column of each row (..., R) and the row of each column (..., C), -1 for none. Scores not above `threshold`
    (with `is_ascend`, where small ones are good, not below it) make no pair; at most `topk` pairs if that is positive.
    Which pairs there are depends on values: eager only.
    """
    scores = data.asnumpy()
    batches = scores.reshape(-1, *scores.shape[-2:])
    rows, columns = (np.full((len(batches), n), -1, scores.dtype) for n in scores.shape[-2:])
    for score, row, column in zip(batches, rows, columns, strict=True):
        _match(score, row, column, threshold, is_ascend, topk)
    lead = scores.shape[:-2]
    made: Any = [NDArray(a.reshape(*lead, a.shape[1]), data.context) for a in (rows, columns)]
    return made[0], made[1]


def _match(score: Any, row: Any, column: Any, threshold: float, is_ascend: bool, topk: int) -> None:
    """Fill the columns of the rows and the rows of the columns for one matrix of scores."""
    flat = score.ravel()
    pairs = 0
    for place in np.argsort(flat if is_ascend else -flat, kind="stable"):
        r, c = divmod(int(place), score.shape[1])
        if row[r] != -1 or column[c] != -1:
            continue
        good = flat[place] < threshold if is_ascend else flat[place] > threshold
        if not good or (topk > 0 and pairs == topk):
            return
        row[r], column[c] = c, r
        pairs += 1
