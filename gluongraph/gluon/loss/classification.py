"""Losses of classes and of two classes: cross entropies, divergence, hinges."""

from __future__ import annotations

import math
import operator
from typing import Any

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.loss.base import Loss, fitted, like
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import axes_of, softrelu
from gluongraph.mxops.shapes import class_index
from gluongraph.ranges import check_range


class SoftmaxCrossEntropyLoss(Loss):
    """-log softmax(pred)[label], mean over the sample's positions; for one-hot labels -Σ label log softmax(pred).

    `sparse_label` says that labels are class numbers; `from_logits` that `pred` holds log-probabilities already. The
    elements have the shape of the prediction with 1 at `axis`.

    A label that is no class, such as -1, NaN or 1.5, is an error, except where `sample_weight` is 0. Labels equal to
    `ignore_index` have loss and gradient 0, and do not count in the mean of their sample, as in
    `torch.nn.CrossEntropyLoss`; a sample of such labels alone has loss 0. (PyTorch's mean over the batch is
    `loss.sum() / (label != ignore_index).sum()` where a sample is one label.)

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.SoftmaxCrossEntropyLoss(ignore_index=-100)
    >>> loss(nd.zeros((2, 3, 4)), nd.array([[0, 1, -100], [-100, -100, -100]])).asnumpy()
    array([1.3862944, 0.       ], dtype=float32)

    Raises:
        IndexRangeError: a label is no class; from a compiled step, which has then changed nothing.
    """

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        ignore_index: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(weight, batch_axis, **kwargs)
        if ignore_index is not None and not sparse_label:
            raise ValueError(
                with_user_location("SoftmaxCrossEntropyLoss: ignore_index is for labels that are class numbers")
            )
        if ignore_index is not None and not hasattr(ignore_index, "__index__"):
            raise TypeError(
                with_user_location(f"{type(self).__name__}: ignore_index is a whole number, not {ignore_index!r}")
            )
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits
        self._ignore_index = None if ignore_index is None else operator.index(ignore_index)

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(
            _cross_entropy,
            pred,
            label,
            sample_weight if self._sparse_label else None,
            sample_weight=sample_weight,
            axis=self._axis,
            samples=self._batch_axis,
            sparse=self._sparse_label,
            from_logits=self._from_logits,
            ignored=self._ignore_index,
        )


def _cross_entropy(
    pred: Node,
    label: Node,
    sample_weight: Node | None,
    *,
    axis: int,
    samples: int,
    sparse: bool,
    from_logits: bool,
    ignored: int | None,
) -> Node:
    axis = _axis("SoftmaxCrossEntropyLoss", pred, axis)
    if not sparse:
        return _elements(pred, like("SoftmaxCrossEntropyLoss", pred, label), axis, False, from_logits)
    label = _classes(pred, label, sample_weight, axis, ignored)
    if ignored is None:
        return _elements(pred, label, axis, True, from_logits)
    valid = ops.not_equal(label, ignored)
    losses = _elements(pred, ops.where(valid, label, 0), axis, True, from_logits)
    kept = ops.reshape(valid, losses.shape)
    return ops.mul(ops.where(kept, losses, 0.0), _share_of_valid(kept, samples, losses.dtype))


def _share_of_valid(valid: Node, samples: int, dtype: str) -> Node:
    """What makes a sample's mean over all positions one over its valid ones: positions / max(valid ones, 1)."""
    axes = axes_of(valid, samples, exclude=True)
    positions = math.prod(valid.shape[a] for a in axes)
    if positions == 1:
        return ops.full((), 1.0, dtype)
    count = ops.sum(ops.cast(valid, "f32"), axes, keepdims=True)
    return ops.expand(ops.cast(ops.div(float(positions), ops.maximum(count, 1.0)), dtype), valid.shape)


def _elements(pred: Node, label: Node, axis: int, sparse: bool, from_logits: bool) -> Node:
    if not from_logits:
        losses = ops.softmax_cross_entropy(pred, label, axis=axis, sparse=sparse)
    elif sparse:
        losses = ops.neg(ops.gather(pred, ops.reshape(label, _with_one(pred, axis)), axis=axis))
    else:
        losses = ops.neg(ops.sum(ops.mul(pred, label), axis=axis))
    return ops.reshape(losses, _with_one(pred, axis))


def _axis(name: str, pred: Node, axis: int) -> int:
    rank = pred.ty.rank
    if not -rank <= axis < rank:
        raise ShapeError(with_user_location(f"{name}: the prediction {pred.ty} has no axis {axis}"))
    return axis % rank


def _with_one(pred: Node, axis: int) -> tuple[int, ...]:
    return (*pred.shape[:axis], 1, *pred.shape[axis + 1 :])


def _classes(pred: Node, label: Node, sample_weight: Node | None, axis: int, ignored: int | None) -> Node:
    """Class numbers, of the prediction's shape without `axis`; MXNet's labels may come as floats."""
    shape = tuple(n for i, n in enumerate(pred.shape) if i != axis)
    if label.shape not in (shape, _with_one(pred, axis)):
        raise ShapeError(
            with_user_location(
                f"SoftmaxCrossEntropyLoss: labels {label.ty} do not fit the prediction {pred.ty}",
                help=f"sparse labels have shape {shape}; sparse_label=False takes one-hot labels like the prediction",
            )
        )
    counts = None if sample_weight is None else _counts(sample_weight, _with_one(pred, axis), shape)
    label = ops.reshape(label, shape)
    return class_index("SoftmaxCrossEntropyLoss", label, pred.shape[axis], ignored=ignored, counts=counts)


def _counts(sample_weight: Node, losses: tuple[int, ...], labels: tuple[int, ...]) -> Node | None:
    """Is the weight of a label's loss other than 0? None where the weight is not one number for each loss at most."""
    weight = fitted(sample_weight, ops.full(losses, 0.0, "f32"))
    if weight.ty.rank > len(losses) or any(
        a not in (1, b) for a, b in zip(weight.shape[::-1], losses[::-1], strict=False)
    ):
        return None
    return ops.reshape(ops.broadcast_to(ops.not_equal(weight, 0), losses), labels)


class SigmoidBinaryCrossEntropyLoss(Loss):
    """max(p, 0) - p y + log(1 + e^-|p|) of logits p, or of probabilities with `from_sigmoid`; mean over the sample.

    `pos_weight`, broadcast, scales what the positive labels cost. `pred` (N, ...) and a label of as many elements give
    (N,). Also called SigmoidBCELoss.

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.SigmoidBCELoss()
    >>> loss(nd.array([[1000], [1000]]), nd.array([[1], [0]])).asnumpy()
    array([   0., 1000.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def forward(self, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None) -> Any:
        elements = _probability_bce if self._from_sigmoid else _logit_bce
        return self._loss(elements, pred, label, pos_weight, sample_weight=sample_weight)


def _logit_bce(pred: Node, label: Node, positive: Node | None) -> Node:
    y = like("SigmoidBinaryCrossEntropyLoss", pred, label)
    tail: Node = softrelu(ops.neg(ops.abs(pred)))
    if positive is None:
        return ops.relu(pred) - pred * y + tail
    extra = ops.mul(ops.sub(ops.cast(positive, pred.dtype), 1.0), y) + 1.0
    return pred - pred * y + ops.mul(extra, tail + ops.relu(ops.neg(pred)))


def _probability_bce(pred: Node, label: Node, positive: Node | None) -> Node:
    y = like("SigmoidBinaryCrossEntropyLoss", pred, label)
    hit = y * ops.log(pred + 1e-12)
    if positive is not None:
        hit = ops.mul(ops.cast(positive, pred.dtype), hit)
    return ops.neg(hit + (1.0 - y) * ops.log(1.0 - pred + 1e-12))


class KLDivLoss(Loss):
    """Kullback-Leibler divergence y (log(y + 1e-12) - p) of log-probabilities p; the *sum* over the sample.

    With from_logits=False, `pred` goes through log_softmax along `axis` first. `pred` (N, ...) and a label of as many
    elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.KLDivLoss()
    >>> loss(nd.array([[-2, -1]]), nd.array([[1, 0]])).asnumpy()
    array([2.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit;
            with from_logits=False, `pred` has no axis `axis`.
    """

    def __init__(
        self, from_logits: bool = True, axis: int = -1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ):
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._axis = from_logits, axis

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        axis = None if self._from_logits else self._axis
        return self._loss(kl_divergence, pred, label, sample_weight=sample_weight, reduce="sum", axis=axis)


def kl_divergence(pred: Node, label: Node, *, axis: int | None) -> Node:
    """y (log(y + 1e-12) - p); p is log_softmax(pred) along `axis`, if one is given.

    >>> from gluongraph import ops
    >>> kl_divergence(ops.full((2, 3), 1.0), ops.full((2, 3), 0.5), axis=1).shape
    (2, 3)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `pred` has no axis `axis`.
    """
    y = like("KLDivLoss", pred, label)
    p = pred if axis is None else ops.log_softmax(pred, axis=_axis("KLDivLoss", pred, axis))
    return y * (ops.log(y + 1e-12) - p)


class HingeLoss(Loss):
    """max(0, margin - pred label), labels -1 and 1; mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.HingeLoss()
    >>> loss(nd.array([[3], [3]]), nd.array([[1], [-1]])).asnumpy()
    array([0., 4.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        check_range(self, "margin", margin)
        self._margin = margin

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(_hinge, pred, label, sample_weight=sample_weight, margin=self._margin)


def _hinge(pred: Node, label: Node, *, margin: float) -> Node:
    return ops.relu(ops.sub(float(margin), ops.mul(pred, like("HingeLoss", pred, label))))


class SquaredHingeLoss(HingeLoss):
    """max(0, margin - pred label)², labels -1 and 1; mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.SquaredHingeLoss()
    >>> loss(nd.array([[3], [3]]), nd.array([[1], [-1]])).asnumpy()
    array([ 0., 16.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(_squared_hinge, pred, label, sample_weight=sample_weight, margin=self._margin)


def _squared_hinge(pred: Node, label: Node, *, margin: float) -> Node:
    hinge = _hinge(pred, label, margin=margin)
    return ops.mul(hinge, hinge)


class LogisticLoss(Loss):
    """log(1 + e^(-pred label)), labels -1 and 1, or with label_format="binary" 0 and 1; mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.LogisticLoss()
    >>> loss(nd.array([[1000], [1000]]), nd.array([[1], [-1]])).asnumpy()
    array([   0., 1000.], dtype=float32)

    Raises:
        ValueError: another `label_format`.
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, label_format: str = "signed", **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        if label_format not in ("signed", "binary"):
            raise ValueError(
                with_user_location(f"LogisticLoss: label_format is 'signed' or 'binary', not {label_format!r}")
            )
        self._label_format = label_format

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        signed = self._label_format == "signed"
        return self._loss(_logistic, pred, label, sample_weight=sample_weight, signed=signed)


def _logistic(pred: Node, label: Node, *, signed: bool) -> Node:
    y = like("LogisticLoss", pred, label)
    return _logit_bce(pred, (y + 1.0) * 0.5 if signed else y, None)
