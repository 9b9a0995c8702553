"""Checks every node's type against its op's rule, and removes movement that is the identity."""

from __future__ import annotations

from gluongraph.errors import VerifyError
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, rebuild


def shapes(graph: Graph) -> Graph:
    """reshape, expand, transpose and the like that keep shape and order -> their source.

    Raises:
        VerifyError: a node has another type than its op's rule gives.
    """

    def checked(n: Node) -> Node:
        n = in_bodies(n, shapes)
        if n.op.name != "input" and (inferred := n.op.infer(*(s.type for s in n.src), **n.attrs)) != n.type:
            origin = graph.origins.get(n)
            raise VerifyError(f"{n!r} should have type {inferred}" + (f" ({origin})" if origin else ""))
        return n.src[0] if moves_nothing(n) else n

    return rebuild(graph, checked)


def moves_nothing(n: Node) -> bool:
    """Is n a movement that is the identity?"""
    if n.op.kind != "movement" or len(n.src) != 1 or n.type != n.src[0].type:
        return False
    match n.op.name:
        case "reshape" | "expand" | "concat" | "pad":  # equal types: nothing was stretched, joined or added
            return True
        case "transpose":
            return list(n.attrs["axes"]) == list(range(n.ty.rank))
        case "slice":
            return all(stride > 0 for stride in n.attrs["strides"])  # as many elements, so all of them in order
        case "flip":
            return all(n.shape[axis] <= 1 for axis in n.attrs["axes"])
        case _:
            return False
