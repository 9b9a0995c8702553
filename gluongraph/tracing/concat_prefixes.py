"""Concatenations whose first sources have been concatenated already read that result: [a, b, c] -> [[a, b], c]."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import rebuild


def share_prefixes(graph: Graph) -> Graph:
    """Return the graph in which a concatenation reads the longest one before it that has its first sources.

    In a network whose k-th layer concatenates the results of all layers before it (DenseNet, Huang et al., 2017), the
    gradient of that layer would have k slices, each added to those of other layers, and its kernels would choose among
    k arrays: k squared of both. With the results so far in one array, there are two. It has to be done before
    differentiation, since gradients follow the forward.
    """
    if not any(_joins_many(n) for n in graph.nodes()):
        return graph
    known: dict[tuple[int, tuple[Node, ...]], Node] = {}

    def shared(n: Node) -> Node:
        if n.op.name != "concat":
            return n
        axis, sources, new = n.attrs["axis"], n.src, n
        for count in range(len(sources) - 1, 1, -1):
            if (prefix := known.get((axis, sources[:count]))) is not None:
                new = ops.concat(prefix, *sources[count:], axis=axis)
                break
        known[axis, sources] = new
        return new

    return rebuild(graph, shared)


def _joins_many(n: Node) -> bool:
    return n.op.name == "concat" and len(n.src) > 2
