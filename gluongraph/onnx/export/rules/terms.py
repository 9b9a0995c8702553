"""What a rule makes of a node: ONNX operators as a term, whose leaves are nodes, arrays and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gluongraph.ir.graph import Graph, Node
from gluongraph.onnx.export.rules.extents import Extent


@dataclass(frozen=True, eq=False)
class Sizes:
    """A vector of int64, some of which may follow the batch."""

    extents: tuple[Extent, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """One operator on sources; None is an input that is left out.

    With `broadcasts` the operator takes sources that are smaller than their nodes say, as numpy does: a bias need not
    be repeated. Others get what the node says. `output` is the one of its outputs that is meant.
    """

    op: str
    inputs: tuple[Source, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    broadcasts: bool = False
    output: int = 0

    def of(self, output: int) -> Term:
        """The same, of which another output is meant."""
        return replace(self, output=output)

    def nodes(self) -> Iterator[Node]:
        """The nodes that the term reads."""
        for source in self.inputs:
            if isinstance(source, Node):
                yield source
            elif isinstance(source, Term):
                yield from source.nodes()


@dataclass(frozen=True, eq=False)
class Body:
    """The graph of one turn of a loop, as an attribute.

    `outer` are the nodes around the loop that leaves of the graph stand for; `results` are the outputs that are used.
    """

    graph: Graph
    outer: Mapping[Node, Node]
    results: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Several:
    """What a node with several results is: for each result the output of the operator, None where nobody reads it."""

    term: Term
    outputs: tuple[int | None, ...]


Source = Node | Term | Sizes | np.ndarray[Any, Any] | None
Made = Node | Term | Several


def term(op: str, *inputs: Source, **attrs: Any) -> Term:
    """An operator that takes what the nodes say."""
    return Term(op, inputs, {k: v for k, v in attrs.items() if v is not None})


def each(op: str, *inputs: Source, **attrs: Any) -> Term:
    """An operator on elements, which broadcasts its sources."""
    return Term(op, inputs, attrs, broadcasts=True)


def ints(*numbers: int) -> np.ndarray[Any, Any]:
    """A vector of int64."""
    return np.array(numbers, np.int64)
