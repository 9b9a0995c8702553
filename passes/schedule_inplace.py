"""Which result of a kernel may overwrite an operand: the kernel reads that operand only where it then writes.

All rules compute the results at an index before they store the first of them; the row-wise rule has finished reading a
row before it stores it.
"""

from __future__ import annotations

from gluongraph.ir.graph import Graph, Node

VIEWS = frozenset({"reshape", "depends_on"})
_POINTWISE = frozenset({"loop", "gemm", "conv", "pool", "scatter", "reduce"})
_IN_ROWS = frozenset({"expand", "reshape", "stop_gradient"})  # movement within a row in a row-wise kernel


def root(n: Node) -> Node:
    """Return the value in memory that n is a view of."""
    while n.op.name in VIEWS:
        n = n.src[0]
    return n


def may_overwrite(writer: Node, item: Node, target: Node) -> bool:
    """May this result of a fused node be stored in place of `target`, a value of the same size that the node reads?"""
    body: Graph = writer.attrs["body"]
    result = list(body.outputs.values())[item.attrs["index"]]
    read = [x for x, s in zip(body.inputs.values(), writer.src, strict=True) if root(s) is target]
    pattern = writer.attrs["pattern"]
    if len(read) != 1:  # two views would be two arguments, which LLVM assumes not to alias
        return False
    (x,) = read
    if pattern == "opaque":
        return _overwrites_in_place(body, result, x)
    if pattern == "collective":
        collective = result.src[0]
        return collective.op.name == "all_reduce" and collective.src[result.attrs["index"]] is x
    if pattern not in _POINTWISE and pattern != "rowwise":
        return False
    if pattern != "loop" and result.op.kind not in ("elementwise", "leaf"):
        return False
    return x.shape == result.shape and _reads_own_index_only(x, body.users(), pattern)


def _reads_own_index_only(x: Node, users: dict[Node, list[Node]], pattern: str) -> bool:
    """Are all values computed from x at an index used at that index only, or in its row in a row-wise kernel? (The row
    sums of a GEMM's epilogue are read at the index that is then stored.)"""
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


def _overwrites_in_place(body: Graph, result: Node, x: Node) -> bool:
    """Is the kernel one op whose result may be stored in place of that operand, and which has no other reader?"""
    over = result.op.over
    return len(body.outputs) == 1 and over is not None and result.src[over] is x and len(body.users()[x]) == 1
