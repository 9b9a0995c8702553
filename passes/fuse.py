"""Fusion: which nodes become one kernel.

Five kinds of group, by the loop nest they need:

* gemm, conv, pool: a contraction or pooling with the elementwise work on its result (bias, activation, the update); in
  a gemm also sums along its rows, if these are summed in turn (the norm of a gradient);
* scatter: rows added up in a table of zeros, with the elementwise work on it (the update of an embedding);
* rowwise: reductions over trailing axes with everything elementwise around them, one pass over each row in cache;
* reduce: other reductions, siblings over the same axes together, with their elementwise prologue and epilogue;
* loop: elementwise work and data movement over one index space; several spaces in one kernel for small updates.

Other ops (other scatters, cumsum, concat, scan, collectives) are groups of their own, "opaque", "scan" or
"collective". A composite with a kernel
(attention) reads its operands through movement as strided views, and stores its results in place of subsequent
movement.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable

from gluongraph.ir.graph import Graph, Node, TensorType, topological
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.ops.views import WRITTEN, written
from gluongraph.passes.fuse_collectives import copy_shared_operands
from gluongraph.passes.fuse_emit import FusedGraphBuilder, reads_whole_arrays
from gluongraph.passes.fuse_groups import FusionGroup, FusionGroups, Inlined, adds_rows, overwritten
from gluongraph.passes.fuse_recompute import recomputed
from gluongraph.passes.fuse_strided_views import read_through

# Kinds and names that the loop nests above can hold as part of an expression.
_POINTWISE = frozenset({"elementwise", "random"})
SMALL_REDUCTION = 1 << 12  # bytes: reductions of arrays up to this size share a kernel, whatever they read
ROW_LIMIT = 1 << 16  # elements of a row that still fit in cache


def fuse(graph: Graph) -> Graph:
    """Return the graph with every computing node in a `fused` node; reshapes of stored values stay outside, as views.

    The graph is grouped twice: the first time shows what would be stored, and so what is cheaper to recompute.
    """
    views = read_through(graph)
    grouper = _Grouper(graph, Inlined(views=views))
    builder = grouper.builder()
    if recomputable := recomputed(graph, grouper.order, builder.needed, grouper.kernels_reading):
        builder = _Grouper(graph, Inlined(recomputable, views)).builder()
    return copy_shared_operands(builder.build())


class _Grouper:
    """Walks the graph once, sources first, and puts each node into a group."""

    def __init__(self, graph: Graph, inlined: Inlined):
        self.graph, self.users, self.inlined = graph, graph.users(), inlined
        self.written = overwritten(graph)
        self.waits = _waits(graph, self.written, self._readers)
        self.order = _order(graph, self.waits)
        self.groups = FusionGroups(self._before)
        self.results = set(graph.results)
        self.reductions: dict[
            tuple[tuple[int, ...], tuple[int, ...]], list[FusionGroup]
        ] = {}  # groups, by domain and axes
        for n in self.order:
            self._place(n)
        self._merge_updates()

    def _readers(self, target: Node) -> list[Node]:
        """Return the computing nodes that read a value, directly or through inlined nodes, in graph order."""
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
        """Return how many other groups read n."""
        home = self.groups.find(n)
        readers = [self.groups.find(reader) for reader in self._readers(n)]
        return len({group.id for group in readers if group is not None and group is not home})

    def _before(self, n: Node) -> list[Node]:
        """Return what must be computed before n: its sources, and the readers of what it overwrites."""
        return self.inlined.roots_of((*n.src, *self.waits.get(n, ())))

    def _producers(self, n: Node) -> list[FusionGroup]:
        """Return the groups that n reads from, latest first."""
        found = {d.id: d for s in self.inlined.roots_of(n.src) if (d := self.groups.find(s)) is not None}
        return [found[i] for i in sorted(found, reverse=True)]

    def _place(self, n: Node) -> None:
        """Add n to the best group that can contain it, or to a new one."""
        if n.op.kind == "leaf" or n in self.inlined:
            return
        if n.op.name == "get_tuple_element" and (home := self.groups.find(n.src[0])) is not None:
            self.groups.join(n, home)
        elif (composite_group := self._written_by(n)) is not None:
            self.groups.join(n, composite_group)
        elif n.op.kind in _POINTWISE or "gathers" in n.op.traits:
            self._place_pointwise(n)
        elif n.op.kind == "reduce" and "axes" in n.attrs:
            self._place_reduction(n)
        elif n.op.kind == "movement" and n.op.name != "concat":
            self.groups.start(n, "loop", n.shape)
        elif n.op.name == "depends_on":
            # A group of its own, without a kernel: no node joins it, and none is moved across it.
            self.groups.start(n, "depends_on", n.shape)
        else:
            self.groups.start(n, _pattern(n), n.types[0].shape)

    def _written_by(self, n: Node) -> FusionGroup | None:
        """Return the group of a composite whose kernel can store its results where n moves them; else None."""
        if n.op.name not in WRITTEN or (n.op.name == "cast" and not _rounds_to_16_bit(n)):
            return None
        parts: list[Node] = []
        for s in n.src:
            while s.op.name == "reshape" and s not in self.results:
                (s,) = s.src
            parts.append(s)
        home = self.groups.find(parts[0])
        if home is None or not home.is_composite_kernel or written(n) is None:
            return None
        alone = (self.groups.find(s) is home and s not in self.results and self._readers(s) == [n] for s in parts)
        return home if all(alone) else None

    def _place_pointwise(self, n: Node) -> None:
        fitting = [d for d in self._producers(n) if self._fits(n, d)]
        if self._feeds_only_reductions(n):  # then n is a reduction's prologue, and never stored
            fitting = [d for d in fitting if d.pattern in ("loop", "rowwise")]
        joinable = [d for d in fitting if self.groups.can_join(n, d)]
        if not joinable:
            self.groups.start(n, "loop", n.shape)
            return
        # A group that moves elements comes first: it cannot be merged into another, but others into it.
        home = min(joinable, key=lambda d: (_PREFERENCE[d.pattern], not _moves(d), -d.id))
        self.groups.join(n, home)
        for other in fitting:  # merge other producers over the same domain
            if other is home or not _joinable(home, other) or self._computes_operand(other, home):
                continue
            if self.groups.can_merge(home, other):
                self.groups.merge(home, other)

    def _computes_operand(self, group: FusionGroup, home: FusionGroup) -> bool:
        """Does the group compute what home's contraction reads as an array? A kernel cannot: the operand must be in
        memory, whole, before the contraction starts."""
        operands = (s for m in home.nodes if reads_whole_arrays(m) for s in self.inlined.roots_of(m.src))
        return any(self.groups.find(s) is group for s in operands)

    def _feeds_only_reductions(self, n: Node) -> bool:
        """Is n read only by reductions that are not row-wise?"""
        users = self.users[n]
        return (
            bool(users)
            and n not in self.results
            and all(u.op.kind == "reduce" and "axes" in u.attrs and not _is_rowwise(u) for u in users)
        )

    def _fits(self, n: Node, group: FusionGroup) -> bool:
        """Can n be computed in this group's loop nest?"""
        if not group.reads_few:
            return False
        if group.pattern in ("loop", "gemm", "conv", "pool", "scatter"):
            return n.shape == group.domain and "gathers" not in n.op.traits and self._reads_in_place(n, group)
        if group.pattern == "rowwise":
            return self._fits_rows(n, group)
        if group.pattern == "reduce":
            return n.shape in _spaces(group) and "gathers" not in n.op.traits and self._reads_in_place(n, group)
        return False

    def _reads_in_place(self, n: Node, group: FusionGroup) -> bool:
        """Does n read all values of the group at its own index, not through a broadcast?"""
        return all(self._in_place(s, n.shape, group) for s in n.src)

    def _in_place(self, s: Node, shape: tuple[int, ...], group: FusionGroup) -> bool:
        if s not in self.inlined:
            return self.groups.find(s) is not group or s.shape == shape
        if s.op.kind == "elementwise":
            return all(self._in_place(x, shape, group) for x in s.src)
        return not self._parts(s, group)

    def _parts(self, s: Node, group: FusionGroup) -> list[Node]:
        """Return the nodes of the group that s is, or is computed from by inlined nodes."""
        return [root for root in self.inlined.roots_of([s]) if self.groups.find(root) is group]

    def _fits_rows(self, n: Node, group: FusionGroup) -> bool:
        """Does n compute rows from rows or broadcast per-row values, or one value per row from such?"""
        if n.shape != group.domain and n.ty.size != group.rows:
            return False
        if "gathers" in n.op.traits and any(self._parts(s, group) for s in n.src):  # only a gather within the row
            last = len(group.domain) - 1
            return n.op.name == "gather" and group.axes == (last,) and n.attrs["axis"] == last
        return all(self._in_rows(s, n.ty, group) for s in n.src)

    def _in_rows(self, s: Node, reader: TensorType, group: FusionGroup) -> bool:
        if s in self.inlined and s.op.kind == "elementwise":
            return all(self._in_rows(x, reader, group) for x in s.src)
        parts = self._parts(s, group)
        if not parts or reader.shape != group.domain:
            return all(root.ty.size == reader.size for root in parts)
        return s not in self.inlined or self._broadcasts_rows(s, group)

    def _broadcasts_rows(self, s: Node, group: FusionGroup) -> bool:
        """Is s an `expand` of one value per row to the group's domain, with the other axes in place?"""
        if s.op.name != "expand" or s.shape != group.domain:
            return False
        preserved_values = tuple(1 if axis in group.axes else d for axis, d in enumerate(group.domain))
        inner = s.src[0]
        if inner.shape != preserved_values:
            return False
        while inner.op.name in ("reshape", "stop_gradient"):
            inner = inner.src[0]
            if [d for d in inner.shape if d != 1] != [d for d in preserved_values if d != 1]:
                return False
        return inner not in self.inlined

    def _place_reduction(self, n: Node) -> None:
        if _is_rowwise(n):
            self._place_in_rows(n)
            return
        domain, axes = n.src[0].shape, tuple(n.attrs["axes"])
        home = None
        producer = self.groups.find(n.src[0])
        if producer is not None and self._is_prologue(producer, n, domain) and self.groups.can_join(n, producer):
            producer.pattern, producer.axes = "reduce", axes
            self.groups.join(n, producer)
            home = producer
        if home is None:
            home = self.groups.start(n, "reduce", domain, axes)
        siblings = self.reductions.setdefault((domain, axes), [])
        for other in reversed(siblings):  # latest first
            if other.needs(home) or home.needs(other):
                continue
            akin = n.src[0].ty.nbytes <= SMALL_REDUCTION or self._large_reads(other) & self._large_reads(home)
            if akin and other.reads_few and self.groups.can_merge(other, home):
                self.groups.merge(other, home)
                return
        insort(siblings, home, key=lambda group: group.id)

    def _large_reads(self, group: FusionGroup) -> set[Node]:
        """Return the values of the domain's size that a group reads or computes: merging groups that share one saves a
        pass over it. Merging others would only prolong the lifetimes of their operands."""
        read = (root for m in group.nodes for root in (m, *self.inlined.roots_of(m.src)))
        size = math.prod(group.domain)
        return {root for root in read if not isinstance(root.type, tuple) and root.ty.size == size}

    def _is_prologue(self, group: FusionGroup, n: Node, domain: tuple[int, ...]) -> bool:
        """Is the group elementwise work that only the reduction n reads?"""
        if group.pattern != "loop" or group.domain != domain or _moves(group):
            return False
        inside = {*group.nodes, n}
        return not any(m in self.results or set(self.users[m]) - inside for m in group.nodes)

    def _place_in_rows(self, n: Node) -> None:
        domain, axes = n.src[0].shape, tuple(n.attrs["axes"])
        for group in self._producers(n):
            fits = False
            if (group.pattern, group.domain, group.axes) == ("rowwise", domain, axes):
                fits = self._in_rows(n.src[0], n.src[0].ty, group)
            elif group.pattern == "loop" and group.domain == domain and not _moves(group):
                fits = self._in_place(n.src[0], domain, group)
            elif group.pattern == "gemm" and self._is_epilogue_row_sum(n, group):
                self.groups.join(n, group)
                return
            if fits and group.reads_few and self.groups.can_join(n, group):
                group.pattern, group.axes = "rowwise", axes
                self.groups.join(n, group)
                return
        self.groups.start(n, "rowwise", domain, axes)

    def _is_epilogue_row_sum(self, n: Node, group: FusionGroup) -> bool:
        """Are these sums along the rows of a GEMM, which are all summed in turn? Then the GEMM's epilogue computes
        them. Row sums of a softmax or a norm, which are used row by row, are better in a row-wise kernel."""
        along = n.src[0].shape == group.domain and tuple(n.attrs["axes"]) == (len(group.domain) - 1,)
        if not along or n.op.name != "sum" or n.dtype != "f32" or n in self.results:
            return False
        if any(m.op.kind == "reduce" or (m.op.kind == "contraction" and m.src[0].dtype == "f64") for m in group.nodes):
            return False
        readers = (u for user in self.users[n] for u in (self.users[user] if user.op.name == "cast" else [user]))
        totals = all(u.op.name == "sum" and not u.shape for u in readers)
        fits = self._in_place(n.src[0], group.domain, group) and group.reads_few
        return totals and fits and self.groups.can_join(n, group)

    def _merge_updates(self) -> None:
        """Merge remaining updates, which no node reads, into kernels over several domains."""
        home: FusionGroup | None = None
        for group in self.groups.live():
            if group.pattern != "loop" or not self._is_sink(group):
                continue
            waits = home is not None and (home.needs(group) or group.needs(home))
            if home is not None and not waits and self.groups.can_merge(home, group):
                self.groups.merge(home, group)
            else:
                home = group

    def builder(self) -> FusedGraphBuilder:
        """Return the builder of the fused graph."""
        return FusedGraphBuilder(self.graph, self.order, self.groups, self.inlined, self._preserved_inputs())

    def _preserved_inputs(self) -> dict[FusionGroup, list[Node]]:
        """Return the groups that overwrite an input whose old value is the update of another input, which they
        store."""
        writers = {target: self.groups.find(new) for new, target in self.written.items()}
        found: dict[FusionGroup, list[Node]] = {}
        for old in dict.fromkeys(self.graph.updates.values()):
            group = writers.get(old)
            if group is not None and group.pattern == "loop":
                found.setdefault(group, []).append(old)
        return found

    def _is_sink(self, group: FusionGroup) -> bool:
        """Does the group compute updates only?"""
        outside = (u for m in group.nodes for u in self.users[m] if self.groups.find(u) is not group)
        outputs = set(self.graph.outputs.values())
        return any(m in self.written for m in group.nodes) and not any(outside) and outputs.isdisjoint(group.nodes)


def _joinable(home: FusionGroup, other: FusionGroup) -> bool:
    """Can all nodes of `other` be computed in home's loop nest?"""
    if other.pattern == "loop":
        # A contraction's epilogue is emitted once per tile shape: random number generation there would be much code.
        draws = home.pattern in ("gemm", "conv", "pool", "scatter") and any(m.op.kind == "random" for m in other.nodes)
        moves = _moves(other) and not (home.pattern == "loop" and _slices(home) and _slices(other))
        return other.domain in _spaces(home) and not moves and not draws
    return other.pattern == home.pattern == "rowwise" and (other.domain, other.axes) == (home.domain, home.axes)


def _spaces(group: FusionGroup) -> set[tuple[int, ...]]:
    """Return the shapes of elementwise work that can be added to a group."""
    if group.pattern == "reduce":
        return {m.shape for m in group.nodes if m.op.kind == "reduce"}
    return {group.domain}


_PREFERENCE = {"gemm": 0, "conv": 0, "pool": 0, "scatter": 0, "rowwise": 1, "reduce": 1, "loop": 2}


def _pattern(n: Node) -> str:
    return "scatter" if adds_rows(n) else n.op.pattern


def _rounds_to_16_bit(n: Node) -> bool:
    """Is n a float32 value rounded to 16 bit?"""
    return n.src[0].dtype == "f32" and n.dtype in ("f16", "bf16")


def _is_rowwise(n: Node) -> bool:
    """Is n a reduction over trailing axes whose rows fit in cache?"""
    domain = n.src[0].shape
    axes: tuple[int, ...] = tuple(n.attrs["axes"])
    if axes != tuple(range(len(domain) - len(axes), len(domain))) or len(axes) == len(domain):
        return False
    return 0 < math.prod(domain[a] for a in axes) <= ROW_LIMIT


def _moves(group: FusionGroup) -> bool:
    return any(m.op.kind == "movement" or "gathers" in m.op.traits for m in group.nodes)


def _slices(group: FusionGroup) -> bool:
    """Does the group contain no movement but slices? Slices of one GEMM's result, such as gates, are read together."""
    return all(m.op.name == "slice" for m in group.nodes if m.op.kind == "movement" or "gathers" in m.op.traits)


def _waits(graph: Graph, written: dict[Node, Node], readers: Callable[[Node], list[Node]]) -> dict[Node, list[Node]]:
    """Return for each new value the readers of the old one, which must come first. Readers that depend on a new value
    are left out: then `schedule` stores the new value elsewhere, and copies it at the end."""
    needs_new: set[Node] = set()
    for n in graph.nodes():
        if any(s in written or s in needs_new for s in n.src):
            needs_new.add(n)
    waits = _collectives_after_flag(graph)
    for new, target in written.items():
        waits[new] = [r for r in readers(target) if r is not new and r not in needs_new]
    return waits


def _collectives_after_flag(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each collective the count of indices out of range, unless that depends on it: a rank that refuses its
    batch tells the others before the first collective, so the count must be in no kernel that needs one."""
    if (flag := graph.outputs.get(INDEX_FLAG)) is None:
        return {}
    before = set(topological([flag]))
    return {n: [flag] for n in graph.nodes() if n.op.kind == "collective" and n not in before}


def _order(graph: Graph, waits: dict[Node, list[Node]]) -> list[Node]:
    """Return the nodes, sources first, and readers of an input before the node that overwrites it."""
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
