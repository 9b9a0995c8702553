"""Rematerialization: values that only gradients read are recomputed instead of saved for backward.

The saved values of a segment are a minimum cut: the fewest bytes from which all that gradients read can be recomputed
by operations that may be repeated, as in PyTorch's AOTAutograd. Without contractions among them recomputation takes
little time; with all of them only the inputs of the segment are saved, as in Chen et al., "Training Deep Nets with
Sublinear Memory Cost".

Operations are pure: random values depend on the generator's state and the number of their draw, so that a copy draws
the same values; state is updated once, by the original. A copy reads saved values through `depends_on`, a control
dependency on the gradients that flow into its segment: else it would be scheduled at once, and save no memory.

Saved values may also be stored in 16 bits: gradients and copies read the rounded values, the forward does not. Not
rounded are the last segment; values that are small relative to their segment, such as the statistics of norms; and
values that gradients compare, select by, or read in a composite kernel, where two differently rounded values would be
inconsistent.
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

# The policy of a segment: recompute nothing; operations of an instruction or two; all cheap operations; all operations.
KEEP, LIGHT, CHEAP, WHOLE = range(4)
_ROUGH = frozenset({"elementwise", "contraction", "movement"})  # kinds that tolerate rounded operands, as sums do
_HEAVY = frozenset({"contraction", "window", "composite"})  # expensive kinds; composites here have kernels


def remat(graph: Graph, forward: Forward, policies: Sequence[int], low: str | None = None) -> Graph:
    """Return the graph with recomputed copies: `policies[k]` is the policy of segment k. Saved values are rounded to
    `low`, if it is set."""
    if low is None and not any(policies):
        return graph
    read = {s for n in graph.nodes() if n not in forward.nodes for s in n.src}
    between = compared(graph).between
    copied = {n: k for k, part in enumerate(forward.segments) for n in _copied(part, read, policies[k], between)}
    rounded: dict[Node, int] = {}
    if low is not None:
        readers = _Readers(graph, forward, copied)
        rounded = {n: k for k, part in enumerate(forward.segments[:-1]) for n in _rounded(part, copied, readers)}
        rounded = {n: k for n, k in rounded.items() if n not in between}
    if not copied and not rounded:
        return graph
    return _CopyWriter(graph, forward, copied, rounded, low or "f32").run()


def _copied(segment: Segment, read: Container[Node], policy: int, between: Container[Node]) -> list[Node]:
    """Return the nodes of a segment that are recomputed for gradients, which read those in `read`.

    Inlined nodes are always copied, so that readers compute them from saved values. So are values that are selected
    from copies and compared with them (`between`, see `compared`): a saved maximum may not equal any element of a copy.
    """
    inlined, inside = Inlined(), set(segment.nodes)
    saved = inside if policy == KEEP else _saved(segment, read, policy) | segment.leaving
    found: set[Node] = set()
    stack = [n for n in segment.nodes if n in read]
    while stack:
        n = stack.pop()
        if n in inside and (n not in saved or n in inlined) and n not in found:
            found.add(n)
            stack.extend(n.src)
    for n in segment.nodes:
        if n in between and not found.isdisjoint(n.src):
            found.add(n)
    return [n for n in segment.nodes if n in found]


def _rounded(segment: Segment, copied: Container[Node], readers: _Readers) -> list[Node]:
    """Return the saved values of a segment that may be rounded: large float32 values whose readers tolerate it."""
    inlined, found = Inlined(), []
    largest = max(t.nbytes for n in segment.nodes for t in n.types)
    for n in segment.nodes:
        if isinstance(n.type, tuple) or n in copied or n in inlined:
            continue
        if n.dtype == "f32" and n.ty.nbytes * SMALL >= largest and readers.are_rough(n):
            found.append(n)
    return found


class _Readers:
    """The readers of saved values: gradients and copies."""

    def __init__(self, graph: Graph, forward: Forward, copied: Container[Node]):
        self.users, self.forward, self.copied, self.inlined = graph.users(), forward, copied, Inlined()

    def of_backward(self, n: Node) -> Iterator[Node]:
        """Iterate over the gradients and copies that read n, seen through inlined nodes."""
        for u in self.users[n]:
            if u in self.copied or u not in self.forward.nodes:
                yield from self.of_backward(u) if u in self.inlined and "compares" not in u.op.traits else (u,)

    def are_rough(self, n: Node) -> bool:
        """Are there readers, and do all of them tolerate a rounded value? A comparison with a constant does."""
        found = list(self.of_backward(n))
        return bool(found) and all(self._is_rough(u) for u in found)

    def _is_rough(self, u: Node) -> bool:
        if "compares" in u.op.traits:
            return u in self.inlined
        return u.op.kind in _ROUGH or u.op.name == "sum"


def _saved(segment: Segment, read: Container[Node], policy: int) -> set[Node]:
    """The cut: which values of the segment are kept, so that those read can be had."""
    inlined, inside = Inlined(), set(segment.nodes)
    net = nx.DiGraph()
    net.add_nodes_from(("source", "sink"))
    for n in segment.nodes:
        is_saved_anyway = n in segment.leaving
        free = n in inlined or n.op.name == "get_tuple_element"  # saved with the node whose result it is
        if _is_expensive(n, policy) and not is_saved_anyway and not free:
            net.add_edge("source", (n, 0))
        size = 2 * sum(t.nbytes for t in n.types) + (n.op.kind == "movement")  # of equal cuts the one without movement
        if free:
            net.add_edge((n, 0), (n, 1))
        else:
            net.add_edge((n, 0), (n, 1), capacity=size)
        for s in n.src:
            if s in inside and s not in segment.leaving:
                net.add_edge((s, 1), (n, 0))
        if n in read and not is_saved_anyway:
            net.add_edge((n, 1), "sink")
    _, (reached, _) = nx.minimum_cut(net, "source", "sink", flow_func=nx.algorithms.flow.preflow_push)
    return {n for n in segment.nodes if (n, 0) in reached and (n, 1) not in reached}


def _is_expensive(n: Node, policy: int) -> bool:
    """Must the operation not be repeated under this policy?"""
    if policy == WHOLE:
        return False
    if policy == LIGHT and (n.op.cost or n.op.kind == "random"):
        return True
    small = (
        n.op.kind == "reduce" and n.types[0].size * 4 <= n.src[0].ty.size
    )  # takes time, and saving its result takes little memory
    return n.op.kind in _HEAVY or n.op.name == "scan" or small or _moves_result(n)


def _moves_result(n: Node) -> bool:
    """Does n move the result of a composite? The composite's kernel stores it there, if n is its only reader."""
    if n.op.name not in WRITTEN:
        return False
    (s, *_) = n.src
    while s.op.name in ("reshape", "get_tuple_element"):
        s = s.src[0]
    return s.op.kind == "composite"


class _CopyWriter:
    """Builds the graph with copies, last segment first: copies of a segment wait for gradients of later ones."""

    def __init__(
        self, graph: Graph, forward: Forward, copied: Mapping[Node, int], rounded: Mapping[Node, int], low: str
    ):
        self.graph, self.forward, self.copied, self.rounded, self.low = graph, forward, copied, rounded, low
        self.replaced = {**copied, **rounded}  # for gradients
        self.segment = {n: k for k, part in enumerate(forward.segments) for n in part.nodes}
        self.copies: dict[Node, Node] = {}
        self.new: dict[Node, Node] = {n: n for n in (*forward.nodes, *graph.inputs.values())}
        self.origins = dict(graph.origins)

    def run(self) -> Graph:
        """Return the graph in which gradients read copies."""
        waits = self._waits()
        for k in sorted(set(self.replaced.values()), reverse=True):
            self._rebuild(waits[k])
            first = tuple(self.new[n] for n in waits[k])
            for n in self.forward.segments[k].nodes:
                if n in self.copied:
                    self.copies[n] = self._copy(n, first)
                elif n in self.rounded:
                    self.copies[n] = self._saved(n, first)
        self._rebuild(self.graph.results)
        outputs = {k: self.new[n] for k, n in self.graph.outputs.items()}
        updates = {k: self.new[n] for k, n in self.graph.updates.items()}
        return self.graph.with_results(outputs, updates, self.origins)

    def _copy(self, n: Node, first: tuple[Node, ...]) -> Node:
        def source(s: Node) -> Node:
            if s in self.copies:
                return self.copies[s]
            varies = s in self.segment or s.op.name == "input"
            return self._saved(s, first) if varies and not isinstance(s.type, tuple) else s

        return self._with_origin(n, n.on(tuple(map(source, n.src))))

    def _saved(self, s: Node, first: tuple[Node, ...]) -> Node:
        """Return the saved form of s, as gradients and copies read it."""
        if s not in self.rounded:
            return ops.depends_on(s, *first)
        return ops.cast(ops.depends_on(ops.cast(s, self.low), *first), s.dtype)

    def _rebuild(self, results: Sequence[Node]) -> None:
        """Rebuild these nodes and all that they depend on, in `new`; nodes of the forward are unchanged."""
        for n in topological(results):
            if n not in self.new:
                self.new[n] = self._with_origin(n, n.on(tuple(self.copies.get(s, self.new[s]) for s in n.src)))

    def _with_origin(self, n: Node, made: Node) -> Node:
        if (origin := self.graph.origins.get(n)) is not None:
            self.origins.setdefault(made, origin)
        return made

    def _waits(self) -> dict[int, list[Node]]:
        """Return for each segment the gradients that flow into it: values that nodes which depend on its copies read,
        and that depend on later segments, but not on copies of this or earlier segments."""
        needs: dict[Node, int] = {}  # bit set: segments on whose copies a node depends
        comes: dict[Node, int] = {}  # bit set: segments on whose values it depends
        of_backward = [n for n in self.graph.nodes() if n not in self.forward.nodes and n.op.kind != "leaf"]
        for n in of_backward:
            needs[n] = comes[n] = 0
            for s in n.src:
                needs[n] |= needs.get(s, 0) | (1 << self.replaced[s] if s in self.replaced else 0)
                comes[n] |= comes.get(s, 0) | (1 << self.segment[s] if s in self.segment else 0)
        found: dict[int, dict[Node, None]] = {k: {} for k in self.replaced.values()}
        inlined = Inlined()
        for n in of_backward:
            for k, waits in found.items():
                if needs[n] >> k & 1:
                    flowing = (s for s in inlined.roots_of(n.src) if s in needs and comes[s] >> (k + 1))
                    waits.update(dict.fromkeys(s for s in flowing if not needs[s] & ((2 << k) - 1)))
        begun = {
            k: dict.fromkeys(g for n in waits for g in self._contraction_sources(n, needs))
            for k, waits in found.items()
        }
        return {k: [n for n in waits if not isinstance(n.type, tuple)] for k, waits in begun.items()}

    def _contraction_sources(self, n: Node, of_backward: Container[Node]) -> list[Node]:
        """Return the contractions and composites from which n is computed by elementwise work, reductions and movement
        only; else n. If a copy waited for some of that work, the kernel of a norm's gradient would be split in two, or
        heads that attention reads by strides would be moved in memory."""
        found: dict[Node, None] = {}
        stack = [n]
        while stack:
            m = stack.pop()
            sources = Inlined().roots_of(m.src)
            if m.op.kind in ("contraction", "composite"):
                found[m] = None
            elif m.op.kind in ("elementwise", "reduce", "movement") and all(
                s in of_backward or s.op.kind == "leaf" for s in sources
            ):
                stack.extend(s for s in sources if s in of_backward)
            else:
                return [n]
        return list(found) or [n]
