"""MXNet's operators that sort, select and mask, as builders over nodes: topk, gather_nd, SequenceMask, diag, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops import ops as mxops
from gluongraph.mxops.ops import Axes, axes_of
from gluongraph.mxops.shapes import as_index, from_front, row_major, squeeze

# -- order


def argsort(data: Node, axis: int | None = -1, is_ascend: bool = True, dtype: Any = "float32") -> Node:
    """The indices that sort along an axis (of all elements in a row without one); equal elements keep their order."""
    return ops.cast(_order(*_along(data, axis), is_ascend), dtype_name(dtype))


def sort(data: Node, axis: int | None = -1, is_ascend: bool = True) -> Node:
    """The elements in order along an axis, or all of them in a row without one."""
    x, at = _along(data, axis)
    return ops.gather(x, _order(x, at, is_ascend), at)


def topk(
    data: Node,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: Literal["indices", "value", "both", "mask"] = "indices",
    is_ascend: bool = False,
    dtype: Any = "float32",
) -> Any:
    """The k largest (smallest with is_ascend) along an axis; all for k = 0.

    Their indices, "value", "both" as [values, indices], or "mask": 1 at their places in an array like data.

    Raises:
        MXNetError: k is larger than the axis, or there is no such ret_typ.
    """
    x, at = _along(data, axis)
    extent = x.shape[at]
    if not 0 <= k <= extent:
        raise MXNetError(
            with_user_location(f"topk: k is a number from 1 to {extent}, the extent of axis {at} of {x.ty}; not {k}")
        )
    chosen = ops.part(_order(x, at, is_ascend), at, 0, k or extent)
    if ret_typ == "mask":
        last = ops.moveaxis(chosen, at, x.ty.rank - 1)
        hits = ops.sum(ops.one_hot(last, extent, x.dtype), -2)
        return ops.reshape(ops.moveaxis(hits, x.ty.rank - 1, at), data.shape)
    indices = ops.cast(chosen, dtype_name(dtype))
    if ret_typ == "indices":
        return indices
    values = ops.gather(x, chosen, at)
    if ret_typ not in ("value", "both"):
        raise MXNetError(with_user_location(f"topk: ret_typ is one of indices, value, both, mask; not {ret_typ!r}"))
    return values if ret_typ == "value" else (values, indices)


def _along(data: Node, axis: int | None) -> tuple[Any, int]:
    if axis is None:
        return ops.reshape(data, (data.ty.size,)), 0
    return data, axes_of(data, axis)[0]


def _order(x: Node, axis: int, is_ascend: bool) -> Node:
    x = ops.stop_gradient(x)
    return ops.argsort(x if is_ascend else ops.neg(x), axis)


# -- selection


def gather_nd(data: Node, indices: Node) -> Node:
    """out[y..] = data[indices[0, y..], indices[1, y..], ...]"""
    count = indices.shape[0]
    rows = ops.reshape(data, (math.prod(data.shape[:count]), *data.shape[count:]))
    return ops.take(rows, _flat_index("gather_nd", indices, data.shape), 0)


def scatter_nd(data: Node, indices: Node, shape: Sequence[int]) -> Node:
    """Zeros of the shape with out[indices[0, y..], indices[1, y..], ...] = data[y..]; places named twice get sums."""
    count, shape = indices.shape[0], tuple(shape)
    rows = ops.full((math.prod(shape[:count]), *shape[count:]), 0, data.dtype)
    return ops.reshape(ops.scatter_add(rows, _flat_index("scatter_nd", indices, shape), data), shape)


def _flat_index(op: str, indices: Node, shape: tuple[int, ...]) -> Node:
    """Row-major positions in the first axes of `shape`, from one row of indices per axis; negative ones from behind."""
    if indices.shape[0] > len(shape):
        raise ShapeError(
            with_user_location(f"{op}: {indices.ty} indexes {indices.shape[0]} axes; there are {len(shape)}")
        )
    extents = shape[: indices.shape[0]]
    rows = [ops.reshape(ops.part(indices, 0, i, i + 1), indices.shape[1:]) for i in range(len(extents))]

    def bounded(row: Node, n: int) -> Node:
        if n == -1:  # the free axis of ravel_multi_index: its end is unknown
            return as_index(row)
        help = f"the axis has {n} elements; negative indices count from its end"
        return from_front(ops.checked_index(row, n, low=-n, what=f"{op}: index", help=help), n)

    return row_major([bounded(row, n) for row, n in zip(rows, extents, strict=True)], extents)


def ravel_multi_index(data: Node, shape: Sequence[int]) -> Node:
    """Row-major positions in an array of `shape`, of the indices in the rows of data; shape[0] may be -1: unknown."""
    _check_extents("ravel_multi_index", shape)
    return ops.cast(_flat_index("ravel_multi_index", data, tuple(shape)), data.dtype)


def unravel_index(data: Node, shape: Sequence[int]) -> Node:
    """The indices of row-major positions in an array of `shape`, a row per axis; shape[0] may be -1: unknown.

    Positions beyond the end of the array are beyond the end of its first axis.
    """
    _check_extents("unravel_index", shape)
    rest, rows = as_index(data), []
    for extent in reversed(tuple(shape)[1:]):
        rows.append(ops.mod(rest, extent))
        rest = ops.floordiv(rest, extent)
    return ops.cast(ops.stack(rest, *reversed(rows)), data.dtype)


def _check_extents(op: str, shape: Sequence[int]) -> None:
    if not shape or any(n < 1 for n in shape[1:]) or (shape[0] < 1 and shape[0] != -1):
        raise ShapeError(with_user_location(f"{op}: extents are positive, the first one may be -1; not {tuple(shape)}"))


def index_copy(old_tensor: Node, index_vector: Node, new_tensor: Node) -> Node:
    """old_tensor with the rows index_vector replaced by those of new_tensor"""
    n = old_tensor.shape[0]
    index = as_index(index_vector)
    hit = ops.sum(ops.one_hot(index, n, "i32"), 0)
    zeros = ops.full(old_tensor.shape, 0, old_tensor.dtype)
    written = ops.scatter_add(zeros, index, new_tensor)
    mask = ops.expand(ops.reshape(ops.greater(hit, 0), (n, *(1,) * (old_tensor.ty.rank - 1))), old_tensor.shape)
    return ops.where(mask, written, old_tensor)


def index_array(data: Node, axes: Sequence[int] | None = None) -> Node:
    """The index of each element along `axes` (all by default), on a new last axis."""
    chosen = range(data.ty.rank) if axes is None else [axes_of(data, a)[0] for a in axes]
    return ops.stack(*(ops.iota(data.shape, a, "i64") for a in chosen), axis=-1)


# -- sequences: time on `axis` 0 or 1, the batch on the other


def _time(op: str, data: Node, axis: int) -> int:
    if axis not in (0, 1) or data.ty.rank < 2:
        raise MXNetError(with_user_location(f"{op}: time is axis 0 or 1 of two axes or more, not {axis} of {data.ty}"))
    return axis


def _steps(data: Node, axis: int) -> tuple[Any, tuple[int, int]]:
    """The number of each step, as (time, batch) or (batch, time)."""
    shape = (data.shape[0], data.shape[1])
    return ops.iota(shape, axis), shape


def _lengths(sequence_length: Node, axis: int, shape: tuple[int, int]) -> Node:
    return ops.expand(ops.expand_dims(as_index(sequence_length), axis), shape)


def _per_step(x: Node, data: Node) -> Node:
    """A value per step and sequence as one per element."""
    return ops.expand(ops.reshape(x, (*x.shape, *(1,) * (data.ty.rank - 2))), data.shape)


def SequenceMask(
    data: Node,
    sequence_length: Node | None = None,
    use_sequence_length: bool = False,
    value: float = 0.0,
    axis: int = 0,
) -> Node:
    """`value` in place of the elements from sequence_length on."""
    if not use_sequence_length or sequence_length is None:
        return data
    axis = _time("SequenceMask", data, axis)
    step, shape = _steps(data, axis)
    inside = ops.less(step, _lengths(sequence_length, axis, shape))
    return ops.where(_per_step(inside, data), data, value)


def SequenceLast(
    data: Node, sequence_length: Node | None = None, use_sequence_length: bool = False, axis: int = 0
) -> Node:
    """The last step of each sequence."""
    axis = _time("SequenceLast", data, axis)
    if not use_sequence_length or sequence_length is None:
        return squeeze(ops.part(data, axis, data.shape[axis] - 1, data.shape[axis]), axis)
    last = ops.expand_dims(ops.sub(as_index(sequence_length), 1), axis)
    shape = tuple(1 if a == axis else n for a, n in enumerate(data.shape))
    index = ops.expand(ops.reshape(last, (*last.shape, *(1,) * (data.ty.rank - 2))), shape)
    return squeeze(ops.gather(data, index, axis), axis)


def SequenceReverse(
    data: Node, sequence_length: Node | None = None, use_sequence_length: bool = False, axis: int = 0
) -> Node:
    """The steps of each sequence in reverse order, what comes behind its length left in place."""
    axis = _time("SequenceReverse", data, axis)
    if not use_sequence_length or sequence_length is None:
        return ops.flip(data, axis)
    step, shape = _steps(data, axis)
    length = _lengths(sequence_length, axis, shape)
    source = ops.where(ops.less(step, length), ops.sub(ops.sub(length, 1), step), step)
    return ops.gather(data, _per_step(source, data), axis)


# -- blocks and diagonals


def depth_to_space(data: Node, block_size: int) -> Node:
    """Channels as squares of block_size: (n, c b², h, w) becomes (n, c, h b, w b); the channel varies fastest."""
    n, c, h, w = _image("depth_to_space", data, block_size)
    b = block_size
    if c % (b * b):
        raise ShapeError(with_user_location(f"depth_to_space: {c} channels are no multiple of {b}²"))
    apart = ops.transpose(ops.reshape(data, (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    return ops.reshape(apart, (n, c // (b * b), h * b, w * b))


def space_to_depth(data: Node, block_size: int) -> Node:
    """Squares of block_size as channels: (n, c, h b, w b) becomes (n, c b², h, w)."""
    n, c, h, w = _image("space_to_depth", data, block_size)
    b = block_size
    if h % b or w % b:
        raise ShapeError(with_user_location(f"space_to_depth: {h} x {w} has no blocks of {b} x {b}"))
    apart = ops.transpose(ops.reshape(data, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    return ops.reshape(apart, (n, c * b * b, h // b, w // b))


def _image(op: str, data: Node, block_size: int) -> tuple[int, int, int, int]:
    if block_size < 1:
        raise MXNetError(with_user_location(f"{op}: block_size is a whole number from 1 on, not {block_size!r}"))
    if data.ty.rank != 4:
        raise ShapeError(with_user_location(f"{op}: data has the axes (n, c, h, w), not {data.ty}"))
    n, c, h, w = data.shape
    return n, c, h, w


def diag(data: Node, k: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """The k-th diagonal of two axes, as the last axis; of one axis, a matrix with it on the k-th diagonal."""
    if data.ty.rank == 1:
        return makediag(data, k)
    a, b = axes_of(data, axis1)[0], axes_of(data, axis2)[0]
    rest = [i for i in range(data.ty.rank) if i not in (a, b)]
    return extractdiag(ops.transpose(data, (*rest, a, b)), k)


def extractdiag(A: Node, offset: int = 0) -> Node:
    """The diagonal `offset` of the last two axes."""
    *lead, m, n = A.shape
    count = min(m, n - offset) if offset >= 0 else min(m + offset, n)
    if count < 1:
        raise ShapeError(with_user_location(f"diag: {A.ty} has no diagonal {offset}"))
    first = offset if offset >= 0 else -offset * n
    flat = ops.reshape(A, (*lead, m * n))
    places = ops.add(ops.mul(ops.iota((count,), 0), n + 1), first)
    return ops.take(flat, places, len(lead))


def makediag(A: Node, offset: int = 0) -> Node:
    """Matrices with the last axis on the diagonal `offset`."""
    *lead, count = A.shape
    size = count + abs(offset)
    whole = (*lead, size, size)
    rows, columns = ops.iota(whole, len(lead)), ops.iota(whole, len(lead) + 1)
    row = ops.pad(A, (0,) * A.ty.rank, (*(0,) * len(lead), abs(offset)))
    spread = ops.expand(ops.expand_dims(row, -1 if offset >= 0 else -2), whole)
    return ops.where(ops.equal(ops.sub(columns, rows), offset), spread, 0)


def khatri_rao(*args: Node) -> Node:
    """Column by column, the Kronecker product."""
    made = args[0]
    for each in args[1:]:
        both = ops.mul(ops.expand_dims(made, 1), ops.expand_dims(each, 0))
        made = ops.reshape(both, (made.shape[0] * each.shape[0], made.shape[1]))
    return made


def split_v2(data: Node, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Equal parts along an axis, or the parts between the places given: a list, or the array for one part."""
    (at,) = axes_of(data, axis)
    extent = data.shape[at]
    if isinstance(indices_or_sections, int):
        each, rest = divmod(extent, indices_or_sections)
        if rest:
            raise ShapeError(
                with_user_location(f"split_v2: axis {at} of {data.ty} has no {indices_or_sections} equal parts")
            )
        ends = [each * (i + 1) for i in range(indices_or_sections)]
    else:
        ends = [*(min(max(i if i >= 0 else i + extent, 0), extent) for i in indices_or_sections), extent]
    starts = [0, *ends[:-1]]
    parts = [ops.part(data, at, b, max(b, e)) for b, e in zip(starts, ends, strict=True)]
    if squeeze_axis:
        parts = [squeeze(p, at) for p in parts]
    return parts if len(parts) > 1 else parts[0]


def moveaxis(tensor: Node, source: int | Sequence[int], destination: int | Sequence[int]) -> Node:
    """Axes at other places, the others in their order.

    Raises:
        ShapeError: an axis is named twice, or there are not as many places as axes.
    """
    rank = tensor.ty.rank
    sources = [axes_of(tensor, a)[0] for a in ((source,) if isinstance(source, int) else source)]
    targets = [axes_of(tensor, a)[0] for a in ((destination,) if isinstance(destination, int) else destination)]
    if len(sources) != len(targets) or any(len(set(axes)) != len(axes) for axes in (sources, targets)):
        message = f"moveaxis: axes {source} of {tensor.ty} to {destination}"
        raise ShapeError(with_user_location(message, help="as many places as axes, and none of them twice"))
    order = [a for a in range(rank) if a not in sources]
    for target, a in sorted(zip(targets, sources, strict=True)):
        order.insert(target, a)
    return ops.transpose(tensor, tuple(order))


# -- reductions that look at what they add


def nansum(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The sum of what is a number."""
    return mxops.sum(_numbers(data, 0), axis, keepdims, exclude)


def nanprod(data: Node, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Node:
    """The product of what is a number."""
    return mxops.prod(_numbers(data, 1), axis, keepdims, exclude)


def _numbers(data: Node, instead: float) -> Node:
    return ops.where(ops.isnan(data), instead, data) if is_float(data.dtype) else data


def moments(data: Node, axes: Axes = None, keepdims: bool = False) -> tuple[Node, Node]:
    """[mean, biased variance] over the axes given."""
    chosen = axes_of(data, axes)
    mean = ops.mean(data, axis=chosen, keepdims=True)
    apart = ops.sub(data, mean)
    var = ops.mean(ops.mul(apart, apart), axis=chosen, keepdims=True)
    if keepdims:
        return mean, var
    shape = tuple(n for a, n in enumerate(data.shape) if a not in chosen) or (1,)
    return ops.reshape(mean, shape), ops.reshape(var, shape)


def all_finite(data: Node, init_output: bool = True) -> Node:
    """1 if every element is finite, else 0; of shape (1,)"""
    return multi_all_finite(data)


def multi_all_finite(*data: Node, num_arrays: int = 1, init_output: bool = True) -> Node:
    """1 if every element of all arrays is finite, else 0; of shape (1,)"""
    made: Node | None = None
    for each in data:
        worst = ops.min(ops.cast(ops.isfinite(each), "f32"), axis=tuple(range(each.ty.rank)))
        made = worst if made is None else ops.minimum(made, worst)
    assert made is not None
    return ops.reshape(made, (1,))


def multi_sum_sq(*data: Node, num_arrays: int = 1) -> Node:
    """The sum of squares of each array, of shape (number of arrays,)"""
    return ops.stack(*(ops.sum(ops.mul(each, each)) for each in data))
