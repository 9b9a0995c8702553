"""Functions of mathematics beyond the elementary ones: of the gamma function, of the error function, of entropy."""

from __future__ import annotations

import math

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.mxops import math as mxmath
from gluongraph.torch.aten.context import OpContext, Value, cast
from gluongraph.torch.aten.table import aten

# B[2k] / 2k and B[2k] of Bernoulli's numbers, for the expansions of digamma and of its derivatives far from 0.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_FAR = 8  # the recurrences reach from 0 to here


@aten("lgamma.default", "special_gammaln.default")
def lgamma(at: OpContext, self: Node) -> Node:
    """log |Γ(x)|, whose gradient is digamma"""
    x = cast(self, at.dtype)
    value = ops.stop_gradient(mxmath.gammaln(x))
    value = ops.where(ops.logical_and(ops.less_equal(x, 0.0), ops.equal(ops.floor(x), x)), math.inf, value)
    return _with_slope(value, x, _digamma(ops.stop_gradient(x)))


def _with_slope(value: Node, x: Node, slope: Node) -> Node:
    """A value, whose gradient for x is the slope (which has none itself)."""
    moved = ops.sub(x, ops.stop_gradient(x))  # 0; NaN at infinities, which has to stay out of the value
    change = ops.where(ops.isfinite(ops.stop_gradient(ops.mul(moved, slope))), ops.mul(moved, slope), 0.0)
    return ops.add(value, change)


@aten("digamma.default", "special_digamma.default", "special_psi.default")
def digamma(at: OpContext, self: Node) -> Node:
    """The derivative of log Γ(x)"""
    if DTYPES[at.dtype].nbytes < 4:
        return cast(digamma_of(cast(self, "f32")), at.dtype)
    return digamma_of(cast(self, at.dtype))


def digamma_of(x: Node) -> Node:
    """The derivative of log Γ(x), in float32 or float64."""
    return _with_slope(_digamma(ops.stop_gradient(x)), x, _polygamma(1, ops.stop_gradient(x)))


def _digamma(x: Node) -> Node:
    """By ψ(x) = ψ(x + 1) - 1 / x, the expansion from 8 on, and ψ(1 - x) - π / tan(π x) below 0."""
    below = ops.less(x, 0.0)
    at = ops.where(below, 1.0 - x, x)
    total = ops.const(0.0, x.dtype, x.shape)
    for _ in range(_FAR):
        near = ops.less(at, float(_FAR))
        total = ops.where(near, total - 1.0 / at, total)
        at = ops.where(near, at + 1.0, at)
    square = 1.0 / (at * at)
    series = ops.const(0.0, x.dtype, x.shape)
    for k in range(len(_BERNOULLI), 0, -1):
        series = (series + _BERNOULLI[k - 1] / (2 * k)) * square
    far = ops.where(ops.equal(at, math.inf), math.inf, ops.log(at) - 0.5 / at - series)
    part = x - ops.floor(x)
    turned = math.pi / mxmath.tan(part * math.pi)
    found = total + far - ops.where(below, turned, 0.0)
    return ops.where(ops.logical_and(below, ops.equal(part, 0.0)), math.nan, found)


@aten("polygamma.default", "special_polygamma.default")
def polygamma(at: OpContext, n: int, self: Node) -> Node:
    """The n-th derivative of digamma, of positive x"""
    if n == 0:
        return digamma(at, self)
    x = cast(self, at.dtype)
    return _with_slope(_polygamma(n, ops.stop_gradient(x)), x, _polygamma(n + 1, ops.stop_gradient(x)))


def _polygamma(n: int, x: Node) -> Node:
    """(-1) ** (n + 1) n! Σ 1 / (x + k) ** (n + 1): the first terms, and the expansion of the rest; of n = 1 also below
    0, by ψ'(1 - x) + ψ'(x) = (π / sin(π x))²."""
    below = ops.less(x, 0.5)
    at = ops.where(below, 1.0 - x, x) if n == 1 else x
    total = ops.const(0.0, x.dtype, x.shape)
    scale = (-1.0) ** (n + 1) * math.factorial(n)
    for _ in range(2 * _FAR):
        near = ops.less(at, float(2 * _FAR))
        total = ops.where(near, total + scale * ops.pow(at, -(n + 1.0)), total)
        at = ops.where(near, at + 1.0, at)
    sign = (-1.0) ** (n + 1)
    rest = ops.pow(at, -float(n)) * math.factorial(n - 1) + ops.pow(at, -(n + 1.0)) * (math.factorial(n) / 2)
    for k, b in enumerate(_BERNOULLI, 1):
        rest = rest + ops.pow(at, -float(2 * k + n)) * (b * math.factorial(2 * k + n - 1) / math.factorial(2 * k))
    found = total + sign * rest
    if n != 1:
        return found
    sine = ops.sin((x - ops.floor(x)) * math.pi)
    return ops.where(below, (math.pi * math.pi) / (sine * sine) - found, found)


@aten("mvlgamma.default", "special_multigammaln.default")
def mvlgamma(at: OpContext, self: Node, p: int) -> Node:
    """The logarithm of the gamma function of p × p matrices"""
    x = cast(self, at.dtype)
    total = ops.const(p * (p - 1) / 4 * math.log(math.pi), x.dtype, x.shape)
    for k in range(p):
        total = total + lgamma(at, x - k / 2)
    return total


@aten("erfinv.default", "special_erfinv.default")
def erfinv(at: OpContext, self: Node) -> Node:
    """The number whose erf is x"""
    x = cast(self, at.dtype)
    y = ops.stop_gradient(mxmath.erfinv(x))
    y = ops.where(ops.greater(ops.abs(x), 1.0), math.nan, y)
    return _with_slope(y, x, ops.exp(y * y) * (math.sqrt(math.pi) / 2))


@aten("special_ndtr.default")
def ndtr(at: OpContext, self: Node) -> Node:
    """The cumulative distribution function of the standard normal distribution"""
    return ops.normal_cdf(cast(self, at.dtype))


@aten("special_ndtri.default")
def ndtri(at: OpContext, self: Node) -> Node:
    """The number whose cumulative distribution function is x"""
    return erfinv(at, cast(self, at.dtype) * 2.0 - 1.0) * math.sqrt(2.0)


@aten("special_entr.default")
def entr(at: OpContext, self: Node) -> Node:
    """-x log x; 0 at 0, -infinity below"""
    x = cast(self, at.dtype)
    positive = ops.greater(x, 0.0)
    made = ops.neg(x * ops.log(ops.where(positive, x, 1.0)))
    made = ops.where(positive, made, ops.where(ops.equal(x, 0.0), x * 0.0, -math.inf))
    return ops.where(ops.isnan(x), x, made)


def _times_log(x: Node, log_y: Node) -> Node:
    """x log y, and 0 where x is 0 and log y infinite or NaN because y is not positive."""
    return ops.mul(x, ops.where(ops.logical_and(ops.equal(x, 0.0), ops.logical_not(ops.isfinite(log_y))), 0.0, log_y))


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy.default")
def xlogy(at: OpContext, self: Value, other: Value) -> Node:
    """x log y; 0 where x is 0"""
    x, y = cast(self, at.dtype), cast(other, at.dtype)
    return ops.where(ops.isnan(y), math.nan, _times_log(x, ops.log(y)))


@aten("special_xlog1py.default")
def xlog1py(at: OpContext, self: Value, other: Value) -> Node:
    """x log(1 + y); 0 where x is 0"""
    x, y = cast(self, at.dtype), cast(other, at.dtype)
    return ops.where(ops.isnan(y), math.nan, _times_log(x, ops.log1p(y)))


@aten("sinc.default", "special_sinc.default")
def sinc(at: OpContext, self: Node) -> Node:
    """sin(π x) / (π x); 1 at 0"""
    x = cast(self, at.dtype) * math.pi
    at_zero = ops.equal(x, 0.0)
    safe = ops.where(at_zero, 1.0, x)
    return ops.where(at_zero, 1.0, ops.sin(safe) / safe)
