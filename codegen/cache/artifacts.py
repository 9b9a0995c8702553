"""Content-addressed artefacts: the same plan for the same target is compiled once for all processes.

An entry of the store (`gluongraph/host/store.py`) has `step.so` and `program.json`; on GPUs their machine code as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache as once
from pathlib import Path
from typing import Any

from gluongraph import ops
from gluongraph.codegen.rule import Target
from gluongraph.errors import CompileError
from gluongraph.host import disk, store
from gluongraph.host.store import Entry
from gluongraph.ir.entry_point import Program, program_of
from gluongraph.ir.plan import Plan
from gluongraph.ir.serialize import fingerprint

LIBRARY, PROGRAM = "step.so", "program.json"


@dataclass(frozen=True)
class Artefact:
    """Compiled code and its description. `files` are its files by name, as they were when their digests were verified;
    `path` is the library, None if it is not stored; `module` is the code if it could not be linked."""

    program: Program
    path: Path | None
    module: Any = None
    compiled: int = 0  # kernels compiled now; 0 when the cache had them
    seconds: float = 0.0
    gpu: bool = False  # do its kernels run on a GPU?
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def binaries(self) -> dict[str, bytes]:
        """Machine code of a GPU, by file name."""
        return {name: data for name, data in self.files.items() if name.endswith(".fatbin")}


def key(plan: Plan, target: Target) -> str:
    """Return a digest of everything that determines the code: kernels, memory, target, versions, the rules' sources.

    Names of inputs and outputs are not included: the same network with other names has the same code.
    """
    return hashlib.sha256(f"{_described(plan)}{target}{code()}".encode()).hexdigest()[:32]


def _described(plan: Plan) -> str:
    """Return a plan as text without names: its arguments by position, each kernel once, the launches in order."""
    position = plan.positions
    lines = [program_of(plan).nameless().to_json()]
    for name, launch in plan.kernels.items():
        group = launch.group
        lines.append(f"{name} {fingerprint(group.body)} {group.pattern} {group.inplace} {launch.candidate}")
        if group.inner is not None:
            lines.append(f"each turn of {name}: {_described(group.inner)}")
    lines += [f"{launch.kernel} {[position[b.name] for b in launch.arguments]}" for launch in plan.launches]
    return "\n".join(lines)


SOURCES = (Path(__file__).parent.parent, Path(ops.__file__).parent)


@once
def code() -> str:
    """Return a digest of what turns a plan into code: the sources of this package and of the ops' rules, and TVM's
    version, which is in a top-level file of its packages (importing `importlib.metadata` for it takes 15 ms)."""
    versions = [file for name in ("tvm", "tvm_ffi") for file in sorted(package(name).glob("*.py"))]
    return digest_of("", *SOURCES, *versions)


def package(name: str) -> Path:
    """Return the folder of a package without importing it.

    Raises:
        CompileError: the package is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CompileError(f"the package {name} is not installed: pip install apache-tvm")
    return Path(spec.origin).parent


def digest_of(text: str, *sources: Path) -> str:
    """Return a digest of a text and of Python files, of a folder all below it, with their relative paths."""
    digest = hashlib.sha256(text.encode())
    for source in sources:
        start = len(os.fspath(source.parent))
        for file in files_of(source):
            with open(file, "rb", buffering=0) as opened:
                data = opened.read()
            digest.update(f"\0{file[start:]}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def files_of(source: Path) -> list[str]:
    """Return the Python files below a folder, in a fixed order; or the file itself. `os.walk`, since every start calls
    this and pathlib is slower."""
    if source.suffix == ".py":
        return [os.fspath(source)]
    found: list[str] = []
    for folder, below, names in os.walk(source):
        below[:] = sorted(name for name in below if name != "__pycache__")
        found += sorted(f"{folder}/{name}" for name in names if name.endswith(".py"))
    return found


def find(key: str, program: Program, gpu: bool = False) -> Artefact | None:
    """Return the artefact that is stored for the program under the key; None if the entry is missing or incomplete."""
    base = store.folder()
    entry = store.get(base / key) if base is not None else None
    if entry is None or entry.files.get(PROGRAM) != _text(program) or LIBRARY not in entry.files:
        return None
    return of_entry(entry, program, gpu)


def of_entry(entry: Entry, program: Program, gpu: bool) -> Artefact:
    """Return the artefact of an entry of the store."""
    path = entry.path / LIBRARY if entry.path is not None else None
    return Artefact(program, path, gpu=gpu, files=entry.files)


def keep(key: str, program: Program, write: Callable[[Path], None], gpu: bool = False) -> Artefact:
    """Store a new artefact; `write(path)` writes the library, and may write other files next to it.

    Raises:
        CompileError: compiling or linking failed.
        OSError: no temporary file can be written.
    """
    base = store.folder()
    with disk.temporary_folder() as folder:
        write(folder / LIBRARY)
        (folder / PROGRAM).write_bytes(_text(program))
        entry = store.put(base / key if base is not None else None, folder)
    return of_entry(entry, program, gpu)


def _text(program: Program) -> bytes:
    return program.nameless().to_json().encode()
