"""How long a plan will take, roughly and in proportion: what recomputation is weighed by. Nothing is measured."""

from __future__ import annotations

from gluongraph.cost import flops
from gluongraph.ir import Graph, Node
from gluongraph.plan import Launch, Plan

# Seconds on one core of a server; only their proportions count.
MULTIPLY = 1 / 60e9  # a multiplication and an addition of a contraction
BYTE = 1 / 12e9  # read or written
ELEMENT = 1 / 4e9  # one cheap operation on one element
DEAR = {"exp": 4, "log": 4, "tanh": 6, "erf": 6, "sigmoid": 5, "sqrt": 2, "rsqrt": 2, "div": 2, "pow": 10}
DRAWN = 12  # of random numbers: cheap operations an element
_FREE = frozenset({"leaf", "movement", "control"})


def seconds(plan: Plan) -> float:
    """The expected time of a plan's launches, one after the other."""
    return sum(map(_of_launch, plan.launches))


def _of_launch(launch: Launch) -> float:
    if launch.group.inner is not None:
        return seconds(launch.group.inner) * int(launch.group.scan.attrs["length"])
    nbytes = sum(b.type.nbytes for b in (*launch.reads, *launch.writes))
    body: Graph = launch.group.body
    return nbytes * BYTE + sum(map(_of_node, body.nodes()))


def _of_node(n: Node) -> float:
    if n.op.kind in ("contraction", "composite"):  # a composite that is left is an attention
        return flops(n) / 2 * MULTIPLY
    if n.op.kind in _FREE or isinstance(n.type, tuple):
        return 0.0
    each = DRAWN if n.op.kind == "random" else DEAR.get(n.op.name, 1)
    return max(n.ty.size, *(s.ty.size for s in n.src)) * each * ELEMENT
