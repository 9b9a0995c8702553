"""Running averages over batches: mx.metric."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_Class = TypeVar("_Class", bound="type[EvalMetric]")
_REGISTRY: dict[str, type[EvalMetric]] = {}
_ALIASES = {
    "acc": "accuracy",
    "top_k_accuracy": "topkaccuracy",
    "top_k_acc": "topkaccuracy",
    "composite": "compositeevalmetric",
}


def register(cls: _Class) -> _Class:
    """Class decorator: makes a metric known to `create` by its name in lower case."""
    _REGISTRY[cls.__name__.lower()] = cls
    return cls


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """A metric from a name, a metric, a function f(label, pred), or a list of those.

    Raises:
        ValueError: no metric has that name.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(m, *args, **kwargs) for m in metric])
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    key = str(metric).lower()
    found = _REGISTRY.get(_ALIASES.get(key, key))
    if found is None:
        names = sorted({*_REGISTRY, *_ALIASES})
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no metric is called {metric!r}; {hint}There are: {', '.join(names)}")
    return found(*args, **kwargs)


class EvalMetric:
    """Base class: a sum and a count, since `reset_local` and since `reset`.

    A subclass overrides `update(labels, preds)` and calls `add(sum, count)` in it.
    """

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        self.name = name
        self.output_names = output_names
        self.label_names = label_names
        self.reset()

    def add(self, total: float, count: int) -> None:
        """Count `count` more instances, whose values sum to `total`."""
        self.sum_metric += total
        self.num_inst += count
        self.global_sum_metric += total
        self.global_num_inst += count

    def update(self, labels: Any, preds: Any) -> None:
        """Take in one batch."""
        raise NotImplementedError(f"{type(self).__name__} says what it measures in update(labels, preds)")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """`update` with the arrays picked by `label_names` and `output_names`, all where None."""
        labels = list(label.values()) if self.label_names is None else [label[n] for n in self.label_names]
        preds = list(pred.values()) if self.output_names is None else [pred[n] for n in self.output_names]
        self.update(labels, preds)

    def reset(self) -> None:
        """Forget everything."""
        self.global_sum_metric, self.global_num_inst = 0.0, 0
        self.reset_local()

    def reset_local(self) -> None:
        """Forget what `get` tells, and keep what `get_global` tells."""
        self.sum_metric, self.num_inst = 0.0, 0

    def get(self) -> tuple[Any, Any]:
        """(name, mean since the last reset); the mean of nothing is NaN."""
        return self.name, self.sum_metric / self.num_inst if self.num_inst else math.nan

    def get_global(self) -> tuple[Any, Any]:
        """(name, mean since the last full reset)."""
        return self.name, self.global_sum_metric / self.global_num_inst if self.global_num_inst else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        """`get` as a list of pairs."""
        return _pairs(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """`get_global` as a list of pairs."""
        return _pairs(*self.get_global())

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


@register
class Accuracy(EvalMetric):
    """Share of predictions that equal their label; scores are reduced by argmax over `axis` first.

    >>> import numpy as np
    >>> acc = Accuracy()
    >>> acc.update(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]))
    >>> round(acc.get()[1], 3)
    0.667
    """

    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        super().__init__(name, output_names, label_names)
        self.axis = axis

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in _paired(labels, preds):
            classes = pred if pred.shape == label.shape else pred.argmax(self.axis)
            given, expected = classes.astype(np.int64).ravel(), label.astype(np.int64).ravel()
            if given.size != expected.size:
                raise ValueError(f"accuracy: {label.shape} labels do not fit predictions of shape {pred.shape}")
            self.add(int((given == expected).sum()), expected.size)


@register
class TopKAccuracy(EvalMetric):
    """Share of labels among the `top_k` best-scored classes of a (N, C) prediction."""

    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        if top_k <= 1:
            raise AssertionError(f"top_k must be more than 1, it is {top_k}; use Accuracy")
        super().__init__(f"{name}_{top_k}", output_names, label_names)
        self.top_k = top_k

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in _paired(labels, preds):
            if pred.ndim != 2 or len(pred) != label.size:
                raise ValueError(f"top_k_accuracy: {label.shape} labels do not fit predictions of shape {pred.shape}")
            best = np.argsort(-pred, axis=1, kind="stable")[:, : self.top_k]
            self.add(int((best == label.astype(np.int64).reshape(-1, 1)).any(axis=1).sum()), label.size)


@register
class Loss(EvalMetric):
    """Mean of the losses given as predictions; labels are not looked at."""

    def __init__(
        self,
        name: str = "loss",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        super().__init__(name, output_names, label_names)

    def update(self, labels: Any, preds: Any) -> None:
        for pred in _arrays(preds):
            self.add(float(pred.sum(dtype=np.float64)), pred.size)


class CustomMetric(EvalMetric):
    """Mean over batches of feval(label, pred), which gives a value or (sum, count), on numpy arrays."""

    def __init__(
        self,
        feval: Callable[[Array, Array], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        super().__init__(name or f"custom({getattr(feval, '__name__', 'feval')})", output_names, label_names)
        self.feval, self.allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in _paired(labels, preds, extra=self.allow_extra_outputs):
            value = self.feval(label, pred)
            total, count = value if isinstance(value, tuple) else (value, 1)
            self.add(float(total), int(count))


@register
class CompositeEvalMetric(EvalMetric):
    """Several metrics over the same batches."""

    def __init__(
        self,
        metrics: Sequence[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        self.metrics: list[EvalMetric] = [create(m) for m in metrics or []]
        super().__init__(name, output_names, label_names)

    def add(self, metric: Any, count: int = 0) -> None:
        """Append a metric."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """The metric at a position."""
        return self.metrics[index]

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[Any, Any]:
        return _lists(metric.get() for metric in self.metrics)

    def get_global(self) -> tuple[Any, Any]:
        return _lists(metric.get_global() for metric in self.metrics)


def _lists(pairs: Any) -> tuple[list[str], list[float]]:
    flat = [pair for name, value in pairs for pair in _pairs(name, value)]
    return [name for name, _ in flat], [value for _, value in flat]


def _pairs(name: Any, value: Any) -> list[tuple[str, float]]:
    return list(zip(name, value, strict=True)) if isinstance(name, list) else [(name, value)]


def _arrays(given: Any) -> list[Array]:
    """A list of numpy arrays from one array or several, of NDArray or numpy."""
    items = given if isinstance(given, (list, tuple)) else [given]
    return [x.asnumpy() if hasattr(x, "asnumpy") else np.asarray(x) for x in items]


def _paired(labels: Any, preds: Any, *, extra: bool = False) -> list[tuple[Array, Array]]:
    left, right = _arrays(labels), _arrays(preds)
    if len(left) != len(right) and not (extra and len(left) < len(right)):
        raise ValueError(f"{len(left)} label arrays do not fit {len(right)} predictions")
    return list(zip(left, right, strict=False))
