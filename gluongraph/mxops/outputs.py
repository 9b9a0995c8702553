"""MXNet's output layers, as builders over nodes: predictions with a loss's gradient, whatever the upstream gradient.

They stem from the Module API, where the last layer was the loss. Gluon code uses gluon.loss; these are here for
functions and models that were written before.
"""

from __future__ import annotations

import math
from typing import Any

from gluongraph import ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.shapes import class_index


def SoftmaxOutput(
    data: Node,
    label: Node,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: str = "null",
    out_grad: bool = False,
    smooth_alpha: float = 0.0,
) -> Node:
    """softmax(data) with the gradient (softmax - one_hot(label)) grad_scale of cross entropy.

    Along axis 1 with multi_output, along the last axis with preserve_shape, else over all but the first axis together.
    `normalization` divides by the "batch" or the number of "valid" labels, those not ignored; with multi_output also by
    the number of positions, unless it is "valid". With `out_grad` the upstream gradient is multiplied in.
    """
    shape = data.shape
    if not multi_output and not preserve_shape:
        data = ops.reshape(data, (shape[0], math.prod(shape[1:])))
    axis = 1 if multi_output else data.ty.rank - 1
    p = ops.softmax(data, axis=axis)
    n = data.shape[axis]
    places = tuple(extent for a, extent in enumerate(data.shape) if a != axis)
    if math.prod(label.shape) == math.prod(places):
        wanted = ops.reshape(class_index("SoftmaxOutput", label, n, ignored=int(ignore_label)), places)
        hot = ops.moveaxis(ops.one_hot(wanted, n, data.dtype), data.ty.rank - 1, axis)
        if smooth_alpha:
            rest = smooth_alpha / (n - 1)
            hot = ops.add(ops.mul(hot, 1.0 - smooth_alpha - rest), rest)
        derivative = ops.sub(p, hot)
        valid = ops.not_equal(wanted, int(ignore_label))
        if use_ignore:
            derivative = ops.where(ops.expand(ops.expand_dims(valid, axis), derivative.shape), derivative, 0.0)
    else:  # a probability for each class
        derivative, valid = ops.sub(p, ops.reshape(label, data.shape)), None
    derivative = ops.mul(derivative, grad_scale)
    if normalization == "batch":
        derivative = ops.div(derivative, float(data.shape[0]))
    elif normalization == "valid":
        if use_ignore and valid is not None:
            derivative = ops.div(derivative, ops.maximum(ops.sum(ops.cast(valid, data.dtype)), 1.0))
        else:
            derivative = ops.div(derivative, float(math.prod(places)))
    elif normalization != "null":
        raise MXNetError(
            with_user_location(f"SoftmaxOutput: normalization is null, batch or valid; not {normalization!r}")
        )
    if multi_output and normalization != "valid":
        derivative = ops.div(derivative, float(math.prod(data.shape[2:])))
    return ops.reshape(_output(data, p, derivative, out_grad), shape)


def _output(data: Node, value: Any, derivative: Any, out_grad: bool = False) -> Node:
    """The value, with `derivative` as its gradient by data; times the upstream gradient with out_grad."""
    derivative = ops.stop_gradient(derivative)
    if out_grad:
        return ops.add(ops.stop_gradient(ops.sub(value, ops.mul(data, derivative))), ops.mul(data, derivative))
    return ops.output(data, value, derivative)


def LinearRegressionOutput(data: Node, label: Node, grad_scale: float = 1.0) -> Node:
    """data, with the gradient (data - label) grad_scale / outputs per sample"""
    return _regression(data, data, label, lambda d: d, grad_scale)


def LogisticRegressionOutput(data: Node, label: Node, grad_scale: float = 1.0) -> Node:
    """sigmoid(data), with the gradient (sigmoid(data) - label) grad_scale / outputs per sample"""
    return _regression(data, ops.sigmoid(data), label, lambda d: d, grad_scale)


def MAERegressionOutput(data: Node, label: Node, grad_scale: float = 1.0) -> Node:
    """data, with the gradient sign(data - label) grad_scale / outputs per sample"""
    return _regression(data, data, label, ops.sign, grad_scale)


def _regression(data: Node, value: Any, label: Node, slope_of: Any, grad_scale: float) -> Node:
    apart = ops.sub(value, ops.reshape(label, data.shape))
    outputs = math.prod(data.shape[1:])
    return _output(data, value, ops.mul(slope_of(apart), grad_scale / outputs))


def SVMOutput(
    data: Node,
    label: Node,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
) -> Node:
    """data, with the gradient of a (squared) hinge loss per class: max(0, margin - y data), y = 1 for label, else -1"""
    hot = ops.one_hot(class_index("SVMOutput", label, data.shape[1]), data.shape[1], data.dtype)
    y = ops.sub(ops.mul(hot, 2.0), 1.0)
    short = ops.sub(margin, ops.mul(y, data))
    derivative = ops.where(ops.greater(short, 0.0), 1.0, 0.0) if use_linear else ops.mul(ops.maximum(short, 0.0), 2.0)
    return _output(data, data, ops.mul(ops.mul(ops.cast(derivative, data.dtype), y), -regularization_coefficient))


def MakeLoss(data: Node, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: str = "null") -> Node:
    """data, with the gradient grad_scale everywhere, divided by the "batch" or by how many exceed valid_thresh"""
    derivative = ops.full(data.shape, grad_scale, data.dtype)
    if normalization == "batch":
        derivative = ops.div(derivative, float(data.shape[0]))
    elif normalization == "valid":
        count = ops.sum(ops.cast(ops.greater(data, valid_thresh), data.dtype))
        derivative = ops.div(derivative, ops.maximum(count, 1.0))
    elif normalization != "null":
        raise MXNetError(with_user_location(f"MakeLoss: normalization is null, batch or valid; not {normalization!r}"))
    return _output(data, data, derivative)


def make_loss(data: Node) -> Node:
    """data, with the gradient 1 everywhere"""
    return MakeLoss(data)
