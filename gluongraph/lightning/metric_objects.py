"""Objects of torchmetrics in step functions that are traced: their calls are recorded, and made after each run of the
program, on the arrays that it gives."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from gluongraph.errors import TraceError, with_user_location
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.read_attributes import TracedNumber

METHODS = ("forward", "update", "compute", "reset")  # whose calls are recorded


def _classes() -> tuple[type, ...]:
    """The classes of torchmetrics' objects; none where no program has imported it."""
    package = sys.modules.get("torchmetrics")
    if package is None:
        return ()
    return package.Metric, package.MetricCollection, package.MetricTracker


def is_metric(value: Any) -> bool:
    """Is it a metric of torchmetrics, or a collection of them?"""
    return isinstance(value, _classes())


def is_collection(value: Any) -> bool:
    """Does the object hold several metrics by name?"""
    return is_metric(value) and isinstance(value, sys.modules["torchmetrics"].MetricCollection)


def metrics_of(module: Any) -> dict[str, Any]:
    """The objects of torchmetrics in a module, and in its parts, by the names of attributes."""
    if not _classes() or not hasattr(module, "named_modules"):
        return {}
    return {name: part for name, part in module.named_modules() if is_metric(part)}


def members_of(collection: Any) -> dict[str, Any]:
    """The metrics of a collection by the names that they are logged under. (Its `items` would change their states.)"""
    names = list(collection.keys(keep_base=False))
    return dict(zip(names, collection._modules.values(), strict=True))


def number_of(name: str, metric: Any, value: Any) -> float:
    """What a metric gave, as a number.

    Raises:
        MisconfigurationException: it gave several.
    """
    shape = getattr(value, "shape", None)
    if isinstance(value, dict):
        message = f"self.log({name!r}, ...): {type(metric).__name__} gives a dict: {', '.join(map(str, value))}"
        raise misconfigured(message, help="self.log_dict(metric(...)), or log its values in on_train_epoch_end")
    if shape is not None and value.numel() != 1:
        message = f"self.log({name!r}, ...): {type(metric).__name__} gives an array of shape {tuple(shape)}, no number"
        raise misconfigured(message, help="average='macro' gives one number; or log each element by its own name")
    return float(value)


def computed_alone(metric: Any) -> Any:
    """What a metric computes of the batches of this rank only; it goes on as if nobody had asked."""
    kept = metric._to_sync, metric._computed
    metric._to_sync, metric._computed = False, None
    try:
        return metric.compute()
    finally:
        metric._to_sync, metric._computed = kept


class BatchValue:
    """What an object of torchmetrics gives for a batch whose step is traced: it can be logged, and be the argument of
    another metric. Its value is known when the program has run.

    Raises:
        TraceError: where something is computed with it, or it is printed.
    """

    def __init__(self, metric: Any, call: int, key: str | None = None):
        self._metric, self._call, self._key = metric, call, key

    def __getitem__(self, key: str) -> BatchValue:
        return BatchValue(self._metric, self._call, key)

    def keys(self) -> list[str]:
        """The names of the metrics of a collection."""
        if self._key is not None or not is_collection(self._metric):
            self._refuse()
        return list(members_of(self._metric))

    def values(self) -> list[BatchValue]:
        """What each metric of a collection gives."""
        return [self[name] for name in self.keys()]

    def items(self) -> list[tuple[str, BatchValue]]:
        """The metrics of a collection, and what each gives."""
        return [(name, self[name]) for name in self.keys()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def of(self, results: Sequence[Any]) -> Any:
        """Its value, of the results of all calls of the step."""
        made = results[self._call]
        return made if self._key is None else made[self._key]

    @property
    def metric(self) -> Any:
        """The object that gives it."""
        return self._metric

    def _refuse(self, *_: Any) -> NoReturn:
        raise _ValueOfTracedMetric(_refusal(self._metric))

    def __getattr__(self, name: str) -> Any:
        self._refuse()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __len__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = __rpow__ = _refuse
    __str__ = __format__ = __hash__ = _refuse


class _ValueOfTracedMetric(TraceError, AttributeError):
    """The value of a traced batch's metric is asked for, maybe by an attribute as `.item()`."""


def refuse_in_result(result: Any, kind: str) -> None:
    """Refuse what a traced step function gives, if there is a value in it that is known later, or `batch_idx`.

    Raises:
        TraceError: there is.
    """
    for leaf in sys.modules["torch"].utils._pytree.tree_leaves(result):
        if isinstance(leaf, TracedNumber):
            int(leaf)  # raises, and says what to do
        if isinstance(leaf, BatchValue):
            message = f"{kind} gives the value of {type(leaf.metric).__name__}, which is computed when the step has run"
            help = "self.log(name, value), and read it in trainer.callback_metrics; or L.Trainer(..., eager=True)"
            raise TraceError(with_user_location(message, help=help))


def _refusal(metric: Any) -> str:
    message = (
        f"a compiled step asks for the value of {type(metric).__name__}, which is computed when the step has run: it"
        " can be logged, and nothing else"
    )
    help = "self.log(name, value); torchmetrics.functional computes within the step; or L.Trainer(..., eager=True)"
    return with_user_location(message, help=help)


@dataclass(frozen=True)
class _Tensor:
    """The argument of a recorded call that is an array of the program."""

    number: int


@dataclass(frozen=True)
class _Call:
    """A recorded call: `leaves` are the arguments, flattened as PyTorch's pytrees are."""

    metric: Any
    method: str
    leaves: tuple[Any, ...]
    structure: Any


@dataclass
class MetricCalls:
    """The calls of torchmetrics' objects in one traced step, in order, and the arrays that they take."""

    calls: list[_Call] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def record(self, metric: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BatchValue | None:
        """Record a call; gives what stands for its result."""
        tree = sys.modules["torch"].utils._pytree
        leaves, structure = tree.tree_flatten((args, kwargs))
        self.calls.append(_Call(metric, method, tuple([self._argument(leaf) for leaf in leaves]), structure))
        return BatchValue(metric, len(self.calls) - 1) if method in ("forward", "compute") else None

    def _argument(self, leaf: Any) -> Any:
        if not isinstance(leaf, sys.modules["torch"].Tensor):
            return leaf
        for number, known in enumerate(self.tensors):
            if known is leaf:
                return _Tensor(number)
        self.tensors.append(leaf)
        return _Tensor(len(self.tensors) - 1)

    def make(self, tensors: Sequence[Any]) -> list[Any]:
        """Make the calls on these tensors; gives their results."""
        torch = sys.modules["torch"]
        results: list[Any] = []

        def argument(leaf: Any) -> Any:
            if isinstance(leaf, _Tensor):
                return tensors[leaf.number]
            return leaf.of(results) if isinstance(leaf, BatchValue) else leaf

        with torch.no_grad():
            for call in self.calls:
                args, kwargs = torch.utils._pytree.tree_unflatten([argument(x) for x in call.leaves], call.structure)
                results.append(getattr(call.metric, call.method)(*args, **kwargs))
        return results


class _Recorder(Protocol):
    calls: MetricCalls


@contextmanager
def recorded(module: Any, recorder: _Recorder) -> Iterator[None]:
    """Within: calls of the objects of torchmetrics in a module go to the recorder's `calls`, and are not made."""

    def recording(metric: Any, method: str) -> Any:
        return lambda *args, **kwargs: recorder.calls.record(metric, method, args, kwargs)

    metrics = list(metrics_of(module).values())
    before = [dict(vars(metric)) for metric in metrics]
    try:
        for metric in metrics:
            for method in METHODS:
                vars(metric)[method] = recording(metric, method)
        yield
    finally:
        for metric, attributes in zip(metrics, before, strict=True):
            for method in METHODS:
                vars(metric).pop(method)
                if method in attributes:
                    vars(metric)[method] = attributes[method]
