"""Common subexpression elimination. Interning does most of it; what is left is a * b and b * a."""

from __future__ import annotations

from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, rebuild


def cse(graph: Graph) -> Graph:
    """b + a -> a + b where the graph has that already, for ops whose bits do not depend on the order of operands.

    Recomputed copies (`again`) stay apart from their originals. Operands are never put in a canonical order: turning
    some around changes what comes first in the graph, and the pass would not come to rest.
    """
    seen: set[Node] = set()

    def merged(n: Node) -> Node:
        n = in_bodies(n, cse)
        if "commutes" in n.op.traits and (turned := n.on(n.src[::-1])) in seen:
            return turned
        seen.add(n)
        return n

    return rebuild(graph, merged)
