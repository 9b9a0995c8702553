"""How much of the forward a step recomputes to fit into a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gluongraph.compiler.memory_options import MemoryOptions
from gluongraph.compiler.memory_report import Footprint, footprint, format_bytes
from gluongraph.compiler.run_passes import run
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Plan
from gluongraph.passes.pipeline import Context, Recompute
from gluongraph.passes.remat import CHEAP, KEEP, LIGHT, WHOLE
from gluongraph.passes.remat_cost import seconds
from gluongraph.passes.remat_segments import Forward, forward_of

Planned = Callable[[Graph], tuple[Plan, Graph]]
WORTH = 0.1  # fraction of a step's time that "auto" spends at most
# By default, a step recomputes cheap values if that saves enough memory. For small steps, which are most, no second
# plan is computed.
UNASKED, SAVED, LARGE = (
    0.009,
    0.1,
    64 << 20,
)  # at most this fraction of time; at least this of scratch; bytes of scratch


@dataclass(frozen=True)
class Choice:
    """A plan, the graph of its kernels, and its memory."""

    plan: Plan
    graph: Graph
    footprint: Footprint


def search_memory(
    graph: Graph, names: Collection[str], roles: Mapping[str, str], memory_options: MemoryOptions, planned: Planned
) -> Choice:
    """Return the plan of a graph that is ready for `fuse`, with as much recomputation as the options say, or by default
    as is nearly free. `names` are the outputs and updates that do not depend on gradients; if there are none, nothing
    can be recomputed.

    Raises:
        MXNetError: no plan fits the budget; the message says what the smallest plan needs.
    """
    search = _Search(graph, forward_of(graph, names, roles), planned, memory_options.activations)
    if memory_options.budget is not None:
        return search.within(memory_options.budget)
    if memory_options.mode is None:
        return search.unasked()
    return search.worth() if memory_options.mode == "auto" else search.smallest()


Policies = tuple[int, ...]
Level = tuple[Forward, Policies]  # segments, and what is done with each


class _Search:
    """Searches levels of recomputation, and between two levels how many segments have the policy of the higher one.

    These are the first segments: gradients reach them last, when most other memory is free again.
    """

    def __init__(self, graph: Graph, forward: Forward, planned: Planned, low: str | None):
        self.graph, self.forward, self.planned, self.low = graph, forward, planned, low
        self.tried: dict[tuple[int, Policies], Choice] = {}
        self.least = self.choice(self.level(self.forward, KEEP))

    def levels(self) -> list[Level]:
        """Return levels of increasing recomputation: none; cheap operations; all operations, of longer and longer
        segments."""
        count = len(self.forward.segments)
        found = [self.level(self.forward, policy) for policy in (KEEP, CHEAP, WHOLE)]
        size = 2
        while size < count:
            found.append(self.level(self.forward.joined(size), WHOLE))
            size *= 2
        return found

    def level(self, forward: Forward, policy: int) -> Level:
        """Return the level with the same policy for all segments; for the last one, whose gradients are computed at
        once, at most that of cheap operations."""
        return forward, (*(policy,) * (len(forward.segments) - 1), min(policy, CHEAP))[: len(forward.segments)]

    def choice(self, level: Level) -> Choice:
        """Return the plan of a level; each is computed once."""
        forward, policies = level
        key = (len(forward.segments), policies)
        if (cached := self.tried.get(key)) is None:
            context = Context(recompute=Recompute(forward, policies, self.low))
            graph = run(self.graph, context, "remat", "remat")
            if graph is self.graph and self.tried:
                return self.least
            plan, graph = self.planned(graph)
            cached = self.tried[key] = Choice(plan, graph, footprint(plan))
            if any(policies):
                extra = seconds(plan) / seconds(self.least.plan) - 1
                cached = self.tried[key] = replace(cached, footprint=replace(cached.footprint, extra_time=extra))
        return cached

    def mixed(self, low: Policies, high: Policies, fits: Callable[[Choice], bool], most: bool) -> Choice | None:
        """Find, by bisection, a plan that fits among those in which the first segments have policies `high` and the
        others `low`: the one with the most, or the fewest, segments of `high`."""
        found, few, many = None, 0, len(low)
        while few <= many:
            count = (few + many) // 2
            choice = self.choice((self.forward, high[:count] + low[count:]))
            good = fits(choice)
            found = choice if good else found
            if good == most:
                few = count + 1
            else:
                many = count - 1
        return found

    def within(self, budget: int) -> Choice:
        """Return the plan with least recomputation that needs at most `budget` bytes."""

        def fits(choice: Choice) -> bool:
            return choice.footprint.peak <= budget

        levels = self.levels()
        for i, level in enumerate(levels):
            if fits(choice := self.choice(level)):
                same = i > 0 and level[0] is levels[i - 1][0]
                return (self.mixed(levels[i - 1][1], level[1], fits, most=False) or choice) if same else choice
        least = self.smallest().footprint
        help = "a smaller batch, activations='bf16' or optimizer_state='bf16' take less"
        raise MXNetError(
            with_user_location(
                f"memory_budget: {format_bytes(budget)} are too few; the smallest plan found takes {least}", help=help
            )
        )

    def unasked(self) -> Choice:
        """Return the plan without recomputation; or of light operations, if that is nearly free and makes a large step
        smaller."""
        least = self.least.plan.scratch_bytes
        if least < LARGE or not self.forward.segments:
            return self.least
        light = self.choice(self.level(self.forward, LIGHT))
        small = light.plan.scratch_bytes <= least * (1 - SAVED)
        return light if small and light.footprint.extra_time <= UNASKED else self.least

    def worth(self) -> Choice:
        """Return the smallest of the plans whose expected extra time is at most WORTH."""

        def fits(choice: Choice) -> bool:
            return choice.footprint.extra_time <= WORTH

        levels = self.levels()[:3]
        for (_, low), (_, high) in pairwise(levels):
            self.mixed(low, high, fits, most=True)
        return self.best(fits)

    def smallest(self) -> Choice:
        """Return the smallest of all plans."""
        for level in self.levels():
            self.choice(level)
        return self.best(lambda choice: True)

    def best(self, fits: Callable[[Choice], bool]) -> Choice:
        """Return the smallest of the computed plans that fit; of equal ones the fastest."""
        fitting: Sequence[Choice] = [choice for choice in self.tried.values() if fits(choice)]
        return min(fitting, key=lambda choice: (choice.footprint.peak, choice.footprint.extra_time))
