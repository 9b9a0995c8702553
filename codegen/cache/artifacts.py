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
    """Compiled code and its description: its files, by name, as they were when their digests were compared. `path` is
    where the library lies, None where it is not kept; where nothing could be linked `module` holds the code."""

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


SOURCES = (Path(__file__).parent.parent, Path(ops.__file__).parent)


@once
def code() -> str:
    """A digest of what turns a plan into code: the sources of this package and of the ops' rules, and TVM's version,
    which stands in a file at the top of its packages (to import `importlib.metadata` for it takes 15 ms)."""
    versions = [file for name in ("tvm", "tvm_ffi") for file in sorted(package(name).glob("*.py"))]
    return digest_of("", *SOURCES, *versions)


def package(name: str) -> Path:
    """The folder of a package, which is not imported for it.

    Raises:
        CompileError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CompileError(f"the package {name} is not installed: pip install apache-tvm")
    return Path(spec.origin).parent


def digest_of(text: str, *sources: Path) -> str:
    """A digest of a text and of Python files: of each folder all below it, with their places there."""
    digest = hashlib.sha256(text.encode())
    for source in sources:
        start = len(os.fspath(source.parent))
        for file in files_of(source):
            with open(file, "rb", buffering=0) as opened:
                data = opened.read()
            digest.update(f"\0{file[start:]}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def files_of(source: Path) -> list[str]:
    """The Python files below a folder, in one order; or the file itself. Every start asks; pathlib is slower."""
    if source.suffix == ".py":
        return [os.fspath(source)]
    found: list[str] = []
    for folder, below, names in os.walk(source):
        below[:] = sorted(name for name in below if name != "__pycache__")
        found += sorted(f"{folder}/{name}" for name in names if name.endswith(".py"))
    return found


def find(key: str, program: Program, gpu: bool = False) -> Artefact | None:
    """What was stored for such a program under the key, if the entry is whole."""
    base = store.folder()
    entry = store.get(base / key) if base is not None else None
    if entry is None or entry.files.get(PROGRAM) != _text(program) or LIBRARY not in entry.files:
        return None
    return of_entry(entry, program, gpu)


def of_entry(entry: Entry, program: Program, gpu: bool) -> Artefact:
    """The artefact that an entry holds."""
    path = entry.path / LIBRARY if entry.path is not None else None
    return Artefact(program, path, gpu=gpu, files=entry.files)


def keep(key: str, program: Program, write: Callable[[Path], None], gpu: bool = False) -> Artefact:
    """A new entry; `write(path)` makes the library, and may leave other files beside it.

    Raises:
        CompileError: it cannot be made.
        OSError: no temporary file can be written.
    """
    base = store.folder()
    with disk.temporary_folder() as made:
        write(made / LIBRARY)
        (made / PROGRAM).write_bytes(_text(program))
        entry = store.put(base / key if base is not None else None, made)
    return of_entry(entry, program, gpu)


def _text(program: Program) -> bytes:
    return program.nameless().to_json().encode()
