"""The memory of a plan, by purpose."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from gluongraph.ir.plan import Plan


@dataclass(frozen=True)
class Footprint:
    """Bytes that a compiled step holds while it runs.

    `scratch` is what lies between kernels, their workspaces included; `states` are the optimizer's and whatever else
    outlives a step without being a parameter.
    """

    parameters: int
    states: int
    scratch: int
    inputs: int
    outputs: int
    constants: int
    extra_time: float = 0.0  # of a step's time: what recomputation is expected to take

    @property
    def peak(self) -> int:
        """All of them together."""
        return self.parameters + self.states + self.scratch + self.inputs + self.outputs + self.constants

    def __str__(self) -> str:
        parts = [
            f"{name} {format_bytes(value)}" for name, value in vars(self).items() if value and name != "extra_time"
        ]
        longer = f"; about {self.extra_time:.0%} more time" if self.extra_time else ""
        return f"{format_bytes(self.peak)} ({', '.join(parts)}){longer}"


def footprint(plan: Plan) -> Footprint:
    """The bytes of a plan."""
    held = {b.name: b for b in plan.inputs.values()}
    states = {name: b.type.nbytes for name, b in held.items() if b.space == "state"}
    others = sum(nbytes for name, nbytes in states.items() if _is_named_after(name, states))
    return Footprint(
        parameters=sum(states.values()) - others,
        states=others,
        scratch=plan.scratch_bytes,
        inputs=sum(b.type.nbytes for b in held.values() if b.space == "input"),
        outputs=sum(b.type.nbytes for b in plan.outputs.values()),
        constants=sum(map(len, plan.constants.values())) + plan.scalar_bytes,
    )


def _is_named_after(name: str, others: Container[str]) -> bool:
    """Is it an array that a step keeps for a parameter: "<parameter>/<state>", "average:<parameter>"?"""
    return name.rpartition("/")[0] in others or name.partition(":")[2] in others


def format_bytes(nbytes: float) -> str:
    """A number of bytes with the unit that suits it."""
    unit, size = next(
        pair
        for pair in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
        if nbytes >= pair[1] or pair[1] == 1
    )
    return f"{nbytes / size:.4g} {unit}"
