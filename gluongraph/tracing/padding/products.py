"""Rules of matrix products, convolutions, pooling, attention and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import Layout, Refusal, fixed, is_fixed, joined, need_fixed
from gluongraph.tracing.padding.masking import Masking, Value, kept
from gluongraph.tracing.padding.reductions import lowest
from gluongraph.tracing.padding.table import rule


@rule("matmul")
def _matmul(m: Masking, a: Node, b: Node, x: Value, y: Value) -> Value:
    rows, inner = (-1, -2) if a.attrs["ta"] else (-2, -1)
    inner_y, columns = (-1, -2) if a.attrs["tb"] else (-2, -1)
    batch = joined([x.layout[:-2], y.layout[:-2]])
    joined([(x.layout[inner],), (y.layout[inner_y],)])
    if not is_fixed(x.layout[inner]) or not is_fixed(y.layout[inner_y]):
        smaller = 0 if a.src[0].ty.size <= a.src[1].ty.size else 1
        at = (inner, inner_y)[smaller] % a.ty.rank
        masked = m.filled((x, y)[smaller], (at,), 0)
        x, y = (Value(masked, x.layout), y) if smaller == 0 else (x, Value(masked, y.layout))
    return Value(kept(a, x, y), (*batch, x.layout[rows], y.layout[columns]))


@rule("conv2d")
def _conv(m: Masking, a: Node, b: Node, x: Value, w: Value) -> Value:
    """Over a free axis, where the window moves by one element, padding counts as the zeros that surround an image."""
    need_fixed("the weight", *w.layout)
    need_fixed("the number of channels", x.layout[1])
    space, masked = [], []
    for k in (0, 1):
        axis, padding = x.layout[2 + k], a.attrs["padding"][k]
        if is_fixed(axis):
            space.append(fixed(a.shape[2 + k]))
            continue
        if a.attrs["stride"][k] != 1:
            raise Refusal("its window moves by more than one element along an axis that varies")
        f = m.single(axis, "it moves along")
        reach = a.attrs["dilation"][k] * (a.src[1].shape[2 + k] - 1)
        m.need(f, reach + 1 - 2 * padding)
        masked += [2 + k] if padding else []
        space.append(m.extents.free(f.name, f.offset + 2 * padding - reach))
    source = Value(m.filled(x, masked, 0), x.layout) if masked else x
    return Value(kept(a, source, w), (x.layout[0], fixed(a.shape[1]), *space))


@rule("conv2d_data_grad", varies=("shape",))
def _conv_data_grad(m: Masking, a: Node, b: Node, g: Value, w: Value) -> Value:
    need_fixed("the size of images", *g.layout[1:], *w.layout)
    return Value(kept(a, g, w), (g.layout[0], *map(fixed, a.shape[1:])))


@rule("conv2d_weight_grad")
def _conv_weight_grad(m: Masking, a: Node, b: Node, x: Value, g: Value) -> Value:
    """A sum over images."""
    need_fixed("the size of images", *x.layout[1:], *g.layout[1:])
    joined([x.layout[:1], g.layout[:1]])
    masked = Value(m.filled(g, (0,), 0), g.layout)
    return Value(kept(a, x, masked), tuple(map(fixed, a.shape)))


@rule("attention")
def _attention(m: Masking, a: Node, b: Node, q: Value, k: Value, v: Value, *mask: Value) -> Value:
    """Queries do not attend to keys that are padding."""
    batch = joined([q.layout[:2], k.layout[:2], v.layout[:2]])
    (keys,) = joined([(k.layout[2],), (v.layout[2],)])
    need_fixed("the width of a head", q.layout[3], k.layout[3], v.layout[3])
    layout = (*batch, q.layout[2], v.layout[3])
    causal = a.attrs["causal"]
    for each in mask:
        _joined_at_end((*batch, q.layout[2], keys), each.layout)
    if is_fixed(keys) and (not causal or is_fixed(q.layout[2])):
        return Value(kept(a, q, k, v, *mask), layout)
    if causal:  # the last query attends to the last key; if there are as many, none attends to a later key
        if m.extents.named(q.layout[2]) != m.extents.named(keys):
            raise Refusal("queries and keys of causal attention do not have the same length")
        return Value(kept(a, q, k, v, *mask), layout)
    seen = m.mask((keys,))
    assert seen is not None
    for each in mask:
        shape = (*each.node.shape[:-1], a.src[1].shape[2])
        seen = ops.logical_and(ops.broadcast_to(each.node, shape), seen)
    scores = ops.reshape(seen, (1,) * (4 - seen.ty.rank) + seen.shape)
    return Value(a.op(q.node, k.node, v.node, scores, **a.attrs), layout)


def _joined_at_end(whole: Layout, part: Layout) -> None:
    """Check a layout that is broadcast."""
    for axis, other in zip(reversed(whole), reversed(part), strict=False):
        if other:
            joined([(axis,), (other,)])


@rule("max_pool2d", "avg_pool2d", varies=("kernel", "stride"))
def _pool(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """Within each image; over a free axis only as a whole."""
    space, node = x.layout[2:], x.node
    if all(map(is_fixed, space)):
        if a.attrs["kernel"] != b.attrs["kernel"] or a.attrs["stride"] != b.attrs["stride"]:
            raise Refusal("its window depends on a length")
        return Value(kept(a, x), (*x.layout[:2], *map(fixed, a.shape[2:])))
    for n in (a, b):
        if n.attrs["kernel"] != n.src[0].shape[2:] or n.attrs["padding"] != (0, 0):
            raise Refusal("its window is not the whole of an axis that varies")
    layout = (*x.layout[:2], (), ())
    if a.op.name == "max_pool2d":
        return Value(a.on((m.filled(x, (2, 3), lowest(a.dtype)),)), layout)
    whole = float(np.prod(a.attrs["kernel"]))
    share = ops.cast(ops.div(whole, m.count(space)), a.dtype)
    return Value(a.on((m.filled(Value(node, x.layout), (2, 3), 0),)) * share, layout)


@rule("max_pool2d_grad", "avg_pool2d_grad", varies=("shape",))
def _pool_grad(m: Masking, a: Node, b: Node, *xs: Value) -> Value:
    need_fixed("the size of images", *(axis for x in xs for axis in x.layout[2:]))
    return Value(kept(a, *xs), (*joined([x.layout[:2] for x in xs]), *map(fixed, a.shape[2:])))


@rule("cholesky", "solve_triangular", "inverse", "slogdet", "gelqf", "syevd")
def _matrices(m: Masking, a: Node, b: Node, *xs: Value) -> Any:
    """Of each matrix for itself."""
    need_fixed("the size of matrices", *(axis for x in xs for axis in x.layout[-2:]))
    batch, node = joined([x.layout[:-2] for x in xs]), kept(a, *xs)
    nodes = ops.get_tuple_elements(node) if isinstance(a.type, tuple) else (node,)
    return tuple(Value(n, (*batch, *map(fixed, n.shape[len(batch) :]))) for n in nodes)
