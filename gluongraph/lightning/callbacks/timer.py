"""Counts the time of trainings, validations and tests, and ends a training after a time."""

from __future__ import annotations

import math
import re
import time
from datetime import timedelta
from typing import Any

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import Pace
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.utilities.rank_zero import rank_zero_info

_STAGES = ("train", "sanity_check", "validate", "test", "predict")


class Timer(Callback):
    """End the training after a `duration`: "DD:HH:MM:SS", a timedelta or its arguments as a dictionary.

    The time is looked at after batches (`interval="step"`) or after epochs ("epoch"); what was trained before the
    checkpoint that a training goes on from counts as well. Without a duration it only counts.

    >>> timer = Timer(duration="00:12:00:00", interval="epoch")
    >>> timer.time_remaining(), timer.time_elapsed("train"), timer.start_time("validate")
    (43200.0, 0.0, None)

    Raises:
        MisconfigurationException: a duration or an interval of another form.
    """

    def __init__(
        self,
        duration: str | timedelta | dict[str, int] | None = None,
        interval: str = "step",
        verbose: bool = True,
    ):
        if interval not in ("step", "epoch"):
            raise misconfigured(f"Timer(interval={interval!r})", help="interval is 'step' or 'epoch'")
        length = _length(duration)
        self._duration = None if length is None else length.total_seconds()
        self._interval, self._verbose = str(interval), verbose
        self._start_time: dict[str, float | None] = dict.fromkeys(_STAGES)
        self._end_time: dict[str, float | None] = dict.fromkeys(_STAGES)
        self._offset = 0.0
        self._pace = Pace()

    def start_time(self, stage: str = "train") -> float | None:
        """When a stage began, as time.monotonic() counts; None: not yet.

        >>> Timer().start_time("test") is None
        True
        """
        return self._start_time[_stage(stage)]

    def end_time(self, stage: str = "train") -> float | None:
        """When a stage ended, as time.monotonic() counts; None: not yet.

        >>> Timer().end_time("train") is None
        True
        """
        return self._end_time[_stage(stage)]

    def time_elapsed(self, stage: str = "train") -> float:
        """How many seconds a stage has taken so far; for "train", with those before the checkpoint it goes on from.

        >>> Timer().time_elapsed()
        0.0
        """
        start, end = self.start_time(stage), self.end_time(stage)
        offset = self._offset if stage == "train" else 0.0
        if start is None:
            return offset
        return (time.monotonic() if end is None or end < start else end) - start + offset

    def time_remaining(self, stage: str = "train") -> float | None:
        """How many seconds are left; None without a duration.

        >>> Timer(duration={"minutes": 2}).time_remaining()
        120.0
        """
        return None if self._duration is None else self._duration - self.time_elapsed(stage)

    def state_dict(self) -> dict[str, Any]:
        """The seconds that each stage has taken."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in _STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Count on from the seconds of a checkpoint."""
        self._offset = float(state_dict.get("time_elapsed", {}).get("train", 0.0))

    def idle_batches(self, trainer: Any) -> float:
        """Those that half of the time that is left should take; all where batches are not looked at."""
        left = self.time_remaining()
        if self._interval != "step" or left is None:
            return math.inf
        if trainer.world_size > 1:  # all ranks decide together
            return 0.0
        return self._pace.until(time.monotonic() + left / 2, trainer.counters.batches_seen)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count the training."""
        self._start_time["train"] = time.monotonic()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The training ends."""
        self._end_time["train"] = time.monotonic()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count a validation."""
        self._start_time["validate"] = time.monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The validation ends."""
        self._end_time["validate"] = time.monotonic()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count a test."""
        self._start_time["test"] = time.monotonic()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The test ends."""
        self._end_time["test"] = time.monotonic()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """A checkpoint may have used up the time already."""
        self._check_time_remaining(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the time, where that is done after batches."""
        if self._interval == "step":
            self._check_time_remaining(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the time, where that is done after epochs."""
        if self._interval == "epoch":
            self._check_time_remaining(trainer)

    def _check_time_remaining(self, trainer: Any) -> None:
        if self._duration is None:
            return
        stop = self.time_elapsed() >= self._duration
        if trainer.world_size > 1:
            stop = trainer.broadcast(str(int(stop))) == "1"
        trainer.should_stop = trainer.should_stop or stop
        if stop and self._verbose:
            elapsed = timedelta(seconds=int(self.time_elapsed()))
            rank_zero_info(f"The time limit was reached after {elapsed}. The training stops.")


def _length(duration: Any) -> timedelta | None:
    if isinstance(duration, str):
        found = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", duration.strip())
        if found is None:
            raise misconfigured(f"Timer(duration={duration!r})", help="DD:HH:MM:SS, as '00:12:00:00' for 12 hours")
        days, hours, minutes, seconds = map(int, found.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if isinstance(duration, dict):
        return timedelta(**duration)
    if duration is None or isinstance(duration, timedelta):
        return duration
    message = f"Timer(duration={duration!r})"
    raise misconfigured(message, help="a text DD:HH:MM:SS, a timedelta, or its arguments as a dictionary")


def _stage(name: str) -> str:
    if name not in _STAGES:
        raise misconfigured(f"Timer: there is no stage {name!r}", help=f"stages are {', '.join(_STAGES)}")
    return str(name)
