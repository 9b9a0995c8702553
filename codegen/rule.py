"""Targets and their kernel rules: a rule claims a group with a candidate, or declines, and emits the kernel of a group
for which its candidate is selected."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from gluongraph.codegen.tvm.tir import Buf, Kernel
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group, Launch

# Partial sums, at most, of a sum that is split among parallel chunks. It does not depend on the number of chunks or
# threads, so results are equal to the bit.
MAX_PARTIAL_SUMS = 8


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for: a name, TVM's options, and the kernel rules.

    `needs` are the CPU flags, as in /proc/cpuinfo, that its code requires.
    """

    name: str  # "x86-64-v4", "x86-64-v3", "cuda", ...
    options: tuple[tuple[str, Any], ...]
    needs: tuple[str, ...] = ()

    gpu: ClassVar[bool]

    @property
    def rules(self) -> tuple[Rule[Any], ...]:
        """The kernel rules in the order in which they are tried: the first that claims a group emits its kernel."""
        raise NotImplementedError

    def kernel(self, name: str) -> Kernel:
        """Return a new, empty kernel for a rule's `emit`."""
        return Kernel(name)

    @property
    def machine(self) -> str:
        """The CPU architecture, as named by `platform.machine`; for a GPU that of this host."""
        return str(self.tvm.get("mtriple", "")).partition("-")[0] or platform.machine()

    @property
    def tvm(self) -> dict[str, Any]:
        """The options of TVM's Target."""
        return {key: _tvm_options(v) for key, v in self.options}


def _tvm_options(value: Any) -> Any:
    """Convert options to TVM's types: tuples of pairs are dicts, other tuples are lists."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class Cpu(Target):
    """A CPU with the properties of its vector unit and caches that rules depend on."""

    lanes: int  # f32 elements of one vector register: 16, 8, 4
    registers: int  # vector registers: 32 or 16
    chunks: int  # chunks into which parallel loops are split, fixed at compile time
    l1: int = 32 * 1024  # bytes
    l2: int = 1024 * 1024
    tiles: bool = False  # AMX: does it multiply bf16 in tiles?
    dots: bool = False  # AVX512-BF16: does it multiply pairs of bf16 in vectors?

    gpu: ClassVar[bool] = False

    @property
    def rules(self) -> tuple[Rule[Cpu], ...]:
        """See Target."""
        from gluongraph.codegen.cpu.rules import RULES  # cached artefacts are found without them

        return RULES


@dataclass(frozen=True)
class Gpu(Target):
    """An NVIDIA GPU: its architecture is among TVM's options."""

    gpu: ClassVar[bool] = True

    @property
    def rules(self) -> tuple[Rule[Gpu], ...]:
        """See Target."""
        from gluongraph.codegen.cuda.rules import RULES

        return RULES

    def kernel(self, name: str) -> Kernel:
        """Return a new kernel of host code, which launches one or several grids of threads."""
        from gluongraph.codegen.cuda.cuda_math import GpuKernel

        return GpuKernel(name)


T = TypeVar("T", bound=Target)


@dataclass(frozen=True)
class Bindings:
    """The buffers of one kernel: a Buf per input and output of the group; in-place pairs share a Buf."""

    inputs: tuple[Buf, ...]
    outputs: tuple[Buf, ...]
    workspace: Buf | None = None

    def by_node(self, group: Group) -> dict[Node, Buf]:
        """Return the buffer of each input of the group's body."""
        return dict(zip(group.body.inputs.values(), self.inputs, strict=True))


def bind(k: Kernel, launch: Launch) -> Bindings:
    """Declare the arguments of a kernel, the distinct buffers of its launch: inputs, then outputs, then workspace."""
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


def _keep_layout(n: Node, target: Target, source_is_blocked: bool) -> int:
    return 0


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A rule of a target; `claim(group, target)` returns a Candidate, or None if it declines, and
    `emit(kernel, group, bindings, target)` emits the kernel.

    `variants(group, target)` are other kernels for a group that it claims, by name: what the tuner tries.
    `takes_composite(n, target)`: does this rule have a kernel for the composite, so that it is not inlined?
    `preferred_lanes(n, target, source_is_blocked)`: how many images its kernels want interleaved in memory (NCHWn) for
    a convolution or a pooling, given whether a source already is; 0: the layout stays as it is.
    """

    name: str
    claim: Callable[[Group, T], Candidate | None]
    emit: Callable[[Kernel, Group, Bindings, T], None]
    variants: Callable[[Group, T], Mapping[str, Rule[T]]] = _no_variants
    takes_composite: Callable[[Node, T], bool] = _no_composite
    preferred_lanes: Callable[[Node, T, bool], int] = _keep_layout


def claim(group: Group, target: Target) -> Candidate | None:
    """Return the candidate of the target's first rule that claims the group; None if none does."""
    return next((c for rule in target.rules if (c := rule.claim(group, target)) is not None), None)


def emit(k: Kernel, group: Group, candidate: Candidate, bindings: Bindings, target: Target) -> None:
    """Emit the kernel of a group by the candidate's rule and setting."""
    rule = rule_of(candidate, target)
    if candidate.setting:
        rule = rule.variants(group, target)[candidate.setting]
    rule.emit(k, group, bindings, target)


def rule_of(candidate: Candidate, target: Target) -> Rule[Any]:
    """Return the rule of the target that a candidate is from."""
    return next(rule for rule in target.rules if rule.name == candidate.rule)
