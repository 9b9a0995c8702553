"""From a graph to its plan, for a target. A warm start does not import it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from gluongraph import debug
from gluongraph.codegen.cache.measurements import Table
from gluongraph.codegen.rule import Target
from gluongraph.codegen.rules import has_composite_kernel, offer, preferred_lanes
from gluongraph.compiler.memory_options import MemoryOptions
from gluongraph.compiler.memory_search import Choice, search_memory
from gluongraph.compiler.run_passes import left_out, plan, run
from gluongraph.ir import printer
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Plan
from gluongraph.ops import index_checks
from gluongraph.passes.pipeline import Context, passes


def context_of(on: Target, roles: Mapping[str, str] | None = None) -> Context:
    """Return the passes' context for a target."""

    def nest(body: Graph, inner: Mapping[str, str]) -> Plan:
        return plan_of(body, inner, on, within=True)[0]

    return Context(
        has_kernel=has_composite_kernel(on), lanes=preferred_lanes(on), offer=offer(on), nest=nest, roles=roles or {}
    )


def choice(
    graph: Graph,
    roles: Mapping[str, str],
    forward: Collection[str],
    on: Target,
    memory_options: MemoryOptions,
    measured: Table,
) -> Choice:
    """Run all stages up to the plan, with recomputation as `memory_options` says; see `compiler.lower`."""
    planned = partial(plan_kernels, roles=roles, on=on, measured=measured)
    return search_memory(prepared(graph, on), forward, roles, memory_options, planned)


def plan_of(graph: Graph, roles: Mapping[str, str], on: Target, within: bool = False) -> tuple[Plan, Graph]:
    """Run all passes; return the plan, and the graph of kernels. `within`: is it a scan's body?"""
    return plan_kernels(prepared(graph, on, quiet=within), roles, on, within)


def prepared(graph: Graph, on: Target, quiet: bool = False) -> Graph:
    """Return the graph after all passes before `remat`."""
    if not quiet and debug.settings().dump:
        debug.dump("00_traced.py", printer.show(graph))
    return run(graph, context_of(on), "shapes", "bucket", quiet)


def stages(graph: Graph, on: Target) -> Iterator[tuple[str, Graph]]:
    """Iterate over the graphs of `plan_of`, for display: as traced, and after each pass by its name."""
    context, without, graph = context_of(on), left_out(), index_checks.flagged(graph)
    yield "traced", graph
    for each in passes("shapes", "fuse"):
        if each.name not in without and each.when(context):
            graph = run(graph, context, each.name, each.name, quiet=True)
            yield each.name, graph


def plan_kernels(
    graph: Graph,
    roles: Mapping[str, str],
    on: Target,
    within: bool = False,
    measured: Table | None = None,
) -> tuple[Plan, Graph]:
    """Run `fuse` and the planning passes; return the plan, and the graph of its kernels. `measured`: the tuning records
    by which candidates are selected, by default the current ones."""
    context = context_of(on, roles)
    if not within:
        context = replace(context, offer=partial(offer(on).tuned, table=measured))
    return plan(run(graph, context, "fuse", "fuse", within), context)
