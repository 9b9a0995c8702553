"""Which result of a kernel may overwrite an operand: the kernel reads that operand only where it then writes.

All rules compute the results at a place before they store the first of them; the row-wise one has read a row as often
as it needs before it writes there.
"""

from __future__ import annotations

from gluongraph.ir.graph import Graph, Node

VIEWS = frozenset({"reshape", "depends_on"})
_POINTWISE = frozenset({"loop", "gemm", "conv", "pool", "scatter", "reduce"})
_IN_ROWS = frozenset({"expand", "reshape", "stop_gradient"})  # movement that keeps to its row in a row-wise kernel


def root(n: Node) -> Node:
    """The value in memory that n is a view of."""
    while n.op.name in VIEWS:
        n = n.src[0]
    return n


def may_overwrite(writer: Node, item: Node, target: Node) -> bool:
    """May this result of a fused node lie over the value `target`, of the same size, which it reads?"""
    body: Graph = writer.attrs["body"]
    result = list(body.outputs.values())[item.attrs["index"]]
    read = [x for x, s in zip(body.inputs.values(), writer.src, strict=True) if root(s) is target]
    pattern = writer.attrs["pattern"]
    if len(read) != 1:  # two views of one place are two arguments, which compilers take for two places
        return False
    (x,) = read
    if pattern == "opaque":
        return _lies_over(body, result, x)
    if pattern not in _POINTWISE and pattern != "rowwise":
        return False
    if pattern != "loop" and result.op.kind not in ("elementwise", "leaf"):
        return False
    return x.shape == result.shape and _stays(x, body.users(), pattern)


def _stays(x: Node, users: dict[Node, list[Node]], pattern: str) -> bool:
    """Is all that is computed from x at some place of use at that place only, or in its row where a kernel goes by
    rows? What a product sums along its rows it reads where it then writes."""
    by_rows, sums = pattern == "rowwise", pattern in ("rowwise", "gemm")
    seen, stack = {x}, [x]
    while stack:
        for n in users[stack.pop()]:
            along = n.op.kind == "elementwise" and (by_rows or n.shape == x.shape)
            if not (along or (sums and n.op.kind == "reduce") or (by_rows and n.op.name in _IN_ROWS)):
                return False
            if n not in seen:
                seen.add(n)
                stack.append(n)
    return True


def _lies_over(body: Graph, result: Node, x: Node) -> bool:
    """Is the kernel one op, whose result may lie over that operand, which it reads nowhere else?"""
    over = result.op.over
    return len(body.outputs) == 1 and over is not None and result.src[over] is x and len(body.users()[x]) == 1
