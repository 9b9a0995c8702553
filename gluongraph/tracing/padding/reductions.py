"""Rules of reductions, softmax and sorting: padding counts as the neutral element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import Layout, is_fixed
from gluongraph.tracing.padding.masking import Masking, Value, kept
from gluongraph.tracing.padding.table import rule


def lowest(dtype: str) -> float | int:
    """The smallest finite number."""
    found = (
        np.finfo("f4" if dtype == "bf16" else numpy_dtype(dtype)) if is_float(dtype) else np.iinfo(numpy_dtype(dtype))
    )
    return float(found.min) * (0.99 if dtype == "bf16" else 1) if is_float(dtype) else int(found.min)


def _largest(dtype: str) -> float | int:
    return -lowest(dtype) if is_float(dtype) else int(np.iinfo(numpy_dtype(dtype)).max)


def _unlikely(dtype: str) -> float | int:
    """A number whose exponential is 0 beside that of any other; its own differences are finite."""
    return -3e4 if dtype == "f16" else -1e30


def _neutral(value: float | int) -> Callable[[str], float | int]:
    return lambda dtype: value


# What a masked element is, by the op.
NEUTRAL: dict[str, Callable[[str], float | int]] = {
    **{"sum": _neutral(0), "prod": _neutral(1), "max": lowest, "min": _largest, "amax": lowest, "amin": _largest},
    **{"argmax": lowest, "argmin": _largest, "argsort": _largest, "softmax": _unlikely, "log_softmax": _unlikely},
}


def _masked(m: Masking, a: Node, x: Value, axes: tuple[int, ...]) -> Value:
    """The source, with the neutral element of the op along these axes."""
    return Value(m.filled(x, axes, NEUTRAL[a.op.name](a.src[0].dtype)), x.layout)


@rule("sum", "prod", "max", "min", "amax", "amin")
def _reduce(m: Masking, a: Node, b: Node, x: Value) -> Value:
    axes = a.attrs["axes"]
    return Value(kept(a, _masked(m, a, x, axes)), _reduced(x.layout, axes, a.attrs["keepdims"]))


def _reduced(layout: Layout, axes: tuple[int, ...], keepdims: bool) -> Layout:
    return tuple(() if k in axes else axis for k, axis in enumerate(layout) if keepdims or k not in axes)


@rule("argmax", "argmin")
def _argmax(m: Masking, a: Node, b: Node, x: Value) -> Value:
    axis = a.attrs["axis"]
    m.leading(x.layout[axis], "it numbers the elements")
    return Value(kept(a, _masked(m, a, x, (axis,))), _reduced(x.layout, (axis,), a.attrs["keepdims"]))


@rule("argsort")
def _argsort(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """Padding comes last: it is the largest, and behind others that are as large. NaN would come behind it."""
    axis = a.attrs["axis"]
    m.leading(x.layout[axis], "it numbers the elements")
    masked = x if is_fixed(x.layout[axis]) else _masked(m, a, x, (axis,))
    return Value(kept(a, masked), x.layout)


@rule("softmax", "log_softmax")
def _softmax(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """Padding has no share. It is told as 1, or as the logarithm of that: 0 would make an infinity of a logarithm, and
    of its gradient a NaN, though nothing reads it."""
    axis = (a.attrs["axis"],)
    y = Value(kept(a, _masked(m, a, x, axis)), x.layout)
    return Value(m.filled(y, axis, 1 if a.op.name == "softmax" else 0), x.layout)


@rule("cumsum")
def _cumsum(m: Masking, a: Node, b: Node, x: Value) -> Value:
    """Valid elements come before padding, which therefore counts in no sum that is valid; else it counts as 0."""
    axis = a.attrs["axis"]
    inner = not is_fixed(m.extents.named(x.layout[axis])[1:])
    source = Value(m.filled(x, (axis,), 0), x.layout) if inner else x
    return Value(kept(a, source), x.layout)
