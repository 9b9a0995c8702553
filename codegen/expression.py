"""A group's values at an index: each node's `lower` rule, down to loads that know when elements lie side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gluongraph.codegen import tir
from gluongraph.codegen.math import CpuAlgebra, VectorAlgebra
from gluongraph.codegen.pull import Load, Source
from gluongraph.codegen.rule import Bindings
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.errors import CompileError, located
from gluongraph.ir import Node
from gluongraph.plan import Group

Index = tuple[Value, ...]


def flat(shape: tuple[int, ...], index: Index) -> Value:
    """Row-major position of an index."""
    at: Value = 0
    for d, i in zip(shape, index, strict=True):
        at = i if isinstance(at, int) and at == 0 else at * d + i
    return at


def unflatten(at: Value, shape: tuple[int, ...]) -> Index:
    """The index at a row-major position. The first axis takes what is left, even beyond its end."""
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
    """Number of elements."""
    return math.prod(shape)


class Expressions:
    """The values of a group's body over its buffers; each is named once per place and index.

    An index may hold a vector, made by `tir.ramp` and arithmetic on it: the result then has as many lanes. `known`
    gives values that are already there.
    """

    def __init__(self, k: Kernel, group: Group, bindings: Bindings, known: Mapping[Node, Load] | None = None):
        self.k = k
        self.algebra: CpuAlgebra = VectorAlgebra(k)
        self.memory: dict[Node, Buf] = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
        self.known: dict[Node, Load] = dict(known or {})
        self._memo: dict[tuple[Any, ...], tuple[Expr, object, Index]] = {}
        # The vector that indices are made from, and a variable to stand for one lane of it.
        self._ramp: Expr | None = None
        self._lane: Expr | None = None

    def along(self, at: Value, lanes: int, extent: int) -> Expr:
        """The index vector at, at + 1, ... on an axis of that extent. Who knows the extent gets better loads."""
        self._ramp = tir.ramp(at, lanes)
        if lanes > 1:
            self._lane = tir.variable("lane")
            self.k.ranges.bind(self._lane, extent)
        return self._ramp

    def at(self, n: Node, index: Index) -> Expr:
        """n's element at an index, or its elements where a coordinate is a vector."""
        self._see(index)
        lanes = max([tir.lanes_of(i) for i in index], default=1)
        self.algebra.lanes = lanes
        value = self._at(n, index)
        if isinstance(value, int | float):
            value = self.algebra.const(value, n.dtype)
        return tir.splat(value, lanes)

    def _see(self, index: Index) -> None:
        """Without `along`, the first evenly spaced vector of an index is what its vectors are made from."""
        for i in index:
            if isinstance(i, int | float) or tir.lanes_of(i) == 1 or tir.parts(i) is None:
                continue
            if self._ramp is None or not i.same_as(self._ramp):
                self._ramp, self._lane = i, tir.variable("lane")

    def _at(self, n: Node, index: Index) -> Expr:
        if (load := self.known.get(n)) is not None:
            return load(*index)
        key = (n, *(i if isinstance(i, int) else id(i) for i in index))
        if (found := self._memo.get(key)) is not None and self.k.visible(found[1]):
            return found[0]
        value = self.k.let(self.load(self.memory[n], n, index) if n in self.memory else self.lower(n, index))
        self._memo[key] = value, self.k.scope(), index  # the index is kept alive: its id is in the key
        return value

    def lower(self, n: Node, index: Index) -> Expr:
        """n's rule applied at an index."""
        if n.op.name == "reshape" and (root := self._stored(n)) is not None:
            return self.load(self.memory[root], n, index)
        if n.op.lower is None:
            raise CompileError(located(f"{n.op.name} has no `lower` rule", help="declare one with the op"))
        return n.op.lower(self.algebra, index, *map(self._source, n.src), **n.attrs)

    def _source(self, s: Node) -> Source:
        return Source(s.shape, s.dtype, lambda *index: self._at(s, index))

    def _stored(self, n: Node) -> Node | None:
        """The input that n is a reshaped view of."""
        while n.op.name == "reshape":
            (n,) = n.src
        return n if n in self.memory and n not in self.known else None

    def load(self, buf: Buf, n: Node, index: Index) -> Expr:
        """The elements of a buffer in the layout of n. bf16 comes as f32."""
        value = self._load(buf, n.shape, index)
        return tir.cast(value, "f32") if buf.dtype == "bf16" else value

    def _load(self, buf: Buf, shape: tuple[int, ...], index: Index) -> Expr:
        lanes = max([tir.lanes_of(i) for i in index], default=1)
        if lanes == 1:
            return self.k.load(buf, self.position(shape, index))
        places = [tir.one_lane(i, self._ramp, self._lane) for i in index]
        if not any(p is None for p in places):
            position = self.position(shape, tuple(places))
            step, ramp = self.k.ranges.linear(position, self._lane), tir.parts(self._ramp)
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
        """Where in memory the scalar index points."""
        return self.k.ranges.simplify(flat(shape, index))


def always(value: Expr) -> Load:
    """A known value that is the same at every index, such as the sum of a row."""
    return lambda *_: value


def merged_from(body_nodes: list[Node], shape: tuple[int, ...]) -> int:
    """The first axis from which on all axes of `shape` may be counted as one, p, by the index (..., 0, 0, p): the
    row-major position is the same, and broadcasts happen along all of these axes or none."""
    for first in range(len(shape)):
        if all(_passes(n, shape, first) for n in body_nodes):
            return first
    return max(len(shape) - 1, 0)


def _passes(n: Node, shape: tuple[int, ...], first: int) -> bool:
    if n.op.kind in ("elementwise", "random") or n.op.name in ("input", "const"):
        return True
    if n.op.name == "expand" and n.shape == shape:
        tail = n.src[0].shape[first:]
        return tail == shape[first:] or all(d == 1 for d in tail)
    return False  # the others look at single coordinates
