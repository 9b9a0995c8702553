"""Rewriting by tables: patterns with holes, written in the IR's own operators, and the engine that applies them.

A rule is `(pattern, replacement)`; `replacement(n, **holes)` gets the matched node and the nodes that match the holes,
and returns the new node, or None if it does not apply. A hole used twice must match the same node both times.

>>> from gluongraph import ops
>>> from gluongraph.ir.graph import Graph, TensorType
>>> x = hole("x")
>>> rules = [(p.neg(p.neg(x)), lambda n, x: x)]
>>> a = ops.input("a", TensorType((2,)))
>>> rewrite(Graph({"a": a}, {"y": ops.neg(ops.neg(a))}), rules).outputs["y"] is a
True
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gluongraph.errors import Origin, VerifyError
from gluongraph.ir.graph import Graph, Node, attr_key, node

Bindings = dict[str, Node]
Replacement = Callable[..., Node | None]
Rule = tuple["Pattern", Replacement]


@dataclass(frozen=True)
class Pattern:
    """A pattern of nodes: the op, patterns of the sources, some of the attributes. A hole has no op."""

    op: str
    src: tuple[Pattern, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    hole: str = ""

    def __add__(self, other: Pattern) -> Pattern:
        return Pattern("add", (self, other))

    def __sub__(self, other: Pattern) -> Pattern:
        return Pattern("sub", (self, other))

    def __mul__(self, other: Pattern) -> Pattern:
        return Pattern("mul", (self, other))

    def __truediv__(self, other: Pattern) -> Pattern:
        return Pattern("div", (self, other))

    def __pow__(self, other: Pattern) -> Pattern:
        return Pattern("pow", (self, other))

    def __neg__(self) -> Pattern:
        return Pattern("neg", (self,))

    def named(self, hole: str) -> Pattern:
        """Return the same pattern; the matched node is passed to the rule under this name."""
        return Pattern(self.op, self.src, self.attrs, hole)

    def matches(self, n: Node, bound: Bindings) -> Iterator[Bindings]:
        """Iterate over all matches of n, as the nodes that match the holes."""
        if self.hole:
            if bound.get(self.hole, n) is not n:
                return
            bound = {**bound, self.hole: n}
        if not self.op:
            yield bound
            return
        if n.op.name != self.op or len(n.src) != len(self.src):
            return
        if any(k not in n.attrs or attr_key(n.attrs[k]) != attr_key(v) for k, v in self.attrs.items()):
            return
        yield from _match_all(self.src, n.src, bound)
        if "commutes" in n.op.traits and n.src[0] is not n.src[1]:
            yield from _match_all(self.src, n.src[::-1], bound)


def _match_all(patterns: Sequence[Pattern], nodes: Sequence[Node], bound: Bindings) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    for first in patterns[0].matches(nodes[0], bound):
        yield from _match_all(patterns[1:], nodes[1:], first)


def hole(name: str) -> Pattern:
    """Return a pattern that matches any node; the rule gets that node as keyword `name`."""
    return Pattern("", hole=name)


class _Ops:
    """Builders of patterns: `p.transpose(x)`, `p.cast(x, dtype="f32")`. Attributes that are omitted match any value."""

    def __getattr__(self, op: str) -> Callable[..., Pattern]:
        return lambda *src, **attrs: Pattern(op, src, attrs)


p = _Ops()


def rewrite(graph: Graph, rules: Sequence[Rule], *, rounds: int = 64) -> Graph:
    """Apply the rules until none applies, sources first, also in the bodies of loops and calls.

    A node is matched once after its sources are final, and again after each rule that applied to it, so the cost is
    linear in the number of nodes. Returns the same object if nothing changed.

    Raises:
        VerifyError: rules undo each other, or there are more than `rounds` changes per node.
    """
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        table.setdefault(rule[0].op, []).append(rule)
    return _Engine(table, rounds, {}).run(graph)


class _Engine:
    """Rewrites one graph. `done` maps nodes, old and new, to their final form."""

    def __init__(self, table: Mapping[str, list[Rule]], rounds: int, bodies: dict[Graph, Graph]):
        self.table, self.rounds, self.bodies = table, rounds, bodies
        self.done: dict[Node, Node] = {}
        self.becomes: dict[Node, Node] = {}  # matched nodes whose replacement is not final yet
        self.origins: dict[Node, Origin] = {}

    def run(self, graph: Graph) -> Graph:
        self.origins = dict(graph.origins)
        live = graph.nodes()
        self.left = self.rounds * (len(live) + 1)
        for n in live:
            self.finish(n)
        return _finished(graph, self.done, self.origins)

    def finish(self, root: Node) -> None:
        stack = [root]
        while stack:
            n = stack[-1]
            if n in self.done:
                stack.pop()
            elif (new := self.becomes.get(n)) is not None:
                self.done[n] = self.done[new]  # it was above n on the stack, so it is final
                del self.becomes[n]
            elif waiting := [s for s in n.src if s not in self.done]:
                stack.extend(reversed(waiting))
            else:
                new = self.change(n)
                if new is n:
                    self.done[n] = n
                elif new in self.becomes:
                    raise VerifyError(f"rewrite rules undo each other: {n!r} becomes {new!r} and back")
                else:
                    self.becomes[n] = new
                    stack.append(new)

    def change(self, n: Node) -> Node:
        """Return n on final sources, or, if it has these already, after the first rule that applies."""
        on_final = n.on(tuple(self.done[s] for s in n.src))
        if on_final is not n:
            return self.note(n, on_final)
        if (inner := in_bodies(n, self.body)) is not n:
            return self.note(n, inner)
        for pattern, replacement in (*self.table.get(n.op.name, ()), *self.table.get("", ())):
            for bound in pattern.matches(n, {}):
                if (new := replacement(n, **bound)) is not None and new is not n:
                    return self.replaced(n, new, tuple(bound.values()), replacement)
        return n

    def replaced(self, n: Node, new: Node, bound: tuple[Node, ...], rule: Replacement) -> Node:
        self.left -= 1
        if self.left < 0:
            raise VerifyError(f"rewrite rules go on without end; the last turned {n!r} into {new!r} ({rule})")
        if new.type != n.type:
            raise VerifyError(f"a rewrite rule changed a type: {n!r} into {new!r} ({rule})")
        return self.note(n, restamp(new, n.copy_id, (*bound, *_near(n))) if n.copy_id else new)

    def note(self, n: Node, new: Node) -> Node:
        """Give the nodes that were created for n its origin."""
        if (origin := self.origins.get(n)) is not None:
            for made in made_from(new, self.done):
                self.origins.setdefault(made, origin)
        return new

    def body(self, body: Graph) -> Graph:
        if (made := self.bodies.get(body)) is None:
            made = self.bodies[body] = _Engine(self.table, self.rounds, self.bodies).run(body)
        return made


def rebuild(graph: Graph, fn: Callable[[Node], Node]) -> Graph:
    """Replace every live node by fn of it, sources first; nodes that fn creates get the origin of the node."""
    done: dict[Node, Node] = {}
    final: set[Node] = set()
    origins = dict(graph.origins)
    for n in graph.nodes():
        new = done[n] = fn(n.on(tuple(done[s] for s in n.src)))
        if (origin := origins.get(n)) is not None:
            for made in made_from(new, final):
                origins.setdefault(made, origin)
        final.add(new)
    return _finished(graph, done, origins)


def _finished(graph: Graph, done: Mapping[Node, Node], origins: Mapping[Node, Origin]) -> Graph:
    """Return the graph with `done[n]` for each result n, and the origins of live nodes."""
    outputs = {k: done[n] for k, n in graph.outputs.items()}
    updates = {k: done[n] for k, n in graph.updates.items()}
    new = graph.with_results(outputs, updates, {})
    if new is graph:
        return graph
    live = (*graph.inputs.values(), *new.nodes())
    return Graph(graph.inputs, outputs, updates, {n: origins[n] for n in live if n in origins})


def _near(n: Node, depth: int = 4) -> list[Node]:
    """Return the nodes that a pattern can have matched: the sources of n, their sources, and so on."""
    found, level = [], [n]
    for _ in range(depth):
        level = list(dict.fromkeys(s for m in level for s in m.src))
        found += level
    return found


def made_from(new: Node, known: Container[Node]) -> list[Node]:
    """Return the nodes from which `new` is computed down to the known ones, sources first: those that a rule
    created."""
    found: dict[Node, None] = {}
    stack = [(new, False)]
    while stack:
        n, ready = stack.pop()
        if ready:
            found[n] = None
        elif n not in known and n not in found:
            stack.append((n, True))
            stack.extend((s, False) for s in reversed(n.src))
    return list(found)


def restamp(new: Node, copy_id: int, known: Iterable[Node]) -> Node:
    """Return `new` with all nodes down to the known ones marked as recomputed copies, so that they are not merged with
    originals.

    A rule creates nodes without a copy_id; for a recomputed copy these would be the nodes of the original.
    """
    made: dict[Node, Node] = {}
    for n in made_from(new, set(known)):
        src = tuple(made.get(s, s) for s in n.src)
        made[n] = n if n.op.kind == "leaf" else node(n.op, src, n.attrs, n.copy_id or copy_id)
    return made.get(new, new)


def in_bodies(n: Node, fn: Callable[[Graph], Graph]) -> Node:
    """Return n with fn applied to its body graphs; n itself if they do not change. `fused` nodes are not changed."""
    if n.op.kind != "control" or n.op.name == "fused":
        return n
    attrs = {k: fn(v) if isinstance(v, Graph) else v for k, v in n.attrs.items()}
    if all(attrs[k] is v for k, v in n.attrs.items()):
        return n
    return node(n.op, n.src, attrs, n.copy_id)


def value(n: Node) -> float | int | bool | None:
    """Return the value of all elements of n if n is a constant, seen through expand and reshape; else None."""
    while n.op.name in ("expand", "reshape"):
        n = n.src[0]
    return n.attrs["value"] if n.op.name == "const" else None


def is_value(n: Node, number: float) -> bool:
    """Is every element of n this number, bit for bit (0.0 is not -0.0) or as an integer?"""
    found = value(n)
    return found is not None and attr_key(float(found)) == attr_key(float(number))
