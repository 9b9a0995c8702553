"""Rules of reading and adding at indices."""

from __future__ import annotations

from functools import reduce

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import Axis, is_fixed, joined
from gluongraph.tracing.padding.masking import Masking, Value, kept
from gluongraph.tracing.padding.table import rule

_I32 = 4  # bytes


def _within(m: Masking, indices: Value, axis: Axis) -> Value:
    """Indices into an axis, cut off at its last valid element: those out of range count as that.

    Into a product of free factors they count valid elements, (e // n, e % n) for n of them; they become those of the
    padded product.
    """
    if is_fixed(axis):
        return indices
    node = ops.cast(indices.node, "i32") if DTYPES[indices.node.dtype].nbytes < _I32 else indices.node

    def spread(n: Node) -> Node:
        return ops.broadcast_to(ops.cast(n, node.dtype), node.shape)

    factors = m.extents.named(axis)
    counts = [m.length(f) if f.name else ops.const(f.size, "i32") for f in factors]
    last = ops.minimum(node, spread(reduce(ops.mul, counts) - 1))
    if is_fixed(factors[1:]):
        return Value(last, indices.layout)
    rest, found, stride = ops.maximum(last, 0), spread(ops.const(0, "i32")), 1
    for f, count in zip(reversed(factors), reversed(counts), strict=True):
        found = found + ops.mod(rest, spread(count)) * stride
        rest, stride = ops.floordiv(rest, spread(count)), stride * f.size
    return Value(found, indices.layout)


@rule("take")
def _take(m: Masking, a: Node, b: Node, x: Value, indices: Value) -> Value:
    axis = a.attrs["axis"]
    indices = _within(m, indices, x.layout[axis])
    return Value(kept(a, x, indices), (*x.layout[:axis], *indices.layout, *x.layout[axis + 1 :]))


@rule("gather")
def _gather(m: Masking, a: Node, b: Node, x: Value, indices: Value) -> Value:
    axis = a.attrs["axis"]
    beside = joined([(*each.layout[:axis], *each.layout[axis + 1 :]) for each in (indices, x)])
    found = _within(m, indices, x.layout[axis])
    return Value(kept(a, x, found), (*beside[:axis], indices.layout[axis], *beside[axis:]))


@rule("gather_grad", varies=("size",))
def _gather_grad(m: Masking, a: Node, b: Node, g: Value, indices: Value) -> Value:
    """A sum along the axis."""
    axis = a.attrs["axis"]
    layout = list(joined([g.layout, indices.layout]))
    masked = Value(m.filled(g, (axis,), 0), g.layout)
    layout[axis] = m.extents.named(m.extents.axis(a.shape[axis], b.shape[axis]))
    return Value(kept(a, masked, _within(m, indices, layout[axis])), tuple(layout))


@rule("scatter_add")
def _scatter_add(m: Masking, a: Node, b: Node, x: Value, indices: Value, updates: Value) -> Value:
    """Updates that are padding count as 0."""
    rank = len(indices.layout)
    joined([indices.layout, updates.layout[:rank]])
    row = joined([x.layout[1:], updates.layout[rank:]])
    masked = Value(m.filled(updates, tuple(range(rank)), 0), updates.layout)
    return Value(kept(a, x, _within(m, indices, x.layout[0]), masked), (x.layout[0], *row))


@rule("one_hot", varies=("depth",))
def _one_hot(m: Masking, a: Node, b: Node, indices: Value) -> Value:
    depth = m.extents.named(m.extents.axis(a.attrs["depth"], b.attrs["depth"]))
    return Value(kept(a, indices), (*indices.layout, m.leading(depth, "it numbers the elements")))


@rule("checked_index", varies=("high",))
def _checked_index(m: Masking, a: Node, b: Node, x: Value, *counts: Value) -> Value:
    """Padding is not checked. An index into a free axis beyond its length is made one beyond the padding: refused."""
    node = x.node
    if a.attrs["high"] != b.attrs["high"]:
        end = m.number((a.attrs["high"], b.attrs["high"], m.third.attrs["high"]), "i32")
        inside = ops.less(node, ops.broadcast_to(ops.cast(end, node.dtype), node.shape))
        node = ops.where(inside, node, ops.maximum(node, a.attrs["high"]))
    layout = joined([x.layout, *(c.layout for c in counts)])
    counted = [c.node for c in counts]
    if (mask := m.mask(layout)) is not None:
        valid = ops.broadcast_to(mask, node.shape)
        counted = [ops.logical_and(counted[0], valid) if counted else valid]
    return Value(a.op(node, *counted, **a.attrs), layout)
