"""Sequences: lists of arrays, whose length is known when the graph is built. In Python they are tuples of nodes."""

from __future__ import annotations

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.format.model import GraphDef
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import operator

Nodes = tuple[Node, ...]


@operator("SequenceConstruct", since=11)
def construct(at: NodeContext, *xs: Node) -> list[Value]:
    """A sequence of these arrays"""
    return [xs]


@operator("SequenceEmpty", since=11)
def empty(at: NodeContext, *, dtype: int = 1) -> list[Value]:
    """A sequence of no arrays"""
    return [()]


def _place(at: NodeContext, position: Node | None, count: int, last: int) -> int:
    if position is None:
        return last
    place = int(at.number(position, "position"))
    if not -count <= place <= last:
        raise at.wrong(f"position {place} in a sequence of {count}")
    return place + count if place < 0 else place


@operator("SequenceAt", since=11, static=("position",))
def element(at: NodeContext, xs: Nodes, position: Node) -> Node:
    """One array of a sequence"""
    return xs[_place(at, position, len(xs), len(xs) - 1)]


@operator("SequenceInsert", since=11, static=("position",))
def insert(at: NodeContext, xs: Nodes, x: Node, position: Node | None = None) -> list[Value]:
    """A sequence with one array more"""
    place = _place(at, position, len(xs), len(xs))
    return [(*xs[:place], x, *xs[place:])]


@operator("SequenceErase", since=11, static=("position",))
def erase(at: NodeContext, xs: Nodes, position: Node | None = None) -> list[Value]:
    """A sequence with one array less"""
    place = _place(at, position, len(xs), len(xs) - 1)
    return [(*xs[:place], *xs[place + 1 :])]


@operator("SequenceLength", since=11)
def length(at: NodeContext, xs: Nodes) -> Node:
    """How many arrays there are"""
    return at.constant(np.array(len(xs), np.int64))


@operator("SplitToSequence", since=11, static=("split",))
def split(at: NodeContext, x: Node, split: Node | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Value]:
    """The parts of an array as a sequence"""
    axis = at.axis(axis, x.ty.rank)
    extent = x.shape[axis]
    if split is None:
        parts = [ops.part(x, axis, k, k + 1) for k in range(extent)]
        return [tuple(parts if keepdims else [ops.squeeze(p, axis) for p in parts])]
    sizes = at.ints(split, "split") or ()
    if split.ty.rank == 0:
        (each,) = sizes
        if each < 1:
            raise at.wrong(f"parts of {each}")
        sizes = tuple(min(each, extent - first) for first in range(0, extent, each))
    ends = np.cumsum(sizes)
    return [tuple(ops.part(x, axis, int(end) - n, int(end)) for n, end in zip(sizes, ends, strict=True))]


@operator("ConcatFromSequence", since=11)
def concat(at: NodeContext, xs: Nodes, *, axis: int, new_axis: int = 0) -> Node:
    """The arrays of a sequence as one"""
    if not xs:
        raise at.wrong("an empty sequence")
    rank = xs[0].ty.rank + bool(new_axis)
    return (ops.stack if new_axis else ops.concat)(*xs, axis=at.axis(axis, rank))


@operator("SequenceMap", since=17)
def sequence_map(at: NodeContext, xs: Nodes, *more: Value, body: GraphDef) -> list[Value]:
    """A graph on each array of a sequence"""
    rows = [at.graph(body, (x, *(m[k] if isinstance(m, tuple) else m for m in more))) for k, x in enumerate(xs)]
    return [tuple(column) for column in zip(*rows, strict=True)] or [() for _ in body.outputs]
