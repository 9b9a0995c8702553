"""The cache's keys change with every file that takes part in making code."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import gluongraph
from gluongraph import codegen, passes, runtime
from gluongraph.codegen.cache import artifacts, plans

# What turns a graph into code; the files that they import, anywhere, take part in it.
MAKERS = ("gluongraph.codegen.build", "gluongraph.compiler.pipeline", "gluongraph.ops.index_checks")
PACKAGE = Path(gluongraph.__file__).parent
PLACES = {
    "gluongraph.codegen": Path(codegen.__file__).parent,
    "gluongraph.passes": Path(passes.__file__).parent,
    "gluongraph.runtime": Path(runtime.__file__).parent,
}


def file_of(module: str) -> Path | None:
    """Where a module of this project lies; None for names that are none."""
    for name, place in (*PLACES.items(), ("gluongraph", PACKAGE)):
        if module == name or module.startswith(f"{name}."):
            path = place.joinpath(*module.removeprefix(name).strip(".").split("."))
            return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
    return None


def imports(file: Path) -> set[str]:
    """All modules that a file imports, within functions too, but for annotations alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found


def closure(modules: tuple[str, ...]) -> set[Path]:
    """The files of these modules and of all that they import, and those import."""
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        file = file_of(waiting.pop())
        if file is not None and file not in found and file != PACKAGE / "__init__.py":
            found.add(file)
            waiting += imports(file)
    return found


def test_every_file_that_takes_part_counts() -> None:
    counted = {Path(file) for source in (*artifacts.SOURCES, *plans.sources()) for file in artifacts.files_of(source)}
    needed = closure(MAKERS)
    assert len(needed) > 100  # or the search has lost its way
    assert not needed - counted


def test_moving_and_changing_any_file_is_seen(tmp_path: Path) -> None:
    """Copies of the folders themselves: each file changed, moved into a sub-folder, removed, and a new one."""
    for source in (*artifacts.SOURCES, PLACES["gluongraph.passes"]):
        folder = Path(shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__")))
        (folder / "below").mkdir()
        before = artifacts.digest_of("", folder)
        for file in map(Path, artifacts.files_of(folder)):
            text = file.read_bytes()
            file.write_bytes(text + b"#")
            assert artifacts.digest_of("", folder) != before, file
            file.write_bytes(text)
            moved = file.rename(folder / "below" / file.name)
            inside = artifacts.digest_of("", folder)
            assert inside != before, file
            moved.write_bytes(text + b"#")
            assert artifacts.digest_of("", folder) != inside, file
            moved.write_bytes(text)
            moved.rename(file)
        assert artifacts.digest_of("", folder) == before
        (folder / "below" / "new.py").write_text("")
        assert artifacts.digest_of("", folder) != before
