"""Metrics of classes: how often they are right, and what follows from the table of confusions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph.metric.base import EvalMetric, Names, alias, need_equal, paired, register
from gluongraph.storage import Array


@register
@alias("acc")
class Accuracy(EvalMetric):
    """Share of predictions that equal their label; scores are reduced by argmax over `axis` first.

    Raises (update):
        ValueError: labels and predictions differ in number.

    >>> from gluongraph import metric, nd
    >>> acc = metric.Accuracy()
    >>> acc.update(nd.array([0, 1, 1]), nd.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]))
    >>> round(acc.get()[1], 3)
    0.667
    """

    def __init__(self, axis: int = 1, name: str = "accuracy", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names, has_global_stats=True, axis=axis)
        self.axis = axis

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        classes = pred if pred.shape == label.shape else pred.argmax(self.axis)
        expected, given = _numbers(self.name, label, classes)
        return int((given == expected).sum()), expected.size


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """Share of labels among the `top_k` best-scored classes of a (N, C) prediction.

    Raises:
        AssertionError: `top_k` is less than 2; in update, the prediction has not two axes.

    >>> from gluongraph import metric, nd
    >>> top = metric.TopKAccuracy(top_k=2)
    >>> top.update(nd.array([0, 2]), nd.array([[0.3, 0.5, 0.2], [0.6, 0.3, 0.1]]))
    >>> top.get()
    ('top_k_accuracy_2', 0.5)
    """

    def __init__(
        self, top_k: int = 1, name: str = "top_k_accuracy", output_names: Names = None, label_names: Names = None
    ):
        if top_k <= 1:
            raise AssertionError(f"top_k must be more than 1, it is {top_k}; use Accuracy")
        name = name if name.endswith(f"_{top_k}") else f"{name}_{top_k}"
        super().__init__(name, output_names, label_names, has_global_stats=True, top_k=top_k)
        self.top_k = top_k

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        if pred.ndim != 2:
            raise AssertionError(f"{self.name} takes scores (N, C), not an array of shape {pred.shape}")
        expected, _ = _numbers(self.name, label, pred[:, 0])
        best = np.argsort(-pred, axis=1, kind="stable")[:, : self.top_k]
        return int((best == expected[:, None]).any(axis=1).sum()), expected.size


class _Confusion(EvalMetric):
    """Base of metrics on counts[i, j], the number of samples of label j that were predicted as i.

    average="macro" gives the mean of the scores of the single updates; else it is the score of all counts.
    """

    _local: Array
    _global: Array

    def __init__(self, name: str, output_names: Names, label_names: Names, average: str, config: Mapping[str, Any]):
        self.average = average
        super().__init__(name, output_names, label_names, has_global_stats=True, **config)

    def _counts(self, label: Array, pred: Array) -> Array:
        """The counts of one batch."""
        raise NotImplementedError

    def _score(self, counts: Array) -> float:
        """The metric's formula."""
        raise NotImplementedError

    def update(self, labels: Any, preds: Any) -> None:
        batch = np.zeros((2, 2), np.int64)
        for label, pred in paired(self.name, labels, preds):
            batch = _total(batch, self._counts(label, pred))
        if self.average == "macro":
            self._add(self._score(batch), 1)
            return
        self._local, self._global = _total(self._local, batch), _total(self._global, batch)
        self.num_inst, self.global_num_inst = int(self._local.sum()), int(self._global.sum())
        self.sum_metric = self._score(self._local) * self.num_inst
        self.global_sum_metric = self._score(self._global) * self.global_num_inst

    def reset(self) -> None:
        self._global = np.zeros((2, 2), np.int64)
        super().reset()

    def reset_local(self) -> None:
        self._local = np.zeros((2, 2), np.int64)
        super().reset_local()


class _Binary(_Confusion):
    """Base of metrics of two classes: the scores' column 1 is the positive one."""

    def __init__(self, name: str, output_names: Names, label_names: Names, average: str):
        super().__init__(name, output_names, label_names, average, {"average": average})

    def _counts(self, label: Array, pred: Array) -> Array:
        if pred.ndim != 2:
            raise ValueError(f"{self.name} takes scores (N, 2), not an array of shape {pred.shape}")
        expected, given = _numbers(self.name, label, pred.argmax(axis=1))
        if len(np.unique(expected)) > 2:
            raise ValueError(f"{self.name} is for two classes, and there are the labels {np.unique(expected)}")
        return _counted(given == 1, expected == 1, 2)


@register
class F1(_Binary):
    """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN); 0 without a true positive.

    average="macro" gives the mean of the scores of the single updates; else it is the score of all samples.

    Raises (update):
        ValueError: more than two classes, or labels and predictions that differ in number.

    >>> from gluongraph import metric, nd
    >>> f1 = metric.F1()
    >>> f1.update(nd.array([1, 1, 0, 0]), nd.array([[0, 1], [1, 0], [0, 1], [1, 0]]))
    >>> f1.get()
    ('f1', 0.5)
    """

    def __init__(self, name: str = "f1", output_names: Names = None, label_names: Names = None, average: str = "macro"):
        super().__init__(name, output_names, label_names, average)

    def _score(self, counts: Array) -> float:
        (_, missed), (wrong, right) = counts
        return float(2 * right / (2 * right + wrong + missed)) if right else 0.0


@register
class MCC(_Binary):
    """Matthews' correlation, (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)), without the factors that are 0.

    `average` and errors are those of F1.

    >>> from gluongraph import metric, nd
    >>> mcc = metric.MCC()
    >>> mcc.update(nd.array([1, 0, 1, 1]), nd.array([[0, 1], [1, 0], [1, 0], [0, 1]]))
    >>> round(mcc.get()[1], 3)
    0.577
    """

    def __init__(
        self, name: str = "mcc", output_names: Names = None, label_names: Names = None, average: str = "macro"
    ):
        super().__init__(name, output_names, label_names, average)

    def _score(self, counts: Array) -> float:
        (tn, fn), (fp, tp) = counts.astype(float)
        factors = (tp + fp, tp + fn, tn + fp, tn + fn)
        return float((tp * tn - fp * fn) / math.sqrt(math.prod(f for f in factors if f)))


@register
class PCC(_Confusion):
    """Correlation of labels and predictions of any number of classes: Matthews' for two.

    cov(x, y) / sqrt(cov(x, x) cov(y, y)) of all samples' one-hot vectors; NaN where all are of one class.

    Raises (update):
        ValueError: labels and predictions differ in number.

    >>> from gluongraph import metric, nd
    >>> pcc = metric.PCC()
    >>> pcc.update(nd.array([0, 1, 2, 2]), nd.array([0, 1, 2, 1]))
    >>> round(pcc.get()[1], 3)
    0.7
    """

    def __init__(self, name: str = "pcc", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names, "micro", {})

    def _counts(self, label: Array, pred: Array) -> Array:
        classes = pred if pred.shape == label.shape else pred.argmax(axis=1)
        expected, given = _numbers(self.name, label, classes)
        return _counted(given, expected, int(max(given.max(), expected.max())) + 1)

    def _score(self, counts: Array) -> float:
        n, given, expected = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
        spread = float((given * (n - given)).sum()) * float((expected * (n - expected)).sum())
        covariance = float((counts.diagonal() * n - given * expected).sum())
        return covariance / math.sqrt(spread) if spread else math.nan


def _numbers(metric: str, label: Array, pred: Array) -> tuple[Array, Array]:
    """Labels and predicted classes as flat arrays of integers. Raises ValueError unless there are as many of both."""
    need_equal(metric, "labels", label.size, "predictions", pred.size)
    return label.astype(np.int64).ravel(), pred.astype(np.int64).ravel()


def _counted(given: Array, expected: Array, classes: int) -> Array:
    flat = given.astype(np.int64) * classes + expected
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def _total(a: Array, b: Array) -> Array:
    """The sum of two tables; the smaller one knows no sample of the further classes."""
    size = max(len(a), len(b))
    total: Array = np.pad(a, (0, size - len(a))) + np.pad(b, (0, size - len(b)))
    return total
