"""From a graph to its plan: runs the passes, with all that hangs on them. A warm start does not import it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from gluongraph import debug
from gluongraph.codegen.cache.measurements import Table
from gluongraph.codegen.rules import beside, offer, whole
from gluongraph.codegen.targets import Target
from gluongraph.compiler.memory_options import Thrift
from gluongraph.compiler.memory_search import Choice, thrifty
from gluongraph.errors import MXNetError
from gluongraph.ir import printer
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Plan
from gluongraph.ir.verify import verify, verify_plan
from gluongraph.ops import index_checks
from gluongraph.passes import PIPELINE, inline, layout, memory, schedule, select

REQUIRED = {"inline", "fuse"}  # passes: there are kernels for primitives, and only in groups


def choice(
    graph: Graph, roles: Mapping[str, str], forward: Collection[str], on: Target, thrift: Thrift, measured: Table
) -> Choice:
    """All stages up to the plan, with as much computed again as `thrift` says; see `compiler.lower`."""
    planned = partial(plan_kernels, roles=roles, on=on, measured=measured)
    return thrifty(prepared(graph, on), forward, roles, thrift, planned)


def plan_of(graph: Graph, roles: Mapping[str, str], on: Target, within: bool = False) -> tuple[Plan, Graph]:
    """All passes: the plan, and the graph of kernels that it was made from. `within`: of a scan's body."""
    return plan_kernels(prepared(graph, on, quiet=within), roles, on, within)


def prepared(graph: Graph, on: Target, quiet: bool = False) -> Graph:
    """The graph after all passes before `fuse`."""
    if not quiet and debug.settings().dump:
        debug.dump("00_traced.py", printer.show(graph))
    without = left_out()
    for number, each in enumerate(PIPELINE[:-1], 1):
        if each.__name__ not in without:
            graph = run(each, graph, 0 if quiet else number, on)
    return graph


def stages(graph: Graph, on: Target) -> Iterator[tuple[str, Graph]]:
    """The graph as traced, and after each pass by its name: what `plan_of` goes through, for somebody who looks."""
    without, graph = left_out(), index_checks.flagged(graph)
    yield "traced", graph
    for each in PIPELINE:
        if each.__name__ not in without:
            graph = run(each, graph, 0, on)
            yield each.__name__, graph


def plan_kernels(
    graph: Graph, roles: Mapping[str, str], on: Target, within: bool = False, measured: Table | None = None
) -> tuple[Plan, Graph]:
    """From `fuse` on: the plan, and the graph of its kernels. Candidates that were `measured` to be fastest are taken:
    by default all that have been up to now."""
    graph = run(PIPELINE[-1], graph, 0 if within else len(PIPELINE), on)
    chosen = offer(on) if within else partial(offer(on).tuned, table=measured)
    selection = select(graph, chosen, lambda body, inner: plan_of(body, inner, on, within=True)[0])
    plan = memory(schedule(selection, roles))
    if debug.settings().verify:
        verify_plan(plan, selection.graph)
    return plan, selection.graph


def left_out() -> set[str]:
    """The passes that do not run: those in GG_SKIP, and after GG_STOP's those that there can be code without.

    Raises:
        MXNetError: no such pass, or one that must run.
    """
    now, names = debug.settings(), [each.__name__ for each in PIPELINE]
    for variable, given in (("GG_SKIP", now.skip), ("GG_STOP", {now.stop} if now.stop else set())):
        for name in given:
            if name not in names:
                raise MXNetError(f"{variable}={name}: no pass has that name; there are {', '.join(names)}")
            if name in REQUIRED and variable == "GG_SKIP":
                raise MXNetError(f"GG_SKIP={name}: there is no code without this pass; others can be left out")
    later = names[names.index(now.stop) + 1 :] if now.stop else []
    return {*now.skip, *later} - REQUIRED


def run(each: Callable[[Graph], Graph], graph: Graph, number: int = 0, on: Target | None = None) -> Graph:
    """One pass, with all that hangs on passes: timing, verification, dumps. `on`: whose kernels it is for."""
    name, keep = each.__name__, whole(on) if on is not None else _none
    if on is not None and each is inline:
        each = partial(inline, keep=keep)
    elif on is not None and each is layout:
        each = partial(layout, lanes=beside(on))
    started = time.perf_counter()
    after = each(graph)
    milliseconds = (time.perf_counter() - started) * 1e3
    if debug.settings().verify:
        verify(after, name, keep)
    changed = "" if after is not graph and after != graph else " (unchanged)"
    debug.log("pass", f"{name}: {len(graph.nodes())} -> {len(after.nodes())} nodes, {milliseconds:.1f} ms{changed}")
    if not changed and number and (debug.settings().dump or debug.wants(name)):
        text = printer.show(after, f"after {name}")
        debug.dump(f"{number:02d}_{name}.py", text)
        debug.log(name, text)
    return after


def _none(n: Node) -> bool:
    """No composite has a kernel of its own."""
    return False
