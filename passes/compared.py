"""Values that must be computed once, because a comparison can tell two computations of them apart.

The gradient of a maximum goes to where x equals max(x). Two kernels that both compute x may round it differently (one
of them contracts a multiplication and an addition to a fused multiply-add), and then x equals its own maximum nowhere:
the gradient is lost. So such an x is stored by the kernel that computes it, and read by the others.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from gluongraph.ir.graph import Graph, Node


def _selects(n: Node) -> bool:
    """Are the elements of n elements of its operands?"""
    return "selects" in n.op.traits or n.op.kind == "movement"


@dataclass(frozen=True)
class Compared:
    """`once`: values that one kernel must compute, the nearest values from which both sides of a comparison for
    equality select their elements. `between`: all values from those to the comparisons."""

    once: frozenset[Node]
    between: frozenset[Node]


def compared(graph: Graph) -> Compared:
    """Return the values whose elements are compared with themselves for equality."""
    once: set[Node] = set()
    between: set[Node] = set()
    for n in graph.nodes():
        if "compares_equal" in n.op.traits:
            first, second = n.src[:2]
            candidates = _selected_from(first)
            reached = _selected_from(second, candidates)
            if common := reached & candidates:
                once |= common
                between |= reached | candidates
    return Compared(frozenset(once), frozenset(between))


def _selected_from(n: Node, candidates: Container[Node] = ()) -> set[Node]:
    """Return all computed values from which n selects its elements, directly or transitively; stop at `ends`."""
    seen, stack = {n}, [n]
    while stack:
        m = stack.pop()
        if _selects(m) and m not in candidates:
            new = [s for s in m.src if s not in seen and s.op.kind != "leaf"]
            seen.update(new)
            stack.extend(new)
    return seen
