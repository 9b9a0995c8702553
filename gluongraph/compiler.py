"""The compiler's table of contents: from a traced program to a running step. The only module that knows all stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph import debug, engine, printer
from gluongraph.codegen.build import Artefact, build
from gluongraph.codegen.rules import offer
from gluongraph.codegen.targets import Target, target
from gluongraph.ir import Graph
from gluongraph.passes import PIPELINE, memory, schedule, select
from gluongraph.plan import Plan
from gluongraph.runtime import loader
from gluongraph.runtime.executor import Executor
from gluongraph.verify import verify, verify_plan


@dataclass(frozen=True)
class Compiled:
    """A graph after all stages: the last graph, the plan, the artefact."""

    graph: Graph
    plan: Plan
    artefact: Artefact

    def executor(self, state: Mapping[str, np.ndarray[Any, Any]]) -> Executor:
        """The artefact loaded and bound to these state arrays."""
        module = self.artefact.module
        if module is None:
            assert self.artefact.path is not None
            module = loader.load_library(self.artefact.path)
        (function,) = loader.entry_points(module, ("step",)).values()
        return Executor(function, self.artefact.program, state)


def lower(graph: Graph, roles: Mapping[str, str], on: Target | None = None) -> Compiled:
    """One graph -> code. `roles` says of each input whether it is "state", "scalar" or "input" (see plan.SPACES)."""
    on = on or target()
    plan, graph = plan_of(graph, roles, on)
    debug.dump("plan.txt", printer.show_plan(plan))
    artefact = build(plan, on)
    debug.log("target", f"{on.name}: {len(plan.launches)} launches, {artefact.compiled} kernels compiled now")
    return Compiled(graph, plan, artefact)


def plan_of(graph: Graph, roles: Mapping[str, str], on: Target, quiet: bool = False) -> tuple[Plan, Graph]:
    """All passes: the plan, and the graph of kernels that it was made from."""
    if not quiet:
        debug.dump("00_traced.py", printer.show(graph))
    for number, each in enumerate(PIPELINE, 1):
        graph = run(each, graph, 0 if quiet else number)
    selection = select(graph, offer(on), lambda body, inner: plan_of(body, inner, on, quiet=True)[0])
    plan = memory(schedule(selection, roles))
    if debug.settings().verify:
        verify_plan(plan)
    return plan, selection.graph


def run(each: Callable[[Graph], Graph], graph: Graph, number: int = 0) -> Graph:
    """One pass, with all that hangs on passes: GG_SKIP, timing, verification, dumps."""
    name = each.__name__
    if name in debug.settings().skip:
        return graph
    started = time.perf_counter()
    after = each(graph)
    milliseconds = (time.perf_counter() - started) * 1e3
    if debug.settings().verify:
        verify(after, name)
    changed = "" if after is not graph and after != graph else " (unchanged)"
    debug.log("pass", f"{name}: {len(graph.nodes())} -> {len(after.nodes())} nodes, {milliseconds:.1f} ms{changed}")
    if not changed and number:
        debug.dump(f"{number:02d}_{name}.py", printer.show(after, f"after {name}"))
    return after
