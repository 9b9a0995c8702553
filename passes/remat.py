"""Recomputation: what only gradients need is not kept from the forward, but computed again when it is needed.

What is kept of a block is a minimum cut: the fewest bytes from which all that gradients read can be computed again by
operations that may be repeated (Herrmann et al. and "min-cut rematerialization" call them recomputable). Without
contractions among them that costs little time; with all of them nothing is kept but what enters the block, as in
Chen et al., "Training Deep Nets with Sublinear Memory Cost".

Operations are pure: random numbers come from the generator's state and the number of their draw, so that a copy draws
the same; state is updated where it was. A copy carries `again`, and reads what was kept through `after`, an order: it
waits for the gradients that flow into its block, or it would be computed at once and nothing be gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx

from gluongraph import ops
from gluongraph.ir import Graph, Node, topological
from gluongraph.passes.blocks import Block, Forward
from gluongraph.passes.grouping import Inlined

KEEP, CHEAP, WHOLE = 0, 1, 2  # what is done with a block: nothing, cheap operations again, all of them again
_DEAR = frozenset({"contraction", "window", "composite"})  # kinds; composites that are left have kernels of their own


def remat(graph: Graph, forward: Forward, how: Sequence[int]) -> Graph:
    """The graph with copies: `how[k]` is what is done with block k."""
    copied = {n: k for k, b in enumerate(forward.blocks) for n in _copied(graph, forward, b, how[k])}
    return _Copier(graph, forward, copied).run() if copied else graph


def _copied(graph: Graph, forward: Forward, block: Block, how: int) -> list[Node]:
    """The nodes of a block that gradients shall read copies of, in order, and those that these are made from."""
    if how == KEEP:
        return []
    inside = set(block.nodes)
    read = {s for n in graph.nodes() if n not in forward.nodes for s in n.src if s in inside}
    kept = _kept(block, read, how) | block.leaving
    found: set[Node] = set()
    stack = [n for n in block.nodes if n in read]
    while stack:
        n = stack.pop()
        if n in inside and n not in kept and n not in found:
            found.add(n)
            stack.extend(n.src)
    return [n for n in block.nodes if n in found]


def _kept(block: Block, read: set[Node], how: int) -> set[Node]:
    """The cut: which values of the block are kept, so that those read can be had."""
    inlined, inside = Inlined(), set(block.nodes)
    net = nx.DiGraph()
    net.add_nodes_from(("source", "sink"))
    for n in block.nodes:
        given = n in block.leaving
        if _is_dear(n, how) and not given:
            net.add_edge("source", (n, 0))
        nbytes = sum(t.nbytes for t in n.types)
        if n in inlined or n.op.name == "item":  # kept with what it is a result of
            net.add_edge((n, 0), (n, 1))
        else:
            net.add_edge((n, 0), (n, 1), capacity=nbytes)
        for s in n.src:
            if s in inside and s not in block.leaving:
                net.add_edge((s, 1), (n, 0))
        if n in read and not given:
            net.add_edge((n, 1), "sink")
    _, (reached, _) = nx.minimum_cut(net, "source", "sink", flow_func=nx.algorithms.flow.preflow_push)
    return {n for n in block.nodes if (n, 0) in reached and (n, 1) not in reached}


def _is_dear(n: Node, how: int) -> bool:
    """Is the operation not to be repeated?"""
    if how == WHOLE:
        return False
    small = n.op.kind == "reduce" and n.types[0].size * 4 <= n.src[0].ty.size  # costs its time, and next to no memory
    return n.op.kind in _DEAR or n.op.name == "scan" or small


class _Copier:
    """Writes the graph with copies down, the last block first: copies of a block wait for gradients of later ones."""

    def __init__(self, graph: Graph, forward: Forward, copied: Mapping[Node, int]):
        self.graph, self.forward, self.copied = graph, forward, copied
        self.block = {n: k for k, b in enumerate(forward.blocks) for n in b.nodes}
        self.copies: dict[Node, Node] = {}
        self.new: dict[Node, Node] = {n: n for n in (*forward.nodes, *graph.inputs.values())}
        self.origins = dict(graph.origins)

    def run(self) -> Graph:
        """The graph in which gradients read copies."""
        waits = self._waits()
        for k in sorted(set(self.copied.values()), reverse=True):
            self._rebuild(waits[k])
            first = tuple(self.new[n] for n in waits[k])
            for n in self.forward.blocks[k].nodes:
                if self.copied.get(n) == k:
                    self.copies[n] = self._copy(n, first)
        self._rebuild(self.graph.results)
        outputs = {k: self.new[n] for k, n in self.graph.outputs.items()}
        updates = {k: self.new[n] for k, n in self.graph.updates.items()}
        return self.graph.with_results(outputs, updates, self.origins)

    def _copy(self, n: Node, first: tuple[Node, ...]) -> Node:
        def source(s: Node) -> Node:
            if s in self.copies:
                return self.copies[s]
            varies = s in self.block or s.op.name == "input"
            return ops.after(s, *first) if varies and not isinstance(s.type, tuple) else s

        return self._noted(n, n.on(tuple(map(source, n.src))))

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
        """Block -> the gradients that flow into it: what is read by those that need its copies, or need them through
        others, and comes from later blocks without needing copies of this one or of earlier ones itself."""
        needs: dict[Node, int] = {}  # bits: the blocks of whose copies a node needs some
        comes: dict[Node, int] = {}  # bits: the blocks whose values it is made from
        late = [n for n in self.graph.nodes() if n not in self.forward.nodes and n.op.kind != "leaf"]
        for n in late:
            needs[n] = comes[n] = 0
            for s in n.src:
                needs[n] |= needs.get(s, 0) | (1 << self.copied[s] if s in self.copied else 0)
                comes[n] |= comes.get(s, 0) | (1 << self.block[s] if s in self.block else 0)
        found: dict[int, dict[Node, None]] = {k: {} for k in self.copied.values()}
        inlined = Inlined()
        for n in late:
            for k, waits in found.items():
                if needs[n] >> k & 1:
                    flowing = (s for s in inlined.behind(n.src) if s in needs and comes[s] >> (k + 1))
                    waits.update(dict.fromkeys(s for s in flowing if not needs[s] & ((2 << k) - 1)))
        return {k: [n for n in waits if not isinstance(n.type, tuple)] for k, waits in found.items()}
