"""Metrics of numbers: errors, and correlation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph.metric.base import EvalMetric, Names, alias, need_equal, paired, register
from gluongraph.storage import Array


class _Error(EvalMetric):
    """Base of metrics of label - pred: the mean over the updates of what `_error` says, however large they are.

    An array of one axis is a column; shapes are broadcast.

    Raises (update):
        ValueError: the shapes do not broadcast.
    """

    def __init__(self, name: str, output_names: Names, label_names: Names):
        super().__init__(name, output_names, label_names, has_global_stats=True)

    def _error(self, difference: Array) -> float:
        """The metric's formula."""
        raise NotImplementedError

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        left, right = (x.astype(np.float64).reshape(-1, 1) if x.ndim == 1 else x for x in (label, pred))
        try:
            difference = np.subtract(left, right, dtype=np.float64)
        except ValueError:
            raise ValueError(f"{self.name}: labels {label.shape} do not fit predictions {pred.shape}") from None
        return self._error(difference), 1


@register
class MAE(_Error):
    """Mean of |label - pred|, averaged over the updates.

    Raises (update):
        ValueError: the shapes do not broadcast.

    >>> from gluongraph import metric, nd
    >>> mae = metric.MAE()
    >>> mae.update(nd.array([1, 2]), nd.array([2, 5]))
    >>> mae.get()
    ('mae', 2.0)
    """

    def __init__(self, name: str = "mae", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)

    def _error(self, difference: Array) -> float:
        return float(np.abs(difference).mean())


@register
class MSE(_Error):
    """Mean of (label - pred)², averaged over the updates.

    Raises (update):
        ValueError: the shapes do not broadcast.

    >>> from gluongraph import metric, nd
    >>> mse = metric.MSE()
    >>> mse.update(nd.array([1, 2]), nd.array([2, 5]))
    >>> mse.get()
    ('mse', 5.0)
    """

    def __init__(self, name: str = "mse", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)

    def _error(self, difference: Array) -> float:
        return float(np.square(difference).mean())


@register
class RMSE(MSE):
    """Root of the mean of (label - pred)² of each update, averaged over the updates.

    Raises (update):
        ValueError: the shapes do not broadcast.

    >>> from gluongraph import metric, nd
    >>> rmse = metric.RMSE()
    >>> rmse.update(nd.array([1, 2]), nd.array([4, 5]))
    >>> rmse.get()
    ('rmse', 3.0)
    """

    def __init__(self, name: str = "rmse", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)

    def _error(self, difference: Array) -> float:
        return math.sqrt(super()._error(difference))


class _Moments:
    """Means, variances and covariance of pairs that come batch by batch (Welford's update)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(2)
        self.squares = np.zeros((2, 2))  # sums of products of what is left after the means

    def add(self, x: Array, y: Array) -> None:
        values = np.stack([x, y]).reshape(2, -1).astype(np.float64)
        self.count += values.shape[1]
        before = values - self.mean[:, None]
        self.mean += before.sum(axis=1) / self.count
        self.squares += before @ (values - self.mean[:, None]).T

    def correlation(self) -> float:
        """Pearson's r; NaN where one of both does not vary."""
        spread = float(self.squares[0, 0] * self.squares[1, 1])
        return float(self.squares[0, 1]) / math.sqrt(spread) if spread > 0 else math.nan


@register
@alias("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Correlation of labels and predictions, cov(x, y) / sqrt(var(x) var(y)).

    average="macro" gives the mean of the correlations of the single updates; else it is that of all samples.

    Raises (update):
        ValueError: the shapes differ.

    >>> from gluongraph import metric, nd
    >>> r = metric.PearsonCorrelation()
    >>> r.update(nd.array([1, 2, 3]), nd.array([6, 4, 2]))
    >>> round(r.get()[1], 3)
    -1.0
    """

    def __init__(
        self,
        name: str = "pearsonr",
        output_names: Names = None,
        label_names: Names = None,
        average: str = "macro",
    ):
        self.average = average
        super().__init__(name, output_names, label_names, has_global_stats=True, average=average)

    def update(self, labels: Any, preds: Any) -> None:
        given = paired(self.name, labels, preds)
        for label, pred in given:
            need_equal(self.name, "labels", label.shape, "predictions", pred.shape)
        for label, pred in given:
            batch = _Moments()
            for moments in (batch, self._local, self._global):
                moments.add(label, pred)
            self._add(batch.correlation(), 1)

    def reset(self) -> None:
        self._global = _Moments()
        super().reset()

    def reset_local(self) -> None:
        self._local = _Moments()
        super().reset_local()

    def get(self) -> tuple[Any, Any]:
        return super().get() if self.average == "macro" else (self.name, self._local.correlation())

    def get_global(self) -> tuple[Any, Any]:
        return super().get_global() if self.average == "macro" else (self.name, self._global.correlation())
