"""Arithmetic, elementary functions, activations: elementwise, broadcast as in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import math as mxmath
from gluongraph.mxops import ops as mxops
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import operator, row

# -- one source


def _unary(name: str, build: Callable[[Node], Node]) -> None:
    row(name, lambda at, x: build(x))


def _wide(build: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """A formula of several steps on 16-bit floats goes through float32, and is rounded once."""
    return lambda x: ops.cast(build(ops.cast(x, "f32")), x.dtype) if x.dtype in ("f16", "bf16") else build(x)


_ONE: dict[str, Callable[[Any], Any]] = {
    "Abs": lambda x: x if x.dtype[0] == "u" else ops.abs(x),
    "Acos": _wide(mxmath.arccos),
    "Acosh": _wide(mxmath.arccosh),
    "Asin": _wide(mxmath.arcsin),
    "Asinh": _wide(mxmath.arcsinh),
    "Atan": _wide(mxmath.arctan),
    "Atanh": _wide(mxmath.arctanh),
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": _wide(mxmath.cosh),
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "HardSwish": lambda x: ops.mul(x, within(ops.add(ops.mul(x, 1.0 / 6.0), 0.5), 0.0, 1.0)),
    "Log": ops.log,
    "Mish": _wide(lambda x: ops.mul(x, ops.tanh(mxops.softrelu(x)))),
    "Neg": ops.neg,
    "Reciprocal": lambda x: ops.div(1.0, x),
    "Relu": ops.relu,
    "Round": ops.round,
    "Sigmoid": ops.sigmoid,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": _wide(mxmath.sinh),
    "Softplus": _wide(mxops.softrelu),
    "Softsign": mxops.softsign,
    "Sqrt": ops.sqrt,
    "Tan": _wide(mxmath.tan),
    "Tanh": ops.tanh,
}
for _name, _build in _ONE.items():
    _unary(_name, _build)


@operator("Identity")
def identity(at: NodeContext, x: Any) -> list[Any]:
    """x; without its gradient, where PyTorch has detached it"""
    return [ops.stop_gradient(x) if isinstance(x, Node) and at.from_torch("aten.detach") else x]


def within(x: Node, low: Any, high: Any) -> Node:
    """x held between two numbers; at and beyond them it has no gradient, as in PyTorch's activations."""
    return ops.where(ops.less_equal(x, low), low, ops.where(ops.greater_equal(x, high), high, x))


# What PyTorch exports as Clip beside clamp, whose gradient goes through where x is a bound.
_OPEN = ("aten.hardtanh", "aten.relu6")


@operator("Celu", since=12)
def celu(at: NodeContext, x: Node, *, alpha: float = 1.0) -> Node:
    """max(0, x) + min(0, alpha (e^(x / alpha) - 1))"""
    below = ops.mul(ops.expm1(ops.minimum(ops.mul(x, 1.0 / alpha), 0.0)), alpha)
    return ops.add(ops.relu(x), below)


@operator("Elu")
def elu(at: NodeContext, x: Node, *, alpha: float = 1.0) -> Node:
    """x, below 0 alpha (e^x - 1)"""
    below = ops.mul(ops.expm1(ops.minimum(x, 0.0)), alpha)
    return ops.where(ops.greater(x, 0.0), x, below)


@operator("Selu")
def selu(at: NodeContext, x: Node, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Node:
    """gamma x, below 0 gamma alpha (e^x - 1)"""
    return ops.mul(elu(at, x, alpha=alpha), gamma)


@operator("LeakyRelu")
def leaky_relu(at: NodeContext, x: Node, *, alpha: float = 0.01) -> Node:
    """x, below 0 alpha x"""
    return leaky(x, alpha)


def leaky(x: Node, slope: Any) -> Node:
    """x, and times the slope where it is not above 0: the gradient at 0 is the slope, as in PyTorch."""
    return ops.where(ops.greater(x, 0), x, ops.mul(x, slope))


@operator("ThresholdedRelu", since=10)
def thresholded_relu(at: NodeContext, x: Node, *, alpha: float = 1.0) -> Node:
    """x where it is above alpha, else 0"""
    return ops.where(ops.greater(x, alpha), x, 0.0)


@operator("HardSigmoid")
def hard_sigmoid(at: NodeContext, x: Node, *, alpha: float = 0.2, beta: float = 0.5) -> Node:
    """alpha x + beta, held between 0 and 1"""
    return within(ops.add(ops.mul(x, alpha), beta), 0.0, 1.0)


@operator("Shrink", since=9)
def shrink(at: NodeContext, x: Node, *, bias: float = 0.0, lambd: float = 0.5) -> Node:
    """x moved towards 0 by bias where it is further away than lambd, else 0"""
    y, dtype = (ops.cast(x, "f32"), x.dtype) if not is_float(x.dtype) else (x, x.dtype)
    above, below = ops.where(ops.greater(y, lambd), ops.sub(y, bias), 0.0), ops.add(y, bias)
    return ops.cast(ops.where(ops.less(y, -lambd), below, above), dtype)


@operator("Gelu", since=20)
def gelu(at: NodeContext, x: Node, *, approximate: str = "none") -> Node:
    """x Φ(x), exact or by tanh"""
    return ops.gelu(x, approximate=at.choose("approximate", approximate, "none", "tanh") == "tanh")


@operator("Swish", since=24)
def swish(at: NodeContext, x: Node, *, alpha: float = 1.0) -> Node:
    """x sigmoid(alpha x)"""
    return ops.mul(x, ops.sigmoid(x if alpha == 1.0 else ops.mul(x, alpha)))


@operator("PRelu")
def prelu(at: NodeContext, x: Node, slope: Node) -> Node:
    """x, below 0 slope x"""
    return leaky(x, slope)


@operator("Clip", since=6)
def clip_by_attributes(at: NodeContext, x: Node, *, min: float = -math.inf, max: float = math.inf) -> Node:
    """x held between two numbers"""
    return ops.minimum(ops.maximum(x, min), max)


@operator("Clip", since=11)
def clip(at: NodeContext, x: Node, min: Node | None = None, max: Node | None = None) -> Node:
    """x held between two numbers; the upper one holds where they cross"""
    if at.from_torch(*_OPEN) and min is not None and max is not None:
        return within(x, min, max)
    x = x if min is None else ops.maximum(x, min)
    return x if max is None else ops.minimum(x, max)


# -- two sources

_TWO: dict[str, Callable[[Any, Any], Any]] = {"Add": ops.add, "Sub": ops.sub, "Mul": ops.mul}
for _name, _both in _TWO.items():
    row(_name, partial(lambda both, at, a, b: both(a, b), _both))


@operator("Div")
def div(at: NodeContext, a: Node, b: Node) -> Node:
    """a / b; of integers, rounded towards zero"""
    return ops.div(a, b) if is_float(a.dtype) else _truncated(a, b)


def _truncated(a: Node, b: Node) -> Node:
    if a.dtype[0] == "u":
        return ops.floordiv(a, b)
    below = ops.floordiv(a, b)
    inexact = ops.not_equal(ops.mul(below, b), a)
    opposite = ops.not_equal(ops.less(a, 0), ops.less(b, 0))
    return ops.add(below, ops.cast(ops.logical_and(inexact, opposite), a.dtype))


@operator("Pow")
def power(at: NodeContext, a: Node, b: Node) -> Node:
    """a to the power b, of a's element type"""
    if b.op.name == "const" and is_float(a.dtype):
        return _to_the(a, float(b.attrs["value"]), ops.broadcast_to(b, b.shape).shape)
    if not is_float(a.dtype) and is_float(b.dtype):
        return ops.cast(ops.pow(ops.cast(a, "f32"), ops.cast(b, "f32")), a.dtype)
    return ops.pow(a, ops.cast(b, a.dtype))


def _to_the(a: Node, exponent: float, shape: tuple[int, ...]) -> Node:
    """A power of which the exponent is known; squares and roots need no logarithm, and are exact."""
    if len(shape) > a.ty.rank or any(n > 1 for n in shape):
        return ops.pow(a, ops.const(exponent, a.dtype, shape))
    simple: dict[float, Callable[[], Node]] = {
        0.5: lambda: ops.sqrt(a),
        1.0: lambda: a,
        2.0: lambda: ops.mul(a, a),
        3.0: lambda: ops.mul(ops.mul(a, a), a),
        -1.0: lambda: ops.div(1.0, a),
    }
    return simple[exponent]() if exponent in simple else ops.pow(a, exponent)


@operator("Mod", since=10)
def mod(at: NodeContext, a: Node, b: Node, *, fmod: int = 0) -> Node:
    """The remainder of the sign of b; with fmod of a"""
    if not fmod:
        return _wide_mod(a, b)
    if not is_float(a.dtype):
        return ops.sub(a, ops.mul(_truncated(a, b), b))
    b = ops.abs(b)  # not of |a|, which has no gradient at 0
    return ops.where(ops.less(a, 0.0), ops.neg(_wide_mod(ops.neg(a), b)), _wide_mod(a, b))


def _wide_mod(a: Node, b: Node) -> Node:
    if a.dtype in ("f16", "bf16"):
        return ops.cast(ops.mod(ops.cast(a, "f32"), ops.cast(b, "f32")), a.dtype)
    return ops.mod(a, b)


# -- any number of sources

# What PyTorch exports as Max and Min beside maximum and minimum: the gradient of equal ones goes to the first, x.
_CLAMPS = ("aten.clamp", "aten.clamp_min", "aten.clamp_max")


@operator("Sum")
def sum(at: NodeContext, *xs: Node) -> Node:
    """The sum of all arrays"""
    return reduce(ops.add, xs)


@operator("Mean")
def mean(at: NodeContext, *xs: Node) -> Node:
    """The mean of all arrays"""
    return ops.mul(reduce(ops.add, xs), 1.0 / len(xs))


@operator("Max")
def max(at: NodeContext, *xs: Node) -> Node:
    """The largest of all arrays, elementwise; of two that are equal each gets half of the gradient"""
    return reduce(ops.maximum if at.from_torch(*_CLAMPS) else ops.maximum_even, xs)


@operator("Min")
def min(at: NodeContext, *xs: Node) -> Node:
    """The smallest of all arrays, elementwise; of two that are equal each gets half of the gradient"""
    return reduce(ops.minimum if at.from_torch(*_CLAMPS) else ops.minimum_even, xs)


# -- products


@operator("MatMul")
def matmul(at: NodeContext, a: Node, b: Node) -> Node:
    """The matrix product, by numpy's rules for vectors and leading axes"""
    left, right = a.ty.rank == 1, b.ty.rank == 1
    if left:
        a = ops.reshape(a, (1, a.shape[0]))
    if right:
        b = ops.reshape(b, (b.shape[0], 1))
    dtype = a.dtype
    if not is_float(dtype):  # exact below 2^53
        a, b = ops.cast(a, "f64"), ops.cast(b, "f64")
    y = ops.cast(mxlayers.matmul(a, b), dtype)
    shape = y.shape[: y.ty.rank - 2] + (() if left else (y.shape[-2],)) + (() if right else (y.shape[-1],))
    return ops.reshape(y, shape)


@operator("Gemm")
def gemm(
    at: NodeContext,
    a: Node,
    b: Node,
    c: Node | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Node:
    """alpha a b + beta c, with a and b transposed if so said"""
    y = ops.matmul(a, b, ta=bool(transA), tb=bool(transB))
    y = y if alpha == 1.0 else ops.mul(y, alpha)
    if c is None or beta == 0.0:
        return y
    return ops.add(y, c if beta == 1.0 else ops.mul(c, beta))


@operator("Einsum", since=12)
def einsum(at: NodeContext, *xs: Node, equation: str) -> Node:
    """Einstein's sum: products over letters that are shared, sums over those that the result lacks"""
    terms, _, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != len(xs):
        raise at.wrong(f"equation {equation!r} is of {len(operands)} arrays, not {len(xs)}")
    operands = [_spelled(at, term, x.ty.rank) for term, x in zip(operands, xs, strict=True)]
    if "->" not in equation:
        letters = "".join(operands)
        result = "".join(sorted(c for c in set(letters) if c.isupper() or letters.count(c) == 1 or c in DOTS))
    most = _dots(operands)
    result = result.replace("...", most)
    found = [_diagonal(x, term) for term, x in zip(operands, xs, strict=True)]
    while len(found) > 1:
        (x, a), (y, b), *rest = found
        others = set(result).union(*(t for _, t in rest)) if rest else set(result)
        found = [_contracted(x, a, y, b, others), *rest]
    ((x, term),) = found
    gone = tuple(k for k, c in enumerate(term) if c not in result)
    x, term = (ops.sum(x, gone) if gone else x), "".join(c for c in term if c in result)
    if sorted(term) != sorted(result):
        raise at.wrong(f"equation {equation!r} asks for letters that no array has")
    return ops.transpose(x, tuple(term.index(c) for c in result)) if term else x


DOTS = "αβγδεζηθ"  # the axes that "..." stands for, the last one last


def _spelled(at: NodeContext, term: str, rank: int) -> str:
    if "..." in term:
        more = rank - len(term) + 3
        if not 0 <= more <= len(DOTS):
            raise at.wrong(f"the term {term!r} does not fit {rank} axes")
        term = term.replace("...", DOTS[len(DOTS) - more :])
    if len(term) != rank:
        raise at.wrong(f"the term {term!r} does not fit {rank} axes")
    return term


def _dots(terms: list[str]) -> str:
    """What "..." of the result stands for: the longest of all."""
    return reduce(lambda a, b: a if len(a) >= len(b) else b, ("".join(c for c in t if c in DOTS) for t in terms))


def _diagonal(x: Node, term: str) -> tuple[Node, str]:
    """Letters that stand twice in one term: the diagonal."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i, j = term.index(c), term.rindex(c)
            n = x.shape[i]
            last = [k for k in range(x.ty.rank) if k not in (i, j)] + [i, j]
            x = ops.transpose(x, tuple(last))
            flat = ops.reshape(x, (*x.shape[:-2], n * n))
            x = ops.take(flat, ops.mul(ops.iota((n,)), n + 1), flat.ty.rank - 1)
            term = "".join(term[k] for k in last[:-2]) + c
    return x, term


def _contracted(x: Node, a: str, y: Node, b: str, kept: set[str]) -> tuple[Node, str]:
    """Two arrays as one product of matrices: batch axes that both have and that stay, rows, columns, and the sum."""
    x, a = _summed(x, a, set(b) | kept)
    y, b = _summed(y, b, set(a) | kept)
    batch = [c for c in a if c in b and c in kept]
    inner = [c for c in a if c in b and c not in kept]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    extent = dict(zip(a, x.shape, strict=True))
    for c, n in zip(b, y.shape, strict=True):
        extent[c] = n if extent.get(c, 1) == 1 else extent[c]
    m, k, n = (math.prod(extent[c] for c in group) for group in (rows, inner, columns))
    lead = tuple(extent[c] for c in batch)
    left = ops.transpose(_spread(x, a, extent), tuple(a.index(c) for c in (*batch, *rows, *inner)))
    right = ops.transpose(_spread(y, b, extent), tuple(b.index(c) for c in (*batch, *inner, *columns)))
    left, right = ops.reshape(left, (*lead, m, k)), ops.reshape(right, (*lead, k, n))
    term = "".join((*batch, *rows, *columns))
    return ops.reshape(ops.matmul(left, right), tuple(extent[c] for c in term)), term


def _summed(x: Node, term: str, needed: set[str]) -> tuple[Node, str]:
    gone = tuple(k for k, c in enumerate(term) if c not in needed)
    return (ops.sum(x, gone) if gone else x), "".join(c for c in term if c in needed)


def _spread(x: Node, term: str, extent: dict[str, int]) -> Node:
    return ops.broadcast_to(x, tuple(extent[c] for c in term))


@operator("CumSum", since=11, static=("axis",))
def cumsum(at: NodeContext, x: Node, axis: Node, *, exclusive: int = 0, reverse: int = 0) -> Node:
    """The running sum along an axis, without the element itself if exclusive, from the end if reverse"""
    (a,) = at.axes((int(at.number(axis, "axis")),), x.ty.rank)
    return _running(ops.cumsum, x, a, 0, bool(exclusive), bool(reverse))


def _running(build: Any, x: Node, axis: int, start: int, exclusive: bool, reverse: bool) -> Node:
    x = ops.flip(x, axis) if reverse else x
    if exclusive:
        n = x.shape[axis]
        one = tuple(1 if a == axis else 0 for a in range(x.ty.rank))
        x = ops.pad(ops.part(x, axis, 0, n - 1), one, (0,) * x.ty.rank, start)
    y: Node = build(x, axis)
    return ops.flip(y, axis) if reverse else y


@operator("CumProd", since=26, static=("axis",))
def cumprod(at: NodeContext, x: Node, axis: Node, *, exclusive: int = 0, reverse: int = 0) -> Node:
    """The running product along an axis, by doubling: as many products as the extent has binary digits"""
    (a,) = at.axes((int(at.number(axis, "axis")),), x.ty.rank)

    def product(x: Node, axis: int) -> Node:
        reach = 1
        while reach < x.shape[axis]:
            ahead = tuple(reach if k == axis else 0 for k in range(x.ty.rank))
            shifted = ops.pad(ops.part(x, axis, 0, x.shape[axis] - reach), ahead, (0,) * x.ty.rank, 1)
            x, reach = ops.mul(x, shifted), reach * 2
        return x

    return _running(product, x, a, 1, bool(exclusive), bool(reverse))


@operator("Det", since=11)
def det(at: NodeContext, x: Node) -> Node:
    """The determinant of matrices"""
    sign, log = ops.slogdet(x)
    return ops.mul(sign, ops.exp(log))
