"""The GG_* environment variables: read once, at first use, and the two ways in which things are shown.

| variable | does |
|---|---|
| `GG_DEBUG=1..5` | 1 targets, totals, damage; 2 launches; 3 passes; 4 the graph after each changing pass; 5 code |
| `GG_LOG=fuse,memory` | the named artifacts only: target, cache, pass, a pass's own name, memory (the plan), code |
| `GG_DUMP=dir` | writes graphs, after each pass, plan and code into that folder; those of the next into graph2/, ... |
| `GG_VERIFY=1` | checks the graph after every pass |
| `GG_STOP=pass`, `GG_SKIP=pass,pass` | runs, after a pass, only what there is no code without; leaves passes out |
| `GG_BACKEND=reference` | runs graphs in numpy: is it the model or the compiler? |
| `GG_CHECK=nan` | names the first op, its layer and its line, that makes a NaN or an infinity |
| `GG_EDIT=file` | writes the graph to the file, waits, reads it back and goes on |
| `GG_PROGRESS=0` | no moving line on a terminal while something long is compiled, exported or tuned |
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gluongraph.errors import MXNetError

BACKENDS = ("", "reference")
CHECKS = ("", "nan")
# Which GG_DEBUG level prints an artifact; one that is not named here is printed from level 4 on (it is a graph).
ARTIFACTS = {"target": 1, "total": 1, "cache": 1, "launch": 2, "pass": 3, "plan": 3, "code": 5}


@dataclass(frozen=True)
class Settings:
    """The table above, parsed."""

    debug: int = 0
    log: frozenset[str] = frozenset()
    dump: str = ""
    verify: bool = False
    stop: str = ""
    skip: frozenset[str] = frozenset()
    backend: str = ""
    check: str = ""
    edit: str = ""


def parse(environ: Mapping[str, str]) -> Settings:
    """The settings that an environment asks for.

    Raises:
        MXNetError: a variable has a value that it cannot have.

    >>> parse({"GG_LOG": "fuse,memory"}).log == {"fuse", "memory"}
    True
    """
    given = {name: text.strip() for name, text in environ.items() if name.startswith("GG_")}
    debug = given.get("GG_DEBUG", "") or "0"
    if debug not in ("0", "1", "2", "3", "4", "5"):
        raise MXNetError(f"GG_DEBUG={debug}: a number from 0 to 5")
    if (count := given.get("GG_THREADS", "")) and not (count.isdecimal() and int(count) > 0):
        raise MXNetError(f"GG_THREADS={count}: a number from 1 on, or nothing")
    for name, allowed in (("GG_BACKEND", BACKENDS), ("GG_CHECK", CHECKS), ("GG_PROGRESS", ("", "0", "1"))):
        if given.get(name, "") not in allowed:
            raise MXNetError(f"{name}={given[name]}: {' or '.join(filter(None, allowed))}, or nothing")
    return Settings(
        debug=int(debug),
        log=_names(given.get("GG_LOG", "")),
        dump=given.get("GG_DUMP", ""),
        verify=given.get("GG_VERIFY", "") not in ("", "0"),
        stop=given.get("GG_STOP", ""),
        skip=_names(given.get("GG_SKIP", "")),
        backend=given.get("GG_BACKEND", ""),
        check=given.get("GG_CHECK", ""),
        edit=given.get("GG_EDIT", ""),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


_settings: Settings | None = None
_listeners: list[Callable[[], object]] = []


def when_overridden(listener: Callable[[], object]) -> None:
    """Call `listener` whenever `override` changes the settings or takes them back."""
    _listeners.append(listener)


def settings() -> Settings:
    """What the environment said when it was first asked."""
    global _settings
    if _settings is None:
        _settings = parse(os.environ)
    return _settings


def how() -> tuple[str, str]:
    """How ops are run: what was made to run them under other settings does not serve."""
    now = settings()
    return now.backend, now.check


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Other settings within the block: `with debug.override(verify=True):`."""
    before = settings()

    def become(now: Settings) -> None:
        global _settings, _graphs
        _settings, _graphs = now, 0
        for listener in _listeners:
            listener()

    become(replace(before, **changes))
    try:
        yield settings()
    finally:
        become(before)


_graphs = 0  # how many have been compiled under these settings


def next_graph() -> None:
    """Another graph is being compiled: its dumps get a folder of their own."""
    global _graphs
    _graphs += 1


def wants(artifact: str) -> bool:
    """Will `log(artifact, ...)` print?"""
    now = settings()
    return artifact in now.log or now.debug >= ARTIFACTS.get(artifact, 4)


def log(artifact: str, text: str) -> None:
    """Print `text` to stderr if GG_LOG names the artifact or GG_DEBUG is high enough."""
    if wants(artifact):
        print(text, file=sys.stderr)


def dump(name: str, text: str) -> pathlib.Path | None:
    """Write `text` to `name` in the folder GG_DUMP; None if that is not set.

    Raises:
        MXNetError: it cannot be written there.
    """
    folder = settings().dump
    if not folder:
        return None
    path = pathlib.Path(folder) / (f"graph{_graphs}" if _graphs > 1 else "") / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise MXNetError(f"GG_DUMP={folder}: {path} cannot be written ({wrong.strerror})") from wrong
    return path
