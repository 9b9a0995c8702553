"""Graphs as lines that can be held against each other: what a pass, or somebody else, has changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from gluongraph.ir import printer
from gluongraph.ir.graph import Graph

_BODY = re.compile(r"body=body\d+")
SAME, GONE, NEW = " ", "-", "+"
Change = tuple[str, str]  # one of the three, and a line


@dataclass(frozen=True)
class Listing:
    """A graph's nodes in order: a line each, and what of it does not depend on the names of other nodes."""

    lines: tuple[str, ...]
    keys: tuple[Any, ...]
    ops: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """The same for machines."""
        return {"nodes": len(self.lines), "ops": dict(sorted(Counter(self.ops).items())), "lines": list(self.lines)}


def listing(graph: Graph) -> Listing:
    """The lines of a graph, as `printer.show` has them; the body of a kernel is told by its operations."""
    lines, keys = [], []
    for n, line in printer.lines(graph):
        inside = " ".join(s.op.name for v in n.attrs.values() if isinstance(v, Graph) for s in v.nodes() if s.src)
        lines.append(_BODY.sub(f"body=<{inside}>", line))
        plain = repr([(k, n.attrs[k]) for k in sorted(n.attrs) if not isinstance(n.attrs[k], Graph)])
        keys.append((n.op.name, inside, plain, n.types))
    return Listing(tuple(lines), tuple(keys), tuple(key[0] for key in keys))


def changes(before: Listing, after: Listing) -> list[Change]:
    """Both in one: lines that are gone, that are new, and those that stayed, as the later graph has them."""
    found: list[Change] = []
    for tag, i, j, k, m in SequenceMatcher(None, before.keys, after.keys, autojunk=False).get_opcodes():
        if tag == "equal":
            found += ((SAME, line) for line in after.lines[k:m])
        else:
            found += ((GONE, line) for line in before.lines[i:j])
            found += ((NEW, line) for line in after.lines[k:m])
    return found


def counted(before: Iterable[str], after: Iterable[str]) -> str:
    """How many of each there are more or less: '+2 add -1 relu'."""
    difference = Counter(after)
    difference.subtract(Counter(before))
    parts = [f"{number:+d} {name}" for name, number in sorted(difference.items()) if number]
    between = ", " if any(" " in name for name in difference) else " "
    return between.join(sorted(parts, key=lambda part: (part[0] == "-", part)))


def excerpt(found: Sequence[Change], around: int = 2) -> list[Change]:
    """The changed lines, and so many around them; what is left out is told in a line."""
    near = {j for i, (mark, _) in enumerate(found) if mark != SAME for j in range(i - around, i + around + 1)}
    shown: list[Change] = []
    skipped = 0
    for i, change in enumerate((*found, None)):
        if change is not None and i not in near:
            skipped += 1
            continue
        if skipped:
            shown.append((SAME, f"... {skipped} more"))
            skipped = 0
        if change is not None:
            shown.append(change)
    return shown
