"""Movement: reshape, transpose, slices, padding, joining; and constants."""

from __future__ import annotations

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.onnx.export.rules.extents import Extent, Free
from gluongraph.onnx.export.rules.terms import Made, Sizes, ints, term
from gluongraph.onnx.export.rules.view import View, free, rule

Extents = tuple[Extent, ...]


@rule("const")
def const(view: View, n: Node) -> Made | None:
    """The number alone; who reads it repeats it."""
    return term("Constant", np.asarray(n.attrs["value"], numpy_dtype(n.dtype)))


@rule("literal")
def literal(view: View, n: Node) -> Made | None:
    assert n.op.numpy is not None
    return term("Constant", np.asarray(n.op.numpy(**n.attrs)))


@rule("iota")
def iota(view: View, n: Node) -> Made | None:
    """Numbers along their axis alone; who reads them repeats them."""
    axis, shape = n.attrs["axis"], view.sizes(n)
    extent = shape[axis]
    if isinstance(extent, Free):
        raise view.refused(n, "numbers along an axis that follows the batch; dynamic_batch=False fixes it")
    numbers = np.arange(extent).astype(numpy_dtype(n.dtype))
    return term("Constant", numbers.reshape(-1, *[1] * (len(shape) - 1 - axis)))


@rule("expand")
def expand(view: View, n: Node) -> Made | None:
    """The source, which its readers repeat."""
    return n.src[0]


@rule("reshape")
def reshape(view: View, n: Node) -> Made | None:
    """Flatten, Squeeze, Unsqueeze or Gather where it is one of them."""
    x, target = n.src[0], view.sizes(n)
    if (picked := _picked(view, n)) is not None:
        return picked
    while x.op.name == "reshape" and view.inner(x) and view.inner(n.src[0]):
        x = x.src[0]  # its shape on the way does not matter
    source = view.sizes(x)
    if source == target:
        return x
    if len(target) == 2 and len(source) > 2 and source[0] == target[0]:
        return term("Flatten", x, axis=1)
    if (axes := added(source, target)) is not None:
        return term("Unsqueeze", x, ints(*axes))
    if (axes := added(target, source)) is not None:
        return term("Squeeze", x, ints(*axes))
    return term("Reshape", x, _wanted(source, target))


def added(short: Extents, long: Extents) -> list[int] | None:
    """The axes of size 1 that `long` has beyond `short`; None if that is not all."""
    axes, k = [], 0
    for axis, n in enumerate(long):
        if k < len(short) and short[k] == n:
            k += 1
        elif n == 1:
            axes.append(axis)
        else:
            return None
    return axes if k == len(short) and axes else None


def _wanted(source: Extents, target: Extents) -> Sizes:
    """The shape for Reshape: 0 copies an extent of the same place, and -1 is what is left."""
    sizes: list[Extent] = []
    left = len(free(target)) > 0
    for axis, n in enumerate(target):
        if isinstance(n, Free) and axis < len(source) and source[axis] == n:
            sizes.append(0)
        elif isinstance(n, Free) and left:
            sizes.append(-1)
            left = False
        else:
            sizes.append(n)
    return Sizes(tuple(sizes))


def _picked(view: View, n: Node) -> Made | None:
    """Gather, where one place of an axis is taken and the axis left out."""
    part = n.src[0]
    if part.op.name != "slice" or not view.inner(part):
        return None
    x, begin, strides = part.src[0], part.attrs["begin"], part.attrs["strides"]
    sizes, rest = view.sizes(x), view.sizes(part)
    cut = [a for a, (m, k) in enumerate(zip(sizes, rest, strict=True)) if m != k]
    if len(cut) != 1 or rest[cut[0]] != 1 or set(strides) != {1}:
        return None
    axis = cut[0]
    if view.sizes(n) != (*rest[:axis], *rest[axis + 1 :]):
        return None
    return term("Gather", x, np.asarray(begin[axis], np.int64), axis=axis)


@rule("transpose")
def transpose(view: View, n: Node) -> Made | None:
    return term("Transpose", n.src[0], perm=n.attrs["axes"])


@rule("slice")
def slice_(view: View, n: Node) -> Made | None:
    """Over the axes that it cuts."""
    (x,), begin, strides = n.src, n.attrs["begin"], n.attrs["strides"]
    ends, sizes = view.pairs.attribute(n, "end"), view.sizes(x)
    axes = [a for a in range(len(sizes)) if begin[a] or strides[a] != 1 or ends[a] != sizes[a]]
    if not axes:
        return x
    stops = Sizes(tuple(ends[a] for a in axes))
    starts, steps = ints(*(begin[a] for a in axes)), ints(*(strides[a] for a in axes))
    return term("Slice", x, starts, stops, ints(*axes), *([] if set(steps.tolist()) == {1} else [steps]))


@rule("flip")
def flip(view: View, n: Node) -> Made | None:
    axes = n.attrs["axes"]
    count, lowest = len(axes), np.iinfo(np.int64).min
    return term("Slice", n.src[0], ints(*[-1] * count), ints(*[lowest] * count), ints(*axes), ints(*[-1] * count))


@rule("concat")
def concat(view: View, n: Node) -> Made | None:
    return term("Concat", *n.src, axis=n.attrs["axis"])


@rule("pad")
def pad(view: View, n: Node) -> Made | None:
    value = np.asarray(n.attrs["value"], numpy_dtype(n.dtype))
    return term("Pad", n.src[0], ints(*n.attrs["before"], *n.attrs["after"]), value, mode="constant")
