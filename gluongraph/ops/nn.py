"""Composites of neural networks: gelu, attention, embedding, dropout.

Composites have a gradient rule where it saves work; others are differentiated through the body.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gluongraph.dtypes import is_float
from gluongraph.ir.composite import composite, results_of
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops import constants, elementwise, logic, reduce
from gluongraph.ops.builders import broadcast_to
from gluongraph.ops.checks import FLOATS, check_axes, misfit, need, normal_axes, without, wrong_dtype
from gluongraph.ops.index import scatter_add, take
from gluongraph.ops.matmul import MATMUL, matmul, summed_in
from gluongraph.ops.random import bernoulli
from gluongraph.ops.samples import array, each
from gluongraph.ops.softmax import softmax

# -- gelu


def _gelu_type(x: TensorType, approximate: bool) -> TensorType:
    need("gelu", FLOATS, x)
    return x


def _share(x: Node, approximate: bool) -> Node:
    """The factor of x: the normal cumulative distribution function, exact or by tanh."""
    if approximate:
        return (elementwise.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    return elementwise.normal_cdf(x)


def _gelu_grad(g: Node, y: Node, x: Node, approximate: bool) -> tuple[Node]:
    """g · (share + x · share')"""
    share = _share(x, approximate)
    if approximate:  # share = (1 + tanh u) / 2, so share' = 2 share (1 - share) u'
        derivative = share * (1 - share) * ((x * x * (3 * 0.044715) + 1) * (2 * math.sqrt(2 / math.pi)))
    else:
        derivative = elementwise.normal_pdf(x)
    return (g * (share + x * derivative),)


GELU = composite(
    "gelu",
    lambda x, approximate: x * _share(x, approximate),
    infer=_gelu_type,
    grad=_gelu_grad,
    samples=each((((3, 33),), {"approximate": False}), (((2, 5, 3),), {"approximate": True})),
    doc="x · Φ(x), with Φ the normal distribution, exact or by tanh",
)


def gelu(x: Node, approximate: bool = False) -> Node:
    """x · Φ(x), with Φ the normal distribution, exact or by tanh."""
    return GELU(x, approximate=approximate)


# -- attention

UNSEEN = -1e30  # of a masked score; finite, so that a row without unmasked scores gives no NaN


def _attention_type(
    q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, causal: bool, scale: float, dtype: str | None = None
) -> TensorType:
    need("attention", FLOATS, q)
    fits = q.rank == k.rank == v.rank == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    if not fits or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2] or len(mask) > 1:
        help = "queries (B, H, T, D), keys (B, H, S, D), values (B, H, S, E)"
        raise misfit("attention", "shapes do not fit", q, k, v, *mask, help=help)
    if not q.dtype == k.dtype == v.dtype:
        raise wrong_dtype("attention", "dtypes differ", q, k, v, help="cast one of them")
    scores = (*q.shape[:3], k.shape[2])
    for m in mask:
        if m.dtype != "bool":
            raise wrong_dtype("attention", "the mask is bool: true where a query attends to a key", m)
        if m.rank > 4 or any(n not in (1, s) for n, s in zip(m.shape[::-1], scores[::-1], strict=False)):
            raise misfit("attention", f"the mask does not broadcast to {scores}", m)
    return TensorType((*q.shape[:3], v.shape[3]), summed_in("attention", q, dtype))


def _sums(a: Node, b: Node, ta: bool = False, tb: bool = False) -> Node:
    """The matrix product; of 16-bit operands the float32 sums."""
    if b.dtype not in ("f16", "bf16"):
        return matmul(a, b, ta=ta, tb=tb)
    return MATMUL(elementwise.cast(a, b.dtype), b, ta=ta, tb=tb, dtype="f32")


def _seen(shape: tuple[int, ...], mask: Sequence[Node], causal: bool) -> list[Node]:
    """Return bools of that shape, true where a query attends to a key."""
    seen = [broadcast_to(m, shape) for m in mask]
    if causal:  # the last query attends to the last key
        ahead = shape[3] - shape[2]
        rows, columns = (constants.iota(shape, axis, "i32") for axis in (2, 3))
        seen.append(logic.less_equal(columns, rows + ahead if ahead else rows))
    return seen


def _weights(q: Node, k: Node, seen: Sequence[Node], scale: float) -> Node:
    """softmax(q kᵀ · scale) over unmasked keys; of 16-bit operands in float32."""
    scores = _sums(q, k, tb=True) * scale
    for s in seen:
        scores = logic.where(s, scores, UNSEEN)
    return softmax(scores, -1)


def _attention(q: Node, k: Node, v: Node, *mask: Node, causal: bool, scale: float, dtype: str | None = None) -> Node:
    seen = _seen((*q.shape[:3], k.shape[2]), mask, causal)
    return elementwise.cast(_sums(_weights(q, k, seen, scale), v), dtype or q.dtype)


def _attention_grad(
    g: Node, q: Node, k: Node, v: Node, *mask: Node, causal: bool, scale: float, dtype: str | None = None
) -> tuple[Node, Node, Node]:
    """P = softmax(S), S = q kᵀ · scale:  dv = Pᵀ g;  dP = g vᵀ;  dS = P (dP - Σ P dP);  dq = dS k · scale;
    dk = dSᵀ q · scale. The weights are recomputed: saving them would take T x S elements per head."""
    seen = _seen((*q.shape[:3], k.shape[2]), mask, causal)
    kept = dtype or q.dtype
    p = _weights(q, k, seen, scale)
    dp = _sums(g, v, tb=True)
    ds = p * (dp - reduce.sum(p * dp, -1, keepdims=True)) * scale
    for s in seen:
        ds = logic.where(s, ds, 0.0)
    found = _sums(ds, k), _sums(ds, q, ta=True), _sums(p, g, ta=True)
    dq, dk, dv = (elementwise.cast(x, kept) for x in found)
    return dq, dk, dv


def _attention_flops(q: TensorType, k: TensorType, v: TensorType, causal: bool, backward: bool) -> int:
    """Two products for each query and key, of the gradient five; half of the pairs where attention is causal."""
    numbers = 3 * q.shape[3] + 2 * v.shape[3] if backward else q.shape[3] + v.shape[3]
    pairs = q.size // q.shape[3] * k.shape[2]
    return 2 * pairs * numbers // (2 if causal else 1)


ATTENTION_GRAD = composite(
    "attention_grad",
    _attention_grad,
    samples=each(
        (((2, 3, 5, 6), (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), {"causal": False, "scale": 0.5}),
        (((1, 2, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4)), {"causal": True, "scale": 0.5}),
    ),
    flops=lambda y, g, q, k, v, *mask, causal, **how: _attention_flops(q, k, v, causal, True),
    numeric="low",
    doc="The gradients of attention for queries, keys and values, from that of its result.",
)

ATTENTION = composite(
    "attention",
    _attention,
    infer=_attention_type,
    grad=lambda g, y, q, k, v, *mask, causal, scale, dtype=None: (
        *results_of(ATTENTION_GRAD(elementwise.cast(g, q.dtype), q, k, v, *mask, causal=causal, scale=scale)),
        *(None for _ in mask),
    ),
    samples=each(
        (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), {"causal": False, "scale": 0.5}),
        (((1, 2, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4)), {"causal": True, "scale": 0.5}),
        (((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), ((2, 1, 1, 5), "bool")), {"causal": False, "scale": 1.0}),
    ),
    flops=lambda y, q, k, v, *mask, causal, **how: _attention_flops(q, k, v, causal, False),
    numeric="low",
    doc="softmax(q kᵀ · scale) v, for queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E). With "
    "dtype='f32', of 16-bit operands, the result is not rounded.",
)


def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, *, causal: bool = False, scale: float | None = None
) -> Node:
    """softmax(q kᵀ · scale) v for queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E).

    `scale` is 1/sqrt(D) unless given. A query does not attend to a key where the bool `mask` is false, nor with
    `causal` to a later key.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return ATTENTION(q, k, v, *([] if mask is None else [mask]), causal=causal, scale=scale)


# -- embedding, dropout


def _embedding_type(indices: TensorType, weight: TensorType) -> TensorType:
    if weight.rank != 2 or indices.dtype == "bool":
        raise misfit("embedding", "needs class numbers and a matrix with a row for each class", indices, weight)
    return TensorType((*indices.shape, weight.shape[1]), weight.dtype)


def _row_numbers(indices: Node) -> Node:
    return elementwise.cast(indices, "i32") if is_float(indices.dtype) else indices


def _embedding_grad(g: Node, y: Node, indices: Node, weight: Node) -> tuple[None, Node]:
    return None, scatter_add(constants.zeros(weight.ty), _row_numbers(indices), g)


EMBEDDING = composite(
    "embedding",
    lambda indices, weight: take(weight, _row_numbers(indices), 0),
    infer=_embedding_type,
    grad=_embedding_grad,
    samples=each(
        ((((2, 5), "i32", 0, 6), (7, 3)), {}),
        ((((4,), "f32", 0, 6), (7, 33)), {}),
    ),
    doc="The rows of the weight at the indices.",
)


def embedding(indices: Node, weight: Node) -> Node:
    """The rows of the weight at the indices; floats are truncated."""
    return EMBEDDING(indices, weight)


def _dropout_type(x: TensorType, state: TensorType, p: float, draw: int, axes: tuple[int, ...]) -> TensorType:
    need("dropout", FLOATS, x)
    check_axes("dropout", x, axes)
    if not 0 <= p < 1:
        raise misfit("dropout", f"p is a probability below 1, not {p}", x)
    return x


def _kept(x: Node, state: Node, p: float, draw: int, axes: tuple[int, ...]) -> Node:
    """1 / (1 - p) where an element is kept, else 0; one decision for all elements along `axes`."""
    shape = without(x.shape, axes, keepdims=True)
    keep = bernoulli(state, p=1 - p, shape=shape, draw=draw, dtype=x.dtype)
    return broadcast_to(keep * (1 / (1 - p)), x.shape)


DROPOUT = composite(
    "dropout",
    lambda x, state, **how: x * _kept(x, state, **how),
    infer=_dropout_type,
    grad=lambda g, y, x, state, **how: (g * _kept(x, state, **how), None),
    samples=lambda rng: [
        ((array(rng, shape, dtype), array(rng, (4,), "u32", 0, 2**31)), {"p": 0.3, "draw": 2, "axes": axes})
        for shape, dtype, axes in (((3, 33), "f32", ()), ((2, 5, 3), "f64", (1,)))
    ],
    doc="x with some elements set to 0, each with probability p, and the others scaled by 1 / (1 - p)",
)


def dropout(x: Node, state: Node, p: float, draw: int = 0, axes: Sequence[int] = ()) -> Node:
    """x with some elements set to 0, each with probability p, and the others scaled by 1 / (1 - p)."""
    axes = normal_axes("dropout", tuple(axes), x.ty.rank)
    return x if p == 0 else DROPOUT(x, state, p=float(p), draw=draw, axes=axes)


# -- mixed precision


KEEP_PRECISION = composite(
    "keep_precision",
    lambda x: x,
    infer=lambda x: x,
    grad=lambda g, y, x: (g,),  # g is multiplied in the precision of x
    samples=each((((3, 33),), {})),
    numeric="full",
    doc="x, which mixed precision does not cast: products with it are computed in x's dtype, forward and backward",
)


def keep_precision(x: Node) -> Node:
    """x, which mixed precision does not cast: products with it are computed in x's dtype, forward and backward."""
    return KEEP_PRECISION(x)
