"""The options that make a step use less memory: `remat`, `memory_budget` and `activations`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gluongraph.errors import with_user_location

MODES = ("auto", "blocks")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True)
class MemoryOptions:
    """A mode, or a budget in bytes; and the dtype in which activations are saved."""

    mode: str | None = None
    budget: int | None = None
    activations: str | None = None

    def __bool__(self) -> bool:
        return self != ALL_KEPT


ALL_KEPT = MemoryOptions()


def memory_options_of(mode: str | None, budget: int | str | None, activations: str | None) -> MemoryOptions:
    """Check and convert `remat`, `memory_budget` and `activations`.

    Raises:
        ValueError: an invalid mode, number of bytes or dtype; or both a mode and a budget.
    """
    if activations not in (None, "bf16"):
        raise ValueError(with_user_location(f"activations is None or 'bf16', not {activations!r}"))
    if mode is not None and mode not in MODES:
        raise ValueError(with_user_location(f"remat is None, {' or '.join(map(repr, MODES))}, not {mode!r}"))
    if mode is not None and budget is not None:
        help = "a budget finds out how much to recompute: leave remat out"
        raise ValueError(with_user_location("remat and memory_budget together", help=help))
    return MemoryOptions(mode, None if budget is None else nbytes_of(budget), activations)


def nbytes_of(text: int | str) -> int:
    """Parse a number of bytes: 2147483648, "2GiB", "1.5 GB", "512MiB".

    Raises:
        ValueError: it is not a number of bytes.

    >>> nbytes_of("1.5GB"), nbytes_of("2 MiB")
    (1500000000, 2097152)
    """
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?)b?\s*", text.lower()) if isinstance(text, str) else None
    if found is None or found[2] not in _UNITS or not float(found[1]):
        raise ValueError(
            with_user_location(f"memory_budget={text!r} is no number of bytes", help='write "2GiB", or 2 * 2**30')
        )
    return int(float(found[1]) * _UNITS[found[2]])
