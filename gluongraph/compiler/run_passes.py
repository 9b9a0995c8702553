"""Runs passes, with GG_SKIP and GG_STOP, timing, verification, logs and dumps."""

from __future__ import annotations

import time
from typing import Any

from gluongraph import debug
from gluongraph.errors import MXNetError
from gluongraph.ir import printer
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Plan
from gluongraph.ir.verify import verify, verify_plan
from gluongraph.passes.pipeline import PIPELINE, PLANNING, RENAMED, Context, Pass, passes
from gluongraph.passes.select import Selection

_STEPS = (*PIPELINE, *PLANNING)


def run(graph: Graph, context: Context, first: str, last: str, quiet: bool = False) -> Graph:
    """Run the passes from `first` to `last` that the context enables. `quiet`: dump nothing."""
    without = left_out()
    for each in passes(first, last):
        if each.name not in without and each.when(context):
            graph = _run_one(each, graph, context, quiet)
    return graph


def plan(graph: Graph, context: Context) -> tuple[Plan, Graph]:
    """Return the plan of a graph of kernels, and the graph after `select`."""
    found: Any = graph
    for each in PLANNING:
        found = each.run(found, context)
        if isinstance(found, Selection):
            graph = found.graph
    if debug.settings().verify:
        verify_plan(found, graph)
    return found, graph


def left_out() -> set[str]:
    """Return the passes that do not run: those in GG_SKIP, and after GG_STOP's pass those that are not required.

    Raises:
        MXNetError: there is no such pass, or GG_SKIP names a required one.
    """
    now, names = debug.settings(), [each.name for each in _STEPS]
    required = {each.name for each in _STEPS if each.required}
    skip = {RENAMED.get(name, name) for name in now.skip}
    stop = RENAMED.get(now.stop, now.stop)
    for variable, given in (("GG_SKIP", skip), ("GG_STOP", {stop} if stop else set())):
        for name in given:
            if name not in names:
                raise MXNetError(f"{variable}={name}: no pass has that name; there are {', '.join(names)}")
            if name in required and variable == "GG_SKIP":
                raise MXNetError(f"GG_SKIP={name}: there is no code without this pass; others can be left out")
    later = names[names.index(stop) + 1 :] if stop else []
    return {*skip, *later} - required


def _run_one(each: Pass[Graph, Graph], graph: Graph, context: Context, quiet: bool) -> Graph:
    name = each.name
    started = time.perf_counter()
    after = each.run(graph, context)
    milliseconds = (time.perf_counter() - started) * 1e3
    if debug.settings().verify:
        verify(after, name, context.has_kernel)
    changed = "" if after is not graph and after != graph else " (unchanged)"
    debug.log("pass", f"{name}: {len(graph.nodes())} -> {len(after.nodes())} nodes, {milliseconds:.1f} ms{changed}")
    if not changed and not quiet and (debug.settings().dump or debug.wants(name)):
        text = printer.show(after, f"after {name}")
        debug.dump(f"{PIPELINE.index(each):02d}_{name}.py", text)
        debug.log(name, text)
    return after
