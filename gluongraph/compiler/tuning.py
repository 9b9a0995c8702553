"""Measures the candidates of a step's kernels on this machine, and records the fastest (codegen/cache/measurements.py).

Called by `mx.compile(..., tune=True)`, `step.tune(*batch)` and `gluongraph tune`; docs/tuning.md is the page for users.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gluongraph import debug
from gluongraph.codegen.cache import measurements
from gluongraph.codegen.cache.measurements import Measurement
from gluongraph.codegen.cache.selections import key_of
from gluongraph.codegen.rule import Target
from gluongraph.codegen.rules import offer, tuning_variants
from gluongraph.compiler.candidate_timing import Contest
from gluongraph.errors import pluralize, with_user_location
from gluongraph.host.progress import task
from gluongraph.host.terminal import table
from gluongraph.ir.plan import Candidate, Launch, Plan
from gluongraph.passes.remat_cost import expected

SECONDS = 60.0  # what tune=True spends


def seconds_of(asked: bool | float | None) -> float:
    """Convert the argument `tune` to seconds; 0 for no tuning.

    Raises:
        ValueError: it is not a number of seconds.
    """
    if isinstance(asked, bool) or asked is None:
        return SECONDS if asked else 0.0
    if not isinstance(asked, (int, float)) or not 0 < asked < float("inf"):
        raise ValueError(with_user_location(f"tune is True or a number of seconds, not {asked!r}"))
    return float(asked)


@dataclass(frozen=True)
class Outcome:
    """One kernel: how often a step runs it, its candidates, the seconds of the rule's default and of the fastest.

    `exact`: are the results of the fastest equal to the default's to the bit?
    """

    kernel: str
    label: str
    rule: str
    calls: int
    candidates: int
    usual: float
    seconds: float
    setting: str
    exact: bool

    @property
    def saved(self) -> float:
        """Seconds saved per step."""
        return self.calls * (self.usual - self.seconds)

    @property
    def told(self) -> list[str]:
        """The outcome as a row of a table."""
        times = [f"{self.usual * 1e6:.1f}", f"{self.seconds * 1e6:.1f}", f"{self.usual / self.seconds - 1:.0%}"]
        return [*times, self.setting or "the rule's own", "" if self.exact else "rounds otherwise"]


class Tuning(list[Outcome]):
    """The outcomes of tuning, the most expensive kernels first; prints as a table.

    `left` kernels were not measured for lack of time; `known` ones have records from earlier runs.
    """

    def __init__(self, outcomes: Iterable[Outcome] = (), known: int = 0, left: int = 0, spent: float = 0.0):
        super().__init__(outcomes)
        self.known, self.left, self.spent = known, left, spent

    @property
    def changed(self) -> bool:
        """Was any candidate faster than the rule's default?"""
        return any(outcome.setting for outcome in self)

    @property
    def saved(self) -> float:
        """Seconds saved per step, by the times of its kernels."""
        return sum(outcome.saved for outcome in self)

    def data(self) -> dict[str, Any]:
        """Return the outcomes as JSON data."""
        told = {"known": self.known, "left": self.left, "spent": self.spent, "saved": self.saved}
        return {**told, "kernels": [asdict(outcome) for outcome in self]}

    def __str__(self) -> str:
        head = ["kernel", "rule", ">calls", ">candidates", ">us", ">tuned us", ">gain", "setting", ""]
        rows = [[o.kernel, o.rule, o.calls, o.candidates, *o.told] for o in self]
        before = sum(o.calls * o.usual for o in self)
        lines = [table(head, rows)] if rows else []
        lines.append(f"{pluralize(len(self), 'kernel')} measured in {self.spent:.1f} s, {self.known} known before")
        if self:
            lines[-1] += f"; of their {before * 1e3:.3f} ms a step {self.saved * 1e3:.3f} ms are saved"
        if self.left:
            lines.append(f"{self.left} are left: there was no more time for them")
        return "\n".join(lines)


def tune(plan: Plan, on: Target, seconds: float) -> Tuning:
    """Measure the kernels of a plan that have no tuning record, those that take most of a step's time first.

    After `seconds` no other kernel is started. Each kernel's record is written at once.
    """
    began, found = time.monotonic(), measurements.table(on)
    work, known = _work(plan, on)
    outcomes: list[Outcome] = []
    with task(len(work), "tuning") as further:
        for key, (launch, calls, candidates) in work.items():
            if time.monotonic() - began >= seconds:
                break
            usual, best = Contest(launch, on).run(candidates)
            found.put({key: Measurement(best.candidate, best.seconds, usual.seconds)})
            setting, rule = best.candidate.setting, best.candidate.rule
            times = (usual.seconds, best.seconds)
            made = Outcome(launch.kernel, launch.label, rule, calls, len(candidates), *times, setting, best.exact)
            outcomes.append(made)
            debug.log("target", f"tuned {made}")
            further(words=f"{sum(o.saved for o in outcomes) * 1e3:.2f} ms saved a step")
    return Tuning(outcomes, known, len(work) - len(outcomes), time.monotonic() - began)


Work = dict[str, tuple[Launch, int, tuple[Candidate, ...]]]


def _work(plan: Plan, on: Target) -> tuple[Work, int]:
    """Return by key a launch, its number of calls, and its candidates, the default first, in the order of expected
    time; and the number of kernels that have records."""
    launches: dict[str, list[Launch]] = {}
    for launch in plan.launches:
        launches.setdefault(key_of(launch.group), []).append(launch)
    selections, table = offer(on), measurements.table(on)
    work: Work = {}
    for key in sorted(launches, key=lambda key: -sum(map(expected, launches[key]))):
        first = launches[key][0]
        usual = None if first.group.inner is not None else selections(first.group)
        if usual is None or table.get(key) is not None:
            continue
        if others := tuning_variants(first.group, usual, on):
            work[key] = first, len(launches[key]), (usual, *others)
    return work, sum(table.get(key) is not None for key in launches)
