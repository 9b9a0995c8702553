"""The table of compared runs, which the files of cases fill, and that of the known differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Run = Callable[[ModuleType], dict[str, Any]]
CASES: dict[str, Run] = {}


def case(run: Run) -> Run:
    """Enter a run: a function of the framework's module, called in an empty folder, that tells what happened."""
    name = run.__name__
    assert name not in CASES, name
    CASES[name] = run
    return run


@dataclass(frozen=True)
class Difference:
    """Results of a case that are not Lightning's, and the reason, in the words of docs/lightning.md."""

    case: str
    keys: tuple[str, ...]
    reason: str


def differing(expected: Any, got: Any, where: str = "", tolerance: float = 2e-5) -> list[str]:
    """Where two results differ: a line for each place, with both values. Floats may differ by rounding."""
    if isinstance(expected, dict) and isinstance(got, dict):
        lines = [f"{where}: only Lightning has {key!r}" for key in expected.keys() - got.keys()]
        lines += [f"{where}: only gluongraph has {key!r}" for key in got.keys() - expected.keys()]
        for key in [key for key in expected if key in got]:
            lines += differing(expected[key], got[key], f"{where}.{key}" if where else str(key), tolerance)
        return lines
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        return _differing_lists(list(expected), list(got), where, tolerance)
    if isinstance(expected, float) and isinstance(got, float):
        if expected == got or expected != expected != got != got:
            return []
        return [] if abs(expected - got) <= tolerance * (1 + abs(expected)) else [f"{where}: {expected!r}, {got!r}"]
    return [] if type(expected) is type(got) and expected == got else [f"{where}: {expected!r}, {got!r}"]


def _differing_lists(expected: list[Any], got: list[Any], where: str, tolerance: float) -> list[str]:
    lines: list[str] = []
    for index, (one, other) in enumerate(zip(expected, got, strict=False)):
        lines += differing(one, other, f"{where}[{index}]", tolerance)
        if len(lines) > 6:
            return [*lines, f"{where}: ..."]
    if len(expected) != len(got):
        rest = expected[len(got) :] or got[len(expected) :]
        lines.append(f"{where}: {len(expected)} and {len(got)} of them; first beyond: {rest[0]!r}")
    return lines
