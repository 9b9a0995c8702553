"""Softmax, attention, embeddings, dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.ops.nn import UNSEEN
from gluongraph.torch.aten.context import OpContext, Value, cast, fold, in_range
from gluongraph.torch.aten.reduce import largest
from gluongraph.torch.aten.table import aten

# -- softmax


@aten("_safe_softmax.default")
def safe_softmax(at: OpContext, self: Node, dim: int, *how: Any, **kwargs: Any) -> Node:
    """exp(x) / Σ exp(x) along an axis, and 0 where all are -infinity"""
    x = cast(self, at.dtype)
    seen = ops.greater(ops.stop_gradient(ops.max(x, dim, True)), -math.inf)
    return ops.where(seen, ops.softmax(ops.where(seen, x, 0.0), dim), 0.0)


@aten("softmax.int", "_softmax.default")
def softmax(at: OpContext, self: Node, dim: int, *how: Any, **kwargs: Any) -> Node:
    """exp(x) / Σ exp(x) along an axis"""
    x = cast(self, at.dtype)
    return ops.softmax(x, dim) if x.ty.rank else ops.ones(x.ty)


@aten("log_softmax.int", "_log_softmax.default")
def log_softmax(at: OpContext, self: Node, dim: int, *how: Any, **kwargs: Any) -> Node:
    """x - log Σ exp(x) along an axis"""
    x = cast(self, at.dtype)
    return ops.log_softmax(x, dim) if x.ty.rank else ops.zeros(x.ty)


# -- attention


@aten("scaled_dot_product_attention.default")
def attention(
    at: OpContext,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """softmax(q kᵀ scale + mask) v"""
    if enable_gqa:
        key, value = (_repeated_heads(x, query.shape[-3]) for x in (key, value))
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (_four_axes(ops.broadcast_to(x, (*lead, *x.shape[-2:]))) for x in (query, key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    mask = None if attn_mask is None else _four_axes_of_mask(attn_mask, lead)
    if mask is not None and mask.dtype != "bool":
        mask, added = _as_bools(mask)
    else:
        added = None
    if added is None and dropout_p == 0.0:
        y = _fused(q, k, v, mask, is_causal, factor)
    else:
        y = _composed(at, q, k, v, mask, added, dropout_p, is_causal, factor)
    return ops.reshape(y, (*lead, query.shape[-2], value.shape[-1]))


def _repeated_heads(x: Node, heads: int) -> Node:
    *lead, own, rows, width = x.shape
    n = heads // own
    if n == 1:
        return x
    told = ops.broadcast_to(ops.reshape(x, (*lead, own, 1, rows, width)), (*lead, own, n, rows, width))
    return ops.reshape(told, (*lead, heads, rows, width))


def _four_axes(x: Node) -> Node:
    """(batch, heads, rows, width) of any number of leading axes."""
    lead = x.shape[:-2]
    if len(lead) == 2:
        return x
    return ops.reshape(x, (math.prod(lead[:-1]), lead[-1] if lead else 1, *x.shape[-2:]))


def _four_axes_of_mask(mask: Node, lead: tuple[int, ...]) -> Node:
    if len(lead) == 2 and mask.ty.rank <= 4:
        return ops.reshape(mask, (*(1,) * (4 - mask.ty.rank), *mask.shape))
    return _four_axes(ops.broadcast_to(mask, (*lead, *mask.shape[-2:])))


def _as_bools(mask: Node) -> tuple[Node | None, Node | None]:
    """An additive mask that is only 0 and -infinity (or nearly) as bools; else the mask as it is."""
    elements = fold(mask)
    if elements is not None:
        wide = np.asarray(elements, np.float64)
        if ((wide == 0) | (wide <= UNSEEN / 2)).all() and (wide == 0).any(-1).all():
            return ops.equal(mask, 0.0), None
    return None, mask


def _fused(q: Node, k: Node, v: Node, mask: Node | None, causal: bool, factor: float) -> Node:
    """By the composite with kernels of its own. Its causal mask ends with the last query, PyTorch's begins with the
    first: they are the same where there are as many keys as queries."""
    if causal and q.shape[2] != k.shape[2]:
        mask, causal = _first_keys(q.shape[2], k.shape[2], mask), False
    return _where_seen(ops.attention(q, k, v, mask, causal=causal, scale=factor), mask)


def _where_seen(y: Node, mask: Node | None) -> Node:
    """0 for the queries that see no key."""
    if mask is None:
        return y
    known = fold(mask)
    if known is not None and known.any(-1).all():
        return y
    some = ops.greater(ops.max(cast(mask, "i32"), -1, True), 0)
    return ops.where(some, y, 0.0)


def _first_keys(rows: int, columns: int, mask: Node | None) -> Node:
    seen = ops.less_equal(ops.iota((1, 1, rows, columns), 3), ops.iota((1, 1, rows, columns), 2))
    return seen if mask is None else ops.logical_and(seen, mask)


def _composed(
    at: OpContext,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    added: Node | None,
    p: float,
    causal: bool,
    factor: float,
) -> Node:
    """By products and a softmax: with an additive mask, or dropout of the weights."""
    scores = ops.matmul(q, k, tb=True) * factor
    if added is not None:
        scores = ops.add(scores, cast(added, scores.dtype))
    seen = _first_keys(q.shape[2], k.shape[2], mask) if causal else mask
    if seen is not None:
        scores = ops.where(seen, scores, UNSEEN)
    if added is None:
        weights = ops.softmax(scores, -1)
    else:  # a row of it may be -infinity
        reached = ops.greater(ops.stop_gradient(ops.max(scores, -1, True)), -math.inf)
        weights = ops.where(reached, ops.softmax(ops.where(reached, scores, 0.0), -1), 0.0)
    return _where_seen(ops.matmul(dropped(at, weights, p), v), seen)


# -- embeddings


def rows_of(i: Node, n: int) -> Node:
    """Row numbers as PyTorch takes them: a negative one counts from the end."""
    return ops.where(ops.less(i, cast(0, i.dtype)), i + n, i)


@aten("embedding.default")
def embedding(
    at: OpContext,
    weight: Node,
    indices: Node,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:
    """The rows of the weight; that of padding_idx gets no gradient"""
    indices = in_range(indices, weight.shape[0], "embedding: index")
    y = ops.embedding(indices, weight)
    if scale_grad_by_freq:
        y = _shared_gradient(y, indices, weight.shape[0])
    if padding_idx < 0:
        return y
    is_padding = ops.expand_dims(ops.equal(indices, cast(padding_idx, indices.dtype)), -1)
    return ops.where(is_padding, ops.stop_gradient(y), y)


def _shared_gradient(y: Node, indices: Node, rows: int) -> Node:
    """y, with gradients divided by how often the row is used."""
    flat = ops.reshape(indices, (indices.ty.size,))
    counts = ops.scatter_add(ops.full((rows,), 0, y.dtype), flat, ops.full(flat.shape, 1, y.dtype))
    share = ops.expand_dims(1.0 / ops.reshape(ops.take(counts, flat, 0), indices.shape), -1)
    held = ops.stop_gradient(y)
    return ops.add(held, ops.sub(y, held) * share)


@aten(
    "embedding_bag.padding_idx",
    "embedding_bag.default",
    "_embedding_bag.default",
    "_embedding_bag_forward_only.default",
)
def embedding_bag(
    at: OpContext,
    weight: Node,
    indices: Node,
    offsets: Node,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Node | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[Node]:
    """Sums, means or maxima of the rows of each bag; what else PyTorch returns cannot be asked"""
    if scale_grad_by_freq:
        raise at.unsupported("scale_grad_by_freq of an EmbeddingBag")
    indices = in_range(indices, weight.shape[0], "embedding_bag: index")
    rows = ops.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * ops.expand_dims(per_sample_weights, -1)
    counted = None
    if padding_idx is not None and padding_idx >= 0:
        counted = ops.not_equal(indices, cast(padding_idx, indices.dtype))
    bags = offsets.ty.size - include_last_offset
    known = fold(offsets)
    if counted is None and known is not None:
        size = indices.ty.size // max(bags, 1)
        if np.array_equal(known.reshape(-1)[:bags], np.arange(bags) * size) and size * bags == indices.ty.size:
            every = ops.reshape(rows, (bags, size, weight.shape[1]))
            return [{0: ops.sum, 1: ops.mean, 2: largest}[mode](every, 1)]
    return [_bags(rows, _members(offsets, bags, indices.ty.size, counted), mode)]


def _members(offsets: Node, bags: int, n: int, counted: Node | None) -> Node:
    """(bags, n): which rows are in which bag."""
    begins = cast(ops.reshape(offsets, (offsets.ty.size, 1)), "i64")
    begun = ops.greater_equal(ops.iota((offsets.ty.size, n), 1, "i64"), begins)
    ended = ops.part(begun, 0, 1, offsets.ty.size)
    if offsets.ty.size == bags:
        ended = (
            ops.concat(ended, ops.full((1, n), False, "bool"), axis=0) if bags > 1 else ops.full((1, n), False, "bool")
        )
        within = ops.logical_and(begun, ops.logical_not(ended))
    else:
        within = ops.logical_and(ops.part(begun, 0, 0, bags), ops.logical_not(ended))
    return within if counted is None else ops.logical_and(within, ops.reshape(counted, (1, n)))


def _bags(rows: Node, members: Node, mode: int) -> Node:
    """Sums, means or maxima of the rows of each bag; 0 of an empty one."""
    count = ops.sum(cast(members, rows.dtype), 1, True)
    if mode == 2:
        lined = ops.expand_dims(members, -1)
        every = ops.where(lined, ops.broadcast_to(rows, (members.shape[0], *rows.shape)), -math.inf)
        return ops.where(ops.greater(count, 0.0), largest(every, 1), 0.0)
    total = ops.matmul(cast(members, rows.dtype), rows)
    return total if mode == 0 else total / ops.maximum(count, 1.0)


@aten("one_hot.default")
def one_hot(at: OpContext, self: Node, num_classes: int = -1) -> Node:
    """1 at the class, 0 elsewhere"""
    if num_classes < 0:
        raise at.unsupported("num_classes that depends on the data; give it")
    return cast(ops.one_hot(self, num_classes, "f32"), at.dtype)


# -- dropout


def dropped(at: OpContext, x: Node, p: float, axes: tuple[int, ...] = ()) -> Node:
    """x with some elements set to 0, and the others scaled"""
    if p == 0.0:
        return x
    if p >= 1.0:
        return ops.zeros(x.ty)
    state, number = at.draw()
    return ops.dropout(x, state, p=p, draw=number, axes=axes)


@aten("dropout.default", "alpha_dropout.default", "feature_dropout.default", "feature_alpha_dropout.default")
def dropout(at: OpContext, input: Node, p: float, train: bool) -> Node:
    """In training some elements (or whole channels) 0, others scaled; of alpha dropout, mean and variance are kept"""
    axes = tuple(range(2, input.ty.rank)) if at.name.startswith("feature") else ()
    if not train or p == 0.0:
        return input
    if "alpha" not in at.name or p >= 1.0:
        return dropped(at, input, p, axes)
    alpha = 1.7580993408473766  # -lim selu(x), x -> -inf
    a = 1.0 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    kept = ops.greater(dropped(at, ops.ones(input.ty), p, axes), 0.0)
    return ops.where(kept, input * a + alpha * a * p, alpha * a * (p - 1))


@aten("native_dropout.default")
def native_dropout(at: OpContext, input: Node, p: float, train: bool | None) -> list[Value]:
    """In training some elements 0, others scaled; and which are kept"""
    if not train or p == 0.0:
        return [input, ops.full(input.shape, True, "bool")]
    scale = dropped(at, ops.ones(input.ty), p)
    return [ops.mul(input, scale), ops.greater(scale, 0.0)]
