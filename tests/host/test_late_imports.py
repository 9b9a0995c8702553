"""Packages of others that are imported late come whole: an interrupt that cuts such an import in the middle would leave
what can be neither used nor imported again (`gluongraph.host.interrupts.import_whole`)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(["gluongraph", *file.relative_to(base).with_suffix("").parts]).removesuffix(".__init__"): file
    for base, folder in [(ROOT / "gluongraph", "."), *((ROOT, name) for name in ("passes", "codegen", "runtime"))]
    for file in sorted((base / folder).rglob("*.py"))
}
ALWAYS = {"numpy", "ml_dtypes"}  # they come with `import gluongraph`, before any work
WHOLE = {"import_whole", "import_tvm"}
# Modules of these are imported by processes that end when they are interrupted.
PROCESSES = ("gluongraph.bench.", "gluongraph.cli.")


def foreign(name: str) -> bool:
    top = name.split(".")[0]
    return top not in sys.stdlib_module_names and top not in ALWAYS and top != "gluongraph"


def names(node: ast.AST) -> list[str]:
    """What a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        return [node.module, *(name for name in below if name in FILES)]
    return []


def called(node: ast.AST, *functions: str) -> str | None:
    """The name that a call of one of these functions has as its argument, if it is written there."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return str(node.args[0].value) if name in functions else None


def run_when_imported(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module that importing it runs."""
    for child in ast.iter_child_nodes(node):
        skipped = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        skipped = skipped or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        if not skipped:
            yield child
            yield from run_when_imported(child)


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imported_with(module: str) -> frozenset[str]:
    """All modules that come with one of ours, itself among them, and packages of others."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in found or name == "gluongraph" or (name not in FILES and not foreign(name)):
            continue
        found.add(name)
        if name in FILES:
            waiting += [each for node in run_when_imported(tree(name)) for each in names(node)]
            waiting.append(name.rpartition(".")[0])
    return frozenset(found)


def brings_packages(name: str) -> bool:
    return foreign(name) or any(map(foreign, imported_with(name) if name in FILES else ()))


def late(module: str) -> Iterator[tuple[str, frozenset[str]]]:
    """What functions of a module import that brings packages of others, and what the same function imports whole."""
    for function in ast.walk(tree(module)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = list(ast.walk(function))
            whole = [name for node in nodes if (name := called(node, *WHOLE)) is not None]
            known = frozenset(each for name in whole for each in {name, *imported_with(name)})
            plain = [name for node in nodes if (name := called(node, "import_module", "__import__")) is not None]
            for name in [*plain, *(name for node in nodes for name in names(node))]:
                if brings_packages(name):
                    yield name, known


@pytest.mark.parametrize("module", [name for name in FILES if not name.startswith(PROCESSES)])
def test_late_imports_are_whole(module: str) -> None:
    cut = sorted({name for name, whole in late(module) if name not in whole})
    assert not cut, f"an interrupt can cut the import of {', '.join(cut)}: import_whole"


def test_a_cut_import_would_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.py", tmp_path / "good.py"
    bad.write_text("def f():\n import PIL.Image, gluongraph.passes.remat\n import_module('scipy.stats')")
    good.write_text(
        "def f():\n import_whole('gluongraph.compiler.pipeline')\n"
        " from gluongraph.compiler.pipeline import run\n import os"
    )
    monkeypatch.setitem(FILES, "bad", bad)
    monkeypatch.setitem(FILES, "good", good)
    assert {name for name, whole in late("bad") if name not in whole} == {
        "PIL.Image",
        "gluongraph.passes.remat",
        "scipy.stats",
    }
    assert all(name in whole for name, whole in late("good")) and list(late("good"))
    assert "networkx" in imported_with("gluongraph.compiler.pipeline")
