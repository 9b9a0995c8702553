"""What `self.log` calls while a step is traced: the values become outputs of the program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gluongraph.errors import warn
from gluongraph.lightning.errors import MisconfigurationException, misconfigured
from gluongraph.lightning.metric_objects import BatchValue, MetricCalls, is_metric
from gluongraph.lightning.metrics import Logged, Observed

_LOCAL = threading.local()


class Recorder:
    """The values that one traced step logs, in order: `values` are arrays of the program, `observed` what objects of
    torchmetrics give by `calls` when it has run."""

    def __init__(self, fx: str) -> None:
        self.fx = fx
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.logged: list[Logged] = []
        self.values: list[Any] = []
        self.calls = MetricCalls()
        self.observed: list[Observed] = []

    def log(self, logged: Logged, value: Any, whole: bool = False) -> None:
        """Record a value; a `whole` one is a dict of values, which torchmetrics gives.

        Raises:
            MisconfigurationException: it is no array of one element; or it was logged otherwise in this step.
        """
        if whole:
            self.observed.append(Observed(logged, value, whole))
            return
        if any(each.logged.key == logged.key for each in self.observed) or any(
            each.key == logged.key and each != logged for each in self.logged
        ):
            message = f"self.log({logged.name!r}, ...) is called twice in {self.fx} with different arguments"
            raise misconfigured(message, help="use two names")
        if is_metric(value) or isinstance(value, BatchValue):
            self.observed.append(Observed(logged, value))
            return
        if isinstance(value, (int, float)):
            warn(
                f"self.log({logged.name!r}, {value!r}) in {self.fx} logs a number of Python's, which is a constant of"
                " the compiled step as long as the attributes that it reads hold the same. Compute it of arrays, or log"
                " it in on_train_batch_end"
            )
        else:
            count = 1
            for extent in getattr(value, "shape", (0,)):
                count *= int(extent)
            if count != 1:
                raise not_loggable(logged.name, value)
        self.logged.append(logged)
        self.values.append(value)


def not_loggable(name: str, value: Any) -> MisconfigurationException:
    """The error of a logged value that is not one number."""
    shape = tuple(getattr(value, "shape", ())) or type(value).__name__
    return misconfigured(f"self.log({name!r}, ...): a logged value has one element, not {shape}", help="value.mean()")


def current_recorder() -> Recorder | None:
    """The recorder of the step that is traced now; None outside of a trace."""
    return getattr(_LOCAL, "recorder", None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within: `self.log` records."""
    before = current_recorder()
    _LOCAL.recorder = recorder
    try:
        yield
    finally:
        _LOCAL.recorder = before
