"""How much of the forward a step recomputes to fit into a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gluongraph.compiler.memory_options import MemoryOptions
from gluongraph.compiler.memory_report import Footprint, footprint, format_bytes
from gluongraph.compiler.run_passes import run
from gluongraph.errors import MXNetError, located
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Plan
from gluongraph.passes.pipeline import Context, Recompute
from gluongraph.passes.remat import CHEAP, KEEP, LIGHT, WHOLE
from gluongraph.passes.remat_cost import seconds
from gluongraph.passes.remat_segments import Forward, forward_of

Planned = Callable[[Graph], tuple[Plan, Graph]]
WORTH = 0.1  # of a step's time: what "auto" spends at most
# Unasked, a step recomputes what takes next to no time, where that makes it smaller. Of small ones, which make up most
# of what is compiled, no second plan is looked at.
UNASKED, SAVED, LARGE = 0.009, 0.1, 64 << 20  # of a step's time, of its scratch, bytes of scratch


@dataclass(frozen=True)
class Choice:
    """A plan, the graph of its kernels, and what it takes."""

    plan: Plan
    graph: Graph
    footprint: Footprint


def search_memory(
    graph: Graph, names: Collection[str], roles: Mapping[str, str], memory_options: MemoryOptions, planned: Planned
) -> Choice:
    """The plan of a graph that is ready for `fuse`, with as much recomputed as was asked for, or as comes for next to
    nothing. `names` are the outputs and updates that no gradient goes into; without any nothing can be recomputed.

    Raises:
        MXNetError: no plan fits into the budget; the message says what the smallest takes.
    """
    search = _Search(graph, forward_of(graph, names, roles), planned, memory_options.activations)
    if memory_options.budget is not None:
        return search.within(memory_options.budget)
    if memory_options.mode is None:
        return search.unasked()
    return search.worth() if memory_options.mode == "auto" else search.smallest()


How = tuple[int, ...]
Level = tuple[Forward, How]  # segments, and what is done with each


class _Search:
    """Tries levels of recomputation, and between two of them how many segments go by the higher one.

    The first segments come first: gradients arrive at them last, when most other memory is free again.
    """

    def __init__(self, graph: Graph, forward: Forward, planned: Planned, low: str | None):
        self.graph, self.forward, self.planned, self.low = graph, forward, planned, low
        self.tried: dict[tuple[int, How], Choice] = {}
        self.least = self.choice(self.level(self.forward, KEEP))

    def levels(self) -> list[Level]:
        """From nothing recomputed to all but what enters longer and longer stretches."""
        count = len(self.forward.segments)
        found = [self.level(self.forward, how) for how in (KEEP, CHEAP, WHOLE)]
        size = 2
        while size < count:
            found.append(self.level(self.forward.joined(size), WHOLE))
            size *= 2
        return found

    def level(self, forward: Forward, how: int) -> Level:
        """All segments alike; of the last one, whose gradients follow at once, cheap operations at most."""
        return forward, (*(how,) * (len(forward.segments) - 1), min(how, CHEAP))[: len(forward.segments)]

    def choice(self, level: Level) -> Choice:
        """The plan of a level, made once."""
        forward, how = level
        key = (len(forward.segments), how)
        if (made := self.tried.get(key)) is None:
            context = Context(recompute=Recompute(forward, how, self.low))
            graph = run(self.graph, context, "remat", "remat")
            if graph is self.graph and self.tried:
                return self.least
            plan, graph = self.planned(graph)
            made = self.tried[key] = Choice(plan, graph, footprint(plan))
            if any(how):
                extra = seconds(plan) / seconds(self.least.plan) - 1
                made = self.tried[key] = replace(made, footprint=replace(made.footprint, extra_time=extra))
        return made

    def mixed(self, low: How, high: How, fits: Callable[[Choice], bool], most: bool) -> Choice | None:
        """Of plans in which the first segments go by `high` and the others by `low` one that fits: with the most, or
        the fewest, of `high`. It is looked for by halves."""
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
        """The plan with least recomputation that takes at most so many bytes."""

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
            located(
                f"memory_budget: {format_bytes(budget)} are too few; the smallest plan found takes {least}", help=help
            )
        )

    def unasked(self) -> Choice:
        """All kept; or light operations again, where that takes next to no time and makes a large step smaller."""
        least = self.least.plan.scratch_bytes
        if least < LARGE or not self.forward.segments:
            return self.least
        light = self.choice(self.level(self.forward, LIGHT))
        small = light.plan.scratch_bytes <= least * (1 - SAVED)
        return light if small and light.footprint.extra_time <= UNASKED else self.least

    def worth(self) -> Choice:
        """The smallest of the plans that are expected to take little more time."""

        def fits(choice: Choice) -> bool:
            return choice.footprint.extra_time <= WORTH

        levels = self.levels()[:3]
        for (_, low), (_, high) in pairwise(levels):
            self.mixed(low, high, fits, most=True)
        return self.best(fits)

    def smallest(self) -> Choice:
        """The smallest of all plans."""
        for level in self.levels():
            self.choice(level)
        return self.best(lambda choice: True)

    def best(self, fits: Callable[[Choice], bool]) -> Choice:
        """The smallest of those tried that fit; of equal ones the one that takes least time."""
        fitting: Sequence[Choice] = [choice for choice in self.tried.values() if fits(choice)]
        return min(fitting, key=lambda choice: (choice.footprint.peak, choice.footprint.extra_time))
