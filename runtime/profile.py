"""Profiles of a step: every launch timed separately, in the step's order, on the step's own memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gluongraph.errors import pluralize
from gluongraph.ir.cost_model import Cost, Machine, costs
from gluongraph.ir.plan import Plan
from gluongraph.runtime import loader
from gluongraph.runtime.device import DeviceExecutor
from gluongraph.runtime.executor import Executor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One launch: its kernel, median time in seconds, cost, and the machine's lower bound for that cost."""

    kernel: str
    label: str
    rule: str
    seconds: float
    cost: Cost
    bound: float = 0.0  # seconds; 0 if the machine was not measured
    limit: str = ""  # what determines the bound: "memory" or "compute"

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.cost.nbytes

    @property
    def flops(self) -> int:
        """Arithmetic operations."""
        return self.cost.flops

    @property
    def share(self) -> float:
        """The bound divided by the time: 1 for a kernel that cannot be faster."""
        return self.bound / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> float:
        """Seconds beyond the bound."""
        return max(self.seconds - self.bound, 0.0)

    def __str__(self) -> str:
        rates = (v / self.seconds / 1e9 if self.seconds else 0.0 for v in (self.nbytes, self.flops))
        gigabytes, gigaflops = (f"{rate:8.1f}" for rate in rates)
        bound = f"{self.share:7.0%} {self.limit:7}" if self.bound else ""
        return (
            f"{self.kernel:5} {self.rule:12} {self.seconds * 1e6:9.1f} us {self.nbytes / 1e6:9.2f} MB"
            f" {self.flops / 1e6:10.1f} MFLOP {gigabytes} GB/s {gigaflops} GFLOP/s {bound} {self.label}"
        )


# The orders in which a table may be sorted, worst first.
ORDERS: Mapping[str, Callable[[Row], float]] = {
    "time": lambda row: -row.seconds,
    "lost": lambda row: -row.lost,
    "share": lambda row: row.share,
}


class Profile(list[Row]):
    """The rows of a step, in the order of its launches; prints as a table."""

    def __init__(self, rows: Sequence[Row] = (), machine: Machine | None = None):
        super().__init__(rows)
        self.machine = machine

    @property
    def seconds(self) -> float:
        """The time of all launches."""
        return sum(row.seconds for row in self)

    @property
    def share(self) -> float:
        """The sum of the bounds of all launches divided by the sum of their times."""
        return sum(row.bound for row in self) / self.seconds if self.seconds else 0.0

    def sorted(self, by: str) -> Profile:
        """Return the rows by "time", by the time that is "lost" beyond the bound, or by "share", worst first.

        Raises:
            ValueError: there is no such order.
        """
        if by not in ORDERS:
            raise ValueError(f"a profile is sorted by {', '.join(ORDERS)}, not {by!r}")
        return Profile(sorted(self, key=ORDERS[by]), self.machine)

    def data(self) -> dict[str, Any]:
        """Return the profile as JSON data."""
        rows = [
            {**asdict(row), "nbytes": row.nbytes, "flops": row.flops, "share": row.share, "lost": row.lost}
            for row in self
        ]
        machine = None if self.machine is None else asdict(self.machine)
        return {"machine": machine, "seconds": self.seconds, "share": self.share, "rows": rows}

    def __str__(self) -> str:
        bound = f", {self.share:.0%} of the roofline ({self.machine})" if self.machine else ""
        return "\n".join([*map(str, self), f"{pluralize(len(self), 'launch')}, {self.seconds * 1e3:.3f} ms{bound}"])


def profile(
    executor: Executor | DeviceExecutor,
    module: Any,
    plan: Plan,
    inputs: Sequence[Array],
    repeat: int = 20,
    machine: Machine | None = None,
) -> Profile:
    """Time each launch in `repeat` steps. The state is restored afterwards. With collectives all ranks call this."""
    functions = {name: loader.function(module, name) for name in plan.kernels}
    collectives = iter(executor.collectives)
    with executor.lent(inputs) as memory:
        position = plan.positions
        calls: list[tuple[Callable[..., object], list[Any]]] = [
            (functions[launch.kernel], [memory[position[b.name]] for b in launch.arguments])
            if launch.group.collective is None
            else (next(collectives), [])
            for launch in plan.launches
        ]
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(repeat + 1):
            for (function, arguments), spent in zip(calls, times, strict=True):
                started = time.perf_counter()
                function(*arguments)
                executor.wait()
                spent.append(time.perf_counter() - started)
    rows = []
    for launch, spent, must in zip(plan.launches, times, costs(plan), strict=True):
        median = statistics.median(spent[1:])
        row = Row(launch.kernel, launch.label, launch.candidate.rule, median, must)
        if machine is not None:
            row = replace(row, bound=machine.bound(must), limit=machine.limit(must))
        rows.append(row)
    return Profile(rows, machine)
