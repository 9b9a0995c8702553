"""The description of an artefact's entry point: what each argument is. Data only, as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gluongraph.dtypes import DTYPES
from gluongraph.errors import CompileError
from gluongraph.host import json_text
from gluongraph.ir.plan import SPACES, Plan, fresh

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
class Program:
    """Arguments in order, arenas, constants; and which argument each of the graph's outputs is."""

    args: tuple[Arg, ...]
    scratch_bytes: int
    scalar_bytes: int
    outputs: Mapping[str, str]  # graph output -> argument
    updates: tuple[str, ...] = ()
    constants: Mapping[str, bytes] = field(default_factory=dict)

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
        data = {
            "format": FORMAT,
            "args": [[a.name, a.dtype, list(a.shape), a.space, a.offset] for a in self.args],
            "scratch_bytes": self.scratch_bytes,
            "scalar_bytes": self.scalar_bytes,
            "outputs": dict(self.outputs),
            "updates": list(self.updates),
            "constants": {k: base64.b64encode(v).decode() for k, v in self.constants.items()},
        }
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
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CompileError(f"not a program description: {error}") from error


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
    )
    inputs = {i: arg.name for i, arg in enumerate(args) if arg.name in plan.inputs}
    return program.nameless().named(inputs, tuple(plan.outputs), plan.inputs)
