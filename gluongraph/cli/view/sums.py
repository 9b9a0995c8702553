"""Times and memory summed up by what they are for: what the text and the page both tell first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gluongraph.cli.view.anatomy import Anatomy, Step
from gluongraph.cli.view.drawing import PHASES


@dataclass(frozen=True)
class Sum:
    """Launches of one kind: how many, their seconds by phase, and the seconds beyond the roofline."""

    name: str
    launches: int
    seconds: dict[str, float]
    lost: float

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


def summed(a: Anatomy, by: Callable[[Step], str]) -> list[Sum]:
    """The launches by a name that they have in common, what takes longest first; of equal ones the first."""
    groups: dict[str, list[Step]] = {}
    for step in a.steps:
        groups.setdefault(by(step), []).append(step)
    found = [
        Sum(
            name,
            len(steps),
            {phase: sum(s.seconds for s in steps if s.phase == phase) for phase in PHASES},
            sum(s.lost for s in steps),
        )
        for name, steps in groups.items()
    ]
    return sorted(found, key=lambda each: -each.total)


def by_layer(a: Anatomy) -> list[Sum]:
    """By the layer that a launch comes from."""
    return summed(a, lambda step: step.layer or "(the program)")


def by_phase(a: Anatomy) -> list[Sum]:
    """By forward, backward, update."""
    return summed(a, lambda step: step.phase)


def by_pattern(a: Anatomy) -> list[Sum]:
    """By the shape of the kernel's loops."""
    return summed(a, lambda step: step.pattern)
