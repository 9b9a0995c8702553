"""A kernel rule: looks at a group, declines or offers a candidate, and writes the loops when chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gluongraph.codegen.tvm.tir import Buf, Kernel
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group, Launch

# Parts, at most, of a sum that several pieces add to: no matter how many pieces there are, it is the same to the bit.
SHARES = 8


@dataclass(frozen=True)
class Cpu:
    """What a CPU rule may know of its target."""

    name: str  # "x86-64-v4", "x86-64-v3", "generic", ...
    lanes: int  # f32 elements of one vector register: 16, 8, 4
    registers: int  # vector registers: 32 or 16
    chunks: int  # pieces that parallel loops are cut into, fixed when compiled
    l1: int = 32 * 1024  # bytes
    l2: int = 1024 * 1024
    tiles: bool = False  # AMX: does it multiply bf16 in tiles?
    dots: bool = False  # AVX512-BF16: does it multiply pairs of bf16 in vectors?


@dataclass(frozen=True)
class Bindings:
    """The memory of one kernel: a Buf per input and output of the group; in-place pairs hold the same Buf."""

    inputs: tuple[Buf, ...]
    outputs: tuple[Buf, ...]
    workspace: Buf | None = None

    def by_node(self, group: Group) -> dict[Node, Buf]:
        """Where each input of the group's body lies."""
        return dict(zip(group.body.inputs.values(), self.inputs, strict=True))


def bind(k: Kernel, launch: Launch) -> Bindings:
    """A kernel's arguments are the distinct buffers of its launch: inputs first, then outputs, then workspace."""
    group = launch.group
    inputs = tuple(k.param(f"x{i}", t.size, t.dtype) for i, t in enumerate(group.inputs))
    shared = {output: inputs[i] for output, i in group.inplace}
    outputs = tuple(
        shared[j] if j in shared else k.param(f"y{j}", t.size, t.dtype) for j, t in enumerate(group.outputs)
    )
    workspace = k.param("workspace", launch.candidate.workspace, "u8") if launch.candidate.workspace else None
    return Bindings(inputs, outputs, workspace)


def _one_way(group: Group, cpu: Cpu) -> Mapping[str, Rule]:
    return {}


@dataclass(frozen=True)
class Rule:
    """`claim(group, cpu)` returns a Candidate or None ("not mine"); `emit(kernel, group, bindings, cpu)` writes it.

    `settings(group, cpu)` are the other ways to write a group that it claims, by name: what a tuner tries.
    """

    name: str
    claim: Callable[[Group, Cpu], Candidate | None]
    emit: Callable[[Kernel, Group, Bindings, Cpu], None]
    settings: Callable[[Group, Cpu], Mapping[str, Rule]] = _one_way
