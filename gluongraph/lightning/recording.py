"""What `self.log` calls while a step is traced: the values become outputs of the program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from gluongraph.errors import warn
from gluongraph.lightning.errors import MisconfigurationException, misconfigured
from gluongraph.lightning.metric_objects import BatchValue, MetricCalls, is_metric
from gluongraph.lightning.metrics import OF_DATA, Logged, Observed

_LOCAL = threading.local()
P = ParamSpec("P")
R = TypeVar("R")


class Recorder:
    """The values that one traced step logs, in order: `values` are arrays of the program, `samples` the numbers of
    samples that it computes for some of them, `observed` what objects of torchmetrics give by `calls` when it has run.
    """

    def __init__(self, fx: str) -> None:
        self.fx = fx
        self.refused: MisconfigurationException | None = None  # the error of `self.log`
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.logged: list[Logged] = []
        self.values: list[Any] = []
        self.samples: list[Any] = []
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
        logged, samples = of_data(logged)
        if any(each.logged.key == logged.key for each in self.observed) or any(
            each.key == logged.key and replace(each, batch_size=logged.batch_size) != logged for each in self.logged
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
        self.samples += samples

    @property
    def outputs(self) -> list[Any]:
        """What the program has to give: the values, and then the numbers of samples that it computes."""
        return [*self.values, *self.samples]


def of_data(logged: Logged) -> tuple[Logged, list[Any]]:
    """How a value is logged, with `OF_DATA` in place of a number of samples that is an array of the program, and that
    array."""
    given = logged.batch_size
    if given is None or isinstance(given, (int, float)):
        return logged, []
    return replace(logged, batch_size=OF_DATA), [given]


def told_to_recorder(method: Callable[P, R]) -> Callable[P, R]:
    """A method that tells the recorder what it refuses, which is the user's mistake, and not one that a step cannot be
    traced for."""

    @functools.wraps(method)
    def call(*args: P.args, **how: P.kwargs) -> R:
        try:
            return method(*args, **how)
        except MisconfigurationException as error:
            if (recorder := current_recorder()) is not None:
                recorder.refused = error
            raise

    return call


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
