"""Composites: what networks are written in, each a body over primitives.

A gradient of its own is given where it saves work or digits. It is built from the same nodes as the body, so that after
inlining forward and backward share what both need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir import Node, TensorType
from gluongraph.ops.build import (
    FLOATS,
    Axes,
    along,
    broadcast_to,
    check_axes,
    misfit,
    need,
    normal_axes,
    normal_axis,
    without,
    wrong_dtype,
)
from gluongraph.ops.composite import composite
from gluongraph.ops.leaf import is_zero
from gluongraph.ops.reduce import spread
from gluongraph.ops.samples import array, each

# -- mean, argmax, argmin


def _mean(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return ops.sum(x, axes, keepdims) * (1 / math.prod(x.shape[a] for a in axes))


def _mean_type(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    need("mean", FLOATS, x)
    check_axes("mean", x, axes)
    if any(x.shape[a] == 0 for a in axes):
        raise misfit("mean", "there are no elements", x)
    return TensorType(without(x.shape, axes, keepdims), x.dtype)


MEAN = composite(
    "mean",
    _mean,
    infer=_mean_type,
    grad=lambda g, y, x, axes, keepdims: (spread(g * (1 / math.prod(x.shape[a] for a in axes)), x, axes),),
    samples=each(
        (((3, 33),), {"axes": (1,), "keepdims": False}),
        (((2, 3, 17),), {"axes": (0, 2), "keepdims": True}),
        (((5, 9),), {"axes": (0, 1), "keepdims": False}),
    ),
    doc="The sum over the axes, by the number of elements.",
)


def mean(x: Node, axis: Axes = None, keepdims: bool = False) -> Node:
    """The mean over an axis or several, or over all."""
    return MEAN(x, axes=normal_axes("mean", axis, x.ty.rank), keepdims=keepdims)


def _first_hit(hit: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    """The first index along the axis where `hit` holds; the last one if it never does (all were NaN)."""
    n = hit.shape[axis]
    places = ops.where(hit, ops.iota(hit.shape, axis, "i32"), n - 1)
    return ops.cast(ops.min(places, axis, keepdims), dtype)


def _argmax(x: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    return _first_hit(ops.equal(x, spread(ops.max(x, axis), x, (axis,))), axis, keepdims, dtype)


def _argmin(x: Node, axis: int, keepdims: bool, dtype: str) -> Node:
    return _first_hit(ops.equal(x, spread(ops.min(x, axis), x, (axis,))), axis, keepdims, dtype)


_ARG_SAMPLES = each(
    (((3, 33),), {"axis": 1, "keepdims": False, "dtype": "i32"}),
    (((2, 3, 17),), {"axis": 1, "keepdims": True, "dtype": "i64"}),
    ((((4, 9), "i32", 0, 3),), {"axis": 0, "keepdims": False, "dtype": "i32"}),
)


def _no_grad(g: Node, y: Node, *x: Node, **attrs: Any) -> tuple[None, ...]:
    """An index does not move when the numbers do."""
    return (None,) * len(x)


ARGMAX = composite(
    "argmax", _argmax, grad=_no_grad, samples=_ARG_SAMPLES, doc="The index of the first largest element."
)
ARGMIN = composite(
    "argmin", _argmin, grad=_no_grad, samples=_ARG_SAMPLES, doc="The index of the first smallest element."
)


def argmax(x: Node, axis: int = -1, keepdims: bool = False, dtype: str = "i32") -> Node:
    """The index of the first largest element along an axis."""
    return ARGMAX(x, axis=normal_axis("argmax", axis, x.ty.rank), keepdims=keepdims, dtype=dtype)


def argmin(x: Node, axis: int = -1, keepdims: bool = False, dtype: str = "i32") -> Node:
    """The index of the first smallest element along an axis."""
    return ARGMIN(x, axis=normal_axis("argmin", axis, x.ty.rank), keepdims=keepdims, dtype=dtype)


# -- softmax and its relatives

_LAST_AND_MIDDLE = each(
    (((3, 33),), {"axis": 1}),
    (((2, 3, 17),), {"axis": 1}),
    (((7,),), {"axis": 0}),
)


def _shifted(x: Node, axis: int) -> Node:
    """x minus its largest element along the axis, so that no exponential overflows; a constant, for the gradient."""
    return x - spread(ops.stop_gradient(ops.max(x, axis, keepdims=True)), x, (axis,))


def _exp_sum(x: Node, axis: int) -> tuple[Node, Node]:
    """e^(x - max) and its sum along the axis, once for each element."""
    e = ops.exp(_shifted(x, axis))
    return e, ops.sum(e, axis, keepdims=True)


def _float_axis(op: str) -> Any:
    def infer(x: TensorType, axis: int) -> TensorType:
        need(op, FLOATS, x)
        check_axes(op, x, (axis,))
        return x

    return infer


def _softmax(x: Node, axis: int) -> Node:
    e, total = _exp_sum(x, axis)
    return e / spread(total, x, (axis,))


SOFTMAX = composite(
    "softmax",
    _softmax,
    infer=_float_axis("softmax"),
    grad=lambda g, y, x, axis: (y * (g - spread(ops.sum(g * y, axis, keepdims=True), x, (axis,))),),
    samples=_LAST_AND_MIDDLE,
    numeric="full",
    doc="e^x / Σ e^x along an axis",
)


def softmax(x: Node, axis: int = -1) -> Node:
    """e^x / Σ e^x along an axis: positive numbers of sum 1."""
    return SOFTMAX(x, axis=normal_axis("softmax", axis, x.ty.rank))


def _log_softmax(x: Node, axis: int) -> Node:
    _, total = _exp_sum(x, axis)
    return _shifted(x, axis) - spread(ops.log(total), x, (axis,))


LOG_SOFTMAX = composite(
    "log_softmax",
    _log_softmax,
    infer=_float_axis("log_softmax"),
    grad=lambda g, y, x, axis: (g - ops.exp(y) * spread(ops.sum(g, axis, keepdims=True), x, (axis,)),),
    samples=_LAST_AND_MIDDLE,
    numeric="full",
    doc="x - log Σ e^x along an axis",
)


def log_softmax(x: Node, axis: int = -1) -> Node:
    """The logarithm of softmax, x - log Σ e^x, without its loss of digits."""
    return LOG_SOFTMAX(x, axis=normal_axis("log_softmax", axis, x.ty.rank))


def _cross_entropy_type(x: TensorType, label: TensorType, axis: int, sparse: bool) -> TensorType:
    need("softmax_cross_entropy", FLOATS, x)
    check_axes("softmax_cross_entropy", x, (axis,))
    wanted = without(x.shape, (axis,)) if sparse else x.shape
    if label.shape != wanted:
        help = (
            f"labels that are class numbers have the shape {wanted}"
            if sparse
            else f"labels that are distributions have the shape {wanted}"
        )
        raise misfit("softmax_cross_entropy", "the label does not fit", x, label, help=help)
    if label.dtype == "bool" or (not sparse and label.dtype != x.dtype):
        raise wrong_dtype("softmax_cross_entropy", "the label does not fit", x, label, help="cast the label")
    return TensorType(without(x.shape, (axis,)), x.dtype)


def _is_class(x: Node, label: Node, axis: int) -> Node:
    """Is this element that of the label?"""
    return ops.equal(ops.iota(x.shape, axis, "i32"), spread(ops.cast(label, "i32"), x, (axis,)))


def _cross_entropy(x: Node, label: Node, axis: int, sparse: bool) -> Node:
    """log Σ e^(x - max) - (x - max)[label], or -Σ label · log softmax(x)."""
    if not sparse:
        return -ops.sum(label * _log_softmax(x, axis), axis)
    _, total = _exp_sum(x, axis)
    picked = ops.sum(ops.where(_is_class(x, label, axis), _shifted(x, axis), 0), axis, keepdims=True)
    return ops.reshape(ops.log(total) - picked, without(x.shape, (axis,)))


def _cross_entropy_grad(g: Node, y: Node, x: Node, label: Node, axis: int, sparse: bool) -> tuple[Node, Node | None]:
    """(softmax(x) - label) · g"""
    e, total = _exp_sum(x, axis)
    share = e / spread(total, x, (axis,))
    at = spread(g, x, (axis,))
    if sparse:
        return (share - ops.where(_is_class(x, label, axis), ops.ones(x.ty), 0)) * at, None
    mass = spread(ops.sum(label, axis, keepdims=True), x, (axis,))
    return (share * mass - label) * at, -_log_softmax(x, axis) * at


SOFTMAX_CROSS_ENTROPY = composite(
    "softmax_cross_entropy",
    _cross_entropy,
    infer=_cross_entropy_type,
    grad=_cross_entropy_grad,
    samples=each(
        (((3, 33), ((3,), "i32", 0, 32)), {"axis": 1, "sparse": True}),
        (((2, 5, 3), (2, 5, 3)), {"axis": 1, "sparse": False}),
        (((2, 5, 3), ((2, 3), "f32", 0, 4)), {"axis": 1, "sparse": True}),
    ),
    numeric="full",
    doc="-log softmax(x) at the label, or -Σ label · log softmax(x), for each position",
)


def softmax_cross_entropy(x: Node, label: Node, axis: int = -1, sparse: bool = True) -> Node:
    """-log softmax(x) at the label for each position; the axis is gone. Not sparse: labels are distributions."""
    axis = normal_axis("softmax_cross_entropy", axis, x.ty.rank)
    return SOFTMAX_CROSS_ENTROPY(x, label, axis=axis, sparse=sparse)


# -- normalization


def _centered(x: Node, axes: tuple[int, ...]) -> tuple[Node, Node, Node]:
    """x - mean; the mean and the biased variance over the axes, which stay as 1."""
    average = _mean(x, axes, True)
    rest = x - spread(average, x, axes)
    return rest, average, _mean(rest * rest, axes, True)


def _normalized(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """(x - mean) / sqrt(var + eps), and 1 / sqrt(var + eps), once for each element."""
    rest, _, variance = _centered(x, axes)
    scale = spread(ops.rsqrt(variance + eps), x, axes)
    return rest * scale, scale


def _per_channel(op: str, x: TensorType, axis: int, *vectors: TensorType) -> None:
    need(op, FLOATS, x)
    check_axes(op, x, (axis,))
    for v in vectors:
        if v.shape != (x.shape[axis],):
            help = f"axis {axis} has {x.shape[axis]} elements, so that is what gamma, beta and statistics have"
            raise misfit(op, "the parameters do not fit", x, *vectors, help=help)
        if v.dtype != x.dtype:
            raise wrong_dtype(op, "dtypes differ", x, *vectors, help="cast one of them")


def _layer_norm_type(x: TensorType, gamma: TensorType, beta: TensorType, axis: int, eps: float) -> TensorType:
    _per_channel("layer_norm", x, axis, gamma, beta)
    return x


def _layer_norm(x: Node, gamma: Node, beta: Node, axis: int, eps: float) -> Node:
    normal, _ = _normalized(x, (axis,), eps)
    return normal * along(gamma, axis, x.shape) + along(beta, axis, x.shape)


def _layer_norm_grad(
    g: Node, y: Node, x: Node, gamma: Node, beta: Node, axis: int, eps: float
) -> tuple[Node, Node, Node]:
    """With n = (x - mean) · s and d = g · gamma: dx = s (d - mean d - n · mean(d n))"""
    normal, scale = _normalized(x, (axis,), eps)
    others = tuple(a for a in range(x.ty.rank) if a != axis)
    d = g * along(gamma, axis, x.shape)
    mean_d = spread(_mean(d, (axis,), True), x, (axis,))
    mean_dn = spread(_mean(d * normal, (axis,), True), x, (axis,))
    return scale * (d - mean_d - normal * mean_dn), ops.sum(g * normal, others), ops.sum(g, others)


LAYER_NORM = composite(
    "layer_norm",
    _layer_norm,
    infer=_layer_norm_type,
    grad=_layer_norm_grad,
    samples=each(
        (((3, 33), (33,), (33,)), {"axis": 1, "eps": 1e-5}),
        (((2, 5, 3), (5,), (5,)), {"axis": 1, "eps": 1e-3}),
    ),
    numeric="full",
    doc="(x - mean) / sqrt(var + eps) · gamma + beta along an axis",
)


def layer_norm(x: Node, gamma: Node, beta: Node, axis: int = -1, eps: float = 1e-5) -> Node:
    """(x - mean) / sqrt(var + eps) · gamma + beta, with mean and biased variance along the axis."""
    return LAYER_NORM(x, gamma, beta, axis=normal_axis("layer_norm", axis, x.ty.rank), eps=float(eps))


def _but(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a != axis)


def _batch_norm_type(
    x: TensorType, gamma: TensorType, beta: TensorType, axis: int, eps: float
) -> tuple[TensorType, TensorType, TensorType]:
    _per_channel("batch_norm", x, axis, gamma, beta)
    return x, gamma, gamma


def _batch_norm(x: Node, gamma: Node, beta: Node, axis: int, eps: float) -> tuple[Node, Node, Node]:
    axes = _but(axis, x.ty.rank)
    _, average, variance = _centered(x, axes)
    normal, _ = _normalized(x, axes, eps)
    y = normal * along(gamma, axis, x.shape) + along(beta, axis, x.shape)
    return y, ops.reshape(average, gamma.shape), ops.reshape(variance, gamma.shape)


def _batch_norm_grad(
    gs: tuple[Node, Node, Node], ys: Any, x: Node, gamma: Node, beta: Node, axis: int, eps: float
) -> tuple[Node, Node, Node]:
    """With n = (x - mean) · s: dx = gamma s (g - mean g - n · mean(g n)); dbeta and dgamma are those two sums."""
    g, g_mean, g_var = gs
    axes = _but(axis, x.ty.rank)
    count = x.ty.size // gamma.ty.size
    normal, scale = _normalized(x, axes, eps)
    d_gamma, d_beta = ops.sum(g * normal, axes), ops.sum(g, axes)

    def mean_of(total: Node) -> Node:
        return along(total * (1 / count), axis, x.shape)

    dx = along(gamma, axis, x.shape) * scale * (g - mean_of(d_beta) - normal * mean_of(d_gamma))
    if not is_zero(g_mean):
        dx = dx + mean_of(g_mean)
    if not is_zero(g_var):
        dx = dx + mean_of(g_var) * 2 * _centered(x, axes)[0]
    return dx, d_gamma, d_beta


BATCH_NORM = composite(
    "batch_norm",
    _batch_norm,
    infer=_batch_norm_type,
    grad=_batch_norm_grad,
    samples=each(
        (((4, 3, 5, 2), (3,), (3,)), {"axis": 1, "eps": 1e-5}),
        (((9, 7), (7,), (7,)), {"axis": 1, "eps": 1e-3}),
    ),
    numeric="full",
    doc="Over all axes but one: y = (x - mean) / sqrt(var + eps) · gamma + beta; and mean, and var (biased)",
)


def batch_norm(x: Node, gamma: Node, beta: Node, axis: int = 1, eps: float = 1e-5) -> tuple[Node, Node, Node]:
    """y, mean, var of y = (x - mean) / sqrt(var + eps) · gamma + beta over all axes but one; var is biased."""
    y, average, variance = ops.items(
        BATCH_NORM(x, gamma, beta, axis=normal_axis("batch_norm", axis, x.ty.rank), eps=float(eps))
    )
    return y, average, variance


def _inference_type(x: TensorType, *vectors: TensorType, axis: int, eps: float) -> TensorType:
    _per_channel("batch_norm_inference", x, axis, *vectors)
    return x


def _batch_norm_inference(x: Node, gamma: Node, beta: Node, mean: Node, var: Node, axis: int, eps: float) -> Node:
    """One multiplication and one addition for each element."""
    scale = gamma * ops.rsqrt(var + eps)
    return x * along(scale, axis, x.shape) + along(beta - mean * scale, axis, x.shape)


BATCH_NORM_INFERENCE = composite(
    "batch_norm_inference",
    _batch_norm_inference,
    infer=_inference_type,
    samples=each(
        (((4, 3, 5, 2), (3,), (3,), (3,), ((3,), "f32", 0.5, 2)), {"axis": 1, "eps": 1e-5}),
        dtypes=("f32",),
    ),
    numeric="full",
    doc="(x - mean) / sqrt(var + eps) · gamma + beta with given statistics",
)


def batch_norm_inference(
    x: Node, gamma: Node, beta: Node, mean: Node, var: Node, axis: int = 1, eps: float = 1e-5
) -> Node:
    """(x - mean) / sqrt(var + eps) · gamma + beta with given statistics."""
    axis = normal_axis("batch_norm_inference", axis, x.ty.rank)
    return BATCH_NORM_INFERENCE(x, gamma, beta, mean, var, axis=axis, eps=float(eps))


# -- gelu


def _gelu_type(x: TensorType, approximate: bool) -> TensorType:
    need("gelu", FLOATS, x)
    return x


def _share(x: Node, approximate: bool) -> Node:
    """How much of x passes: the normal distribution up to x, exact or by tanh."""
    if approximate:
        return (ops.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5
    return (ops.erf(x * math.sqrt(0.5)) + 1) * 0.5


def _gelu_grad(g: Node, y: Node, x: Node, approximate: bool) -> tuple[Node]:
    """g · (share + x · share')"""
    share = _share(x, approximate)
    if approximate:  # share = (1 + tanh u) / 2, so share' = 2 share (1 - share) u'
        slope = share * (1 - share) * ((x * x * (3 * 0.044715) + 1) * (2 * math.sqrt(2 / math.pi)))
    else:
        slope = ops.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (g * (share + x * slope),)


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

_LOWEST = {"f16": -6e4}  # a score that is left out; finite, so that a row with none left gives no NaN


def _attention_type(
    q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, causal: bool, scale: float
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
            raise wrong_dtype("attention", "the mask is bool: true where a key may be seen", m)
        if m.rank > 4 or any(n not in (1, s) for n, s in zip(m.shape[::-1], scores[::-1], strict=False)):
            raise misfit("attention", f"the mask does not broadcast to {scores}", m)
    return TensorType((*q.shape[:3], v.shape[3]), q.dtype)


def _attention(q: Node, k: Node, v: Node, *mask: Node, causal: bool, scale: float) -> Node:
    scores = ops.matmul(q, k, tb=True) * scale
    seen = [broadcast_to(m, scores.shape) for m in mask]
    if causal:  # the last query sees the last key
        ahead = scores.shape[3] - scores.shape[2]
        rows, columns = (ops.iota(scores.shape, axis, "i32") for axis in (2, 3))
        seen.append(ops.less_equal(columns, rows + ahead if ahead else rows))
    for s in seen:
        scores = ops.where(s, scores, _LOWEST.get(q.dtype, -1e30))
    return ops.matmul(ops.softmax(scores, -1), v)


ATTENTION = composite(
    "attention",
    _attention,
    infer=_attention_type,
    samples=each(
        (((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)), {"causal": False, "scale": 0.5}),
        (((1, 2, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4)), {"causal": True, "scale": 0.5}),
        (((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4), ((2, 1, 1, 5), "bool")), {"causal": False, "scale": 1.0}),
    ),
    numeric="low",
    doc="softmax(q kᵀ · scale) v, for queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E)",
)


def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, *, causal: bool = False, scale: float | None = None
) -> Node:
    """softmax(q kᵀ · scale) v for queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E).

    `scale` is 1/sqrt(D) unless given. Where the bool `mask` is false, or the key comes later and `causal` is set,
    the key is not seen.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return ATTENTION(q, k, v, *([] if mask is None else [mask]), causal=causal, scale=scale)


# -- embedding, dropout


def _embedding_type(indices: TensorType, weight: TensorType) -> TensorType:
    if weight.rank != 2 or indices.dtype == "bool":
        raise misfit("embedding", "needs class numbers and a matrix with a row for each class", indices, weight)
    return TensorType((*indices.shape, weight.shape[1]), weight.dtype)


def _row_numbers(indices: Node) -> Node:
    return ops.cast(indices, "i32") if is_float(indices.dtype) else indices


def _embedding_grad(g: Node, y: Node, indices: Node, weight: Node) -> tuple[None, Node]:
    return None, ops.scatter_add(ops.zeros(weight.ty), _row_numbers(indices), g)


EMBEDDING = composite(
    "embedding",
    lambda indices, weight: ops.take(weight, _row_numbers(indices), 0),
    infer=_embedding_type,
    grad=_embedding_grad,
    samples=each(
        ((((2, 5), "i32", 0, 6), (7, 3)), {}),
        ((((4,), "f32", 0, 6), (7, 33)), {}),
    ),
    doc="The rows of the weight that the indices name.",
)


def embedding(indices: Node, weight: Node) -> Node:
    """The rows of the weight that the indices name; of floats the whole part counts."""
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
    keep = ops.bernoulli(state, p=1 - p, shape=shape, draw=draw, dtype=x.dtype)
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
