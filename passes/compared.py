"""Values that must be computed once, because a comparison can tell two computations of them apart.

The gradient of a maximum goes to where x equals max(x). Two kernels that both compute x may round it differently (a
product and a sum become one fused multiply-add in one of them), and then x equals its own maximum nowhere: the gradient
is lost. So such an x is stored by the kernel that computes it, and read by the others.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from gluongraph.ir.graph import Graph, Node


def _chooses(n: Node) -> bool:
    """Are the elements of n elements of its operands?"""
    return "selects" in n.op.traits or n.op.kind == "movement"


@dataclass(frozen=True)
class Compared:
    """`once` is computed by one kernel: what both sides of a comparison for equality are chosen from, the nearest such
    values. `between` is all that lies between those and the comparisons, and what else their elements may be."""

    once: frozenset[Node]
    between: frozenset[Node]


def compared(graph: Graph) -> Compared:
    """The values that meet themselves in a comparison for equality."""
    once: set[Node] = set()
    between: set[Node] = set()
    for n in graph.nodes():
        if "compares_equal" in n.op.traits:
            first, second = n.src[:2]
            ends = _chosen_from(first)
            met = _chosen_from(second, ends)
            if common := met & ends:
                once |= common
                between |= met | ends
    return Compared(frozenset(once), frozenset(between))


def _chosen_from(n: Node, ends: Container[Node] = ()) -> set[Node]:
    """All computed values whose elements n may have; nothing is looked for behind `ends`."""
    seen, stack = {n}, [n]
    while stack:
        m = stack.pop()
        if _chooses(m) and m not in ends:
            new = [s for s in m.src if s not in seen and s.op.kind != "leaf"]
            seen.update(new)
            stack.extend(new)
    return seen
