"""Pattern "loop": elementwise work and data movement, every output element on its own; several index spaces one after
another in one kernel."""

from __future__ import annotations

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.expression import Expressions, inner_index, merged_from, size_of
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.ir import Node, topological
from gluongraph.plan import Candidate, Group

PARALLEL = 1 << 14  # elements below which a parallel region costs more than it saves
BANDWIDTH = 2e10


def claim(group: Group, cpu: Cpu) -> Candidate | None:
    """Groups of which every op says how to compute one element."""
    if group.pattern != "loop":
        return None
    return offered("loop", group)


def offered(rule: str, group: Group) -> Candidate | None:
    """A candidate without workspace, if every op can be computed element by element."""
    if any(n.op.lower is None and n.op.name != "input" for n in group.body.nodes()):
        return None
    if any(t.size == 0 for t in (*group.inputs, *group.outputs)):
        return None
    nbytes = sum(t.nbytes for t in (*group.inputs, *group.outputs))
    return Candidate(rule, nbytes / BANDWIDTH)


def emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """One loop nest for each shape among the outputs."""
    spaces: dict[tuple[int, ...], list[tuple[Node, Buf]]] = {}
    for n, buf in zip(group.body.outputs.values(), bindings.outputs, strict=True):
        spaces.setdefault(n.shape, []).append((n, buf))
    for shape, results in spaces.items():
        _space(k, group, bindings, cpu, shape, results)


def _space(
    k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, shape: tuple[int, ...], results: list[tuple[Node, Buf]]
) -> None:
    first = merged_from(topological([n for n, _ in results]), shape)
    outer, inner = size_of(shape[:first]), size_of(shape[first:])

    def element(row: Value, at: Expr, lanes: int) -> None:
        expressions = Expressions(k, group, bindings)
        index = inner_index(row, tir.ramp(at, lanes), shape, first)
        values = [expressions.at(n, index) for n, _ in results]  # all of them before the first is stored
        for (_, buf), value in zip(results, values, strict=True):
            k.store(buf, value, row * inner + at if outer > 1 else at)

    sweep(k, cpu, outer, inner, element)


def sweep(k: Kernel, cpu: Cpu, outer: int, inner: int, element) -> None:  # type: ignore[no-untyped-def]
    """element(row, at, lanes) over all rows and all vectors of a row, in parallel where it pays."""
    steps = mk.ceildiv(inner, cpu.lanes)
    parallel = outer * inner >= PARALLEL
    if outer == 1:
        pieces = min(steps, cpu.chunks) if parallel else 1
        with k.loop(pieces, "parallel", "piece") as piece:
            start, count = mk.share(k, steps, pieces, piece)
            mk.runs(k, inner, cpu.lanes, start, count, lambda at, lanes: element(0, at, lanes))
        return

    def row(_: Expr, unit: Expr) -> None:
        mk.runs(k, inner, cpu.lanes, 0, steps, lambda at, lanes: element(unit, at, lanes))

    mk.spread(k, outer, min(outer, cpu.chunks) if parallel else 1, row)


LOOP = Rule("loop", claim, emit)
