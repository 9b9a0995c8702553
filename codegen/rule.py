"""Targets and their kernel rules: a rule looks at a group, declines or offers a candidate, and writes the loops when it
is chosen."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from gluongraph.codegen.tvm.tir import Buf, Kernel
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group, Launch

# Parts, at most, of a sum that several chunks add to: no matter how many chunks there are, it is the same to the bit.
SHARES = 8


@dataclass(frozen=True)
class Target:
    """What kernels are written for: its name, TVM's options for it, and its rules.

    `needs` are the names in /proc/cpuinfo without which its code must not run.
    """

    name: str  # "x86-64-v4", "x86-64-v3", "cuda", ...
    options: tuple[tuple[str, Any], ...]
    needs: tuple[str, ...] = ()

    gpu: ClassVar[bool]

    @property
    def rules(self) -> tuple[Rule[Any], ...]:
        """The kernel rules in the order in which they are asked: the first that claims a group writes it."""
        raise NotImplementedError

    def kernel(self, name: str) -> Kernel:
        """A new kernel, for a rule to write."""
        return Kernel(name)

    @property
    def machine(self) -> str:
        """The kind of computer, as `platform.machine` calls it; of a GPU's host it is this one."""
        return str(self.tvm.get("mtriple", "")).partition("-")[0] or platform.machine()

    @property
    def tvm(self) -> dict[str, Any]:
        """What TVM's Target is made from."""
        return {key: _plain(v) for key, v in self.options}


def _plain(value: Any) -> Any:
    """Tuples of pairs are dicts, other tuples are lists."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class Cpu(Target):
    """A CPU with its vector unit and caches, as far as rules know of them."""

    lanes: int  # f32 elements of one vector register: 16, 8, 4
    registers: int  # vector registers: 32 or 16
    chunks: int  # chunks that parallel loops are cut into, fixed when compiled
    l1: int = 32 * 1024  # bytes
    l2: int = 1024 * 1024
    tiles: bool = False  # AMX: does it multiply bf16 in tiles?
    dots: bool = False  # AVX512-BF16: does it multiply pairs of bf16 in vectors?

    gpu: ClassVar[bool] = False

    @property
    def rules(self) -> tuple[Rule[Cpu], ...]:
        """See Target."""
        from gluongraph.codegen.cpu.rules import RULES  # what is in the cache is found without them

        return RULES


@dataclass(frozen=True)
class Gpu(Target):
    """A GPU of NVIDIA's: its architecture is among TVM's options."""

    gpu: ClassVar[bool] = True

    @property
    def rules(self) -> tuple[Rule[Gpu], ...]:
        """See Target."""
        from gluongraph.codegen.cuda.rules import RULES

        return RULES

    def kernel(self, name: str) -> Kernel:
        """Code of the host, which starts one grid of threads or several."""
        from gluongraph.codegen.cuda.cuda_math import GpuKernel

        return GpuKernel(name)


T = TypeVar("T", bound=Target)


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


def _no_variants(group: Group, target: Target) -> dict[str, Any]:
    return {}


def _no_composite(n: Node, target: Target) -> bool:
    return False


def _as_it_lies(n: Node, target: Target, met: bool) -> int:
    return 0


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A rule of a target; `claim(group, target)` returns a Candidate or None ("not mine"), and
    `emit(kernel, group, bindings, target)` writes it.

    `variants(group, target)` are the other ways to write a group that it claims, by name: what a tuner tries.
    `takes_composite(n, target)`: does a kernel of this rule take this composite as it is, so that it is not inlined?
    `preferred_lanes(n, target, met)`: how many images side by side its kernels want for a convolution or a pooling, of
    which a source has been `met` that lies so, or none; 0 as they are.
    """

    name: str
    claim: Callable[[Group, T], Candidate | None]
    emit: Callable[[Kernel, Group, Bindings, T], None]
    variants: Callable[[Group, T], Mapping[str, Rule[T]]] = _no_variants
    takes_composite: Callable[[Node, T], bool] = _no_composite
    preferred_lanes: Callable[[Node, T, bool], int] = _as_it_lies


def claim(group: Group, target: Target) -> Candidate | None:
    """The candidate of the first of the target's rules that claims the group, or None."""
    return next((c for rule in target.rules if (c := rule.claim(group, target)) is not None), None)


def emit(k: Kernel, group: Group, candidate: Candidate, bindings: Bindings, target: Target) -> None:
    """Write the loops of a group into a kernel, by the rule of the candidate and its setting."""
    rule = rule_of(candidate, target)
    if candidate.setting:
        rule = rule.variants(group, target)[candidate.setting]
    rule.emit(k, group, bindings, target)


def rule_of(candidate: Candidate, target: Target) -> Rule[Any]:
    """The rule of the target that has offered a candidate."""
    return next(rule for rule in target.rules if rule.name == candidate.rule)
