"""Canonical forms by a table of rewrite rules; each preserves every value, NaN and infinity too.

So `x - x -> 0`, `x * 0 -> 0` and `x + 0.0 -> x` (which would keep -0.0) are not here. The sign of a zero or the last
bit may change in three places: `pow(x, 2) -> x * x`; a sum of one element, which is computed as 0.0 + x; and
zero-padded parts that are added, which keep their own -0.0 when they are concatenated instead.
"""

from __future__ import annotations

import math
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import Rule, hole, is_value, p, rewrite, value
from gluongraph.passes.shapes import moves_nothing

x, y, c = hole("x"), hole("y"), hole("c")
a, b = p.pad(hole("left")).named("a"), p.pad(hole("right")).named("b")  # padded parts


def simplify(graph: Graph) -> Graph:
    """x*1, --x, max(x, x), chains of movement, transposes under a matmul -> their canonical form. Every type stays."""
    return rewrite(graph, RULES)


def same(n: Node, x: Node, **_: Any) -> Node:
    """Return the rule's x."""
    return x


def _if(condition: Any) -> Any:
    """Return a rule's function that replaces n by x if `condition(n, **holes)` holds."""
    return lambda n, x, **holes: x if condition(n, x=x, **holes) else None


def _is(constant: float) -> Any:
    return _if(lambda n, c, **_: is_value(c, constant))


def _integer(n: Node) -> bool:
    return DTYPES[n.dtype].family in ("int", "uint")


def _plus_nothing(n: Node, x: Node, c: Node) -> bool:
    """Is c the neutral element of addition: -0.0 for floats, since -0.0 + 0.0 is 0.0?"""
    return is_value(c, 0.0 if _integer(n) else -0.0)


def _power(n: Node, x: Node, c: Node) -> Node | None:
    """x**0, x**1, x**2, x**-1 -> multiplications and divisions"""
    if is_value(c, 0):
        return ops.const(1, dtype=n.dtype, shape=n.shape)
    if is_value(c, 1):
        return x
    if is_value(c, 2):
        return ops.mul(x, x)
    return ops.div(ops.const(1, dtype=n.dtype, shape=n.shape), x) if is_value(c, -1) and not _integer(n) else None


def _by_power_of_two(n: Node, x: Node, c: Node) -> Node | None:
    """x / 2**k -> x * 2**-k, which is exact; for |k| so small that 2**-k is normal in every float type."""
    constant = value(c)
    if constant is None or _integer(n) or not math.isfinite(constant) or abs(math.frexp(constant)[0]) != 0.5:
        return None
    return (
        ops.mul(x, ops.const(1 / constant, dtype=n.dtype, shape=n.shape)) if 2**-14 <= abs(constant) <= 2**14 else None
    )


def _times_negated(n: Node, x: Node, c: Node) -> Node | None:
    """(-x) * c and -(x * c) -> x * (-c)"""
    constant = value(c)
    if constant is None or DTYPES[n.dtype].family != "float":
        return None
    return ops.mul(x, ops.const(-constant, dtype=n.dtype, shape=n.shape))


def _chosen(n: Node, c: Node, x: Node, y: Node) -> Node | None:
    constant = value(c)
    return None if constant is None else x if constant else y


def _cast_of_cast(n: Node, x: Node) -> Node | None:
    """Through a type that holds all of x's values, a cast is the direct cast."""
    return ops.cast(x, dtype=n.dtype) if holds_all(n.src[0].dtype, x.dtype) else None


def holds_all(target: str, source: str) -> bool:
    """Is every value of dtype `source` a value of dtype `target`?"""
    if target == source or source == "bool":
        return True
    w, n = DTYPES[target], DTYPES[source]
    if w.family == "float":
        digits = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
        if n.family == "float":
            return w.nbytes > n.nbytes
        return target not in ("f16", "bf16") and digits[target] >= 8 * n.nbytes  # f16 overflows, bf16 rounds
    return (w.family == n.family or (w.family, n.family) == ("int", "uint")) and w.nbytes > n.nbytes


def _convert_after_movement(n: Node, x: Node) -> Node | None:
    """movement(cast(x, f32)) -> cast(movement(x), f32) for 16-bit x: fewer bytes to move."""
    widened = n.src[0]
    if x.dtype not in ("f16", "bf16") or widened.dtype != "f32":
        return None
    return ops.cast(n.op(x, **n.attrs), widened.dtype)


def _reduce_size_one(n: Node, x: Node) -> Node | None:
    """Reduction over axes of size 1 -> reshape"""
    return ops.reshape(x, shape=n.shape) if all(x.shape[a] == 1 for a in n.attrs["axes"]) else None


def _without_ones(n: Node, x: Node) -> Node | None:
    """reshape(reduce(x, keepdims=True)) that drops the reduced axes -> reduce(x, keepdims=False)"""
    inner = n.src[0]
    axes = inner.attrs["axes"]
    if not inner.attrs["keepdims"] or n.shape != tuple(d for a, d in enumerate(x.shape) if a not in axes):
        return None
    return inner.op(x, axes=axes, keepdims=False)


def _compose(n: Node, x: Node) -> Node:
    """transpose(transpose(x)) -> transpose(x)"""
    inner = n.src[0].attrs["axes"]
    return ops.transpose(x, axes=tuple(inner[a] for a in n.attrs["axes"]))


def _moves_ones_only(n: Node, x: Node) -> Node | None:
    """A transpose that keeps the order of all axes longer than 1 -> reshape, which is free"""
    long = [a for a in n.attrs["axes"] if x.shape[a] != 1]
    return ops.reshape(x, shape=n.shape) if long == sorted(long) else None


def _slice_of_slice(n: Node, x: Node) -> Node | None:
    inner, outer = n.src[0].attrs, n.attrs
    if any(s < 1 for s in (*inner["strides"], *outer["strides"])):
        return None
    begin = tuple(b + o * s for b, o, s in zip(inner["begin"], outer["begin"], inner["strides"], strict=True))
    strides = tuple(s * t for s, t in zip(inner["strides"], outer["strides"], strict=True))
    end = tuple(b + (d - 1) * s + 1 for b, d, s in zip(begin, n.shape, strides, strict=True))
    return ops.slice(x, begin=begin, end=end, strides=strides) if n.ty.size else None


def _joined(a: Node, b: Node) -> Node | None:
    """pad(x) + pad(y) -> pad(concat(x, y)) if y begins where x ends, as in the gradients of adjacent slices."""
    (x,), (y,) = a.src, b.src
    sides = [tuple(zip(pad.attrs["before"], pad.attrs["after"], strict=True)) for pad in (a, b)]
    apart = [axis for axis, (one, other) in enumerate(zip(*sides, strict=True)) if one != other]
    if len(apart) != 1 or a.attrs["value"] != 0 or b.attrs["value"] != 0:
        return None
    (axis,) = apart
    if b.attrs["before"][axis] != a.attrs["before"][axis] + x.shape[axis]:
        return None
    parts = [p for whole in (x, y) for p in (whole.src if _joins(whole, axis) else (whole,))]
    return ops.pad(ops.concat(*parts, axis=axis), a.attrs["before"], b.attrs["after"])


def _joined_beside(n: Node, x: Node, a: Node, b: Node, **_: Node) -> Node | None:
    """(x + a) + b -> x + (a + b) for padded parts that do not overlap, so that the order of additions is irrelevant."""
    joined = _joined(a, b)
    return None if joined is None else ops.add(x, joined)


def _without_nothing(n: Node, any: Node) -> Node | None:
    """concat with empty sources -> concat without them"""
    if n.op.name != "concat":
        return None
    parts = [s for s in n.src if s.ty.size]
    if not parts or len(parts) == len(n.src):
        return None
    return parts[0] if len(parts) == 1 else ops.concat(*parts, axis=n.attrs["axis"])


def _joins(n: Node, axis: int) -> bool:
    return n.op.name == "concat" and n.attrs["axis"] == axis


def swaps_last(n: Node) -> bool:
    """Is n a transpose of the last two axes?"""
    rank = n.ty.rank
    return n.op.name == "transpose" and n.attrs["axes"] == (*range(rank - 2), rank - 1, rank - 2)


def _transposed_operand(n: Node, x: Node, y: Node) -> Node | None:
    """matmul(transpose(a), b) -> matmul(a, b, ta=not ta), and so for b"""
    if swaps_last(x):
        return n.op(x.src[0], y, **{**n.attrs, "ta": not n.attrs["ta"]})
    if swaps_last(y):
        return n.op(x, y.src[0], **{**n.attrs, "tb": not n.attrs["tb"]})
    return None


def _transposed_matmul(n: Node, x: Node, y: Node) -> Node | None:
    """transpose(matmul(a, b)) -> matmul(b, a) with inverted transposition flags"""
    matmul = n.src[0]
    flags = {"ta": not matmul.attrs["tb"], "tb": not matmul.attrs["ta"]}
    return matmul.op(y, x, **{**matmul.attrs, **flags}) if swaps_last(n) else None


def _before_expand(n: Node, any: Node) -> Node | None:
    """elementwise(expand(x), ...) -> expand(elementwise(x, ...)): the same values from fewer elements"""
    if n.op.kind != "elementwise" or n.op.name == "stop_gradient":
        return None
    inner_shapes = {s.src[0].shape for s in n.src if s.op.name == "expand" and value(s) is None}
    if len(inner_shapes) != 1:
        return None
    (shape,) = inner_shapes
    src: list[Node] = []
    for s in n.src:
        if (constant := value(s)) is not None:
            src.append(ops.const(constant, dtype=s.dtype, shape=shape))
        elif s.op.name == "expand":
            src.append(s.src[0])
        else:
            return None
    return ops.expand(n.op(*src, **n.attrs), shape=n.shape)


RULES: list[Rule] = [
    # arithmetic
    (x * c, _is(1)),
    (x / c, _is(1)),
    (x * c, lambda n, x, c: ops.neg(x) if is_value(c, -1) else None),
    (x + c, _if(_plus_nothing)),
    (x - c, _is(0.0)),
    (p.neg(-x), same),
    (x + -y, lambda n, x, y: ops.sub(x, y)),
    (x - -y, lambda n, x, y: ops.add(x, y)),
    (-x * c, _times_negated),
    (-(x * c), _times_negated),
    (x**c, _power),
    (x / c, _by_power_of_two),
    (p.abs(p.abs(x)), lambda n, x: ops.abs(x)),
    (p.abs(-x), lambda n, x: ops.abs(x)),
    (p.relu(p.relu(x)), lambda n, x: ops.relu(x)),
    # choice
    (p.maximum(x, x), same),
    (p.minimum(x, x), same),
    (p.maximum(x, c), _is(-math.inf)),
    (p.minimum(x, c), _is(math.inf)),
    (p.logical_and(x, x), _if(lambda n, x: x.dtype == "bool")),
    (p.logical_or(x, x), _if(lambda n, x: x.dtype == "bool")),
    (p.logical_and(x, c), _if(lambda n, x, c: x.dtype == "bool" and is_value(c, True))),
    (p.logical_or(x, c), _if(lambda n, x, c: x.dtype == "bool" and is_value(c, False))),
    (p.logical_not(p.logical_not(x)), _if(lambda n, x: x.dtype == "bool")),
    (p.where(c, x, y), _chosen),
    (p.where(c, x, x), _if(lambda n, x, c: True)),
    (p.where(p.logical_not(c), x, y), lambda n, c, x, y: ops.where(c, y, x) if c.dtype == "bool" else None),
    # types
    (p.cast(x), _if(lambda n, x: n.dtype == x.dtype)),
    (p.cast(p.cast(x)), _cast_of_cast),
    *((op(p.cast(x)), _convert_after_movement) for op in (p.reshape, p.transpose, p.slice, p.flip)),
    # ops that only differentiation needs
    (p.stop_gradient(x), same),
    # movement
    *((p.reshape(fold(x)), _without_ones) for fold in (p.sum, p.max, p.min, p.prod)),
    *((op(x), _if(lambda n, x: moves_nothing(n))) for op in (p.reshape, p.expand, p.transpose, p.slice, p.flip)),
    *((op(x), _if(lambda n, x: moves_nothing(n))) for op in (p.pad, p.concat)),
    (p.reshape(p.reshape(x)), lambda n, x: ops.reshape(x, shape=n.shape)),
    (p.expand(p.expand(x)), lambda n, x: ops.expand(x, shape=n.shape)),
    (p.expand(p.const().named("c")), lambda n, c: ops.const(c.attrs["value"], dtype=n.dtype, shape=n.shape)),
    (p.transpose(p.transpose(x)), _compose),
    (p.transpose(x), _moves_ones_only),
    (a + b, lambda n, a, b, **_: _joined(a, b)),
    (x + a + b, _joined_beside),
    (x + b + a, _joined_beside),
    (p.flip(p.flip(x)), _if(lambda n, x: n.attrs["axes"] == n.src[0].attrs["axes"])),
    (p.slice(p.slice(x)), _slice_of_slice),
    *((op(x), _reduce_size_one) for op in (p.sum, p.prod, p.max, p.min)),
    # contraction
    (p.matmul(x, y), _transposed_operand),
    (p.transpose(p.matmul(x, y)), _transposed_matmul),
    (hole("any"), _before_expand),
    (hole("any"), _without_nothing),
]
