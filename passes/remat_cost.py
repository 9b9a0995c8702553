"""A relative estimate of a plan's time, which recomputation is weighed by. Nothing is measured."""

from __future__ import annotations

from gluongraph.ir.cost_model import flops
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Launch, Plan

# Seconds on one core of a server, from the kernels of GPT, BERT and ResNet-18; only their proportions count.
MULTIPLY = 1 / 64e9  # a multiplication and an addition of a contraction
IN_TILES = 1 / 250e9  # the same of 16-bit numbers, where a unit for tiles does it
ATTEND = 1 / 42e9  # the same of an attention
ATTEND_IN_TILES = 1 / 98e9
BYTE = 1 / 15e9  # read or written
ELEMENT = 1 / 12e9  # one cheap operation on one element, which hides behind reading and writing or the other way round
_FREE = frozenset({"leaf", "movement", "control"})


def seconds(plan: Plan) -> float:
    """The expected time of a plan's launches, one after the other."""
    return sum(map(expected, plan.launches))


def expected(launch: Launch) -> float:
    """The expected time of one launch."""
    if launch.group.inner is not None:
        return seconds(launch.group.inner) * int(launch.group.scan.attrs["length"])
    nbytes = sum(b.type.nbytes for b in (*launch.reads, *launch.writes))
    body: Graph = launch.group.body
    multiply, attend = (IN_TILES, ATTEND_IN_TILES) if launch.candidate.tiles else (MULTIPLY, ATTEND)
    products = sum(_products(n) * (multiply if n.op.kind == "contraction" else attend) for n in body.nodes())
    return products + max(nbytes * BYTE, sum(map(_elements, body.nodes())) * ELEMENT)


def _products(n: Node) -> float:
    """Multiplications and additions of a contraction; a composite that is left is an attention."""
    return flops(n) / 2 if n.op.kind in ("contraction", "composite") else 0.0


def _elements(n: Node) -> int:
    """Cheap operations on one element that any other node takes."""
    if n.op.kind in _FREE or n.op.kind in ("contraction", "composite") or isinstance(n.type, tuple):
        return 0
    return max(n.ty.size, *(s.ty.size for s in n.src)) * max(1, n.op.cost)
