"""`mx.nd._internal`: the operators behind Python's, by the names that MXNet's graphs know them by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.context import Context
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.mxops import index as mxindex
from gluongraph.mxops import ops as mxops
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd.function import function
from gluongraph.ndarray import NDArray

_BINARY: dict[str, Callable[..., Any]] = {
    "plus": mxops.add,
    "minus": mxops.subtract,
    "mul": mxops.multiply,
    "div": mxops.divide,
    "mod": mxops.modulo,
    "power": mxops.power,
    "maximum": mxops.maximum,
    "minimum": mxops.minimum,
    "equal": mxops.equal,
    "not_equal": mxops.not_equal,
    "greater": mxops.greater,
    "greater_equal": mxops.greater_equal,
    "lesser": mxops.lesser,
    "lesser_equal": mxops.lesser_equal,
    "logical_and": mxops.logical_and,
    "logical_or": mxops.logical_or,
    "logical_xor": mxops.logical_xor,
}


def _with_scalar(build: Callable[..., Any], name: str, swapped: bool) -> Callable[..., Any]:
    def by_number(data: Any, scalar: float = 1.0, is_int: bool = True) -> Any:
        if not is_int and not is_float(data.dtype):
            data = mxops.cast(data, "float64")
        return build(scalar, data) if swapped else build(data, scalar)

    by_number.__doc__ = f"{build.__doc__}, with `scalar` as {'lhs' if swapped else 'rhs'}"
    return function(by_number, name)


for _name, _build in _BINARY.items():
    globals()[f"_{_name}"] = globals()[f"_{_name.title()}"] = function(_build, f"_{_name}")
    globals()[f"_{_name}_scalar"] = _with_scalar(_build, f"_{_name}_scalar", swapped=False)
    if _name in ("minus", "div", "mod", "power"):
        globals()[f"_r{_name}_scalar"] = _with_scalar(_build, f"_r{_name}_scalar", swapped=True)

_copy = function(mxops.identity, "_copy")
_grad_add = function(mxops.add, "_grad_add")
_backward_gather_nd = function(mxindex.scatter_nd, "_backward_gather_nd")


Bounds = Sequence[int | None]


def _cropped(lhs: Node, value: Any, begin: Bounds, end: Bounds, step: Bounds = ()) -> Node:
    """lhs with `value` in the place of lhs[begin:end:step]"""
    steps = step or (None,) * len(begin)
    key = tuple(slice(b, e, s) for b, e, s in zip(begin, end, steps, strict=True))
    return mxshapes.index_put(lhs, value, plan=mxshapes.index_plan(key, lhs.shape)[0])


def _cropped_number(data: Node, scalar: float = 0.0, begin: Bounds = (), end: Bounds = (), step: Bounds = ()) -> Node:
    """data with a number in the place of data[begin:end:step]"""
    return _cropped(data, scalar, begin, end, step)


_crop_assign = _slice_assign = function(_cropped, "_crop_assign")
_crop_assign_scalar = _slice_assign_scalar = function(_cropped_number, "_crop_assign_scalar")


def _sample_unique_zipfian(range_max: int, shape: Sequence[int], ctx: Context | None = None) -> tuple[NDArray, NDArray]:
    """Classes (N, count) drawn with P(k) = log((k + 2) / (k + 1)) / log(range_max + 1), those of a row all different,
    and how many draws each row took (N,). Eager only.
    """
    rows, count = shape
    made, tries = np.zeros((rows, count), np.int64), np.zeros(rows, np.int64)
    for row in range(rows):
        found: dict[int, None] = {}
        while len(found) < count:
            drawn = random.uniform(0.0, math.log(range_max + 1), shape=(2 * count,), dtype="float64", ctx=ctx).asnumpy()
            for k in (np.exp(drawn).astype(np.int64) - 1) % range_max:
                if len(found) == count:
                    break
                tries[row] += 1
                found[int(k)] = None
        made[row] = list(found)
    return NDArray(made), NDArray(tries)
