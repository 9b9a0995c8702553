"""The memory of a plan, by purpose."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from gluongraph.ir.plan import Plan
from gluongraph.ops.collective import SHARD


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory that a compiled step uses.

    `scratch` are intermediate values and workspaces; `states` are the optimizer's states and all other state that is
    not a parameter.
    """

    parameters: int
    states: int
    scratch: int
    inputs: int
    outputs: int
    constants: int
    extra_time: float = 0.0  # the expected time of recomputation, relative to a step's time

    @property
    def peak(self) -> int:
        """The sum of all."""
        return self.parameters + self.states + self.scratch + self.inputs + self.outputs + self.constants

    def __str__(self) -> str:
        parts = [
            f"{name} {format_bytes(value)}" for name, value in vars(self).items() if value and name != "extra_time"
        ]
        longer = f"; about {self.extra_time:.0%} more time" if self.extra_time else ""
        return f"{format_bytes(self.peak)} ({', '.join(parts)}){longer}"


def footprint(plan: Plan) -> Footprint:
    """Return the memory of a plan."""
    within = _shards_of_whole_parameters(plan)
    held = {b.name: b for b in plan.inputs.values() if b.name not in within}
    states = {name: b.type.nbytes for name, b in held.items() if b.space == "state"}
    others = sum(nbytes for name, nbytes in states.items() if _is_named_after(name, plan.inputs))
    return Footprint(
        parameters=sum(states.values()) - others,
        states=others,
        scratch=plan.scratch_bytes,
        inputs=sum(b.type.nbytes for b in held.values() if b.space == "input"),
        outputs=sum(b.type.nbytes for b in plan.outputs.values()),
        constants=sum(map(len, plan.constants.values())) + plan.scalar_bytes,
    )


def _shards_of_whole_parameters(plan: Plan) -> set[str]:
    """Return the names of inputs that are parts of the memory of parameters, which a collective puts together again."""
    gathers = (launch for launch in plan.launches if launch.group.collective and launch.flat == launch.writes)
    if not any(buffer.space == "state" for launch in gathers for buffer in launch.writes):
        return set()
    return {name for name in plan.inputs if name.startswith(SHARD) and "/" not in name}


def _is_named_after(name: str, others: Container[str]) -> bool:
    """Is it the name of a parameter's state: "<parameter>/<state>", "average:<parameter>"?"""
    return name.rpartition("/")[0] in others or name.partition(":")[2] in others


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes with a suitable unit."""
    unit, size = next(
        pair
        for pair in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
        if nbytes >= pair[1] or pair[1] == 1
    )
    return f"{nbytes / size:.4g} {unit}"
