"""Buckets: sums over ranks that are communicated together, as one collective over flat memory.

A collective has a fixed cost, and copying gradients into a bucket would cost more than it saves. So the collective
takes many operands, and the memory plan puts these one after another (`passes/assign_memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from gluongraph import ops
from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, rebuild

LIMIT = 32  # buckets of a program, at most: each is a part of the entry point


def bucket(graph: Graph) -> Graph:
    """all_reduce(a), all_reduce(b) -> all_reduce(a, b), for sums of one dtype that do not depend on one another.

    With a bucket size a collective ends when it has so many bytes; the gradients that are ready first are in the first.
    """
    groups = [group for group in _groups(graph) if len(group) > 1]
    return _merged(graph, groups) if groups else graph


def with_size(graph: Graph, size: int) -> Graph:
    """Return the graph with another bucket size for all sums over ranks: a trace has that measured for CPUs."""

    def sized(n: Node) -> Node:
        n = in_bodies(n, lambda body: with_size(body, size))
        if n.op.name != "allreduce" or (ranks := n.attrs.get("ranks", 1)) == 1:
            return n
        return ops.allreduce(*n.src, ranks=ranks, bucket=size)

    return rebuild(graph, sized)


def _groups(graph: Graph) -> list[list[Node]]:
    """Return the collectives to be merged. Those at the same level, the number of collectives on the longest path to
    them, do not depend on one another."""
    level: dict[Node, int] = {}
    depth: dict[Node, int] = {}
    found: dict[tuple[object, ...], list[Node]] = {}
    for n in graph.nodes():
        depth[n] = 1 + max((depth[s] for s in n.src), default=0)
        level[n] = max((level[s] + (s.op.kind == "collective") for s in n.src), default=0)
        if n.op.name == "all_reduce" and len(n.src) == 1:
            key = (level[n], n.src[0].dtype, n.attrs["ranks"], n.attrs.get("bucket", 0))
            found.setdefault(key, []).append(n)
    groups = []
    for (*_, size), members in found.items():
        members.sort(key=lambda n: depth[n])  # by the order in which they become ready
        groups += _split(members, size if isinstance(size, int) else 0)
    return groups


def _split(members: list[Node], size: int) -> list[list[Node]]:
    """Return consecutive parts of about `size` bytes; one if it is 0."""
    if not size:
        return [members]
    size = max(size, sum(n.src[0].ty.nbytes for n in members) // LIMIT)
    parts: list[list[Node]] = []
    room = 0
    for n in members:
        if not parts or room <= 0:
            parts.append([])
            room = size
        parts[-1].append(n)
        room -= n.src[0].ty.nbytes
    return parts


def _merged(graph: Graph, groups: list[list[Node]]) -> Graph:
    """Return the graph with one collective for each group."""
    group_of = {n: group for group in groups for n in group}
    new: dict[Node, Node] = {}
    origins: dict[Node, Origin] = dict(graph.origins)

    def before(n: Node) -> Iterable[Node]:
        return [member.src[0] for member in group_of[n]] if n in group_of else n.src

    def made(n: Node) -> Node:
        if n.op.name == "get_tuple_element" and (group := group_of.get(n.src[0])) is not None:
            return ops.get_tuple_element(new[n.src[0]], index=group.index(n.src[0]))
        if n in group_of:
            first = group_of[n][0]
            return first.on(tuple(new[s] for s in before(n)))
        return n.on(tuple(new[s] for s in n.src))

    stack = [(n, False) for n in reversed(graph.results)]
    while stack:
        n, ready = stack.pop()
        if ready:
            new[n] = made(n)
            if n in graph.origins:
                origins.setdefault(new[n], graph.origins[n])
        elif n not in new:
            stack.append((n, True))
            stack.extend((s, False) for s in before(n) if s not in new)
    outputs = {name: new[n] for name, n in graph.outputs.items()}
    return graph.with_results(outputs, {name: new[n] for name, n in graph.updates.items()}, origins)
