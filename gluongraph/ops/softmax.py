"""Softmax, its logarithm, and the cross entropy of it: composites.

Their gradients are built from the nodes of their bodies, so that after inlining both share what both need.
"""

from __future__ import annotations

from typing import Any

from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops import constants, elementwise, logic, movement, reduce
from gluongraph.ops.checks import FLOATS, check_axes, misfit, need, normal_axis, without, wrong_dtype
from gluongraph.ops.reduce import spread
from gluongraph.ops.samples import each

_LAST_AND_MIDDLE = each(
    (((3, 33),), {"axis": 1}),
    (((2, 3, 17),), {"axis": 1}),
    (((7,),), {"axis": 0}),
)


def _shifted(x: Node, axis: int) -> Node:
    """x minus its maximum along the axis, so that no exponential overflows; the maximum is constant in the gradient."""
    return x - spread(elementwise.stop_gradient(reduce.max(x, axis, keepdims=True)), x, (axis,))


def _exp_sum(x: Node, axis: int) -> tuple[Node, Node]:
    """e^(x - max), and its sum along the axis broadcast to each element."""
    e = elementwise.exp(_shifted(x, axis))
    return e, reduce.sum(e, axis, keepdims=True)


def _float_axis(op: str) -> Any:
    def infer(x: TensorType, axis: int) -> TensorType:
        need(op, FLOATS, x)
        check_axes(op, x, (axis,))
        return x

    return infer


def _softmax(x: Node, axis: int) -> Node:
    e, total = _exp_sum(x, axis)
    return e * spread(1 / total, x, (axis,))  # a division for each row, not for each element


SOFTMAX = composite(
    "softmax",
    _softmax,
    infer=_float_axis("softmax"),
    grad=lambda g, y, x, axis: (y * (g - spread(reduce.sum(g * y, axis, keepdims=True), x, (axis,))),),
    samples=_LAST_AND_MIDDLE,
    numeric="full",
    doc="e^x / Σ e^x along an axis",
)


def softmax(x: Node, axis: int = -1) -> Node:
    """e^x / Σ e^x along an axis: positive numbers of sum 1."""
    return SOFTMAX(x, axis=normal_axis("softmax", axis, x.ty.rank))


def _log_softmax(x: Node, axis: int) -> Node:
    _, total = _exp_sum(x, axis)
    return _shifted(x, axis) - spread(elementwise.log(total), x, (axis,))


LOG_SOFTMAX = composite(
    "log_softmax",
    _log_softmax,
    infer=_float_axis("log_softmax"),
    grad=lambda g, y, x, axis: (g - elementwise.exp(y) * spread(reduce.sum(g, axis, keepdims=True), x, (axis,)),),
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
    return logic.equal(constants.iota(x.shape, axis, "i32"), spread(elementwise.cast(label, "i32"), x, (axis,)))


def _cross_entropy(x: Node, label: Node, axis: int, sparse: bool) -> Node:
    """log Σ e^(x - max) - (x - max)[label], or -Σ label · log softmax(x)."""
    if not sparse:
        return -reduce.sum(label * _log_softmax(x, axis), axis)
    _, total = _exp_sum(x, axis)
    picked = reduce.sum(logic.where(_is_class(x, label, axis), _shifted(x, axis), 0), axis, keepdims=True)
    return movement.reshape(elementwise.log(total) - picked, without(x.shape, (axis,)))


def _cross_entropy_grad(g: Node, y: Node, x: Node, label: Node, axis: int, sparse: bool) -> tuple[Node, Node | None]:
    """(softmax(x) - label) · g"""
    e, total = _exp_sum(x, axis)
    share = e * spread(1 / total, x, (axis,))
    at = spread(g, x, (axis,))
    if sparse:
        return (share - logic.where(_is_class(x, label, axis), constants.ones(x.ty), 0)) * at, None
    mass = spread(reduce.sum(label, axis, keepdims=True), x, (axis,))
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
