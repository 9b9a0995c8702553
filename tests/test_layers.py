"""Imports run one way, by a table of folders. TVM is touched in four files."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import networkx as nx
import pytest

from gluongraph.codegen.tvm import tir

ROOT = pathlib.Path(__file__).parent.parent

# What every folder may import, and top-level modules with it; each may import those before it.
GROUND = ("errors", "ranges", "debug", "storage", "dtypes", "host", "context", "ir")
# Folder, or module at the top -> what it may import beside the ground; each stands below all that may import it.
ALLOWED: dict[str, str] = {
    "ops": "",
    # -- arrays
    "mxops": "ops",
    "eager": "ops",
    "ndarray": "ops mxops eager",
    "autograd": "mxops eager ndarray",
    "random": "ops eager ndarray",
    "image": "mxops eager ndarray",
    "recordio": "image",
    "profiler": "eager ndarray",
    "metric": "ndarray",
    "util": "",
    "base": "",
    "name": "",
    "attribute": "",
    # -- the compiler
    "passes": "ops",
    "codegen": "ops",
    "runtime": "",
    "compiler": "ops eager passes codegen runtime",
    # -- training
    "formulas": "",
    "lr_scheduler": "formulas",
    "optimizer": "ops formulas lr_scheduler ndarray autograd random",
    "kvstore": "ops eager runtime ndarray autograd random optimizer",
    "tracing": "ops mxops eager ndarray optimizer kvstore",
    # -- what programs see
    "nd": "ops mxops eager ndarray random image util optimizer tracing",
    "symbol": "mxops eager ndarray nd tracing",
    "model": "ndarray nd symbol",
    "operator": "eager ndarray autograd nd symbol",
    "amp": "ops mxops eager nd tracing",
    "contrib": "ndarray autograd nd amp",
    "initializer": "ndarray random nd",
    "gluon": "ops runtime mxops eager ndarray autograd random image recordio metric name optimizer kvstore tracing nd"
    " symbol contrib initializer",
    "gluongraph": "amp attribute autograd contrib gluon initializer kvstore lr_scheduler metric nd optimizer random"
    " util",
    "onnx": "ops mxops eager ndarray autograd random initializer optimizer tracing nd gluon",
    "torch": "ops mxops eager ndarray random initializer optimizer tracing gluon",
    "io": "ndarray image recordio nd gluon",
    "mxnet": "ndarray symbol gluon",
    "test_utils": "ndarray autograd random optimizer nd symbol util gluon gluongraph io",
    # -- compiled steps
    "checkpoint": "runtime eager ndarray autograd random lr_scheduler tracing gluon gluongraph",
    "step": "codegen runtime compiler ndarray random optimizer tracing nd gluon checkpoint",
    "artefact": "ops codegen runtime ndarray random formulas lr_scheduler optimizer tracing initializer gluon"
    " gluongraph checkpoint step",
    "bench": "runtime compiler autograd nd gluon gluongraph step",
    "distributed": "runtime compiler kvstore gluon step",
    "lightning": "runtime eager ndarray autograd random optimizer tracing nd gluon torch io checkpoint step",
    "cli": "ops codegen runtime compiler tracing bench",
    "__main__": "cli",
}
# What is imported from below, within a function: a method or a name of theirs that stands on what is above them.
LATE = {
    "ndarray": "autograd nd",  # NDArray.backward, tostype, attach_grad(stype="row_sparse")
    "profiler": "symbol",  # the names that MXNet gives to operators
    "kvstore": "tracing",  # is a formula one of elements? Graphs with updates stand on stores
    "nd": "operator",  # nd.Custom
    "gluon": "onnx torch",  # HybridBlock.export(format="onnx"), Trainer.from_torch
    "step": "artefact onnx torch",  # TrainStep.export, export_onnx; a loss of PyTorch's
    "base": "host",
    "artefact": "compiler",
    "lightning": "compiler",
    # Commands that train nothing need not wait for them.
    "cli": "artefact distributed gluon gluongraph lightning nd onnx random step",
}
# What annotations alone name.
NAMED = {
    "gluongraph": "image io name operator profiler recordio symbol test_utils",
    "eager": "ndarray tracing",
    "checkpoint": "step",
    "cli": "distributed",
}
TVM = {f"codegen/tvm/{name}.py" for name in ("tir", "machine_code", "merging", "llvm_options", "te")} | {
    "runtime/loader.py"
}  # who touches it


class Import(NamedTuple):
    """An import: where, what, and whether it happens with the module, in a function, or for annotations alone."""

    line: int
    name: str
    when: str  # "first", "late" or "never"


def files() -> list[pathlib.Path]:
    folders = ("gluongraph", "passes", "codegen", "runtime")
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def module_of(file: pathlib.Path) -> str:
    """Its dotted name, below gluongraph."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__").removeprefix("gluongraph").removeprefix(".")


MODULES = {module_of(file): file for file in files()}


def folder_of(module: str) -> str:
    """The row of the table that a module belongs to; `mx` itself has one, too."""
    return module.split(".")[0] or "gluongraph"


@cache
def imports(file: pathlib.Path) -> tuple[Import, ...]:
    """Everything that is imported, of this project without "gluongraph."."""
    return tuple(_imports(ast.parse(file.read_text(encoding="utf-8")), "first"))


def _imports(node: ast.AST, when: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        then = when
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            then = "late"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            then = "never"
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, then) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: relative import"
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield Import(child.lineno, whole, then)
        yield from _imports(child, then)


def module_named(name: str) -> str | None:
    """The module of this project that an imported name is, or lies in."""
    if name != "gluongraph" and not name.startswith("gluongraph."):
        return None
    own = name.removeprefix("gluongraph").removeprefix(".")
    return own if own in MODULES else own.rpartition(".")[0]


def may_import(folder: str, when: str) -> set[str]:
    """What a folder may import: the ground, or what of it comes before, and what the tables say."""
    ground = GROUND[: GROUND.index(folder)] if folder in GROUND else GROUND
    rows = [ALLOWED.get(folder, "")]
    if when != "first":
        rows.append(LATE.get(folder, ""))
    if when == "never":
        rows.append(NAMED.get(folder, ""))
    return {folder, *ground, *" ".join(rows).split()}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    folder = folder_of(module)
    wrong = [
        f"line {each.line}: {folder} imports {each.name}"
        for each in imports(MODULES[module])
        if (other := module_named(each.name)) is not None and folder_of(other) not in may_import(folder, each.when)
    ]
    assert not wrong


def test_folders_stand_on_those_before_them() -> None:
    """So there is no circle of folders; the table has every folder, and nothing that is not needed."""
    order = [*GROUND, *ALLOWED]
    for number, folder in enumerate(order):
        assert may_import(folder, "first") - {folder} <= set(order[:number]), folder


@pytest.mark.parametrize(("table", "when"), [(ALLOWED, "first"), (LATE, "late"), (NAMED, "never")])
def test_nothing_is_allowed_that_is_not_needed(table: dict[str, str], when: str) -> None:
    needed: dict[str, set[str]] = {folder: set() for folder in (*GROUND, *ALLOWED)}
    for module, file in MODULES.items():
        others = (module_named(each.name) for each in imports(file) if each.when == when)
        needed[folder_of(module)] |= {folder_of(other) for other in others if other is not None}
    assert {k: left for k, names in table.items() if (left := set(names.split()) - needed[k])} == {}


def test_modules_import_one_another_in_no_circle() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, file in MODULES.items():
        others = (module_named(each.name) for each in imports(file) if each.when == "first")
        graph.add_edges_from((module, other) for other in others if other is not None and other != module)
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


def touches_tvm(name: str) -> bool:
    """Is what is imported TVM, by itself or as the modules that `codegen/tvm/tir.py` loads at first use?"""
    return name.split(".")[0] in ("tvm", "tvm_ffi") or name in {f"gluongraph.codegen.tvm.tir.{n}" for n in HANDLES}


HANDLES = ("tvm", "tirx", "tvm_ffi", "LazyModule")


def test_tvm_is_touched_in_few_files() -> None:
    found = {str(f.relative_to(ROOT)) for f in files() if any(touches_tvm(each.name) for each in imports(f))}
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
    """A front end that imported a pass, and a pass that imported a kernel."""
    assert module_named("gluongraph.passes.fuse.fuse") == "passes.fuse" and folder_of("passes.fuse") == "passes"
    assert "passes" not in may_import("gluon", "late") and "codegen" not in may_import("passes", "never")
    assert "tracing" in may_import("eager", "never") and "tracing" not in may_import("eager", "late")


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
