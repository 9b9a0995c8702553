"""MXNet's operators that move elements, as builders over nodes: shapes, slices, joining, indexing."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.ops import Axes, axes_of
from gluongraph.ops.builders import Value


def reshape(data: Node, shape: Sequence[int], reverse: bool = False) -> Node:
    """Another shape: 0 keeps an axis, -1 is inferred, -2 keeps the rest, -3 joins two axes, -4 splits one in two."""
    return ops.reshape(data, reshaped(data.shape, tuple(shape), reverse))


def reshaped(old: tuple[int, ...], wanted: tuple[int, ...], reverse: bool = False) -> tuple[int, ...]:
    """The shape that MXNet's reshape codes mean for an array of shape `old`.

    With `reverse` both are read from the end: what splits an axis stands before its -4.

    >>> reshaped((2, 3, 4), (-3, 0)), reshaped((2, 3, 4), (0, -1)), reshaped((6, 4), (-4, 2, -1, 0))
    ((6, 4), (2, 12), (2, 3, 4))
    """
    if reverse:
        return reshaped(old[::-1], wanted[::-1])[::-1]
    new: list[int] = []
    at, i = 0, 0
    try:
        while i < len(wanted):
            code = wanted[i]
            if code == 0:
                new.append(old[at])
            elif code == -2:
                new.extend(old[at:])
                at = len(old) - 1
            elif code == -3:
                new.append(old[at] * old[at + 1])
                at += 1
            elif code == -4:
                parts = [wanted[i + 1], wanted[i + 2]]
                if -1 in parts:
                    other = parts[1 - parts.index(-1)]
                    parts[parts.index(-1)] = old[at] // other if other else 0
                if math.prod(parts) != old[at]:
                    message = f"reshape: an axis of {old[at]} is not split into {wanted[i + 1]} and {wanted[i + 2]}"
                    raise ShapeError(
                        with_user_location(message, help="one of the two may be -1: it is computed from the other")
                    )
                new.extend(parts)
                i += 2
            else:
                new.append(code)
            at, i = at + 1, i + 1
    except IndexError:
        raise ShapeError(
            with_user_location(f"reshape: {list(wanted)} asks for more axes than {list(old)} has")
        ) from None
    if new.count(-1) == 1:
        rest = -math.prod(new)
        new[new.index(-1)] = math.prod(old) // rest if rest else 0
    if math.prod(new) != math.prod(old) or min(new, default=0) < 0:
        message = f"reshape: the {math.prod(old)} elements of shape {list(old)} do not fill shape {list(wanted)}"
        raise ShapeError(with_user_location(message, help="one extent may be -1: it is computed from the others"))
    return tuple(new)


def reshape_like(
    lhs: Node,
    rhs: Node,
    lhs_begin: int | None = None,
    lhs_end: int | None = None,
    rhs_begin: int | None = None,
    rhs_end: int | None = None,
) -> Node:
    """lhs in the shape of rhs; or with its axes from lhs_begin to lhs_end in the shape of those of rhs"""
    begin, end, _ = _span(lhs_begin, lhs_end, 1, lhs.ty.rank)
    return ops.reshape(lhs, (*lhs.shape[:begin], *rhs.shape[rhs_begin:rhs_end], *lhs.shape[end:]))


def shape_array(data: Node) -> Node:
    """The shape, as an array of int64."""
    return ops.literal(np.array(data.shape, np.int64))


def size_array(data: Node) -> Node:
    """The number of elements, as an array of int64 with one element."""
    return ops.literal(np.array([data.ty.size], np.int64))


def flatten(data: Node) -> Node:
    """Shape (n, the rest)."""
    return ops.reshape(data, (data.shape[0], math.prod(data.shape[1:])))


def expand_dims(data: Node, axis: int) -> Node:
    """A new axis of extent 1 at that place."""
    rank = data.ty.rank
    if not -rank - 1 <= axis <= rank:
        raise ShapeError(with_user_location(f"expand_dims: axis {axis} does not fit {data.ty}"))
    at = axis % (rank + 1)
    return ops.reshape(data, (*data.shape[:at], 1, *data.shape[at:]))


def squeeze(data: Node, axis: Axes = None) -> Node:
    """Without the axes of extent 1 (all, or those given)."""
    axes = axes_of(data, axis) if axis is not None else [i for i, n in enumerate(data.shape) if n == 1]
    for a in axes:
        if data.shape[a] != 1:
            raise ShapeError(with_user_location(f"squeeze: axis {a} of {data.ty} is not 1"))
    return ops.reshape(data, tuple(n for i, n in enumerate(data.shape) if i not in axes) or (1,))


def transpose(data: Node, axes: Sequence[int] | None = None) -> Node:
    """Axes in another order; reversed by default."""
    rank = data.ty.rank
    order = tuple(a % rank for a in axes) if axes else tuple(reversed(range(rank)))
    return ops.transpose(data, order)


def swapaxes(data: Node, dim1: int = 0, dim2: int = 0) -> Node:
    """Two axes exchanged."""
    order = list(range(data.ty.rank))
    a, b = axes_of(data, dim1)[0], axes_of(data, dim2)[0]
    order[a], order[b] = b, a
    return ops.transpose(data, tuple(order))


def broadcast_to(data: Node, shape: Sequence[int]) -> Node:
    """Axes of extent 1 repeated up to `shape`; 0 keeps an axis."""
    return _broadcast(
        data, tuple(n or (data.shape[i] if len(shape) == data.ty.rank else 0) for i, n in enumerate(shape))
    )


def broadcast_like(lhs: Node, rhs: Node, lhs_axes: Axes = None, rhs_axes: Axes = None) -> Node:
    """lhs broadcast to the shape of rhs; or its axes lhs_axes to the extents of rhs along rhs_axes"""
    if lhs_axes is None or rhs_axes is None:
        return _broadcast(lhs, rhs.shape)
    if not _listed(lhs_axes) or len(_listed(lhs_axes)) != len(_listed(rhs_axes)):
        message = f"broadcast_like: as many lhs_axes as rhs_axes, at least one; not {lhs_axes} and {rhs_axes}"
        raise ShapeError(with_user_location(message, help="leave both out to broadcast to the whole shape"))
    pairs = zip(_listed(lhs_axes), _listed(rhs_axes), strict=True)
    extents = {axes_of(lhs, a)[0]: rhs.shape[b] for a, b in pairs}
    return _broadcast(lhs, tuple(extents.get(i, n) for i, n in enumerate(lhs.shape)))


def _listed(axes: Axes) -> Sequence[int]:
    return (axes,) if isinstance(axes, int) else tuple(axes or ())


def broadcast_axis(data: Node, axis: Axes, size: int | Sequence[int]) -> Node:
    """The axes given, of extent 1, repeated to the sizes given."""
    shape = list(data.shape)
    for a, n in zip(_listed(axis), (size,) if isinstance(size, int) else size, strict=True):
        shape[a] = n
    return _broadcast(data, tuple(shape))


def _broadcast(data: Node, shape: tuple[int, ...]) -> Node:
    fits = len(shape) >= data.ty.rank and all(
        a in (1, b) for a, b in zip(reversed(data.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(with_user_location(f"broadcast_to: {data.ty} cannot become {list(shape)}"))
    same_rank = ops.reshape(data, (1,) * (len(shape) - data.ty.rank) + data.shape)
    return ops.expand(same_rank, shape)


def tile(data: Node, reps: int | Sequence[int]) -> Node:
    """The whole array repeated along each axis."""
    times = (reps,) if isinstance(reps, int) else tuple(reps)
    rank = max(len(times), data.ty.rank)
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - data.ty.rank) + data.shape
    apart = ops.reshape(data, tuple(n for extent in shape for n in (1, extent)))
    whole = ops.expand(apart, tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return ops.reshape(whole, tuple(a * b for a, b in zip(times, shape, strict=True)))


def repeat(data: Node, repeats: int, axis: int | None = None) -> Node:
    """Each element repeated, along an axis or (without one) in a flat array."""
    if axis is None:
        data, axis = ops.reshape(data, (data.ty.size,)), 0
    (at,) = axes_of(data, axis)
    before, extent, after = data.shape[:at], data.shape[at], data.shape[at + 1 :]
    apart = ops.reshape(data, (*before, extent, 1, *after))
    return ops.reshape(ops.expand(apart, (*before, extent, repeats, *after)), (*before, extent * repeats, *after))


def flip(data: Node, axis: Axes) -> Node:
    """The order along the axes reversed."""
    return ops.flip(data, axes_of(data, axis))


reverse = flip


def slice(data: Node, begin: Sequence[int | None], end: Sequence[int | None], step: Sequence[int | None] = ()) -> Node:
    """data[begin[0]:end[0]:step[0], ...]; None stands for the whole way."""
    steps = tuple(step) or (None,) * len(begin)
    spans = [_span(b, e, s, n) for b, e, s, n in zip(begin, end, steps, data.shape, strict=False)]
    spans += [(0, n, 1) for n in data.shape[len(spans) :]]
    return _sliced(data, spans)


def slice_axis(data: Node, axis: int, begin: int, end: int | None) -> Node:
    """A slice along one axis."""
    (at,) = axes_of(data, axis)
    return _sliced(data, [_span(begin, end, 1, n) if i == at else (0, n, 1) for i, n in enumerate(data.shape)])


def slice_like(data: Node, shape_like: Node, axes: Axes = None) -> Node:
    """The first elements, as many as `shape_like` has, along the axes given (all by default)."""
    chosen = axes_of(data, axes)
    return _sliced(data, [(0, shape_like.shape[i] if i in chosen else n, 1) for i, n in enumerate(data.shape)])


def _span(begin: int | None, end: int | None, step: int | None, extent: int) -> tuple[int, int, int]:
    return builtins.slice(begin, end, step).indices(extent)


def _sliced(data: Node, spans: Sequence[tuple[int, int, int]]) -> Node:
    """Slices with steps of either sign; a negative step is a flip of the slice that has the same elements."""
    flipped = tuple(i for i, (_, _, s) in enumerate(spans) if s < 0)
    ranges = [range(*span) for span in spans]
    ahead = [reversed_range(r) if r.step < 0 else r for r in ranges]
    if all(r == range(n) for r, n in zip(ahead, data.shape, strict=True)):
        part = data
    else:
        begin = tuple(r.start if r else 0 for r in ahead)
        end = tuple(r[-1] + 1 if r else 0 for r in ahead)
        part = ops.slice(data, begin, end, tuple(r.step if r else 1 for r in ahead))
    return ops.flip(part, flipped) if flipped else part


def reversed_range(r: range) -> range:
    """The same numbers, upwards."""
    return range(r[-1], r[0] + 1, -r.step) if r else range(0)


def concat(*data: Node, dim: int = 1) -> Node:
    """Arrays one after the other along an axis."""
    if not data:
        raise ShapeError(with_user_location("concat of no arrays", help="give them one by one: concat(*arrays, dim=0)"))
    return ops.concat(*data, axis=axes_of(data[0], dim)[0]) if len(data) > 1 else data[0]


def stack(*data: Node, axis: int = 0) -> Node:
    """Arrays along a new axis."""
    if len({x.shape for x in data}) != 1:
        what = " and ".join(str(x.ty) for x in data) or "no arrays"
        raise ShapeError(
            with_user_location(f"stack: {what}", help="arrays of one shape; concat joins along an axis that is there")
        )
    parts = [expand_dims(x, axis) for x in data]
    return concat(*parts, dim=axis % parts[0].ty.rank)


def split(data: Node, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> Any:
    """Equal parts along an axis: a list, or the array itself for one part."""
    (at,) = axes_of(data, axis)
    each, rest = divmod(data.shape[at], num_outputs)
    if rest:
        raise ShapeError(with_user_location(f"split: axis {at} of {data.ty} has no {num_outputs} equal parts"))
    parts = [slice_axis(data, at, i * each, (i + 1) * each) for i in range(num_outputs)]
    if squeeze_axis:
        parts = [squeeze(p, at) for p in parts]
    return parts if num_outputs > 1 else parts[0]


# -- indexing


def as_index(indices: Node) -> Node:
    """Indices as integers: MXNet passes them as floats."""
    return ops.cast(indices, "i32") if is_float(indices.dtype) or indices.dtype in ("i8", "u8", "bool") else indices


def class_index(op: str, label: Node, classes: int, ignored: int | None = None, counts: Node | None = None) -> Node:
    """Labels as integers: each has to be a class, or `ignored`, except where `counts` is false."""
    help = f"there are {classes} classes, counted from 0"
    if ignored is None:
        help += "; ignore_index= or a sample_weight of 0 leaves elements out"
    return ops.checked_index(label, classes, ignored=ignored, counts=counts, what=f"{op}: label", help=help)


def take(a: Node, indices: Node, axis: int = 0, mode: str = "clip") -> Node:
    """The slices of `a` at `indices` along an axis. Indices out of range are clipped, with mode="wrap" wrapped around,
    with mode="raise" an error when they are computed."""
    (at,) = axes_of(a, axis)
    return ops.take(a, _bounded("take", indices, a.shape[at], mode), axis=at)


def _bounded(op: str, indices: Node, extent: int, mode: str) -> Node:
    if mode == "raise":
        help = 'mode="clip" takes the first or last instead, mode="wrap" counts on'
        return ops.checked_index(indices, extent, what=f"{op}: index", help=help)
    if mode == "wrap":
        return ops.mod(as_index(indices), extent)
    if mode != "clip":
        raise MXNetError(with_user_location(f"{op}: mode is 'clip', 'wrap' or 'raise', not {mode!r}"))
    return as_index(indices)


def pick(data: Node, index: Node, axis: int = -1, keepdims: bool = False, mode: str = "clip") -> Node:
    """One element per position along an axis: out[i] = data[i, index[i]]"""
    (at,) = axes_of(data, axis)
    kept = (*data.shape[:at], 1, *data.shape[at + 1 :])
    chosen = _bounded("pick", ops.reshape(index, kept), data.shape[at], mode)
    found = ops.gather(data, chosen, axis=at)
    return found if keepdims else ops.reshape(found, tuple(n for i, n in enumerate(kept) if i != at) or (1,))


def batch_take(a: Node, indices: Node) -> Node:
    """a[i, indices[i]] for every row i"""
    return pick(a, indices, 1)


def one_hot(indices: Node, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = "float32") -> Node:
    """`on_value` at the index along a new last axis, `off_value` elsewhere."""
    made = ops.one_hot(as_index(indices), depth=depth, dtype=dtype_name(dtype))
    if (on_value, off_value) == (1.0, 0.0):
        return made
    return ops.add(ops.mul(made, on_value - off_value), off_value)


def embedding(data: Node, weight: Node, input_dim: int = 0, output_dim: int = 0, **other: Node) -> Node:
    """weight[data]; an index that is no row of the weight is an error when it is computed"""
    rows = weight.shape[0]
    help = f"the table has rows 0 to {rows - 1}: look at the vocabulary, or at what pads the sequences"
    return ops.embedding(ops.checked_index(data, rows, what="Embedding: index", help=help), weight)


Plan = tuple[Any, ...]


def basic_key(key: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The key as a tuple; `[:]` is the whole of an array without axes too."""
    parts = key if isinstance(key, tuple) else (key,)
    return () if not shape and parts == (builtins.slice(None),) else parts


def index_plan(key: Any, shape: tuple[int, ...]) -> tuple[Plan, list[Any]]:
    """Python's `x[key]` on an array of this shape: what to do, hashable, and the arrays of indices in it.

    The plan is (spans, shape): one (begin, end, step) per axis, or None where an index array selects; and the shape of
    the result, in which -1 stands for the axes of the index arrays. It is shared by reading and by traced writing.

    Those axes stand where the first index array, or integer beside index arrays, does; in front, as in numpy, if a
    slice or None stands between two of these.
    """
    parts = list(basic_key(key, shape))
    used = sum(1 for p in parts if p is not None and p is not ...)
    if used > len(shape):
        raise IndexError(f"{used} indices for an array with {len(shape)} axes")
    if not any(p is ... for p in parts):
        parts.append(...)
    at = next(i for i, p in enumerate(parts) if p is ...)
    parts[at : at + 1] = [builtins.slice(None)] * (len(shape) - used)
    spans: list[tuple[int, int, int] | None] = []
    result: list[int] = []
    arrays: list[Any] = []
    places: list[int] = []  # of integers and index arrays among the parts
    first = 0  # the place in the result where the first of these stands
    for place, part in enumerate(parts):
        if part is None:
            result.append(1)
            continue
        extent = shape[len(spans)]
        if isinstance(part, builtins.slice):
            span = part.indices(extent)
            spans.append(span)
            result.append(len(range(*span)))
            continue
        first = first if places else len(result)
        places.append(place)
        if isinstance(part, int | np.integer) and not isinstance(part, bool):
            if not -extent <= part < extent:
                raise IndexError(f"index {part} is out of bounds for axis {len(spans)} with extent {extent}")
            i = int(part) % extent
            spans.append((i, i + 1, 1))
        else:
            spans.append(None)
            arrays.append(part)
    if arrays:
        together = places[-1] - places[0] == len(places) - 1
        result.insert(first if together else 0, -1)
    return (tuple(spans), tuple(result)), arrays


def is_contiguous(plan: Plan, shape: tuple[int, ...]) -> bool:
    """Are the elements that a plan without index arrays selects one stretch of memory?"""
    spans, _ = plan
    whole = True  # are all axes behind this one taken whole
    for (begin, end, step), extent in zip(reversed(spans), reversed(shape), strict=True):
        count = len(range(begin, end, step))
        if count == 0 or (step != 1 and count > 1) or (not whole and count > 1):
            return False
        whole = whole and count == extent
    return True


def index(data: Node, *indices: Node, plan: Plan) -> Node:
    """data[key], for the plan that `index_plan` made of the key."""
    spans, result = plan
    whole = [(0, n, 1) if span is None else span for span, n in zip(spans, data.shape, strict=True)]
    part = _sliced(data, whole)
    if not indices:
        return ops.reshape(part, result or (1,))
    chosen = [axis for axis, span in enumerate(spans) if span is None]
    ahead = [axis for axis in range(chosen[0]) if result[0] != -1 or part.shape[axis] == 1]
    behind = [axis for axis in range(len(spans)) if axis not in chosen and axis not in ahead]
    if (order := [*ahead, *chosen, *behind]) != sorted(order):
        part = ops.transpose(part, order)
    at, extents = len(ahead), [data.shape[axis] for axis in chosen]
    joined = ops.reshape(part, (*part.shape[:at], math.prod(extents), *part.shape[at + len(chosen) :]))
    rows = [as_index(each) for each in indices]
    wide = "i64" if any(row.dtype == "i64" for row in rows) else "i32"
    flat = row_major([from_front(ops.cast(row, wide), n) for row, n in zip(rows, extents, strict=True)], extents)
    found = ops.take(joined, flat, axis=at)
    shape = [n for r in result for n in (flat.shape if r == -1 else (r,))]
    return ops.reshape(found, tuple(shape) or (1,))


def row_major(indices: Sequence[Node], extents: Sequence[int]) -> Node:
    """Positions in axes of these extents, row by row, from an index per axis."""
    flat, *rest = indices
    for each, extent in zip(rest, extents[1:], strict=True):
        flat = ops.add(ops.mul(flat, extent), each)
    return flat


def from_front(index: Node, extent: int) -> Node:
    """Indices of an axis counted from the front; negative ones count from behind."""
    return ops.where(ops.less(index, 0), ops.add(index, extent), index)


def index_put(data: Node, value: Value, *, plan: Plan) -> Node:
    """data with data[key] = value done, for a key of slices with step 1 and integers."""
    spans, result = plan
    if any(span is None or span[2] != 1 for span in spans):
        raise MXNetError(
            with_user_location(
                "a traced write takes integers and slices with step 1 only",
                help="use where() with a mask, or one_hot, and make a new array",
            )
        )
    kept = tuple(max(0, e - b) for b, e, _ in spans)
    if isinstance(value, Node):
        value = ops.cast(value, data.dtype)
        if not value.shape == result == kept:  # also of one element without axes, which `_broadcast` has not
            value = ops.reshape(_broadcast(value, result or (1,)), kept)
    else:
        value = ops.full(kept, value, data.dtype)
    if kept == data.shape:
        return value
    before = tuple(b for b, _, _ in spans)
    after = tuple(n - e for (_, e, _), n in zip(spans, data.shape, strict=True))
    mask = ops.pad(ops.full(kept, True, "bool"), before, after, False)
    return ops.where(mask, ops.pad(value, before, after, 0.0 if is_float(data.dtype) else 0), data)
