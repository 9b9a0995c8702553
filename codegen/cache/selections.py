"""The selection cache: the candidates that rules have selected, stored on disk so that a warm start asks no rule.

Rules look at index arithmetic with TVM's analyzer, and a warm start is not to load TVM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple
from functools import cache as once
from pathlib import Path

from gluongraph.codegen.cache import artifacts, measurements
from gluongraph.codegen.cache.measurements import Table
from gluongraph.codegen.rule import Target
from gluongraph.host import store
from gluongraph.ir.plan import Candidate, Group
from gluongraph.ir.serialize import fingerprint

Select = Callable[[Group], Candidate | None]


class SelectionCache:
    """`cache(group)` is what `select(group)` gives, asked once for each group, target and version of the rules.

    `cache.tuned(group)` is what was found to be faster on this machine, if anything was.
    """

    def __init__(self, select: Select, path: Path | None, table: Table):
        self._select, self._path, self.table = select, path, table
        self._known: dict[str, Candidate | None] = _read(path) if path is not None else {}
        self._saved = len(self._known)

    def __call__(self, group: Group) -> Candidate | None:
        return self._usual(group, key_of(group))

    def tuned(self, group: Group, table: Table | None = None) -> Candidate | None:
        """The candidate of the table, by default as it is now, or where there is none the rule's own. Not for kernels
        within a scan: what was offered for the scan as a whole has counted the workspace of its rules' own choices."""
        key = key_of(group)
        found = (self.table if table is None else table).get(key)
        return found.candidate if found is not None else self._usual(group, key)

    def _usual(self, group: Group, key: str) -> Candidate | None:
        if key not in self._known:
            self._known[key] = self._select(group)
        return self._known[key]

    def save(self) -> None:
        """Write down what is new. Two processes at once lose nothing that they would not ask again."""
        if self._path is None or len(self._known) == self._saved:
            return
        rows = {k: None if c is None else list(astuple(c)) for k, c in self._known.items()}
        if store.note(self._path, json.dumps(rows)):
            self._saved = len(rows)


def key_of(group: Group) -> str:
    """What selections are remembered by: the kernel with its shapes and dtypes."""
    return f"{group.pattern} {fingerprint(group.body)}"


def _read(path: Path) -> dict[str, Candidate | None]:
    rows = json.loads(store.noted(path) or "{}")
    return {key: None if row is None else Candidate(*row) for key, row in rows.items()}


def selection_cache(target: Target, select: Select) -> SelectionCache:
    """The selections for a target; one object for each place where they are kept."""
    base = store.folder()
    return _selection_cache(target, select, base, measurements.table(target))


@once
def _selection_cache(target: Target, select: Select, base: Path | None, table: Table) -> SelectionCache:
    if base is None:
        return SelectionCache(select, None, table)
    digest = hashlib.sha256((repr(target) + artifacts.code()).encode()).hexdigest()[:16]
    return SelectionCache(select, base / f"selections-{digest}.json", table)
