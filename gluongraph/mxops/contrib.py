"""MXNet's `contrib` operators, as builders over nodes."""

from __future__ import annotations

import math

from gluongraph import ops
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import axes_of, sign


def arange_like(data: Node, start: float = 0.0, step: float = 1.0, repeat: int = 1, axis: int | None = None) -> Node:
    """start, start + step, ... in the shape of data, or as many as one axis has."""
    shape = data.shape if axis is None else (data.shape[axes_of(data, axis)[0]],)
    count = math.prod(shape)
    number = ops.floordiv(ops.iota((count,)), repeat) if repeat != 1 else ops.iota((count,))
    made = ops.add(ops.mul(ops.cast(number, data.dtype), step), start)
    return ops.reshape(made, shape)


def div_sqrt_dim(data: Node) -> Node:
    """data / sqrt(extent of the last axis)"""
    return ops.div(data, math.sqrt(data.shape[-1]))


def quadratic(data: Node, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> Node:
    """a data² + b data + c"""
    return ops.add(ops.mul(ops.add(ops.mul(data, a), b), data), c)


def isfinite(data: Node) -> Node:
    """1 where neither infinite nor NaN, else 0"""
    return ops.cast(ops.isfinite(data), data.dtype)


def isnan(data: Node) -> Node:
    """1 where NaN, else 0"""
    return ops.cast(ops.isnan(data), data.dtype)


def isinf(data: Node) -> Node:
    """1 where infinite, else 0"""
    return ops.cast(ops.equal(ops.abs(data), math.inf), data.dtype)


def allclose(a: Node, b: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = True) -> Node:
    """1 if |a - b| <= atol + rtol |b| everywhere, else 0; an array of shape ()"""
    near = ops.less_equal(ops.abs(ops.sub(a, b)), ops.add(ops.mul(ops.abs(b), rtol), atol))
    near = ops.logical_or(near, ops.equal(a, b))  # infinities are near themselves
    if equal_nan:
        near = ops.logical_or(near, ops.logical_and(ops.isnan(a), ops.isnan(b)))
    return ops.min(ops.cast(near, "u8"))


# -- values whose gradient is that of another function


def round_ste(data: Node) -> Node:
    """The nearest integer, halves away from zero; the gradient is that of data (straight through)."""
    rounded = ops.mul(ops.sign(data), ops.floor(ops.add(ops.abs(data), 0.5)))
    return ops.add(data, ops.stop_gradient(ops.sub(rounded, data)))


def sign_ste(data: Node) -> Node:
    """-1, 0 or 1; the gradient is that of data (straight through)."""
    return ops.add(data, ops.stop_gradient(ops.sub(sign(data), data)))


def gradientmultiplier(data: Node, scalar: float = 1.0) -> Node:
    """data, whose gradient is multiplied by `scalar`"""
    return ops.add(ops.mul(data, scalar), ops.stop_gradient(ops.mul(data, 1.0 - scalar)))


# -- attention over (length, batch, heads · 3 · size): queries, keys and values of a head side by side


def _heads(projections: Node, heads: int, parts: int) -> Node:
    """(parts, batch · heads, length, size)"""
    length, batch, width = projections.shape
    if width % (heads * parts):
        raise ShapeError(with_user_location(f"attention: {projections.ty} has no {heads} heads of {parts} parts each"))
    apart = ops.reshape(projections, (length, batch, heads, parts, width // heads // parts))
    together = ops.transpose(apart, (3, 1, 2, 0, 4))
    return ops.reshape(together, (parts, batch * heads, length, width // heads // parts))


def _part(x: Node, i: int) -> Node:
    return ops.reshape(ops.part(x, 0, i, i + 1), x.shape[1:])


def _merged(x: Node, heads: int) -> Node:
    """(batch · heads, length, size) as (length, batch, heads · size)"""
    count, length, size = x.shape
    apart = ops.reshape(x, (count // heads, heads, length, size))
    return ops.reshape(ops.transpose(apart, (2, 0, 1, 3)), (length, count // heads, heads * size))


def interleaved_matmul_selfatt_qk(queries_keys_values: Node, heads: int) -> Node:
    """Q Kᵀ / sqrt(size) per head, of shape (batch · heads, length, length)"""
    x = _heads(queries_keys_values, heads, 3)
    q, k = _part(x, 0), _part(x, 1)
    return ops.matmul(ops.div(q, math.sqrt(q.shape[-1])), k, tb=True)


def interleaved_matmul_selfatt_valatt(queries_keys_values: Node, attention: Node, heads: int) -> Node:
    """attention V per head, of shape (length, batch, heads · size)"""
    return _merged(ops.matmul(attention, _part(_heads(queries_keys_values, heads, 3), 2)), heads)


def interleaved_matmul_encdec_qk(queries: Node, keys_values: Node, heads: int) -> Node:
    """Q Kᵀ / sqrt(size) per head, of shape (batch · heads, length of queries, length of keys)"""
    q, k = _part(_heads(queries, heads, 1), 0), _part(_heads(keys_values, heads, 2), 0)
    return ops.matmul(ops.div(q, math.sqrt(q.shape[-1])), k, tb=True)


def interleaved_matmul_encdec_valatt(keys_values: Node, attention: Node, heads: int) -> Node:
    """attention V per head, of shape (length of queries, batch, heads · size)"""
    return _merged(ops.matmul(attention, _part(_heads(keys_values, heads, 2), 1)), heads)


# -- boxes


def box_iou(lhs: Node, rhs: Node, format: str = "corner") -> Node:
    """Intersection over union of each box of lhs with each of rhs.

    Boxes are (left, top, right, bottom), or with format="center" (x, y, width, height), around their centre.
    """
    a, b = (_corners(x, format) for x in (lhs, rhs))
    lead, others = lhs.shape[:-1], rhs.shape[:-1]
    whole = (*lead, *others)
    ends = []
    for i in range(4):
        left = ops.reshape(ops.part(a, -1, i, i + 1), (*lead, *(1,) * len(others)))
        right = ops.reshape(ops.part(b, -1, i, i + 1), (*(1,) * len(lead), *others))
        ends.append((ops.expand(left, whole), ops.expand(right, whole)))
    (al, bl), (at, bt), (ar, br), (ab, bb) = ends
    width = ops.maximum(ops.sub(ops.minimum(ar, br), ops.maximum(al, bl)), 0.0)
    height = ops.maximum(ops.sub(ops.minimum(ab, bb), ops.maximum(at, bt)), 0.0)
    common = ops.mul(width, height)
    areas = ops.add(ops.mul(ops.sub(ar, al), ops.sub(ab, at)), ops.mul(ops.sub(br, bl), ops.sub(bb, bt)))
    union = ops.sub(areas, common)
    return ops.where(ops.greater(union, 0.0), ops.div(common, ops.where(ops.greater(union, 0.0), union, 1.0)), 0.0)


def _corners(boxes: Node, format: str) -> Node:
    if format == "corner":
        return boxes
    centre, size = ops.part(boxes, -1, 0, 2), ops.part(boxes, -1, 2, 4)
    half = ops.mul(size, 0.5)
    return ops.concat(ops.sub(centre, half), ops.add(centre, half), axis=-1)
