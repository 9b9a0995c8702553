"""Artefacts on disk, by content: the same plan for the same target is compiled once for all processes.

An entry is a folder `<key>/` with `step.so` and `program.json`, written under a temporary name and renamed, so that
a reader sees all of it or nothing. `GG_CACHE` says where; `GG_CACHE=0` turns the cache off.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from gluongraph import ops
from gluongraph.codegen.targets import Target
from gluongraph.errors import CompileError, warn
from gluongraph.plan import Plan
from gluongraph.program import Program, program_of
from gluongraph.serialize import fingerprint


@dataclass(frozen=True)
class Artefact:
    """Compiled code and its description. `path` is None where nothing could be linked and `module` holds the code."""

    program: Program
    path: Path | None
    module: Any = None
    compiled: int = 0  # kernels compiled now; 0 when the cache had them
    seconds: float = 0.0
    gpu: bool = False  # do its kernels run on a GPU?


def folder() -> Path | None:
    """Where artefacts are kept: GG_CACHE, else gluongraph under the user's cache folder; None when turned off."""
    text = os.environ.get("GG_CACHE", "")
    if text == "0":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(text) if text else Path(base) / "gluongraph"


def key(plan: Plan, target: Target) -> str:
    """A digest of everything that decides the code: kernels, memory, target, versions, the rules' own source.

    Names of inputs and outputs are not among it: the same net built again, with other names, is the same code.
    """
    return hashlib.sha256(f"{_described(plan)}{target}{code()}".encode()).hexdigest()[:32]


def _described(plan: Plan) -> str:
    """All of a plan but names: its arguments by position, each kernel once, the launches in order."""
    position = plan.positions
    lines = [program_of(plan).nameless().to_json()]
    for name, launch in plan.kernels.items():
        group = launch.group
        lines.append(f"{name} {fingerprint(group.body)} {group.pattern} {group.inplace} {launch.candidate}")
        if group.inner is not None:
            lines.append(f"each turn of {name}: {_described(group.inner)}")
    lines += [f"{launch.kernel} {[position[b.name] for b in launch.arguments]}" for launch in plan.launches]
    return "\n".join(lines)


@once
def code() -> str:
    """A digest of what turns a plan into code: the sources of this package and of the ops' rules, and TVM's version,
    which stands in a file at the top of its packages (to import `importlib.metadata` for it takes 15 ms)."""
    return digest_of("", Path(__file__).parent, Path(ops.__file__).parent, package("tvm"), package("tvm_ffi"))


def package(name: str) -> Path:
    """The folder of a package, which is not imported for it.

    Raises:
        CompileError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CompileError(f"the package {name} is not installed: pip install apache-tvm")
    return Path(spec.origin).parent


def digest_of(text: str, *folders: Path) -> str:
    """A digest of a text and of the Python files in folders."""
    digest = hashlib.sha256(text.encode())
    for folder in folders:
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def note(path: Path, text: str) -> None:
    """Write a small file of the cache, whole or not at all: readers and other writers never see a part of it.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def find(key: str, program: Program) -> Path | None:
    """The library of such a program that was stored under the key, if the entry is whole."""
    base = folder()
    if base is None:
        return None
    library = base / key / "step.so"
    try:
        described = library.with_name("program.json").read_text(encoding="utf-8") == program.nameless().to_json()
    except (OSError, ValueError):
        return None
    return library if described and library.exists() else None


def store(key: str, program: Program, write: Callable[[Path], None]) -> Path:
    """Write an entry; `write(path)` makes the library. Returns where the library lies. With the cache off, or where
    nothing can be written, which is warned of, a temporary folder of this process holds it."""
    base, draft = _begun(key)
    try:
        write(draft / "step.so")
        (draft / "program.json").write_text(program.nameless().to_json(), encoding="utf-8")
        place = base / key
        try:
            draft.rename(place)
        except OSError:  # another process was first; its entry is as good, unless it is broken
            if find(key, program) is None:
                shutil.rmtree(place, ignore_errors=True)
                draft.rename(place)
        return place / "step.so"
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _begun(key: str) -> tuple[Path, Path]:
    """The folder that will hold an entry, and one in it to write the entry into."""
    base = folder()
    if base is not None:
        try:
            base.mkdir(parents=True, exist_ok=True)
            return base, Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=base))
        except OSError as wrong:
            warn(
                f"what is compiled is not kept: {base} cannot be written ({wrong.strerror})\n"
                "  help: name a folder that can be in GG_CACHE, or set GG_CACHE=0"
            )
    base = Path(tempfile.mkdtemp(prefix="gluongraph-"))
    return base, Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=base))
