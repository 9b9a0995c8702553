"""What a test of MXNet's needs that is not part of gluongraph, told from the test's source alone.

A test needs what its function names, and what the functions and classes of its file that it names need. Nothing is run,
so whether a test passes has no part in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# What names of MXNet say of a test, by the beginning of their full name; the first line that fits one is taken.
NEEDS: dict[str, tuple[str, ...]] = {
    "mx.np": (
        "mxnet.np", "mxnet.npx", "mxnet.numpy", "mxnet.numpy_extension", "mxnet.numpy_dispatch_protocol",
        "mxnet.numpy_op_signature", "mxnet.util.use_np", "mxnet.test_utils.use_np", "mxnet.use_np",
        "mxnet.test_utils.check_gluon_hybridize_consistency", "mxnet.util._NumpyArrayScope",
    ),
    "symbols": (
        "mxnet.sym", "mxnet.symbol", "mxnet.mod", "mxnet.module", "mxnet.model.FeedForward", "mxnet.executor",
        "mxnet.rnn", "mxnet.viz", "mxnet.visualization", "mxnet.AttrScope", "mxnet.attribute", "mxnet.name",
        "mxnet.mon", "mxnet.contrib.svrg_optimization", "mxnet.contrib.sym", "mxnet.contrib.symbol",
        "mxnet.test_utils.check_symbolic_forward", "mxnet.test_utils.check_symbolic_backward",
        "mxnet.test_utils.check_numeric_gradient", "mxnet.test_utils.check_consistency",
        "mxnet.test_utils.check_speed", "mxnet.test_utils.simple_forward", "mxnet.autograd.get_symbol", "models",
        "mxnet_predict",
    ),
    "sparse storage": (
        "mxnet.nd.sparse", "mxnet.ndarray.sparse", "mxnet.nd.cast_storage", "mxnet.nd.contrib.dgl_",
        "mxnet.test_utils.rand_sparse_ndarray", "mxnet.test_utils.create_sparse_array",
    ),
    "a GPU": ("mxnet.gpu", "mxnet.rtc"),
    "C library": ("mxnet.base._LIB", "mxnet.base.check_call"),
}  # fmt: skip
# Words of a test, whatever they belong to: methods of arrays and symbols, names of storage.
ATTRIBUTES = {"simple_bind": "symbols", "bind": "symbols", "as_np_ndarray": "mx.np", "tostype": "sparse storage"}
STRINGS = {"row_sparse": "sparse storage", "csr": "sparse storage"}
# What `from mxnet.test_utils import *` brings along counts as that module's.
STARRED = ("mxnet.test_utils", "mxnet.autograd")


def needs(folder: Path) -> dict[tuple[str, str], str]:
    """(file, name of a test) -> the first of `NEEDS` that it has; tests that need none of them are left out."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("test_*.py")):
        source = _Source(ast.parse(path.read_text(encoding="utf-8")))
        for name in source.tests():
            if (need := source.need(name)) is not None:
                found[path.name, name] = need
    return found


class _Source:
    """A file of tests: what its names mean, and which of its functions name which."""

    def __init__(self, tree: ast.Module):
        self.meaning: dict[str, str] = {}
        self.starred: list[str] = []
        self.defined: dict[str, ast.AST] = {}
        for node in tree.body:
            for each in ast.walk(node) if isinstance(node, (ast.If, ast.Try)) else [node]:
                self._bind(each)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.defined[node.targets[0].id] = node

    def tests(self) -> Iterator[str]:
        """The names of functions that are tests, and of methods as Class::method."""
        for name, node in self.defined.items():
            if isinstance(node, ast.FunctionDef) and name.startswith("test"):
                yield name
            elif isinstance(node, ast.ClassDef):
                methods = (m.name for m in node.body if isinstance(m, ast.FunctionDef))
                yield from (f"{name}::{m}" for m in methods if m.startswith("test"))

    def need(self, test: str) -> str | None:
        """The first of `NEEDS` that a test has."""
        found: set[str] = set()
        seen: set[str] = set()
        pending = [test.split("::")[0]]
        while pending:
            name = pending.pop()
            if name in seen or name not in self.defined:
                continue
            seen.add(name)
            words = set(self._words(self.defined[name]))
            found |= {need for word in words if (need := _need_of(word)) is not None}
            pending += sorted(words)
        return next((need for need in NEEDS if need in found), None)

    def _words(self, node: ast.AST) -> Iterator[str]:
        """Full dotted names, names of attributes as .name, and texts in quotes."""
        meaning = dict(self.meaning)
        for each in ast.walk(node):
            meaning |= _imports(each)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute):
                yield "." + each.attr
                if dotted := _dotted(each):
                    root, _, rest = dotted.partition(".")
                    yield f"{meaning.get(root, root)}.{rest}"
            elif isinstance(each, ast.Name):
                yield each.id
                yield meaning.get(each.id, each.id)
                if each.id not in self.defined and each.id not in meaning:
                    yield from (f"{module}.{each.id}" for module in self.starred)
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield f"'{each.value}'"

    def _bind(self, node: ast.AST) -> None:
        self.meaning |= _imports(node)
        if isinstance(node, ast.ImportFrom) and node.module in STARRED and node.names[0].name == "*":
            self.starred.append(node.module)
            self.meaning["mx"] = "mxnet"


def _imports(node: ast.AST) -> dict[str, str]:
    """The names that an import binds -> what they stand for."""
    if isinstance(node, ast.Import):
        return {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names if a.name != "*"}
    return {}


def _dotted(node: ast.expr) -> str:
    """a.b.c as a text; nothing if it begins with something else than a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _need_of(word: str) -> str | None:
    if word.startswith("."):
        return ATTRIBUTES.get(word[1:])
    if word.startswith("'"):
        return STRINGS.get(word[1:-1])
    for need, names in NEEDS.items():
        if any(word == n or word.startswith(n + ".") or (n.endswith("_") and word.startswith(n)) for n in names):
            return need
    return None
