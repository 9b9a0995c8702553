"""Gather and scatter. Indices out of range are clipped to the nearest row."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import constants, movement, sums
from gluongraph.ops.checks import INTEGERS, NUMBERS, check_axes, misfit, need, normal_axis, without, wrong_dtype
from gluongraph.ops.movement import both
from gluongraph.ops.samples import each

_INDICES = INTEGERS - {"u64"}  # numpy takes no u64 for an index


def _need_index(op: str, indices: TensorType) -> None:
    if indices.dtype not in _INDICES:
        raise wrong_dtype(
            op, "indices are integers of up to 63 bits", indices, help="cast them first, for example to i32"
        )


def _wide(e: Any, k: Any, dtype: str) -> tuple[Any, str]:
    """Return an index that was read from memory, in a type that can hold it and any size; and that type."""
    wide = dtype if dtype in ("i64", "u32") else "i32"
    return e.cast(k, wide), wide


def _at(e: Any, indices: Any, at: Any, n: int) -> Any:
    """Return the index stored at `at`, clipped."""
    k, wide = _wide(e, indices(*at), indices.dtype)
    return e.cast(e.binary("minimum", e.binary("maximum", k, e.const(0, wide)), e.const(n - 1, wide)), "i32")


def _clipped(indices: Any, n: int) -> Any:
    return np.clip(indices.astype(np.int64, copy=False), 0, n - 1)


def _add_at(target: Any, where: Any, updates: Any) -> Any:
    """target + updates at the rows `where`, or at single elements if that is a tuple; 16-bit floats in f32."""
    wide = target.astype(np.float32) if target.dtype.itemsize == 2 else target.copy()
    updates = updates.astype(wide.dtype, copy=False)
    if isinstance(where, tuple):
        sums.add_rows(wide.reshape(-1), np.ravel_multi_index(where, wide.shape).reshape(-1), updates.reshape(-1))
    else:
        sums.add_rows(wide, where.reshape(-1), updates.reshape(-1, *wide.shape[1:]))
    return wide.astype(target.dtype, copy=False)


# -- take


def _take_type(x: TensorType, indices: TensorType, axis: int) -> TensorType:
    _need_index("take", indices)
    check_axes("take", x, (axis,))
    if x.shape[axis] == 0:
        raise misfit("take", f"axis {axis} has no element to take", x)
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _take_grad(g: Node, y: Node, x: Node, indices: Node, axis: int) -> tuple[Node, None]:
    """Rows that were taken several times get the sum."""
    k = indices.ty.rank
    places = range(axis, axis + k)
    front = movement.transpose(g, (*places, *(a for a in range(g.ty.rank) if a not in places))) if axis else g
    rows = constants.zeros(TensorType((x.shape[axis], *without(x.shape, (axis,))), x.dtype))
    return movement.moveaxis(SCATTER_ADD(rows, indices, front), 0, axis), None


def _take_lower(e: Any, i: Any, x: Any, indices: Any, axis: int) -> Any:
    k = len(indices.shape)
    row = _at(e, indices, i[axis : axis + k], x.shape[axis])
    return x(*i[:axis], row, *i[axis + k :])


TAKE = Op(
    "take",
    kind="index",
    traits=frozenset({"selects", "gathers"}),
    infer=_take_type,
    numpy=lambda x, indices, axis: np.take(x, indices, axis, mode="clip"),
    grad=_take_grad,
    lower=_take_lower,
    samples=each(
        (((5, 33), ((4,), "i32", -1, 6)), {"axis": 0}),
        (((3, 7), ((2, 3), "i64", 0, 6)), {"axis": 1}),
        (((2, 5, 3), ((4,), "i32", 0, 4)), {"axis": 1}),
        (((5, 3), ((), "i32", 0, 4)), {"axis": 0}),
        ((((300, 2), "i32", -9, 9), ((7,), "u8", 0, 255)), {"axis": 0}),
        (((5, 3), ((7,), "u32", 0, 2**32 - 1)), {"axis": 0}),
        (((5, 3), ((7,), "i64", -(2**40), 2**40)), {"axis": 0}),
    ),
    doc="The slices of x along an axis at the indices.",
)


def take(x: Node, indices: Node, axis: int = 0) -> Node:
    """The slices of x along an axis at the indices."""
    return TAKE(x, indices, axis=normal_axis("take", axis, x.ty.rank))


# -- scatter_add


def _scatter_type(x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
    _need_index("scatter_add", indices)
    need("scatter_add", NUMBERS, x)
    if x.rank == 0 or x.shape[0] == 0 or updates.shape != (*indices.shape, *x.shape[1:]):
        raise misfit("scatter_add", "needs one row of the first for each index", x, indices, updates)
    if x.dtype != updates.dtype:
        raise wrong_dtype("scatter_add", "dtypes differ", x, updates, help="cast the updates")
    return x


def _scatter_lower(e: Any, i: Any, x: Any, indices: Any, updates: Any) -> Any:
    """Every element is a sum over all indices; x is added with the first."""
    row, *rest = i

    def element(*k: Any) -> Any:
        hit = e.binary("equal", _at(e, indices, k, x.shape[0]), row)
        added = e.where(hit, updates(*k, *rest), e.const(0, x.dtype))
        first = both(e, *(e.binary("equal", n, 0) for n in k))
        return added + (x(*i) if first is None else e.where(first, x(*i), e.const(0, x.dtype)))

    if not all(indices.shape):
        return x(*i)
    return e.reduce("sum", indices.shape, element, x.dtype) if indices.shape else element()


SCATTER_ADD = Op(
    "scatter_add",
    kind="index",
    infer=_scatter_type,
    numpy=lambda x, indices, updates: _add_at(x, _clipped(indices, len(x)), updates),
    grad=lambda g, y, x, indices, updates: (g, None, take(g, indices, 0)),
    lower=_scatter_lower,
    samples=each(
        (((5, 33), ((4,), "i32", -1, 6), (4, 33)), {}),
        (((3, 7), ((2, 5), "i64", 0, 2), (2, 5, 7)), {}),
        (((3,), ((9,), "i32", 0, 2), (9,)), {}),
        ((((5, 3), "i32", -9, 9), ((7,), "i32", 0, 4), ((7, 3), "i32", -9, 9)), {}),
    ),
    flops=lambda y, x, indices, updates: updates.size,
    doc="x with updates[k] added to row indices[k], for every k; rows named twice get the sum.",
)


def scatter_add(x: Node, indices: Node, updates: Node) -> Node:
    """x with updates[k] added to row indices[k], for every k; rows named twice get the sum."""
    return SCATTER_ADD(x, indices, updates)


# -- gather


def _gather_type(x: TensorType, indices: TensorType, axis: int) -> TensorType:
    _need_index("gather", indices)
    check_axes("gather", x, (axis,))
    if x.rank != indices.rank or without(x.shape, (axis,)) != without(indices.shape, (axis,)) or not x.shape[axis]:
        raise misfit("gather", f"sizes differ beside axis {axis}", x, indices)
    return TensorType(indices.shape, x.dtype)


def _gather_lower(e: Any, i: Any, x: Any, indices: Any, axis: int) -> Any:
    return x(*i[:axis], _at(e, indices, i, x.shape[axis]), *i[axis + 1 :])


GATHER: Op = Op(
    "gather",
    kind="index",
    traits=frozenset({"selects", "gathers"}),
    infer=_gather_type,
    numpy=lambda x, indices, axis: np.take_along_axis(x, _clipped(indices, x.shape[axis]), axis),
    grad=lambda g, y, x, indices, axis: (GATHER_GRAD(g, indices, axis=axis, size=x.shape[axis]), None),
    lower=_gather_lower,
    samples=each(
        (((3, 33), ((3, 4), "i32", -1, 35)), {"axis": 1}),
        (((5, 7), ((2, 7), "i64", 0, 4)), {"axis": 0}),
        (((2, 5, 3), ((2, 1, 3), "i32", 0, 4)), {"axis": 1}),
    ),
    doc="One element along an axis for each index: y[.., k, ..] = x[.., indices[.., k, ..], ..].",
)


def gather(x: Node, indices: Node, axis: int) -> Node:
    """One element along an axis for each index: y[.., k, ..] = x[.., indices[.., k, ..], ..]."""
    return GATHER(x, indices, axis=normal_axis("gather", axis, x.ty.rank))


def _gather_grad_type(g: TensorType, indices: TensorType, axis: int, size: int) -> TensorType:
    _need_index("gather_grad", indices)
    check_axes("gather_grad", g, (axis,))
    if g.shape != indices.shape:
        raise misfit("gather_grad", "shapes differ", g, indices)
    return TensorType((*g.shape[:axis], size, *g.shape[axis + 1 :]), g.dtype)


def _gather_grad(g: Any, indices: Any, axis: int, size: int) -> Any:
    grid = list(np.ogrid[tuple(slice(n) for n in g.shape)])
    grid[axis] = _clipped(indices, size)
    shape = (*g.shape[:axis], size, *g.shape[axis + 1 :])
    return _add_at(np.zeros(shape, g.dtype), tuple(grid), g)


def _gather_grad_lower(e: Any, i: Any, g: Any, indices: Any, axis: int, size: int) -> Any:
    def element(k: Any) -> Any:
        at = (*i[:axis], k, *i[axis + 1 :])
        hit = e.binary("equal", _at(e, indices, at, size), i[axis])
        return e.where(hit, g(*at), e.const(0, g.dtype))

    return e.reduce("sum", (g.shape[axis],), element, g.dtype)


GATHER_GRAD: Op = Op(
    "gather_grad",
    kind="index",
    infer=_gather_grad_type,
    numpy=_gather_grad,
    grad=lambda gg, y, g, indices, axis, size: (gather(gg, indices, axis), None),
    lower=_gather_grad_lower,
    samples=each(
        (((3, 4), ((3, 4), "i32", -1, 7)), {"axis": 1, "size": 6}),
        (((2, 5), ((2, 5), "i64", 0, 2)), {"axis": 0, "size": 3}),
    ),
    flops=lambda y, g, indices, axis, size: g.size,
    doc="The gradient of gather: g added up at the positions that were read, zeros elsewhere.",
)


# -- one_hot


def _one_hot_type(indices: TensorType, depth: int, dtype: str) -> TensorType:
    _need_index("one_hot", indices)
    return TensorType((*indices.shape, depth), dtype)


def _one_hot(indices: Any, depth: int, dtype: str) -> Any:
    return (np.asarray(indices)[..., None] == np.arange(depth)).astype(numpy_dtype(dtype))


def _one_hot_lower(e: Any, i: Any, indices: Any, depth: int, dtype: str) -> Any:
    *at, k = i
    number, wide = _wide(e, indices(*at), indices.dtype)
    hit = e.binary("equal", number, e.cast(k, wide))
    return e.where(hit, e.const(_number(1, dtype), dtype), e.const(_number(0, dtype), dtype))


def _number(value: int, dtype: str) -> float | int | bool:
    family = DTYPES[dtype].family
    return float(value) if family == "float" else bool(value) if family == "bool" else value


ONE_HOT = Op(
    "one_hot",
    kind="index",
    traits=frozenset({"free"}),
    infer=_one_hot_type,
    numpy=_one_hot,
    lower=_one_hot_lower,
    samples=each(
        ((((7,), "i32", -1, 5),), {"depth": 5, "dtype": "f32"}),
        ((((2, 3), "i64", 0, 16),), {"depth": 17, "dtype": "f64"}),
        ((((), "u8", 0, 2),), {"depth": 3, "dtype": "bool"}),
        dtypes=("f32",),
    ),
    doc="1 where the last index is the number, else 0; all 0 for numbers out of range.",
)


def one_hot(indices: Node, depth: int, dtype: str = "f32") -> Node:
    """1 where the last index is the number, else 0; all 0 for numbers out of range."""
    return ONE_HOT(indices, depth=depth, dtype=dtype)
