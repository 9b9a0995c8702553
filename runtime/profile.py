"""Where the time of a step goes: every launch timed by itself, in the step's order, on the step's own memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph.plan import Launch, Plan
from gluongraph.runtime import loader
from gluongraph.runtime.device import DeviceExecutor
from gluongraph.runtime.executor import Executor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One launch: what it is, its median time in seconds, the bytes of all it reads and writes."""

    kernel: str
    label: str
    rule: str
    seconds: float
    nbytes: int

    def __str__(self) -> str:
        rate = self.nbytes / self.seconds / 1e9 if self.seconds else 0.0
        return f"{self.kernel:5} {self.rule:9} {self.seconds * 1e6:9.1f} us {rate:7.1f} GB/s  {self.label}"


def profile(
    executor: Executor | DeviceExecutor, module: Any, plan: Plan, inputs: Sequence[Array], repeat: int = 20
) -> list[Row]:
    """Time each launch `repeat` times over whole steps. State is put back afterwards: nothing has been trained."""
    functions = {launch.kernel: loader.function(module, launch.kernel) for launch in plan.launches}
    with executor.lent(inputs) as memory:
        calls = [(functions[launch.kernel], [memory[b.name] for b in launch.arguments]) for launch in plan.launches]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(repeat + 1):
            for (function, arguments), spent in zip(calls, times, strict=True):
                started = time.perf_counter()
                function(*arguments)
                executor.wait()
                spent.append(time.perf_counter() - started)
    medians = [statistics.median(spent[1:]) for spent in times]
    return [_row(launch, seconds) for launch, seconds in zip(plan.launches, medians, strict=True)]


def _row(launch: Launch, seconds: float) -> Row:
    nbytes = sum(b.type.nbytes for b in (*launch.reads, *launch.writes))
    return Row(launch.kernel, launch.label, launch.candidate.rule, seconds, nbytes)
