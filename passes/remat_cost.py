"""A static estimate of a plan's relative time, by which recomputation is decided. Nothing is measured."""

from __future__ import annotations

from gluongraph.ir.cost_model import flops
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Launch, Plan

# Seconds on one core of a server, from the kernels of GPT, BERT and ResNet-18; only their ratios matter.
MULTIPLY = 1 / 64e9  # a multiply-add of a contraction
IN_TILES = 1 / 250e9  # the same by tile multiplications of 16-bit values
ATTEND = 1 / 42e9  # a multiply-add of an attention
ATTEND_IN_TILES = 1 / 98e9  # the same by tile multiplications
BYTE = 1 / 15e9  # a byte read or written
ELEMENT = 1 / 12e9  # a cheap operation on one element; such operations and memory accesses overlap
_FREE = frozenset({"leaf", "movement", "control"})


def seconds(plan: Plan) -> float:
    """Return the expected time of a plan's launches, one after another."""
    return sum(map(expected, plan.launches))


def expected(launch: Launch) -> float:
    """Return the expected time of one launch."""
    if launch.group.inner is not None:
        return seconds(launch.group.inner) * int(launch.group.scan.attrs["length"])
    nbytes = sum(b.type.nbytes for b in (*launch.reads, *launch.writes))
    body: Graph = launch.group.body
    multiply, attend = (IN_TILES, ATTEND_IN_TILES) if launch.candidate.tiles else (MULTIPLY, ATTEND)
    multiply_adds = sum(_multiply_adds(n) * (multiply if n.op.kind == "contraction" else attend) for n in body.nodes())
    return multiply_adds + max(nbytes * BYTE, sum(map(_elements, body.nodes())) * ELEMENT)


def _multiply_adds(n: Node) -> float:
    """Return the multiply-adds of a contraction; a composite that is not inlined is an attention."""
    return flops(n) / 2 if n.op.kind in ("contraction", "composite") else 0.0


def _elements(n: Node) -> int:
    """Return the number of cheap operations on an element that any other node takes."""
    if n.op.kind in _FREE or n.op.kind in ("contraction", "composite") or isinstance(n.type, tuple):
        return 0
    return max(n.ty.size, *(s.ty.size for s in n.src)) * max(1, n.op.cost)
