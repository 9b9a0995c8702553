"""Artefacts on disk, by content: the same plan for the same target is compiled once for all processes.

An entry is a folder `<key>/` with `step.so` and `program.json`, written under a temporary name and renamed, so that
a reader sees all of it or nothing. `GG_CACHE` says where; `GG_CACHE=0` turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once
from importlib.metadata import version
from pathlib import Path

from gluongraph.codegen.targets import Target
from gluongraph.errors import CompileError
from gluongraph.plan import Plan
from gluongraph.program import Program
from gluongraph.serialize import fingerprint


@dataclass(frozen=True)
class Entry:
    """What the cache holds under one key."""

    library: Path
    program: Program


def folder() -> Path | None:
    """Where artefacts are kept: GG_CACHE, else gluongraph under the user's cache folder; None when turned off."""
    text = os.environ.get("GG_CACHE", "")
    if text == "0":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(text) if text else Path(base) / "gluongraph"


def key(plan: Plan, target: Target) -> str:
    """A digest of everything that decides the code: kernels, memory, target, versions, the rules' own source."""
    digest = hashlib.sha256()
    bodies: dict[str, str] = {}
    for launch in plan.launches:
        if launch.kernel not in bodies:
            group = launch.group
            bodies[launch.kernel] = f"{fingerprint(group.body)} {group.pattern} {group.inplace} {launch.candidate}"
        places = (*launch.reads, *launch.writes, launch.workspace)
        digest.update(f"{launch.kernel} {[str(b) for b in places]}\n".encode())
    digest.update(repr((bodies, target, plan.scratch_bytes, plan.scalar_bytes)).encode())
    digest.update(repr({k: str(b) for k, b in plan.outputs.items()}).encode())
    for name, data in plan.constants.items():
        digest.update(name.encode() + hashlib.sha256(data).digest())
    digest.update(code().encode())
    return digest.hexdigest()[:32]


@once
def code() -> str:
    """A digest of what turns a plan into code: this package's sources and TVM's version."""
    digest = hashlib.sha256(f"{version('apache-tvm')} {version('apache-tvm-ffi')}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def find(key: str) -> Entry | None:
    """What was stored under the key, if it is whole."""
    base = folder()
    if base is None:
        return None
    place = base / key
    try:
        program = Program.from_json((place / "program.json").read_text())
    except (OSError, CompileError):
        return None
    library = place / "step.so"
    return Entry(library, program) if library.exists() else None


def store(key: str, program: Program, write: Callable[[Path], None]) -> Path:
    """Write an entry; `write(path)` makes the library. Returns where the library lies. With the cache off, a
    temporary folder of this process holds it."""
    base = folder() or Path(tempfile.mkdtemp(prefix="gluongraph-"))
    base.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=base))
    try:
        write(draft / "step.so")
        (draft / "program.json").write_text(program.to_json())
        place = base / key
        try:
            draft.rename(place)
        except OSError:  # another process was first; its entry is as good, unless it is broken
            if find(key) is None:
                shutil.rmtree(place, ignore_errors=True)
                draft.rename(place)
        return place / "step.so"
    finally:
        shutil.rmtree(draft, ignore_errors=True)
