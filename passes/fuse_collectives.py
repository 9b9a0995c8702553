"""Operands and results of collectives in a graph of kernels: memory that the collective has for itself.

A collective works on flat memory, in place where its op says so. What it reads must therefore be a value that some
kernel computes for it alone, and what it writes no output of the program: both are copied where they are not.
"""

from __future__ import annotations

from collections import Counter

from gluongraph import ops
from gluongraph.ir.graph import OPS, Graph, Node, node
from gluongraph.passes.schedule_inplace import root


def is_collective(n: Node) -> bool:
    """Is this a fused node that consists of a collective?"""
    return n.op.name == "fused" and n.attrs["pattern"] == "collective"


def copy_shared_operands(graph: Graph) -> Graph:
    """Return the graph with copies of operands that others read too, and of results that are results of the program.
    `all_gather` comes after copies of inputs of its operand's type: its shard may be the input that is copied, which is
    a part of the memory that it writes."""
    if not any(map(is_collective, graph.nodes())):
        return graph
    readers = Counter(root(s) for n in graph.nodes() if n.op.name == "fused" for s in n.src)
    results = {root(n) for n in graph.results}
    input_copies = [n for n in graph.nodes() if _is_input_copy(n)]
    copies = 0

    def copied(s: Node) -> Node:
        nonlocal copies
        copies += 1
        x = ops.input("x0", s.ty)
        attrs = {"body": Graph({"x0": x}, {"y0": x}), "pattern": "loop"}
        return ops.get_tuple_element(node(OPS["fused"], (s,), attrs, copies), index=0)

    def is_own(s: Node) -> bool:
        r = root(s)
        computed = r.op.name == "get_tuple_element" and not is_collective(r.src[0])
        return computed and readers[r] == 1 and r not in results

    new: dict[Node, Node] = {}
    for n in graph.nodes():
        sources = tuple(new[s] for s in n.src)
        if is_collective(n) and _kind(n) != "all_gather":
            sources = tuple(new[s] if is_own(s) else copied(new[s]) for s in n.src)
        elif is_collective(n) and (first := [copy for copy in input_copies if copy.ty == n.src[0].ty]):
            sources = (ops.depends_on(sources[0], *first),)
        new[n] = n.on(sources)
    origins = {new[n]: origin for n, origin in graph.origins.items() if n in new}

    def result(n: Node, is_update: bool) -> Node:
        r = root(n)
        if r.op.name != "get_tuple_element" or not is_collective(r.src[0]):
            return new[n]
        in_place = _kind(r.src[0]) == "all_gather" and is_update  # parameters lie one after another in their arena
        return new[n] if in_place else copied(new[n])

    outputs = {name: result(n, False) for name, n in graph.outputs.items()}
    updates = {name: result(n, True) for name, n in graph.updates.items()}
    return graph.with_results(outputs, updates, origins)


def _is_input_copy(n: Node) -> bool:
    """Is this the result of a kernel that copies an input?"""
    if n.op.name != "get_tuple_element" or n.src[0].op.name != "fused" or len(n.src[0].src) != 1:
        return False
    body: Graph = n.src[0].attrs["body"]
    copied = all(y.op.name == "input" for y in body.outputs.values())
    return copied and root(n.src[0].src[0]).op.name == "input"


def _kind(fused: Node) -> str:
    body: Graph = fused.attrs["body"]
    return next(n.op.name for n in body.nodes() if n.op.kind == "collective")
