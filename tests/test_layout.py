"""The layout of the repository: packages are all installed, tests have their folders' names, every doctest runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import pathlib
import re
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, pathlib.Path] = {name: ROOT / place for name, place in SETUPTOOLS["package-dir"].items()}
PEERS = re.compile(r"gluongraph\.bench\.(torch|jax|mxnet)_\w+")  # files for processes that have those frameworks
SIBLINGS = ("passes", "codegen", "runtime")


def packages() -> set[str]:
    """The installed name of every folder that holds Python files."""
    found = set()
    for name, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            found.add(".".join((name, *file.parent.relative_to(folder).parts)))
    return found


def modules() -> list[str]:
    """The installed name of every source file."""
    found = []
    for name, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            found.append(".".join((name, *(p for p in parts if p != "__init__"))))
    return found


def test_every_package_is_listed() -> None:
    """An unlisted folder works in an editable install, and is missing from the wheel without a word."""
    assert packages() == set(SETUPTOOLS["packages"])
    assert all((folder / "__init__.py").exists() for folder in FOLDERS.values())


@pytest.mark.parametrize("name", [m for m in modules() if not m.endswith("__main__") and not PEERS.match(m)])
def test_doctests(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By installed name: a run by path would import a second copy."""
    monkeypatch.chdir(tmp_path)  # some write files
    if name.startswith("gluongraph.torch"):
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_no_module_is_there_twice() -> None:
    """`import passes` from the root of a checkout would make another copy, whose ops are declared twice."""
    assert not set(SIBLINGS) & set(sys.modules)


@pytest.mark.parametrize("folder", SIBLINGS)
def test_type_checkers_find_the_siblings(folder: str) -> None:
    link = ROOT / "typings" / "gluongraph" / folder
    assert link.resolve() == (ROOT / folder).resolve()


# Folders of tests that belong to no package: what they test takes several.
ACROSS = {"docs", "errors", "examples", "golden", "install", "nets", "trust"}


def test_folders_of_tests_are_named_like_packages() -> None:
    """Whoever looks for the tests of a folder finds them under its name."""
    names = {folder.name for folder in (ROOT / "gluongraph").iterdir() if folder.is_dir()} | set(SIBLINGS)
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.glob("[!_]*"))}
    tests = {name for name in folders if (ROOT / "tests" / name).is_dir()}
    assert tests <= names | ACROSS
    assert tests >= ACROSS


def test_folders_below_are_named_like_those_of_the_package() -> None:
    """A folder with tests in the folder of a package has the name of a folder there."""
    for file in (ROOT / "tests").glob("*/*/**/test_*.py"):
        package, *below = file.relative_to(ROOT / "tests").parent.parts
        home = ROOT / package if package in SIBLINGS else ROOT / "gluongraph" / package
        assert package in ACROSS or home.joinpath(*below).is_dir(), file


def test_names_of_helper_modules_are_distinct() -> None:
    """All their folders are on the path, see tests/conftest.py."""
    helpers = [
        file.name
        for file in (ROOT / "tests").rglob("[!_]*.py")
        if not file.name.startswith("test_") and file.name != "conftest.py"
    ]
    assert len(helpers) == len(set(helpers))


def names_read(tree: ast.AST) -> set[str]:
    """Every name, attribute and imported name that a file reads."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


def private_names(tree: ast.Module) -> set[str]:
    """The functions, classes and constants of a module that only it uses; a decorator may have put one into a table."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return {name for name in found if re.match("_[A-Za-z]", name)}


# Whose private names are MXNet's: programs written for it use them.
MXNETS = (
    "gluongraph/amp.py",
    "gluongraph/base.py",
    "gluongraph/gluon/loss/base.py",
    "gluongraph/mxnet/",
    "gluongraph/nd/_internal.py",
)


def test_private_names_are_used() -> None:
    """What nothing reads is left over from a change."""
    left = {}
    for file in (file for folder in {*FOLDERS.values(), ROOT / "benchmarks"} for file in folder.rglob("*.py")):
        place, tree = str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))
        if not place.startswith(MXNETS) and (unread := private_names(tree) - names_read(tree)):
            left[place] = unread
    assert not left
