"""Convolutions, softmax, dropout, and arithmetic on quantized numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import operator
from gluongraph.onnx.operators.windows import AUTO, Sliding, framed

Ints = tuple[int, ...]


# -- convolutions


@operator("Conv")
def conv(
    at: NodeContext,
    x: Node,
    w: Node,
    b: Node | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    sliding: Sliding,
) -> Node:
    """Sums over windows of all channels of a group, and a bias per channel"""
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise at.wrong(f"kernel_shape={kernel_shape} of a weight {w.ty}")
    how = sliding.windows(at, x.shape[2:], w.shape[2:])
    padding = how.before
    if not how.symmetric:
        x, padding = framed(x, how.before, how.after), (0,) * len(how.before)
    return _biased(ops.conv(x, w, how.stride, padding, how.dilation, group), b)


def _biased(y: Node, b: Node | None) -> Node:
    return y if b is None else ops.add(y, ops.reshape(b, (b.shape[0], *(1,) * (y.ty.rank - 2))))


@operator("ConvTranspose")
def conv_transpose(
    at: NodeContext,
    x: Node,
    w: Node,
    b: Node | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    sliding: Sliding,
) -> Node:
    """The gradient of a convolution for its data, as an operator of its own"""
    axes = x.ty.rank - 2
    ones, none = (1,) * axes, (0,) * axes
    stride, dilation, more = sliding.strides or ones, sliding.dilations or ones, output_padding or none
    at.choose("auto_pad", sliding.auto_pad, *AUTO)
    if any(len(each) != axes for each in (stride, dilation, more)):
        raise at.wrong(f"strides {stride}, dilations {dilation}, output_padding {more} for {axes} axes")
    whole = tuple(
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], stride, dilation, w.shape[2:], strict=True)
    )
    pads = sliding.pads or none * 2
    begin, end = pads[:axes], pads[axes:]
    if output_shape is not None or sliding.auto_pad.startswith("SAME"):
        wanted = output_shape or tuple(n * s for n, s in zip(x.shape[2:], stride, strict=True))
        total = [max(f + m - n, 0) for f, m, n in zip(whole, more, wanted[-axes:], strict=True)]
        begin, end = sliding.split(total)
        more = tuple(n - f + b + e for n, f, b, e in zip(wanted[-axes:], whole, begin, end, strict=True))
    if begin == end and all(0 <= m < s for m, s in zip(more, stride, strict=True)):
        return _biased(ops.conv_transpose(x, w, stride, begin, dilation, group, more), b)
    y = ops.conv_transpose(x, w, stride, none, dilation, group, none)
    size = tuple(f + m - b - e for f, m, b, e in zip(whole, more, begin, end, strict=True))
    behind = tuple(max(b + n - f, 0) for b, n, f in zip(begin, size, whole, strict=True))
    y = framed(y, none, behind)
    return _biased(ops.slice(y, (0, 0, *begin), (*y.shape[:2], *(b + n for b, n in zip(begin, size, strict=True)))), b)


# -- softmax


def _as_rows(at: NodeContext, x: Node, axis: int) -> Node:
    """Before opset 13 all axes from `axis` on were one."""
    first = at.axis(axis, x.ty.rank)
    return ops.reshape(x, (math.prod(x.shape[:first]), math.prod(x.shape[first:])))


def _hardmax(x: Node, axis: int) -> Node:
    place = ops.argmax(x, axis=axis, keepdims=True)
    return ops.cast(ops.equal(ops.iota(x.shape, axis), ops.broadcast_to(place, x.shape)), x.dtype)


_SOFT: dict[str, Callable[..., Node]] = {"Softmax": ops.softmax, "LogSoftmax": ops.log_softmax, "Hardmax": _hardmax}


def _softmaxes(name: str, build: Callable[..., Node]) -> None:
    @operator(name)
    def of_rows(at: NodeContext, x: Node, *, axis: int = 1) -> Node:
        return ops.reshape(build(_as_rows(at, x, axis), axis=1), x.shape)

    @operator(name, since=13)
    def of_axis(at: NodeContext, x: Node, *, axis: int = -1) -> Node:
        return build(x, axis=at.axis(axis, x.ty.rank))


for _name, _build in _SOFT.items():
    _softmaxes(_name, _build)


# -- dropout


@operator("Dropout", since=7)
def dropout_by_attribute(at: NodeContext, x: Node, *, ratio: float = 0.5) -> list[Value]:
    """In training some elements 0, others scaled; else x"""
    return _dropped(at, x, ratio)


@operator("Dropout", since=12, static=("ratio", "training_mode"))
def dropout(
    at: NodeContext, x: Node, ratio: Node | None = None, training_mode: Node | None = None, *, seed: int | None = None
) -> list[Value]:
    """In training some elements 0, others scaled; else x. The mode is gluon's; seed changes nothing"""
    return _dropped(at, x, 0.5 if ratio is None else float(at.number(ratio, "ratio")))


def _dropped(at: NodeContext, x: Node, p: float) -> list[Value]:
    if not 0 <= p < 1:
        raise at.unsupported(f"ratio={p}; it is a probability below 1")
    if not at.training or p == 0.0:
        return [x, ops.full(x.shape, True, "bool")]
    state, number = at.draw()
    if not at.wants(1):
        return [ops.dropout(x, state, p=p, draw=number)]
    scale = ops.dropout(ops.full(x.shape, 1.0, x.dtype), state, p=p, draw=number)
    return [ops.mul(x, scale), ops.greater(scale, 0.0)]


# -- quantized numbers


def _per_axis(at: NodeContext, v: Node, x: Node, axis: int, block: int) -> Node:
    """A scale or zero point as an array that broadcasts to x."""
    if v.ty.rank == 0 or v.shape == (1,):
        return ops.reshape(v, ())
    axis = at.axis(axis, x.ty.rank)
    if block:
        return ops.part(_repeated(v, axis, block), axis, 0, x.shape[axis])
    return ops.reshape(v, tuple(n if a == axis else 1 for a, n in enumerate(x.shape)))


def _repeated(v: Node, axis: int, times: int) -> Node:
    front, n, behind = v.shape[:axis], v.shape[axis], v.shape[axis + 1 :]
    spread = ops.expand(ops.reshape(v, (*front, n, 1, *behind)), (*front, n, times, *behind))
    return ops.reshape(spread, (*front, n * times, *behind))


def _saturated(y: Node, dtype: str) -> Node:
    about = DTYPES[dtype]
    bits, signed = 8 * about.nbytes, about.family == "int"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return ops.cast(ops.minimum(ops.maximum(y, float(low)), float(high)), dtype)


@operator("QuantizeLinear", since=10)
def quantize(
    at: NodeContext,
    x: Node,
    scale: Node,
    zero: Node | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Node:
    """x / scale + zero, rounded to even, held within the integer type"""
    dtype = zero.dtype if zero is not None else at.dtype(output_dtype) if output_dtype else "u8"
    if dtype not in ("u8", "i8"):
        raise at.unsupported(f"output of type {dtype}; there are uint8 and int8")
    x = ops.cast(x, "f32")
    y = ops.round(ops.div(x, ops.cast(_per_axis(at, scale, x, axis, block_size), "f32")))
    if zero is not None:
        y = ops.add(y, ops.cast(_per_axis(at, zero, x, axis, block_size), "f32"))
    return _saturated(y, dtype)


@operator("DequantizeLinear", since=10)
def dequantize(
    at: NodeContext,
    x: Node,
    scale: Node,
    zero: Node | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Node:
    """(x - zero) scale"""
    dtype = at.dtype(output_dtype) if output_dtype else scale.dtype
    y = ops.cast(x, "f32")
    if zero is not None:
        y = ops.sub(y, ops.cast(_per_axis(at, zero, x, axis, block_size), "f32"))
    return ops.cast(ops.mul(y, ops.cast(_per_axis(at, scale, x, axis, block_size), "f32")), dtype)


def _shifted(x: Node, zero: Node | None, axis: int | None = None) -> Node:
    """Integers without their zero point, as f32; of bytes and sums of 2^16 of them that is exact."""
    y = ops.cast(x, "f32")
    if zero is None:
        return y
    z = ops.cast(zero, "f32")
    if z.ty.rank == 1 and z.shape != (1,) and axis is not None:
        z = ops.reshape(z, tuple(z.shape[0] if a == axis % y.ty.rank else 1 for a in range(y.ty.rank)))
    return ops.sub(y, z if z.ty.rank != 1 or axis is not None else ops.reshape(z, ()))


@operator("MatMulInteger", since=10)
def matmul_integer(at: NodeContext, a: Node, b: Node, a_zero: Node | None = None, b_zero: Node | None = None) -> Node:
    """The product of matrices of bytes without their zero points, in i32"""
    left, right = _shifted(a, a_zero, -2), _shifted(b, b_zero, -1)
    return ops.cast(ops.matmul(ops.cast(left, "f64"), ops.cast(right, "f64")), "i32")


@operator("ConvInteger", since=10)
def conv_integer(
    at: NodeContext,
    x: Node,
    w: Node,
    x_zero: Node | None = None,
    w_zero: Node | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    sliding: Sliding,
) -> Node:
    """The convolution of bytes without their zero points, in i32"""
    left, right = _shifted(x, x_zero), _shifted(w, w_zero, 0)
    return ops.cast(conv(at, left, right, group=group, kernel_shape=kernel_shape, sliding=sliding), "i32")


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize(at: NodeContext, x: Node) -> list[Value]:
    """x as bytes, with the scale and zero point that its own range asks for"""
    axes = tuple(range(x.ty.rank))
    top, bottom = ops.maximum(ops.max(x, axes), 0.0), ops.minimum(ops.min(x, axes), 0.0)
    scale = ops.div(ops.sub(top, bottom), 255.0)
    zero = _saturated(ops.round(ops.div(ops.neg(bottom), scale)), "u8")
    y = _saturated(ops.add(ops.round(ops.div(x, scale)), ops.cast(zero, "f32")), "u8")
    return [y, scale, zero]
