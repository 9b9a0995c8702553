"""Dead code elimination for loops: results of a scan that nobody reads are removed."""

from __future__ import annotations

from collections.abc import Mapping

from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node
from gluongraph.ops.loops import loop


def scan_dce(graph: Graph) -> Graph:
    """Remove the ys of scans that are not read, such as values saved for a gradient that is not computed."""
    read: dict[Node, set[int]] = {}
    for n in graph.nodes():
        if n.op.name == "get_tuple_element":
            read.setdefault(n.src[0], set()).add(n.attrs["index"])
    if all(_unread(n, read[n]) == 0 for n in read):
        return graph
    new: dict[Node, Node] = {}
    parts: dict[Node, Mapping[int, Node]] = {}  # replaced scan -> its results
    origins: dict[Node, Origin] = dict(graph.origins)
    for n in graph.nodes():
        if n.op.name == "get_tuple_element" and n.src[0] in parts:
            new[n] = parts[n.src[0]][n.attrs["index"]]
        else:
            new[n] = n.on(tuple(new[s] for s in n.src))
            if _unread(n, read.get(n, set())):
                parts[n] = _without_unread(new[n], read[n])
        if n in graph.origins:
            origins.setdefault(new[n], graph.origins[n])
    outputs = {name: new[n] for name, n in graph.outputs.items()}
    return graph.with_results(outputs, {name: new[n] for name, n in graph.updates.items()}, origins)


def _unread(n: Node, read: set[int]) -> int:
    """Return how many ys of a scan are not read; 0 for recomputed copies, which are not changed."""
    if n.op.name != "scan" or n.copy_id:
        return 0
    return len(set(range(n.attrs["carries"], len(n.types))) - read)


def _without_unread(n: Node, read: set[int]) -> dict[int, Node]:
    """Return the results of a scan that returns only the ys that are read, by their old index."""
    body: Graph = n.attrs["body"]
    carries, xs = n.attrs["carries"], n.attrs["xs"]
    operands = list(zip(body.inputs.values(), n.src, strict=True))
    results = tuple(body.outputs.values())
    remaining = [k for k in range(carries, len(results)) if k in read]
    finals, ys = loop(
        dict(operands[:carries]),
        dict(operands[carries : carries + xs]),
        dict(operands[carries + xs :]),
        results[:carries],
        [results[k] for k in remaining],
        n.attrs["length"],
        n.attrs["reverse"],
    )
    return dict(enumerate(finals)) | dict(zip(remaining, ys, strict=True))
