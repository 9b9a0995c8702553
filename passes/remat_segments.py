"""The forward part of a training step as a chain of segments, separated by points where a single value is live."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from gluongraph.ir.graph import Graph, Node, topological
from gluongraph.ir.rewrite import value
from gluongraph.passes.fuse_groups import Inlined

SMALL = 16  # values with so many times fewer bytes than the live value are ignored


@dataclass(frozen=True)
class Segment:
    """A part of the forward: its nodes in order, and those (`leaving`) that later segments read."""

    nodes: tuple[Node, ...]
    leaving: frozenset[Node]


@dataclass(frozen=True)
class Forward:
    """The forward part of a graph, with the derivatives that belong to it: its nodes, and as segments those that depend
    on the batch, for which gradients need memory."""

    nodes: frozenset[Node]
    segments: tuple[Segment, ...]

    def joined(self, size: int) -> Forward:
        """Return the same with every `size` segments joined, except for the last segment, whose gradients are computed
        at once. Values that are read only within a joined segment do not leave it."""
        found, last = [], len(self.segments) - 1
        for at in (*range(0, last, size), last):
            run = self.segments[at : min(at + size, last) if at < last else None]
            nodes = tuple(n for part in run for n in part.nodes)
            leaving = (n for part in run for n in part.leaving if self._last_reader[n] >= at + len(run))
            found.append(Segment(nodes, frozenset(leaving)))
        return Forward(self.nodes, tuple(found))

    @cached_property
    def _last_reader(self) -> dict[Node, int]:
        """For each value the last segment that reads it."""
        return {s: k for k, part in enumerate(self.segments) for n in part.nodes for s in _views(n.src)}


def _views(values: Iterable[Node]) -> Iterator[Node]:
    """Iterate over these values, and those from which inlined ones are computed."""
    inlined = Inlined()
    for n in values:
        yield n
        if n in inlined:
            yield from inlined.roots_of([n])


def forward_of(graph: Graph, names: Collection[str], roles: Mapping[str, str]) -> Forward:
    """Return the forward part of a graph. `names` are the outputs and updates that do not depend on gradients."""
    results = [n for k, n in {**graph.updates, **graph.outputs}.items() if k in names]
    nodes = topological(results)
    varying: set[Node] = set()  # with the batch, and with random numbers
    for n in nodes:
        if n.op.name == "input":
            if roles.get(n.attrs["name"]) in ("input", "scalar"):
                varying.add(n)
        elif any(s in varying for s in n.src):
            varying.add(n)
    flow = [n for n in nodes if n in varying and n.op.name != "input"]
    segments = _with_derivatives(graph, frozenset(nodes), _cut(flow))
    return Forward(frozenset(nodes).union(*(part.nodes for part in segments)), segments)


def _with_derivatives(graph: Graph, forward: Container[Node], segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Add to each segment but the last the elementwise work of the backward that reads only its values and no gradient,
    such as the derivative of an activation: it may be saved instead of its sources, or recomputed with them."""
    where = {n: k for k, part in enumerate(segments[:-1]) for n in part.nodes}
    more: list[list[Node]] = [[] for _ in segments]
    for n in graph.nodes():
        if n not in forward and n.op.kind == "elementwise":
            homes = {where.get(s) for s in n.src if value(s) is None}
            if len(homes) == 1 and (home := homes.pop()) is not None:
                where[n] = home
                more[home].append(n)
    return tuple(
        Segment((*part.nodes, *derivatives), part.leaving) for part, derivatives in zip(segments, more, strict=True)
    )


def _cut(flow: list[Node]) -> tuple[Segment, ...]:
    """Split the forward where only one large value is live."""
    inlined, inside = Inlined(), set(flow)

    def roots_within(n: Node) -> list[Node]:
        return [m for m in inlined.roots_of([n]) if m in inside]

    last: dict[Node, int] = {}
    for i, n in enumerate(flow):
        if n not in inlined:
            for s in n.src:
                last.update(dict.fromkeys(roots_within(s), i))
    live: dict[Node, None] = {}
    ends: list[tuple[int, int]] = []  # (live bytes, last node): candidates since the last heavy node
    cuts: list[int] = []
    heavy = False
    for i, n in enumerate(flow):
        if n.op.kind in ("contraction", "composite") or n.op.name == "scan":  # each segment has at least one of these
            if heavy and ends:
                cuts.append(min(ends, key=lambda end: (end[0], -end[1]))[1])
                ends, heavy = [], False
            heavy = True
        if n not in inlined:
            live[n] = None
        for s in [s for s in live if last.get(s, len(flow) if s is n else -1) <= i]:
            del live[s]
        sizes = sorted((sum(t.nbytes for t in s.types) for s in live), reverse=True)
        if heavy and sizes and all(size * SMALL <= sizes[0] for size in sizes[1:]):
            ends.append((sum(sizes), i))
    bounds = [0, *(c + 1 for c in cuts), len(flow)]
    where = {n: k for k in range(len(bounds) - 1) for n in flow[bounds[k] : bounds[k + 1]]}
    leaving: list[set[Node]] = [set() for _ in bounds[1:]]
    for n in flow:
        for s in n.src:
            for m in (s, *roots_within(s)):
                if m in where and where[m] != where[n]:
                    leaving[where[m]].add(m)
    return tuple(
        Segment(tuple(flow[a:b]), frozenset(out)) for (a, b), out in zip(pairwise(bounds), leaving, strict=True)
    )
