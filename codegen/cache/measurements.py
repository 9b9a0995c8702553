"""Tuning records: the candidate that was measured to be the fastest for a group, stored next to the artefacts.

There is a file for each target, processor, number of threads and version of the rules: measurements elsewhere, or of
other code, do not count. With `GG_TUNED=0` it is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from gluongraph.codegen.cache import artifacts
from gluongraph.codegen.rule import Target
from gluongraph.errors import warn
from gluongraph.host import store
from gluongraph.host.process import threads
from gluongraph.ir.plan import Candidate

FORMAT, VERSION = "gluongraph-tuned", 1
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Measurement:
    """The fastest candidate for a group: its seconds, and those of the rule's default, measured alternately."""

    candidate: Candidate
    seconds: float
    usual: float


class Table:
    """The tuning records by the key of a group; `path` is None if they are only in this process."""

    def __init__(self, path: Path | None):
        self.path = path
        self._rows = {} if path is None else _read(path)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._rows.values())

    def get(self, key: str) -> Measurement | None:
        """Return the record of a group, if it has been measured."""
        return self._rows.get(key)

    def copy(self) -> Table:
        """Return a copy of the current records, which is not written."""
        copied = Table(None)
        copied._rows = dict(self._rows)
        return copied

    @property
    def digest(self) -> str:
        """A digest of the candidates that the records select."""
        return _digest({key: asdict(row.candidate) for key, row in self._rows.items()})

    def put(self, measurements: dict[str, Measurement]) -> None:
        """Add records, and write them, merged with those that other processes have written since."""
        self._rows |= measurements
        if self.path is None:
            return
        self._rows = _read(self.path) | self._rows
        rows = {key: asdict(row) for key, row in self._rows.items()}
        data = {"format": FORMAT, "version": VERSION, "machine": machine(), "rows": rows}
        store.note(self.path, json.dumps(data, indent=1))


def _read(path: Path) -> dict[str, Measurement]:
    """Return the rows of a file; none, with a warning, if it is damaged, since tuning is not repeated automatically."""
    there = path.exists()
    if (text := store.noted(path)) is None:
        if there:
            warn(f"{path} was damaged and is removed: `gluongraph tune`, or tune=True, measures again")
        return {}
    data = json.loads(text)
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        warn(f"{path} is left out: it is of version {data['version']}, and this gluongraph reads {VERSION}")
        return {}
    return {
        key: Measurement(Candidate(**row["candidate"]), float(row["seconds"]), float(row["usual"]))
        for key, row in data["rows"].items()
    }


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def machine() -> dict[str, Any]:
    """Return what measured times are valid for: the processor, its caches, the threads of a kernel."""
    return {"processor": _processor(), "caches": _caches(), "threads": threads()}


@once
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(named, platform.machine())


@once
def _caches() -> list[str]:
    """Return the sizes of the first core's caches, as reported by Linux."""
    try:
        return [file.read_text(encoding="utf-8").strip() for file in sorted(_CACHES.glob("index*/size"))]
    except OSError:
        return []


def table(target: Target) -> Table:
    """Return the table for a target on this machine; one object for each file."""
    off = os.environ.get("GG_TUNED", "") == "0"
    return _table(target, None if off else store.folder(), threads(), off)


@once
def _table(target: Target, base: Path | None, threads: int, off: bool) -> Table:
    return Table(None if base is None else base / f"tuned-{_where(target)}.json")


def _where(target: Target) -> str:
    return hashlib.sha256(f"{target} {machine()} {artifacts.code()}".encode()).hexdigest()[:16]
