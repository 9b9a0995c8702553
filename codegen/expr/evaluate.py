"""A graph's values at an index, on demand: each node's `lower` rule reads its sources where it needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.tvm.tir import Expr, Value
from gluongraph.errors import CompileError, with_user_location
from gluongraph.ir.graph import Node

Index = tuple[Value, ...]
Load = Callable[..., Expr]  # load(*index): the element of a known value


@dataclass(frozen=True)
class Source:
    """A source as `lower` rules see it: shape, dtype, and when called its element at an index."""

    shape: tuple[int, ...]
    dtype: str
    element: Load

    def __call__(self, *index: Value) -> Expr:
        return self.element(*index)


class Evaluator:
    """Evaluates nodes; `known` says how to read values that are already computed. Others are computed once per scope
    and index."""

    def __init__(self, algebra: CpuAlgebra, known: Mapping[Node, Load]):
        self.algebra, self.known = algebra, known
        self._named: dict[tuple[Any, ...], tuple[Expr, object, Index]] = {}

    def element(self, n: Node, index: Index) -> Expr:
        """Return n's element at an index."""
        if (load := self.known.get(n)) is not None:
            return load(*index)
        kernel = self.algebra.kernel
        key = (n, *(i if isinstance(i, int) else id(i) for i in index))
        if (found := self._named.get(key)) is not None and kernel.visible(found[1]):
            return found[0]
        value = kernel.let(self.lower(n, index))
        self._named[key] = value, kernel.scope(), index  # the index is kept alive: its id is in the key
        return value

    def lower(self, n: Node, index: Index) -> Expr:
        """Return n's element by its rule, whether n is known or not."""
        if n.op.lower is None:
            raise CompileError(with_user_location(f"{n.op.name} has no `lower` rule", help="declare one with the op"))
        return n.op.lower(self.algebra, index, *map(self.source, n.src), **n.attrs)

    def source(self, s: Node) -> Source:
        """Return s as its readers see it."""
        return Source(s.shape, s.dtype, lambda *index: self.element(s, index))
