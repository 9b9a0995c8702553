"""A group's values at an index: each node's `lower` rule, down to loads that know when elements are contiguous."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gluongraph.codegen.expr.algebra import VectorAlgebra
from gluongraph.codegen.expr.evaluate import Evaluator, Index, Load
from gluongraph.codegen.rule import Bindings
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Group


def flat(shape: tuple[int, ...], index: Index) -> Value:
    """Return the row-major position of an index."""
    at: Value = 0
    for d, i in zip(shape, index, strict=True):
        at = i if isinstance(at, int) and at == 0 else at * d + i
    return at


def unflatten(at: Value, shape: tuple[int, ...]) -> Index:
    """Return the index of a row-major position. The first component may exceed its axis."""
    index: list[Value] = []
    for d in reversed(shape[1:]):
        index.append(_floormod(at, d) if d > 1 else 0)
        at = _floordiv(at, d) if d > 1 else at
    return (*([at] if shape else []), *reversed(index))


def _floormod(at: Value, d: int) -> Value:
    return at % d if isinstance(at, int) else tir.floormod(at, tir.splat(tir.index(d), tir.lanes_of(at)))


def _floordiv(at: Value, d: int) -> Value:
    return at // d if isinstance(at, int) else tir.floordiv(at, tir.splat(tir.index(d), tir.lanes_of(at)))


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of elements."""
    return math.prod(shape)


class Expressions(Evaluator):
    """Evaluates the nodes of a group's body, which read the group's buffers.

    An index may contain a vector, made by `tir.ramp` and arithmetic on it: the result then has as many lanes. `known`
    says how to read values that are already computed.
    """

    def __init__(self, k: Kernel, group: Group, bindings: Bindings, known: Mapping[Node, Load] | None = None):
        super().__init__(VectorAlgebra(k), known or {})
        self.k = k
        self.memory: dict[Node, Buf] = bindings.by_node(group)
        # The vector that indices are computed from, and a variable for one lane of it.
        self._ramp: Expr | None = None
        self._lane: Expr | None = None

    def along(self, at: Value, lanes: int, extent: int) -> Expr:
        """Return the index vector at, at + 1, ... on an axis of `extent` elements; knowing the extent simplifies index
        arithmetic."""
        self._ramp = tir.ramp(at, lanes)
        if lanes > 1:
            self._lane = tir.variable("lane")
            self.k.ranges.bind(self._lane, extent)
        return self._ramp

    def at(self, n: Node, index: Index) -> Expr:
        """Return n's element at an index, or its elements where a coordinate is a vector."""
        self._see(index)
        lanes = max([tir.lanes_of(i) for i in index], default=1)
        self.algebra.lanes = lanes
        value = self.element(n, index)
        if isinstance(value, int | float):
            value = self.algebra.const(value, n.dtype)
        return tir.splat(value, lanes)

    def _see(self, index: Index) -> None:
        """Without `along`, assume that the vectors of an index are computed from its first ramp."""
        for i in index:
            if isinstance(i, int | float) or tir.lanes_of(i) == 1 or tir.ramp_parts(i) is None:
                continue
            if self._ramp is None or not i.same_as(self._ramp):
                self._ramp, self._lane = i, tir.variable("lane")

    def lower(self, n: Node, index: Index) -> Expr:
        """Return n's element by its rule, or a load if n is in memory."""
        if (root := self._stored(n)) is not None:
            return self.load(self.memory[root], n, index)
        return super().lower(n, index)

    def _stored(self, n: Node) -> Node | None:
        """Return the input that n is, or is a reshaped view of; else None."""
        while n.op.name == "reshape":
            (n,) = n.src
        return n if n in self.memory and n not in self.known else None

    def load(self, buf: Buf, n: Node, index: Index) -> Expr:
        """Load elements of a buffer in the layout of n; bf16 is converted to f32."""
        value = self._load(buf, n.shape, index)
        return tir.cast(value, "f32") if buf.dtype == "bf16" else value

    def _load(self, buf: Buf, shape: tuple[int, ...], index: Index) -> Expr:
        lanes = max([tir.lanes_of(i) for i in index], default=1)
        if lanes == 1:
            return self.k.load(buf, self.position(shape, index))
        places = [tir.one_lane(i, self._ramp, self._lane) for i in index]
        if not any(p is None for p in places):
            position = self.position(shape, tuple(places))
            step, ramp = self.k.ranges.linear(position, self._lane), tir.ramp_parts(self._ramp)
            if step is not None and ramp is not None:
                stride, start = step
                start = self.k.ranges.simplify(start + ramp[0] * stride)
                if stride == 0:
                    return self.k.load(buf, start)
                if stride == 1:
                    return self.k.load(buf, start, lanes)
                return self.k.load(buf, tir.ramp(start, lanes, stride))
        return self.k.load(buf, tir.splat(flat(shape, index), lanes))

    def position(self, shape: tuple[int, ...], index: Index) -> Expr:
        """Return the position in memory of a scalar index."""
        return self.k.ranges.simplify(flat(shape, index))


def uniform_load(value: Expr) -> Load:
    """Return the Load of a value that is the same at every index, such as the sum of a row."""
    return lambda *_: value


def can_flatten_axes(nodes: Iterable[Node], shape: tuple[int, ...], first: int) -> bool:
    """Can the axes of `shape` from `first` on be flattened into one, with the indices that `as_one` returns?

    Their row-major positions are right. Broadcasts must be along all of these axes or none, and no node that is
    evaluated at such an index may use single coordinates.
    """
    tail = shape[first:]
    reached = (n for n in nodes if n.ty.rank == len(shape) and n.shape[first:] == tail)
    return all(d == 1 for d in tail) or all(_commutes_with_flattening(n, first) for n in reached)


def flattened_index(shape: tuple[int, ...], head: Index, at: Value) -> Index:
    """Return the index of position `at` along the flattened axes behind those of `head`."""
    first = len(head)
    place = flattened_axis(shape, first)
    return (*head, *(at if a == place else 0 for a in range(first, len(shape))))


def flattened_axis(shape: tuple[int, ...], first: int) -> int:
    """Return the axis whose component holds the position along the flattened axes from `first` on: the last that is
    longer than 1. On an axis of size 1 a broadcast along other axes would replace it by 0."""
    return max((a for a in range(first, len(shape)) if shape[a] > 1), default=len(shape) - 1)


def _commutes_with_flattening(n: Node, first: int) -> bool:
    if n.op.kind in ("elementwise", "random") or n.op.name in ("input", "const"):
        return True
    inner = n.src[0].shape[first:] if n.op.name == "expand" else ()
    return n.op.name == "expand" and (inner == n.shape[first:] or all(d == 1 for d in inner))
