"""Metrics of probabilities: how likely the labels are by the predictions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph.metric.base import EvalMetric, Names, alias, register
from gluongraph.storage import Array


@register
class Perplexity(EvalMetric):
    """exp of the mean of -log max(p, 1e-10), p the probability of the label along `axis`.

    Labels equal to `ignore_label` do not count.

    Raises (update):
        AssertionError: labels and predictions differ in number.

    >>> from gluongraph import metric, nd
    >>> perplexity = metric.Perplexity(ignore_label=None)
    >>> perplexity.update(nd.array([0, 1]), nd.array([[0.5, 0.5], [0.5, 0.5]]))
    >>> round(perplexity.get()[1], 3)
    2.0
    """

    def __init__(
        self,
        ignore_label: int | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Names = None,
        label_names: Names = None,
    ):
        config = {"ignore_label": ignore_label, "axis": axis}
        super().__init__(name, output_names, label_names, has_global_stats=True, **config)
        self.ignore_label, self.axis = ignore_label, axis

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        rows = np.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        classes = label.astype(np.int64).ravel()
        if len(classes) != len(rows):
            raise AssertionError(f"{self.name}: labels {label.shape} do not fit predictions {pred.shape}")
        picked = rows[np.arange(len(rows)), classes.clip(0, rows.shape[1] - 1)]
        if self.ignore_label is not None:
            picked = picked[classes != self.ignore_label]
        return float(-np.log(np.maximum(picked, 1e-10), dtype=np.float64).sum()), picked.size

    def get(self) -> tuple[Any, Any]:
        name, mean = super().get()
        return name, math.exp(mean)

    def get_global(self) -> tuple[Any, Any]:
        name, mean = super().get_global()
        return name, math.exp(mean)


@register
@alias("ce")
class CrossEntropy(EvalMetric):
    """Mean of -log(p + eps), p the probability that a (N, C) prediction gives the label.

    Raises (update):
        AssertionError: labels and predictions differ in number.
        IndexError: there is no class of that number.

    >>> from gluongraph import metric, nd
    >>> ce = metric.CrossEntropy()
    >>> ce.update(nd.array([0, 1]), nd.array([[0.5, 0.5], [0.5, 0.5]]))
    >>> round(ce.get()[1], 3)
    0.693
    """

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "cross-entropy",
        output_names: Names = None,
        label_names: Names = None,
    ):
        super().__init__(name, output_names, label_names, has_global_stats=True, eps=eps)
        self.eps = eps

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        classes = label.astype(np.int64).ravel()
        if len(classes) != len(pred):
            raise AssertionError(f"{self.name}: labels {label.shape} do not fit predictions {pred.shape}")
        picked = pred[np.arange(len(pred)), classes].astype(np.float64)
        return float(-np.log(picked + self.eps).sum()), len(pred)


@register
@alias("nll_loss")
class NegativeLogLikelihood(CrossEntropy):
    """The number of CrossEntropy under another name.

    >>> from gluongraph import metric, nd
    >>> nll = metric.NegativeLogLikelihood()
    >>> nll.update(nd.array([0, 1]), nd.array([[0.5, 0.5], [0.5, 0.5]]))
    >>> round(nll.get()[1], 3)
    0.693
    """

    def __init__(
        self, eps: float = 1e-12, name: str = "nll-loss", output_names: Names = None, label_names: Names = None
    ):
        super().__init__(eps, name, output_names, label_names)
