"""How long the parts of a loop take."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gluongraph.lightning.errors import misconfigured


class PassThroughProfiler:
    """Measures nothing."""

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: nothing is measured."""
        yield

    def describe(self) -> None:
        """Nothing."""


class SimpleProfiler(PassThroughProfiler):
    """The number and the time of each part.

    >>> profiler = SimpleProfiler()
    >>> with profiler.profile("setup"):
    ...     pass
    >>> list(profiler.seconds)
    ['setup']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: the time counts for this part."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - begin)

    def describe(self) -> None:
        """Print the table."""
        print(self.summary())

    def summary(self) -> str:
        """The table: name, number, mean and total seconds, by total."""
        rows = sorted(self.seconds.items(), key=lambda item: -sum(item[1]))
        width = max([len(name) for name, _ in rows] + [6])
        lines = [f"{'action':<{width}}  {'calls':>7}  {'mean s':>10}  {'total s':>10}"]
        for name, each in rows:
            lines.append(f"{name:<{width}}  {len(each):>7}  {sum(each) / len(each):>10.6f}  {sum(each):>10.4f}")
        return "\n".join(lines)


class AdvancedProfiler(SimpleProfiler):
    """The functions that take the time, by Python's cProfile."""

    def __init__(self) -> None:
        super().__init__()
        self._profile = cProfile.Profile()
        self._depth = 0

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: function calls are measured."""
        self._depth += 1
        if self._depth == 1:
            self._profile.enable()
        try:
            with super().profile(name):
                yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._profile.disable()

    def summary(self) -> str:
        """The table of the parts, and the thirty functions with the most time."""
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("cumulative").print_stats(30)
        return f"{super().summary()}\n{text.getvalue()}"


def profiler_of(given: Any) -> Any:
    """A profiler by its name, or as it is.

    Raises:
        MisconfigurationException: there is none of that name.
    """
    if given is None:
        return PassThroughProfiler()
    if given == "simple":
        return SimpleProfiler()
    if given == "advanced":
        return AdvancedProfiler()
    if hasattr(given, "profile"):
        return given
    help = '"simple", "advanced", or an object with profile(name); kernels are profiled by `gluongraph bench --profile`'
    raise misconfigured(f"profiler={given!r}: there is none of that name", help=help)
