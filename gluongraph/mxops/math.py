"""MXNet's elementary functions beyond those of `mxops`, composed of the primitives: angles, hyperbolas, gamma, erf⁻¹.

They are formulas, not table look-ups, so they compile and differentiate like everything else; each is within a few
units in the last place of float32, and within 1e-11 of the value in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.ops.builders import Value

HALVES = ("f16", "bf16")


def widened(build: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """The formula, in float32 where data has 16 bits: rounded once, not at each of its operations."""

    @wraps(build)
    def wide(data: Node) -> Node:
        if data.dtype not in HALVES:
            return build(data)
        return ops.cast(build(ops.cast(data, "f32")), data.dtype)

    return wide


# -- rounding


def rint(data: Node) -> Node:
    """The nearest integer; halves go down, as in MXNet."""
    if not is_float(data.dtype):
        return data
    below = ops.floor(data)
    return ops.where(ops.less_equal(ops.sub(data, below), 0.5), below, ops.add(below, 1.0))


def trunc(data: Node) -> Node:
    """The nearest integer towards zero."""
    if not is_float(data.dtype):
        return data
    return ops.mul(ops.sign(data), ops.floor(ops.abs(data)))


# -- roots


@widened
def cbrt(data: Node) -> Node:
    """The cube root."""
    return ops.mul(ops.sign(data), ops.pow(ops.abs(data), 1.0 / 3.0))


@widened
def rcbrt(data: Node) -> Node:
    """1 / cbrt(data)"""
    return ops.div(1.0, cbrt(data))


def broadcast_hypot(lhs: Value, rhs: Value) -> Node:
    """sqrt(lhs² + rhs²)"""
    return ops.sqrt(ops.add(ops.mul(lhs, lhs), ops.mul(rhs, rhs)))


# -- angles


def degrees(data: Node) -> Node:
    """Radians as degrees."""
    return ops.mul(data, 180.0 / math.pi)


def radians(data: Node) -> Node:
    """Degrees as radians."""
    return ops.mul(data, math.pi / 180.0)


@widened
def tan(data: Node) -> Node:
    """The tangent."""
    return ops.div(ops.sin(data), ops.cos(data))


@widened
def arctan(data: Node) -> Node:
    """The angle whose tangent is data, from -π/2 to π/2."""
    far = ops.greater(ops.abs(data), 1.0)
    x = ops.where(far, ops.div(1.0, ops.where(far, data, 1.0)), data)
    for _ in range(2):  # arctan x = 2 arctan(x / (1 + sqrt(1 + x²))): from up to 1 to below 0.2
        x = ops.div(x, ops.add(ops.sqrt(ops.add(ops.mul(x, x), 1.0)), 1.0))
    square = ops.mul(x, x)
    series = ops.const(0.0, data.dtype, data.shape)
    for k in range(21, 0, -2):
        series = ops.sub(1.0 / k, ops.mul(series, square))
    near = ops.mul(ops.mul(x, series), 4.0)
    return ops.where(far, ops.sub(ops.mul(ops.sign(data), math.pi / 2), near), near)


@widened
def arcsin(data: Node) -> Node:
    """The angle whose sine is data, from -π/2 to π/2; NaN beyond -1 and 1."""
    return arctan(ops.div(data, ops.sqrt(ops.mul(ops.sub(1.0, data), ops.add(data, 1.0)))))


@widened
def arccos(data: Node) -> Node:
    """The angle whose cosine is data, from 0 to π; NaN beyond -1 and 1."""
    return ops.mul(arctan(ops.sqrt(ops.div(ops.sub(1.0, data), ops.add(data, 1.0)))), 2.0)


# -- hyperbolas


@widened
def sinh(data: Node) -> Node:
    """(e ** data - e ** -data) / 2"""
    return ops.mul(ops.sub(ops.expm1(data), ops.expm1(ops.neg(data))), 0.5)


@widened
def cosh(data: Node) -> Node:
    """(e ** data + e ** -data) / 2"""
    return ops.mul(ops.add(ops.exp(data), ops.exp(ops.neg(data))), 0.5)


@widened
def arcsinh(data: Node) -> Node:
    """The number whose sinh is data."""
    sign = ops.where(ops.less(data, 0.0), -1.0, 1.0)  # not 0 at 0, where the slope is 1
    size = ops.mul(data, ops.cast(sign, data.dtype))
    low = ops.minimum(size, _far(data))
    square = ops.mul(low, low)
    root = ops.sqrt(ops.add(square, 1.0))
    near = ops.log1p(ops.add(low, ops.div(square, ops.add(root, 1.0))))
    return ops.mul(_or_twice(near, size), ops.cast(sign, data.dtype))


@widened
def arccosh(data: Node) -> Node:
    """The positive number whose cosh is data; NaN below 1."""
    low = ops.minimum(ops.maximum(data, 0.0), _far(data))
    return _or_twice(ops.log(ops.add(low, ops.sqrt(ops.mul(ops.sub(low, 1.0), ops.add(low, 1.0))))), data)


def _far(x: Node) -> float:
    """From here on sqrt(x² ± 1) is x, and x² does not overflow."""
    return {"f64": 1e9, "f16": 128.0}.get(x.dtype, 1e4)


def _or_twice(near: Node, size: Any) -> Node:
    """`near`, and log(2 size) where the size is large."""
    far = ops.greater(size, _far(size))
    return ops.where(far, ops.add(ops.log(ops.where(far, size, 1.0)), math.log(2.0)), near)


@widened
def arctanh(data: Node) -> Node:
    """The number whose tanh is data."""
    return ops.mul(ops.sub(ops.log1p(data), ops.log1p(ops.neg(data))), 0.5)


# -- activations


def hard_sigmoid(data: Node, alpha: float = 0.2, beta: float = 0.5) -> Node:
    """alpha data + beta, held between 0 and 1"""
    return ops.minimum(ops.maximum(ops.add(ops.mul(data, alpha), beta), 0.0), 1.0)


def smooth_l1(data: Node, scalar: float = 1.0) -> Node:
    """(scalar data)² / 2 near 0, |data| - 1 / (2 scalar²) beyond 1 / scalar²"""
    width = 1.0 / (scalar * scalar)
    size = ops.abs(data)
    near = ops.minimum(size, width)  # not of large numbers: their gradient would be inf * 0
    inside = ops.mul(ops.mul(near, near), 0.5 / width)
    return ops.where(ops.less(size, width), inside, ops.sub(size, 0.5 * width))


# -- gamma and erf⁻¹

# Lanczos, A precision approximation of the gamma function (1964), with g = 7 and 9 terms.
_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)


@widened
def gammaln(data: Node) -> Node:
    """log |Γ(data)|"""
    low = ops.less(data, 0.5)
    x = ops.sub(ops.where(low, ops.sub(1.0, data), data), 1.0)  # Γ(x) Γ(1 - x) = π / sin(π x)
    total = ops.const(_LANCZOS[0], data.dtype, data.shape)
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = ops.add(total, ops.div(c, ops.add(x, float(k))))
    power = ops.mul(ops.add(x, 0.5), ops.sub(ops.log(ops.add(x, 7.5)), 1.0))
    made = ops.add(ops.add(power, ops.log(total)), 0.5 * math.log(2.0 * math.pi) - 7.0)
    part = ops.where(low, ops.sub(data, ops.floor(data)), 0.5)  # of the sine, whose zeros are the whole numbers
    sine = ops.sin(ops.mul(part, math.pi))
    made = ops.where(low, ops.sub(ops.sub(math.log(math.pi), ops.log(sine)), made), made)
    return ops.where(ops.equal(data, math.inf), math.inf, made)


@widened
def gamma(data: Node) -> Node:
    """Γ(data); (data - 1)! for positive integers"""
    below, whole = ops.less(data, 0.0), ops.floor(data)
    size = ops.exp(gammaln(data))
    signed = ops.where(ops.logical_and(below, ops.not_equal(ops.mod(whole, 2.0), 0.0)), ops.neg(size), size)
    return ops.where(ops.logical_and(below, ops.equal(whole, data)), math.nan, signed)


# Giles, Approximating the erfinv function (2010), for single precision; highest power first.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


@widened
def erfinv(data: Node) -> Node:
    """The number whose erf is data; NaN beyond -1 and 1."""
    w = ops.neg(ops.log(ops.mul(ops.sub(1.0, data), ops.add(data, 1.0))))
    centre = ops.less(w, 5.0)
    near = _polynomial(_CENTRE, ops.sub(ops.minimum(w, 5.0), 2.5))
    far = _polynomial(_TAIL, ops.sub(ops.sqrt(ops.maximum(w, 5.0)), 3.0))
    x = ops.mul(ops.where(centre, near, far), data)
    for _ in range(2 if data.dtype == "f64" else 1):  # Newton: (erf x)' = 2 / sqrt(π) e^(-x²)
        step = ops.mul(ops.sub(ops.erf(x), data), ops.mul(ops.exp(ops.mul(x, x)), math.sqrt(math.pi) / 2))
        x = ops.sub(x, ops.where(ops.isfinite(step), step, 0.0))
    end = ops.where(ops.greater(data, 0.0), math.inf, -math.inf)
    return ops.where(ops.equal(ops.abs(data), 1.0), ops.cast(end, data.dtype), x)


def _polynomial(coefficients: tuple[float, ...], x: Node) -> Node:
    total = ops.const(0.0, x.dtype, x.shape)
    for c in coefficients:
        total = ops.add(ops.mul(total, x), c)
    return total
