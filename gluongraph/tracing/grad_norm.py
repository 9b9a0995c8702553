"""The norm of all gradients together, and clipping by it, as part of the graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.storage import aligned
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR

LIMIT, NORM = f"{SCALAR}clip_norm", "grad_norm"
LONG = 64  # elements


def measured(graph: Graph, ranks: int = 1, norm_type: float = 2.0) -> Graph:
    """Return the graph with the norm of all elements of the gradients among the outputs as an output. With `ranks` the
    outputs are shards, of which other ranks have others."""
    norm = norm_of((g for k, g in graph.outputs.items() if k.startswith(GRAD)), ranks, norm_type)
    return graph.with_results({**graph.outputs, NORM: norm}, graph.updates)


def clipped(graph: Graph, ranks: int = 1, norm_type: float = 2.0) -> Graph:
    """Return the graph with its gradients multiplied by min(1, limit / norm), where norm is that of all their elements,
    and is an output.

    The input "scalar:clip_norm" is the limit for the gradients before they are divided by the batch size. A gradient
    that several replicas share counts once. `ranks` as in `measured`.
    """
    grads = {k: g for k, g in graph.outputs.items() if k.startswith(GRAD)}
    limit, norm = leaf(LIMIT, TensorType((), "f32")), norm_of(grads.values(), ranks, norm_type)
    factor = ops.minimum(limit / ops.maximum(norm, 1e-30), 1.0)
    shorter = {k: g * ops.cast(factor, g.dtype) for k, g in grads.items()}
    return Graph({**graph.inputs, LIMIT: limit}, {**graph.outputs, **shorter, NORM: norm}, graph.updates, graph.origins)


def norm_of(values: Iterable[Node], ranks: int = 1, norm_type: float = 2.0) -> Node:
    """Return the p-norm of all elements, (sum |x|^p)^(1/p) or with p = inf the largest |x|, on all ranks.

    Terms are summed along the last axes, and these sums in float64: a float32 sum of a million squares is wrong in its
    fourth digit."""
    parts = [_part(v, norm_type) for v in dict.fromkeys(values)]
    if norm_type == math.inf:
        return ops.cast(_largest(reduce(ops.maximum, parts), ranks), "f32")
    total = ops.allreduce(reduce(ops.add, parts), ranks=ranks)
    return ops.cast(ops.sqrt(total) if norm_type == 2 else total ** (1 / norm_type), "f32")


def _part(value: Node, norm_type: float) -> Node:
    """Return the sum of |x|^p of one array, with p = inf the largest |x|, in float64."""
    x = _in_rows(ops.cast(value, "f32") if value.dtype in ("f16", "bf16") else value)
    if norm_type == 2:
        terms = x * x
    elif norm_type in (1, math.inf):
        terms = ops.abs(x)
    else:  # other powers leave the range of float32: (1e-6)^8 is 0 there
        terms = ops.abs(ops.cast(x, "f64")) ** norm_type
    together = ops.max if norm_type == math.inf else ops.sum
    rows = together(terms, -1) if x.ty.rank else terms
    return together(ops.cast(rows, "f64"))


def _largest(value: Node, ranks: int) -> Node:
    """Return the largest of the scalars of all ranks, each of which sends it as its shard of an array."""
    if ranks == 1:
        return value
    size = aligned(DTYPES[value.dtype].nbytes) // DTYPES[value.dtype].nbytes  # elements of the smallest shard
    shard = ops.broadcast_to(ops.reshape(value, (1,)), (size,))
    return ops.max(ops.all_gather(shard, ranks=ranks, shapes=((ranks * size,),))[0])


def _in_rows(x: Node) -> Node:
    """Return x with its last axes merged until they have LONG elements: sums along the three taps of a kernel row alone
    would leave a third as many elements."""
    axis, length = x.ty.rank, 1
    while axis > 1 and length < LONG:
        axis -= 1
        length *= x.shape[axis]
    return ops.reshape(x, (*x.shape[:axis], length)) if axis < x.ty.rank - 1 else x
