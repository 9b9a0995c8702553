"""The values of a metric over a run, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Bucket:
    """Consecutive values: where the last of them stands, their sum, least and largest, and how many there are."""

    step: int
    epoch: float | None
    seconds: float
    total: float
    low: float
    high: float
    count: int = 1

    def joined(self, later: Bucket) -> Bucket:
        """These values and those of a later bucket."""
        total, count = self.total + later.total, self.count + later.count
        low, high = min(self.low, later.low), max(self.high, later.high)
        return Bucket(later.step, later.epoch, later.seconds, total, low, high, count)

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.total / self.count


@dataclass
class Series:
    """All values of a metric, in at most `most` buckets: where there are more, neighbours are joined.

    A bucket knows the least and the largest of its values, so that no peak is lost.

    >>> series = Series(most=4)
    >>> for step in range(8):
    ...     series.add(step, None, 0.1 * step, float(step))
    >>> [(bucket.low, bucket.mean, bucket.high) for bucket in series.buckets]
    [(0.0, 0.5, 1.0), (2.0, 2.5, 3.0), (4.0, 4.5, 5.0), (6.0, 6.5, 7.0)]
    >>> series.count, series.low, series.high, series.last
    (8, 0.0, 7.0, 7.0)
    """

    most: int = 1000
    buckets: list[Bucket] = field(default_factory=list)
    width: int = 1  # values of a full bucket
    count: int = 0
    last: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    low_step: int = 0
    high_step: int = 0
    not_finite: list[int] = field(default_factory=list)  # steps, the first of them
    bad: int = 0  # how many there are

    def add(self, step: int, epoch: float | None, seconds: float, value: float) -> None:
        """Take a value."""
        self.count += 1
        self.last = value
        if not math.isfinite(value):
            self.bad += 1
            if len(self.not_finite) < 100:
                self.not_finite.append(step)
            return
        if value < self.low:
            self.low, self.low_step = value, step
        if value > self.high:
            self.high, self.high_step = value, step
        new = Bucket(step, epoch, seconds, value, value, value)
        if self.buckets and self.buckets[-1].count < self.width:
            self.buckets[-1] = self.buckets[-1].joined(new)
            return
        if len(self.buckets) == self.most:
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=False)
            odd = self.buckets[-1:] if len(self.buckets) % 2 else []
            self.buckets = [earlier.joined(later) for earlier, later in pairs] + odd
            self.width *= 2
            if self.buckets[-1].count < self.width:
                self.buckets[-1] = self.buckets[-1].joined(new)
                return
        self.buckets.append(new)

    def data(self) -> dict[str, Any]:
        """The same for a page: columns of numbers of six digits."""
        columns = {
            "step": [b.step for b in self.buckets],
            "epoch": [b.epoch for b in self.buckets],
            "seconds": [_short(b.seconds) for b in self.buckets],
            "mean": [_short(b.mean) for b in self.buckets],
        }
        if self.width > 1:
            columns |= {"low": [_short(b.low) for b in self.buckets], "high": [_short(b.high) for b in self.buckets]}
        extremes = list(self._extremes())
        told = {"count": self.count, "last": _short(self.last), "extremes": extremes}
        return {**columns, **told, "notFinite": self.not_finite, "bad": self.bad}

    def _extremes(self) -> Iterator[Any]:
        """The least value, where it was, the largest, and where that was."""
        if self.count > self.bad:
            yield from (_short(self.low), self.low_step, _short(self.high), self.high_step)


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
