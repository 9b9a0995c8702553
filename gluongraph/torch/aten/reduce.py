"""Sums, means, extremes, norms, and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import Number, OpContext, cast
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
_reduction(ops.amax, "amax.default", "max.default")
_reduction(ops.amin, "amin.default", "min.default")


def _extreme(name: str, place: Callable[..., Node]) -> None:
    @aten(f"{name}.dim")
    def extreme(at: OpContext, self: Node, dim: int, keepdim: bool = False) -> list[Node]:
        if not self.ty.rank:
            return [self, ops.const(0, "i64")]
        axis = dim % self.ty.rank
        where = place(self, axis, True, "i64")
        value = ops.gather(self, where, axis)
        if not keepdim:
            shape = self.shape[:axis] + self.shape[axis + 1 :]
            value, where = ops.reshape(value, shape), ops.reshape(where, shape)
        return [value, where]

    @aten(f"arg{name}.default")
    def place_of(at: OpContext, self: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        x = self if dim is not None and self.ty.rank else ops.reshape(self, (self.ty.size,))
        found = place(x, 0 if dim is None or not self.ty.rank else dim, keepdim, "i64")
        return ops.reshape(found, (1,) * self.ty.rank) if dim is None and keepdim else found


_extreme("max", ops.argmax)
_extreme("min", ops.argmin)


@aten("any.default", "any.dim", "any.dims")
def any_of(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Does it hold anywhere?"""
    return cast(reduced(ops.max, cast(cast(self, "bool"), "i32"), dim, keepdim), "bool")


@aten("all.default", "all.dim", "all.dims")
def all_of(at: OpContext, self: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Does it hold everywhere?"""
    return cast(reduced(ops.min, cast(cast(self, "bool"), "i32"), dim, keepdim), "bool")


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
    return ops.sqrt(_variance(self, *_spread_arguments(dim, args, correction, keepdim, how))[0])


@aten("var_mean.correction", "var_mean.dim")
def var_mean(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> list[Node]:
    """The variance and the mean"""
    return list(_variance(self, *_spread_arguments(dim, args, correction, keepdim, how)))


@aten("std_mean.correction", "std_mean.dim")
def std_mean(
    at: OpContext, self: Node, dim: Dims = None, *args: Any, correction: Any = 1, keepdim: bool = False, **how: Any
) -> list[Node]:
    """The square root of the variance, and the mean"""
    variance, mean = _variance(self, *_spread_arguments(dim, args, correction, keepdim, how))
    return [ops.sqrt(variance), mean]


def _spread_arguments(
    dim: Any, args: Sequence[Any], correction: Any, keepdim: bool, how: dict[str, Any]
) -> tuple[Any, Any, bool]:
    """Axes, correction and keepdim of the newer overloads, and of the older ones: (dim, unbiased, keepdim)."""
    if isinstance(dim, bool):  # var(x, unbiased)
        return None, int(dim), False
    unbiased = how.get("unbiased", args[0] if args else None)
    return dim, correction if unbiased is None else int(unbiased), args[1] if len(args) > 1 else keepdim


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
    total = reduced(ops.sum, x * x if order == 2 else ops.pow(ops.abs(x), float(order)), dim, keepdim)
    nothing = ops.equal(total, 0.0)
    safe = ops.where(nothing, 1.0, total)
    return ops.where(nothing, 0.0, ops.sqrt(safe) if order == 2 else ops.pow(safe, 1.0 / order))


@aten("linalg_norm.default")
def linalg_norm(
    at: OpContext, self: Node, ord: Number | None = None, dim: Dims = None, keepdim: bool = False, **how: Any
) -> Node:
    """The norm of all elements, or of vectors"""
    if isinstance(ord, str) or (
        ord is not None and self.ty.rank > 1 and (dim is None or (not isinstance(dim, int) and len(dim) == 2))
    ):
        raise at.unsupported(f"the norm {ord!r} of matrices")
    return vector_norm(at, self, ord, dim, keepdim)


@aten("cumsum.default")
def cumsum(at: OpContext, self: Node, dim: int, **how: Any) -> Node:
    """Sums of the elements up to each along an axis"""
    x = cast(self, at.dtype)
    return ops.cumsum(x, dim % x.ty.rank) if x.ty.rank else x


@aten("logsumexp.default")
def logsumexp(at: OpContext, self: Node, dim: Dims, keepdim: bool = False) -> Node:
    """log Σ exp(x)"""
    axes = axes_of(self, dim)
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
    return [ops.gather(self, order, dim % self.ty.rank), cast(order, "i64")]


@aten("argsort.default", "argsort.stable")
def argsort(at: OpContext, self: Node, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Node:
    """Where the elements in order were"""
    return cast(_order(self, dim % self.ty.rank, descending), "i64")


def _order(x: Node, axis: int, descending: bool) -> Node:
    if descending and not is_float(x.dtype):
        return (
            ops.argsort(ops.cast(x, "f32") * -1.0, axis) if x.dtype in ("u8", "bool") else ops.argsort(ops.neg(x), axis)
        )
    return ops.argsort(ops.neg(x) if descending else x, axis)


@aten("topk.default")
def topk(at: OpContext, self: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Node]:
    """The k largest elements along an axis, and where they are"""
    axis = dim % self.ty.rank
    where = ops.part(_order(self, axis, largest), axis, 0, k)
    return [ops.gather(self, where, axis), cast(where, "i64")]
