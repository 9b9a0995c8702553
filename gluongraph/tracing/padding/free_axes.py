"""What an imported net says of its free axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FreeAxes(NamedTuple):
    """The free axes of a net's inputs: for each input {axis: name}; and the lengths that each may have, None: any."""

    inputs: tuple[Mapping[int, str], ...]
    ranges: Mapping[str, tuple[int, int | None]]
    mixed: Mapping[str, str]  # names of which extents are computed, and where: those cannot be padded
