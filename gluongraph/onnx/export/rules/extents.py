"""Extents that follow the batch: a graph is traced for two batches, and what differs between the two is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gluongraph.errors import UnsupportedError
from gluongraph.ir.graph import Attr, Graph, Node, topological

BATCHES = (61, 67)  # two extents that hardly are those of anything else; tracing computes no numbers
# The attributes that may differ between batches. Others make a graph that holds for one batch only.
FREE_ATTRIBUTES = {
    "const": ("shape",), "conv2d_data_grad": ("shape",), "expand": ("shape",), "iota": ("shape",),
    "reshape": ("shape",), "scan": ("body",), "slice": ("end",),
}  # fmt: skip


@dataclass(frozen=True)
class Free:
    """So many times the batch."""

    times: int


Extent = int | Free


class FixedBatchError(UnsupportedError):
    """The graph holds for one batch only."""


class Pairs:
    """The nodes of one graph beside those of its twin, which was traced for another batch."""

    def __init__(self, twins: Mapping[Node, Node]):
        self.twins = twins

    def sizes(self, n: Node, result: int = 0) -> tuple[Extent, ...]:
        """The shape of a node's result."""
        shape = n.types[result].shape
        return self._sizes(shape, self.twins[n].types[result].shape) if self.twins else shape

    def attribute(self, n: Node, name: str) -> tuple[Extent, ...]:
        """An attribute that is a shape."""
        shape: tuple[int, ...] = n.attrs[name]
        return self._sizes(shape, self.twins[n].attrs[name]) if self.twins else shape

    @staticmethod
    def _sizes(mine: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[Extent, ...]:
        return tuple(_extent(a, b) for a, b in zip(mine, theirs, strict=True))


def _extent(a: int, b: int) -> Extent:
    if a == b:
        return a
    times, rest = divmod(a, BATCHES[0])
    if rest or b != times * BATCHES[1]:
        raise FixedBatchError(f"an extent of {a} in a batch of {BATCHES[0]} is {b} in one of {BATCHES[1]}")
    return Free(times)


def paired(one: Graph, other: Graph) -> dict[Node, Node]:
    """The nodes of a graph with those of its twin, bodies of loops included.

    Raises:
        FixedBatchError: the graphs differ in more than extents.
    """
    first, second = (topological((*g.inputs.values(), *g.results)) for g in (one, other))
    if len(first) != len(second):
        raise FixedBatchError(f"{len(first)} operations for one batch, and {len(second)} for another")
    twins: dict[Node, Node] = {}
    for a, b in zip(first, second, strict=True):
        same = a.op is b.op and tuple(twins[s] for s in a.src) == b.src and len(a.types) == len(b.types)
        if not same or any(len(s.shape) != len(t.shape) for s, t in zip(a.types, b.types, strict=True)):
            raise FixedBatchError(f"{a.op.name} in one batch is {b.op.name} in another")
        twins[a] = b
        for name in a.attrs:
            _compare(a, name, a.attrs[name], b.attrs[name], twins)
    return twins


def _compare(a: Node, name: str, mine: Attr, theirs: Attr, twins: dict[Node, Node]) -> None:
    """Raise if an attribute differs that must not."""
    if isinstance(mine, Graph) and isinstance(theirs, Graph):
        twins.update(paired(mine, theirs))
    elif mine != theirs and name not in FREE_ATTRIBUTES.get(a.op.name, ()):
        raise FixedBatchError(
            f"{name} of {a.op.name} is {_brief(mine)} for one batch, and {_brief(theirs)} for another"
        )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
