"""Sums, means, extremes, norms, and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import Number, OpContext, cast
from gluongraph.torch.aten.elementwise import logaddexp
from gluongraph.torch.aten.table import aten

Dims = int | Sequence[int] | None


def axes_of(x: Node, dim: Dims) -> tuple[int, ...]:
    """The axes counted from the front; all for None and for no axes."""
    rank = x.ty.rank
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(rank))
    return tuple(d % max(rank, 1) for d in ([dim] if isinstance(dim, int) else dim)) if rank else ()


def reduced(build: Callable[..., Node], x: Node, dim: Dims, keepdim: bool) -> Node:
    """A reduction by one of `ops`, over these axes."""
    axes = axes_of(x, dim)
    return build(x, axes, keepdim) if axes else x


def _reduction(build: Callable[..., Node], *overloads: str) -> None:
    @aten(*overloads)
    def reduction(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Node:
        return reduced(build, cast(self, at.dtype), dim, keepdim)


_reduction(ops.sum, "sum.default", "sum.dim_IntList")
_reduction(ops.mean, "mean.default", "mean.dim")
_reduction(ops.prod, "prod.default", "prod.dim_int")
# Of several equal extremes each gets a part of the gradient; `max.dim` below gives all to the one that it names.
_reduction(lambda x, *over: _of_bools(ops.max, x, *over) or ops.amax(x, *over), "amax.default", "max.default")
_reduction(lambda x, *over: _of_bools(ops.min, x, *over) or ops.amin(x, *over), "amin.default", "min.default")


def _of_bools(build: Callable[..., Node], x: Node, *over: Any) -> Node | None:
    """An extreme of bools, by way of integers; None for other types."""
    return cast(build(cast(x, "i32"), *over), "bool") if x.dtype == "bool" else None


@aten("aminmax.default")
def aminmax(at: OpContext, self: Node, *, dim: int | None = None, keepdim: bool = False) -> list[Node]:
    """The smallest and the largest"""
    if self.dtype == "bool":
        return [cast(reduced(build, cast(self, "i32"), dim, keepdim), "bool") for build in (ops.min, ops.max)]
    return [reduced(build, self, dim, keepdim) for build in (ops.amin, ops.amax)]


def _extreme(name: str, place: Callable[..., Node]) -> None:
    @aten(f"{name}.dim")
    def extreme(at: OpContext, self: Node, dim: int, keepdim: bool = False) -> list[Node]:
        if not self.ty.rank:
            return [self, ops.const(0, "i64")]
        axis = dim % self.ty.rank
        where = place(cast(self, "i32") if self.dtype == "bool" else self, axis, True, "i64")
        value = ops.gather(self, where, axis)
        if not keepdim:
            shape = self.shape[:axis] + self.shape[axis + 1 :]
            value, where = ops.reshape(value, shape), ops.reshape(where, shape)
        return [value, where]

    @aten(f"arg{name}.default")
    def place_of(at: OpContext, self: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        x = self if dim is not None and self.ty.rank else ops.reshape(self, (self.ty.size,))
        found = place(x, 0 if dim is None or not self.ty.rank else dim, keepdim, "i64")
        return ops.reshape(found, (1,) * self.ty.rank) if keepdim and (dim is None or not self.ty.rank) else found


def largest(x: Node, axis: int) -> Node:
    """The maximum along an axis, whose gradient goes to the first of several equal ones."""
    found = ops.gather(x, ops.argmax(x, axis, True), axis)
    return ops.reshape(found, x.shape[:axis] + x.shape[axis + 1 :])


_extreme("max", ops.argmax)
_extreme("min", ops.argmin)


def _quantified(name: str, build: Callable[..., Node]) -> None:
    @aten(f"{name}.default", f"{name}.dim", f"{name}.dims")
    def quantified(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False) -> Node:
        holds = cast(cast(self, "bool"), "i32")
        if not (at.name.endswith("dims") and dim is not None and not dim):  # no axes are none there, not all
            holds = reduced(build, holds, dim, keepdim)
        return cast(cast(holds, "bool"), at.dtype)


_quantified("any", ops.max)
_quantified("all", ops.min)


@aten("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(at: OpContext, self: Node, dim: Dims = None) -> Node:
    """How many elements are not 0"""
    return reduced(ops.sum, cast(cast(self, "bool"), "i64"), dim, False)


@aten("nansum.default")
def nansum(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False, **how: Any) -> Node:
    """The sum of what is not NaN"""
    x = cast(self, at.dtype)
    return reduced(ops.sum, ops.where(ops.isnan(x), 0.0, x) if is_float(x.dtype) else x, dim, keepdim)


@aten("nanmean.default")
def nanmean(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False, **how: Any) -> Node:
    """The mean of what is not NaN"""
    x = cast(self, at.dtype)
    count = reduced(ops.sum, cast(ops.logical_not(ops.isnan(x)), x.dtype), dim, keepdim)
    return ops.div(nansum(at, x, dim, keepdim), count)


def _variance(x: Node, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Node, Node]:
    axes = axes_of(x, dim)
    mean = ops.mean(x, axes, True)
    count = math.prod(x.shape[a] for a in axes)
    rest = ops.sub(x, mean)
    total = ops.sum(ops.mul(rest, rest), axes, keepdim)
    kept = mean if keepdim else ops.reshape(mean, tuple(n for a, n in enumerate(x.shape) if a not in axes))
    return total / max(count - (1 if correction is None else correction), 0.0), kept


@aten("var.correction", "var.dim", "var.default")
def var(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> Node:
    """The variance: squared distances from the mean, by their number less `correction`"""
    return _variance(self, *_spread_arguments(dim, args, correction, keepdim, how))[0]


@aten("std.correction", "std.dim", "std.default")
def std(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> Node:
    """The square root of the variance"""
    return root(_variance(self, *_spread_arguments(dim, args, correction, keepdim, how))[0])


@aten("var_mean.correction", "var_mean.dim", "var_mean.default")
def var_mean(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> list[Node]:
    """The variance and the mean"""
    return list(_variance(self, *_spread_arguments(dim, args, correction, keepdim, how)))


@aten("std_mean.correction", "std_mean.dim", "std_mean.default")
def std_mean(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> list[Node]:
    """The square root of the variance, and the mean"""
    variance, mean = _variance(self, *_spread_arguments(dim, args, correction, keepdim, how))
    return [root(variance), mean]


def _spread_arguments(
    dim: Any, args: Sequence[Any], correction: Any, keepdim: bool, how: dict[str, Any]
) -> tuple[Any, Any, bool]:
    """Axes, correction and keepdim of the newer overloads, and of the older ones: (dim, unbiased, keepdim)."""
    if isinstance(dim, bool):  # var(x, unbiased)
        return None, int(dim), False
    unbiased = how.get("unbiased", args[0] if args else None)
    return dim, correction if unbiased is None else int(unbiased), args[1] if len(args) > 1 else keepdim


def root(x: Node, order: Number = 2) -> Node:
    """x ** (1 / order), with the gradient 0 at 0."""
    nothing = ops.equal(x, 0.0)
    safe = ops.where(nothing, 1.0, x)
    return ops.where(nothing, 0.0, ops.sqrt(safe) if order == 2 else ops.pow(safe, 1.0 / order))


@aten("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def vector_norm(
    at: OpContext, self: Node, ord: Number | None = 2, dim: Dims = None, keepdim: bool = False, **how: Any
) -> Node:
    """(Σ |x|^ord)^(1/ord); its gradient at 0 is 0"""
    x, order = cast(self, at.dtype), 2 if ord is None else ord
    if order in (math.inf, -math.inf):
        return reduced(ops.amax if order > 0 else ops.amin, ops.abs(x), dim, keepdim)
    if order == 0:
        return reduced(ops.sum, cast(ops.not_equal(x, 0.0), at.dtype), dim, keepdim)
    if order == 1:
        return reduced(ops.sum, ops.abs(x), dim, keepdim)
    return root(reduced(ops.sum, x * x if order == 2 else size_to(x, order), dim, keepdim), order)


def size_to(x: Node, order: Number) -> Node:
    """|x| ** order, with the gradient 0 at 0."""
    nothing = ops.equal(x, 0.0)
    return ops.where(
        nothing, 0.0 if order > 0 else math.inf, ops.pow(ops.abs(ops.where(nothing, 1.0, x)), float(order))
    )


@aten("dist.default")
def dist(at: OpContext, self: Node, other: Node, p: Number = 2) -> Node:
    """The norm of the difference"""
    return vector_norm(at, ops.sub(cast(self, at.dtype), cast(other, at.dtype)), p)


@aten("linalg_norm.default", "linalg_norm.ord_str", "linalg_matrix_norm.default", "linalg_matrix_norm.str_ord")
def linalg_norm(
    at: OpContext, self: Node, ord: Any = None, dim: Dims = None, keepdim: bool = False, **how: Any
) -> Node:
    """The norm of vectors; of matrices "fro", and the largest or smallest sum of a column (1, -1) or row (inf, -inf)"""
    of_matrices = "matrix" in at.name
    ord = "fro" if of_matrices and ord is None else ord
    dim = (-2, -1) if of_matrices and dim is None else dim
    pair = not isinstance(dim, int) and (self.ty.rank == 2 if dim is None else len(dim) == 2)
    if ord is None or ord == "fro" or not pair:
        return vector_norm(at, self, 2 if ord == "fro" else ord, dim, keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise at.unsupported(f"the norm {ord!r} of matrices, which takes singular values")
    row, column = axes_of(self, dim)
    summed, other = (row, column) if abs(ord) == 1 else (column, row)
    sums = ops.sum(ops.abs(cast(self, at.dtype)), (summed,), True)
    found = (ops.amax if ord > 0 else ops.amin)(sums, (other,), True)
    return (
        found if keepdim else ops.reshape(found, tuple(n for a, n in enumerate(self.shape) if a not in (row, column)))
    )


@aten("renorm.default")
def renorm(at: OpContext, self: Node, p: Number, dim: int, maxnorm: Number) -> Node:
    """Slices along an axis, those with a larger norm made as small as that"""
    axis = dim % self.ty.rank
    norm = vector_norm(at, self, p, [a for a in range(self.ty.rank) if a != axis], True)
    return ops.mul(self, ops.where(ops.greater(norm, maxnorm), ops.div(maxnorm, norm + 1e-7), 1.0))


@aten("cumsum.default")
def cumsum(at: OpContext, self: Node, dim: int, **how: Any) -> Node:
    """Sums of the elements up to each along an axis"""
    x = cast(self, at.dtype)
    return ops.cumsum(x, dim % x.ty.rank) if x.ty.rank else x


# -- what has no op of its own: by log2(n) steps, each of which joins every element with one further in front


def _running(xs: list[Node], axis: int, join: Callable[[list[Node], list[Node]], list[Node]]) -> list[Node]:
    """All elements up to each, joined. `join(earlier, later)` is associative."""
    n, shift = xs[0].shape[axis], 1
    while shift < n:
        earlier = [ops.part(x, axis, 0, n - shift) for x in xs]
        joined = join(earlier, [ops.part(x, axis, shift, n) for x in xs])
        xs = [ops.concat(ops.part(x, axis, 0, shift), y, axis=axis) for x, y in zip(xs, joined, strict=True)]
        shift *= 2
    return xs


@aten("cumprod.default")
def cumprod(at: OpContext, self: Node, dim: int, **how: Any) -> Node:
    """Products of the elements up to each along an axis"""
    x = cast(self, at.dtype)
    return _running([x], dim % x.ty.rank, lambda a, b: [ops.mul(a[0], b[0])])[0] if x.ty.rank else x


@aten("logcumsumexp.default")
def logcumsumexp(at: OpContext, self: Node, dim: int) -> Node:
    """log Σ exp(x) of the elements up to each along an axis"""
    x = self
    return _running([x], dim % x.ty.rank, lambda a, b: [logaddexp(at, a[0], b[0])])[0] if x.ty.rank else x


def _running_extreme(name: str, wins: Callable[[Node, Node], Node]) -> None:
    @aten(f"{name}.default")
    def extreme(at: OpContext, self: Node, dim: int) -> list[Node]:
        if not self.ty.rank:
            return [self, ops.const(0, "i64")]
        axis, x = dim % self.ty.rank, cast(self, "i32") if self.dtype == "bool" else self

        def join(earlier: list[Node], later: list[Node]) -> list[Node]:
            a, b = earlier[0], later[0]
            hit = wins(b, a)
            if is_float(x.dtype):
                hit = ops.logical_or(ops.logical_and(hit, ops.logical_not(ops.isnan(a))), ops.isnan(b))
            return [ops.where(hit, v, u) for u, v in zip(earlier, later, strict=True)]

        _, where = _running([ops.stop_gradient(x), ops.iota(x.shape, axis, "i64")], axis, join)
        return [ops.gather(self, where, axis), where]


_running_extreme("cummax", ops.greater_equal)
_running_extreme("cummin", ops.less_equal)


@aten("logsumexp.default")
def logsumexp(at: OpContext, self: Node, dim: Dims, keepdim: bool = False) -> Node:
    """log Σ exp(x)"""
    axes, self = axes_of(self, dim), cast(self, at.dtype)
    if not axes:
        return self
    most = ops.stop_gradient(ops.max(self, axes, True))
    most = ops.where(ops.isfinite(most), most, 0.0)
    total = ops.add(ops.log(ops.sum(ops.exp(ops.sub(self, most)), axes, True)), most)
    return total if keepdim else ops.reshape(total, tuple(n for a, n in enumerate(self.shape) if a not in axes))


@aten("diff.default")
def diff(
    at: OpContext, self: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None
) -> Node:
    """Differences of neighbours along an axis, n times"""
    axis = dim % self.ty.rank
    parts = [x for x in (prepend, self, append) if x is not None]
    x = ops.concat(*parts, axis=axis) if len(parts) > 1 else self
    for _ in range(n):
        later, earlier = ops.part(x, axis, 1, x.shape[axis]), ops.part(x, axis, 0, x.shape[axis] - 1)
        x = ops.not_equal(later, earlier) if x.dtype == "bool" else ops.sub(later, earlier)
    return x


@aten("sort.default", "sort.stable")
def sort(
    at: OpContext, self: Node, *args: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> list[Node]:
    """The elements in order along an axis, and where they were"""
    dim, descending = ([*args, *(dim, descending)[len(args) :]]) if at.name.endswith("default") else (dim, descending)
    order = _order(self, dim % max(self.ty.rank, 1), descending)
    return [_gathered(self, order, dim), order]


@aten("msort.default")
def msort(at: OpContext, self: Node) -> Node:
    """The elements in order along the first axis"""
    return _gathered(self, _order(self, 0, False), 0)


@aten("argsort.default", "argsort.stable")
def argsort(at: OpContext, self: Node, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Node:
    """Where the elements in order were"""
    return _order(self, dim % max(self.ty.rank, 1), descending)


def _order(x: Node, axis: int, descending: bool) -> Node:
    """Places of the elements in order; equal ones in theirs, NaN as the largest."""
    if not x.ty.rank:
        return ops.const(0, "i64")
    x = cast(x, "i32") if x.dtype == "bool" else x
    if not descending:
        return cast(ops.argsort(x, axis), "i64")
    backwards = ops.flip(ops.argsort(ops.flip(x, axis), axis), axis)
    return ops.sub(x.shape[axis] - 1, cast(backwards, "i64"))


def _gathered(x: Node, order: Node, dim: int) -> Node:
    return ops.gather(x, order, dim % x.ty.rank) if x.ty.rank else x


@aten("topk.default")
def topk(at: OpContext, self: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Node]:
    """The k largest elements along an axis, and where they are"""
    if not self.ty.rank:
        return [self, ops.const(0, "i64")]
    axis = dim % self.ty.rank
    where = ops.part(_order(self, axis, largest), axis, 0, k)
    return [ops.gather(self, where, axis), where]


# -- by rank: the elements in order, and one of them


def _at_rank(x: Node, axis: int, rank: Node | int, keepdim: bool) -> list[Node]:
    """The element of this rank along an axis, and where it is."""
    order = _order(x, axis, False)
    if isinstance(rank, int):
        where = ops.part(order, axis, rank, rank + 1)
    else:
        where = ops.gather(order, cast(rank, "i64"), axis)
    value = ops.gather(x, where, axis)
    if keepdim:
        return [value, where]
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return [ops.reshape(value, shape), ops.reshape(where, shape)]


@aten("kthvalue.default")
def kthvalue(at: OpContext, self: Node, k: int, dim: int = -1, keepdim: bool = False) -> list[Node]:
    """The k-th smallest along an axis, and where it is"""
    return _at_rank(self, dim % self.ty.rank, k - 1, keepdim) if self.ty.rank else [self, ops.const(0, "i64")]


def _median_rank(x: Node, axis: int, ignoring: bool) -> Node | int:
    """The rank of the lower median; with a NaN that of the first NaN, unless they are left out."""
    n = x.shape[axis]
    if not is_float(x.dtype):
        return (n - 1) // 2
    some = ops.sum(cast(ops.logical_not(ops.isnan(x)), "i32"), (axis,), True)
    middle = ops.maximum(ops.floordiv(some - 1, 2), 0)
    return middle if ignoring else ops.where(ops.less(some, n), some, middle)


def _median(name: str, ignoring: bool) -> None:
    @aten(f"{name}.dim")
    def median_of(at: OpContext, self: Node, dim: int, keepdim: bool = False) -> list[Node]:
        if not self.ty.rank:
            return [self, ops.const(0, "i64")]
        axis = dim % self.ty.rank
        return _at_rank(self, axis, _median_rank(self, axis, ignoring), keepdim)

    @aten(f"{name}.default")
    def median(at: OpContext, self: Node) -> Node:
        flat = ops.reshape(self, (self.ty.size,))
        value = ops.stop_gradient(_at_rank(flat, 0, _median_rank(flat, 0, ignoring), False)[0])
        if not is_float(self.dtype):
            return value
        equal = cast(ops.equal(flat, value), self.dtype)  # all of them share the gradient
        change = ops.where(ops.isnan(flat), 0.0, ops.sub(flat, ops.stop_gradient(flat)))
        return ops.add(value, ops.sum(change * equal) / ops.maximum(ops.sum(equal), 1.0))


_median("median", False)
_median("nanmedian", True)


def _quantile(name: str, ignoring: bool) -> None:
    @aten(f"{name}.default", f"{name}.scalar")
    def quantile(
        at: OpContext,
        self: Node,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Node:
        flat = dim is None or not self.ty.rank
        x, axis = (ops.reshape(self, (self.ty.size,)), 0) if flat else (self, (dim or 0) % self.ty.rank)
        shares = ops.reshape(q, (q.ty.size,)) if isinstance(q, Node) else ops.full((1,), q, x.dtype)
        found = _ranked(x, axis, shares, interpolation, ignoring)  # the shares as the last axis
        shape = (
            tuple(1 if a == axis or dim is None else n for a, n in enumerate(self.shape))
            if keepdim
            else found.shape[:-1]
        )
        many = isinstance(q, Node) and q.ty.rank == 1
        return ops.reshape(ops.moveaxis(found, -1, 0), ((shares.ty.size, *shape) if many else shape))


def _ranked(x: Node, axis: int, shares: Node, interpolation: str, ignoring: bool) -> Node:
    """Between which elements in order a share of all lies, and what is there."""
    last = ops.moveaxis(x, axis, -1)
    ordered = ops.gather(last, _order(last, last.ty.rank - 1, False), last.ty.rank - 1)
    some = ops.sum(cast(ops.logical_not(ops.isnan(ordered)), x.dtype), (-1,), True)
    rank = ops.mul(ops.broadcast_to(shares, (*last.shape[:-1], shares.ty.size)), ops.maximum(some - 1.0, 0.0))
    if not ignoring:
        rank = ops.where(ops.less(some, float(last.shape[-1])), last.shape[-1] - 1.0, rank)  # there is a NaN
    rank = {"lower": ops.floor, "higher": ops.ceil, "nearest": ops.round}.get(interpolation, lambda r: r)(rank)
    below, above = (cast(rounded(rank), "i64") for rounded in (ops.floor, ops.ceil))
    low, high = (ops.gather(ordered, where, last.ty.rank - 1) for where in (below, above))
    part = ops.full(rank.shape, 0.5, x.dtype) if interpolation == "midpoint" else ops.sub(rank, ops.floor(rank))
    return ops.add(low, ops.mul(part, ops.sub(high, low)))


_quantile("quantile", False)
_quantile("nanquantile", True)


@aten("trace.default")
def trace(at: OpContext, self: Node) -> Node:
    """The sum of the diagonal"""
    rows, columns = self.shape
    on = ops.equal(ops.iota((rows, columns), 0), ops.iota((rows, columns), 1))
    return ops.sum(ops.where(on, cast(self, at.dtype), cast(0, at.dtype)))
