"""What metrics share: sums and counts, how they are found by name, and pairs of arrays from what they are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gluongraph.host.registry import Registry
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array, given_array

_Class = TypeVar("_Class", bound="type[EvalMetric]")
Names = Sequence[str] | None


class EvalMetric:
    """Base class: the mean `sum_metric / num_inst` since `reset_local`, and the one since `reset`.

    A subclass adds to `sum_metric` and `num_inst` in `update(labels, preds)`. One that says has_global_stats=True adds
    to `global_sum_metric` and `global_num_inst` as well; for others `get_global` tells what `get` tells. Further
    keywords are what `get_config` needs to make the metric again. Those here say in `_measured` what an array of labels
    and one of predictions add, in numpy: if one of several does not fit, nothing has been added.

    >>> from gluongraph import metric, nd
    >>> class Wrong(metric.EvalMetric):
    ...     def update(self, labels, preds):
    ...         self.sum_metric += (labels != preds).sum().asscalar()
    ...         self.num_inst += labels.size
    >>> wrong = Wrong("wrong")
    >>> wrong.update(nd.array([0, 1, 2, 2]), nd.array([0, 1, 2, 1]))
    >>> round(float(wrong.get()[1]), 3)
    0.25
    """

    def __init__(self, name: str, output_names: Names = None, label_names: Names = None, **kwargs: Any):
        self.name = str(name)
        self.output_names, self.label_names = output_names, label_names
        self._has_global_stats = kwargs.pop("has_global_stats", False)
        self._kwargs = kwargs
        self.reset()

    def _add(self, total: float, count: int) -> None:
        """Count `count` more instances, whose values sum to `total`, in both means."""
        self.sum_metric += total
        self.num_inst += count
        self.global_sum_metric += total
        self.global_num_inst += count

    def update(self, labels: Any, preds: Any) -> None:
        """Take in one batch: arrays, or lists of them."""
        for total, count in [self._measured(label, pred) for label, pred in paired(self.name, labels, preds)]:
            self._add(total, count)

    def _measured(self, label: Array, pred: Array) -> tuple[float, int]:
        """The sum of the values of these instances, and how many they are."""
        raise NotImplementedError(f"{type(self).__name__} says what it measures in update(labels, preds)")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """`update` with the arrays picked by `label_names` and `output_names`, all where None.

        >>> from gluongraph import metric, nd
        >>> mae = metric.MAE(output_names=["y"], label_names=["t"])
        >>> mae.update_dict({"t": nd.array([1, 2])}, {"y": nd.array([2, 5]), "z": nd.array([0])})
        >>> mae.get()
        ('mae', 2.0)
        """
        labels = list(label.values()) if self.label_names is None else [label[n] for n in self.label_names]
        preds = list(pred.values()) if self.output_names is None else [pred[n] for n in self.output_names]
        self.update(labels, preds)

    def reset(self) -> None:
        """Forget everything."""
        self.global_sum_metric, self.global_num_inst = 0.0, 0
        self.reset_local()

    def reset_local(self) -> None:
        """Forget what `get` tells, and keep what `get_global` tells.

        >>> from gluongraph import metric, nd
        >>> acc = metric.Accuracy()
        >>> acc.update(nd.array([1]), nd.array([1]))
        >>> acc.reset_local()
        >>> acc.update(nd.array([1]), nd.array([0]))
        >>> acc.get(), acc.get_global()
        (('accuracy', 0.0), ('accuracy', 0.5))
        """
        self.sum_metric, self.num_inst = 0.0, 0

    def get(self) -> tuple[Any, Any]:
        """(name, mean since the last reset of any kind); the mean of nothing is NaN."""
        return self.name, self.sum_metric / self.num_inst if self.num_inst else math.nan

    def get_global(self) -> tuple[Any, Any]:
        """(name, mean since the last full reset)."""
        if not self._has_global_stats:
            return self.get()
        return self.name, self.global_sum_metric / self.global_num_inst if self.global_num_inst else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        """`get` as a list of pairs."""
        return pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """`get_global` as a list of pairs."""
        return pairs(*self.get_global())

    def get_config(self) -> dict[str, Any]:
        """What makes the metric again: `create(**metric.get_config())`.

        >>> from gluongraph import metric
        >>> metric.TopKAccuracy(top_k=3).get_config()["top_k"]
        3
        """
        names = {"name": self.name, "output_names": self.output_names, "label_names": self.label_names}
        return {**self._kwargs, "metric": type(self).__name__, **names}

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


METRICS = Registry(EvalMetric, "metric")


def register(cls: _Class) -> _Class:
    """Class decorator: makes a metric known to `create` by its name in lower case.

    Raises:
        AssertionError: the class is no subclass of EvalMetric.

    >>> from gluongraph import metric
    >>> @metric.register
    ... class BatchCount(metric.EvalMetric):
    ...     pass
    >>> metric.create("batchcount", name="batches").name
    'batches'
    """
    METRICS.register(cls)
    return cls


def alias(*names: str) -> Callable[[_Class], _Class]:
    """Class decorator: makes a metric known to `create` by further names.

    Raises:
        AssertionError: the class is no subclass of EvalMetric.

    >>> from gluongraph import metric
    >>> @metric.alias("number_of_batches")
    ... class BatchNumber(metric.EvalMetric):
    ...     pass
    >>> metric.create("number_of_batches", name="batches").name
    'batches'
    """
    return METRICS.alias(*names)


def pairs(name: Any, value: Any) -> list[tuple[str, float]]:
    """What `get` gives, of one metric or of several, as a list of (name, value).

    >>> pairs(["mae", "mse"], [1.0, 2.0])
    [('mae', 1.0), ('mse', 2.0)]
    """
    return list(zip(name, value, strict=True)) if isinstance(name, list) else [(name, value)]


# -- what metrics are given


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Both, if they have the same length, or with `shape` the same shape; `wrap` makes lists of single arrays.

    Raises:
        ValueError: they have not.

    >>> from gluongraph import metric, nd
    >>> labels, preds = metric.check_label_shapes(nd.zeros((2,)), nd.zeros((2, 3)), wrap=True)
    >>> labels[0].shape, preds[0].shape
    ((2,), (2, 3))
    """
    left, right = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if left != right:
        what = "shape" if shape else "number"
        raise ValueError(f"the {what} of labels, {left}, is not the {what} of predictions, {right}")
    if wrap:
        labels, preds = ([x] if isinstance(x, NDArray) else x for x in (labels, preds))
    return labels, preds


def arrays(given: Any) -> list[Array]:
    """A list of numpy arrays from one array or several, of NDArray or numpy.

    >>> from gluongraph import nd
    >>> [a.shape for a in arrays([nd.zeros((2, 3)), nd.zeros((4,))])]
    [(2, 3), (4,)]
    """
    items = given if isinstance(given, list | tuple) else [given]
    return [x.asnumpy() if isinstance(x, NDArray) else given_array(x) for x in items]


def paired(metric: str, labels: Any, preds: Any) -> list[tuple[Array, Array]]:
    """The labels, each with its prediction, in numpy. Raises ValueError unless there are as many of both.

    >>> from gluongraph import nd
    >>> [(label.shape, pred.shape) for label, pred in paired("acc", nd.zeros((2,)), nd.zeros((2, 3)))]
    [((2,), (2, 3))]
    """
    left, right = arrays(labels), arrays(preds)
    need_equal(metric, "arrays of labels", len(left), "arrays of predictions", len(right))
    return list(zip(left, right, strict=True))


def need_equal(metric: str, left: str, m: Any, right: str, n: Any) -> None:
    """Raise ValueError unless there are as many of the one as of the other.

    >>> need_equal("mae", "labels", 2, "predictions", 3)
    Traceback (most recent call last):
        ...
    ValueError: mae: 2 labels do not fit 3 predictions
    """
    if m != n:
        raise ValueError(f"{metric}: {m} {left} do not fit {n} {right}")
