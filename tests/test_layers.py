"""Imports run one way: base <- front ends <- compiler -> passes, codegen, runtime. TVM is touched in four files."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gluongraph.codegen.tvm import tir

ROOT = pathlib.Path(__file__).parent.parent

# What everybody may import; it imports nothing but itself.
BASE = {"context", "debug", "dtypes", "errors", "host", "ir", "ops", "storage"}
ALLOWED = {  # part -> the parts that it may import
    "base": {"base"},
    "front": {"base", "front"},
    "passes": {"base", "passes"},
    "codegen": {"base", "codegen"},
    "runtime": {"base", "runtime"},
    "top": {"base", "front", "passes", "codegen", "runtime", "top"},  # the compiler, and the commands that use it
}
TOP = {"artefact", "bench", "checkpoint", "cli", "compiler", "step", "__main__"}
TVM = {"codegen/tvm/tir.py", "codegen/tvm/machine_code.py", "codegen/tvm/te.py", "runtime/loader.py"}  # who touches it


def files() -> list[pathlib.Path]:
    folders = ("gluongraph", "passes", "codegen", "runtime")
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def part_of(module: str) -> str:
    """The part that a dotted name below gluongraph belongs to; '' is the package itself, a front end."""
    first = module.split(".")[0]
    if first in ("passes", "codegen", "runtime"):
        return first
    return "base" if first in BASE else "top" if first in TOP else "front"


def imports(file: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, inside functions too. Annotations' imports count as well."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way(file: pathlib.Path) -> None:
    own = part_of(".".join(file.relative_to(ROOT).with_suffix("").parts).removeprefix("gluongraph."))
    wrong = [
        f"line {line}: {own} imports {name} of {part}"
        for line, name in imports(file)
        if name.startswith("gluongraph.") and (part := part_of(name.removeprefix("gluongraph."))) not in ALLOWED[own]
    ]
    assert not wrong


def touches_tvm(name: str) -> bool:
    """Is what is imported TVM, by itself or as the modules that `codegen/tvm/tir.py` loads at first use?"""
    return name.split(".")[0] in ("tvm", "tvm_ffi") or name in {f"gluongraph.codegen.tvm.tir.{n}" for n in HANDLES}


HANDLES = ("tvm", "tirx", "Lazy")


def test_tvm_is_touched_in_few_files() -> None:
    found = {str(f.relative_to(ROOT)) for f in files() if any(touches_tvm(name) for _, name in imports(f))}
    assert found <= TVM and all(hasattr(tir, name) for name in HANDLES)


def test_text_in_files_is_utf8() -> None:
    """Whatever the locale of the process is: two processes may share a cache, and names need not be ASCII."""
    wrong = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file in files()
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _opens_text(call) and "encoding" not in {k.arg for k in call.keywords}
    ]
    assert not wrong


def _opens_text(call: ast.Call) -> bool:
    """Is it a read_text, a write_text, or an open whose mode is left out or written there without a "b"?"""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("read_text", "write_text")
    mode = call.args[1] if len(call.args) > 1 else ast.Constant("r")
    text = isinstance(mode, ast.Constant) and "b" not in str(mode.value)
    return isinstance(call.func, ast.Name) and call.func.id == "open" and text


def test_the_table_would_notice() -> None:
    """The classification itself: a front end that imported a pass would be named."""
    assert part_of("gluon.nn.layers") == "front" and "passes" not in ALLOWED["front"]
    assert part_of("ops.elementwise") == "base" and part_of("passes.fuse") == "passes"
    assert part_of("compiler") == "top"


def test_importing_gluongraph_imports_no_tvm() -> None:
    """Nor what most trainings do without, which is there when it is asked for."""
    program = """
import sys, gluongraph
later = {"tvm", "tvm_ffi", *(f"gluongraph.{name}" for name in ("gluon.data", "gluon.contrib", "io", "test_utils"))}
print(sorted(later & set(sys.modules)))
print(all([gluongraph.gluon.data, gluongraph.gluon.contrib, gluongraph.gluon.model_zoo, gluongraph.io]))
print({"img", "io"} <= set(dir(gluongraph)) and gluongraph.img is gluongraph.image, hasattr(gluongraph, "thing"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True", "True", "False"]
