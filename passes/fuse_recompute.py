"""Stored values that are cheaper to recompute in each reader, from other stored values, than to load.

Storing a value costs a write, and a read in each kernel that needs it; a write costs as much as two reads, since the
processor reads a cache line before writing it. Recomputing it costs each of those kernels reads of all that it is
computed from, and a few instructions per element, which take a fraction of that time. So x - mean of a batch norm is
never stored: x is, and mean is small.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from gluongraph.ir.graph import Graph, Node
from gluongraph.passes.compared import compared
from gluongraph.passes.fuse_groups import Inlined, overwritten

MOST = 8  # operations between a value and stored values, at most; their time is well below that of a write
SMALL = 16  # a value with so many times fewer elements costs nothing to store and to read
WRITE = 2  # cost of a write, in reads


def recomputed(
    graph: Graph, order: Sequence[Node], stored: Container[Node], kernels: Callable[[Node], int]
) -> frozenset[Node]:
    """Return those of the `stored` values that readers should recompute, and the operations that they need for it.

    `kernels(n)` is the number of kernels that read n. Only values whose readers are all elementwise or reductions are
    considered: contractions and movement need their operands in memory.
    """
    users, results, written = graph.users(), set(graph.results), set(overwritten(graph).values())
    once = compared(graph).once
    found: set[Node] = set()
    for n in order:
        if n in stored and n not in results and all(map(_reads_elements, users[n])):
            operations, sources = _recomputation(n, stored, found)
            extra = (len(sources) - 1) * kernels(n)  # reads
            # Not from an input that the step overwrites: else its update would have to wait for all readers.
            if (
                0 < len(operations) <= MOST
                and extra < WRITE
                and sources.isdisjoint(written)
                and operations.isdisjoint(once)
            ):
                found |= operations
    return frozenset(found)


def _reads_elements(n: Node) -> bool:
    return n.op.kind == "elementwise" or (n.op.kind == "reduce" and "axes" in n.attrs)


def _is_cheap(n: Node) -> bool:
    """Does n take only an instruction or two per vector, in any kernel?"""
    return n.op.kind == "elementwise" and not n.op.cost and "once" not in n.op.traits


def _recomputation(n: Node, stored: Container[Node], found: set[Node]) -> tuple[set[Node], set[Node]]:
    """Return the operations that recompute n, and the stored values of its size that they read; no operations if one of
    them is expensive."""
    operations: set[Node] = set()
    sources: set[Node] = set()
    inlined = Inlined()
    stack = [n]
    while stack:
        m = stack.pop()
        if m in operations or m.ty.size * SMALL <= n.ty.size:
            continue
        if _is_cheap(m) and (m is n or m not in stored or m in found):
            operations.add(m)
            stack.extend(m.src)
        elif m in inlined:
            stack.extend(m.src)
        elif m in stored or m.op.kind == "leaf":
            sources.add(m)
        else:
            return set(), set()
    return operations, sources
