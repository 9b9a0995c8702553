"""Elements by indices: gather, scatter, index, and what writes at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import Number, OpContext, Value, cast, constant
from gluongraph.torch.aten.nn import rows_of
from gluongraph.torch.aten.table import aten


@aten("index_select.default")
def index_select(at: OpContext, self: Node, dim: int, index: Node) -> Node:
    """The slices along an axis at the indices"""
    return ops.take(self, ops.reshape(index, (index.ty.size,)), dim % max(self.ty.rank, 1))


@aten("take.default")
def take(at: OpContext, self: Node, index: Node) -> Node:
    """Elements by their number"""
    return ops.take(ops.reshape(self, (self.ty.size,)), rows_of(index, self.ty.size), 0)


@aten("gather.default")
def gather(at: OpContext, self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    """y[..., k, ...] = x[..., index[..., k, ...], ...]"""
    if not self.ty.rank:
        return ops.broadcast_to(self, index.shape)
    axis = dim % self.ty.rank
    ends = [n if a == axis else index.shape[a] for a, n in enumerate(self.shape)]
    return ops.gather(ops.slice(self, [0] * self.ty.rank, ends), index, axis)


@aten("take_along_dim.default")
def take_along_dim(at: OpContext, self: Node, indices: Node, dim: int | None = None) -> Node:
    """gather, with the other axes broadcast"""
    if dim is None:
        return take(at, self, ops.reshape(indices, (indices.ty.size,)))
    axis = dim % self.ty.rank
    shape = np.broadcast_shapes(*(tuple(1 if a == axis else n for a, n in enumerate(x.shape)) for x in (self, indices)))
    x, i = (
        ops.broadcast_to(v, tuple(v.shape[a] if a == axis else n for a, n in enumerate(shape))) for v in (self, indices)
    )
    return ops.gather(x, rows_of(i, self.shape[axis]), axis)


# -- x[...] at arrays of indices


def _aligned(x: Node, indices: Sequence[Node | None]) -> tuple[Node, Node, int, list[int]]:
    """x with the indexed axes joined to one; the row numbers there; that axis; and the order of axes that x has got."""
    axes = [a for a, i in enumerate(indices) if i is not None]
    given = [indices[a] for a in axes]
    shape = np.broadcast_shapes(*(i.shape for i in given if i is not None))
    apart = axes != list(range(axes[0], axes[0] + len(axes)))
    rest = [a for a in range(x.ty.rank) if a not in axes]
    order = [*axes, *rest] if apart else list(range(x.ty.rank))
    first = 0 if apart else axes[0]
    moved = ops.transpose(x, order)
    row: Node | None = None
    for a, i in zip(axes, given, strict=True):
        assert i is not None
        place = ops.broadcast_to(rows_of(cast(i, "i64") if i.dtype == "u8" else i, x.shape[a]), shape)
        row = place if row is None else row * x.shape[a] + cast(place, row.dtype)
    assert row is not None
    joined = math.prod(x.shape[a] for a in axes)
    flat = ops.reshape(moved, (*moved.shape[:first], joined, *moved.shape[first + len(axes) :]))
    return flat, row, first, order


def _without_bools(at: OpContext, indices: Sequence[Node | None]) -> list[Node | None]:
    """Masks that do not depend on data as arrays of indices."""
    found: list[Node | None] = []
    for i in indices:
        if i is not None and i.dtype == "bool":
            found += [constant(each.astype(np.int64)) for each in np.nonzero(at.known(i, "a mask"))]
        else:
            found.append(i)
    return found


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(at: OpContext, self: Node, indices: Sequence[Node | None]) -> Node:
    """x[i, :, j]: elements at arrays of indices"""
    flat, row, axis, _ = _aligned(self, _without_bools(at, indices))
    return ops.take(flat, row, axis)


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(
    at: OpContext, self: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False
) -> Node:
    """x with x[i, :, j] = values, or += values"""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == "bool":
        mask = indices[0]
        if values.ty.size == 1:
            lined = ops.reshape(mask, (*mask.shape, *(1,) * (self.ty.rank - mask.ty.rank)))
            new = cast(ops.reshape(values, ()), self.dtype)
            return ops.where(lined, ops.add(self, new) if accumulate else new, self)
    flat, row, axis, order = _aligned(self, _without_bools(at, indices))
    wanted = (*flat.shape[:axis], *row.shape, *flat.shape[axis + 1 :])
    new = ops.broadcast_to(cast(values, self.dtype), wanted)
    front = ops.transpose(flat, (axis, *(a for a in range(flat.ty.rank) if a != axis)))
    k = row.ty.rank
    updates = ops.transpose(new, (*range(axis, axis + k), *(a for a in range(new.ty.rank) if not axis <= a < axis + k)))
    written = _written(front, row, updates, accumulate)
    back = ops.moveaxis(written, 0, axis)
    moved = ops.reshape(back, tuple(self.shape[a] for a in order))
    return ops.transpose(moved, [order.index(a) for a in range(len(order))])


def _written(x: Node, row: Node, updates: Node, accumulate: bool) -> Node:
    """x with the updates added to rows, or in their place; of several for one row their sum counts, divided."""
    if accumulate:
        return ops.scatter_add(x, row, updates)
    ones = ops.ones(updates.ty)
    wide = updates.dtype == "bool"
    zeros = ops.full(x.shape, 0, "i32" if wide else x.dtype)
    new, hit = (cast(v, "i32") if wide else v for v in (updates, ones))
    count = ops.stop_gradient(ops.scatter_add(zeros, row, hit))
    total = ops.scatter_add(zeros, row, new)
    held = ops.maximum(count, cast(1, count.dtype))
    mean = ops.floordiv(total, held) if total.dtype[0] in "iu" else ops.div(total, held)
    return ops.where(ops.greater(count, cast(0, count.dtype)), cast(mean, x.dtype), x)


@aten("index_add.default")
def index_add(at: OpContext, self: Node, dim: int, index: Node, source: Node, *, alpha: Number = 1) -> Node:
    """x with slices added at the indices along an axis"""
    axis = dim % self.ty.rank
    added = source if alpha == 1 else source * alpha
    moved = ops.scatter_add(ops.moveaxis(self, axis, 0), index, ops.moveaxis(added, axis, 0))
    return ops.moveaxis(moved, 0, axis)


@aten("index_copy.default")
def index_copy(at: OpContext, self: Node, dim: int, index: Node, source: Node) -> Node:
    """x with slices in place of those at the indices along an axis"""
    axis = dim % self.ty.rank
    return ops.moveaxis(_written(ops.moveaxis(self, axis, 0), index, ops.moveaxis(source, axis, 0), False), 0, axis)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(at: OpContext, self: Node, dim: int, index: Node, value: Value) -> Node:
    """x with a number in the slices at the indices along an axis"""
    axis = dim % self.ty.rank
    hit = ops.scatter_add(ops.full((self.shape[axis],), 0, "i32"), index, ops.full(index.shape, 1, "i32"))
    lined = tuple(self.shape[axis] if a == axis else 1 for a in range(self.ty.rank))
    return ops.where(ops.reshape(ops.greater(hit, 0), lined), cast(value, self.dtype), self)


# -- scatter


def _element_rows(self: Node, axis: int, index: Node) -> Node:
    """The number of the element of the flat array that each index names."""
    place: Node | None = None
    for a, n in enumerate(self.shape):
        k = cast(index, "i64") if a == axis else ops.iota(index.shape, a, "i64")
        place = k if place is None else place * n + k
    assert place is not None
    return ops.reshape(place, (index.ty.size,))


def _scattered(self: Node, dim: int, index: Node, src: Node, accumulate: bool) -> Node:
    axis = dim % self.ty.rank
    src = ops.slice(src, [0] * src.ty.rank, index.shape)
    flat = ops.reshape(self, (self.ty.size,))
    row, new = _element_rows(self, axis, index), ops.reshape(src, (src.ty.size,))
    return ops.reshape(_written(flat, row, cast(new, self.dtype), accumulate), self.shape)


@aten("scatter.src")
def scatter(at: OpContext, self: Node, dim: int, index: Node, src: Node) -> Node:
    """x with x[..., index[..., k, ...], ...] = src[..., k, ...]"""
    return _scattered(self, dim, index, src, False)


@aten("scatter.value")
def scatter_value(at: OpContext, self: Node, dim: int, index: Node, value: Number) -> Node:
    """x with one number at the indices"""
    return _scattered(self, dim, index, ops.full(index.shape, value, self.dtype), False)


@aten("scatter_add.default")
def scatter_add(at: OpContext, self: Node, dim: int, index: Node, src: Node) -> Node:
    """x with x[..., index[..., k, ...], ...] += src[..., k, ...]"""
    return _scattered(self, dim, index, src, True)


@aten("scatter_reduce.two", "scatter.reduce")
def scatter_reduce(
    at: OpContext, self: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node:
    """scatter_add, under its general name"""
    if reduce not in ("sum", "add") or not include_self:
        raise at.unsupported(f"reduce={reduce!r}, include_self={include_self}; only sums onto the array itself")
    return _scattered(self, dim, index, src, True)


@aten("bucketize.Tensor", "searchsorted.Tensor")
def bucketize(at: OpContext, *args: Node, right: bool = False, out_int32: bool = False) -> Node:
    """The number of boundaries below each element"""
    boundaries, x = args if at.name.startswith("searchsorted") else reversed(args)
    if boundaries.ty.rank != 1:
        raise at.unsupported("boundaries of several axes")
    column = ops.reshape(x, (*x.shape, 1))
    below = ops.less_equal(boundaries, column) if right else ops.less(boundaries, column)
    return cast(ops.sum(cast(below, "i32"), -1), at.dtype)
