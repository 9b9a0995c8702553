"""The norm of all gradients together, and clipping by it, as part of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR

LIMIT, NORM = f"{SCALAR}clip_norm", "grad_norm"
LONG = 64  # elements


def measured(graph: Graph, ranks: int = 1) -> Graph:
    """Return the graph with the norm of all elements of the gradients among the outputs as an output. With `ranks` the
    outputs are shards, of which other ranks have others."""
    norm = norm_of((g for k, g in graph.outputs.items() if k.startswith(GRAD)), ranks)
    return graph.with_results({**graph.outputs, NORM: norm}, graph.updates)


def clipped(graph: Graph, ranks: int = 1) -> Graph:
    """Return the graph with its gradients multiplied by min(1, limit / norm), where norm is that of all their elements,
    and is an output.

    The input "scalar:clip_norm" is the limit for the gradients before they are divided by the batch size. A gradient
    that several replicas share counts once. `ranks` as in `measured`.
    """
    grads = {k: g for k, g in graph.outputs.items() if k.startswith(GRAD)}
    limit, norm = leaf(LIMIT, TensorType((), "f32")), norm_of(grads.values(), ranks)
    factor = ops.minimum(limit / ops.maximum(norm, 1e-30), 1.0)
    shorter = {k: g * ops.cast(factor, g.dtype) for k, g in grads.items()}
    return Graph({**graph.inputs, LIMIT: limit}, {**graph.outputs, **shorter, NORM: norm}, graph.updates, graph.origins)


def norm_of(values: Iterable[Node], ranks: int = 1) -> Node:
    """Return the 2-norm of all elements, on all ranks. Squares are summed along the last axes, and these sums in
    float64: a float32 sum of a million squares is wrong in its fourth digit."""
    squares = []
    for v in dict.fromkeys(values):
        x = _in_rows(ops.cast(v, "f32") if v.dtype in ("f16", "bf16") else v)
        rows = ops.sum(x * x, -1) if x.ty.rank else x * x
        squares.append(ops.sum(ops.cast(rows, "f64")))
    return ops.cast(ops.sqrt(ops.allreduce(reduce(ops.add, squares), ranks=ranks)), "f32")


def _in_rows(x: Node) -> Node:
    """Return x with its last axes merged until they have LONG elements: sums along the three taps of a kernel row alone
    would leave a third as many elements."""
    axis, length = x.ty.rank, 1
    while axis > 1 and length < LONG:
        axis -= 1
        length *= x.shape[axis]
    return ops.reshape(x, (*x.shape[:axis], length)) if axis < x.ty.rank - 1 else x
