"""Elementwise ops: result[i] from the sources at i, all of one shape. The builders broadcast; the ops do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import logic
from gluongraph.ops.builders import Value, broadcasting, lift
from gluongraph.ops.checks import FLOATS, INTEGERS, NUMBERS, alike
from gluongraph.ops.lowering import Lower, binary, unary
from gluongraph.ops.samples import array, elementwise

# -- one source

_FUNCTION = 25  # floating-point operations of a function: argument reduction, a polynomial of degree 5 to 9

neg = Op(
    "neg",
    kind="elementwise",
    traits=frozenset({"selects"}),
    infer=alike("neg", NUMBERS),
    numpy=np.negative,
    grad=lambda g, y, x: (-g,),
    lower=unary("neg"),
    samples=elementwise(dtypes=("f64", "i32", "bf16")),
    doc="-x",
)
sign = Op(
    "sign",
    kind="elementwise",
    infer=alike("sign", NUMBERS),
    numpy=np.sign,
    lower=unary("sign"),
    samples=elementwise(dtypes=("f64", "i32")),
    doc="-1, 0 or 1",
)
abs = Op(
    "abs",
    kind="elementwise",
    traits=frozenset({"selects"}),
    infer=alike("abs", NUMBERS),
    numpy=np.abs,
    grad=lambda g, y, x: (g * sign(x),),
    lower=unary("abs"),
    samples=elementwise(dtypes=("f64", "i32")),
    doc="|x|",
)
exp = Op(
    "exp",
    kind="elementwise",
    cost=4,
    infer=alike("exp", FLOATS),
    numpy=np.exp,
    grad=lambda g, y, x: (g * y,),
    lower=unary("exp"),
    samples=elementwise(low=-4, high=4),
    flops=_FUNCTION,
    numeric="full",
    doc="e^x",
)
log = Op(
    "log",
    kind="elementwise",
    cost=4,
    infer=alike("log", FLOATS),
    numpy=np.log,
    grad=lambda g, y, x: (g / x,),
    lower=unary("log"),
    samples=elementwise(low=0.1, high=4),
    flops=_FUNCTION,
    numeric="full",
    doc="the natural logarithm",
)
log1p = Op(
    "log1p",
    kind="elementwise",
    cost=4,
    infer=alike("log1p", FLOATS),
    numpy=np.log1p,
    grad=lambda g, y, x: (g / (x + 1),),
    lower=unary("log1p"),
    samples=elementwise(low=-0.8, high=4),
    flops=_FUNCTION,
    numeric="full",
    doc="log(1 + x), exact for small x",
)
expm1 = Op(
    "expm1",
    kind="elementwise",
    cost=4,
    infer=alike("expm1", FLOATS),
    numpy=np.expm1,
    grad=lambda g, y, x: (g * (y + 1),),
    lower=unary("expm1"),
    samples=elementwise(),
    flops=_FUNCTION,
    numeric="full",
    doc="e^x - 1, exact for small x",
)
sqrt = Op(
    "sqrt",
    kind="elementwise",
    cost=2,
    infer=alike("sqrt", FLOATS),
    numpy=np.sqrt,
    grad=lambda g, y, x: (g * 0.5 / y,),
    lower=unary("sqrt"),
    samples=elementwise(low=0.1, high=9),
    doc="the square root",
)
rsqrt = Op(
    "rsqrt",
    kind="elementwise",
    cost=2,
    infer=alike("rsqrt", FLOATS),
    numpy=lambda x: 1 / np.sqrt(x),
    grad=lambda g, y, x: (g * -0.5 * (y * y * y),),
    lower=unary("rsqrt"),
    samples=elementwise(low=0.1, high=9),
    doc="1 / sqrt(x)",
)
sin: Op = Op(
    "sin",
    kind="elementwise",
    cost=4,
    infer=alike("sin", FLOATS),
    numpy=np.sin,
    grad=lambda g, y, x: (g * cos(x),),
    lower=unary("sin"),
    samples=elementwise(low=-7, high=7),
    flops=_FUNCTION,
    doc="the sine",
)
cos: Op = Op(
    "cos",
    kind="elementwise",
    cost=4,
    infer=alike("cos", FLOATS),
    numpy=np.cos,
    grad=lambda g, y, x: (-g * sin(x),),
    lower=unary("cos"),
    samples=elementwise(low=-7, high=7),
    flops=_FUNCTION,
    doc="the cosine",
)
tanh = Op(
    "tanh",
    kind="elementwise",
    cost=4,
    infer=alike("tanh", FLOATS),
    numpy=np.tanh,
    grad=lambda g, y, x: (g - g * y * y,),
    lower=unary("tanh"),
    samples=elementwise(low=-4, high=4),
    flops=_FUNCTION,
    doc="the hyperbolic tangent",
)


@lru_cache
def _erf_series(dtype: Any) -> tuple[float, tuple[float, ...]]:
    """Return the x from which erf rounds to 1, and the Chebyshev series of erf(x)/x in x² below it."""
    end, terms = (4.0, 26) if np.finfo(dtype).bits <= 32 else (6.0, 64)
    over_x = np.vectorize(lambda u: math.erf(math.sqrt(u)) / math.sqrt(u))
    series = np.polynomial.chebyshev.chebinterpolate(lambda s: over_x((s + 1) * (end * end / 2)), terms)
    return end, tuple(map(float, series))


def _erf(x: Any) -> Any:
    """Clenshaw's recurrence, in place; f16 and bf16 by way of f32."""
    x = np.asarray(x)
    if x.dtype.itemsize < 4:
        return _erf(x.astype(np.float32)).astype(x.dtype)
    end, series = _erf_series(x.dtype)
    inside = np.clip(x, -end, end)
    s = inside * inside
    s *= 4 / (end * end)
    s -= 2  # twice the argument in [-1, 1]
    b, before = np.zeros_like(s), np.zeros_like(s)
    for c in reversed(series[1:]):
        before -= s * b
        np.negative(before, out=before)
        before += c
        b, before = before, b
    found = inside * (s * 0.5 * b - before + series[0])
    return np.where(np.abs(x) >= end, np.copysign(x.dtype.type(1), x), found)


erf = Op(
    "erf",
    kind="elementwise",
    cost=4,
    infer=alike("erf", FLOATS),
    numpy=_erf,
    grad=lambda g, y, x: (g * exp(-(x * x)) * (2 / math.sqrt(math.pi)),),
    lower=unary("erf"),
    samples=elementwise(low=-5, high=5),
    flops=_FUNCTION,
    doc="the error function",
)


def _normal_cdf(x: Any) -> Any:
    wide = np.result_type(x, np.float32)
    return ((_erf(np.multiply(x, math.sqrt(0.5), dtype=wide)) + 1) * wide.type(0.5)).astype(x.dtype)


def _normal_pdf(x: Any) -> Any:
    wide = x.astype(np.result_type(x, np.float32))
    return (np.exp(wide * wide * wide.dtype.type(-0.5)) * wide.dtype.type(_PEAK)).astype(x.dtype)


_PEAK = 1 / math.sqrt(2 * math.pi)  # of the density
normal_cdf: Op = Op(
    "normal_cdf",
    kind="elementwise",
    cost=4,
    infer=alike("normal_cdf", FLOATS),
    numpy=_normal_cdf,
    grad=lambda g, y, x: (g * normal_pdf(x),),
    lower=unary("normal_cdf"),
    samples=elementwise(low=-5, high=5),
    flops=_FUNCTION,
    doc="the cumulative distribution function of the standard normal distribution",
)
normal_pdf: Op = Op(
    "normal_pdf",
    kind="elementwise",
    cost=4,
    infer=alike("normal_pdf", FLOATS),
    numpy=_normal_pdf,
    grad=lambda g, y, x: (-g * x * y,),
    lower=unary("normal_pdf"),
    samples=elementwise(low=-5, high=5),
    flops=_FUNCTION,
    doc="the density of the standard normal distribution, e^(-x²/2) / √2π",
)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: 1 / inf is the right answer
        return 1 / (1 + np.exp(-x))


sigmoid = Op(
    "sigmoid",
    kind="elementwise",
    cost=4,
    infer=alike("sigmoid", FLOATS),
    numpy=_sigmoid,
    grad=lambda g, y, x: (g * (y - y * y),),
    lower=unary("sigmoid"),
    samples=elementwise(low=-9, high=9),
    flops=_FUNCTION,
    doc="1 / (1 + e^-x)",
)


def _relu_grad(g: Node, y: Node, x: Node) -> tuple[Node]:
    """g where y is above 0; elsewhere y itself, which is 0, or NaN where x is."""
    constant: Node = stop_gradient(y)
    return (logic.where(logic.greater(y, 0), g, constant),)


relu = Op(
    "relu",
    kind="elementwise",
    traits=frozenset({"selects"}),
    infer=alike("relu", NUMBERS),
    numpy=lambda x: np.maximum(x, 0),
    grad=_relu_grad,
    lower=lambda e, i, x: e.binary("maximum", x(*i), e.const(0, x.dtype)),
    samples=elementwise(dtypes=("f64", "i32", "bf16")),
    doc="max(x, 0)",
)
floor = Op(
    "floor",
    kind="elementwise",
    infer=alike("floor", FLOATS),
    numpy=np.floor,
    lower=unary("floor"),
    samples=elementwise(low=-9, high=9),
    doc="the next integer below",
)
ceil = Op(
    "ceil",
    kind="elementwise",
    infer=alike("ceil", FLOATS),
    numpy=np.ceil,
    lower=unary("ceil"),
    samples=elementwise(low=-9, high=9),
    doc="the next integer above",
)
round = Op(
    "round",
    kind="elementwise",
    infer=alike("round", FLOATS),
    numpy=np.rint,
    lower=unary("round"),
    samples=lambda rng: [((np.rint(array(rng, (3, 33), dtype, -9, 9)) * 0.5,), {}) for dtype in ("f32", "f64")],
    doc="the nearest integer; ties to even",
)


def _with_odd(rng: np.random.Generator) -> Any:
    """Arrays that contain NaN and both infinities."""
    for dtype in ("f32", "f64"):
        yield (rng.choice(np.array([0.0, -1.5, math.nan, math.inf, -math.inf], numpy_dtype(dtype)), (3, 33)),), {}


isnan = Op(
    "isnan",
    kind="elementwise",
    infer=alike("isnan", FLOATS, "bool"),
    numpy=np.isnan,
    lower=unary("isnan"),
    samples=_with_odd,
    doc="is it not a number?",
)
isfinite = Op(
    "isfinite",
    kind="elementwise",
    infer=alike("isfinite", FLOATS, "bool"),
    numpy=np.isfinite,
    lower=unary("isfinite"),
    samples=_with_odd,
    doc="is it neither infinite nor NaN?",
)
stop_gradient = Op(
    "stop_gradient",
    kind="elementwise",
    traits=frozenset({"free"}),
    infer=lambda x, detached=False: x,
    numpy=lambda x, detached=False: x,
    lower=lambda e, i, x, detached=False: x(*i),
    samples=lambda rng: [
        *elementwise(dtypes=("i32",))(rng),
        ((array(rng, (3, 33), "f32"),), {"detached": True}),
    ],
    doc="x, which is a constant in differentiation; if detached, x is treated as not recorded",
)


def _cast_type(x: TensorType, dtype: str) -> TensorType:
    return TensorType(x.shape, dtype)


def _cast(x: Any, dtype: str) -> Any:
    return x.astype(numpy_dtype(dtype), copy=False)


CAST = Op(
    "cast",
    kind="elementwise",
    traits=frozenset({"selects"}),
    infer=_cast_type,
    numpy=_cast,
    grad=lambda g, y, x, dtype: (None if "bool" in (x.dtype, dtype) else cast(g, x.dtype),),
    lower=lambda e, i, x, dtype: e.cast(x(*i), dtype),
    samples=lambda rng: [
        ((array(rng, (3, 33), source, 0, 9),), {"dtype": target})
        for source, target in (
            ("f32", "f64"), ("f64", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"),
            ("f32", "i32"), ("i32", "f32"), ("i64", "i32"), ("u8", "f32"), ("bool", "f32"), ("f32", "bool"),
            ("f64", "f64"), ("u32", "u64"), ("u64", "u32"), ("bool", "i32"),
        )
    ],
    doc="the same values in another type; floats are truncated towards zero when they become integers",
)  # fmt: skip


def cast(x: Value, dtype: str) -> Node:
    """The same values in another type; x itself if it has that type."""
    x = lift(x, dtype)
    return x if x.dtype == dtype else CAST(x, dtype=dtype)


# -- two sources

add = broadcasting(
    Op(
        "add",
        kind="elementwise",
        traits=frozenset({"commutes"}),
        infer=alike("add", NUMBERS),
        numpy=np.add,
        grad=lambda g, z, x, y: (g, g),
        lower=binary("add"),
        samples=elementwise(2, dtypes=("f64", "i32", "bf16")),
        doc="x + y",
    )
)
sub = broadcasting(
    Op(
        "sub",
        kind="elementwise",
        infer=alike("sub", NUMBERS),
        numpy=np.subtract,
        grad=lambda g, z, x, y: (g, -g),
        lower=binary("sub"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="x - y",
    )
)
mul = broadcasting(
    Op(
        "mul",
        kind="elementwise",
        traits=frozenset({"commutes"}),
        infer=alike("mul", NUMBERS),
        numpy=np.multiply,
        grad=lambda g, z, x, y: (g * y, g * x),
        lower=binary("mul"),
        samples=elementwise(2, dtypes=("f64", "i32", "bf16")),
        doc="x · y",
    )
)
div = broadcasting(
    Op(
        "div",
        kind="elementwise",
        cost=2,
        infer=alike("div", FLOATS),
        numpy=np.divide,
        grad=lambda g, z, x, y: (g / y, -g * z / y),
        lower=binary("div"),
        samples=elementwise(2, low=0.5, high=3),
        doc="x / y, of floats",
    )
)


def _pow_grad(g: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node | None]:
    """log x exists for x > 0 only; elsewhere z does not depend on y smoothly, and its gradient is 0."""
    if not is_float(x.dtype):  # integers have no powers below 0, and no logarithm
        return g * y * x ** (maximum(y, 1) - 1), None
    positive = logic.greater(x, 0)
    return g * y * x ** (y - 1), g * z * logic.where(positive, log(logic.where(positive, x, 1)), 0)


pow = broadcasting(
    Op(
        "pow",
        kind="elementwise",
        cost=16,
        infer=alike("pow", NUMBERS),
        numpy=np.power,
        grad=_pow_grad,
        lower=binary("pow"),
        samples=elementwise(2, low=0.3, high=3, dtypes=("f64", "i32")),
        flops=2 * _FUNCTION,  # exp(y * log(x))
        numeric="full",
        doc="x to the power y",
    )
)
maximum = broadcasting(
    Op(
        "maximum",
        kind="elementwise",
        traits=frozenset({"selects"}),
        infer=alike("maximum", NUMBERS),
        numpy=np.maximum,
        grad=lambda g, z, x, y: _to_first(g, logic.greater_equal(x, y)),
        lower=binary("maximum"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="the larger one; the gradient of equal ones goes to x",
    )
)
minimum = broadcasting(
    Op(
        "minimum",
        kind="elementwise",
        traits=frozenset({"selects"}),
        infer=alike("minimum", NUMBERS),
        numpy=np.minimum,
        grad=lambda g, z, x, y: _to_first(g, logic.less_equal(x, y)),
        lower=binary("minimum"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="the smaller one; the gradient of equal ones goes to x",
    )
)


def _halved(g: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
    """The gradient goes to the source that is the result; equal sources get half of it each."""
    both = logic.equal(x, y)
    first, second = (logic.where(logic.equal(s, z), g, 0) for s in (x, y))
    return logic.where(both, g * 0.5, first), logic.where(both, g * 0.5, second)


maximum_even = broadcasting(
    composite(
        "maximum_even",
        lambda x, y: maximum(x, y),
        infer=alike("maximum_even", NUMBERS),
        grad=_halved,
        samples=elementwise(2, dtypes=("f64",)),
        doc="the larger one; equal ones get half of the gradient each, as in PyTorch",
    )
)
minimum_even = broadcasting(
    composite(
        "minimum_even",
        lambda x, y: minimum(x, y),
        infer=alike("minimum_even", NUMBERS),
        grad=_halved,
        samples=elementwise(2, dtypes=("f64",)),
        doc="the smaller one; equal ones get half of the gradient each, as in PyTorch",
    )
)


def _to_first(g: Node, first: Node) -> tuple[Node, Node]:
    return logic.where(first, g, 0), logic.where(first, 0, g)


def _rounded_division(name: str, of_floats: Callable[[Any, Any, Any, Any, Any], Any]) -> Lower:
    """Integers by the target's own instruction, floats by floor(x / y)."""

    def lower(e: Any, i: Any, x: Any, y: Any) -> Any:
        if x.dtype in INTEGERS:
            return e.binary(name, x(*i), y(*i))
        quotient = e.unary("floor", e.binary("div", x(*i), y(*i)))
        return of_floats(e, e.const(0, x.dtype), x(*i), y(*i), quotient)

    return lower


def _remainder(e: Any, zero: Any, x: Any, y: Any, quotient: Any) -> Any:
    """x - quotient · y, of the sign of y: where y is infinite, x or y itself."""
    rest = e.where(e.binary("equal", quotient, zero), x, x - quotient * y)
    of_negative = e.where(e.binary("greater", rest, zero), rest + y, rest)
    of_positive = e.where(e.binary("less", rest, zero), rest + y, rest)
    return e.where(e.binary("less", y, zero), of_negative, of_positive)


floordiv = broadcasting(
    Op(
        "floordiv",
        kind="elementwise",
        cost=16,
        infer=alike("floordiv", NUMBERS),
        numpy=np.floor_divide,
        lower=_rounded_division("floordiv", lambda e, zero, x, y, quotient: quotient),
        samples=elementwise(2, low=1, high=9, dtypes=("f64", "i32")),
        doc="floor(x / y)",
    )
)
mod = broadcasting(
    Op(
        "mod",
        kind="elementwise",
        cost=16,
        infer=alike("mod", NUMBERS),
        numpy=np.mod,
        grad=lambda g, z, x, y: (g, -g * floordiv(x, y)),
        lower=_rounded_division("floormod", _remainder),
        samples=elementwise(2, low=1, high=9, dtypes=("f64", "i32")),
        doc="x - floor(x / y) · y: the remainder, of the sign of y",
    )
)
