"""Groups in the making: which nodes become one kernel, with the dependencies that keep every merge legal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gluongraph.ir import Graph, Node
from gluongraph.ops.leaf import is_zero

MAX_NODES = 96  # a kernel larger than this compiles slowly and gains nothing
MAX_EDGES = 40  # values in and out of one kernel

# Nodes that cost nothing to recompute where they are read.
INLINE = frozenset({"const", "iota", "expand", "one_hot", "stop_gradient", "reshape"})
GATHERS = frozenset({"take", "gather"})
COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})


@dataclass(frozen=True)
class Inlined:
    """The nodes that belong to no group, because each reader computes them again; `recomputed` are such by choice,
    `views` because their readers read through them."""

    recomputed: frozenset[Node] = frozenset()
    views: frozenset[Node] = frozenset()

    def __contains__(self, n: Node) -> bool:
        return n.op.name in INLINE or n in self.recomputed or n in self.views or _is_mask(n) or _is_widened(n)

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
    if n.op.name not in COMPARISONS:
        return False
    known = n.src[1]
    while known.op.name in ("expand", "reshape"):
        known = known.src[0]
    return known.op.name in ("const", "iota")


def _is_widened(n: Node) -> bool:
    """A 16-bit number as f32: its reader can as well read what is widened."""
    return n.op.name == "cast" and n.src[0].dtype in ("f16", "bf16") and n.dtype == "f32"


@dataclass(eq=False)
class Draft:
    """A group in the making. `domain` is the shape of its iteration space, `deps` the ids it must run after."""

    id: int
    pattern: str
    domain: tuple[int, ...]
    nodes: list[Node]
    axes: tuple[int, ...] = ()  # of its reductions
    deps: int = 0  # bit set over ids, transitive
    merged_into: Draft | None = None

    @property
    def rows(self) -> int:
        """Size of the kept part of a row-wise or reducing group's domain."""
        return math.prod(d for axis, d in enumerate(self.domain) if axis not in self.axes)

    @property
    def is_whole(self) -> bool:
        """Is it the group of a composite that a kernel takes whole?"""
        return self.nodes[0].op.kind == "composite"


@dataclass
class Drafts:
    """All groups so far, and who depends on whom. `before(n)` lists what must be computed ahead of a node."""

    before: Callable[[Node], Iterable[Node]]
    all: list[Draft] = field(default_factory=list)
    of: dict[Node, Draft] = field(default_factory=dict)

    def find(self, n: Node) -> Draft | None:
        """The group that computes n, None for leaves and inlined nodes."""
        draft = self.of.get(n)
        while draft is not None and draft.merged_into is not None:
            draft = draft.merged_into
        return draft

    def sources(self, n: Node) -> list[Draft]:
        """The distinct groups that n waits for, seen through inlined nodes, latest first."""
        found: dict[int, Draft] = {}
        for s in self.before(n):
            if (draft := self.find(s)) is not None:
                found[draft.id] = draft
        return [found[i] for i in sorted(found, reverse=True)]

    def start(self, n: Node, pattern: str, domain: tuple[int, ...], axes: tuple[int, ...] = ()) -> Draft:
        """A new group of one node."""
        draft = Draft(len(self.all), pattern, domain, [n], axes)
        self.all.append(draft)
        self.of[n] = draft
        self._depend(draft, self.sources(n))
        return draft

    def can_join(self, n: Node, draft: Draft) -> bool:
        """No group that n needs may itself need `draft`, or the two would wait for each other."""
        return len(draft.nodes) < MAX_NODES and not any(
            other.deps >> draft.id & 1 for other in self.sources(n) if other is not draft
        )

    def join(self, n: Node, draft: Draft) -> None:
        """Put n into the group."""
        draft.nodes.append(n)
        self.of[n] = draft
        self._depend(draft, self.sources(n))

    def can_merge(self, a: Draft, b: Draft) -> bool:
        """Two groups may become one if no third lies on a path between them."""
        if len(a.nodes) + len(b.nodes) > MAX_NODES:
            return False
        for first, second in ((a, b), (b, a)):
            if not first.deps >> second.id & 1:  # as it would, by way of a third
                continue
            between = first.deps & ~(1 << second.id)
            if any(between >> d.id & 1 and d.deps >> second.id & 1 for d in self.all if d.merged_into is None):
                return False
        return True

    def merge(self, a: Draft, b: Draft) -> Draft:
        """Everything of b moves into a."""
        b.merged_into = a
        a.nodes.extend(b.nodes)
        joined = (a.deps | b.deps) & ~(1 << a.id) & ~(1 << b.id)
        a.deps = joined
        for d in self.all:
            if d.deps >> b.id & 1 or d.deps >> a.id & 1:
                d.deps |= joined | 1 << a.id
        return a

    def _depend(self, draft: Draft, on: Iterable[Draft]) -> None:
        added = 0
        for other in on:
            if other is not draft:
                added |= other.deps | 1 << other.id
        added &= ~(1 << draft.id)
        if added | draft.deps == draft.deps:
            return
        draft.deps |= added
        for d in self.all:
            if d.deps >> draft.id & 1:
                d.deps |= added

    def live(self) -> list[Draft]:
        """The groups that are still there, in order of their first node."""
        return [d for d in self.all if d.merged_into is None]


def overwritten(graph: Graph) -> dict[Node, Node]:
    """For each update whose new value is computed: its node -> the input it is written over."""
    return {new: graph.inputs[name] for name, new in graph.updates.items() if new.op.kind != "leaf"}


def adds_rows(n: Node) -> bool:
    """Rows added up in a matrix of zeros that has more of them, and so had better not be in memory."""
    if n.op.name != "scatter_add" or not is_zero(n.src[0]) or n.ty.rank != 2:
        return False
    return n.shape[0] > n.src[1].ty.size and n.dtype in ("f32", "f64")
