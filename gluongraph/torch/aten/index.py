"""Elements by indices: gather, scatter, index, and what writes at indices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import Number, OpContext, Value, cast, constant, promoted
from gluongraph.torch.aten.nn import rows_of
from gluongraph.torch.aten.table import Builder, aten


def _with_axis(build: Builder) -> Builder:
    """The builder, for arrays without axes too: they and their sources have one element then."""

    @functools.wraps(build)
    def built(at: OpContext, self: Node, dim: int, index: Node, value: Value, *args: Any, **how: Any) -> Node:
        if self.ty.rank:
            made: Node = build(at, self, dim, index, value, *args, **how)
            return made
        index = ops.reshape(index, (index.ty.size,))
        source = value
        if isinstance(value, Node) and not at.name.startswith("index_fill"):
            source = ops.reshape(value, (value.ty.size,))
        return ops.reshape(build(at, ops.reshape(self, (1,)), 0, index, source, *args, **how), ())

    return built


@aten("index_select.default")
def index_select(at: OpContext, self: Node, dim: int, index: Node) -> Node:
    """The slices along an axis at the indices"""
    flat = ops.reshape(index, (index.ty.size,))
    if not self.ty.rank:
        return ops.reshape(ops.take(ops.reshape(self, (1,)), flat, 0), ())
    return ops.take(self, flat, dim % self.ty.rank)


@aten("take.default")
def take(at: OpContext, self: Node, index: Node) -> Node:
    """Elements by their number"""
    return ops.take(ops.reshape(self, (self.ty.size,)), rows_of(index, self.ty.size), 0)


@aten("gather.default")
def gather(at: OpContext, self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    """y[..., k, ...] = x[..., index[..., k, ...], ...]"""
    if not self.ty.rank:
        return ops.broadcast_to(self, index.shape)
    if not index.ty.rank:
        return ops.reshape(ops.gather(self, ops.reshape(index, (1,)), 0), ())
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
    back = ops.moveaxis(written(front, row, updates, accumulate), 0, axis)
    moved = ops.reshape(back, tuple(self.shape[a] for a in order))
    return ops.transpose(moved, [order.index(a) for a in range(len(order))])


def written(x: Node, row: Node, updates: Node, accumulate: bool) -> Node:
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
@_with_axis
def index_add(at: OpContext, self: Node, dim: int, index: Node, source: Node, *, alpha: Number = 1) -> Node:
    """x with slices added at the indices along an axis"""
    axis = dim % self.ty.rank
    added = source if alpha == 1 else source * cast(alpha, source.dtype)
    moved = ops.scatter_add(ops.moveaxis(self, axis, 0), index, ops.moveaxis(added, axis, 0))
    return ops.moveaxis(moved, 0, axis)


@aten("index_copy.default")
@_with_axis
def index_copy(at: OpContext, self: Node, dim: int, index: Node, source: Node) -> Node:
    """x with slices in place of those at the indices along an axis"""
    axis = dim % self.ty.rank
    return ops.moveaxis(written(ops.moveaxis(self, axis, 0), index, ops.moveaxis(source, axis, 0), False), 0, axis)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
@_with_axis
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
    if not self.ty.rank:
        one = [ops.reshape(v, (1,)) for v in (self, index, src)]
        return ops.reshape(_scattered(one[0], 0, one[1], one[2], accumulate), ())
    axis = dim % self.ty.rank
    src = ops.slice(src, [0] * src.ty.rank, index.shape)
    flat = ops.reshape(self, (self.ty.size,))
    row, new = _element_rows(self, axis, index), ops.reshape(src, (src.ty.size,))
    return ops.reshape(written(flat, row, cast(new, self.dtype), accumulate), self.shape)


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


@aten("put.default")
def put(at: OpContext, self: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    """x with elements by their number replaced, or added to"""
    flat, k = ops.reshape(self, (self.ty.size,)), index.ty.size
    row, new = rows_of(ops.reshape(index, (k,)), self.ty.size), ops.reshape(source, (k,))
    return ops.reshape(written(flat, row, new, accumulate), self.shape)


@aten("scatter_reduce.two", "scatter.reduce")
def scatter_reduce(
    at: OpContext, self: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node:
    """x with x[..., index[..., k, ...], ...] joined with src[..., k, ...]: their sum, product, mean or extreme"""
    if not self.ty.rank:
        one = [ops.reshape(x, (1,)) for x in (self, index, src)]
        return ops.reshape(scatter_reduce(at, one[0], 0, one[1], one[2], reduce, include_self=include_self), ())
    axis = dim % self.ty.rank
    src = cast(ops.slice(src, [0] * src.ty.rank, index.shape), self.dtype)
    if reduce in ("sum", "add") and include_self:
        return _scattered(self, axis, index, src, True)
    return _joined(self, axis, index, src, {"multiply": "prod", "add": "sum"}.get(reduce, reduce), include_self)


@aten("scatter.value_reduce")
def scatter_value_reduce(at: OpContext, self: Node, dim: int, index: Node, value: Number, *, reduce: str) -> Node:
    """The same with one number"""
    return scatter_reduce(at, self, dim, index, ops.full(index.shape, value, self.dtype), reduce)


@aten("index_reduce.default")
@_with_axis
def index_reduce(
    at: OpContext, self: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True
) -> Node:
    """x with slices at the indices along an axis joined with those of the source"""
    axis = dim % self.ty.rank
    lined = ops.reshape(index, tuple(index.ty.size if a == axis else 1 for a in range(self.ty.rank)))
    return _joined(self, axis, ops.broadcast_to(lined, source.shape), source, reduce, include_self)


def _joined(x: Node, axis: int, index: Node, src: Node, reduce: str, include_self: bool) -> Node:
    """Every element with all that the indices send to it: each is compared with every place along the axis."""
    size = tuple(index.shape[a] if a == axis else n for a, n in enumerate(x.shape))
    behind = [n - have for n, have in zip(size, index.shape, strict=True)]
    index = ops.pad(index, [0] * x.ty.rank, behind, -1)  # of rows that get nothing
    src = ops.pad(src, [0] * x.ty.rank, behind)
    own, place, new = (ops.moveaxis(v, axis, -1) for v in (x, index, src))
    n, k = own.shape[-1], new.shape[-1]
    shape = (*own.shape[:-1], n, k)
    hit = ops.equal(ops.iota(shape, len(shape) - 2, index.dtype), ops.expand_dims(place, -2))
    some = ops.greater(ops.sum(cast(hit, "i32"), -1), 0)
    nothing = cast(_NOTHING[reduce](x.dtype), x.dtype)
    sent = ops.where(hit, ops.broadcast_to(ops.expand_dims(new, -2), shape), nothing)
    first = own if include_self else ops.where(some, nothing, own)
    every = ops.concat(ops.expand_dims(first, -1), sent, axis=-1)
    made = {"amax": ops.amax, "amin": ops.amin, "prod": ops.prod}.get(reduce, ops.sum)(every, -1)
    if reduce == "mean":
        count = ops.sum(cast(hit, x.dtype), -1) + cast(1, x.dtype) * cast(int(include_self), x.dtype)
        count = ops.maximum(ops.stop_gradient(count), cast(1, x.dtype))
        made = ops.div(made, count) if is_float(x.dtype) else ops.floordiv(made, count)
    return ops.moveaxis(ops.where(some, made, own), -1, axis)


def _lowest(dtype: str) -> float | int:
    return -math.inf if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).min)


def _highest(dtype: str) -> float | int:
    return math.inf if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).max)


_NOTHING: dict[str, Callable[[str], float | int]] = {
    "sum": lambda _: 0, "mean": lambda _: 0, "prod": lambda _: 1, "amax": _lowest, "amin": _highest
}  # fmt: skip


@aten("masked_scatter.default")
def masked_scatter(at: OpContext, self: Node, mask: Node, source: Node) -> Node:
    """x with the elements of the source, one after another, where the mask holds"""
    shape = np.broadcast_shapes(self.shape, mask.shape)
    x, m = (ops.reshape(ops.broadcast_to(v, shape), (math.prod(shape),)) for v in (self, mask))
    number = ops.sub(ops.cumsum(cast(m, "i32"), 0), 1)
    number = ops.minimum(ops.maximum(number, 0), source.ty.size - 1)
    new = ops.take(ops.reshape(source, (source.ty.size,)), number, 0)
    return ops.reshape(ops.where(m, cast(new, x.dtype), x), shape)


# -- order


@aten("bucketize.Tensor", "bucketize.Scalar", "searchsorted.Tensor", "searchsorted.Scalar")
def bucketize(
    at: OpContext, *args: Value, right: bool = False, side: str | None = None, sorter: Any = None, **how: Any
) -> Node:
    """The number of boundaries below each element, or below and equal"""
    boundaries, value = args if at.name.startswith("searchsorted") else reversed(args)
    if sorter is not None:
        raise at.unsupported("boundaries in another order (sorter)")
    dtype = promoted(boundaries, value)
    x = ops.expand_dims(cast(value, dtype), -1)
    lined = cast(boundaries, dtype)
    lined = ops.expand_dims(lined, -2) if lined.ty.rank > 1 else lined
    below = ops.less_equal(lined, x) if right or side == "right" else ops.less(lined, x)
    return cast(ops.sum(cast(below, "i32"), -1), at.dtype)


@aten("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(at: OpContext, elements: Value, test: Value, *, assume_unique: bool = False, invert: bool = False) -> Node:
    """Where an element is one of others"""
    dtype = promoted(elements, test)
    x, others = cast(elements, dtype), cast(test, dtype)
    equal = ops.equal(ops.expand_dims(x, -1), ops.reshape(others, (others.ty.size,)))
    found = ops.greater(ops.sum(cast(equal, "i32"), -1), 0)
    return ops.logical_not(found) if invert else found
