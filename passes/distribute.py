"""Sums over devices and ranks, as they are executed."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.rewrite import in_bodies, rebuild


def distribute(graph: Graph) -> Graph:
    """allreduce(a, b, ranks=n) -> all_reduce(allreduce(a, b)): first the sum over the devices of this process, which is
    elementwise work since they share their memory, then one collective between ranks."""

    def distributed(n: Node) -> Node:
        n = in_bodies(n, distribute)
        if n.op.name != "allreduce" or (ranks := n.attrs.get("ranks", 1)) == 1:
            return n
        return ops.all_reduce(ops.allreduce(*n.src), ranks=ranks, bucket=n.attrs.get("bucket", 0))[0]

    return rebuild(graph, distributed)
