"""The description of an artefact's entry point: what each argument is. Data only, as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError
from gluongraph.host import json_text
from gluongraph.ir.plan import SPACES, Launch, Plan, fresh

FORMAT = 1


@dataclass(frozen=True)
class Arg:
    """One argument of the entry point: a flat tensor over a buffer of the plan."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    space: str
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * DTYPES[self.dtype].nbytes


@dataclass(frozen=True)
class Collective:
    """A collective between ranks: its op, and the positions of the arguments that it reads and writes.

    The arguments `reads` of all_reduce (in place) and reduce_scatter, and `writes` of all_gather, lie one after another
    in flat memory; `shard` is the number of elements of one rank's part of it, 0 for all_reduce.
    """

    op: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    shard: int = 0

    @property
    def flat(self) -> tuple[int, ...]:
        """The arguments in flat memory."""
        return self.writes if self.op == "all_gather" else self.reads


def segment_name(number: int) -> str:
    """Return the name of a segment of the entry point, the kernels between two points where collectives start or must
    be complete."""
    return f"step_segment{number}" if number else "step"


REPEATED = "step_repeated"  # the function that calls an entry point of one segment several times, on a CPU


@dataclass(frozen=True)
class Program:
    """Arguments in order, arenas, constants; and which argument each of the graph's outputs is.

    With collectives, `steps` says what a call does: ("run", segment), ("start", collective), ("wait", collective).
    """

    args: tuple[Arg, ...]
    scratch_bytes: int
    scalar_bytes: int
    outputs: Mapping[str, str]  # graph output -> argument
    updates: tuple[str, ...] = ()
    constants: Mapping[str, bytes] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()

    @property
    def segments(self) -> tuple[str, ...]:
        """The names of the segments of the entry point."""
        count = max((number for what, number in self.steps if what == "run"), default=0)
        return tuple(map(segment_name, range(count + 1)))

    def positions(self, space: str) -> dict[str, int]:
        """Return name -> position of the arguments in a space, in order; outputs by the graph's names, in its order."""
        return self._by_space[space]

    @cached_property
    def _by_space(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {space: {} for space in SPACES}
        for i, arg in enumerate(self.args):
            found[arg.space][arg.name] = i
        found["output"] = {name: found["output"][arg] for name, arg in self.outputs.items()}
        return found

    def nameless(self) -> Program:
        """Return the program with arguments named by space and position: equal networks have equal nameless programs,
        whatever the names of their layers."""
        names = {arg.name: f"{arg.space}{i}" for i, arg in enumerate(self.args)}
        return self._renamed(names, [names[arg] for arg in self.outputs.values()])

    def named(self, inputs: Mapping[int, str], outputs: Sequence[str], taken: Iterable[str]) -> Program:
        """Return a nameless program with a graph's names: those of its inputs by position, those of its outputs in
        order.

        An output or another argument with the name of an input (`taken`) gets a suffix.
        """
        names, used = {self.args[i].name: name for i, name in inputs.items()}, set(taken)
        for name, arg in zip(outputs, self.outputs.values(), strict=True):
            names[arg] = fresh(name, used)
        for each in self.args:
            if each.name not in names:
                names[each.name] = fresh(each.name, used)
        return self._renamed(names, outputs)

    def _renamed(self, names: Mapping[str, str], outputs: Sequence[str]) -> Program:
        return replace(
            self,
            args=tuple(replace(arg, name=names[arg.name]) for arg in self.args),
            outputs={name: names[arg] for name, arg in zip(outputs, self.outputs.values(), strict=True)},
            updates=tuple(names[name] for name in self.updates),
            constants={names[name]: data for name, data in self.constants.items()},
        )

    def to_json(self) -> str:
        """Return the program as text, which `from_json` reads."""
        data: dict[str, Any] = {
            "format": FORMAT,
            "args": [[a.name, a.dtype, list(a.shape), a.space, a.offset] for a in self.args],
            "scratch_bytes": self.scratch_bytes,
            "scalar_bytes": self.scalar_bytes,
            "outputs": dict(self.outputs),
            "updates": list(self.updates),
            "constants": {k: base64.b64encode(v).decode() for k, v in self.constants.items()},
        }
        if self.collectives:
            data["collectives"] = [[c.op, list(c.reads), list(c.writes), c.shard] for c in self.collectives]
            data["steps"] = [list(step) for step in self.steps]
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> Program:
        """Read what `to_json` wrote.

        Raises:
            CompileError: another format version, or not a program.
        """
        try:
            data: dict[str, Any] = json_text.parse(text)
            if data["format"] != FORMAT:
                raise CompileError(f"program format {data['format']}, this version reads {FORMAT}")
            return Program(
                args=tuple(Arg(n, d, tuple(s), space, offset) for n, d, s, space, offset in data["args"]),
                scratch_bytes=data["scratch_bytes"],
                scalar_bytes=data["scalar_bytes"],
                outputs=data["outputs"],
                updates=tuple(data["updates"]),
                constants={k: base64.b64decode(v) for k, v in data["constants"].items()},
                collectives=tuple(Collective(op, tuple(r), tuple(w), n) for op, r, w, n in data.get("collectives", ())),
                steps=tuple((what, number) for what, number in data.get("steps", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CompileError(f"not a program description: {error}") from error


def collective_of(launch: Launch, plan: Plan) -> Collective:
    """Return the description of a collective of the plan."""
    assert launch.group.collective is not None
    position, op = plan.positions, launch.group.collective.op.name
    reads, writes = (tuple(position[b.name] for b in buffers) for buffers in (launch.reads, launch.writes))
    shard = {"all_reduce": 0, "reduce_scatter": launch.writes[0].type.size, "all_gather": launch.reads[0].type.size}
    return Collective(op, reads, writes, shard[op])


def steps_of(plan: Plan) -> Iterator[tuple[str, int]]:
    """Iterate over what a call does: a collective is complete before the first kernel that touches what it writes."""
    if not any(launch.group.collective for launch in plan.launches):
        return
    for what, subject in _boundaries(plan):
        if isinstance(subject, int):
            yield what, subject


def segments_of(plan: Plan) -> list[list[Launch]]:
    """Return the kernels of each segment of the entry point: one if there are no collectives."""
    segments: list[list[Launch]] = [[]]
    for what, subject in _boundaries(plan):
        if what == "run" and isinstance(subject, int) and subject == len(segments):
            segments.append([])
        elif isinstance(subject, Launch):
            segments[-1].append(subject)
    return segments


def _boundaries(plan: Plan) -> Iterator[tuple[str, int | Launch]]:
    """Iterate over the steps of a call; each ("run", segment) is followed by the launches of the segment."""
    running: dict[int, set[str]] = {}  # collective -> the buffers that it is writing, or reading
    segment, count, open_segment = -1, 0, False
    for launch in plan.launches:
        touched = {b.name for b in launch.buffers}
        for number in [n for n, names in running.items() if not names.isdisjoint(touched)]:
            yield "wait", number
            del running[number]
            open_segment = False
        if launch.group.collective is not None:
            yield "start", count
            running[count] = touched
            count, open_segment = count + 1, False
            continue
        if not open_segment:
            segment, open_segment = segment + 1, True
            yield "run", segment
        yield "launch", launch
    for number in running:
        yield "wait", number


def program_of(plan: Plan) -> Program:
    """Return the arguments of the plan's entry point: every buffer that a launch uses, by first use.

    Inputs and outputs have their names of the graph, other arguments are named by space and position.
    """
    given = {b.name: b.type for b in plan.outputs.values()}  # kernels may use an output with another shape
    args = tuple(
        Arg(b.name, b.type.dtype, given.get(b.name, b.type).shape, b.space, b.offset or 0)
        for b in plan.buffers.values()
    )
    program = Program(
        args=args,
        scratch_bytes=plan.scratch_bytes,
        scalar_bytes=plan.scalar_bytes,
        outputs={name: b.name for name, b in plan.outputs.items()},
        updates=tuple(plan.updates),
        constants=plan.constants,
        collectives=tuple(collective_of(launch, plan) for launch in plan.launches if launch.group.collective),
        steps=tuple(steps_of(plan)),
    )
    inputs = {i: arg.name for i, arg in enumerate(args) if arg.name in plan.inputs}
    return program.nameless().named(inputs, tuple(plan.outputs), plan.inputs)
