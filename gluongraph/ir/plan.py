"""The Plan: which kernels run in which order on which memory. Data only: passes create it, codegen compiles it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node, TensorType

SPACES = (
    "scratch",  # intermediates of one step, at an offset of the scratch arena
    "state",  # parameters, optimizer states, accumulated gradients: long-lived, owned by the parameter's owner
    "scalar",  # one packed buffer of host scalars, rewritten before each call
    "input",  # passed by the caller at each call
    "output",  # allocated for each call, returned to the caller
    "const",  # literals of the graph
)

INDEX_FLAG = "check:index"  # the output that counts indices out of range; if it is not 0, no state is written


@dataclass(frozen=True)
class Group:
    """What one kernel computes: a body graph over inputs x0, x1, ... with outputs y0, y1, ...

    `pattern` is the kind of loop nest: "loop", "reduce", "rowwise", "gemm", "conv", "pool", "scatter", "opaque",
    "scan" or "collective".
    `inplace` are pairs (output, input) that share memory: the kernel reads the input only where it then writes.
    `inner` is the plan of one iteration of a scan. Equal groups are one kernel.
    """

    body: Graph
    pattern: str
    inplace: tuple[tuple[int, int], ...] = ()
    inner: Plan | None = field(default=None, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """Types of the inputs, in order."""
        return tuple(n.ty for n in self.body.inputs.values())

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Types of the outputs, in order."""
        return tuple(n.ty for n in self.body.outputs.values())

    @property
    def scan(self) -> Node:
        """The scan of a group with the pattern "scan"."""
        return next(n for n in self.body.nodes() if n.op.name == "scan")

    @property
    def collective(self) -> Node | None:
        """The collective of a group with the pattern "collective"; None of others."""
        if self.pattern != "collective":
            return None
        return next(n for n in self.body.nodes() if n.op.kind == "collective")


@dataclass(frozen=True)
class Candidate:
    """A kernel that a target's rule has for a group: the rule's name, the bytes of workspace, and whether it uses tile
    multiplications of 16-bit values.

    `setting` is the name of the rule's tuning variant; '' is its default. `schedule` names the schedules of a GPU's
    kernels, for display: "dlight.Matmul+threads".
    """

    rule: str
    workspace: int = 0
    tiles: bool = field(default=False, repr=False)
    setting: str = ""
    schedule: str = field(default="", repr=False, compare=False)

    @property
    def described(self) -> str:
        """The schedule, or the rule, for display."""
        return self.schedule or self.rule


@dataclass(frozen=True)
class Buffer:
    """A buffer: its type, its space, and its byte offset there (scratch and scalar only).

    Within a plan buffers with the same name are the same memory.
    """

    name: str
    type: TensorType
    space: str
    offset: int | None = None

    def __str__(self) -> str:
        place = f"{self.space}@{self.offset:#x}" if self.offset is not None else self.space
        return f"{self.name}: {self.type} {place}"


def fresh(name: str, taken: set[str]) -> str:
    """Return the name, or if it is taken name_1, name_2, ...; add it to `taken`."""
    made, number = name, 0
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    taken.add(made)
    return made


@dataclass(frozen=True)
class Launch:
    """One kernel call. `reads[i]` is the group's input i, `writes[j]` its output j; in-place pairs name one buffer."""

    kernel: str
    group: Group
    candidate: Candidate
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    workspace: Buffer | None = None
    origin: Origin | None = None
    label: str = ""  # for display: the ops of the group

    @property
    def flat(self) -> tuple[Buffer, ...]:
        """The buffers that must lie one after another: the operands of a collective, or the results of `all_gather`."""
        if (collective := self.group.collective) is None:
            return ()
        return self.writes if collective.op.name == "all_gather" else self.reads

    @property
    def flat_bytes(self) -> int:
        """The bytes of the flat memory, if it consists of one shard for each rank; else 0."""
        collective = self.group.collective
        if collective is None or collective.op.name == "all_reduce":
            return 0
        shard = self.reads[0] if collective.op.name == "all_gather" else self.writes[0]
        return int(collective.attrs["ranks"]) * shard.type.nbytes

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers of the launch; those of in-place pairs twice."""
        return (*self.reads, *self.writes, *((self.workspace,) if self.workspace else ()))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """The arguments of the kernel: reads, writes that are not in place, workspace."""
        shared = {output for output, _ in self.group.inplace}
        own = (b for j, b in enumerate(self.writes) if j not in shared)
        return (*self.reads, *own, *((self.workspace,) if self.workspace else ()))


@dataclass(frozen=True)
class Plan:
    """A compiled program: launches in order, memory, and the buffers of inputs and outputs.

    `inputs` and `outputs` are keyed by the graph's names; `updates` are the inputs that the program overwrites. Every
    output has a buffer of its own. Buffers of inputs have their names; others get a suffix if needed (`fresh`).
    """

    launches: tuple[Launch, ...]
    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    updates: Mapping[str, Buffer] = field(default_factory=dict)
    scratch_bytes: int = 0
    scalar_bytes: int = 0
    constants: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def kernels(self) -> dict[str, Launch]:
        """One launch of each distinct kernel, by kernel name; collectives are no kernels."""
        return {launch.kernel: launch for launch in reversed(self.launches) if launch.group.pattern != "collective"}

    @property
    def positions(self) -> dict[str, int]:
        """The position of each buffer among the arguments of the entry point, by the buffer's name."""
        return {name: i for i, name in enumerate(self.buffers)}

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Every buffer that a launch uses, by name, in order of first use."""
        found: dict[str, Buffer] = {}
        for launch in self.launches:
            for buffer in launch.buffers:
                found.setdefault(buffer.name, buffer)
        return found
