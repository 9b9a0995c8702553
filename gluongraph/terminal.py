"""What is shown to people and machines: tables, bars of progress, JSON."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[..., None]]:
    """A function to be called `total` times while something long is done: a bar, where a person is looking.

    It may be given a few words on how things are.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield lambda words="": None
        return
    with importlib.import_module("tqdm").tqdm(total=total, desc=what, leave=False) as bar:

        def further(words: str = "") -> None:
            bar.set_postfix_str(words, refresh=False)
            bar.update()

        yield further
