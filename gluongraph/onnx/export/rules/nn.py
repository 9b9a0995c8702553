"""Layers: products, convolutions, pooling, normalization, attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph.ir.graph import Node
from gluongraph.onnx.export.rules.shape import added
from gluongraph.onnx.export.rules.terms import Made, Source, Term, each, ints, term
from gluongraph.onnx.export.rules.view import View, rule
from gluongraph.onnx.format.model import NUMBERS

CONVOLUTIONS = ("conv2d", "conv2d_data_grad")
Shape = tuple[int, ...]


# -- products


@rule("matmul")
def matmul(view: View, n: Node) -> Made | None:
    """Gemm where a matrix is transposed, else MatMul."""
    return _product(n)


def _product(n: Node, bias: Node | None = None) -> Term:
    ta, tb = n.attrs["ta"], n.attrs["tb"]
    a, b = widened(n)
    if n.ty.rank == 2 and (ta or tb or bias is not None):
        flags = {name: 1 for name, on in (("transA", ta), ("transB", tb)) if on}
        return term("Gemm", a, b, *([] if bias is None else [bias]), **flags)
    swapped = (*range(n.ty.rank - 2), n.ty.rank - 1, n.ty.rank - 2)
    left = term("Transpose", a, perm=swapped) if ta else a
    return term("MatMul", left, term("Transpose", b, perm=swapped) if tb else b)


def widened(n: Node) -> tuple[Source, Source]:
    """The operands of a product or a convolution; in float32 where those of 16 bits have sums that are handed on so."""
    (a, b), wide = n.src, n.attrs.get("dtype")
    return (a, b) if wide is None else (term("Cast", a, to=NUMBERS[wide]), term("Cast", b, to=NUMBERS[wide]))


def vector(n: Node, axis: int) -> Node | None:
    """The vector that has been repeated over all axes but this one."""
    if n.op.name == "expand":
        n = n.src[0]
    shape = n.shape
    if n.op.name == "reshape" and n.src[0].ty.rank == 1 and shape[axis] == n.ty.size:
        return n.src[0]
    return n if n.ty.rank == 1 and axis == 0 else None


def biased(view: View, n: Node) -> Made | None:
    """A product or a convolution, and the bias that is added to it."""
    for main, other in (n.src, n.src[::-1]):
        if not view.inner(main) or main.attrs.get("dtype") is not None:
            continue
        if main.op.name in CONVOLUTIONS and (bias := vector(other, 1)) is not None:
            return _convolution(view, main, bias)
        if main.op.name == "reshape" and main.src[0].op.name in CONVOLUTIONS and view.inner(main.src[0]):
            axes = added(view.sizes(main), view.sizes(main.src[0]))  # along a line: as an image that is 1 high
            if axes is not None and 1 not in axes and (bias := vector(other, 1)) is not None:
                return term("Squeeze", _convolution(view, main.src[0], bias), ints(*axes))
        if main.op.name == "matmul" and main.ty.rank == 2 and (bias := vector(other, 1)) is not None:
            return _product(main, bias)
    return None


# -- convolutions


@rule(*CONVOLUTIONS)
def convolution(view: View, n: Node) -> Made | None:
    return _convolution(view, n)


def _convolution(view: View, n: Node, bias: Node | None = None) -> Term:
    x, w = n.src
    images, weight = widened(n)
    how: dict[str, Any] = {"kernel_shape": w.shape[2:], "strides": n.attrs["stride"], "dilations": n.attrs["dilation"]}
    pads = n.attrs["padding"]
    how |= {"group": n.attrs["groups"], "pads": (*pads, *pads)}
    if n.op.name == "conv2d_data_grad":
        least = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                x.shape[2:], n.attrs["stride"], pads, n.attrs["dilation"], w.shape[2:], strict=True
            )
        ]
        how["output_padding"] = tuple(a - b for a, b in zip(n.shape[2:], least, strict=True))
        if not any(how["output_padding"]):
            del how["output_padding"]
    if set(how["dilations"]) == {1}:
        del how["dilations"]
    if how["group"] == 1:
        del how["group"]
    if not any(how["pads"]):
        del how["pads"]
    return term(
        "Conv" if n.op.name == "conv2d" else "ConvTranspose", images, weight, *([] if bias is None else [bias]), **how
    )


# -- pooling


@rule("max_pool2d")
def max_pool(view: View, n: Node) -> Made | None:
    return term("MaxPool", n.src[0], **window(n.attrs, n.src[0].shape, n.shape))


@rule("avg_pool2d")
def avg_pool(view: View, n: Node) -> Made | None:
    """Windows that reach out behind further than in front count there what lies inside of the padding only."""
    how, count = window(n.attrs, n.src[0].shape, n.shape), n.attrs["count_include_pad"]
    if count and _beyond(n.attrs, n.src[0].shape, n.shape) != (0, 0):
        return _by_counts(view, n)
    return term("AveragePool", n.src[0], **how, **({"count_include_pad": 1} if count and "pads" in how else {}))


def _beyond(how: Mapping[str, Any], image: Shape, pooled: Shape) -> tuple[int, ...]:
    """How far the last windows reach out behind the padding."""
    reach = [(m - 1) * s + k for m, s, k in zip(pooled[2:], how["stride"], how["kernel"], strict=True)]
    room = [size + 2 * p for size, p in zip(image[2:], how["padding"], strict=True)]
    return tuple(max(r - m, 0) for r, m in zip(reach, room, strict=True))


def window(attrs: Mapping[str, Any], image: Shape, pooled: Shape) -> dict[str, Any]:
    """Kernel, strides and padding; what windows reach out further behind is said as padding."""
    front = attrs["padding"]
    behind = [p + b for p, b in zip(front, _beyond(attrs, image, pooled), strict=True)]
    how: dict[str, Any] = {"kernel_shape": attrs["kernel"], "strides": attrs["stride"]}
    return how | ({"pads": (*front, *behind)} if any((*front, *behind)) else {})


def _by_counts(view: View, n: Node) -> Made | None:
    """The average over a frame of zeros as large as the windows want, put right for windows that reach beyond it."""
    how = window(n.attrs, n.src[0].shape, n.shape)
    kernel, front, stride = n.attrs["kernel"], n.attrs["padding"], n.attrs["stride"]
    shares = []
    for axis in (0, 1):
        room = n.src[0].shape[2 + axis] + 2 * front[axis]
        starts = np.arange(n.shape[2 + axis]) * stride[axis]
        shares.append(kernel[axis] / (np.minimum(starts + kernel[axis], room) - starts))
    factor = (shares[0][:, None] * shares[1]).astype(np.float32)
    if n.dtype != "f32":
        return None
    return each("Mul", term("AveragePool", n.src[0], **how, count_include_pad=1), factor)


# -- activations and normalization


@rule("softmax", "log_softmax")
def softmax(view: View, n: Node) -> Made | None:
    return term("Softmax" if n.op.name == "softmax" else "LogSoftmax", n.src[0], axis=n.attrs["axis"])


@rule("gelu")
def gelu(view: View, n: Node) -> Made | None:
    return each("Gelu", n.src[0], approximate="tanh" if n.attrs["approximate"] else "none")


@rule("layer_norm")
def layer_norm(view: View, n: Node) -> Made | None:
    axis = n.attrs["axis"]
    if axis != n.ty.rank - 1:
        return None
    return term("LayerNormalization", *n.src, axis=-1, epsilon=n.attrs["eps"])


@rule("group_norm")
def group_norm(view: View, n: Node) -> Made | None:
    """By channel: ONNX's GroupNormalization has a scale for each channel, not for each group."""
    if n.src[1].shape[0] != n.shape[1]:
        return None
    return term("InstanceNormalization", *n.src, epsilon=n.attrs["eps"])


@rule("batch_norm_inference")
def batch_norm(view: View, n: Node) -> Made | None:
    if n.attrs["axis"] != 1:
        return None
    return term("BatchNormalization", *n.src, epsilon=n.attrs["eps"])


# -- attention


@rule("attention")
def attention(view: View, n: Node) -> Made | None:
    """Attention without a mask: there a row of which nothing is seen is NaN, here the mean of all."""
    causal = n.attrs["causal"]
    if len(n.src) > 3 or n.attrs.get("dtype") or (causal and n.src[0].shape[2] != n.src[1].shape[2]):
        return None
    return term("Attention", *n.src, scale=n.attrs["scale"], is_causal=1 if causal else None)
