"""A model made ready: its operators found, its arrays sorted into parameters and constants."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.errors import FormatError, UnsupportedError, pluralize
from gluongraph.onnx import functions
from gluongraph.onnx.format.model import FunctionDef, GraphDef, Model, NodeDef, ValueDef
from gluongraph.onnx.format.package import NEWEST, OLDEST
from gluongraph.onnx.operators import find
from gluongraph.onnx.operators.table import KINDS, Row
from gluongraph.onnx.trained import Trained, trained_arrays
from gluongraph.storage import Array

SHAPE_ONLY = frozenset({"Shape", "Size"})  # operators that read no numbers of their input
DRAWING = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})
DROPPING = frozenset({"Dropout"})  # those that draw in training only


class Program:
    """What a block needs of a model.

    `parameters` are the arrays that are trained, and running statistics, by the names that they have as parameters;
    `constants` all others. `inputs` are the inputs that are left when those in `fixed` have become constants.
    `deciding` names those whose numbers decide shapes. `statistics` are the file's names of running statistics.
    """

    def __init__(self, model: Model, fixed: Mapping[str, Any], trained: Trained | None = None):
        self.model = model
        graph = model.graph
        self._check_operators(graph.nodes, model.opsets, ())
        by_name = {v.name: v for v in graph.inputs}
        if missing := [name for name in fixed if name not in by_name]:
            have = ", ".join(by_name) or "none"
            raise FormatError(f"{model.what} has no input {missing[0]!r} that could be fixed; there are {have}")
        self.inputs = tuple(v for v in graph.inputs if v.name not in fixed)
        for value in (*self.inputs, *graph.outputs):
            if value.sequence:
                op = next((n.op for n in graph.nodes if value.name in (*n.inputs, *n.outputs)), "no operator")
                what = f"{model.what}: {value.name!r} of {op}"
                raise UnsupportedError(f"{what} is a sequence of arrays; a block takes and gives arrays")
        given = {name: fixed_array(numbers, by_name[name]) for name, numbers in fixed.items()}
        known = self.known_ahead(graph.nodes, (), model.opsets)
        self.deciding = tuple(v.name for v in self.inputs if v.name in known)
        floats = [n for n, a in graph.constants.items() if is_float(dtype_name(a.dtype)) and a.size and n not in known]
        names = named(floats)
        self.statistics = tuple(dict.fromkeys(_statistics(graph.nodes, names)))
        held = trained_arrays(model, names, trained).union(self.statistics)
        self.names = {n: called for n, called in names.items() if n in held}  # in the file -> the parameter's
        self.parameters = {called: graph.constants[n] for n, called in self.names.items()}
        self.constants = {**{n: a for n, a in graph.constants.items() if n not in held}, **given}
        used = [n.op for n in everywhere(graph.nodes)]
        for function in model.functions.values():
            used += [n.op for n in everywhere(function.nodes)]
        self.draws = sum(op in DRAWING for op in used)
        self.drops = sum(op in DROPPING for op in used)

    # -- operators

    def find(self, node: NodeDef, opsets: Mapping[str, int]) -> Row | FunctionDef:
        """What makes a node.

        Raises:
            FormatError: the file says no version of the node's domain.
            UnsupportedError: nothing does.
        """
        if (function := self.model.functions.get((node.domain, node.op))) is not None:
            return function
        version = opsets.get(node.domain)
        if version is None:
            raise FormatError(f"{node.where}: the file imports no version of the domain {node.domain!r}")
        if not node.domain and version < OLDEST:
            if not functions.unchanged(node, version, OLDEST):
                what = f"there is no such operator here (opset {version}; known are {OLDEST} to {NEWEST})"
                raise UnsupportedError(f"{node.where}: {what}")
            version = OLDEST
        found = find(node.domain, node.op, version)
        if found is None and (body := functions.plain(node, version)) is not None:
            return body
        if found is None and not functions.depends(node, version):
            raise UnsupportedError(f"{node.where}: there is no such operator here (opset {version})")
        return found or FunctionDef(node.domain, node.op, (), (), (), {}, opsets)

    def _check_operators(
        self, nodes: Sequence[NodeDef], opsets: Mapping[str, int], around: tuple[tuple[str, str], ...]
    ) -> None:
        """Refuse, before anything is built, what cannot be."""
        for node in everywhere(nodes):
            found = self.find(node, opsets)
            if isinstance(found, Row):
                self._check_form(node, found)
                continue
            key = (found.domain, found.name)
            if key in around:
                raise FormatError(f"{node.where}: the function calls itself")
            self._check_operators(found.nodes, found.opsets, (*around, key))

    @staticmethod
    def _check_form(node: NodeDef, row: Row) -> None:
        if strange := [a for a in node.attrs if a not in row.kinds]:
            what = f"{strange[0]}={_brief(node.attrs[strange[0]])}"
            raise UnsupportedError(f"{node.where}: attribute {what} is not known")
        check_types(node, row)
        most = len(row.inputs) if not any(i.startswith("*") for i in row.inputs) else len(node.inputs)
        if not row.least <= len(node.inputs) <= most or "" in node.inputs[: row.least]:
            raise FormatError(f"{node.where}: {pluralize(len(node.inputs), 'input')}; it takes {', '.join(row.inputs)}")

    # -- numbers that decide shapes

    def known_ahead(self, nodes: Sequence[NodeDef], wanted: Iterable[str], opsets: Mapping[str, int]) -> set[str]:
        """The values whose numbers are read when the graph is built, and those that these are computed from."""
        needed = set(wanted)
        for node in reversed(nodes):
            found = self.find(node, opsets)
            within = any(o in needed for o in node.outputs)
            for graph in graphs_of(node):
                ends = [v.name for v in graph.outputs] if within else []
                needed |= self.known_ahead(graph.nodes, ends, opsets)
            if isinstance(found, FunctionDef):
                ends = [o for o, name in zip(found.outputs, node.outputs, strict=False) if name in needed]
                inner = self.known_ahead(found.nodes, ends, found.opsets)
                needed |= {name for i, name in zip(found.inputs, node.inputs, strict=False) if i in inner}
            else:
                needed |= {name for k, name in enumerate(node.inputs) if found.is_static(k)}
                if within and node.op not in SHAPE_ONLY:
                    needed.update(node.inputs)
        return needed - {""}


def check_types(node: NodeDef, row: Row) -> None:
    """Raise for an attribute that is of another type than its operator takes."""
    if name := row.misfit(node.attrs):
        what = f"{name}={_brief(node.attrs[name])}"
        raise FormatError(f"{node.where}: attribute {what} is no {KINDS[row.kinds[name]].words}")


def fixed_array(numbers: Any, value: ValueDef) -> Array:
    """What an input is fixed to, in its element type."""
    array = np.asarray(numbers.asnumpy() if hasattr(numbers, "asnumpy") else numbers)
    return array.astype(numpy_dtype(value.dtype)) if value.dtype else array


def _statistics(nodes: Sequence[NodeDef], arrays: Collection[str]) -> Iterator[str]:
    """The file's names of running means and variances."""
    for node in nodes:
        if node.op == "BatchNormalization" and not node.domain and len(node.inputs) == 5:
            mean, var = node.inputs[3:]
            if mean in arrays and var in arrays:
                yield from (mean, var)


def graphs_of(node: NodeDef) -> list[GraphDef]:
    """The graphs among a node's attributes."""
    return [a for a in node.attrs.values() if isinstance(a, GraphDef)]


def everywhere(nodes: Sequence[NodeDef]) -> Iterator[NodeDef]:
    """All nodes, those of graphs within too."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from everywhere(graph.nodes)


def named(arrays: Collection[str]) -> dict[str, str]:
    """Names for parameters: the file's, with what is no letter, digit, point or underscore made an underscore.

    >>> named(["layer.0.weight", "dense/kernel:0", "dense.kernel:0"])
    {'layer.0.weight': 'layer.0.weight', 'dense/kernel:0': 'dense_kernel_0', 'dense.kernel:0': 'dense.kernel_0'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in arrays:
        plain = wanted = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "_"
        number = 0
        while wanted in taken:
            number += 1
            wanted = f"{plain}_{number}"
        taken.add(wanted)
        found[name] = wanted
    return found


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
