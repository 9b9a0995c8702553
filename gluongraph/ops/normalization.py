"""Layer, group and batch normalization: composites.

Their gradients are built from the nodes of their bodies, so that after inlining both share what both need.
"""

from __future__ import annotations

from typing import Any

from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops import control, elementwise, movement, reduce
from gluongraph.ops.builders import along
from gluongraph.ops.checks import FLOATS, check_axes, misfit, need, normal_axis, wrong_dtype
from gluongraph.ops.constants import is_zero
from gluongraph.ops.reduce import average, spread
from gluongraph.ops.samples import each


def _centered(x: Node, axes: tuple[int, ...]) -> tuple[Node, Node, Node]:
    """x - mean; the mean and the biased variance over the axes, which are kept with size 1."""
    mean = average(x, axes, True)
    rest = x - spread(mean, x, axes)
    return rest, mean, average(rest * rest, axes, True)


def _normalized(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """(x - mean) / sqrt(var + eps), and 1 / sqrt(var + eps), once for each element."""
    rest, _, variance = _centered(x, axes)
    scale = spread(elementwise.rsqrt(variance + eps), x, axes)
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


def _scaled(x: Node, gamma: Node, beta: Node, axes: tuple[int, ...], axis: int, eps: float) -> Node:
    """Normalized over the axes; gamma and beta vary along one axis."""
    normal, _ = _normalized(x, axes, eps)
    return normal * along(gamma, axis, x.shape) + along(beta, axis, x.shape)


def _scaled_grad(
    g: Node, x: Node, gamma: Node, axes: tuple[int, ...], axis: int, eps: float
) -> tuple[Node, Node, Node]:
    """With n = (x - mean) · s and d = g · gamma: dx = s (d - mean d - n · mean(d n))"""
    normal, scale = _normalized(x, axes, eps)
    others = _but(axis, x.ty.rank)
    d = g * along(gamma, axis, x.shape)
    mean_d = spread(average(d, axes, True), x, axes)
    mean_dn = spread(average(d * normal, axes, True), x, axes)
    return scale * (d - mean_d - normal * mean_dn), reduce.sum(g * normal, others), reduce.sum(g, others)


def _but(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a != axis)


LAYER_NORM = composite(
    "layer_norm",
    lambda x, gamma, beta, axis, eps: _scaled(x, gamma, beta, (axis,), axis, eps),
    infer=_layer_norm_type,
    grad=lambda g, y, x, gamma, beta, axis, eps: _scaled_grad(g, x, gamma, (axis,), axis, eps),
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


def _group_norm_type(x: TensorType, gamma: TensorType, beta: TensorType, eps: float) -> TensorType:
    need("group_norm", FLOATS, x)
    groups = gamma.size
    if x.rank < 2 or gamma.rank != 1 or gamma.shape != beta.shape or not groups or x.shape[1] % groups:
        help = "gamma and beta have one element for each group, of which there are as many as divide the channels"
        raise misfit("group_norm", "the parameters do not fit", x, gamma, beta, help=help)
    if not x.dtype == gamma.dtype == beta.dtype:
        raise wrong_dtype("group_norm", "dtypes differ", x, gamma, beta, help="cast one of them")
    return x


def _grouped(x: Node, gamma: Node) -> Node:
    """(images, groups, elements of a group)"""
    images, groups = x.shape[0], gamma.ty.size
    return movement.reshape(x, (images, groups, x.ty.size // max(images * groups, 1)))


def _group_norm(x: Node, gamma: Node, beta: Node, eps: float) -> Node:
    return movement.reshape(_scaled(_grouped(x, gamma), gamma, beta, (2,), 1, eps), x.shape)


def _group_norm_grad(g: Node, y: Node, x: Node, gamma: Node, beta: Node, eps: float) -> tuple[Node, Node, Node]:
    dx, d_gamma, d_beta = _scaled_grad(_grouped(g, gamma), _grouped(x, gamma), gamma, (2,), 1, eps)
    return movement.reshape(dx, x.shape), d_gamma, d_beta


GROUP_NORM = composite(
    "group_norm",
    _group_norm,
    infer=_group_norm_type,
    grad=_group_norm_grad,
    samples=each(
        (((2, 6, 3, 5), (3,), (3,)), {"eps": 1e-5}),
        (((3, 4, 7), (4,), (4,)), {"eps": 1e-3}),
        (((2, 4, 3), (1,), (1,)), {"eps": 1e-5}),
    ),
    numeric="full",
    doc="(x - mean) / sqrt(var + eps) · gamma + beta within each image's groups of channels",
)


def group_norm(x: Node, gamma: Node, beta: Node, eps: float = 1e-5) -> Node:
    """(x - mean) / sqrt(var + eps) · gamma + beta, with mean and biased variance of each image's groups of channels.

    There are as many groups as gamma and beta have elements; with one for each channel it is instance normalization.
    """
    return GROUP_NORM(x, gamma, beta, eps=float(eps))


def _batch_norm_type(
    x: TensorType, gamma: TensorType, beta: TensorType, axis: int, eps: float
) -> tuple[TensorType, TensorType, TensorType]:
    _per_channel("batch_norm", x, axis, gamma, beta)
    return x, gamma, gamma


def _batch_norm(x: Node, gamma: Node, beta: Node, axis: int, eps: float) -> tuple[Node, Node, Node]:
    axes = _but(axis, x.ty.rank)
    _, mean, variance = _centered(x, axes)
    normal, _ = _normalized(x, axes, eps)
    y = normal * along(gamma, axis, x.shape) + along(beta, axis, x.shape)
    return y, movement.reshape(mean, gamma.shape), movement.reshape(variance, gamma.shape)


def _batch_norm_grad(
    gs: tuple[Node, Node, Node], ys: Any, x: Node, gamma: Node, beta: Node, axis: int, eps: float
) -> tuple[Node, Node, Node]:
    """With n = (x - mean) · s: dx = gamma s (g - mean g - n · mean(g n)); dbeta and dgamma are those two sums."""
    g, g_mean, g_var = gs
    axes = _but(axis, x.ty.rank)
    count = x.ty.size // gamma.ty.size
    normal, scale = _normalized(x, axes, eps)
    d_gamma, d_beta = reduce.sum(g * normal, axes), reduce.sum(g, axes)

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
    y, mean, variance = control.get_tuple_elements(
        BATCH_NORM(x, gamma, beta, axis=normal_axis("batch_norm", axis, x.ty.rank), eps=float(eps))
    )
    return y, mean, variance


def _inference_type(x: TensorType, *vectors: TensorType, axis: int, eps: float) -> TensorType:
    _per_channel("batch_norm_inference", x, axis, *vectors)
    return x


def _batch_norm_inference(x: Node, gamma: Node, beta: Node, mean: Node, var: Node, axis: int, eps: float) -> Node:
    """One multiplication and one addition for each element."""
    scale = gamma * elementwise.rsqrt(var + eps)
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
