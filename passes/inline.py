"""Inlining of composites and calls, except for the composites that have a kernel."""

from __future__ import annotations

from collections.abc import Callable

from gluongraph.errors import VerifyError
from gluongraph.ir import composite
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, made_from, rebuild, restamp

Keep = Callable[[Node], bool]


def inline(graph: Graph, *, keep: Keep = lambda n: False) -> Graph:
    """softmax(x) -> its exponentials over their sum, and so on down to primitives; nodes for which `keep(n)` holds
    stay.

    The nodes of a recomputed composite (`copy_id`) are recomputed copies too.
    """
    return rebuild(graph, _Inliner(keep).one)


class _Inliner:
    def __init__(self, keep: Keep):
        self.keep = keep
        self.several: dict[Node, tuple[Node, ...]] = {}  # expanded nodes of several results

    def one(self, n: Node) -> Node:
        """Return n, whose sources are primitives, expanded to primitives."""
        n = in_bodies(n, lambda body: inline(body, keep=self.keep))
        if n.op.name == "get_tuple_element" and n.src[0] in self.several:
            return self.several[n.src[0]][n.attrs["index"]]
        if not (n.op.kind == "composite" or n.op.name == "call") or self.keep(n):
            return n
        results = self.expanded(n)
        if isinstance(n.type, tuple):
            self.several[n] = results  # only get_tuple_element reads n, which becomes dead
            return n
        return results[0]

    def expanded(self, n: Node) -> tuple[Node, ...]:
        """Return the results of n, expanded to primitives."""
        boundary = dict.fromkeys(n.src)
        rewritten: dict[Node, Node] = {s: s for s in boundary}
        results = composite.inline(n)
        for result in results:
            for m in made_from(result, rewritten):
                rewritten[m] = self.one(m.on(tuple(rewritten[s] for s in m.src)))
        finals = tuple(rewritten[r] for r in results)
        if tuple(f.type for f in finals) != n.types:
            raise VerifyError(f"the body of {n!r} has type {', '.join(str(f.type) for f in finals)}")
        return tuple(restamp(f, n.copy_id, boundary) for f in finals) if n.copy_id else finals
