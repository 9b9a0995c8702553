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
from gluongraph.ops.builders import broadcast_shape
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
_binary(_or_bool(ops.mul, ops.logical_and), "mul.Tensor", "mul.Scalar", "multiply.Tensor")
_binary(ops.div, "div.Tensor", "div.Scalar", "true_divide.Tensor", "divide.Tensor")
# Of several equal operands each gets a part of the gradient.
_binary(_or_bool(ops.minimum_even, ops.logical_and), "minimum.default", "min.other")
_binary(_or_bool(ops.maximum_even, ops.logical_or), "maximum.default", "max.other")
_binary(lambda a, b: _first_or_other(a, b, ops.less_equal), "fmin.default")
_binary(lambda a, b: _first_or_other(a, b, ops.greater_equal), "fmax.default")
_binary(ops.floordiv, "floor_divide.default", "floor_divide.Scalar")
_binary(ops.mod, "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
_binary(lambda a, b: _truncated_remainder(a, b), "fmod.Tensor", "fmod.Scalar")


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(at: OpContext, self: Value, other: Value, alpha: Number = 1) -> Node:
    """other - alpha self"""
    a = cast(self, at.dtype)
    return ops.sub(cast(other, at.dtype), a if alpha == 1 else ops.mul(a, cast(alpha, at.dtype)))


def _first_or_other(a: Node, b: Node, wins: Callable[[Node, Node], Node]) -> Node:
    """The first where it wins or the other is NaN, else the other; of equal ones the first has the gradient."""
    if a.dtype == "bool":
        return (ops.logical_and if wins is ops.less_equal else ops.logical_or)(a, b)
    first = wins(a, b)
    return ops.where(ops.logical_or(first, ops.isnan(b)) if is_float(a.dtype) else first, a, b)


def _truncated(x: Node) -> Node:
    return ops.mul(ops.sign(x), ops.floor(ops.abs(x))) if is_float(x.dtype) else x


def _truncated_remainder(a: Node, b: Node) -> Node:
    """Of the sign of a."""
    if a.dtype == "u8":
        return ops.mod(a, b)
    one = cast(1, a.dtype)
    sign = ops.where(ops.less(a, cast(0, a.dtype)), cast(-1, a.dtype), one)  # not 0 at 0, where the slope is 1
    return ops.mul(sign, ops.mod(ops.mul(a, sign), ops.abs(b)))


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
    if at.dtype == "u8":
        return ops.floordiv(a, b)
    return ops.mul(ops.mul(ops.sign(a), ops.sign(b)), ops.floordiv(ops.abs(a), ops.abs(b)))


@aten("pow.Tensor_Scalar")
def pow_scalar(at: OpContext, self: Node, exponent: Number) -> Node:
    """x ** number; small whole powers as products, whose gradient is exact at 0"""
    x = cast(self, at.dtype)
    if exponent == 0.5:
        return ops.sqrt(x)
    if exponent in (0, 1, 2, 3):
        made = (lambda: ops.ones(x.ty), lambda: x, lambda: ops.mul(x, x), lambda: ops.mul(ops.mul(x, x), x))
        return made[int(exponent)]()
    if exponent == -1:
        return ops.div(1.0, x)
    return ops.pow(x, cast(exponent, at.dtype))


@aten("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(at: OpContext, self: Value, exponent: Value) -> Node:
    """x ** y; no gradient for x where y is 0, nor for y where x is 0"""
    return power(cast(self, at.dtype), cast(exponent, at.dtype))


@aten("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar")
def float_power(at: OpContext, self: Value, exponent: Value) -> Node:
    """x ** y in float64"""
    return power(cast(self, at.dtype), cast(exponent, at.dtype))


@aten("angle.default")
def angle(at: OpContext, self: Node) -> Node:
    """π below 0, else 0"""
    x = cast(self, at.dtype)
    found = ops.where(ops.less(x, 0.0), cast(math.pi, at.dtype), cast(0, at.dtype))
    return ops.where(ops.isnan(x), ops.stop_gradient(x), found)


def power(x: Node, y: Node) -> Node:
    """x ** y, whose gradient for x is 0 where y is 0 (it would be 0 / 0 at 0)."""
    if not is_float(x.dtype):
        return ops.pow(x, y)
    shape = broadcast_shape("pow", x.ty, y.ty)
    x, y = ops.broadcast_to(x, shape), ops.broadcast_to(y, shape)
    return ops.pow(ops.where(ops.equal(y, 0.0), ops.stop_gradient(x), x), y)


def _is_below(x: Node) -> Node:
    """Where a number is below 0, or -0."""
    return ops.logical_or(ops.less(x, 0.0), ops.logical_and(ops.equal(x, 0.0), ops.less(ops.div(1.0, x), 0.0)))


@aten("signbit.default")
def signbit(at: OpContext, self: Node) -> Node:
    """Where a number is below 0, or -0"""
    if is_float(self.dtype):
        return _is_below(self)
    return ops.full(self.shape, False, "bool") if self.dtype in ("bool", "u8") else ops.less(self, 0)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(at: OpContext, self: Node, other: Value) -> Node:
    """|self| with the sign of other; at 0 without a gradient"""
    x, below = cast(self, at.dtype), _is_below(cast(other, at.dtype))
    size = ops.where(_is_below(x), ops.neg(x), x)
    made = ops.where(below, ops.neg(size), size)
    return ops.where(ops.equal(made, 0.0), ops.stop_gradient(made), made)


@aten("atan2.default", "arctan2.default")
def atan2(at: OpContext, self: Node, other: Node) -> Node:
    """The angle of the point (other, self)"""
    y, x = cast(self, at.dtype), cast(other, at.dtype)
    shape = broadcast_shape(at.name, y.ty, x.ty)
    y, x = ops.broadcast_to(y, shape), ops.broadcast_to(x, shape)
    steep = ops.greater(ops.abs(y), ops.abs(x))
    small, large = ops.where(steep, x, y), ops.where(steep, y, x)
    endless = ops.logical_and(_is_endless(x), _is_endless(y))
    small, large = (ops.where(endless, ops.sign(v), v) for v in (small, large))
    base = mxmath.arctan(ops.div(small, ops.where(ops.equal(large, 0.0), 1.0, large)))
    half = ops.where(_is_below(y), cast(-math.pi, at.dtype), cast(math.pi, at.dtype))
    return ops.where(steep, half * 0.5 - base, ops.where(_is_below(x), base + half, base))


def _is_endless(x: Node) -> Node:
    return ops.equal(ops.abs(x), math.inf)


@aten("addcmul.default")
def addcmul(at: OpContext, self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Node:
    """self + value tensor1 tensor2"""
    product = ops.mul(cast(tensor1, at.dtype), cast(tensor2, at.dtype))
    return ops.add(cast(self, at.dtype), product if value == 1 else product * cast(value, at.dtype))


@aten("addcdiv.default")
def addcdiv(at: OpContext, self: Node, tensor1: Node, tensor2: Node, *, value: Number = 1) -> Node:
    """self + value tensor1 / tensor2"""
    quotient = ops.div(cast(tensor1, at.dtype), cast(tensor2, at.dtype))
    return ops.add(cast(self, at.dtype), quotient if value == 1 else quotient * cast(value, at.dtype))


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(at: OpContext, self: Node, end: Node, weight: Value) -> Node:
    """self + weight (end - self)"""
    return ops.add(self, ops.mul(cast(weight, at.dtype), ops.sub(end, self)))


@aten("logaddexp.default")
def logaddexp(at: OpContext, self: Node, other: Node) -> Node:
    """log(exp(a) + exp(b))"""
    gap = ops.where(ops.equal(self, other), 0.0, ops.abs(ops.sub(self, other)))  # not inf - inf
    return ops.add(ops.maximum_even(self, other), ops.log1p(ops.exp(ops.neg(gap))))


@aten("logaddexp2.default")
def logaddexp2(at: OpContext, self: Node, other: Node) -> Node:
    """log2(2 ** a + 2 ** b)"""
    log2 = math.log(2.0)
    return logaddexp(at, self * log2, other * log2) * (1 / log2)


@aten("hypot.default")
def hypot(at: OpContext, self: Node, other: Node) -> Node:
    """sqrt(a² + b²), of squares that do not overflow"""
    a, b = (cast(v, at.dtype) for v in (self, other))
    largest = ops.stop_gradient(ops.maximum(ops.abs(a), ops.abs(b)))
    scale = ops.where(ops.logical_and(ops.greater(largest, 0.0), ops.isfinite(largest)), largest, 1.0)
    a, b = ops.div(a, scale), ops.div(b, scale)
    return ops.mul(ops.sqrt(ops.add(ops.mul(a, a), ops.mul(b, b))), scale)


@aten("ldexp.Tensor")
def ldexp(at: OpContext, self: Node, other: Node) -> Node:
    """self times 2 ** other"""
    return ops.mul(cast(self, at.dtype), ops.exp(cast(other, at.dtype) * math.log(2.0)))


# -- one operand


def softplus_of(x: Node) -> Node:
    """log(1 + exp(x))"""
    return ops.maximum_even(x, 0.0) + ops.log1p(ops.exp(ops.neg(ops.abs(x))))


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
    "deg2rad": mxmath.radians,
    "erfc": lambda x: 1.0 - ops.erf(x),
    "exp": ops.exp,
    "exp2": lambda x: ops.exp(x * math.log(2.0)),
    "expm1": ops.expm1,
    "floor": ops.floor,
    "hardsigmoid": lambda x: _held(x / 6.0 + 0.5, 0.0, 1.0),
    "hardswish": lambda x: _hardswish(x),
    "lift_fresh_copy": lambda x: x,
    "log": ops.log,
    "log10": lambda x: ops.log(x) * (1.0 / math.log(10.0)),
    "log1p": ops.log1p,
    "log2": lambda x: ops.log(x) * (1.0 / math.log(2.0)),
    "log_sigmoid": log_sigmoid_of,
    "mish": lambda x: x * ops.tanh(softplus_of(x)),
    "neg": ops.neg,
    "positive": lambda x: x,
    "rad2deg": mxmath.degrees,
    "reciprocal": lambda x: 1.0 / x,
    "relu": ops.relu,
    "relu6": lambda x: _held(x, 0.0, 6.0),
    "round": ops.round,
    "rsqrt": ops.rsqrt,
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805, 1.0),
    "sgn": lambda x: _sign(x),
    "sigmoid": ops.sigmoid,
    "sign": lambda x: _sign(x),
    "silu": lambda x: x * ops.sigmoid(x),
    "sin": ops.sin,
    "sinh": mxmath.sinh,
    "sqrt": ops.sqrt,
    "square": lambda x: x * x,
    "tan": mxmath.tan,
    "tanh": ops.tanh,
    "trunc": _truncated,
}
# Other names of the same.
SAME = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctanh": "atanh", "fix": "trunc", "negative": "neg", "special_expit": "sigmoid", "special_expm1": "expm1",
    "special_exp2": "exp2", "special_log1p": "log1p", "special_erf": "erf", "special_erfc": "erfc",
    "alias_copy": "alias",
}  # fmt: skip


def _sign(x: Node) -> Node:
    """1 above 0, -1 below, else 0; of NaN, too."""
    if x.dtype in ("bool", "u8"):
        return cast(ops.not_equal(x, cast(0, x.dtype)), x.dtype)
    zero = cast(0, x.dtype)
    return ops.sub(cast(ops.greater(x, zero), x.dtype), cast(ops.less(x, zero), x.dtype))


def _held(x: Node, low: Number, high: Number) -> Node:
    """x within the bounds; no gradient at a bound."""
    least, most = cast(low, x.dtype), cast(high, x.dtype)
    within = ops.logical_and(ops.greater(x, least), ops.less(x, most))
    return ops.where(within, x, ops.stop_gradient(ops.minimum(ops.maximum(x, least), most)))


def _hardswish(x: Node) -> Node:
    """0 up to -3, x from 3 on, x (x / 6 + 1/2) between."""
    between = x * (x / 6.0 + 0.5)
    above = ops.where(ops.greater_equal(x, 3.0), x, between)
    return ops.where(ops.less_equal(x, -3.0), ops.stop_gradient(x * 0.0), above)


def _unary(name: str, build: Callable[[Node], Node]) -> None:
    @aten(f"{name}.default")
    def unary(at: OpContext, self: Node) -> Node:
        if build in (ops.ceil, ops.floor, ops.round, _truncated) and not is_float(self.dtype):
            return self
        return build(cast(self, at.dtype))


for _name, _build in UNARY.items():
    _unary(_name, _build)
for _name, _other in SAME.items():
    _unary(_name, UNARY[_other])


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


@aten("rrelu.default")
def rrelu(
    at: OpContext, self: Node, lower: Number = 1 / 8, upper: Number = 1 / 3, training: bool = False, *args: Any
) -> Node:
    """x above 0, below it x times a slope: a random one for each element in training, else the middle one"""
    if not training:
        return leaky_relu(at, self, (lower + upper) / 2)
    state, number = at.draw()
    slope = cast(ops.uniform(state, self.shape, draw=number), self.dtype) * (upper - lower) + lower
    return ops.where(ops.greater(self, 0.0), self, self * slope)


@aten("leaky_relu.default")
def leaky_relu(at: OpContext, self: Node, negative_slope: Number = 0.01) -> Node:
    """x above 0, x times the slope below"""
    return ops.where(ops.greater(self, 0.0), self, self * negative_slope)


@aten("prelu.default", "_prelu_kernel.default")
def prelu(at: OpContext, self: Node, weight: Node) -> Node:
    """x above 0, x times a weight (of its channel) below"""
    if weight.ty.size == 1:
        weight = ops.reshape(weight, ())
    elif weight.ty.rank < 2:
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
    return _held(self, min_val, max_val)


@aten("hardshrink.default")
def hardshrink(at: OpContext, self: Node, lambd: Number = 0.5) -> Node:
    """x where |x| is above lambd, else 0"""
    return ops.where(ops.less_equal(ops.abs(self), lambd), 0.0, self)


@aten("softshrink.default")
def softshrink(at: OpContext, self: Node, lambd: Number = 0.5) -> Node:
    """x moved towards 0 by lambd"""
    return ops.where(ops.greater(ops.abs(self), lambd), self - ops.sign(self) * lambd, self * 0.0)


@aten("threshold.default")
def threshold(at: OpContext, self: Node, threshold: Number, value: Number) -> Node:
    """x above the threshold, else the value"""
    return ops.where(ops.less_equal(self, cast(threshold, self.dtype)), cast(value, self.dtype), self)


@aten("glu.default")
def glu(at: OpContext, self: Node, dim: int = -1) -> Node:
    """One half times the sigmoid of the other"""
    axis = dim % self.ty.rank
    half = self.shape[axis] // 2
    return ops.part(self, axis, 0, half) * ops.sigmoid(ops.part(self, axis, half, 2 * half))


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(at: OpContext, self: Node, min: Value = None, max: Value = None) -> Node:
    """x within the bounds; at a bound the gradient goes to x"""
    x = cast(self, at.dtype)
    low, high = (None if b is None else cast(b, at.dtype) for b in (min, max))
    held = x
    if low is not None:
        held = ops.where(_or_nan(ops.less(held, low), low), low, held)
    return held if high is None else ops.where(_or_nan(ops.greater(held, high), high), high, held)


def _or_nan(beyond: Node, bound: Node) -> Node:
    """Where the bound is passed; or is NaN, if it is data."""
    return ops.logical_or(beyond, ops.isnan(bound)) if is_float(bound.dtype) and bound.op.name != "const" else beyond


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
    if not is_float(self.dtype):
        return self
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
        return build(*(cast(a, "bool") for a in args))


_logic(ops.logical_and, "logical_and.default")
_logic(ops.logical_or, "logical_or.default")
_logic(ops.not_equal, "logical_xor.default")
_logic(ops.logical_not, "logical_not.default")


def _asked(name: str, build: Callable[[Node], Node], of_integers: bool) -> None:
    @aten(f"{name}.default")
    def asked(at: OpContext, self: Node) -> Node:
        return build(self) if is_float(self.dtype) else ops.full(self.shape, of_integers, "bool")


_asked("isnan", ops.isnan, False)
_asked("isfinite", ops.isfinite, True)
_asked("isinf", _is_endless, False)
_asked("isreal", lambda x: ops.full(x.shape, True, "bool"), True)
_asked("isposinf", lambda x: ops.equal(x, math.inf), False)
_asked("isneginf", lambda x: ops.equal(x, -math.inf), False)


@aten("isclose.default")
def isclose(
    at: OpContext, self: Node, other: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Node:
    """Where |a - b| is at most atol + rtol |b|, or both are equal"""
    if not is_float(self.dtype):
        self, other = cast(self, "f64"), cast(other, "f64")
    gap = ops.abs(ops.sub(self, other))
    close = ops.logical_and(ops.less_equal(gap, ops.abs(other) * rtol + atol), ops.isfinite(gap))
    close = ops.logical_or(close, ops.equal(self, other))
    both = ops.logical_and(ops.isnan(self), ops.isnan(other))
    return ops.logical_or(close, both) if equal_nan else close


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
