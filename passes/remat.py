"""Rematerialization: values that only gradients read are recomputed instead of saved for backward.

What is kept of a segment is a minimum cut: the fewest bytes from which all that gradients read can be computed again by
operations that may be repeated, as PyTorch's AOTAutograd does it. Without contractions among them that takes little
time; with all of them nothing is kept but what enters the segment, as in Chen et al., "Training Deep Nets with
Sublinear Memory Cost".

Operations are pure: random numbers come from the generator's state and the number of their draw, so that a copy draws
the same; state is updated where it was. A copy reads what was kept through `depends_on`, an order: it waits for the
gradients that flow into its segment, or it would be computed at once and nothing be gained.

What is kept may be narrowed to 16 bits on top of that: gradients and copies read the rounded values, the forward does
not. Left as they are: the last segment; what is small beside its segment, as the statistics of norms; and what
gradients compare, choose by, or hand to a kernel of several products, which would notice that two values were rounded
apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import networkx as nx

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, topological
from gluongraph.ops.views import WRITTEN
from gluongraph.passes.compared import compared
from gluongraph.passes.fuse_groups import Inlined
from gluongraph.passes.remat_segments import SMALL, Forward, Segment

# What is done with a segment: nothing; operations of an instruction or two again, all cheap operations, all of them.
KEEP, LIGHT, CHEAP, WHOLE = range(4)
_ROUGH = frozenset({"elementwise", "contraction", "movement"})  # kinds that do not mind rounded operands; so do sums
_HEAVY = frozenset({"contraction", "window", "composite"})  # kinds; composites that are left have kernels of their own


def remat(graph: Graph, forward: Forward, how: Sequence[int], low: str | None = None) -> Graph:
    """The graph with copies: `how[k]` is what is done with segment k. What is kept is narrowed to `low`, if given."""
    if low is None and not any(how):
        return graph
    read = {s for n in graph.nodes() if n not in forward.nodes for s in n.src}
    between = compared(graph).between
    copied = {n: k for k, part in enumerate(forward.segments) for n in _copied(part, read, how[k], between)}
    narrowed: dict[Node, int] = {}
    if low is not None:
        readers = _Readers(graph, forward, copied)
        narrowed = {n: k for k, part in enumerate(forward.segments[:-1]) for n in _narrowed(part, copied, readers)}
        narrowed = {n: k for n, k in narrowed.items() if n not in between}
    if not copied and not narrowed:
        return graph
    return _Copier(graph, forward, copied, narrowed, low or "f32").run()


def _copied(segment: Segment, read: Container[Node], how: int, between: Container[Node]) -> list[Node]:
    """The nodes of a segment that gradients, which read those in `read`, shall find copied, with what these need.

    What each reader computes for itself is copied in any case: it is read from what is kept. So is what is chosen from
    copies and compared with them (`between`, see `compared`): a maximum that is kept may be none of a copy's elements.
    """
    inlined, inside = Inlined(), set(segment.nodes)
    kept = inside if how == KEEP else _kept(segment, read, how) | segment.leaving
    found: set[Node] = set()
    stack = [n for n in segment.nodes if n in read]
    while stack:
        n = stack.pop()
        if n in inside and (n not in kept or n in inlined) and n not in found:
            found.add(n)
            stack.extend(n.src)
    for n in segment.nodes:
        if n in between and not found.isdisjoint(n.src):
            found.add(n)
    return [n for n in segment.nodes if n in found]


def _narrowed(segment: Segment, copied: Container[Node], readers: _Readers) -> list[Node]:
    """What of a segment is kept and may be rounded: large float32 values of which no reader would notice."""
    inlined, found = Inlined(), []
    largest = max(t.nbytes for n in segment.nodes for t in n.types)
    for n in segment.nodes:
        if isinstance(n.type, tuple) or n in copied or n in inlined:
            continue
        if n.dtype == "f32" and n.ty.nbytes * SMALL >= largest and readers.are_rough(n):
            found.append(n)
    return found


class _Readers:
    """Who reads what the forward leaves: gradients, and copies."""

    def __init__(self, graph: Graph, forward: Forward, copied: Container[Node]):
        self.users, self.forward, self.copied, self.inlined = graph.users(), forward, copied, Inlined()

    def late(self, n: Node) -> Iterator[Node]:
        """The readers of n, seen through what they compute for themselves."""
        for u in self.users[n]:
            if u in self.copied or u not in self.forward.nodes:
                yield from self.late(u) if u in self.inlined and "compares" not in u.op.traits else (u,)

    def are_rough(self, n: Node) -> bool:
        """Are there any, and do they all take a rounded value as well? A comparison with something known does."""
        found = list(self.late(n))
        return bool(found) and all(self._is_rough(u) for u in found)

    def _is_rough(self, u: Node) -> bool:
        if "compares" in u.op.traits:
            return u in self.inlined
        return u.op.kind in _ROUGH or u.op.name == "sum"


def _kept(segment: Segment, read: Container[Node], how: int) -> set[Node]:
    """The cut: which values of the segment are kept, so that those read can be had."""
    inlined, inside = Inlined(), set(segment.nodes)
    net = nx.DiGraph()
    net.add_nodes_from(("source", "sink"))
    for n in segment.nodes:
        given = n in segment.leaving
        free = n in inlined or n.op.name == "get_tuple_element"  # kept with what it is a result of
        if _is_dear(n, how) and not given and not free:
            net.add_edge("source", (n, 0))
        size = 2 * sum(t.nbytes for t in n.types) + (n.op.kind == "movement")  # of equals what is there without a copy
        if free:
            net.add_edge((n, 0), (n, 1))
        else:
            net.add_edge((n, 0), (n, 1), capacity=size)
        for s in n.src:
            if s in inside and s not in segment.leaving:
                net.add_edge((s, 1), (n, 0))
        if n in read and not given:
            net.add_edge((n, 1), "sink")
    _, (reached, _) = nx.minimum_cut(net, "source", "sink", flow_func=nx.algorithms.flow.preflow_push)
    return {n for n in segment.nodes if (n, 0) in reached and (n, 1) not in reached}


def _is_dear(n: Node, how: int) -> bool:
    """Is the operation not to be repeated?"""
    if how == WHOLE:
        return False
    if how == LIGHT and (n.op.cost or n.op.kind == "random"):
        return True
    small = n.op.kind == "reduce" and n.types[0].size * 4 <= n.src[0].ty.size  # costs its time, and next to no memory
    return n.op.kind in _HEAVY or n.op.name == "scan" or small or _moves_result(n)


def _moves_result(n: Node) -> bool:
    """Does n move the result of a composite? The composite's kernel writes it there, if nobody else reads it."""
    if n.op.name not in WRITTEN:
        return False
    (s, *_) = n.src
    while s.op.name in ("reshape", "get_tuple_element"):
        s = s.src[0]
    return s.op.kind == "composite"


class _Copier:
    """Writes the graph with copies down, the last segment first: copies of one wait for gradients of later ones."""

    def __init__(
        self, graph: Graph, forward: Forward, copied: Mapping[Node, int], narrowed: Mapping[Node, int], low: str
    ):
        self.graph, self.forward, self.copied, self.narrowed, self.low = graph, forward, copied, narrowed, low
        self.replaced = {**copied, **narrowed}  # for gradients
        self.segment = {n: k for k, part in enumerate(forward.segments) for n in part.nodes}
        self.copies: dict[Node, Node] = {}
        self.new: dict[Node, Node] = {n: n for n in (*forward.nodes, *graph.inputs.values())}
        self.origins = dict(graph.origins)

    def run(self) -> Graph:
        """The graph in which gradients read copies."""
        waits = self._waits()
        for k in sorted(set(self.replaced.values()), reverse=True):
            self._rebuild(waits[k])
            first = tuple(self.new[n] for n in waits[k])
            for n in self.forward.segments[k].nodes:
                if n in self.copied:
                    self.copies[n] = self._copy(n, first)
                elif n in self.narrowed:
                    self.copies[n] = self._kept(n, first)
        self._rebuild(self.graph.results)
        outputs = {k: self.new[n] for k, n in self.graph.outputs.items()}
        updates = {k: self.new[n] for k, n in self.graph.updates.items()}
        return self.graph.with_results(outputs, updates, self.origins)

    def _copy(self, n: Node, first: tuple[Node, ...]) -> Node:
        def source(s: Node) -> Node:
            if s in self.copies:
                return self.copies[s]
            varies = s in self.segment or s.op.name == "input"
            return self._kept(s, first) if varies and not isinstance(s.type, tuple) else s

        return self._noted(n, n.on(tuple(map(source, n.src))))

    def _kept(self, s: Node, first: tuple[Node, ...]) -> Node:
        """What is kept of s, as gradients and copies read it."""
        if s not in self.narrowed:
            return ops.depends_on(s, *first)
        return ops.cast(ops.depends_on(ops.cast(s, self.low), *first), s.dtype)

    def _rebuild(self, results: Sequence[Node]) -> None:
        """`new` of these, and of all that they need; of the forward it is what it was."""
        for n in topological(results):
            if n not in self.new:
                self.new[n] = self._noted(n, n.on(tuple(self.copies.get(s, self.new[s]) for s in n.src)))

    def _noted(self, n: Node, made: Node) -> Node:
        if (origin := self.graph.origins.get(n)) is not None:
            self.origins.setdefault(made, origin)
        return made

    def _waits(self) -> dict[int, list[Node]]:
        """Segment -> the gradients that flow into it: what is read by those that need its copies, or need them through
        others, and comes from later segments without needing copies of this one or of earlier ones itself."""
        needs: dict[Node, int] = {}  # bits: the segments of whose copies a node needs some
        comes: dict[Node, int] = {}  # bits: the segments whose values it is made from
        late = [n for n in self.graph.nodes() if n not in self.forward.nodes and n.op.kind != "leaf"]
        for n in late:
            needs[n] = comes[n] = 0
            for s in n.src:
                needs[n] |= needs.get(s, 0) | (1 << self.replaced[s] if s in self.replaced else 0)
                comes[n] |= comes.get(s, 0) | (1 << self.segment[s] if s in self.segment else 0)
        found: dict[int, dict[Node, None]] = {k: {} for k in self.replaced.values()}
        inlined = Inlined()
        for n in late:
            for k, waits in found.items():
                if needs[n] >> k & 1:
                    flowing = (s for s in inlined.behind(n.src) if s in needs and comes[s] >> (k + 1))
                    waits.update(dict.fromkeys(s for s in flowing if not needs[s] & ((2 << k) - 1)))
        begun = {k: dict.fromkeys(g for n in waits for g in self._begins(n, needs)) for k, waits in found.items()}
        return {k: [n for n in waits if not isinstance(n.type, tuple)] for k, waits in begun.items()}

    def _begins(self, n: Node, late: Container[Node]) -> list[Node]:
        """The products that n is computed from by light work on nothing else, which are in memory; or n. A copy that
        waited for some of that work would part the kernel of a norm's gradient, which does it all, in two, or have
        heads moved in memory that attention reads where they lie."""
        found: dict[Node, None] = {}
        stack = [n]
        while stack:
            m = stack.pop()
            sources = Inlined().behind(m.src)
            if m.op.kind in ("contraction", "composite"):
                found[m] = None
            elif m.op.kind in ("elementwise", "reduce", "movement") and all(
                s in late or s.op.kind == "leaf" for s in sources
            ):
                stack.extend(s for s in sources if s in late)
            else:
                return [n]
        return list(found) or [n]
