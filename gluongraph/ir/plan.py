"""The Plan: which kernels run in which order on which memory. Data only: passes make it, codegen compiles it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gluongraph.errors import Origin
from gluongraph.ir.graph import Graph, Node, TensorType

SPACES = (
    "scratch",  # intermediates of one step, at an offset of the scratch arena
    "state",  # parameters, optimizer states, kept gradients: long-lived, owned by whoever owns the parameter
    "scalar",  # one packed buffer of host scalars, rewritten before each call
    "input",  # given by the caller at each call
    "output",  # made fresh for each call, handed to the caller
    "const",  # literals of the graph
)

INDEX_FLAG = "check:index"  # the output that counts indices out of range; where it is not 0, nothing is written


@dataclass(frozen=True)
class Group:
    """What one kernel computes: a body graph over inputs x0, x1, ... with outputs y0, y1, ...

    `pattern` is the shape of the loop nest: "loop", "reduce", "rowwise", "gemm", "conv", "pool",
    "scatter", "opaque" or "scan".
    `inplace` pairs (output, input) that share memory: the kernel reads that input only where it then writes.
    `inner` is the plan of one turn of a scan. Equal groups are one kernel.
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
        """The scan that a group of that pattern consists of."""
        return next(n for n in self.body.nodes() if n.op.name == "scan")


@dataclass(frozen=True)
class Candidate:
    """What a target's rule offers for a group: its name, the bytes of workspace that it needs, and whether a unit for
    tiles of 16-bit numbers multiplies there.

    `setting` says how the rule writes it, in the rule's own words; '' is the way that it takes by itself. `schedule`
    tells readers who schedules the kernels of a GPU: "dlight.Matmul+threads".
    """

    rule: str
    workspace: int = 0
    tiles: bool = field(default=False, repr=False)
    setting: str = ""
    schedule: str = field(default="", repr=False, compare=False)

    @property
    def described(self) -> str:
        """The rule, or what it leaves its kernels to, for readers."""
        return self.schedule or self.rule


@dataclass(frozen=True)
class Buffer:
    """A place in memory: its type, the space it lies in, and its byte offset there (scratch and scalar only).

    Within a plan the name says which place it is: two mentions of one name are one place.
    """

    name: str
    type: TensorType
    space: str
    offset: int | None = None

    def __str__(self) -> str:
        place = f"{self.space}@{self.offset:#x}" if self.offset is not None else self.space
        return f"{self.name}: {self.type} {place}"


def fresh(name: str, taken: set[str]) -> str:
    """The name, or where somebody has it name_1, name_2, ...; from now on it is taken."""
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
    label: str = ""  # what a reader sees: the ops of the group

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that the kernel touches; of an in-place pair both mentions."""
        return (*self.reads, *self.writes, *((self.workspace,) if self.workspace else ()))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """What the kernel is called with: reads, writes that do not lie over a read, workspace."""
        shared = {output for output, _ in self.group.inplace}
        own = (b for j, b in enumerate(self.writes) if j not in shared)
        return (*self.reads, *own, *((self.workspace,) if self.workspace else ()))


@dataclass(frozen=True)
class Plan:
    """The whole step: launches in order, memory, and what is bound to which name.

    `inputs` and `outputs` are keyed by the graph's names; `updates` names the inputs that the step writes over.
    Every output lies in memory of its own. Inputs keep their names as buffers; others give way (`fresh`).
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
        """One launch of each distinct kernel, by kernel name."""
        return {launch.kernel: launch for launch in reversed(self.launches)}

    @property
    def positions(self) -> dict[str, int]:
        """The position of each buffer among the arguments of the entry point, by the buffer's name."""
        return {name: i for i, name in enumerate(self.buffers)}

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Every buffer that some launch touches, by name, in order of first use."""
        found: dict[str, Buffer] = {}
        for launch in self.launches:
            for buffer in launch.buffers:
                found.setdefault(buffer.name, buffer)
        return found
