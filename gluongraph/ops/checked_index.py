"""Indices that must be in range, such as labels and token ids: clipping them would silently train on other data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float
from gluongraph.errors import IndexRangeError, with_user_location
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import constants, elementwise, logic, reduce
from gluongraph.ops.checks import misfit, need, wrong_dtype
from gluongraph.ops.samples import array

_INTEGERS = ("i32", "u32", "i64")
_READ_AS = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "bool": "i32"}  # types that hold few integers
_TAKEN = frozenset((*_INTEGERS, "f32", "f64"))


def _type(x: TensorType, *counts: TensorType, low: int, high: int, ignored: int, what: str, help: str) -> TensorType:
    need("checked_index", _TAKEN, x)
    if any(c.shape != x.shape for c in counts):
        raise misfit("checked_index", "needs one flag for each index", x, *counts)
    if any(c.dtype != "bool" for c in counts):
        raise wrong_dtype("checked_index", "the flags are bool", x, *counts)
    return TensorType(x.shape, _index_dtype(x.dtype))


def _index_dtype(dtype: str) -> str:
    return dtype if dtype in _INTEGERS else "i32"


def _numpy(x: Any, *counts: Any, low: int, high: int, ignored: int, what: str, help: str) -> Any:
    with np.errstate(invalid="ignore"):  # a NaN as an integer
        index = x.astype(np.int32) if x.dtype.kind == "f" else x
    if x.size and not (low <= x.min() and x.max() < high and (index is x or (index == x).all())):
        refuse(x, *counts, low=low, high=high, ignored=ignored, what=what, help=help)
    return index


def refuse(
    x: Any, *counts: Any, low: int, high: int, ignored: int, what: str, help: str, where: str | None = None
) -> None:
    """Raise IndexRangeError for the first index that is out of range, if there is one.

    `where` says which line of the program made the index; by default it is the one that is running.
    """
    valid = (x >= low) & (x < high) & (x == np.floor(x)) | (x == ignored)
    wrong = ~valid & counts[0] if counts else ~valid
    if not wrong.any():
        return
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at {at if len(at) != 1 else at[0]}" if at else ""
    value = x[at].item()
    told = int(value) if math.isfinite(value) and value == int(value) else value
    message = f"{what} {told}{place} is not an integer from {low} to {high - 1}"
    raise IndexRangeError(
        with_user_location(message, help=help) if where is None else f"{message}{where}\n  help: {help}"
    )


def _samples(rng: np.random.Generator) -> Any:
    how = {"low": 0, "high": 7, "ignored": -1, "what": "take: index", "help": ""}
    for dtype in ("i32", "i64", "u32"):
        yield (array(rng, (3, 5), dtype, 0, 6),), how
    floats = array(rng, (3, 5), "i32", -1, 6).astype(np.float32)
    yield (floats,), how
    yield (floats * 2, (floats >= 0) & (floats * 2 < 7)), how


CHECKED_INDEX = Op(
    "checked_index",
    kind="index",
    infer=_type,
    numpy=_numpy,
    lower=lambda e, i, x, *counts, **how: e.cast(x(*i), _index_dtype(x.dtype)),
    samples=_samples,
    doc="x as integers; an error unless each is an integer from low to high - 1, or the ignored value.",
)


def checked_index(
    x: Node, high: int, *, low: int = 0, ignored: int | None = None, counts: Node | None = None, what: str, help: str
) -> Node:
    """x as integers, each of which has to be an integer from `low` to `high` - 1, or `ignored`.

    Where `counts` is false any value is allowed. In eager mode the first index out of range is an error; a compiled
    step raises it before it has changed anything (`gluongraph.ops.index_checks`). `what` names the op and the index
    in the message, `help` is the way out.

    Raises:
        IndexRangeError: when it is computed, an index is out of range.
    """
    x = elementwise.cast(x, _READ_AS.get(x.dtype, x.dtype))
    mask = () if counts is None else (counts,)
    return CHECKED_INDEX(
        x, *mask, low=low, high=high, ignored=low if ignored is None else ignored, what=what, help=help
    )


def violations(n: Node) -> Node:
    """How many elements of a checked_index node's source are out of range: i32, of shape ()."""
    x, how = n.src[0], n.attrs
    valid = logic.logical_and(logic.greater_equal(x, how["low"]), logic.less(x, how["high"]))
    if is_float(x.dtype):
        valid = logic.logical_and(valid, logic.equal(x, elementwise.floor(x)))
    if how["ignored"] != how["low"] and x.dtype != "u32":
        valid = logic.logical_or(valid, logic.equal(x, how["ignored"]))
    if len(n.src) > 1:
        valid = logic.logical_or(valid, logic.logical_not(n.src[1]))
    wrong = logic.where(valid, constants.full(x.shape, 0, "i32"), constants.full(x.shape, 1, "i32"))
    return reduce.sum(wrong, tuple(range(x.ty.rank))) if x.ty.rank else wrong
