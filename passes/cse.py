"""Common subexpression elimination. Interning does most of it; what is left is a * b and b * a."""

from __future__ import annotations

from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, rebuild


def cse(graph: Graph) -> Graph:
    """b + a -> a + b if the graph has a + b already, for ops whose result does not depend on the order of operands.

    Recomputed copies (`copy_id`) are not merged with their originals. Operands are not sorted into a canonical order:
    swapping some changes the order of nodes in the graph, and the pass would not reach a fixed point.
    """
    seen: set[Node] = set()

    def merged(n: Node) -> Node:
        n = in_bodies(n, cse)
        if "commutes" in n.op.traits and (swapped := n.on(n.src[::-1])) in seen:
            return swapped
        seen.add(n)
        return n

    return rebuild(graph, merged)
