"""The selection cache: the candidates of the target's rules, stored on disk so that a warm start evaluates no rule.

Rules analyze index arithmetic with TVM, and a warm start must not load TVM.
"""

from __future__ import annotations

import atexit
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
    """`cache(group)` is `select(group)`, evaluated once for each group, target and version of the rules.

    `cache.tuned(group)` is the candidate that was measured to be the fastest on this machine, if there is one.
    """

    def __init__(self, select: Select, path: Path | None, table: Table):
        self._select, self._path, self.table = select, path, table
        self._known: dict[str, Candidate | None] = _read(path) if path is not None else {}
        self._saved = len(self._known)

    def __call__(self, group: Group) -> Candidate | None:
        return self._default(group, key_of(group))

    def tuned(self, group: Group, table: Table | None = None) -> Candidate | None:
        """Return the candidate of the table, by default the current one, else the rule's default. Not for kernels
        within a scan: the scan's candidate has the workspace of their defaults."""
        key = key_of(group)
        measured = (self.table if table is None else table).get(key)
        return measured.candidate if measured is not None else self._default(group, key)

    def _default(self, group: Group, key: str) -> Candidate | None:
        if key not in self._known:
            self._known[key] = self._select(group)
        return self._known[key]

    def save(self, all: bool = False) -> None:
        """Write the selections once an eighth of them is new, since the file is written as a whole; `all`: whatever is
        new. What two processes write at once, or a killed one had not yet written, is evaluated again."""
        new = len(self._known) - self._saved
        if self._path is None or not new or (new <= self._saved // 8 and not all):
            return
        rows = {k: None if c is None else list(astuple(c)) for k, c in self._known.items()}
        if store.note(self._path, json.dumps(rows)):
            self._saved = len(rows)


def key_of(group: Group) -> str:
    """Return the key of a group: its kernel with shapes and dtypes."""
    return f"{group.pattern} {fingerprint(group.body)}"


def _read(path: Path) -> dict[str, Candidate | None]:
    rows = json.loads(store.noted(path) or "{}")
    return {key: None if row is None else Candidate(*row) for key, row in rows.items()}


def selection_cache(target: Target, select: Select) -> SelectionCache:
    """Return the selections for a target; one object for each file."""
    base = store.folder()
    return _selection_cache(target, select, base, measurements.table(target))


@once
def _selection_cache(target: Target, select: Select, base: Path | None, table: Table) -> SelectionCache:
    if base is None:
        return SelectionCache(select, None, table)
    digest = hashlib.sha256((repr(target) + artifacts.code()).encode()).hexdigest()[:16]
    cache = SelectionCache(select, base / f"selections-{digest}.json", table)
    atexit.register(cache.save, all=True)
    return cache
