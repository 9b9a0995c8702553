"""Arithmetic, functions of one number, comparisons, logic, and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes

from gluongraph import ops
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.mxops import math as mxmath
from gluongraph.torch.aten.context import Number, OpContext, Value, cast, promoted
from gluongraph.torch.aten.table import aten

# -- two operands


def _binary(build: Callable[[Node, Node], Node], *overloads: str) -> None:
    @aten(*overloads)
    def binary(at: OpContext, self: Value, other: Value) -> Node:
        return build(cast(self, at.dtype), cast(other, at.dtype))


def _sum(build: Callable[[Node, Node], Node], *overloads: str) -> None:
    @aten(*overloads)
    def scaled_sum(at: OpContext, self: Value, other: Value, alpha: Number = 1) -> Node:
        b = cast(other, at.dtype)
        return build(cast(self, at.dtype), b if alpha == 1 else ops.mul(b, cast(alpha, at.dtype)))


def _or_bool(of_numbers: Callable[[Node, Node], Node], of_bools: Callable[[Node, Node], Node]) -> Any:
    return lambda a, b: of_bools(a, b) if a.dtype == "bool" else of_numbers(a, b)


_sum(_or_bool(ops.add, ops.logical_or), "add.Tensor", "add.Scalar")
_sum(ops.sub, "sub.Tensor", "sub.Scalar")
_sum(lambda a, b: ops.sub(b, a), "rsub.Tensor", "rsub.Scalar")
_binary(_or_bool(ops.mul, ops.logical_and), "mul.Tensor", "mul.Scalar", "multiply.Tensor")
_binary(ops.div, "div.Tensor", "div.Scalar", "true_divide.Tensor", "divide.Tensor")
# Of several equal operands each gets a part of the gradient.
_binary(_or_bool(ops.minimum_even, ops.logical_and), "minimum.default", "min.other", "fmin.default")
_binary(_or_bool(ops.maximum_even, ops.logical_or), "maximum.default", "max.other", "fmax.default")
_binary(ops.floordiv, "floor_divide.default", "floor_divide.Scalar")
_binary(ops.mod, "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
_binary(lambda a, b: _truncated_remainder(a, b), "fmod.Tensor", "fmod.Scalar")


def _truncated(x: Node) -> Node:
    return ops.mul(ops.sign(x), ops.floor(ops.abs(x))) if is_float(x.dtype) else x


def _truncated_remainder(a: Node, b: Node) -> Node:
    return ops.sub(a, ops.mul(_truncated(ops.div(a, b)), b))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(at: OpContext, self: Value, other: Value, *, rounding_mode: str | None = None) -> Node:
    """The quotient, rounded down ("floor") or towards 0 ("trunc")"""
    a, b = cast(self, at.dtype), cast(other, at.dtype)
    if rounding_mode == "floor":
        return ops.floordiv(a, b)
    if rounding_mode is None:
        return ops.div(a, b)
    if is_float(at.dtype):
        return _truncated(ops.div(a, b))
    return ops.mul(ops.mul(ops.sign(a), ops.sign(b)), ops.floordiv(ops.abs(a), ops.abs(b)))


@aten("pow.Tensor_Scalar")
def pow_scalar(at: OpContext, self: Node, exponent: Number) -> Node:
    """x ** number; small whole powers as products, whose gradient is exact at 0"""
    x = cast(self, at.dtype)
    if exponent == 0.5:
        return ops.sqrt(x)
    if exponent in (1, 2, 3):
        return {1: lambda: x, 2: lambda: ops.mul(x, x), 3: lambda: ops.mul(ops.mul(x, x), x)}[int(exponent)]()
    if exponent == -1:
        return ops.div(1.0, x)
    return ops.pow(x, cast(exponent, at.dtype))


@aten("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(at: OpContext, self: Value, exponent: Value) -> Node:
    """x ** y"""
    return ops.pow(cast(self, at.dtype), cast(exponent, at.dtype))


@aten("atan2.default")
def atan2(at: OpContext, self: Node, other: Node) -> Node:
    """The angle of the point (other, self)"""
    y, x = cast(self, at.dtype), cast(other, at.dtype)
    base = mxmath.arctan(ops.div(y, x))
    turned = ops.where(ops.less(y, 0.0), base - math.pi, base + math.pi)
    steep = ops.sign(y) * (math.pi / 2)
    return ops.where(ops.equal(x, 0.0), steep, ops.where(ops.less(x, 0.0), turned, base))


@aten("addcmul.default")
def addcmul(at: OpContext, self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Node:
    """self + value tensor1 tensor2"""
    product = ops.mul(cast(tensor1, at.dtype), cast(tensor2, at.dtype))
    return ops.add(cast(self, at.dtype), product if value == 1 else product * value)


@aten("addcdiv.default")
def addcdiv(at: OpContext, self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Node:
    """self + value tensor1 / tensor2"""
    quotient = ops.div(cast(tensor1, at.dtype), cast(tensor2, at.dtype))
    return ops.add(cast(self, at.dtype), quotient if value == 1 else quotient * value)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(at: OpContext, self: Node, end: Node, weight: Value) -> Node:
    """self + weight (end - self)"""
    return ops.add(self, ops.mul(cast(weight, at.dtype), ops.sub(end, self)))


@aten("logaddexp.default")
def logaddexp(at: OpContext, self: Node, other: Node) -> Node:
    """log(exp(a) + exp(b))"""
    gap = ops.abs(ops.sub(self, other))
    return ops.add(ops.maximum_even(self, other), ops.log1p(ops.exp(ops.neg(gap))))


# -- one operand


def softplus_of(x: Node) -> Node:
    """log(1 + exp(x))"""
    return ops.maximum(x, 0.0) + ops.log1p(ops.exp(ops.neg(ops.abs(x))))


def log_sigmoid_of(x: Node) -> Node:
    """log(1 / (1 + exp(-x)))"""
    return ops.neg(softplus_of(ops.neg(x)))


UNARY: dict[str, Callable[[Node], Node]] = {
    "abs": ops.abs,
    "acos": mxmath.arccos,
    "acosh": mxmath.arccosh,
    "alias": lambda x: x,
    "asin": mxmath.arcsin,
    "asinh": mxmath.arcsinh,
    "atan": mxmath.arctan,
    "atanh": mxmath.arctanh,
    "ceil": ops.ceil,
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "conj": lambda x: x,
    "cos": ops.cos,
    "cosh": mxmath.cosh,
    "detach": ops.stop_gradient,
    "detach_copy": ops.stop_gradient,
    "erf": ops.erf,
    "erfc": lambda x: 1.0 - ops.erf(x),
    "exp": ops.exp,
    "exp2": lambda x: ops.exp(x * math.log(2.0)),
    "expm1": ops.expm1,
    "floor": ops.floor,
    "hardsigmoid": lambda x: ops.minimum(ops.maximum(x / 6.0 + 0.5, 0.0), 1.0),
    "hardswish": lambda x: x * ops.minimum(ops.maximum(x / 6.0 + 0.5, 0.0), 1.0),
    "lift_fresh_copy": lambda x: x,
    "log": ops.log,
    "log10": lambda x: ops.log(x) * (1.0 / math.log(10.0)),
    "log1p": ops.log1p,
    "log2": lambda x: ops.log(x) * (1.0 / math.log(2.0)),
    "log_sigmoid": log_sigmoid_of,
    "mish": lambda x: x * ops.tanh(softplus_of(x)),
    "neg": ops.neg,
    "positive": lambda x: x,
    "reciprocal": lambda x: 1.0 / x,
    "relu": ops.relu,
    "relu6": lambda x: ops.minimum(ops.maximum(x, 0.0), 6.0),
    "round": ops.round,
    "rsqrt": ops.rsqrt,
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805, 1.0),
    "sigmoid": ops.sigmoid,
    "sign": ops.sign,
    "sgn": ops.sign,
    "silu": lambda x: x * ops.sigmoid(x),
    "sin": ops.sin,
    "sinh": mxmath.sinh,
    "softsign": lambda x: x / (ops.abs(x) + 1.0),
    "sqrt": ops.sqrt,
    "square": lambda x: x * x,
    "tan": mxmath.tan,
    "tanh": ops.tanh,
    "trunc": _truncated,
}


def _unary(name: str, build: Callable[[Node], Node]) -> None:
    @aten(f"{name}.default")
    def unary(at: OpContext, self: Node) -> Node:
        if build in (ops.ceil, ops.floor, ops.round, _truncated) and not is_float(self.dtype):
            return self
        return build(cast(self, at.dtype))


for _name, _build in UNARY.items():
    _unary(_name, _build)


@aten("frac.default")
def frac(at: OpContext, self: Node) -> Node:
    """The part behind the point"""
    return ops.sub(self, _truncated(self))


@aten("logit.default")
def logit(at: OpContext, self: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), of x within eps and 1 - eps"""
    x = cast(self, at.dtype)
    if eps is not None:
        x = ops.minimum(ops.maximum(x, eps), 1.0 - eps)
    return ops.log(x / (1.0 - x))


@aten("round.decimals")
def round_decimals(at: OpContext, self: Node, *, decimals: int = 0) -> Node:
    """Rounded behind so many digits"""
    return ops.round(self * 10.0**decimals) / 10.0**decimals


@aten("gelu.default")
def gelu(at: OpContext, self: Node, *, approximate: str = "none") -> Node:
    """x Φ(x), or its approximation by tanh"""
    return ops.gelu(self, approximate == "tanh")


def _elu(x: Node, alpha: Number, scale: Number, input_scale: Number) -> Node:
    below = ops.expm1(ops.minimum(x, 0.0) * input_scale) * (alpha * scale)
    return ops.where(ops.greater(x, 0.0), x if scale == 1 else x * scale, below)


@aten("elu.default")
def elu(at: OpContext, self: Node, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Node:
    """x above 0, alpha (exp(x) - 1) below"""
    return _elu(self, alpha, scale, input_scale)


@aten("celu.default")
def celu(at: OpContext, self: Node, alpha: Number = 1.0) -> Node:
    """x above 0, alpha (exp(x / alpha) - 1) below"""
    return _elu(self, alpha, 1, 1.0 / alpha)


@aten("leaky_relu.default", "rrelu.default")
def leaky_relu(at: OpContext, self: Node, negative_slope: Number = 0.01) -> Node:
    """x above 0, x times the slope below"""
    return ops.where(ops.greater(self, 0.0), self, self * negative_slope)


@aten("prelu.default", "_prelu_kernel.default")
def prelu(at: OpContext, self: Node, weight: Node) -> Node:
    """x above 0, x times a weight (of its channel) below"""
    if weight.ty.rank < 2 and self.ty.rank > 1:
        weight = ops.reshape(weight, (1, weight.ty.size, *(1,) * (self.ty.rank - 2)))
    return ops.where(ops.greater(self, 0.0), self, self * weight)


@aten("softplus.default")
def softplus(at: OpContext, self: Node, beta: Number = 1, threshold: Number = 20) -> Node:
    """log(1 + exp(beta x)) / beta, and x where beta x is above the threshold"""
    x = self if beta == 1 else self * beta
    made = softplus_of(x) if beta == 1 else softplus_of(x) / beta
    return ops.where(ops.greater(x, threshold), self, made)


@aten("hardtanh.default")
def hardtanh(at: OpContext, self: Node, min_val: Number = -1, max_val: Number = 1) -> Node:
    """x within the bounds; no gradient at a bound"""
    within = ops.logical_and(ops.greater(self, min_val), ops.less(self, max_val))
    held = ops.minimum(ops.maximum(self, min_val), max_val)
    return ops.where(within, self, ops.stop_gradient(held))


@aten("hardshrink.default")
def hardshrink(at: OpContext, self: Node, lambd: Number = 0.5) -> Node:
    """x where |x| is above lambd, else 0"""
    return ops.where(ops.greater(ops.abs(self), lambd), self, 0.0)


@aten("softshrink.default")
def softshrink(at: OpContext, self: Node, lambd: Number = 0.5) -> Node:
    """x moved towards 0 by lambd"""
    return ops.where(ops.greater(ops.abs(self), lambd), self - ops.sign(self) * lambd, self * 0.0)


@aten("threshold.default")
def threshold(at: OpContext, self: Node, threshold: Number, value: Number) -> Node:
    """x above the threshold, else the value"""
    return ops.where(ops.greater(self, threshold), self, cast(value, self.dtype))


@aten("glu.default")
def glu(at: OpContext, self: Node, dim: int = -1) -> Node:
    """One half times the sigmoid of the other"""
    axis = dim % self.ty.rank
    half = self.shape[axis] // 2
    return ops.part(self, axis, 0, half) * ops.sigmoid(ops.part(self, axis, half, 2 * half))


@aten("clamp.default", "clamp.Tensor", "clip.default")
def clamp(at: OpContext, self: Node, min: Value = None, max: Value = None) -> Node:
    """x within the bounds; at a bound the gradient goes to x"""
    x = cast(self, at.dtype)
    low, high = (None if b is None else cast(b, at.dtype) for b in (min, max))
    held = x
    if low is not None:
        held = ops.where(ops.less(held, low), low, held)
    return held if high is None else ops.where(ops.greater(held, high), high, held)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(at: OpContext, self: Node, min: Value) -> Node:
    """x, or the bound where that is larger"""
    return clamp(at, self, min)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(at: OpContext, self: Node, max: Value) -> Node:
    """x, or the bound where that is smaller"""
    return clamp(at, self, None, max)


def largest_of(dtype: str) -> float:
    """The largest finite number of a float type."""
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).max)


@aten("nan_to_num.default")
def nan_to_num(at: OpContext, self: Node, nan: Number | None = None, posinf: Any = None, neginf: Any = None) -> Node:
    """Numbers in place of NaN and infinities"""
    largest = largest_of(self.dtype)
    x = ops.where(ops.isnan(self), nan or 0.0, self)
    x = ops.where(ops.greater(x, largest), largest if posinf is None else posinf, x)
    return ops.where(ops.less(x, -largest), -largest if neginf is None else neginf, x)


# -- comparisons, logic, choice


def _comparison(name: str, build: Callable[[Node, Node], Node]) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar")
    def comparison(at: OpContext, self: Value, other: Value) -> Node:
        dtype = promoted(self, other)
        return build(cast(self, dtype), cast(other, dtype))


for _name, _compare in {
    "eq": ops.equal,
    "ne": ops.not_equal,
    "lt": ops.less,
    "le": ops.less_equal,
    "gt": ops.greater,
    "ge": ops.greater_equal,
}.items():
    _comparison(_name, _compare)


def _logic(build: Callable[..., Node], *overloads: str) -> None:
    @aten(*overloads)
    def logic(at: OpContext, *args: Value) -> Node:
        if overloads[0].startswith("bitwise") and at.dtype != "bool":
            raise at.unsupported("bits of integers; only bools are combined")
        return build(*(cast(a, "bool") for a in args))


_logic(ops.logical_and, "bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar")
_logic(ops.logical_or, "bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar")
_logic(ops.not_equal, "bitwise_xor.Tensor", "__xor__.Tensor")
_logic(ops.logical_not, "bitwise_not.default")
_logic(ops.logical_and, "logical_and.default")
_logic(ops.logical_or, "logical_or.default")
_logic(ops.not_equal, "logical_xor.default")
_logic(ops.logical_not, "logical_not.default")


@aten("isnan.default")
def isnan(at: OpContext, self: Node) -> Node:
    """Where an element is NaN"""
    return ops.isnan(self)


@aten("isfinite.default")
def isfinite(at: OpContext, self: Node) -> Node:
    """Where an element is neither NaN nor infinite"""
    return ops.isfinite(self)


@aten("isinf.default")
def isinf(at: OpContext, self: Node) -> Node:
    """Where an element is infinite"""
    return ops.equal(ops.abs(self), math.inf)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(at: OpContext, condition: Node, self: Value, other: Value) -> Node:
    """self where the condition holds, else other"""
    return ops.where(cast(condition, "bool"), cast(self, at.dtype), cast(other, at.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(at: OpContext, self: Node, mask: Node, value: Value) -> Node:
    """The value where the mask holds, else self"""
    return ops.where(cast(mask, "bool"), cast(value, self.dtype), self)


@aten("heaviside.default")
def heaviside(at: OpContext, self: Node, values: Node) -> Node:
    """0 below 0, 1 above, the value at 0"""
    return ops.where(ops.equal(self, 0.0), values, cast(ops.greater(self, 0.0), self.dtype))


# -- casts


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default")
def to_dtype(at: OpContext, self: Node, *args: Any) -> Node:
    """The elements in another type"""
    if is_float(self.dtype) and not is_float(at.dtype) and at.dtype != "bool":
        return ops.cast(_truncated(self), at.dtype)
    return cast(self, at.dtype)
