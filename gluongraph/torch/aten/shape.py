"""Movement of elements: reshapes, permutations, slices, concatenation, padding; and the sizes of arrays."""

from __future__ import annotations

import math
import operator as python
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.errors import UnsupportedError
from gluongraph.ir.graph import Node
from gluongraph.ops.builders import broadcast_shape
from gluongraph.storage import Array
from gluongraph.torch.aten.context import Number, OpContext, cast, constant
from gluongraph.torch.aten.table import TABLE, aten

Ints = Sequence[int]


def sizes(x: Node, wanted: Ints) -> tuple[int, ...]:
    """The extents with -1 replaced by what is left."""
    rest = math.prod(n for n in wanted if n != -1)
    return tuple(x.ty.size // max(rest, 1) if n == -1 else n for n in wanted)


# -- reshapes


@aten("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "_reshape_alias.default")
def view(at: OpContext, self: Node, size: Ints, stride: Any = None) -> Node:
    """The elements in another shape"""
    return ops.reshape(self, sizes(self, size))


@aten("view.dtype")
def view_dtype(at: OpContext, self: Node, dtype: Any) -> Node:
    """The bits as another type"""
    if self.dtype != at.dtype:
        raise at.unsupported("the bits of an array as another element type")
    return self


@aten("view_as.default", "reshape_as.default")
def view_as(at: OpContext, self: Node, other: Node) -> Node:
    """The elements in the shape of another array"""
    return ops.reshape(self, other.shape)


@aten("flatten.using_ints")
def flatten(at: OpContext, self: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    """Several axes as one"""
    rank = max(self.ty.rank, 1)
    first, last = start_dim % rank, end_dim % rank
    shape = self.shape or (1,)
    return ops.reshape(self, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@aten("unflatten.int")
def unflatten(at: OpContext, self: Node, dim: int, sizes: Ints) -> Node:
    """One axis as several"""
    axis = dim % self.ty.rank
    rest = math.prod(n for n in sizes if n != -1)
    inner = (self.shape[axis] // rest if n == -1 else n for n in sizes)
    return ops.reshape(self, (*self.shape[:axis], *inner, *self.shape[axis + 1 :]))


@aten("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze(at: OpContext, self: Node, dim: int | Ints | None = None) -> Node:
    """Without the axes of extent 1"""
    rank = self.ty.rank
    named = range(rank) if dim is None else [d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)]
    return ops.reshape(self, tuple(n for a, n in enumerate(self.shape) if a not in named or n != 1))


@aten("unsqueeze.default", "unsqueeze_copy.default")
def unsqueeze(at: OpContext, self: Node, dim: int) -> Node:
    """With one more axis, of extent 1"""
    axis = dim % (self.ty.rank + 1)
    return ops.reshape(self, (*self.shape[:axis], 1, *self.shape[axis:]))


# -- repetition


@aten("expand.default", "expand_copy.default")
def expand(at: OpContext, self: Node, size: Ints, *, implicit: bool = False) -> Node:
    """Repeated along axes of extent 1; -1 keeps an extent"""
    shape = (1,) * (len(size) - self.ty.rank) + self.shape
    return ops.broadcast_to(self, tuple(n if want == -1 else want for n, want in zip(shape, size, strict=True)))


@aten("expand_as.default")
def expand_as(at: OpContext, self: Node, other: Node) -> Node:
    """Repeated to the shape of another array"""
    return ops.broadcast_to(self, other.shape)


@aten("broadcast_to.default")
def broadcast_to(at: OpContext, self: Node, size: Ints) -> Node:
    """Repeated to a shape"""
    return expand(at, self, size)


@aten("sum_to_size.default")
def sum_to_size(at: OpContext, self: Node, size: Ints) -> Node:
    """Summed over the axes that a broadcast from this shape has repeated"""
    lead = self.ty.rank - len(size)
    axes = [*range(lead), *(lead + k for k, n in enumerate(size) if n == 1 and self.shape[lead + k] != 1)]
    return ops.reshape(ops.sum(self, tuple(axes)), tuple(size)) if axes else self


@aten("broadcast_tensors.default")
def broadcast_tensors(at: OpContext, tensors: Sequence[Node]) -> list[Node]:
    """All repeated to one shape"""
    shape = broadcast_shape(at.name, *(t.ty for t in tensors))
    return [ops.broadcast_to(t, shape) for t in tensors]


@aten("repeat.default", "tile.default")
def repeat(at: OpContext, self: Node, repeats: Ints) -> Node:
    """The whole array several times along each axis"""
    repeats = (*(1,) * (self.ty.rank - len(repeats)), *repeats)
    shape = (1,) * (len(repeats) - self.ty.rank) + self.shape
    apart = ops.reshape(self, tuple(k for n in shape for k in (1, n)))
    told = ops.broadcast_to(apart, tuple(k for r, n in zip(repeats, shape, strict=True) for k in (r, n)))
    return ops.reshape(told, tuple(r * n for r, n in zip(repeats, shape, strict=True)))


@aten("repeat_interleave.self_int")
def repeat_interleave(at: OpContext, self: Node, repeats: int, dim: int | None = None, **how: Any) -> Node:
    """Each element several times"""
    x = ops.reshape(self, (self.ty.size,)) if dim is None else self
    axis = 0 if dim is None else dim % x.ty.rank
    apart = ops.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    told = ops.broadcast_to(apart, (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return ops.reshape(told, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


# -- order of axes and of elements


@aten("permute.default", "permute_copy.default")
def permute(at: OpContext, self: Node, dims: Ints) -> Node:
    """The axes in another order"""
    return ops.transpose(self, tuple(d % self.ty.rank for d in dims)) if self.ty.rank else self


@aten("transpose.int", "swapaxes.default", "swapdims.default", "transpose_copy.int")
def transpose(at: OpContext, self: Node, dim0: int, dim1: int) -> Node:
    """Two axes exchanged"""
    order = list(range(self.ty.rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return ops.transpose(self, tuple(order)) if order else self


@aten(
    "t.default", "t_copy.default", "numpy_T.default", "mT.default", "matrix_H.default", "mH.default", "adjoint.default"
)
def t(at: OpContext, self: Node) -> Node:
    """The last two axes exchanged"""
    return self if self.ty.rank < 2 else transpose(at, self, -1, -2)


@aten("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def movedim(at: OpContext, self: Node, source: int | Ints, destination: int | Ints) -> Node:
    """Some axes at other places"""
    rank = self.ty.rank
    sources, targets = ([v] if isinstance(v, int) else list(v) for v in (source, destination))
    to = {d % rank: s % rank for s, d in zip(sources, targets, strict=True)}
    rest = iter(a for a in range(rank) if a not in to.values())
    return ops.transpose(self, tuple(to[a] if a in to else next(rest) for a in range(rank)))


@aten("flip.default")
def flip(at: OpContext, self: Node, dims: Ints) -> Node:
    """The elements along axes in the other order"""
    return ops.flip(self, tuple(d % self.ty.rank for d in dims)) if dims else self


@aten("fliplr.default")
def fliplr(at: OpContext, self: Node) -> Node:
    """The columns in the other order"""
    return ops.flip(self, (1,))


@aten("flipud.default")
def flipud(at: OpContext, self: Node) -> Node:
    """The rows in the other order"""
    return ops.flip(self, (0,))


@aten("rot90.default")
def rot90(at: OpContext, self: Node, k: int = 1, dims: Ints = (0, 1)) -> Node:
    """Turned by k right angles in the plane of two axes"""
    a, b = (d % self.ty.rank for d in dims)
    turns = k % 4
    if turns == 2:
        return ops.flip(self, (a, b))
    if turns == 1:
        return transpose(at, ops.flip(self, (b,)), a, b)
    return ops.flip(transpose(at, self, a, b), (b,)) if turns else self


@aten("roll.default")
def roll(at: OpContext, self: Node, shifts: int | Ints, dims: Ints = ()) -> Node:
    """The elements moved along axes, from the end to the front"""
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    x = self if axes else ops.reshape(self, (self.ty.size,))
    for shift, dim in zip(moves, axes or [0], strict=True):
        axis, n = dim % x.ty.rank, x.shape[dim]
        if k := shift % n:
            x = ops.concat(ops.part(x, axis, n - k, n), ops.part(x, axis, 0, n - k), axis=axis)
    return ops.reshape(x, self.shape)


# -- parts


@aten("select.int", "select_copy.int")
def select(at: OpContext, self: Node, dim: int, index: int) -> Node:
    """One slice along an axis, without the axis"""
    axis = dim % self.ty.rank
    k = index % self.shape[axis]
    return ops.reshape(ops.part(self, axis, k, k + 1), self.shape[:axis] + self.shape[axis + 1 :])


def sliced(x: Node, axis: int, start: int | None, end: int | None, step: int) -> Node:
    """x[start:end:step] along an axis, by Python's rule"""
    begin, stop, step = slice(start, end, step).indices(x.shape[axis])
    low, high, strides = [0] * x.ty.rank, list(x.shape), [1] * x.ty.rank
    low[axis], high[axis], strides[axis] = begin, max(stop, begin), step
    return ops.slice(x, low, high, strides)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(
    at: OpContext, self: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    """A range along an axis"""
    return sliced(self, dim % self.ty.rank, start, end, step)


@aten("narrow.default", "narrow_copy.default")
def narrow(at: OpContext, self: Node, dim: int, start: int, length: int) -> Node:
    """A range of so many along an axis"""
    axis = dim % self.ty.rank
    begin = start + self.shape[axis] if start < 0 else start
    return ops.part(self, axis, begin, begin + length)


@aten("select_scatter.default")
def select_scatter(at: OpContext, self: Node, src: Node, dim: int, index: int) -> Node:
    """self with one slice along an axis replaced"""
    axis = dim % self.ty.rank
    return slice_scatter(
        at, self, unsqueeze(at, src, axis), axis, index % self.shape[axis], index % self.shape[axis] + 1
    )


@aten("slice_scatter.default")
def slice_scatter(
    at: OpContext, self: Node, src: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    """self with a range along an axis replaced"""
    axis = dim % self.ty.rank
    begin, stop, step = slice(start, end, step).indices(self.shape[axis])
    taken = range(begin, max(stop, begin), step)
    if len(taken) == 0:
        return self
    src = ops.broadcast_to(cast(src, self.dtype), (*self.shape[:axis], len(taken), *self.shape[axis + 1 :]))
    if step == 1:
        parts = [ops.part(self, axis, 0, begin), src, ops.part(self, axis, begin + len(taken), self.shape[axis])]
        return ops.concat(*[p for p in parts if p.ty.size], axis=axis)
    place = np.zeros(self.shape[axis], np.int32)
    place[list(taken)] = np.arange(len(taken))
    hit = np.isin(np.arange(self.shape[axis]), list(taken))
    mask = ops.reshape(constant(hit), tuple(len(hit) if a == axis else 1 for a in range(self.ty.rank)))
    return ops.where(mask, ops.take(src, constant(place), axis), self)


@aten("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor")
def split(at: OpContext, self: Node, split_size: int, dim: int = 0) -> list[Node]:
    """Parts of one extent along an axis; the last may be smaller"""
    n = self.shape[dim]
    return split_with_sizes(at, self, [min(split_size, n - i) for i in range(0, n, split_size)], dim)


@aten("split_with_sizes.default", "split.sizes", "split_with_sizes_copy.default", "unsafe_split_with_sizes.default")
def split_with_sizes(at: OpContext, self: Node, split_sizes: Ints, dim: int = 0) -> list[Node]:
    """Parts of given extents along an axis"""
    axis, begin, found = dim % self.ty.rank, 0, []
    for n in split_sizes:
        found.append(ops.part(self, axis, begin, begin + n))
        begin += n
    return found


@aten("chunk.default", "unsafe_chunk.default")
def chunk(at: OpContext, self: Node, chunks: int, dim: int = 0) -> list[Node]:
    """So many parts along an axis"""
    return split(at, self, -(-self.shape[dim] // chunks), dim)


@aten("tensor_split.sections", "tensor_split.indices")
def tensor_split(at: OpContext, self: Node, given: int | Ints, dim: int = 0) -> list[Node]:
    """Parts of nearly equal extents along an axis, the larger ones first; or parts that end at given places"""
    axis = dim % self.ty.rank
    n = self.shape[axis]
    if isinstance(given, int):
        ends = [k * (n // given) + min(k, n % given) for k in range(1, given)]
    else:
        ends = [slice(None, e).indices(n)[1] for e in given]
    return [sliced(self, axis, a, b, 1) for a, b in zip([0, *ends], [*ends, n], strict=True)]


@aten("hsplit.int", "vsplit.int")
def hsplit(at: OpContext, self: Node, sections: int) -> list[Node]:
    """Equal parts along the columns, or the rows"""
    return tensor_split(at, self, sections, 1 if at.name.startswith("h") and self.ty.rank > 1 else 0)


@aten("unbind.int", "unbind_copy.int")
def unbind(at: OpContext, self: Node, dim: int = 0) -> list[Node]:
    """All slices along an axis"""
    return [select(at, self, dim, k) for k in range(self.shape[dim])]


@aten("unfold.default", "unfold_copy.default")
def unfold(at: OpContext, self: Node, dimension: int, size: int, step: int) -> Node:
    """All windows of an axis, as one more axis at the end"""
    axis = dimension % self.ty.rank
    windows = (self.shape[axis] - size) // step + 1
    index = constant((np.arange(windows)[:, None] * step + np.arange(size)).astype(np.int32))
    return ops.moveaxis(ops.take(self, index, axis), axis + 1, -1)


@aten("diagonal.default", "diagonal_copy.default")
def _diagonal(at: OpContext, self: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonals of the planes of two axes, as the last axis"""
    a, b = dim1 % self.ty.rank, dim2 % self.ty.rank
    n, m = self.shape[a], self.shape[b]
    rows, columns = max(-offset, 0), max(offset, 0)
    length = max(min(n - rows, m - columns), 0)
    others = [k for k in range(self.ty.rank) if k not in (a, b)]
    flat = ops.transpose(self, (*others, a, b))
    flat = ops.reshape(flat, (*flat.shape[:-2], n * m))
    places = (np.arange(length) + rows) * m + np.arange(length) + columns
    return ops.take(flat, constant(places.astype(np.int32)), flat.ty.rank - 1)


diagonal = _diagonal  # the name is also that of arguments


@aten("linalg_diagonal.default")
def linalg_diagonal(at: OpContext, A: Node, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """The diagonals of matrices"""
    return diagonal(at, A, offset, dim1, dim2)


def _places(n: int, offset: int) -> tuple[int, Array]:
    """How large a matrix with so many elements on a diagonal is, and where they are among its elements."""
    size = n + abs(offset)
    rows, columns = max(-offset, 0), max(offset, 0)
    return size, ((np.arange(n) + rows) * size + np.arange(n) + columns).astype(np.int32)


@aten("diag_embed.default")
def diag_embed(at: OpContext, self: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """The last axis as a diagonal of matrices, 0 elsewhere"""
    rank = self.ty.rank + 1
    size, places = _places(self.shape[-1], offset)
    index = np.zeros(size * size, np.int32)
    index[places] = np.arange(len(places))
    hit = constant(np.isin(np.arange(size * size), places))
    flat = ops.where(hit, ops.take(self, constant(index), self.ty.rank - 1), cast(0, self.dtype))
    matrices = ops.reshape(flat, (*self.shape[:-1], size, size))
    a, b = dim1 % rank, dim2 % rank
    rest = iter(range(rank - 2))
    return ops.transpose(matrices, [rank - 2 if k == a else rank - 1 if k == b else next(rest) for k in range(rank)])


@aten("diag.default")
def diag(at: OpContext, self: Node, diagonal: int = 0) -> Node:
    """A diagonal of a matrix; of a vector the matrix"""
    return diag_embed(at, self, diagonal) if self.ty.rank == 1 else _diagonal(at, self, diagonal)


@aten("diagflat.default")
def diagflat(at: OpContext, self: Node, offset: int = 0) -> Node:
    """All elements on a diagonal of a matrix"""
    return diag_embed(at, ops.reshape(self, (self.ty.size,)), offset)


@aten("diagonal_scatter.default")
def diagonal_scatter(at: OpContext, self: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """self with the diagonals of the planes of two axes replaced"""
    a, b = dim1 % self.ty.rank, dim2 % self.ty.rank
    n, m = self.shape[a], self.shape[b]
    rows, columns = max(-offset, 0), max(offset, 0)
    places = (np.arange(src.shape[-1]) + rows) * m + np.arange(src.shape[-1]) + columns
    index = np.zeros(n * m, np.int32)
    index[places] = np.arange(len(places))
    spread = ops.take(cast(src, self.dtype), constant(index), src.ty.rank - 1)
    order = [*(k for k in range(self.ty.rank) if k not in (a, b)), a, b]
    spread = ops.reshape(spread, (*src.shape[:-1], n, m))
    back = ops.transpose(spread, [order.index(k) for k in range(self.ty.rank)])
    hit = ops.reshape(constant(np.isin(np.arange(n * m), places)), (n, m))
    lined = ops.reshape(hit, (*(1,) * (self.ty.rank - 2), n, m))
    return ops.where(ops.transpose(lined, [order.index(k) for k in range(self.ty.rank)]), back, self)


# -- joining


@aten("cat.default", "concat.default", "concatenate.default")
def cat(at: OpContext, tensors: Sequence[Node], dim: int = 0) -> Node:
    """One after another along an axis"""
    parts = [cast(x, at.dtype) for x in tensors if x.ty.size or x.ty.rank > 1]
    full = [x for x in parts if x.ty.size] or parts[:1]
    return full[0] if len(full) == 1 else ops.concat(*full, axis=dim % full[0].ty.rank)


@aten("stack.default")
def stack(at: OpContext, tensors: Sequence[Node], dim: int = 0) -> Node:
    """Along a new axis"""
    parts = [cast(x, at.dtype) for x in tensors]
    return ops.stack(*parts, axis=dim % (parts[0].ty.rank + 1))


def _at_least(x: Node, rank: int) -> Node:
    """With more axes: (n) becomes (1, n), or (1, n, 1); (n, m) becomes (n, m, 1)."""
    if x.ty.rank >= rank:
        return x
    shape = {0: (1,) * rank, 1: (1, *x.shape, 1)[:rank], 2: (*x.shape, 1)}[x.ty.rank]
    return ops.reshape(x, x.shape if rank == 1 and x.ty.rank else shape)


for _rank in (1, 2, 3):
    aten(f"atleast_{_rank}d.default")(lambda at, self, _rank=_rank: _at_least(self, _rank))


def _stacked(name: str, rank: int, axis: int) -> None:
    @aten(f"{name}.default")
    def stacked(at: OpContext, tensors: Sequence[Node]) -> Node:
        parts = [_at_least(x, rank) for x in tensors]
        return cat(at, parts, min(axis, parts[0].ty.rank - 1))


_stacked("hstack", 1, 1)
_stacked("vstack", 2, 0)
_stacked("row_stack", 2, 0)
_stacked("dstack", 3, 2)


@aten("column_stack.default")
def column_stack(at: OpContext, tensors: Sequence[Node]) -> Node:
    """Vectors and matrices as columns"""
    return cat(at, [x if x.ty.rank > 1 else ops.reshape(x, (x.ty.size, 1)) for x in tensors], 1)


@aten("block_diag.default")
def block_diag(at: OpContext, tensors: Sequence[Node]) -> Node:
    """Matrices along a diagonal, 0 elsewhere"""
    parts = [_at_least(cast(x, at.dtype), 2) for x in tensors]
    width, left, rows = sum(x.shape[1] for x in parts), 0, []
    for x in parts:
        rows.append(ops.pad(x, (0, left), (0, width - left - x.shape[1])))
        left += x.shape[1]
    return rows[0] if len(rows) == 1 else ops.concat(*rows, axis=0)


@aten("cartesian_prod.default")
def cartesian_prod(at: OpContext, tensors: Sequence[Node]) -> Node:
    """All tuples with one element of each vector"""
    if len(tensors) == 1:
        return tensors[0]
    return ops.stack(*(ops.reshape(x, (x.ty.size,)) for x in meshgrid(at, tensors)), axis=1)


@aten("meshgrid.indexing", "meshgrid.default")
def meshgrid(at: OpContext, tensors: Sequence[Node], *, indexing: str = "ij") -> list[Node]:
    """Coordinates of the points of a grid"""
    flat = [ops.reshape(x, (x.ty.size,)) for x in tensors]
    order = list(range(len(flat)))
    if indexing == "xy" and len(flat) > 1:
        order[:2] = [1, 0]
    shape = tuple(flat[k].ty.size for k in order)
    return [
        ops.broadcast_to(ops.reshape(x, tuple(n if order[a] == k else 1 for a, n in enumerate(shape))), shape)
        for k, x in enumerate(flat)
    ]


# -- padding


def per_axis(pad: Ints, rank: int) -> tuple[list[int], list[int]]:
    """PyTorch's padding, of the last axis first, as that before and behind each axis."""
    before, after = [0] * rank, [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    return before, after


@aten("constant_pad_nd.default")
def constant_pad(at: OpContext, self: Node, pad: Ints, value: Number = 0) -> Node:
    """Framed by a number; negative padding cuts"""
    before, after = per_axis(pad, self.ty.rank)
    ends = [n - max(-k, 0) for n, k in zip(self.shape, after, strict=True)]
    cut = ops.slice(self, [max(-k, 0) for k in before], ends) if min(*before, *after, 0) < 0 else self
    fill = value if self.dtype[0] in "fb" else int(value)
    return ops.pad(cut, [max(k, 0) for k in before], [max(k, 0) for k in after], fill)


def _edged(mode: str, *overloads: str) -> None:
    @aten(*overloads)
    def edged(at: OpContext, self: Node, padding: Ints) -> Node:
        return framed(self, *per_axis(padding, self.ty.rank), mode)


def framed(x: Node, before: Ints, after: Ints, mode: str) -> Node:
    """Framed by its own elements: mirrored, those at the edge, or from the other end"""
    if mode == "circular" and min(*before, *after) < 0:
        raise UnsupportedError("circular padding that cuts")
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b or a:
            n = x.shape[axis]
            at = np.arange(-b, n + a)
            if mode == "reflect":
                period = max(2 * (n - 1), 1)
                at = np.abs((at + (n - 1)) % period - (n - 1))
            at = np.clip(at, 0, n - 1) if mode == "edge" else at % n
            x = ops.take(x, constant(at.astype(np.int32)), axis)
    return x


_edged("reflect", "reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
_edged("edge", "replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
_edged("circular", "_pad_circular.default")


@aten("pad.default", "_pad_enum.default")
def pad(at: OpContext, self: Node, pad: Ints, mode: str | int = "constant", value: Number | None = None) -> Node:
    """Framed by a number, or by its own elements"""
    if isinstance(mode, int):
        mode = ("reflect", "replicate", "circular", "constant")[mode]
    if mode == "constant":
        return constant_pad(at, self, pad, value or 0)
    return framed(self, *per_axis(pad, self.ty.rank), {"replicate": "edge"}.get(mode, mode))


@aten("tril.default")
def tril(at: OpContext, self: Node, diagonal: int = 0) -> Node:
    """The elements on and below a diagonal, 0 elsewhere"""
    return ops.where(_below(self, diagonal), self, cast(0, self.dtype))


@aten("triu.default")
def triu(at: OpContext, self: Node, diagonal: int = 0) -> Node:
    """The elements on and above a diagonal, 0 elsewhere"""
    return ops.where(_below(self, diagonal - 1), cast(0, self.dtype), self)


def _below(x: Node, diagonal: int) -> Node:
    """Where column - row is at most `diagonal`."""
    shape = (x.shape[-2], x.shape[-1])
    return ops.broadcast_to(ops.less_equal(ops.iota(shape, 1) - ops.iota(shape, 0), diagonal), x.shape)


# -- sizes


@aten("sym_size.int", "size.int")
def sym_size(at: OpContext, self: Node, dim: int) -> int:
    """The extent of an axis"""
    return self.shape[dim]


@aten("sym_numel.default", "numel.default")
def sym_numel(at: OpContext, self: Node) -> int:
    """The number of elements"""
    return self.ty.size


# Arithmetic on sizes that torch.export leaves in the graph.
for _python in (
    python.add, python.sub, python.mul, python.floordiv, python.truediv, python.mod, python.neg, python.pow,
    python.eq, python.ne, python.lt, python.le, python.gt, python.ge, python.and_, python.or_, python.not_,
    python.getitem, math.ceil, math.floor, math.trunc, max, min, round, int, float,
):  # fmt: skip
    TABLE[f"{_python.__module__}.{_python.__name__}"] = lambda at, *args, _function=_python: _function(*args)

for _name, _sym in {
    "sym_max": max, "sym_min": min, "sym_not": python.not_, "sym_int": int, "sym_float": float, "sym_sqrt": math.sqrt,
    "sym_ite": lambda condition, then, other: then if condition else other,
}.items():  # fmt: skip
    TABLE[f"torch.{_name}"] = lambda at, *args, _function=_sym: _function(*args)
