"""Elementwise ops: result[i] from the sources at i, all of one shape. The builders broadcast; the ops do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir import Node, Op, TensorType
from gluongraph.ops.build import (
    ANY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Value,
    broadcast,
    broadcasting,
    dtype_of,
    equal_types,
    lift,
    need,
    wrong_dtype,
)
from gluongraph.ops.samples import array, elementwise

Infer = Callable[..., TensorType]
Lower = Callable[..., Any]


def _alike(op: str, allowed: frozenset[str], result: str = "") -> Infer:
    """Equal shapes and dtypes among those allowed -> the same, or `result`."""

    def infer(*types: TensorType) -> TensorType:
        x = equal_types(op, *types)
        need(op, allowed, x)
        return TensorType(x.shape, result) if result else x

    return infer


def _unary(name: str) -> Lower:
    return lambda e, i, x: e.unary(name, x(*i))


def _binary(name: str) -> Lower:
    return lambda e, i, x, y: e.binary(name, x(*i), y(*i))


# -- comparisons and logic


def _comparison(name: str, numpy: Callable[[Any, Any], Any], doc: str) -> Callable[[Value, Value], Node]:
    return broadcasting(
        Op(
            name,
            kind="elementwise",
            infer=_alike(name, ANY, "bool"),
            numpy=numpy,
            lower=_binary(name),
            samples=lambda rng: [
                (tuple(np.rint(array(rng, shape, dtype)).astype(numpy_dtype(dtype)) for _ in range(2)), {})
                for shape, dtype in (((), "f32"), ((3, 33), "f32"), ((7,), "f64"), ((2, 3, 17), "i32"))
            ],
            doc=doc,
        )
    )


equal = _comparison("equal", np.equal, "x = y")
not_equal = _comparison("not_equal", np.not_equal, "x ≠ y")
less = _comparison("less", np.less, "x < y")
less_equal = _comparison("less_equal", np.less_equal, "x ≤ y")
greater = _comparison("greater", np.greater, "x > y")
greater_equal = _comparison("greater_equal", np.greater_equal, "x ≥ y")


def _truth(e: Any, i: Any, x: Any) -> Any:
    return x(*i) if x.dtype == "bool" else e.binary("not_equal", x(*i), e.const(0, x.dtype))


logical_not = Op(
    "logical_not",
    kind="elementwise",
    infer=_alike("logical_not", ANY, "bool"),
    numpy=np.logical_not,
    lower=lambda e, i, x: e.unary("logical_not", _truth(e, i, x)),
    samples=lambda rng: [((np.rint(array(rng, (3, 33))),), {}), ((array(rng, (7,), "bool"),), {})],
    doc="is x zero or false?",
)


def _logical(name: str, numpy: Callable[[Any, Any], Any], doc: str) -> Callable[[Value, Value], Node]:
    return broadcasting(
        Op(
            name,
            kind="elementwise",
            infer=_alike(name, ANY, "bool"),
            numpy=numpy,
            lower=lambda e, i, x, y: e.binary(name, _truth(e, i, x), _truth(e, i, y)),
            samples=lambda rng: [
                (tuple(np.rint(array(rng, (3, 33), dtype)).astype(numpy_dtype(dtype)) for _ in range(2)), {})
                for dtype in ("bool", "f32", "i32")
            ],
            doc=doc,
        )
    )


logical_and = _logical("logical_and", np.logical_and, "are both true, or not zero?")
logical_or = _logical("logical_or", np.logical_or, "is one true, or not zero?")


# -- one source

neg = Op(
    "neg",
    kind="elementwise",
    infer=_alike("neg", NUMBERS),
    numpy=np.negative,
    grad=lambda g, y, x: (-g,),
    lower=_unary("neg"),
    samples=elementwise(dtypes=("f64", "i32", "bf16")),
    doc="-x",
)
sign = Op(
    "sign",
    kind="elementwise",
    infer=_alike("sign", NUMBERS),
    numpy=np.sign,
    lower=_unary("sign"),
    samples=elementwise(dtypes=("f64", "i32")),
    doc="-1, 0 or 1",
)
abs = Op(
    "abs",
    kind="elementwise",
    infer=_alike("abs", NUMBERS),
    numpy=np.abs,
    grad=lambda g, y, x: (g * ops.sign(x),),
    lower=_unary("abs"),
    samples=elementwise(dtypes=("f64", "i32")),
    doc="|x|",
)
exp = Op(
    "exp",
    kind="elementwise",
    infer=_alike("exp", FLOATS),
    numpy=np.exp,
    grad=lambda g, y, x: (g * y,),
    lower=_unary("exp"),
    samples=elementwise(low=-4, high=4),
    numeric="full",
    doc="e^x",
)
log = Op(
    "log",
    kind="elementwise",
    infer=_alike("log", FLOATS),
    numpy=np.log,
    grad=lambda g, y, x: (g / x,),
    lower=_unary("log"),
    samples=elementwise(low=0.1, high=4),
    numeric="full",
    doc="the natural logarithm",
)
log1p = Op(
    "log1p",
    kind="elementwise",
    infer=_alike("log1p", FLOATS),
    numpy=np.log1p,
    grad=lambda g, y, x: (g / (x + 1),),
    lower=_unary("log1p"),
    samples=elementwise(low=-0.8, high=4),
    numeric="full",
    doc="log(1 + x), exact for small x",
)
expm1 = Op(
    "expm1",
    kind="elementwise",
    infer=_alike("expm1", FLOATS),
    numpy=np.expm1,
    grad=lambda g, y, x: (g * (y + 1),),
    lower=_unary("expm1"),
    samples=elementwise(),
    numeric="full",
    doc="e^x - 1, exact for small x",
)
sqrt = Op(
    "sqrt",
    kind="elementwise",
    infer=_alike("sqrt", FLOATS),
    numpy=np.sqrt,
    grad=lambda g, y, x: (g * 0.5 / y,),
    lower=_unary("sqrt"),
    samples=elementwise(low=0.1, high=9),
    doc="the square root",
)
rsqrt = Op(
    "rsqrt",
    kind="elementwise",
    infer=_alike("rsqrt", FLOATS),
    numpy=lambda x: 1 / np.sqrt(x),
    grad=lambda g, y, x: (g * -0.5 * (y * y * y),),
    lower=_unary("rsqrt"),
    samples=elementwise(low=0.1, high=9),
    doc="1 / sqrt(x)",
)
sin: Op = Op(
    "sin",
    kind="elementwise",
    infer=_alike("sin", FLOATS),
    numpy=np.sin,
    grad=lambda g, y, x: (g * ops.cos(x),),
    lower=_unary("sin"),
    samples=elementwise(low=-7, high=7),
    doc="the sine",
)
cos: Op = Op(
    "cos",
    kind="elementwise",
    infer=_alike("cos", FLOATS),
    numpy=np.cos,
    grad=lambda g, y, x: (-g * ops.sin(x),),
    lower=_unary("cos"),
    samples=elementwise(low=-7, high=7),
    doc="the cosine",
)
tanh = Op(
    "tanh",
    kind="elementwise",
    infer=_alike("tanh", FLOATS),
    numpy=np.tanh,
    grad=lambda g, y, x: (g - g * y * y,),
    lower=_unary("tanh"),
    samples=elementwise(low=-4, high=4),
    doc="the hyperbolic tangent",
)


@lru_cache
def _erf_series(dtype: Any) -> tuple[float, tuple[float, ...]]:
    """Where erf is 1 to the last bit, and the Chebyshev series of erf(x)/x in x² up to there."""
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
    s -= 2  # twice the place in [-1, 1]
    b, before = np.zeros_like(s), np.zeros_like(s)
    for c in reversed(series[1:]):
        before -= s * b
        np.negative(before, out=before)
        before += c
        b, before = before, b
    return inside * (s * 0.5 * b - before + series[0])


erf = Op(
    "erf",
    kind="elementwise",
    infer=_alike("erf", FLOATS),
    numpy=_erf,
    grad=lambda g, y, x: (g * ops.exp(-(x * x)) * (2 / math.sqrt(math.pi)),),
    lower=_unary("erf"),
    samples=elementwise(low=-5, high=5),
    doc="the error function",
)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: 1 / inf is the right answer
        return 1 / (1 + np.exp(-x))


sigmoid = Op(
    "sigmoid",
    kind="elementwise",
    infer=_alike("sigmoid", FLOATS),
    numpy=_sigmoid,
    grad=lambda g, y, x: (g * (y - y * y),),
    lower=_unary("sigmoid"),
    samples=elementwise(low=-9, high=9),
    doc="1 / (1 + e^-x)",
)
relu = Op(
    "relu",
    kind="elementwise",
    infer=_alike("relu", NUMBERS),
    numpy=lambda x: np.maximum(x, 0),
    grad=lambda g, y, x: (ops.where(ops.greater(y, 0), g, 0),),
    lower=lambda e, i, x: e.binary("maximum", x(*i), e.const(0, x.dtype)),
    samples=elementwise(dtypes=("f64", "i32", "bf16")),
    doc="max(x, 0)",
)
floor = Op(
    "floor",
    kind="elementwise",
    infer=_alike("floor", FLOATS),
    numpy=np.floor,
    lower=_unary("floor"),
    samples=elementwise(low=-9, high=9),
    doc="the next integer below",
)
ceil = Op(
    "ceil",
    kind="elementwise",
    infer=_alike("ceil", FLOATS),
    numpy=np.ceil,
    lower=_unary("ceil"),
    samples=elementwise(low=-9, high=9),
    doc="the next integer above",
)
round = Op(
    "round",
    kind="elementwise",
    infer=_alike("round", FLOATS),
    numpy=np.rint,
    lower=_unary("round"),
    samples=lambda rng: [((np.rint(array(rng, (3, 33), dtype, -9, 9)) * 0.5,), {}) for dtype in ("f32", "f64")],
    doc="the nearest integer; halves go to the even one",
)


def _with_odd(rng: np.random.Generator) -> Any:
    """Arrays with NaN and both infinities among the numbers."""
    for dtype in ("f32", "f64"):
        yield (rng.choice(np.array([0.0, -1.5, math.nan, math.inf, -math.inf], numpy_dtype(dtype)), (3, 33)),), {}


isnan = Op(
    "isnan",
    kind="elementwise",
    infer=_alike("isnan", FLOATS, "bool"),
    numpy=np.isnan,
    lower=_unary("isnan"),
    samples=_with_odd,
    doc="is it not a number?",
)
isfinite = Op(
    "isfinite",
    kind="elementwise",
    infer=_alike("isfinite", FLOATS, "bool"),
    numpy=np.isfinite,
    lower=_unary("isfinite"),
    samples=_with_odd,
    doc="is it neither infinite nor NaN?",
)
stop_gradient = Op(
    "stop_gradient",
    kind="elementwise",
    infer=lambda x: x,
    numpy=lambda x: x,
    lower=lambda e, i, x: x(*i),
    samples=elementwise(dtypes=("i32",)),
    doc="x, which counts as a constant when differentiating",
)


def _cast_type(x: TensorType, dtype: str) -> TensorType:
    return TensorType(x.shape, dtype)


def _cast(x: Any, dtype: str) -> Any:
    return x.astype(numpy_dtype(dtype), copy=False)


CAST = Op(
    "cast",
    kind="elementwise",
    infer=_cast_type,
    numpy=_cast,
    grad=lambda g, y, x, dtype: (ops.cast(g, x.dtype) if is_float(x.dtype) and is_float(dtype) else None,),
    lower=lambda e, i, x, dtype: e.cast(x(*i), dtype),
    samples=lambda rng: [
        ((array(rng, (3, 33), source, 0, 9),), {"dtype": target})
        for source, target in (
            ("f32", "f64"), ("f64", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"),
            ("f32", "i32"), ("i32", "f32"), ("i64", "i32"), ("u8", "f32"), ("bool", "f32"), ("f32", "bool"),
            ("f64", "f64"), ("u32", "u64"), ("u64", "u32"), ("bool", "i32"),
        )
    ],
    doc="the same numbers in another type; floats are cut off towards zero when they become integers",
)  # fmt: skip


def cast(x: Value, dtype: str) -> Node:
    """The same numbers in another type; x itself if it has that type."""
    x = lift(x, dtype)
    return x if x.dtype == dtype else CAST(x, dtype=dtype)


# -- two sources

add = broadcasting(
    Op(
        "add",
        kind="elementwise",
        infer=_alike("add", NUMBERS),
        numpy=np.add,
        grad=lambda g, z, x, y: (g, g),
        lower=_binary("add"),
        samples=elementwise(2, dtypes=("f64", "i32", "bf16")),
        doc="x + y",
    )
)
sub = broadcasting(
    Op(
        "sub",
        kind="elementwise",
        infer=_alike("sub", NUMBERS),
        numpy=np.subtract,
        grad=lambda g, z, x, y: (g, -g),
        lower=_binary("sub"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="x - y",
    )
)
mul = broadcasting(
    Op(
        "mul",
        kind="elementwise",
        infer=_alike("mul", NUMBERS),
        numpy=np.multiply,
        grad=lambda g, z, x, y: (g * y, g * x),
        lower=_binary("mul"),
        samples=elementwise(2, dtypes=("f64", "i32", "bf16")),
        doc="x · y",
    )
)
div = broadcasting(
    Op(
        "div",
        kind="elementwise",
        infer=_alike("div", FLOATS),
        numpy=np.divide,
        grad=lambda g, z, x, y: (g / y, -g * z / y),
        lower=_binary("div"),
        samples=elementwise(2, low=0.5, high=3),
        doc="x / y, of floats",
    )
)


def _pow_grad(g: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
    """log x exists for x > 0 only; elsewhere z does not depend on y smoothly, and its gradient is 0."""
    positive = ops.greater(x, 0)
    return g * y * x ** (y - 1), g * z * ops.where(positive, ops.log(ops.where(positive, x, 1)), 0)


pow = broadcasting(
    Op(
        "pow",
        kind="elementwise",
        infer=_alike("pow", NUMBERS),
        numpy=np.power,
        grad=_pow_grad,
        lower=_binary("pow"),
        samples=elementwise(2, low=0.3, high=3, dtypes=("f64", "i32")),
        numeric="full",
        doc="x to the power y",
    )
)
maximum = broadcasting(
    Op(
        "maximum",
        kind="elementwise",
        infer=_alike("maximum", NUMBERS),
        numpy=np.maximum,
        grad=lambda g, z, x, y: _to_first(g, ops.greater_equal(x, y)),
        lower=_binary("maximum"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="the larger one; equal ones give their gradient to x",
    )
)
minimum = broadcasting(
    Op(
        "minimum",
        kind="elementwise",
        infer=_alike("minimum", NUMBERS),
        numpy=np.minimum,
        grad=lambda g, z, x, y: _to_first(g, ops.less_equal(x, y)),
        lower=_binary("minimum"),
        samples=elementwise(2, dtypes=("f64", "i32")),
        doc="the smaller one; equal ones give their gradient to x",
    )
)


def _to_first(g: Node, first: Node) -> tuple[Node, Node]:
    return ops.where(first, g, 0), ops.where(first, 0, g)


def _rounded_division(name: str, of_floats: Callable[[Any, Any, Any], Any]) -> Lower:
    """Integers by the target's own instruction, floats by floor(x / y)."""

    def lower(e: Any, i: Any, x: Any, y: Any) -> Any:
        if x.dtype in INTEGERS:
            return e.binary(name, x(*i), y(*i))
        return of_floats(x(*i), y(*i), e.unary("floor", e.binary("div", x(*i), y(*i))))

    return lower


floordiv = broadcasting(
    Op(
        "floordiv",
        kind="elementwise",
        infer=_alike("floordiv", NUMBERS),
        numpy=np.floor_divide,
        lower=_rounded_division("floordiv", lambda x, y, quotient: quotient),
        samples=elementwise(2, low=1, high=9, dtypes=("f64", "i32")),
        doc="floor(x / y)",
    )
)
mod = broadcasting(
    Op(
        "mod",
        kind="elementwise",
        infer=_alike("mod", NUMBERS),
        numpy=np.mod,
        grad=lambda g, z, x, y: (g, -g * ops.floordiv(x, y)),
        lower=_rounded_division("floormod", lambda x, y, quotient: x - quotient * y),
        samples=elementwise(2, low=1, high=9, dtypes=("f64", "i32")),
        doc="x - floor(x / y) · y: the remainder, of the sign of y",
    )
)


# -- three sources


def _where_type(c: TensorType, x: TensorType, y: TensorType) -> TensorType:
    if c.dtype != "bool":
        raise wrong_dtype("where", "the condition is bool", c, help="compare first: where(ops.not_equal(c, 0), x, y)")
    equal_types("where", x, y)
    equal_types("where", TensorType(c.shape, x.dtype), x)
    return x


WHERE = Op(
    "where",
    kind="elementwise",
    infer=_where_type,
    numpy=np.where,
    grad=lambda g, z, c, x, y: (None, ops.where(c, g, 0), ops.where(c, 0, g)),
    lower=lambda e, i, c, x, y: e.where(c(*i), x(*i), y(*i)),
    samples=lambda rng: [
        ((array(rng, shape, "bool"), array(rng, shape, dtype), array(rng, shape, dtype)), {})
        for shape, dtype in (((), "f32"), ((3, 33), "f32"), ((2, 3, 17), "f64"), ((7,), "i32"))
    ],
    doc="x where c, else y",
)


def where(c: Value, x: Value, y: Value) -> Node:
    """x where c, else y; shapes are broadcast."""
    dtype = dtype_of(x, y)
    return WHERE(*broadcast("where", lift(c, "bool"), lift(x, dtype), lift(y, dtype)))
