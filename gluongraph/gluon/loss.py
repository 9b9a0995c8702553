"""Losses, per sample: shape (N,), the mean over all axes but the batch's."""

from __future__ import annotations

from typing import Any

from gluongraph import ops
from gluongraph.errors import ShapeError, located
from gluongraph.gluon.block import HybridBlock
from gluongraph.ir import Node
from gluongraph.ndarray import invoke


class Loss(HybridBlock):
    """Base class: a number per sample, scaled by `weight`.

    `sample_weight` is broadcast over the elements before their mean is taken, so it does not renormalize.
    A subclass says `elements(pred, label, ...)`: nodes in, a node of the per-element losses out.
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        given = (pred, label) if sample_weight is None else (pred, label, sample_weight)
        return invoke(_per_sample, *given, elements=self.elements(), weight=self._weight, batch_axis=self._batch_axis)

    def elements(self) -> Any:
        """The function (pred, label) -> losses on nodes, as a hashable value: a module's function or a tuple
        (function, keyword pairs), so that equal losses are built once."""
        raise NotImplementedError(f"{type(self).__name__} says forward(pred, label), or elements()")


def _per_sample(
    pred: Node, label: Node, sample_weight: Node | None = None, *, elements: Any, weight: float | None, batch_axis: int
) -> Node:
    function, keywords = elements
    losses: Node = function(pred, label, **dict(keywords))
    if sample_weight is not None:
        losses = ops.mul(losses, _spread(sample_weight, losses.ty.rank))
    if weight is not None:
        losses = ops.mul(losses, weight)
    axes = tuple(i for i in range(losses.ty.rank) if i != batch_axis % max(losses.ty.rank, 1))
    return ops.mean(losses, axis=axes) if axes else losses


def _spread(weight: Node, rank: int) -> Node:
    """A weight of fewer axes counts for the first ones."""
    return ops.reshape(weight, weight.shape + (1,) * (rank - weight.ty.rank)) if weight.ty.rank < rank else weight


def _like(name: str, pred: Node, label: Node) -> Node:
    """The label in shape and type of the prediction."""
    if label.ty.size != pred.ty.size:
        raise ShapeError(located(f"{name}: the label {label.ty} has not as many elements as the prediction {pred.ty}"))
    return ops.cast(ops.reshape(label, pred.shape), pred.dtype)


def _l2(pred: Node, label: Node, *, weight: float) -> Node:
    error = ops.sub(_like("L2Loss", pred, label), pred)
    return ops.mul(ops.mul(error, error), weight / 2)


def _l1(pred: Node, label: Node) -> Node:
    return ops.abs(ops.sub(_like("L1Loss", pred, label), pred))


def _cross_entropy(pred: Node, label: Node, *, axis: int, sparse: bool, from_logits: bool) -> Node:
    axis = _axis(pred, axis)
    if sparse:
        label = _classes(pred, label, axis)
        if not from_logits:
            return ops.softmax_cross_entropy(pred, label, axis=axis, sparse=True)
        picked = ops.gather(pred, ops.reshape(label, _with_one(pred.shape, axis)), axis=axis)
        return ops.neg(ops.reshape(picked, tuple(n for i, n in enumerate(pred.shape) if i != axis)))
    label = _like("SoftmaxCrossEntropyLoss", pred, label)
    if not from_logits:
        return ops.softmax_cross_entropy(pred, label, axis=axis, sparse=False)
    return ops.neg(ops.sum(ops.mul(pred, label), axis=axis))


def _axis(pred: Node, axis: int) -> int:
    rank = pred.ty.rank
    if not -rank <= axis < rank:
        raise ShapeError(located(f"SoftmaxCrossEntropyLoss: the prediction {pred.ty} has no axis {axis}"))
    return axis % rank


def _with_one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _classes(pred: Node, label: Node, axis: int) -> Node:
    """Class numbers, of the prediction's shape without `axis`; MXNet's labels may come as floats."""
    shape = tuple(n for i, n in enumerate(pred.shape) if i != axis)
    if label.shape not in (shape, _with_one(pred.shape, axis)):
        raise ShapeError(
            located(
                f"SoftmaxCrossEntropyLoss: labels {label.ty} do not fit the prediction {pred.ty}",
                help=f"sparse labels have shape {shape}; sparse_label=False takes one-hot labels like the prediction",
            )
        )
    label = ops.reshape(label, shape)
    return label if label.dtype in ("i32", "i64") else ops.cast(label, "i32")


def _sigmoid_bce(pred: Node, label: Node, *, from_sigmoid: bool) -> Node:
    y = _like("SigmoidBinaryCrossEntropyLoss", pred, label)
    if from_sigmoid:
        return ops.neg(y * ops.log(pred + 1e-12) + (1.0 - y) * ops.log(1.0 - pred + 1e-12))
    return ops.relu(pred) - pred * y + ops.log1p(ops.exp(ops.neg(ops.abs(pred))))


def _weighted_bce(pred: Node, label: Node, positive: Node, *, from_sigmoid: bool) -> Node:
    y = _like("SigmoidBinaryCrossEntropyLoss", pred, label)
    if from_sigmoid:
        return ops.neg(ops.mul(positive, y * ops.log(pred + 1e-12)) + (1.0 - y) * ops.log(1.0 - pred + 1e-12))
    tail = ops.log1p(ops.exp(ops.neg(ops.abs(pred)))) + ops.relu(ops.neg(pred))
    return pred - pred * y + ops.mul(ops.mul(ops.sub(positive, 1.0), y) + 1.0, tail)


class L2Loss(Loss):
    """½ weight (label - pred)², mean over the sample."""

    def __init__(self, weight: float = 1.0, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        given = (pred, label) if sample_weight is None else (pred, label, sample_weight)
        elements = (_l2, (("weight", self._weight),))
        return invoke(_per_sample, *given, elements=elements, weight=None, batch_axis=self._batch_axis)


class L1Loss(Loss):
    """|label - pred|, mean over the sample."""

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)

    def elements(self) -> Any:
        return _l1, ()


class SoftmaxCrossEntropyLoss(Loss):
    """-log softmax(pred)[label], mean over the sample's positions; for one-hot labels -Σ label log softmax(pred).

    `sparse_label` says that labels are class numbers; `from_logits` that `pred` holds log-probabilities already.
    """

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ):
        super().__init__(weight, batch_axis, **kwargs)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def elements(self) -> Any:
        keywords = (("axis", self._axis), ("sparse", self._sparse_label), ("from_logits", self._from_logits))
        return _cross_entropy, keywords


class SigmoidBinaryCrossEntropyLoss(Loss):
    """max(p, 0) - p y + log(1 + e^-|p|) of logits p, or of probabilities with `from_sigmoid`; mean over the sample.

    `pos_weight`, broadcast, scales what the positive labels cost.
    """

    def __init__(self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def elements(self) -> Any:
        return _sigmoid_bce, (("from_sigmoid", self._from_sigmoid),)

    def forward(self, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None) -> Any:
        if pos_weight is None:
            return super().forward(pred, label, sample_weight)
        losses = invoke(_weighted_bce, pred, label, pos_weight, from_sigmoid=self._from_sigmoid)
        given = (losses, losses) if sample_weight is None else (losses, losses, sample_weight)
        return invoke(_per_sample, *given, elements=(_first, ()), weight=self._weight, batch_axis=self._batch_axis)


def _first(pred: Node, label: Node) -> Node:
    return pred


SoftmaxCELoss = SoftmaxCrossEntropyLoss
SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss

__all__ = [
    "L1Loss",
    "L2Loss",
    "Loss",
    "SigmoidBCELoss",
    "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss",
]
