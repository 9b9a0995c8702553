"""Structured loops: one kernel that runs the kernels of its body, iteration by iteration, on slices of its arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gluongraph.codegen.rule import Bindings, Rule, Target
from gluongraph.codegen.rule import emit as emit_inner
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel
from gluongraph.dtypes import DTYPES
from gluongraph.ir.plan import Buffer, Candidate, Group, Plan


def _claim(group: Group, target: Target) -> Candidate | None:
    """Claim scans whose body has a plan; the workspace is the scratch memory of one iteration."""
    if group.pattern != "scan" or group.inner is None:
        return None
    if group.inner.constants:
        return None
    workspace = group.inner.scratch_bytes * len(_dtypes(group.inner))
    return Candidate("scan", workspace)


def _dtypes(plan: Plan) -> list[str]:
    """Return the dtypes of the scratch buffers. Each has memory of its own: TVM assumes that views of different dtypes
    do not alias, and would reorder accesses."""
    return list(dict.fromkeys(b.type.dtype for b in plan.buffers.values() if b.space == "scratch"))


def _emit(k: Kernel, group: Group, bindings: Bindings, target: Target) -> None:
    """Emit the loop; carries are copied to the outputs first, and then updated in place."""
    scan, plan = group.scan, group.inner
    assert plan is not None
    carries, xs = scan.attrs["carries"], scan.attrs["xs"]
    memory = bindings.by_node(group)
    sources = [memory[s] for s in scan.src]
    for i in range(carries):
        k.copy(sources[i], bindings.outputs[i])
    length: int = scan.attrs["length"]
    scratch = _scratch(k, plan, bindings.workspace)
    with k.loop(length, name="t") as iteration:
        t = length - 1 - iteration if scan.attrs["reverse"] else iteration
        place: dict[str, Buf] = {f"c{i}": bindings.outputs[i] for i in range(carries)}
        for i in range(xs):
            place[f"x{i}"] = _slice(sources[carries + i], t, length)
        for i, constant in enumerate(sources[carries + xs :]):
            place[f"k{i}"] = constant
        for i, y in enumerate(bindings.outputs[carries:]):
            place[f"y{i}"] = _slice(y, t, length)

        def buf(buffer: Buffer) -> Buf:
            if buffer.space == "scratch":
                return _scratch_buffer(scratch[buffer.type.dtype], buffer)
            return place[buffer.name]

        for launch in plan.launches:
            reads = tuple(map(buf, launch.reads))
            shared = {output: reads[i] for output, i in launch.group.inplace}
            writes = tuple(shared[j] if j in shared else buf(w) for j, w in enumerate(launch.writes))
            workspace = buf(launch.workspace) if launch.workspace else None
            emit_inner(k, launch.group, launch.candidate, Bindings(reads, writes, workspace), target)


def _scratch(k: Kernel, plan: Plan, workspace: Buf | None) -> dict[str, Buf]:
    """Return the scratch memory of one iteration by dtype."""
    found: dict[str, Buf] = {}
    for i, dtype in enumerate(_dtypes(plan)):
        assert workspace is not None
        found[dtype] = k.view(workspace, dtype).at(i * plan.scratch_bytes // DTYPES[dtype].nbytes)
    return found


def _scratch_buffer(scratch: Buf, buffer: Buffer) -> Buf:
    """Return one buffer in the scratch memory of its dtype. Its size matters: a scan in the body copies and slices
    it."""
    assert buffer.offset is not None
    place = scratch.at(buffer.offset // DTYPES[buffer.type.dtype].nbytes)
    return replace(place, size=buffer.type.size)


def _slice(buf: Buf, t: Expr, length: int) -> Buf:
    """Return the slice of a stacked array that iteration t reads or writes."""
    size = buf.size // length
    return replace(buf.at(t * size), size=size)


SCAN: Rule[Any] = Rule("scan", _claim, _emit)  # of any target: on a GPU the loop runs on the host
