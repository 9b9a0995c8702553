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
    """The nodes that belong to no group, because each reader computes them again; `recomputed` are such by choice,
    `views` because their readers read through them."""

    recomputed: frozenset[Node] = frozenset()
    views: frozenset[Node] = frozenset()

    def __contains__(self, n: Node) -> bool:
        return "free" in n.op.traits or n in self.recomputed or n in self.views or _is_mask(n) or _is_widened(n)

    def behind(self, start: Iterable[Node]) -> list[Node]:
        """What has to be computed first: the other nodes, seen through inlined ones."""
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
    """A comparison with something known beforehand: its reader can as well read what is compared."""
    if "compares" not in n.op.traits:
        return False
    known = n.src[1]
    while known.op.name in ("expand", "reshape"):
        known = known.src[0]
    return known.op.name in ("const", "iota")


def _is_widened(n: Node) -> bool:
    """A 16-bit number as f32: its reader can as well read what is widened."""
    return n.op.name == "cast" and n.src[0].dtype in ("f16", "bf16") and n.dtype == "f32"


@dataclass(eq=False)
class FusionGroup:
    """A group in the making. `domain` is the shape of its iteration space, `deps` the ids it must run after."""

    id: int
    pattern: str
    domain: tuple[int, ...]
    nodes: list[Node]
    axes: tuple[int, ...] = ()  # of its reductions
    edges: set[Node] = field(default_factory=set)  # what it reads and does not make itself
    deps: int = 0  # bit set over ids, transitive
    waits: list[FusionGroup] = field(default_factory=list)  # the groups that it waits for at first hand
    followers: list[FusionGroup] = field(default_factory=list)  # those that wait for it at first hand
    merged_into: FusionGroup | None = None

    @property
    def rows(self) -> int:
        """Size of the kept part of a row-wise or reducing group's domain."""
        return math.prod(d for axis, d in enumerate(self.domain) if axis not in self.axes)

    @property
    def is_whole(self) -> bool:
        """Is it the group of a composite that a kernel takes whole?"""
        return self.nodes[0].op.kind == "composite"

    @property
    def now(self) -> FusionGroup:
        """The group that this one has become part of, or itself."""
        draft = self
        while draft.merged_into is not None:
            draft = draft.merged_into
        return draft

    @property
    def reads_few(self) -> bool:
        """May it read one value more?"""
        return len(self.edges) < MAX_EDGES

    def needs(self, other: FusionGroup) -> bool:
        """Must it run after the other, by way of whatever others?"""
        return bool(self.deps >> other.id & 1)


@dataclass
class FusionGroups:
    """All groups so far, and who depends on whom. `before(n)` lists what must be computed ahead of a node."""

    before: Callable[[Node], Iterable[Node]]
    all: list[FusionGroup] = field(default_factory=list)
    of: dict[Node, FusionGroup] = field(default_factory=dict)

    def find(self, n: Node) -> FusionGroup | None:
        """The group that computes n, None for leaves and inlined nodes."""
        draft = self.of.get(n)
        return None if draft is None else draft.now

    def sources(self, n: Node) -> list[FusionGroup]:
        """The distinct groups that n waits for, seen through inlined nodes, latest first."""
        found: dict[int, FusionGroup] = {}
        for s in self.before(n):
            if (draft := self.find(s)) is not None:
                found[draft.id] = draft
        return [found[i] for i in sorted(found, reverse=True)]

    def start(self, n: Node, pattern: str, domain: tuple[int, ...], axes: tuple[int, ...] = ()) -> FusionGroup:
        """A new group of one node."""
        draft = FusionGroup(len(self.all), pattern, domain, [], axes)
        self.all.append(draft)
        self.join(n, draft)
        return draft

    def can_join(self, n: Node, draft: FusionGroup) -> bool:
        """No group that n needs may itself need `draft`, or the two would wait for each other."""
        return len(draft.nodes) < MAX_NODES and not any(other.needs(draft) for other in self.sources(n))

    def join(self, n: Node, draft: FusionGroup) -> None:
        """Put n into the group."""
        draft.nodes.append(n)
        self.of[n] = draft
        draft.edges.update(s for s in n.src if self.find(s) is not draft)
        for other in self.sources(n):
            if other is not draft:
                draft.waits.append(other)
                other.followers.append(draft)
                _add(draft, other.deps | 1 << other.id)

    def can_merge(self, a: FusionGroup, b: FusionGroup) -> bool:
        """Two groups may become one if no third lies on a path between them."""
        if len(a.nodes) + len(b.nodes) > MAX_NODES:
            return False
        first, second = (a, b) if a.needs(b) else (b, a)
        return not any(third.now not in (a, b) and third.now.needs(second) for third in first.waits)

    def merge(self, a: FusionGroup, b: FusionGroup) -> FusionGroup:
        """Everything of b moves into a."""
        b.merged_into = a
        a.nodes.extend(b.nodes)
        a.edges = {s for s in a.edges | b.edges if self.find(s) is not a}
        a.waits.extend(b.waits)
        a.followers.extend(b.followers)
        a.deps = (a.deps | b.deps) & ~(1 << a.id) & ~(1 << b.id)
        for follower in a.followers:
            if follower.now is not a:
                _add(follower.now, a.deps | 1 << a.id)
        return a

    def live(self) -> list[FusionGroup]:
        """The groups that are still there, in order of their first node."""
        return [d for d in self.all if d.merged_into is None]


def _add(draft: FusionGroup, deps: int) -> None:
    """Let a group, and all that follow it, run after these as well. Groups that know it already are not passed."""
    stack = [draft]
    while stack:
        at = stack.pop()
        if at.deps | deps != at.deps:
            at.deps |= deps
            stack.extend(follower.now for follower in at.followers)


def overwritten(graph: Graph) -> dict[Node, Node]:
    """For each update whose new value is computed: its node -> the input it is written over."""
    return {new: graph.inputs[name] for name, new in graph.updates.items() if new.op.kind != "leaf"}


def adds_rows(n: Node) -> bool:
    """Rows added up in a matrix of zeros that has more of them, and so had better not be in memory."""
    if n.op.name != "scatter_add" or not is_zero(n.src[0]) or n.ty.rank != 2:
        return False
    return n.shape[0] > n.src[1].ty.size and n.dtype in ("f32", "f64")
