"""Movement read by composites only: their kernels read through it by strides, and it is never stored."""

from __future__ import annotations

from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Graph, Node
from gluongraph.ops import views


def read_through(graph: Graph) -> frozenset[Node]:
    """Return the movement between stored values and the composites with a kernel that read them, such as heads of a
    joint projection. Masks are read without movement."""
    users, results, order = graph.users(), set(graph.results), graph.nodes()
    paths = (views.read(s)[0] for n in order if n.op.kind == "composite" for s in n.src if is_float(s.dtype))
    wanted = {s for path in paths for s in path}
    found: set[Node] = set()
    for n in reversed(order):
        alone = all(u in found or u.op.kind == "composite" for u in users[n])
        if n in wanted and n not in results and alone:
            found.add(n)
    return frozenset(found)
