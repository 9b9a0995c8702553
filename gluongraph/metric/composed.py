"""Metrics made of other metrics, of a function, or of nothing but the predictions; and `create`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from gluongraph.metric.base import METRICS, EvalMetric, Names, alias, arrays, pairs, register
from gluongraph.storage import Array


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """A metric from a name, a configuration, a metric, a function f(label, pred), or a list of those.

    Raises:
        AssertionError: no metric has that name.

    >>> from gluongraph import metric
    >>> metric.create(["acc", "mae"]).get()
    (['accuracy', 'mae'], [nan, nan])
    """
    if isinstance(metric, list | tuple):
        return CompositeEvalMetric([create(m, *args, **kwargs) for m in metric])
    if callable(metric) and not isinstance(metric, type):
        return CustomMetric(metric, *args, **kwargs)
    return METRICS.create(metric, *args, **kwargs)


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics over the same batches; `get` gives lists of names and values.

    >>> from gluongraph import metric, nd
    >>> both = metric.CompositeEvalMetric(["mae", "mse"])
    >>> both.update(nd.array([1, 2]), nd.array([2, 5]))
    >>> both.get()
    (['mae', 'mse'], [2.0, 5.0])
    """

    def __init__(
        self,
        metrics: Sequence[Any] | None = None,
        name: str = "composite",
        output_names: Names = None,
        label_names: Names = None,
    ):
        self.metrics: list[EvalMetric] = [create(m) for m in metrics or []]
        super().__init__(name, output_names, label_names, has_global_stats=True)

    def add(self, metric: Any) -> None:
        """Append a metric.

        >>> from gluongraph import metric
        >>> both = metric.CompositeEvalMetric(["mae"])
        >>> both.add("mse")
        >>> len(both.metrics)
        2
        """
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """The metric at a position.

        Raises:
            ValueError: there is none.

        >>> from gluongraph import metric
        >>> metric.CompositeEvalMetric(["mae", "mse"]).get_metric(1).name
        'mse'
        """
        if not -len(self.metrics) <= index < len(self.metrics):
            raise ValueError(f"there is no metric {index} among {len(self.metrics)}")
        return self.metrics[index]

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """`update_dict` of each metric, of those arrays that `label_names` and `output_names` name."""
        if self.label_names is not None:
            label = {n: a for n, a in label.items() if n in self.label_names}
        if self.output_names is not None:
            pred = {n: a for n, a in pred.items() if n in self.output_names}
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[Any, Any]:
        return _lists([metric.get() for metric in self.metrics])

    def get_global(self) -> tuple[Any, Any]:
        return _lists([metric.get_global() for metric in self.metrics])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}


def _lists(found: Sequence[tuple[Any, Any]]) -> tuple[list[str], list[float]]:
    flat = [pair for name, value in found for pair in pairs(name, value)]
    return [name for name, _ in flat], [value for _, value in flat]


@register
class CustomMetric(EvalMetric):
    """Mean over batches of feval(label, pred) on numpy arrays, which gives a value or (sum, count).

    With `allow_extra_outputs` there may be more predictions than labels; the first ones count.

    >>> from gluongraph import metric, nd
    >>> worst = metric.CustomMetric(lambda label, pred: abs(label - pred).max(), name="worst")
    >>> worst.update(nd.array([1, 2]), nd.array([2, 5]))
    >>> worst.get()
    ('worst', 3.0)
    """

    def __init__(
        self,
        feval: Callable[[Array, Array], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Names = None,
        label_names: Names = None,
    ):
        if name is None:
            own: str = getattr(feval, "__name__", type(feval).__name__)
            name = f"custom({own})" if "<" in own else own
        super().__init__(name, output_names, label_names, has_global_stats=True)
        self._feval, self._allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        left, right = arrays(labels), arrays(preds)
        super().update(left, right[: len(left)] if self._allow_extra_outputs else right)

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        value = self._feval(label, pred)
        total, count = value if isinstance(value, tuple) else (value, 1)
        return float(total), int(count)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError(f"{self.name}: a function has no configuration; make the metric from it again")


def np(
    numpy_feval: Callable[[Array, Array], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """The CustomMetric of a function f(label, pred) on numpy arrays.

    >>> from gluongraph import metric, nd
    >>> worst = metric.np(lambda label, pred: abs(label - pred).max(), name="worst")
    >>> worst.update(nd.array([1, 2]), nd.array([2, 5]))
    >>> worst.get()
    ('worst', 3.0)
    """
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


@register
class Loss(EvalMetric):
    """Mean of the losses given as predictions; labels are not looked at.

    >>> from gluongraph import metric, nd
    >>> loss = metric.Loss()
    >>> loss.update(None, nd.array([1, 3]))
    >>> loss.get()
    ('loss', 2.0)
    """

    def __init__(self, name: str = "loss", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names, has_global_stats=True)

    def update(self, labels: Any, preds: Any) -> None:
        for pred in arrays(preds):
            self._add(float(pred.sum(dtype=numpy.float64)), pred.size)


@register
class Torch(Loss):
    """`Loss` under the name that scripts with PyTorch's criteria expect.

    >>> from gluongraph import metric, nd
    >>> loss = metric.Torch()
    >>> loss.update(None, nd.array([1, 3]))
    >>> loss.get()
    ('torch', 2.0)
    """

    def __init__(self, name: str = "torch", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)


@register
class Caffe(Loss):
    """`Loss` under the name that scripts with Caffe's criteria expect.

    >>> from gluongraph import metric, nd
    >>> loss = metric.Caffe()
    >>> loss.update(None, nd.array([1, 3]))
    >>> loss.get()
    ('caffe', 2.0)
    """

    def __init__(self, name: str = "caffe", output_names: Names = None, label_names: Names = None):
        super().__init__(name, output_names, label_names)
