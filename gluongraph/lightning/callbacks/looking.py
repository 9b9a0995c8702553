"""When a callback has to look at a batch: after how many steps, or how much time."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np


def number(metric: Any) -> np.floating[Any]:
    """A metric as a number: float32 where that holds it, as most metrics are computed, else float64.

    Comparisons with thresholds are done in the type of the metric. A 0.1 of float32 is no more than 0.1 this way.

    >>> number(0.5) > 0.25, number(float(np.float32(0.1))) > 0.1
    (np.True_, np.False_)
    """
    value = np.float64(metric.item() if hasattr(metric, "item") else metric)
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return narrow if narrow == value or np.isnan(value) else value


def logs(trainer: Any) -> bool:
    """Is the step of this batch one of those that are logged (`log_every_n_steps`)?"""
    every = trainer.log_every_n_steps
    return every > 0 and (bool(trainer.should_stop) or (trainer.counters.logged_steps + 1) % every == 0)


def until_multiple(step: int, every: int) -> float:
    """How many of the next batches may pass before one after which the number of steps is a multiple of `every`.

    A batch is at most one step, so that many are certainly not too many where gradients are accumulated.

    >>> until_multiple(0, 5), until_multiple(4, 5), until_multiple(5, 5), until_multiple(3, 0)
    (4.0, 0.0, 4.0, inf)
    """
    return float(every - step % every - 1) if every > 0 else math.inf


class Pace:
    """How many batches pass until a moment, by how many have passed lately.

    >>> Pace().until(time.monotonic() + 10, seen=5)  # nothing is known yet
    0.0
    """

    _LONG = 0.02  # seconds over which the rate is measured, at least

    def __init__(self) -> None:
        self._rate, self._since, self._seen = 0.0, -math.inf, 0

    def until(self, moment: float, seen: int) -> float:
        """How many batches are done until a moment of time.monotonic(), now that so many have been."""
        now = time.monotonic()
        if seen < self._seen or math.isinf(self._since):
            self._rate, self._since, self._seen = 0.0, now, seen
        elif now - self._since >= self._LONG and seen > self._seen:
            self._rate = (seen - self._seen) / (now - self._since)
            self._since, self._seen = now, seen
        return float(int(self._rate * (moment - now))) if moment > now else 0.0
