"""What moves elements, makes arrays, and tells shapes. All shapes are known when the graph is built."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext, Value
from gluongraph.onnx.operators.table import operator
from gluongraph.ops.builders import broadcast_to

# -- what shapes are


@operator("Shape")
def shape(at: NodeContext, x: Node, *, start: int = 0, end: int | None = None) -> Node:
    """The extents, or those of the axes from start up to end"""
    return at.constant(np.array(x.shape[start:end], np.int64))


@operator("Size")
def size(at: NodeContext, x: Node) -> Node:
    """The number of elements"""
    return at.constant(np.array(x.ty.size, np.int64))


# -- other shapes


@operator("Reshape", since=5, static=("shape",))
def reshape(at: NodeContext, x: Node, shape: Node, *, allowzero: int = 0) -> Node:
    """Another shape; -1 is what is left, 0 the extent of x there, or with allowzero none"""
    wanted = at.ints(shape, "shape") or ()
    new = [n if n or allowzero else x.shape[a] for a, n in enumerate(wanted)]
    if new.count(-1) == 1:
        rest = -math.prod(new)
        new[new.index(-1)] = x.ty.size // rest if rest else 0
    if math.prod(new) != x.ty.size or min(new, default=0) < 0:
        raise at.wrong(f"{x.ty} has no {x.ty.size} elements in the shape {list(wanted)}")
    return ops.reshape(x, tuple(new))


@operator("Flatten")
def flatten(at: NodeContext, x: Node, *, axis: int = 1) -> Node:
    """A matrix: the axes in front of `axis` are its rows"""
    first = axis if axis == x.ty.rank else at.axis(axis, x.ty.rank) if x.ty.rank else 0
    return ops.reshape(x, (math.prod(x.shape[:first]), math.prod(x.shape[first:])))


@operator("Squeeze")
def squeeze_by_attribute(at: NodeContext, x: Node, *, axes: tuple[int, ...] | None = None) -> Node:
    """Without axes of extent 1"""
    gone = [a for a, n in enumerate(x.shape) if n == 1] if axes is None else at.axes(axes, x.ty.rank)
    if any(x.shape[a] != 1 for a in gone):
        raise at.wrong(f"axes {list(gone)} of {x.ty} are not all 1")
    return ops.reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in gone))


@operator("Squeeze", since=13, static=("axes",))
def squeeze(at: NodeContext, x: Node, axes: Node | None = None) -> Node:
    """Without axes of extent 1"""
    return squeeze_by_attribute(at, x, axes=at.ints(axes, "axes"))


@operator("Unsqueeze")
def unsqueeze_by_attribute(at: NodeContext, x: Node, *, axes: tuple[int, ...]) -> Node:
    """New axes of extent 1, at these places of the result"""
    rank = x.ty.rank + len(axes)
    new = at.axes(axes, rank)
    old = iter(x.shape)
    return ops.reshape(x, tuple(1 if a in new else next(old) for a in range(rank)))


@operator("Unsqueeze", since=13, static=("axes",))
def unsqueeze(at: NodeContext, x: Node, axes: Node) -> Node:
    """New axes of extent 1, at these places of the result"""
    return unsqueeze_by_attribute(at, x, axes=at.ints(axes, "axes") or ())


@operator("Transpose")
def transpose(at: NodeContext, x: Node, *, perm: tuple[int, ...] | None = None) -> Node:
    """The axes in another order, reversed without perm"""
    return ops.transpose(x, None if perm is None else at.axes(perm, x.ty.rank, "perm"))


@operator("Expand", since=8, static=("shape",))
def expand(at: NodeContext, x: Node, shape: Node) -> Node:
    """Broadcast together with an array of this shape"""
    wanted = at.room(at.ints(shape, "shape") or ())
    rank = max(len(wanted), x.ty.rank)
    new = []
    for n, m in zip((1,) * (rank - x.ty.rank) + x.shape, (1,) * (rank - len(wanted)) + wanted, strict=True):
        if n != m and 1 not in (n, m):
            raise at.wrong(f"{x.ty} does not broadcast with the shape {list(wanted)}")
        new.append(m if n == 1 else n)
    return broadcast_to(x, at.room(new))


@operator("Tile", since=6, static=("repeats",))
def tile(at: NodeContext, x: Node, repeats: Node) -> Node:
    """The array so many times along each axis"""
    times = at.ints(repeats, "repeats") or ()
    if len(times) != x.ty.rank:
        raise at.wrong(f"{len(times)} repeats for {x.ty}")
    at.room([n * t for n, t in zip(x.shape, times, strict=True)])
    split = [extent for n in x.shape for extent in (1, n)]
    spread = [extent for n, t in zip(x.shape, times, strict=True) for extent in (t, n)]
    tiled = ops.expand(ops.reshape(x, tuple(split)), tuple(spread))
    return ops.reshape(tiled, tuple(n * t for n, t in zip(x.shape, times, strict=True)))


# -- parts, and what is made of parts


@operator("Concat", since=4)
def concat(at: NodeContext, *xs: Node, axis: int) -> Node:
    """Arrays one behind the other"""
    axis = at.axis(axis, xs[0].ty.rank)
    return ops.concat(*([x for x in xs if x.shape[axis]] or xs[:1]), axis=axis)


def _parts(at: NodeContext, x: Node, axis: int, sizes: tuple[int, ...] | None, count: int) -> list[Value]:
    axis = at.axis(axis, x.ty.rank)
    extent = x.shape[axis]
    if sizes is None:
        each = -(-extent // count)
        sizes = tuple(max(min(each, extent - k * each), 0) for k in range(count))
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise at.wrong(f"parts of {list(sizes)} of axis {axis} of {x.ty}")
    ends = np.cumsum(sizes)
    return [ops.part(x, axis, int(end) - n, int(end)) for n, end in zip(sizes, ends, strict=True)]


@operator("Split", since=2)
def split_by_attribute(at: NodeContext, x: Node, *, axis: int = 0, split: tuple[int, ...] | None = None) -> list[Value]:
    """Parts along an axis, of equal or of given sizes"""
    return _parts(at, x, axis, split, len(at.node.outputs))


@operator("Split", since=13, static=("split",))
def split(
    at: NodeContext, x: Node, split: Node | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> list[Value]:
    """Parts along an axis, of equal or of given sizes"""
    count = len(at.node.outputs)
    if num_outputs not in (None, count):
        raise at.wrong(f"num_outputs={num_outputs}, and there are {count}")
    return _parts(at, x, axis, at.ints(split, "split"), count)


def _sliced(at: NodeContext, x: Node, starts: Any, ends: Any, axes: Any, steps: Any) -> Node:
    axes = at.axes(tuple(range(len(starts))) if axes is None else axes, x.ty.rank)
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise at.wrong(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    begin, end, step = [0] * x.ty.rank, list(x.shape), [1] * x.ty.rank
    for first, last, a, by in zip(starts, ends, axes, steps, strict=True):
        places = range(x.shape[a])[first:last:by]
        if by < 0:
            x, places = ops.flip(x, a), range(x.shape[a])[_flipped(places, x.shape[a])]
        begin[a], step[a] = (places.start, places.step) if places else (0, 1)
        end[a] = places[-1] + 1 if places else 0
    return ops.slice(x, tuple(begin), tuple(end), tuple(step))


def _flipped(places: range, n: int) -> slice:
    """The same places of the reversed axis, which are in rising order there."""
    return slice(n - 1 - places[0], n - places[-1], -places.step) if places else slice(0, 0)


@operator("Slice")
def slice_by_attributes(
    at: NodeContext,
    x: Node,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
) -> Node:
    """Elements from start up to end, on some axes"""
    return _sliced(at, x, starts, ends, axes, None)


@operator("Slice", since=10, static=("starts", "ends", "axes", "steps"))
def slice_by_inputs(
    at: NodeContext, x: Node, starts: Node, ends: Node, axes: Node | None = None, steps: Node | None = None
) -> Node:
    """Elements from start up to end by steps, which may go backwards, on some axes"""
    found = [at.ints(v, n) for v, n in ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps"))]
    return _sliced(at, x, *found)


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _padded(at: NodeContext, x: Node, pads: Any, mode: str, value: Any, axes: Any = None) -> Node:
    at.choose("mode", mode, *_PAD_MODES)
    axes = at.axes(tuple(range(x.ty.rank)) if axes is None else axes, x.ty.rank)
    if len(pads) != 2 * len(axes):
        raise at.wrong(f"{len(pads)} pads for {len(axes)} axes")
    before, after = [0] * x.ty.rank, [0] * x.ty.rank
    for k, a in enumerate(axes):
        before[a], after[a] = pads[k], pads[k + len(axes)]
    at.room([max(n + b + e, 0) for n, b, e in zip(x.shape, before, after, strict=True)])
    begin = tuple(max(-b, 0) for b in before)  # negative pads take elements away
    x = ops.slice(x, begin, tuple(n - max(-e, 0) for n, e in zip(x.shape, after, strict=True)))
    before, after = [max(b, 0) for b in before], [max(e, 0) for e in after]
    if mode == "constant":
        return _with_constant(x, tuple(before), tuple(after), value)
    named: Any = mode  # numpy's name for it, too
    for a, (b, e) in enumerate(zip(before, after, strict=True)):
        if b or e:
            where = np.pad(np.arange(x.shape[a]), (b, e), named)
            x = ops.take(x, ops.literal(where.astype(np.int32)), a)
    return x


def _with_constant(x: Node, before: tuple[int, ...], after: tuple[int, ...], value: Any) -> Node:
    if x.dtype == "bool":
        return ops.cast(_with_constant(ops.cast(x, "u8"), before, after, int(bool(value))), "bool")
    if not isinstance(value, Node):
        return ops.pad(x, before, after, value if is_float(x.dtype) else int(value))
    inside = ops.pad(ops.full(x.shape, 1, "u8"), before, after, 0)
    return ops.where(ops.equal(inside, 1), ops.pad(x, before, after, 0), value)


@operator("Pad", since=2)
def pad_by_attributes(
    at: NodeContext, x: Node, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Node:
    """Elements around: of one value, mirrored, repeated from the edge, or from the other end"""
    return _padded(at, x, pads, mode, value)


@operator("Pad", since=11, static=("pads", "axes"))
def pad(
    at: NodeContext,
    x: Node,
    pads: Node,
    constant_value: Node | None = None,
    axes: Node | None = None,
    *,
    mode: str = "constant",
) -> Node:
    """Elements around: of one value, mirrored, repeated from the edge, or from the other end"""
    value: Any = 0
    if constant_value is not None and mode == "constant":
        simple = constant_value.op.name in ("const", "literal")
        value = at.number(constant_value, "constant_value") if simple else ops.reshape(constant_value, ())
    return _padded(at, x, at.ints(pads, "pads"), mode, value, at.ints(axes, "axes"))


@operator("CenterCropPad", since=18, static=("shape",))
def center_crop_pad(at: NodeContext, x: Node, shape: Node, *, axes: tuple[int, ...] | None = None) -> Node:
    """The middle part, or with zeros around, of the extents given"""
    chosen = at.axes(tuple(range(x.ty.rank)) if axes is None else axes, x.ty.rank)
    before, after = [0] * x.ty.rank, [0] * x.ty.rank
    for a, n in zip(chosen, at.ints(shape, "shape") or (), strict=True):
        more = n - x.shape[a]
        before[a] = more // 2 if more >= 0 else -(-more // 2)
        after[a] = more - before[a]
    return _padded(at, x, (*before, *after), "constant", 0)


@operator("DepthToSpace")
def depth_to_space(at: NodeContext, x: Node, *, blocksize: int, mode: str = "DCR") -> Node:
    """Blocks of channels laid out as blocks of pixels"""
    n, c, h, w = x.shape
    b, inner = blocksize, c // (blocksize * blocksize)
    if at.choose("mode", mode, "DCR", "CRD") == "DCR":
        y = ops.transpose(ops.reshape(x, (n, b, b, inner, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = ops.transpose(ops.reshape(x, (n, inner, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return ops.reshape(y, (n, inner, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(at: NodeContext, x: Node, *, blocksize: int, mode: str = "DCR") -> Node:
    """Blocks of pixels laid out as blocks of channels"""
    n, c, h, w = x.shape
    b = blocksize
    y = ops.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if at.choose("mode", mode, "DCR", "CRD") == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(ops.transpose(y, order), (n, c * b * b, h // b, w // b))


# -- other element types


@operator("Cast", since=6)
def cast(at: NodeContext, x: Node, *, to: int, saturate: int = 1, round_mode: str = "up") -> Node:
    """The same numbers in another type; floats are cut off towards zero when they become integers"""
    dtype = at.dtype(to)  # saturate and round_mode are about types of 8 bits, which do not exist here
    return _as(x, dtype)


@operator("CastLike", since=15)
def cast_like(at: NodeContext, x: Node, like: Node, *, saturate: int = 1, round_mode: str = "up") -> Node:
    """The same numbers in the type of another array"""
    return _as(x, like.dtype)


def _as(x: Node, dtype: str) -> Node:
    return ops.not_equal(x, 0) if dtype == "bool" and x.dtype != "bool" else ops.cast(x, dtype)


@operator("BitCast", since=26)
def bit_cast(at: NodeContext, x: Node, *, to: int) -> Node:
    """The same bits read as another type: of what is known ahead"""
    return at.constant(at.known(x, "input").view(numpy_dtype(at.dtype(to))))


# -- arrays from nothing


@operator("Constant")
def constant(
    at: NodeContext,
    *,
    value: Any = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
) -> Node:
    """An array that is part of the model"""
    if value is not None:
        return at.constant(value)
    for given, dtype in ((value_float, np.float32), (value_floats, np.float32), (value_int, np.int64)):
        if given is not None:
            return at.constant(np.array(given, dtype))
    if value_ints is None:
        raise at.wrong("a constant without a value")
    return at.constant(np.array(value_ints, np.int64))


@operator("ConstantOfShape", since=9, static=("shape",))
def constant_of_shape(at: NodeContext, shape: Node, *, value: Any = None) -> Node:
    """One number everywhere"""
    number = np.zeros(1, np.float32) if value is None else value
    if number.size != 1:
        raise at.wrong(f"value is one number, not {number.size}")
    one = at.constant(number.reshape(()))
    return broadcast_to(one, at.room(at.ints(shape, "shape") or (), DTYPES[one.dtype].nbytes))


@operator("Range", since=11, static=("start", "limit", "delta"))
def range_(at: NodeContext, start: Node, limit: Node, delta: Node, *, stash_type: int = 1) -> Node:
    """start, start + delta, ... up to limit"""
    first, last, by = (at.number(v, n) for v, n in ((start, "start"), (limit, "limit"), (delta, "delta")))
    if not by:
        raise at.wrong("delta is 0")
    if not all(math.isfinite(n) for n in (first, last, by)):
        raise at.wrong(f"from {first} to {last} by {by}")
    (count,) = at.room((max(math.ceil((last - first) / by), 0),), 8)
    if not is_float(start.dtype):
        return at.constant((first + np.arange(count, dtype=np.int64) * by).astype(numpy_dtype(start.dtype)))
    return at.constant((first + np.arange(count) * by).astype(numpy_dtype(start.dtype)))


@operator("EyeLike", since=9)
def eye_like(at: NodeContext, x: Node, *, dtype: int | None = None, k: int = 0) -> Node:
    """1 on a diagonal, else 0, in the shape of a matrix"""
    made = x.dtype if dtype is None else at.dtype(dtype)
    rows, columns = ops.iota(x.shape, 0), ops.iota(x.shape, 1)
    return ops.cast(ops.equal(ops.sub(columns, rows), k), made)
