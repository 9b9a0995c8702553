"""A group's values at an index, and the index of a run of consecutive elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gluongraph.codegen import tir
from gluongraph.codegen.math import CpuAlgebra
from gluongraph.codegen.pull import Load, Pull
from gluongraph.codegen.rule import Bindings
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.ir import Node, TensorType
from gluongraph.plan import Group


def flat(shape: tuple[int, ...], index: tuple[Value, ...]) -> Value:
    """Row-major position of an index."""
    at: Value = 0
    for d, i in zip(shape, index, strict=True):
        at = i if isinstance(at, int) and at == 0 else at * d + i
    return at


def unflatten(at: Value, shape: tuple[int, ...]) -> tuple[Value, ...]:
    """The index at a row-major position."""
    index: list[Value] = []
    for d in reversed(shape[1:]):
        index.append(tir.floormod(at, d) if d > 1 else 0)
        at = tir.floordiv(at, d) if d > 1 else at
    return (*([at if shape[0] > 1 else 0] if shape else []), *reversed(index))


def reader(k: Kernel, buf: Buf, type: TensorType) -> Load:
    """Reads a buffer by the index of its array; a vector as last coordinate reads consecutive elements."""
    return lambda *index: k.load(buf, flat(type.shape, index))


class Expressions:
    """The body of a group over buffers; `known` gives values that are already there."""

    def __init__(self, k: Kernel, group: Group, bindings: Bindings, known: Mapping[Node, Load] | None = None):
        self.k = k
        self.algebra = CpuAlgebra(k)
        readers = {
            n: reader(k, buf, n.ty) for n, buf in zip(group.body.inputs.values(), bindings.inputs, strict=True)
        }
        self.pull = Pull(self.algebra, {**readers, **(known or {})})

    def at(self, n: Node, index: tuple[Value, ...]) -> Expr:
        """n's element at an index, or its elements where the last coordinate is a vector."""
        lanes = max([tir.lanes_of(i) for i in index if not isinstance(i, int)], default=1)
        self.algebra.lanes = lanes
        value = self.pull.at(n, index)
        if isinstance(value, int | float):
            value = tir.const(value, n.dtype)
        return tir.splat(value, lanes)


def merged_from(body_nodes: list[Node], shape: tuple[int, ...]) -> int:
    """The first axis from which on all axes of `shape` may be counted as one, p, by the index (..., 0, 0, p): the row-major
    position is the same, and broadcasts happen along all of these axes or none."""
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


def inner_index(outer: Value, inner: Expr, shape: tuple[int, ...], first: int) -> tuple[Value, ...]:
    """The index of position `inner` of the axes from `first` on, which count as one, at position `outer` of the others."""
    count = len(shape) - first
    return (*unflatten(outer, shape[:first]), *((0,) * (count - 1)), *((inner,) if count else ()))


def size_of(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    return math.prod(shape)


Store = Callable[[Value, Expr], None]
