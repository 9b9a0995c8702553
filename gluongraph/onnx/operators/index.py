"""Reading and writing where indices say; order. Negative indices count from the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import CONSTANTS, NodeContext, Value
from gluongraph.onnx.operators.reduce import worst
from gluongraph.onnx.operators.table import operator
from gluongraph.storage import Array

PAIRS = 1 << 26  # elements times updates, above which a scatter that multiplies or compares is refused


def _index(at: NodeContext, indices: Node, extent: int) -> Node:
    """Indices from 0 on; those that are known are checked."""
    if indices.op.name in CONSTANTS and indices.ty.size:
        found = at.known(indices, "indices")
        if found.min() < -extent or found.max() >= extent:
            raise at.wrong(f"indices from {found.min()} to {found.max()} into an axis of {extent}")
        if found.min() >= 0:
            return indices
        return at.constant(np.where(found < 0, found + extent, found))
    indices = ops.cast(indices, "i64") if indices.dtype[0] == "u" else indices
    return ops.where(ops.less(indices, 0), ops.add(indices, extent), indices)


@operator("Gather")
def gather(at: NodeContext, x: Node, indices: Node, *, axis: int = 0) -> Node:
    """The slices along an axis that the indices name"""
    axis = at.axis(axis, x.ty.rank)
    places = _index(at, indices, x.shape[axis])
    if places.op.name == "const" and places.ty.rank == 0:
        first = int(places.attrs["value"])
        return ops.squeeze(ops.part(x, axis, first, first + 1), axis)
    if x.dtype == "bool":
        return ops.cast(ops.take(ops.cast(x, "u8"), places, axis), "bool")
    return ops.take(x, places, axis)


@operator("GatherElements", since=11)
def gather_elements(at: NodeContext, x: Node, indices: Node, *, axis: int = 0) -> Node:
    """One element along an axis for each index"""
    axis = at.axis(axis, x.ty.rank)
    # indices may cover a part of the other axes
    x = ops.slice(x, (0,) * x.ty.rank, tuple(n if a == axis else indices.shape[a] for a, n in enumerate(x.shape)))
    return ops.gather(x, _index(at, indices, x.shape[axis]), axis)


def _flat(at: NodeContext, indices: Node, extents: tuple[int, ...]) -> Node:
    """Row-major positions, from indices that lie along the last axis."""
    total: Node | None = None
    for k, n in enumerate(extents):
        each = _index(at, ops.squeeze(ops.part(indices, -1, k, k + 1), indices.ty.rank - 1), n)
        total = each if total is None else ops.add(ops.mul(total, n), each)
    if total is None:
        raise at.wrong(f"indices {indices.ty} without numbers")
    return total


@operator("GatherND", since=11)
def gather_nd(at: NodeContext, x: Node, indices: Node, *, batch_dims: int = 0) -> Node:
    """The slices that the numbers along the last axis of the indices name"""
    lead, count = x.shape[:batch_dims], indices.shape[-1]
    inner = x.shape[batch_dims : batch_dims + count]
    if lead != indices.shape[:batch_dims] or len(inner) != count:
        raise at.wrong(f"{indices.ty} does not index {x.ty} behind {batch_dims} axes")
    batches, rest = math.prod(lead), x.shape[batch_dims + count :]
    flat = _flat(at, indices, inner)
    rows = ops.reshape(x, (batches * math.prod(inner), *rest))
    if batches > 1:
        per_batch = ops.reshape(ops.cast(flat, "i64"), (batches, flat.ty.size // batches))
        first = ops.mul(ops.iota(per_batch.shape, 0, "i64"), math.prod(inner))
        flat = ops.reshape(ops.add(per_batch, first), flat.shape)
    return ops.take(rows, flat, 0)


# -- writing


def _scattered(at: NodeContext, rows: Node, places: Node, updates: Node, reduction: str) -> Node:
    """Rows (n, the rest) with updates (k, the rest) put in, or joined with what is there, at places (k,)."""
    if rows.dtype == "bool":
        wide = _scattered(at, ops.cast(rows, "u8"), places, ops.cast(updates, "u8"), reduction)
        return ops.cast(wide, "bool")
    if reduction == "add":
        return ops.scatter_add(rows, places, updates)
    if reduction == "none":
        empty = ops.full(rows.shape, 0, rows.dtype)
        hits = ops.scatter_add(ops.full((rows.shape[0],), 0, "i32"), places, ops.full(places.shape, 1, "i32"))
        hit = ops.reshape(ops.greater(hits, 0), (rows.shape[0], *(1,) * (rows.ty.rank - 1)))
        return ops.where(hit, ops.scatter_add(empty, places, updates), rows)
    n, k = rows.shape[0], places.shape[0]
    if rows.ty.size * k > PAIRS:
        raise at.unsupported(f"reduction={reduction!r} of {updates.ty} into {rows.ty}: too many pairs")
    at.choose("reduction", reduction, "mul", "max", "min")
    neutral = 1 if reduction == "mul" else worst(rows.dtype, reduction == "max")
    reach, both = {"mul": (ops.prod, ops.mul), "max": (ops.max, ops.maximum), "min": (ops.min, ops.minimum)}[reduction]
    whole = (n, k, *rows.shape[1:])
    same = ops.equal(ops.iota((n, k), 0, "i64"), ops.reshape(ops.cast(places, "i64"), (1, k)))
    hit = ops.broadcast_to(ops.reshape(same, (n, k, *(1,) * (rows.ty.rank - 1))), whole)
    spread = ops.broadcast_to(ops.reshape(updates, (1, *updates.shape)), whole)
    return both(rows, reach(ops.where(hit, spread, neutral), 1))


@operator("Scatter", since=9)
@operator("ScatterElements", since=11)
def scatter_elements(
    at: NodeContext, x: Node, indices: Node, updates: Node, *, axis: int = 0, reduction: str = "none"
) -> Node:
    """x with one element along an axis written for each index"""
    axis = at.axis(axis, x.ty.rank)
    if not indices.ty.size:
        return x
    index = ops.cast(_index(at, indices, x.shape[axis]), "i64")
    place: Any = None
    for a, n in enumerate(x.shape):
        each = index if a == axis else ops.iota(indices.shape, a, "i64")
        place = each if place is None else ops.add(ops.mul(place, n), each)
    rows, places, values = (ops.reshape(v, (v.ty.size,)) for v in (x, place, updates))
    return ops.reshape(_scattered(at, rows, places, values, reduction), x.shape)


@operator("ScatterND", since=11)
def scatter_nd(at: NodeContext, x: Node, indices: Node, updates: Node, *, reduction: str = "none") -> Node:
    """x with slices written where the numbers along the last axis of the indices say"""
    count = indices.shape[-1]
    places = _flat(at, indices, x.shape[:count])
    rest = x.shape[count:]
    rows = ops.reshape(x, (math.prod(x.shape[:count]), *rest))
    flat = ops.reshape(places, (places.ty.size,))
    return ops.reshape(_scattered(at, rows, flat, ops.reshape(updates, (flat.ty.size, *rest)), reduction), x.shape)


@operator("TensorScatter", since=24)
def tensor_scatter(
    at: NodeContext, cache: Node, update: Node, writes: Node | None = None, *, axis: int = -2, mode: str = "linear"
) -> Node:
    """A cache with a run of slices written from an index on, one for each element of the batch"""
    axis, n = at.axis(axis, cache.ty.rank), cache.shape[0]
    extent, run = cache.shape[axis], update.shape[axis]
    start = ops.full((n,), 0, "i64") if writes is None else ops.cast(writes, "i64")
    where = ops.sub(ops.iota((n, extent), 1, "i64"), ops.reshape(start, (n, 1)))
    if at.choose("mode", mode, "linear", "circular") == "circular":
        where = ops.mod(where, extent)
    inside = ops.logical_and(ops.greater_equal(where, 0), ops.less(where, run))
    shape = tuple(m if a in (0, axis) else 1 for a, m in enumerate(cache.shape))
    taken = ops.broadcast_to(ops.reshape(where, shape), cache.shape)
    return ops.where(ops.reshape(inside, shape), ops.gather(update, taken, axis), cache)


# -- one-hot vectors, order, choice


@operator("OneHot", since=9, static=("depth",))
def one_hot(at: NodeContext, indices: Node, depth: Node, values: Node, *, axis: int = -1) -> Node:
    """One of two values: the second where the new axis is the index"""
    (count,) = at.room((int(at.number(depth, "depth")),))
    index = indices if not is_float(indices.dtype) else ops.cast(indices, "i64")
    index = ops.where(ops.less(index, 0), ops.add(index, count), index) if index.dtype[0] != "u" else index
    hit = ops.one_hot(index, count, "bool")
    hit = ops.moveaxis(hit, hit.ty.rank - 1, at.axis(axis, hit.ty.rank))
    off, on = (ops.reshape(ops.part(values, 0, k, k + 1), ()) for k in range(2))
    return ops.where(hit, on, off)


@operator("TopK")
def top_k_by_attribute(at: NodeContext, x: Node, *, k: int, axis: int = -1) -> list[Value]:
    """The k largest along an axis, and where they lie"""
    return _top(at, x, k, axis, True)


@operator("TopK", since=10, static=("k",))
def top_k(at: NodeContext, x: Node, k: Node, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Value]:
    """The k largest, or smallest, along an axis, in order, and where they lie"""
    return _top(at, x, int(at.number(k, "k")), axis, bool(largest))


def _top(at: NodeContext, x: Node, k: int, axis: int, largest: bool) -> list[Value]:
    axis = at.axis(axis, x.ty.rank)
    if not 0 <= k <= x.shape[axis]:
        raise at.wrong(f"k={k} of {x.shape[axis]}")
    order = ops.stop_gradient(x)
    if largest:
        order = ops.sub(2 ** (8 * x.ty.nbytes // max(x.ty.size, 1)) - 1, order) if x.dtype[0] == "u" else ops.neg(order)
    chosen = ops.part(ops.argsort(order, axis), axis, 0, k)
    return [ops.gather(x, chosen, axis), ops.cast(chosen, "i64")]


@operator("Compress", since=9, static=("condition",))
def compress(at: NodeContext, x: Node, condition: Node, *, axis: int | None = None) -> Node:
    """The slices where a condition holds that is known ahead"""
    if axis is None:
        x, axis = ops.reshape(x, (x.ty.size,)), 0
    kept = np.flatnonzero(at.known(condition, "condition"))
    return gather(at, x, at.constant(kept), axis=axis)


@operator("NonZero", since=9, static=("x",))
def non_zero(at: NodeContext, x: Node) -> Node:
    """Where numbers that are known ahead are not 0"""
    return at.constant(np.array(np.nonzero(at.known(x, "the input")), np.int64))


@operator("Unique", since=11, static=("x",))
def unique(at: NodeContext, x: Node, *, axis: int | None = None, sorted: int = 1) -> list[Value]:
    """The different numbers of what is known ahead, where each is first, which each is, and how often"""
    array = at.known(x, "the input")
    values, first, inverse, counts = np.unique(array, True, True, True, axis)
    if not sorted:
        order = np.argsort(first, kind="stable")
        back = np.argsort(order, kind="stable")
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = back[inverse]
    found: list[Array] = [values, first, inverse.reshape(-1), counts]
    return [at.constant(v if not k else v.astype(np.int64)) for k, v in enumerate(found)]


@operator("ReverseSequence", since=10)
def reverse_sequence(at: NodeContext, x: Node, lengths: Node, *, batch_axis: int = 1, time_axis: int = 0) -> Node:
    """The first elements of each sequence in reverse order"""
    if {batch_axis, time_axis} != {0, 1}:
        raise at.wrong(f"batch_axis={batch_axis} and time_axis={time_axis} are 0 and 1")
    shape = (*x.shape[:2], *(1,) * (x.ty.rank - 2))
    step = ops.iota(x.shape[:2], time_axis, "i64")
    length = ops.reshape(ops.cast(lengths, "i64"), (-1, 1) if batch_axis == 0 else (1, -1))
    back = ops.sub(ops.sub(length, 1), step)
    index = ops.where(ops.less(step, length), back, step)
    return ops.gather(x, ops.broadcast_to(ops.reshape(index, shape), x.shape), time_axis)
