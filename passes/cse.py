"""Equal values are one node. Interning does most of it; what is left is a * b and b * a."""

from __future__ import annotations

from gluongraph.ir import Graph, Node
from gluongraph.rewrite import COMMUTATIVE, in_bodies, rebuild


def cse(graph: Graph) -> Graph:
    """b + a -> a + b where a comes first in the graph, for ops whose bits do not depend on the order of operands.

    Recomputed copies (`again`) stay apart from their originals.
    """
    position: dict[Node, int] = {}

    def ordered(n: Node) -> Node:
        n = in_bodies(n, cse)
        if n.op.name in COMMUTATIVE and position[n.src[0]] > position[n.src[1]]:
            n = n.on(n.src[::-1])
        position.setdefault(n, len(position))
        return n

    return rebuild(graph, ordered)
