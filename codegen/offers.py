"""What rules have offered, remembered on disk beside the artefacts: a warm start asks no rule.

Rules look at index arithmetic with TVM's analyzer, and a warm start is not to load TVM.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache as once
from pathlib import Path

from gluongraph.codegen import cache
from gluongraph.codegen.targets import Target
from gluongraph.plan import Candidate, Group
from gluongraph.serialize import fingerprint

Ask = Callable[[Group], Candidate | None]


class Offers:
    """`offers(group)` is what `ask(group)` gives, asked once for each group, target and version of the rules."""

    def __init__(self, ask: Ask, path: Path | None):
        self._ask, self._path = ask, path
        self._known: dict[str, Candidate | None] = _read(path) if path is not None else {}
        self._saved = len(self._known)

    def __call__(self, group: Group) -> Candidate | None:
        key = f"{group.pattern} {fingerprint(group.body)}"
        if key not in self._known:
            self._known[key] = self._ask(group)
        return self._known[key]

    def save(self) -> None:
        """Write down what is new. Two processes at once lose nothing that they would not ask again."""
        if self._path is None or len(self._known) == self._saved:
            return
        rows = {k: None if c is None else [c.rule, c.workspace, c.tiles] for k, c in self._known.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(rows, file)
            os.replace(file.name, self._path)
            self._saved = len(rows)
        except OSError:  # a cache that cannot be written is asked again, that is all
            return


def _read(path: Path) -> dict[str, Candidate | None]:
    try:
        rows = json.loads(path.read_text())
        return {key: None if row is None else Candidate(*row) for key, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def offers(target: Target, ask: Ask) -> Offers:
    """The offers for a target; one object for each place where they are kept."""
    base = cache.folder()
    return _offers(target, ask, base)


@once
def _offers(target: Target, ask: Ask, base: Path | None) -> Offers:
    if base is None:
        return Offers(ask, None)
    digest = hashlib.sha256((repr(target) + cache.code()).encode()).hexdigest()[:16]
    return Offers(ask, base / f"offers-{digest}.json")
