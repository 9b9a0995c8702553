"""Stored values that are cheaper to recompute in each reader, from other stored values, than to load.

To store a value costs a write, and a read in each kernel that needs it; a write costs as much as two reads, since the
processor fetches the memory first. To compute it again costs each of those kernels a read of all that it is made from,
and a few instructions for each element, which take a fraction of that time. So x - mean of a batch norm is never
stored: x is, and mean is small.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from gluongraph.ir.graph import Graph, Node
from gluongraph.passes.compared import compared
from gluongraph.passes.fuse_groups import Inlined, overwritten

MOST = 8  # operations between a value and what is stored; their time stays well below that of a write
SMALL = 16  # what has so many times fewer elements than the value costs nothing to store and to read
WRITE = 2  # in reads


def recomputed(
    graph: Graph, order: Sequence[Node], stored: Container[Node], kernels: Callable[[Node], int]
) -> frozenset[Node]:
    """Of the values that are `stored`, those that readers had better compute themselves, and what lies in between.

    `kernels(n)` is how many of them read n. All readers take elements where they are: contractions and movement want
    their operands in memory.
    """
    users, results, written = graph.users(), set(graph.results), set(overwritten(graph).values())
    once = compared(graph).once
    found: set[Node] = set()
    for n in order:
        if n in stored and n not in results and all(map(_reads_elements, users[n])):
            between, sources = _made_of(n, stored, found)
            extra = (len(sources) - 1) * kernels(n)  # reads
            # What the step writes over is read by its own kernel alone, or the new value would wait for all readers.
            if 0 < len(between) <= MOST and extra < WRITE and sources.isdisjoint(written) and between.isdisjoint(once):
                found |= between
    return frozenset(found)


def _reads_elements(n: Node) -> bool:
    return n.op.kind == "elementwise" or (n.op.kind == "reduce" and "axes" in n.attrs)


def _is_cheap(n: Node) -> bool:
    """Does it take an instruction or two for a vector of elements, in whatever kernel?"""
    return n.op.kind == "elementwise" and not n.op.cost and "once" not in n.op.traits


def _made_of(n: Node, stored: Container[Node], found: set[Node]) -> tuple[set[Node], set[Node]]:
    """The operations that make n, and the stored values of its size that they start from; no operations if one of them
    is expensive."""
    between: set[Node] = set()
    sources: set[Node] = set()
    inlined = Inlined()
    stack = [n]
    while stack:
        m = stack.pop()
        if m in between or m.ty.size * SMALL <= n.ty.size:
            continue
        if _is_cheap(m) and (m is n or m not in stored or m in found):
            between.add(m)
            stack.extend(m.src)
        elif m in inlined:
            stack.extend(m.src)
        elif m in stored or m.op.kind == "leaf":
            sources.add(m)
        else:
            return set(), set()
    return between, sources
