"""Fusion: which nodes become one kernel.

Five kinds of group, by the loop nest they need:

* gemm, conv, pool: a contraction or pooling with the elementwise work on its result (bias, activation, the update); of
  a matrix product also sums along its rows, where these are summed in turn (the norm of a gradient);
* scatter: rows added up in a table of zeros, with the elementwise work on it (the update of an embedding);
* rowwise: reductions over trailing axes with everything elementwise around them, one pass over each row in cache;
* reduce: other reductions, siblings over the same axes together, with their elementwise prologue and epilogue;
* loop: elementwise work and data movement over one index space; several spaces in one kernel for small updates.

What is left over (other scatters, cumsum, concat, scan) is a group of its own, "opaque" or "scan". A composite that a
kernel takes whole (attention) reads its operands through movement, and writes its results where movement would bring
them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable

from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ops.views import WRITTEN, written
from gluongraph.passes.fuse_emit import Bodies
from gluongraph.passes.fuse_groups import FusionGroup, FusionGroups, Inlined, adds_rows, overwritten
from gluongraph.passes.fuse_recompute import recomputed
from gluongraph.passes.fuse_strided_views import read_through

# Kinds and names that the loop nests above can hold as part of an expression.
_POINTWISE = frozenset({"elementwise", "random"})
LITTLE = 1 << 12  # bytes: sums over so small arrays are one kernel, whatever they read
ROW_LIMIT = 1 << 16  # elements of a row that a row-wise kernel still finds in cache


def fuse(graph: Graph) -> Graph:
    """Every node that does work lies in a `fused` node; reshapes of whole values stay outside, as views.

    The graph is grouped twice: the first time shows what would be stored, and so what had better be recomputed.
    """
    views = read_through(graph)
    grouper = _Grouper(graph, Inlined(views=views))
    bodies = grouper.bodies()
    if cheap := recomputed(graph, grouper.order, bodies.needed, grouper.kernels_reading):
        bodies = _Grouper(graph, Inlined(cheap, views)).bodies()
    return bodies.build()


class _Grouper:
    """Walks the graph once, sources first, and puts each node into a group."""

    def __init__(self, graph: Graph, inlined: Inlined):
        self.graph, self.users, self.inlined = graph, graph.users(), inlined
        self.written = overwritten(graph)
        self.waits = _waits(graph, self.written, self._readers)
        self.order = _order(graph, self.waits)
        self.drafts = FusionGroups(self._before)
        self.results = set(graph.results)
        self.reductions: dict[
            tuple[tuple[int, ...], tuple[int, ...]], list[FusionGroup]
        ] = {}  # groups, by domain and axes
        for n in self.order:
            self._place(n)
        self._merge_updates()

    def _readers(self, target: Node) -> list[Node]:
        """Computing nodes that read an input, seen through inlined ones, in graph order."""
        found: dict[Node, None] = {}
        stack = list(reversed(self.users.get(target, ())))
        while stack:
            user = stack.pop()
            if user in self.inlined or user.op.name == "depends_on":
                stack.extend(reversed(self.users[user]))
            else:
                found[user] = None
        return list(found)

    def kernels_reading(self, n: Node) -> int:
        """How many groups read n, its own aside."""
        home = self.drafts.find(n)
        groups = [self.drafts.find(reader) for reader in self._readers(n)]
        return len({draft.id for draft in groups if draft is not None and draft is not home})

    def _before(self, n: Node) -> list[Node]:
        """What must be computed ahead of n: its sources, and the readers of what it overwrites."""
        return self.inlined.behind((*n.src, *self.waits.get(n, ())))

    def _producers(self, n: Node) -> list[FusionGroup]:
        """The groups that n reads from, latest first."""
        found = {d.id: d for s in self.inlined.behind(n.src) if (d := self.drafts.find(s)) is not None}
        return [found[i] for i in sorted(found, reverse=True)]

    def _place(self, n: Node) -> None:
        """Join the best group that may hold n, or start one."""
        if n.op.kind == "leaf" or n in self.inlined:
            return
        if n.op.name == "get_tuple_element" and (home := self.drafts.find(n.src[0])) is not None:
            self.drafts.join(n, home)
        elif (whole := self._written_by(n)) is not None:
            self.drafts.join(n, whole)
        elif n.op.kind in _POINTWISE or "gathers" in n.op.traits:
            self._place_pointwise(n)
        elif n.op.kind == "reduce" and "axes" in n.attrs:
            self._place_reduction(n)
        elif n.op.kind == "movement" and n.op.name != "concat":
            self.drafts.start(n, "loop", n.shape)
        elif n.op.name == "depends_on":
            # A group of its own, no kernel: nobody joins it, or passes it by.
            self.drafts.start(n, "depends_on", n.shape)
        else:
            self.drafts.start(n, _pattern(n), n.types[0].shape)

    def _written_by(self, n: Node) -> FusionGroup | None:
        """The group of a composite that can write its results where n has them, if nobody wants them elsewhere."""
        if n.op.name not in WRITTEN or (n.op.name == "cast" and not _narrows(n)):
            return None
        parts: list[Node] = []
        for s in n.src:
            while s.op.name == "reshape" and s not in self.results:
                (s,) = s.src
            parts.append(s)
        home = self.drafts.find(parts[0])
        if home is None or not home.is_whole or written(n) is None:
            return None
        alone = (self.drafts.find(s) is home and s not in self.results and self._readers(s) == [n] for s in parts)
        return home if all(alone) else None

    def _place_pointwise(self, n: Node) -> None:
        fitting = [d for d in self._producers(n) if self._fits(n, d)]
        if self._feeds_only_reductions(n):  # then it is a reduction's prologue and never stored
            fitting = [d for d in fitting if d.pattern in ("loop", "rowwise")]
        open = [d for d in fitting if self.drafts.can_join(n, d)]
        if not open:
            self.drafts.start(n, "loop", n.shape)
            return
        home = min(open, key=lambda d: (_PREFERENCE[d.pattern], -d.id))
        self.drafts.join(n, home)
        for other in fitting:  # those over the same space that also feed n come along
            if other is not home and _joinable(home, other) and self.drafts.can_merge(home, other):
                self.drafts.merge(home, other)

    def _feeds_only_reductions(self, n: Node) -> bool:
        """Is n read by nothing but reductions that leave the last axis or cross rows?"""
        users = self.users[n]
        return (
            bool(users)
            and n not in self.results
            and all(u.op.kind == "reduce" and "axes" in u.attrs and not _is_rowwise(u) for u in users)
        )

    def _fits(self, n: Node, draft: FusionGroup) -> bool:
        """May n be computed inside this group's loop nest?"""
        if not draft.reads_few:
            return False
        if draft.pattern in ("loop", "gemm", "conv", "pool", "scatter"):
            return n.shape == draft.domain and "gathers" not in n.op.traits and self._reads_in_place(n, draft)
        if draft.pattern == "rowwise":
            return self._fits_rows(n, draft)
        if draft.pattern == "reduce":
            return n.shape in _spaces(draft) and "gathers" not in n.op.traits and self._reads_in_place(n, draft)
        return False

    def _reads_in_place(self, n: Node, draft: FusionGroup) -> bool:
        """Everything of the group that n reads is read at n's own index, not through a broadcast."""
        return all(self._in_place(s, n.shape, draft) for s in n.src)

    def _in_place(self, s: Node, shape: tuple[int, ...], draft: FusionGroup) -> bool:
        if s not in self.inlined:
            return self.drafts.find(s) is not draft or s.shape == shape
        if s.op.kind == "elementwise":
            return all(self._in_place(x, shape, draft) for x in s.src)
        return not self._parts(s, draft)

    def _parts(self, s: Node, draft: FusionGroup) -> list[Node]:
        """The nodes of the group that s is, or is inlined from."""
        return [root for root in self.inlined.behind([s]) if self.drafts.find(root) is draft]

    def _fits_rows(self, n: Node, draft: FusionGroup) -> bool:
        """Whole rows, reading rows or broadcast row values; or one value a row, computed from such."""
        if n.shape != draft.domain and n.ty.size != draft.rows:
            return False
        if "gathers" in n.op.traits and any(self._parts(s, draft) for s in n.src):  # only picking from the own row
            last = len(draft.domain) - 1
            return n.op.name == "gather" and draft.axes == (last,) and n.attrs["axis"] == last
        return all(self._in_rows(s, n.ty, draft) for s in n.src)

    def _in_rows(self, s: Node, reader: TensorType, draft: FusionGroup) -> bool:
        if s in self.inlined and s.op.kind == "elementwise":
            return all(self._in_rows(x, reader, draft) for x in s.src)
        parts = self._parts(s, draft)
        if not parts or reader.shape != draft.domain:
            return all(root.ty.size == reader.size for root in parts)
        return s not in self.inlined or self._broadcasts_rows(s, draft)

    def _broadcasts_rows(self, s: Node, draft: FusionGroup) -> bool:
        """Is s `expand` of one value a row to the group's whole space, the kept axes in place?"""
        if s.op.name != "expand" or s.shape != draft.domain:
            return False
        kept = tuple(1 if axis in draft.axes else d for axis, d in enumerate(draft.domain))
        inner = s.src[0]
        if inner.shape != kept:
            return False
        while inner.op.name in ("reshape", "stop_gradient"):
            inner = inner.src[0]
            if [d for d in inner.shape if d != 1] != [d for d in kept if d != 1]:
                return False
        return inner not in self.inlined

    def _place_reduction(self, n: Node) -> None:
        if _is_rowwise(n):
            self._place_in_rows(n)
            return
        domain, axes = n.src[0].shape, tuple(n.attrs["axes"])
        home = None
        producer = self.drafts.find(n.src[0])
        if producer is not None and self._is_prologue(producer, n, domain) and self.drafts.can_join(n, producer):
            producer.pattern, producer.axes = "reduce", axes
            self.drafts.join(n, producer)
            home = producer
        if home is None:
            home = self.drafts.start(n, "reduce", domain, axes)
        siblings = self.reductions.setdefault((domain, axes), [])
        for other in reversed(siblings):  # the latest first
            if other.needs(home) or home.needs(other):
                continue
            akin = n.src[0].ty.nbytes <= LITTLE or self._large_reads(other) & self._large_reads(home)
            if akin and other.reads_few and self.drafts.can_merge(other, home):
                self.drafts.merge(other, home)
                return
        insort(siblings, home, key=lambda draft: draft.id)

    def _large_reads(self, draft: FusionGroup) -> set[Node]:
        """What the group reads or computes of its space: whoever reads the same saves a pass over it. Others would but
        keep each other's operands alive."""
        read = (root for m in draft.nodes for root in (m, *self.inlined.behind(m.src)))
        size = math.prod(draft.domain)
        return {root for root in read if not isinstance(root.type, tuple) and root.ty.size == size}

    def _is_prologue(self, draft: FusionGroup, n: Node, domain: tuple[int, ...]) -> bool:
        """Is the group elementwise work that nobody but the reduction n needs?"""
        if draft.pattern != "loop" or draft.domain != domain or _moves(draft):
            return False
        inside = {*draft.nodes, n}
        return not any(m in self.results or set(self.users[m]) - inside for m in draft.nodes)

    def _place_in_rows(self, n: Node) -> None:
        domain, axes = n.src[0].shape, tuple(n.attrs["axes"])
        for draft in self._producers(n):
            fits = False
            if (draft.pattern, draft.domain, draft.axes) == ("rowwise", domain, axes):
                fits = self._in_rows(n.src[0], n.src[0].ty, draft)
            elif draft.pattern == "loop" and draft.domain == domain and not _moves(draft):
                fits = self._in_place(n.src[0], domain, draft)
            elif draft.pattern == "gemm" and self._sums_all(n, draft):
                self.drafts.join(n, draft)
                return
            if fits and draft.reads_few and self.drafts.can_join(n, draft):
                draft.pattern, draft.axes = "rowwise", axes
                self.drafts.join(n, draft)
                return
        self.drafts.start(n, "rowwise", domain, axes)

    def _sums_all(self, n: Node, draft: FusionGroup) -> bool:
        """Are these sums along the rows of a product, which are all added up in turn? The kernel of the product makes
        them as it goes. Of a softmax or a norm, whose rows go on by themselves, a row-wise kernel is better."""
        along = n.src[0].shape == draft.domain and tuple(n.attrs["axes"]) == (len(draft.domain) - 1,)
        if not along or n.op.name != "sum" or n.dtype != "f32" or n in self.results:
            return False
        if any(m.op.kind == "reduce" or (m.op.kind == "contraction" and m.src[0].dtype == "f64") for m in draft.nodes):
            return False
        readers = (u for user in self.users[n] for u in (self.users[user] if user.op.name == "cast" else [user]))
        totals = all(u.op.name == "sum" and not u.shape for u in readers)
        fits = self._in_place(n.src[0], draft.domain, draft) and draft.reads_few
        return totals and fits and self.drafts.can_join(n, draft)

    def _merge_updates(self) -> None:
        """Leftover updates, which nobody reads, become one kernel over several index spaces."""
        home: FusionGroup | None = None
        for draft in self.drafts.live():
            if draft.pattern != "loop" or not self._is_sink(draft):
                continue
            waits = home is not None and (home.needs(draft) or draft.needs(home))
            if home is not None and not waits and self.drafts.can_merge(home, draft):
                self.drafts.merge(home, draft)
            else:
                home = draft

    def bodies(self) -> Bodies:
        """The groups, to be written down."""
        return Bodies(self.graph, self.order, self.drafts, self.inlined, self._keepers())

    def _keepers(self) -> dict[FusionGroup, list[Node]]:
        """Groups that overwrite an input whose old value becomes that of another: they store it on the way."""
        writers = {target: self.drafts.find(new) for new, target in self.written.items()}
        found: dict[FusionGroup, list[Node]] = {}
        for old in dict.fromkeys(self.graph.updates.values()):
            draft = writers.get(old)
            if draft is not None and draft.pattern == "loop":
                found.setdefault(draft, []).append(old)
        return found

    def _is_sink(self, draft: FusionGroup) -> bool:
        """Does the group compute updates only?"""
        outside = (u for m in draft.nodes for u in self.users[m] if self.drafts.find(u) is not draft)
        outputs = set(self.graph.outputs.values())
        return any(m in self.written for m in draft.nodes) and not any(outside) and outputs.isdisjoint(draft.nodes)


def _joinable(home: FusionGroup, other: FusionGroup) -> bool:
    """May everything of `other` run inside home's loop nest?"""
    if other.pattern == "loop":
        # A contraction's epilogue is written once for each of its tiles: random numbers there would be a lot of code.
        draws = home.pattern in ("gemm", "conv", "pool", "scatter") and any(m.op.kind == "random" for m in other.nodes)
        moves = _moves(other) and not (home.pattern == "loop" and _slices(home) and _slices(other))
        return other.domain in _spaces(home) and not moves and not draws
    return other.pattern == home.pattern == "rowwise" and (other.domain, other.axes) == (home.domain, home.axes)


def _spaces(draft: FusionGroup) -> set[tuple[int, ...]]:
    """The shapes that pointwise work on the results of a group may have."""
    if draft.pattern == "reduce":
        return {m.shape for m in draft.nodes if m.op.kind == "reduce"}
    return {draft.domain}


_PREFERENCE = {"gemm": 0, "conv": 0, "pool": 0, "scatter": 0, "rowwise": 1, "reduce": 1, "loop": 2}


def _pattern(n: Node) -> str:
    return "scatter" if adds_rows(n) else n.op.pattern


def _narrows(n: Node) -> bool:
    """Is n a float32 value rounded to 16 bit?"""
    return n.src[0].dtype == "f32" and n.dtype in ("f16", "bf16")


def _is_rowwise(n: Node) -> bool:
    """A reduction over trailing axes that fit a cache."""
    domain = n.src[0].shape
    axes: tuple[int, ...] = tuple(n.attrs["axes"])
    if axes != tuple(range(len(domain) - len(axes), len(domain))) or len(axes) == len(domain):
        return False
    return 0 < math.prod(domain[a] for a in axes) <= ROW_LIMIT


def _moves(draft: FusionGroup) -> bool:
    return any(m.op.kind == "movement" or "gathers" in m.op.traits for m in draft.nodes)


def _slices(draft: FusionGroup) -> bool:
    """Does the group move nothing, or slices only? Those of one product, such as gates, are read side by side."""
    return all(m.op.name == "slice" for m in draft.nodes if m.op.kind == "movement" or "gathers" in m.op.traits)


def _waits(graph: Graph, written: dict[Node, Node], readers: Callable[[Node], list[Node]]) -> dict[Node, list[Node]]:
    """New value -> the readers of the old one. Readers that themselves need some new value are left out: the
    memory pass then writes the new value beside the old one and copies it at the end."""
    needs_new: set[Node] = set()
    for n in graph.nodes():
        if any(s in written or s in needs_new for s in n.src):
            needs_new.add(n)
    return {new: [r for r in readers(target) if r is not new and r not in needs_new] for new, target in written.items()}


def _order(graph: Graph, waits: dict[Node, list[Node]]) -> list[Node]:
    """Sources first, and readers of an input ahead of the node that overwrites it."""
    order: dict[Node, None] = {}
    stack = [(n, False) for n in reversed(graph.results)]
    while stack:
        n, ready = stack.pop()
        if ready:
            order[n] = None
        elif n not in order:
            stack.append((n, True))
            stack.extend((s, False) for s in reversed((*n.src, *waits.get(n, ()))) if s not in order)
    return list(order)
