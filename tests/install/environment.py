"""What a plain installation has: environments that hold the wheel of this checkout and what it declares, and no more.

They are made without a package index: each distribution that is required is linked from the environment of the tests.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("gluongraph", "passes", "codegen", "runtime", "pyproject.toml", "README.md", "LICENSE")


def declared(*extras: str) -> list[str]:
    """What pyproject.toml says that the package and some of its extras need."""
    return [*PROJECT["dependencies"], *(row for extra in extras for row in PROJECT["optional-dependencies"][extra])]


def distributions(wanted: Iterable[str]) -> Iterator[metadata.Distribution]:
    """The installed distributions that meet these requirements, and those that they need in turn, once each."""
    todo, met = [Requirement(row) for row in wanted], set()
    while todo:
        one = todo.pop()
        found = metadata.distribution(one.name)
        for extra in {"", *one.extras}:
            if (key := (canonicalize_name(one.name), extra)) in met:
                continue
            if not any((key[0], other) in met for other in ("", *one.extras)):
                yield found
            met.add(key)
            rows = [Requirement(row) for row in found.requires or ()]
            todo += [row for row in rows if row.marker is None or row.marker.evaluate({"extra": extra})]


def modules(distribution: metadata.Distribution) -> set[str]:
    """What a distribution puts into site-packages, by its first name: packages, modules, libraries, metadata."""
    names = {path.parts[0] for path in distribution.files or ()}
    return {name for name in names if name not in ("..", "__pycache__") and not name.startswith(("/", "."))}


@functools.cache
def strangers(*extras: str) -> frozenset[str]:
    """The modules that are installed here and that the package with these extras has not, but for what runs tests."""
    tools = [row for row in PROJECT["optional-dependencies"]["test"] if not row.startswith("gluongraph")]
    there = [*distributions([*declared(*extras), *tools]), metadata.distribution("gluongraph")]
    known = {name for each in there for name in modules(each)}
    found = {name.removesuffix(".py") for each in metadata.distributions() for name in modules(each) - known}
    return frozenset(name for name in found if name.isidentifier())


class Without:
    """A finder of modules that does not find some of them."""

    def __init__(self, hidden: Collection[str], finder: Any):
        self.hidden, self.finder = hidden, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

    def find_spec(self, name: str, *more: Any) -> Any:
        return None if name.partition(".")[0] in self.hidden else self.finder.find_spec(name, *more)


def wheel(folder: Path) -> Path:
    """The wheel of this checkout, built in a copy: a build leaves folders behind."""
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        if (path := ROOT / name).is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


def environment(folder: Path, wheel: Path) -> Path:
    """A new virtual environment with the wheel and what it declares: its folder of programs."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for distribution in distributions(declared()):
        for name in modules(distribution):
            (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    return programs
