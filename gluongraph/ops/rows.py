"""Rows of a large array: the first occurrence of each index, and writing only the rows that are indexed."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.checks import INTEGERS, NUMBERS, misfit, need, wrong_dtype
from gluongraph.ops.samples import each


def _first_type(rows: TensorType, size: int) -> TensorType:
    need("first_of", INTEGERS - {"u64"}, rows)
    if rows.rank != 1:
        raise misfit("first_of", "needs a list of row numbers", rows)
    return TensorType(rows.shape, "i32")


def _first(rows: Any, size: int) -> Any:
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first.astype(np.int32)[which]


def _first_lower(e: Any, i: Any, rows: Any, size: int) -> Any:
    (count,) = rows.shape

    def element(k: Any) -> Any:
        return e.where(e.binary("equal", rows(k), rows(*i)), e.cast(k, "i32"), e.const(count, "i32"))

    return e.reduce("min", (count,), element, "i32")


FIRST_OF = Op(
    "first_of",
    kind="index",
    infer=_first_type,
    numpy=_first,
    lower=_first_lower,
    samples=each(((((9,), "i32", 0, 4),), {"size": 5}), ((((33,), "i64", 0, 9),), {"size": 10}), dtypes=("f32",)),
    flops=lambda y, rows, size: rows.size,
    doc="For each row number the position of its first occurrence; all are from 0 to size - 1.",
)


def first_of(rows: Node, size: int) -> Node:
    """For each row number the position of its first occurrence; all are from 0 to `size` - 1."""
    return FIRST_OF(rows, size=size)


def _put_type(x: TensorType, rows: TensorType, values: TensorType) -> TensorType:
    need("put_rows", INTEGERS - {"u64"}, rows)
    need("put_rows", NUMBERS, x)
    if rows.rank != 1 or x.rank == 0 or values.shape != (*rows.shape, *x.shape[1:]):
        raise misfit("put_rows", "needs one row of the first for each number", x, rows, values)
    if x.dtype != values.dtype:
        raise wrong_dtype("put_rows", "dtypes differ", x, values, help="cast the rows")
    return x


def _put(x: Any, rows: Any, values: Any) -> Any:
    inside = (rows >= 0) & (rows < len(x))
    made = x.copy()
    made[rows[inside]] = values[inside]
    return made


def _put_lower(e: Any, i: Any, x: Any, rows: Any, values: Any) -> Any:
    """Every element sums over all row numbers; at most one is its own, and adds the difference to the old value."""
    (count,) = rows.shape
    row, *rest = i

    def element(k: Any) -> Any:
        hit = e.binary("equal", e.cast(rows(k), "i32"), row)
        moved = e.where(hit, values(k, *rest) - x(*i), e.const(0, x.dtype))
        return moved + e.where(e.binary("equal", k, 0), x(*i), e.const(0, x.dtype))

    return e.reduce("sum", (count,), element, x.dtype) if count else x(*i)


def _samples(rng: np.random.Generator) -> Any:
    for dtype in (np.float32, np.float64):
        for shape, rows in (((9, 33), (4, -1, 0, 9, 7)), ((5, 2, 3), (4,)), ((6,), (1, 5, -1))):
            values = rng.normal(size=(len(rows), *shape[1:])).astype(dtype)
            yield (rng.normal(size=shape).astype(dtype), np.array(rows, np.int32), values), {}


PUT_ROWS = Op(
    "put_rows",
    kind="index",
    infer=_put_type,
    numpy=_put,
    lower=_put_lower,
    samples=_samples,
    over=0,
    doc="x with new values in the indexed rows, each indexed once; row numbers out of range are ignored.",
)


def put_rows(x: Node, rows: Node, values: Node) -> Node:
    """x with new values in the indexed rows, each indexed once; row numbers out of range are ignored."""
    return PUT_ROWS(x, rows, values)
