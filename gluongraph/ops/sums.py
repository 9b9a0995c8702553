"""Sums in numpy with the error bound of pairwise summation, along any axis.

numpy adds pairwise along the axis that lies contiguous in memory and one term after another along others. Here a long
axis is cut into blocks, whose sums are then added up in the same way.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np

from gluongraph.storage import Array

BLOCK = 128  # terms that are added sequentially
FEW = 4 * BLOCK  # up to so many are added without blocks, which cost numpy some microseconds


def total(x: Array, axes: tuple[int, ...], dtype: Any, keepdims: bool) -> Any:
    """`np.add.reduce(x, axes, dtype, keepdims=keepdims)`."""
    if math.prod(x.shape[a] for a in axes) <= FEW or np.dtype(dtype).kind in "iub":
        return np.add.reduce(x, axes, dtype, None, keepdims)  # type: ignore[call-overload]  # numpy knows True or False
    made = _total(*_merged(x, axes), dtype)
    kept = [1 if a in axes else n for a, n in enumerate(x.shape)]
    return made.reshape(kept if keepdims else [n for a, n in enumerate(x.shape) if a not in axes])


def _merged(x: Array, axes: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    """Merge adjacent axes of one kind, if their strides allow it."""
    if not x.flags.c_contiguous:
        return x, axes
    runs = [(kind, math.prod(x.shape[a] for a in run)) for kind, run in groupby(range(x.ndim), key=axes.__contains__)]
    return x.reshape([n for _, n in runs]), tuple(a for a, (kind, _) in enumerate(runs) if kind)


def _total(x: Array, axes: tuple[int, ...], dtype: Any) -> Array:
    inner = min(range(x.ndim), key=lambda a: (x.shape[a] == 1, x.strides[a]))
    long = max((a for a in axes if a != inner), key=lambda a: x.shape[a], default=inner)
    blocks = x.shape[long] // BLOCK
    if long == inner or x.shape[long] <= FEW:
        return np.asarray(np.add.reduce(x, axes, dtype))
    before, behind = (slice(None),) * long, x.shape[long + 1 :]
    head = x[(*before, slice(blocks * BLOCK))].reshape(*x.shape[:long], blocks, BLOCK, *behind)
    folded = tuple(a + (a >= long) for a in axes)  # the axis of blocks, at `long`, is kept
    sums = np.add.reduce(head, folded, dtype)
    made = _total(sums, (long - sum(a < long for a in axes),), dtype)
    if blocks * BLOCK < x.shape[long]:
        made = made + np.add.reduce(x[(*before, slice(blocks * BLOCK, None))], axes, dtype)
    return made


def running(x: Array, axis: int) -> Array:
    """`np.cumsum(x, axis)`; of floats of up to 32 bits it is summed in float64."""
    wide = np.float64 if x.dtype.kind not in "iub" else x.dtype
    return np.cumsum(x, axis, wide).astype(x.dtype, copy=False)


def add_rows(target: Array, rows: Array, values: Array) -> None:
    """`np.add.at(target, rows, values)`: values[i] is added to row rows[i]."""
    if len(rows) <= FEW or target.dtype.kind in "iub" or np.bincount(rows).max() <= FEW:
        np.add.at(target, rows, values)
        return
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    while True:
        starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        within = np.arange(len(rows)) - np.repeat(starts, np.diff([*starts, len(rows)]))
        if len(starts) == len(rows):
            break
        cuts = np.flatnonzero(within % BLOCK == 0)
        rows, values = rows[cuts], np.add.reduceat(values, cuts, axis=0)
    target[rows] += values
