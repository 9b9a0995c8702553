"""A graph as the rules see it: each node with its extents, its readers and the layer that made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gluongraph.errors import Origin, UnsupportedError
from gluongraph.ir.composite import inline
from gluongraph.ir.graph import Graph, Node, node
from gluongraph.onnx.export.rules.extents import Extent, Free, Pairs
from gluongraph.onnx.export.rules.terms import Made
from gluongraph.tracing.tracer import is_rng

Rule = Callable[["View", Node], "Made | None"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """The decorated function as what says these ops in ONNX; it gives None for a node that it cannot say."""

    def add(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return add


class View:
    """One graph, or the body of a loop."""

    def __init__(self, graph: Graph, pairs: Pairs, origins: Mapping[Node, Origin]):
        self.graph, self.pairs, self.origins = graph, pairs, origins
        self.users = graph.users()
        self.results = set(graph.results)

    def sizes(self, n: Node) -> tuple[Extent, ...]:
        """The shape of a node, with extents that follow the batch."""
        return self.pairs.sizes(n)

    def inner(self, n: Node) -> bool:
        """Is there one reader, so that the node may become part of what reads it?"""
        return len(self.users.get(n, ())) == 1 and n not in self.results

    def place(self, n: Node) -> str:
        """Where a node comes from, for messages."""
        origin = self.origins.get(n)
        if origin is None:
            return ""
        line = f"\n  at {origin.file}:{origin.line}" if origin.file else ""
        return f" of {origin.scope!r}{line}" if origin.scope else line

    def refused(self, n: Node, why: str = "there is no operator of ONNX for it") -> UnsupportedError:
        """The error for what cannot be said; the caller raises it."""
        types = ", ".join(str(t) for s in n.src for t in s.types)
        return UnsupportedError(f"export_onnx: {n.op.name}({types}){self.place(n)}: {why}")

    def check(self) -> None:
        """Raise for what no prediction can do."""
        for n in self.graph.nodes():
            if any(s.op.name == "input" and is_rng(s.attrs["name"]) for s in n.src):
                raise self.refused(n, "random numbers in prediction")

    def made(self, n: Node) -> Made:
        """What a node is in ONNX.

        Raises:
            UnsupportedError: nothing says it.
        """
        found = RULES[n.op.name](self, n) if n.op.name in RULES else None
        if found is None:
            raise self.refused(n)
        return found


def free(extents: tuple[Extent, ...]) -> list[int]:
    """The axes that follow the batch."""
    return [a for a, n in enumerate(extents) if isinstance(n, Free)]


def opened(graph: Graph, origins: dict[Node, Origin]) -> Graph:
    """The graph with the bodies of those composites that no rule says; `origins` grows by what they hold."""
    while True:
        view = View(graph, Pairs({}), origins)
        new: dict[Node, Node] = {}
        several: dict[Node, tuple[Node, ...]] = {}
        for n in graph.nodes():
            if n.op.name == "get_tuple_element" and n.src[0] in several:
                new[n] = several[n.src[0]][n.attrs["index"]]
                continue
            made = n.on(tuple(new[s] for s in n.src))
            if n.op.name == "scan":
                made = node(
                    made.op, made.src, {**made.attrs, "body": opened(made.attrs["body"], origins)}, made.copy_id
                )
            elif n.op.body is not None and not (n.op.name in RULES and RULES[n.op.name](view, n) is not None):
                results = inline(made)
                several[n], made = results, results[0]
            if (origin := origins.get(n)) is not None:
                for each in _unseen(made, origins):
                    origins[each] = origin
            new[n] = made
        after = graph.with_results(
            {k: new[n] for k, n in graph.outputs.items()}, {k: new[n] for k, n in graph.updates.items()}
        )
        if after is graph:
            return graph
        graph = after


def _unseen(n: Node, known: Mapping[Node, Any]) -> Iterator[Node]:
    """The node, and what it is made of, down to what is known."""
    stack = [n]
    while stack:
        n = stack.pop()
        if n not in known:
            yield n
            stack.extend(n.src)
