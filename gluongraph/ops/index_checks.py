"""Index checks of compiled code: one flag among the outputs, computed before anything is written.

A traced graph contains `checked_index` nodes. In numpy they raise by themselves. For compiled code they become plain
casts, and an additional output counts the indices out of range; if the count is not 0, the code returns before it has
changed anything (by `passes/schedule.py` and `codegen/build.py`), and the runtime raises the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from gluongraph.errors import IndexRangeError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, topological
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.ops import elementwise
from gluongraph.ops.checked_index import CHECKED_INDEX, refuse, violations


def checks_of(graph: Graph) -> list[Node]:
    """The nodes of a graph that check indices, sources first. Those in bodies of loops are not among them."""
    return [n for n in graph.nodes() if n.op is CHECKED_INDEX]


def flagged(graph: Graph) -> Graph:
    """Return the graph to compile: its output INDEX_FLAG counts indices out of range. Unchanged without checks."""
    checks = checks_of(graph)
    if not checks:
        return graph
    total = violations(checks[0])
    for n in checks[1:]:
        total = elementwise.add(total, violations(n))
    outputs = {**graph.outputs, INDEX_FLAG: total}
    return unchecked(graph.with_results(outputs, graph.updates))


def unchecked(graph: Graph) -> Graph:
    """The graph with plain casts in place of checks."""
    return graph.map(lambda n: elementwise.cast(n.src[0], n.dtype) if n.op is CHECKED_INDEX else n)


def plain(graph: Graph) -> Graph:
    """Return the graph without checks, and without the flag of an exported graph."""
    outputs = {name: n for name, n in graph.outputs.items() if name != INDEX_FLAG}
    return unchecked(graph.with_results(outputs, graph.updates))


def descriptions(graph: Graph) -> list[str]:
    """Describe what a graph checks, for readers without the values: 'Embedding: token id, from 0 to 99'."""
    told = (f"{n.attrs['what']}, from {n.attrs['low']} to {n.attrs['high'] - 1}" for n in checks_of(graph))
    return list(dict.fromkeys(told))


def ranges(graph: Graph) -> dict[str, range]:
    """Return the allowed range of each input whose elements are checked indices, for callers that generate inputs."""
    found: dict[str, range] = {}
    for n in checks_of(graph):
        for source in topological([n.src[0]]):
            if source.op.name == "input":
                name, allowed = source.attrs["name"], range(n.attrs["low"], n.attrs["high"])
                found[name] = min(found.get(name, allowed), allowed, key=len)
    return found


def raise_error(graph: Graph, values: Mapping[str, Any]) -> NoReturn:
    """The error of a call of `flagged(graph)` whose flag was set, given the arrays of its inputs by name.

    Raises:
        IndexRangeError: always.
    """
    for n in checks_of(graph):
        sources = list(n.src)
        arrays = interpreter.evaluate(sources, dict(_given(sources, values)))
        how = {k: n.attrs[k] for k in ("low", "high", "ignored", "what", "help")}
        origin = graph.origins.get(n)
        made = f"\n  made by {origin.scope or 'the program'} at {origin.file}:{origin.line}" if origin else ""
        refuse(*arrays, **how, where=made)
    raise IndexRangeError(f"an index is out of range: {'; '.join(descriptions(graph))}")


def _given(nodes: list[Node], values: Mapping[str, Any]) -> Iterator[tuple[Node, Any]]:
    for n in topological(nodes):
        if n.op.name == "input":
            yield n, np.asarray(values[n.attrs["name"]]).reshape(n.shape)
