"""Arithmetic on elements, comparisons, and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import ops as mxops
from gluongraph.onnx.export.rules.terms import Made, Term, each, ints, term
from gluongraph.onnx.export.rules.view import RULES, View, rule
from gluongraph.onnx.format.model import NUMBERS

# Ops that ONNX has under another name, with the same meaning.
PLAIN: Mapping[str, str] = {
    "abs": "Abs", "add": "Add", "ceil": "Ceil", "cos": "Cos", "div": "Div", "equal": "Equal", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "greater": "Greater", "greater_equal": "GreaterOrEqual", "isnan": "IsNaN",
    "less": "Less", "less_equal": "LessOrEqual", "log": "Log", "maximum": "Max", "minimum": "Min", "mul": "Mul",
    "neg": "Neg", "pow": "Pow", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh", "where": "Where",
}  # fmt: skip
LOGIC = {"logical_and": "And", "logical_not": "Not", "logical_or": "Or"}
FOLDS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin", "mean": "ReduceMean"}


def one(value: float, like: Node) -> np.ndarray[Any, Any]:
    """A number in the element type of a node."""
    return np.asarray(value, numpy_dtype(like.dtype))


def plain(view: View, n: Node) -> Made | None:
    """The operator of the same meaning."""
    return each(PLAIN[n.op.name], *n.src)


RULES.update(dict.fromkeys(PLAIN, plain))


@rule("stop_gradient", "keep_precision", "depends_on")
def itself(view: View, n: Node) -> Made | None:
    """What matters to gradients or kernels only."""
    return n.src[0]


@rule("output")
def output(view: View, n: Node) -> Made | None:
    """The value; its gradient is of no concern."""
    return n.src[1]


@rule("cast")
def cast(view: View, n: Node) -> Made | None:
    return each("Cast", n.src[0], to=NUMBERS[n.dtype])


@rule("rsqrt")
def rsqrt(view: View, n: Node) -> Made | None:
    return each("Reciprocal", each("Sqrt", n.src[0]))


@rule("log1p")
def log1p(view: View, n: Node) -> Made | None:
    return each("Log", each("Add", n.src[0], one(1, n)))


@rule("expm1")
def expm1(view: View, n: Node) -> Made | None:
    return each("Sub", each("Exp", n.src[0]), one(1, n))


@rule("normal_cdf")
def normal_cdf(view: View, n: Node) -> Made | None:
    """(1 + erf(x / √2)) / 2"""
    erf = each("Erf", each("Mul", n.src[0], one(math.sqrt(0.5), n)))
    return each("Mul", each("Add", erf, one(1, n)), one(0.5, n))


@rule("normal_pdf")
def normal_pdf(view: View, n: Node) -> Made | None:
    bell = each("Exp", each("Mul", each("Mul", n.src[0], n.src[0]), one(-0.5, n)))
    return each("Mul", bell, one(1 / math.sqrt(2 * math.pi), n))


@rule("isfinite")
def isfinite(view: View, n: Node) -> Made | None:
    return each("Not", each("Or", each("IsInf", n.src[0]), each("IsNaN", n.src[0])))


@rule(*LOGIC)
def logic(view: View, n: Node) -> Made | None:
    """On bools; of numbers all but 0 is true."""
    bools = (x if x.dtype == "bool" else each("Cast", x, to=NUMBERS["bool"]) for x in n.src)
    return each(LOGIC[n.op.name], *bools)


@rule("not_equal")
def not_equal(view: View, n: Node) -> Made | None:
    return each("Not", each("Equal", *n.src))


@rule("mod")
def mod(view: View, n: Node) -> Made | None:
    """Of the sign of the divisor; ONNX has that of floats for the sign of the dividend only."""
    if not is_float(n.dtype):
        return each("Mod", *n.src)
    a, b = n.src
    return each("Sub", a, each("Mul", each("Floor", each("Div", a, b)), b))


@rule("floordiv")
def floordiv(view: View, n: Node) -> Made | None:
    """Downwards; ONNX divides integers towards zero."""
    a, b = n.src
    if is_float(n.dtype):
        return each("Floor", each("Div", a, b))
    return each("Div", each("Sub", a, each("Mod", a, b)), b)


@rule("add")
def add(view: View, n: Node) -> Made | None:
    """A product or a convolution with a bias; softplus; or a sum."""
    from gluongraph.onnx.export.rules.nn import biased

    if (found := biased(view, n)) is not None:
        return found
    first = n.src[0]
    if first.op.name == "where" and is_float(n.dtype) and mxops.softrelu(first.src[1]) is n:
        return each("Softplus", first.src[1])
    return plain(view, n)


@rule("div")
def div(view: View, n: Node) -> Made | None:
    if is_float(n.dtype) and mxops.softsign(n.src[0]) is n:
        return each("Softsign", n.src[0])
    return plain(view, n)


@rule("minimum")
def minimum(view: View, n: Node) -> Made | None:
    """Clip, where a number bounds what another number bounds from below."""
    inner, high = n.src
    if high.op.name != "const" or inner.op.name != "maximum" or inner.src[1].op.name != "const":
        return plain(view, n)
    low = inner.src[1].attrs["value"]
    if not view.inner(inner) or not low <= high.attrs["value"]:
        return plain(view, n)
    return Term("Clip", (inner.src[0], one(low, n), one(high.attrs["value"], n)), {}, broadcasts=True)


@rule("where")
def where(view: View, n: Node) -> Made | None:
    """One of the activations whose slope below 0 differs, or a choice."""
    test, below, x = n.src if n.src[0].op.name == "less_equal" else (n.src[0], *n.src[:0:-1])
    sign = test.op.name in ("less_equal", "greater") and test.src[0] is x and number(test.src[1]) == 0
    if not sign or not is_float(n.dtype) or below.op.name != "mul":
        return plain(view, n)
    inner, slope = below.src
    if inner is x and number(slope) is not None:
        return each("LeakyRelu", x, alpha=number(slope))
    if inner is x:
        return each("PRelu", x, slope)
    if (alpha := number(slope)) is not None and mxlayers.LeakyReLU(x, act_type="elu", slope=alpha) is n:
        return each("Elu", x, alpha=alpha)
    return plain(view, n)


def number(n: Node) -> float | None:
    """The value of a constant."""
    return float(n.attrs["value"]) if n.op.name == "const" else None


@rule("mul")
def mul(view: View, n: Node) -> Made | None:
    """Selu, or a product."""
    inner = n.src[0]
    if inner.op.name == "where" and is_float(n.dtype) and view.inner(inner):
        x = inner.src[2]
        if mxlayers.LeakyReLU(x, act_type="selu") is n:
            return each("Selu", x)
    return plain(view, n)


@rule(*FOLDS)
def fold(view: View, n: Node) -> Made | None:
    """A reduction; over all axes of images that of a whole image."""
    (x,), axes, keep = n.src, n.attrs["axes"], n.attrs["keepdims"]
    if axes == tuple(range(2, x.ty.rank)) and axes and keep and n.op.name in ("mean", "max"):
        return term("GlobalAveragePool" if n.op.name == "mean" else "GlobalMaxPool", x)
    if not axes:
        return x
    return term(FOLDS[n.op.name], x, ints(*axes), keepdims=int(keep))


@rule("cumsum")
def cumsum(view: View, n: Node) -> Made | None:
    return term("CumSum", n.src[0], np.asarray(n.attrs["axis"], np.int64))


@rule("argmax", "argmin")
def extreme(view: View, n: Node) -> Made | None:
    op = "ArgMax" if n.op.name == "argmax" else "ArgMin"
    found = term(op, n.src[0], axis=n.attrs["axis"], keepdims=int(n.attrs["keepdims"]))
    return found if n.dtype == "i64" else term("Cast", found, to=NUMBERS[n.dtype])
