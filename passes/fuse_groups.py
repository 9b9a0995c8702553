"""Fusion groups while they are built: their nodes, with the dependencies that make every merge legal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gluongraph.ir.graph import Graph, Node
from gluongraph.ops.constants import is_zero

MAX_NODES = 96  # a kernel larger than this compiles slowly and gains nothing
MAX_EDGES = 40  # values in and out of one kernel


@dataclass(frozen=True)
class Inlined:
    """The nodes that are in no group, because each reader computes them itself: free ones, those `recomputed` by
    choice, and `views`, which their readers read through."""

    recomputed: frozenset[Node] = frozenset()
    views: frozenset[Node] = frozenset()

    def __contains__(self, n: Node) -> bool:
        return (
            "free" in n.op.traits or n in self.recomputed or n in self.views or _is_mask(n) or _is_converted_16_bit(n)
        )

    def roots_of(self, start: Iterable[Node]) -> list[Node]:
        """Return the nodes that are not inlined from which these are computed, seen through inlined nodes."""
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        stack = list(start)
        while stack:
            n = stack.pop()
            if n not in self:
                found[n] = None
            elif n not in seen:
                seen.add(n)
                stack.extend(n.src)
        return list(found)


def _is_mask(n: Node) -> bool:
    """Is n a comparison with a constant? Then its readers can as well read what is compared."""
    if "compares" not in n.op.traits:
        return False
    known = n.src[1]
    while known.op.name in ("expand", "reshape"):
        known = known.src[0]
    return known.op.name in ("const", "iota")


def _is_converted_16_bit(n: Node) -> bool:
    """Is n a 16-bit value converted to f32? Then its readers can as well read the 16-bit value."""
    return n.op.name == "cast" and n.src[0].dtype in ("f16", "bf16") and n.dtype == "f32"


@dataclass(eq=False)
class FusionGroup:
    """A group under construction. `domain` is the shape of its iteration space, `deps` the ids it must run after."""

    id: int
    pattern: str
    domain: tuple[int, ...]
    nodes: list[Node]
    axes: tuple[int, ...] = ()  # of its reductions
    edges: set[Node] = field(default_factory=set)  # what it reads from other groups
    deps: int = 0  # bit set over ids, transitive
    waits: list[FusionGroup] = field(default_factory=list)  # the groups that it directly depends on
    followers: list[FusionGroup] = field(default_factory=list)  # the groups that directly depend on it
    merged_into: FusionGroup | None = None

    @property
    def rows(self) -> int:
        """Number of rows of a row-wise or reducing group's domain: its size without the reduced axes."""
        return math.prod(d for axis, d in enumerate(self.domain) if axis not in self.axes)

    @property
    def is_composite_kernel(self) -> bool:
        """Is it the group of a composite that has a kernel?"""
        return self.nodes[0].op.kind == "composite"

    @property
    def current(self) -> FusionGroup:
        """The group that this one was merged into, or itself."""
        group = self
        while group.merged_into is not None:
            group = group.merged_into
        return group

    @property
    def reads_few(self) -> bool:
        """Can it read one more value?"""
        return len(self.edges) < MAX_EDGES

    def needs(self, other: FusionGroup) -> bool:
        """Must it run after the other, directly or transitively?"""
        return bool(self.deps >> other.id & 1)


@dataclass
class FusionGroups:
    """All groups so far, and their dependencies. `before(n)` returns what must be computed before a node."""

    before: Callable[[Node], Iterable[Node]]
    all: list[FusionGroup] = field(default_factory=list)
    of: dict[Node, FusionGroup] = field(default_factory=dict)

    def find(self, n: Node) -> FusionGroup | None:
        """Return the group that computes n; None for leaves and inlined nodes."""
        group = self.of.get(n)
        return None if group is None else group.current

    def sources(self, n: Node) -> list[FusionGroup]:
        """Return the distinct groups that n depends on, seen through inlined nodes, latest first."""
        found: dict[int, FusionGroup] = {}
        for s in self.before(n):
            if (group := self.find(s)) is not None:
                found[group.id] = group
        return [found[i] for i in sorted(found, reverse=True)]

    def start(self, n: Node, pattern: str, domain: tuple[int, ...], axes: tuple[int, ...] = ()) -> FusionGroup:
        """Create a group of one node."""
        group = FusionGroup(len(self.all), pattern, domain, [], axes)
        self.all.append(group)
        self.join(n, group)
        return group

    def can_join(self, n: Node, group: FusionGroup) -> bool:
        """Can n join the group without a cyclic dependency: does no other group that n needs depend on it?"""
        return len(group.nodes) < MAX_NODES and not any(other.needs(group) for other in self.sources(n))

    def join(self, n: Node, group: FusionGroup) -> None:
        """Add n to the group."""
        group.nodes.append(n)
        self.of[n] = group
        group.edges.update(s for s in n.src if self.find(s) is not group)
        for other in self.sources(n):
            if other is not group:
                group.waits.append(other)
                other.followers.append(group)
                _add(group, other.deps | 1 << other.id)

    def can_merge(self, a: FusionGroup, b: FusionGroup) -> bool:
        """Can the groups be merged: is no third group on a path between them?"""
        if len(a.nodes) + len(b.nodes) > MAX_NODES:
            return False
        first, second = (a, b) if a.needs(b) else (b, a)
        return not any(third.current not in (a, b) and third.current.needs(second) for third in first.waits)

    def merge(self, a: FusionGroup, b: FusionGroup) -> FusionGroup:
        """Merge b into a."""
        b.merged_into = a
        a.nodes.extend(b.nodes)
        a.edges = {s for s in a.edges | b.edges if self.find(s) is not a}
        # Each once: a large step merges its updates into few groups, which would follow others thousands of times.
        a.waits = list(dict.fromkeys(w.current for w in (*a.waits, *b.waits)))
        a.followers = list(dict.fromkeys(f.current for f in (*a.followers, *b.followers)))
        a.deps = (a.deps | b.deps) & ~(1 << a.id) & ~(1 << b.id)
        for follower in a.followers:
            if follower.current is not a:
                _add(follower.current, a.deps | 1 << a.id)
        return a

    def live(self) -> list[FusionGroup]:
        """Return the groups that were not merged into others, in order of creation."""
        return [d for d in self.all if d.merged_into is None]


def _add(group: FusionGroup, deps: int) -> None:
    """Add dependencies to a group and all its followers; the walk ends at groups that already have them."""
    stack = [group]
    while stack:
        at = stack.pop()
        if at.deps | deps != at.deps:
            at.deps |= deps
            stack.extend(follower.current for follower in at.followers)


def overwritten(graph: Graph) -> dict[Node, Node]:
    """Return for each update whose new value is computed: its node -> the input that it overwrites."""
    return {new: graph.inputs[name] for name, new in graph.updates.items() if new.op.kind != "leaf"}


def adds_rows(n: Node) -> bool:
    """Is n a scatter-add into a matrix of zeros with more rows than updates? Then it should not be stored."""
    if n.op.name != "scatter_add" or not is_zero(n.src[0]) or n.ty.rank != 2:
        return False
    return n.shape[0] > n.src[1].ty.size and n.dtype in ("f32", "f64")
