"""Arrays of constants, ranges, and random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.mxops import math as mxmath
from gluongraph.torch.aten.context import Number, OpContext, Value, cast, constant
from gluongraph.torch.aten.table import aten

Ints = Sequence[int]


def _filled(value: int, *names: str) -> None:
    @aten(*(f"{name}.memory_format" if name == "empty" else f"{name}.default" for name in names))
    def filled(at: OpContext, size: Ints, *args: Any, **how: Any) -> Node:
        return ops.full(size, value, at.dtype)

    @aten(*(f"{name}_like.default" for name in names))
    def filled_like(at: OpContext, self: Node, **how: Any) -> Node:
        return ops.full(self.shape, value, at.dtype)

    @aten(*(f"new_{name}.default" for name in names))
    def filled_new(at: OpContext, self: Node, size: Ints, **how: Any) -> Node:
        return ops.full(size, value, at.dtype)


_filled(0, "zeros")
_filled(1, "ones")


@aten("zero.default", "empty_like.default")
def zero_like(at: OpContext, self: Node, **how: Any) -> Node:
    """Zeros, also where PyTorch leaves the elements open"""
    return ops.full(self.shape, 0, at.dtype)


@aten("empty.memory_format", "empty_permuted.default", "empty_strided.default")
def empty(at: OpContext, size: Ints, *args: Any, **how: Any) -> Node:
    """Zeros"""
    return ops.full(size, 0, at.dtype)


@aten("new_empty.default", "new_empty_strided.default")
def new_empty(at: OpContext, self: Node, size: Ints, *args: Any, **how: Any) -> Node:
    """Zeros"""
    return ops.full(size, 0, at.dtype)


@aten("full.default")
def full(at: OpContext, size: Ints, fill_value: Value, **how: Any) -> Node:
    """One number everywhere"""
    return ops.broadcast_to(cast(fill_value, at.dtype), tuple(size))


@aten("full_like.default", "fill.Scalar", "fill.Tensor")
def full_like(at: OpContext, self: Node, fill_value: Value, **how: Any) -> Node:
    """One number everywhere, in the shape of an array"""
    value = cast(fill_value, at.dtype)
    return ops.broadcast_to(ops.reshape(value, ()) if value.ty.rank else value, self.shape)


@aten("new_full.default")
def new_full(at: OpContext, self: Node, size: Ints, fill_value: Value, **how: Any) -> Node:
    """One number everywhere"""
    return ops.broadcast_to(cast(fill_value, at.dtype), tuple(size))


@aten("scalar_tensor.default")
def scalar_tensor(at: OpContext, s: Number, **how: Any) -> Node:
    """A number as an array without axes"""
    return cast(s, at.dtype)


@aten("copy.default")
def copy(at: OpContext, self: Node, src: Node, non_blocking: bool = False) -> Node:
    """The elements of another array, repeated to the shape of this one"""
    return ops.broadcast_to(cast(src, at.dtype), self.shape)


@aten("arange.default", "arange.start", "arange.start_step")
def arange(at: OpContext, *bounds: Number, **how: Any) -> Node:
    """Numbers from start to end, by steps"""
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    found = np.arange(start, end, step).astype(numpy_dtype(at.dtype))
    if start == 0 and step == 1 and not is_float(at.dtype):
        return ops.iota((len(found),), 0, at.dtype)
    return constant(found)


@aten("linspace.default")
def linspace(at: OpContext, start: Number, end: Number, steps: int, **how: Any) -> Node:
    """So many numbers at equal distances"""
    return constant(np.linspace(start, end, steps).astype(numpy_dtype(at.dtype)))


@aten("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace_of(at: OpContext, start: Value, end: Value, steps: int, **how: Any) -> Node:
    """The same between numbers that are arrays without axes"""
    low, high = (ops.reshape(cast(v, at.dtype), ()) for v in (start, end))
    part = constant(np.linspace(0, 1, steps), at.dtype)
    return ops.add(ops.mul(ops.sub(high, low), part), low)


@aten("eye.default", "eye.m")
def eye(at: OpContext, n: int, m: int | None = None, **how: Any) -> Node:
    """1 on the diagonal, 0 elsewhere"""
    shape = (n, n if m is None else m)
    return cast(ops.equal(ops.iota(shape, 0), ops.iota(shape, 1)), at.dtype)


@aten("tril_indices.default", "triu_indices.default")
def triangle_indices(at: OpContext, row: int, col: int, offset: int = 0, **how: Any) -> Node:
    """Rows and columns of a triangle, row by row"""
    find = np.tril_indices if at.name.startswith("tril") else np.triu_indices
    return constant(np.stack(find(row, offset, col)).astype(numpy_dtype(at.dtype)))


# -- random numbers, of the project's generator


def _drawn(name: str, draw: Any) -> None:
    @aten(f"{name}.default")
    def random(at: OpContext, size: Ints, *args: Any, **how: Any) -> Node:
        return _random(at, draw, size)

    @aten(f"{name}_like.default")
    def random_like(at: OpContext, self: Node, *args: Any, **how: Any) -> Node:
        return _random(at, draw, self.shape)


def _random(at: OpContext, draw: Any, shape: Ints) -> Node:
    state, number = at.draw()
    if at.dtype not in ("f32", "f64"):
        return cast(draw(state, tuple(shape), draw=number), at.dtype)
    made: Node = draw(state, tuple(shape), draw=number, dtype=at.dtype)
    return made


_drawn("rand", ops.uniform)
_drawn("randn", ops.normal)


@aten("uniform.default")
def uniform(at: OpContext, self: Node, start: float = 0.0, to: float = 1.0, **how: Any) -> Node:
    """Uniform between two numbers"""
    return _random(at, ops.uniform, self.shape) * (to - start) + start


@aten("normal_functional.default")
def normal(at: OpContext, self: Node, mean: float = 0.0, std: float = 1.0, **how: Any) -> Node:
    """Normal, of this mean and deviation"""
    return _random(at, ops.normal, self.shape) * std + mean


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal_of(at: OpContext, mean: Value, std: Value = 1.0, size: Ints | None = None, **how: Any) -> Node:
    """Normal, of means and deviations that may be arrays"""
    shape = tuple(size or ()) or np.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Node)))
    return ops.add(ops.mul(_random(at, ops.normal, shape), cast(std, at.dtype)), cast(mean, at.dtype))


@aten("bernoulli.default")
def bernoulli(at: OpContext, self: Node, **how: Any) -> Node:
    """1 with the probability that an element is, else 0"""
    state, number = at.draw()
    return cast(ops.less(ops.uniform(state, self.shape, draw=number), cast(self, "f32")), at.dtype)


@aten("bernoulli.Tensor")
def bernoulli_of(at: OpContext, self: Node, p: Node, **how: Any) -> Node:
    """1 with the probability that an element of p is, else 0"""
    return bernoulli(at, ops.broadcast_to(p, self.shape))


@aten("bernoulli.p")
def bernoulli_p(at: OpContext, self: Node, p: float = 0.5, **how: Any) -> Node:
    """1 with this probability, else 0"""
    state, number = at.draw()
    return cast(ops.less(ops.uniform(state, self.shape, draw=number), p), at.dtype)


@aten("randint.default", "randint.low")
def randint(at: OpContext, *args: Any, **how: Any) -> Node:
    """Whole numbers from low to below high"""
    low, high, size = (0, *args[:2]) if len(args) == 2 else args[:3]
    return cast(ops.floor(_random_f64(at, size) * float(high - low)) + float(low), at.dtype)


@aten("randint_like.default", "randint_like.low_dtype")
def randint_like(at: OpContext, self: Node, *bounds: int, **how: Any) -> Node:
    """Whole numbers from low to below high, in the shape of an array"""
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    return cast(ops.floor(_random_f64(at, self.shape) * float(high - low)) + float(low), at.dtype)


def _random_f64(at: OpContext, size: Ints) -> Node:
    state, number = at.draw()
    return ops.uniform(state, tuple(size), draw=number, dtype="f64")


@aten("randperm.default")
def randperm(at: OpContext, n: int, **how: Any) -> Node:
    """The numbers below n in a random order"""
    return cast(ops.argsort(_random_f64(at, (n,)), 0), at.dtype)


@aten("exponential.default")
def exponential(at: OpContext, self: Node, lambd: float = 1.0, **how: Any) -> Node:
    """Exponential, of this rate"""
    return ops.log1p(ops.neg(_random(at, ops.uniform, self.shape))) * (-1.0 / lambd)


@aten("cauchy.default")
def cauchy(at: OpContext, self: Node, median: float = 0.0, sigma: float = 1.0, **how: Any) -> Node:
    """Cauchy's distribution"""
    x = _random(at, ops.uniform, self.shape)
    return mxmath.tan((x - 0.5) * math.pi) * sigma + median


@aten("log_normal.default")
def log_normal(at: OpContext, self: Node, mean: float = 1.0, std: float = 2.0, **how: Any) -> Node:
    """The exponential of normal numbers"""
    return ops.exp(_random(at, ops.normal, self.shape) * std + mean)


@aten("geometric.default")
def geometric(at: OpContext, self: Node, p: float, **how: Any) -> Node:
    """How many trials of this probability are needed for one success"""
    x = ops.log1p(ops.neg(_random_f64(at, self.shape)))
    return cast(ops.maximum(ops.ceil(x / math.log1p(-p)), 1.0), at.dtype)


@aten("multinomial.default")
def multinomial(at: OpContext, self: Node, num_samples: int, replacement: bool = False, **how: Any) -> Node:
    """Indices, each as often as its weight says; each once without replacement (Efraimidis and Spirakis 2006)"""
    *lead, n = self.shape
    weights = cast(self, "f64")
    if replacement:
        ends = ops.cumsum(weights, len(lead))
        drawn = ops.mul(_random_f64(at, (*lead, num_samples)), ops.part(ends, len(lead), n - 1, n))
        below = ops.less_equal(ops.expand_dims(ends, -2), ops.expand_dims(drawn, -1))
        return ops.sum(cast(below, "i64"), -1)
    wait = ops.div(ops.neg(ops.log1p(ops.neg(_random_f64(at, self.shape)))), weights)
    return ops.part(cast(ops.argsort(wait, len(lead)), at.dtype), len(lead), 0, num_samples)
