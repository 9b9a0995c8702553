"""Pattern "opaque": what is written better than element by element, and the fallback that takes any single operation."""

from __future__ import annotations

from gluongraph.codegen import microkernel as mk
from gluongraph.codegen import tir
from gluongraph.codegen.expression import size_of
from gluongraph.codegen.loops import emit as emit_loops
from gluongraph.codegen.loops import offered
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tir import Expr, Kernel
from gluongraph.ir import Node
from gluongraph.plan import Candidate, Group


def _single(group: Group, name: str) -> Node | None:
    """The group's one operation, if it is that one, on inputs of the group."""
    outputs = list(group.body.outputs.values())
    if len(outputs) != 1 or outputs[0].op.name != name or any(s.op.name != "input" for s in outputs[0].src):
        return None
    return outputs[0]


def _claim_scatter(group: Group, cpu: Cpu) -> Candidate | None:
    n = _single(group, "scatter_add")
    return offered("scatter_add", group) if n is not None and n.dtype in ("f32", "f64") else None


def _emit_scatter(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    """x, then row after row of the updates added, in order; columns are shared out, so the order never changes."""
    n = _single(group, "scatter_add")
    assert n is not None
    memory = dict(zip(group.body.inputs.values(), bindings.inputs, strict=True))
    x, indices, updates = (memory[s] for s in n.src)
    (y,) = bindings.outputs
    rows, width = n.shape[0], size_of(n.shape[1:])
    count = n.src[1].ty.size
    steps = mk.ceildiv(width, cpu.lanes)
    pieces = mk.pieces(steps, cpu, float(width * (rows + count)))
    with k.loop(pieces, "parallel", "piece") as piece:
        first, number = mk.share(k, steps, pieces, piece)

        def copy(at: Expr, lanes: int) -> None:
            with k.loop(rows, name="row") as r:
                k.store(y, k.load(x, r * width + at, lanes), r * width + at)

        def add(at: Expr, lanes: int) -> None:
            with k.loop(count, name="update") as u:
                wanted = tir.cast(k.load(indices, u), "i32")
                row = k.let(tir.minimum(tir.maximum(wanted, 0), rows - 1), "row")
                place = k.let(row * width + at, "place")
                k.store(y, k.load(y, place, lanes) + k.load(updates, u * width + at, lanes), place)

        mk.runs(k, width, cpu.lanes, first, number, copy)
        mk.runs(k, width, cpu.lanes, first, number, add)


def _claim_any(group: Group, cpu: Cpu) -> Candidate | None:
    computing = [n for n in group.body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape")]
    if len(computing) > 1 or group.inplace or len({t.shape for t in group.outputs}) > 1:
        return None
    return offered("fallback", group)


INDEX_RULES = (Rule("scatter_add", _claim_scatter, _emit_scatter),)
FALLBACK = Rule("fallback", _claim_any, emit_loops)
