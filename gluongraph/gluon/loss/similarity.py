"""Losses of vectors that should lie near one another, or apart."""

from __future__ import annotations

from typing import Any

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.loss.base import Loss, like, over_samples, reduced
from gluongraph.gluon.loss.classification import kl_divergence
from gluongraph.ir.graph import Node
from gluongraph.ndarray import invoke
from gluongraph.ranges import FRACTION, check_range

_LEAST = 1e-30  # a squared length below counts as this: the root has a slope there


class TripletLoss(Loss):
    """max(0, Σ (positive - pred)² - Σ (negative - pred)² + margin); the *sum* over the sample.

    Three arrays of as many elements, `pred` (N, ...), give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.TripletLoss(margin=5)
    >>> loss(nd.zeros((2, 2)), nd.array([[1, 1], [0, 0]]), nd.array([[2, 0], [3, 3]])).asnumpy()
    array([3., 0.], dtype=float32)

    Raises:
        ShapeError: they have not as many elements.
    """

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        check_range(self, "margin", margin)
        self._margin = margin

    def forward(self, pred: Any, positive: Any, negative: Any) -> Any:
        arrays = pred, positive, negative
        return self._loss(_triplet, *arrays, reduce="none", margin=self._margin, axis=self._batch_axis)


def _triplet(pred: Node, positive: Node, negative: Node, *, margin: float, axis: int) -> Node:
    near, far = (ops.sub(like("TripletLoss", pred, x), pred) for x in (positive, negative))
    return ops.relu(over_samples(ops.sum, near * near - far * far, axis) + float(margin))


class CosineEmbeddingLoss(Loss):
    """1 - cos(input1, input2) for label 1, max(0, cos - margin) for label -1, 0 for others; of shape (N, 1).

    The vectors lie along the last axis; all other axes are samples.

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.CosineEmbeddingLoss()
    >>> loss(nd.array([[1, 0], [1, 0]]), nd.array([[0, 1], [0, 1]]), nd.array([1, -1])).asnumpy()
    array([[1.],
           [0.]], dtype=float32)

    Raises:
        ShapeError: the inputs have not as many elements, or labels are not one for each vector.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        check_range(self, "margin", margin)
        self._margin = margin

    def forward(self, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:
        arrays = input1, input2, label
        return self._loss(_cosine_embedding, *arrays, sample_weight=sample_weight, reduce="none", margin=self._margin)


def _cosine_embedding(x: Node, y: Node, label: Node, *, margin: float) -> Node:
    x = like("CosineEmbeddingLoss", y, x)
    lengths = _length(x) * _length(y)
    cosine = ops.reshape(ops.sum(x * y, axis=-1) / ops.maximum(lengths, 1e-12), (lengths.ty.size, 1))
    if label.ty.size != lengths.ty.size:
        what = f"CosineEmbeddingLoss: labels {label.ty} are not one for each vector of {y.ty}"
        raise ShapeError(with_user_location(what, help="the vectors lie along the last axis"))
    label = ops.reshape(label, cosine.shape)
    apart = ops.where(ops.equal(label, -1), ops.relu(cosine - float(margin)), 0.0)
    return ops.where(ops.equal(label, 1), 1.0 - cosine, apart)


def _length(x: Node) -> Node:
    return ops.sqrt(ops.maximum(ops.sum(x * x, axis=-1), _LEAST))


class SDMLLoss(Loss):
    """Smoothed deep metric learning: the divergence of softmax(-|x1_i - x2_j|²) from the pairs i = j.

    The pairs' share is 1 - `smoothing_parameter`, the rest is spread over the others (Bonadiman, Kumar, Mittal, 2019).
    `weight` and `batch_axis` are taken and not used, as in MXNet. The result has shape (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.SDMLLoss()
    >>> loss(nd.zeros((4, 3)), nd.ones((4, 3))).shape
    (4,)

    Raises:
        ShapeError: not two batches (N, d) of two samples or more.
    """

    def __init__(self, smoothing_parameter: float = 0.3, weight: float = 1.0, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        check_range(self, "smoothing_parameter", smoothing_parameter, FRACTION)
        self.smoothing_parameter = smoothing_parameter

    def forward(self, x1: Any, x2: Any) -> Any:
        return invoke(reduced, _sdml, "sum", None, 0, None, x1, x2, smoothing=self.smoothing_parameter)


def _sdml(x1: Node, x2: Node, *, smoothing: float) -> Node:
    if x1.shape != x2.shape or x1.ty.rank != 2 or x1.shape[0] < 2:
        raise ShapeError(
            with_user_location(f"SDMLLoss: {x1.ty} and {x2.ty} are not pairs (N, d) of two samples or more")
        )
    n, d = x1.shape
    apart = ops.sub(ops.reshape(x1, (n, 1, d)), ops.reshape(x2, (1, n, d)))
    row, column = (ops.iota((n, n), axis, "i32") for axis in (0, 1))
    wanted = ops.where(ops.equal(row, column), ops.full((n, n), 1 - smoothing, x1.dtype), smoothing / (n - 1))
    return kl_divergence(ops.neg(ops.sum(apart * apart, axis=2)), wanted, axis=1)
