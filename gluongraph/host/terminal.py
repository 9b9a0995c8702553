"""What commands print for people and machines: tables, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need to be; those whose head begins with '>' are set to the right.

    >>> print(table(["name", ">bytes"], [["x", 4], ["weight", 1024]]))
    name    bytes
    x           4
    weight   1024
    """
    right = [h.startswith(">") for h in head]
    lines = [[h.lstrip(">") for h in head], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def as_json(data: Any) -> None:
    """Print data for machines."""
    print(json.dumps(data, indent=1))
