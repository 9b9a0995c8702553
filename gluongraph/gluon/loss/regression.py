"""Losses of numbers: squared, absolute and Huber's error; counts that follow Poisson."""

from __future__ import annotations

import math
from typing import Any

from gluongraph import ops
from gluongraph.gluon.loss.base import Loss, like
from gluongraph.ir.graph import Node
from gluongraph.ranges import POSITIVE, check_range


class L2Loss(Loss):
    """½ (label - pred)², mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.L2Loss()
    >>> loss(nd.zeros((2, 2)), nd.array([[2, 2], [0, 4]])).asnumpy()
    array([2., 4.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(_l2, pred, label, sample_weight=sample_weight)


def _l2(pred: Node, label: Node) -> Node:
    error = ops.sub(like("L2Loss", pred, label), pred)
    return ops.mul(ops.mul(error, error), 0.5)


class L1Loss(Loss):
    """|label - pred|, mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.L1Loss()
    >>> loss(nd.zeros((2, 2)), nd.array([[2, 2], [0, -4]])).asnumpy()
    array([2., 2.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(_l1, pred, label, sample_weight=sample_weight)


def _l1(pred: Node, label: Node) -> Node:
    return ops.abs(ops.sub(like("L1Loss", pred, label), pred))


class HuberLoss(Loss):
    """e² / 2ρ where e = |label - pred| is at most ρ (`rho`), e - ρ/2 beyond; mean over the sample.

    `pred` (N, ...) and a label of as many elements give (N,).

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.HuberLoss(rho=2)
    >>> loss(nd.zeros((2, 1)), nd.array([[2], [-5]])).asnumpy()
    array([1., 4.], dtype=float32)

    Raises:
        ValueError: `rho` is not positive and finite.
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any):
        super().__init__(weight, batch_axis, **kwargs)
        check_range(self, "rho", rho, POSITIVE)
        self._rho = rho

    def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._loss(_huber, pred, label, sample_weight=sample_weight, rho=self._rho)


def _huber(pred: Node, label: Node, *, rho: float) -> Node:
    error = ops.abs(ops.sub(like("HuberLoss", pred, label), pred))
    parabola = ops.mul(ops.mul(error, error), 0.5 / rho)
    return ops.where(ops.greater(error, float(rho)), ops.sub(error, 0.5 * rho), parabola)


class PoissonNLLLoss(Loss):
    """The rate of a Poisson distribution against counts: e^p - y p, or p - y log(p + ε) with from_logits=False.

    A single number of shape (1,): the mean of all elements of all samples. `compute_full` adds Stirling's
    y log y - y + ½ log 2πy where y > 1; it gives NaN where a count is 0, as MXNet does.

    >>> from gluongraph import gluon, nd
    >>> loss = gluon.loss.PoissonNLLLoss()
    >>> loss(nd.zeros((2, 3)), nd.ones((2, 3))).asnumpy()
    array([1.], dtype=float32)

    Raises:
        ShapeError: the label has not as many elements as the prediction, or `sample_weight` does not fit.
    """

    def __init__(
        self,
        weight: float | None = None,
        from_logits: bool = True,
        batch_axis: int = 0,
        compute_full: bool = False,
        **kwargs: Any,
    ):
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._compute_full = from_logits, compute_full

    def forward(self, pred: Any, target: Any, sample_weight: Any = None, epsilon: float = 1e-8) -> Any:
        settings: dict[str, Any] = {"from_logits": self._from_logits, "full": self._compute_full, "epsilon": epsilon}
        return self._loss(_poisson, pred, target, sample_weight=sample_weight, reduce="all", **settings)


def _poisson(pred: Node, target: Node, *, from_logits: bool, full: bool, epsilon: float) -> Node:
    y = like("PoissonNLLLoss", pred, target)
    losses = ops.exp(pred) - y * pred if from_logits else pred - y * ops.log(pred + epsilon)
    if not full:
        return losses
    stirling = y * ops.log(y) - y + 0.5 * ops.log(y * (2 * math.pi))
    return losses + stirling * ops.cast(ops.greater(y, 1.0), y.dtype)
