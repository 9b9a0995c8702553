"""Reading and writing where another array says."""

from __future__ import annotations

import numpy as np

from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.onnx.export.rules.terms import Made, Source, Term, each, ints, term
from gluongraph.onnx.export.rules.view import View, rule
from gluongraph.onnx.format.model import NUMBERS


def clipped(n: Node, size: int) -> Source:
    """Numbers of places as int64 within 0 .. size - 1, as `take` reads them; ONNX counts negative ones from the end."""
    return each("Clip", each("Cast", n, to=NUMBERS["i64"]), np.asarray(0, np.int64), np.asarray(size - 1, np.int64))


def bounded(n: Node, size: int) -> Source:
    """The same, without Clip where the node says already that they lie there."""
    inner = n.src[0] if n.op.name == "cast" and not is_float(n.src[0].dtype) else n
    if inner.op.name == "minimum" and inner.src[0].op.name == "maximum":
        low, high = inner.src[0].src[1], inner.src[1]
        if low.op.name == high.op.name == "const" and low.attrs["value"] >= 0 and high.attrs["value"] < size:
            return n if n.dtype in ("i32", "i64") else each("Cast", n, to=NUMBERS["i64"])
    return clipped(n, size)


@rule("take")
def take(view: View, n: Node) -> Made | None:
    x, indices = n.src
    return term("Gather", x, bounded(indices, x.shape[n.attrs["axis"]]), axis=n.attrs["axis"])


@rule("embedding")
def embedding(view: View, n: Node) -> Made | None:
    """Gather; numbers of rows outside of the table are an error there, where they are moved into it here."""
    indices, weight = n.src
    fits = indices.dtype in ("i32", "i64")
    return term("Gather", weight, indices if fits else term("Cast", indices, to=NUMBERS["i64"]), axis=0)


@rule("checked_index")
def checked_index(view: View, n: Node) -> Made | None:
    """The index itself: what reads it there checks it, or clips it."""
    x = n.src[0]
    return term("Identity", x) if x.dtype == n.dtype else term("Cast", x, to=NUMBERS[n.dtype])


@rule("gather")
def gather(view: View, n: Node) -> Made | None:
    x, indices = n.src
    axis = n.attrs["axis"]
    return term("GatherElements", x, bounded(indices, x.shape[axis]), axis=axis)


@rule("scatter_add")
def scatter_add(view: View, n: Node) -> Made | None:
    x, indices, updates = n.src
    places = term("Unsqueeze", bounded(indices, x.shape[0]), ints(indices.ty.rank))
    return term("ScatterND", x, places, updates, reduction="add")


@rule("one_hot")
def one_hot(view: View, n: Node) -> Made | None:
    """Equal to 0, 1, 2, ...: unlike OneHot it knows no negative numbers."""
    (indices,) = n.src
    numbers = np.arange(n.attrs["depth"]).astype(numpy_dtype(indices.dtype))
    hit = each("Equal", term("Unsqueeze", indices, ints(indices.ty.rank)), numbers)
    return term("Cast", hit, to=NUMBERS[n.dtype])


@rule("depth_windows")
def depth_windows(view: View, n: Node) -> Made | None:
    """The slices along the depth that each window reads, of a padded volume."""
    (x,), how = n.src, n.attrs
    pads = [0] * 10
    pads[2] = pads[7] = how["padding"]
    framed = term("Pad", x, ints(*pads), np.asarray(0, numpy_dtype(x.dtype)), mode="constant")
    places = np.arange(n.shape[1])[:, None] * how["stride"] + np.arange(how["kernel"]) * how["dilation"]
    return term("Transpose", term("Gather", framed, places.astype(np.int64), axis=2), perm=(0, 2, 1, 3, 4, 5))


@rule("argsort")
def argsort(view: View, n: Node) -> Made | None:
    """The order that TopK of all elements finds; of equal ones it takes the first first."""
    (x,), axis = n.src, n.attrs["axis"]
    extent = view.sizes(n)[axis]
    if not isinstance(extent, int):
        return None
    places = Term("TopK", (x, ints(extent)), {"axis": axis, "largest": 0, "sorted": 1}, output=1)
    return term("Cast", places, to=NUMBERS["i32"])
