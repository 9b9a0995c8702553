"""What ops mean, as functions of an ONNX file: by them a runtime that knows none of ours computes a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gluongraph.errors import UnsupportedError
from gluongraph.ir.graph import OPS, Graph, Node, attr_key, node
from gluongraph.onnx.export.rules.extents import Pairs
from gluongraph.onnx.export.rules.view import View, opened
from gluongraph.onnx.export.writer import Names, Writer
from gluongraph.onnx.format.package import onnx

_FIRST = ("get_tuple_element", "depends_on")  # ops whose result is the value that they read first


class Functions:
    """The functions of one file: one for an op on certain types with certain attributes.

    `matmul.2` is the second of those of matmul. An op that no standard operators say is called by its own name.
    """

    def __init__(self, domain: str, opset: int):
        self.domain, self.opset = domain, opset
        self.protos: list[Any] = []
        self._names: dict[tuple[Any, ...], str] = {}
        self._count = Counter[str]()

    def name(self, n: Node, attributes: Sequence[str]) -> str:
        """What the operator of a node is called, which has these attributes."""
        attrs = tuple((name, attr_key(value)) for name, value in sorted(n.attrs.items()))
        key = (n.op.name, attrs, tuple(s.types for s in n.src), n.types, tuple(attributes))
        if key not in self._names:
            wanted = f"{n.op.name}.{self._count[n.op.name] + 1}"
            proto = self._function(n, wanted, attributes)
            if proto is not None:
                self._count[n.op.name] += 1
                self.protos.append(proto)
            self._names[key] = wanted if proto is not None else n.op.name
        return self._names[key]

    def _function(self, n: Node, name: str, attributes: Sequence[str]) -> Any:
        """The function of a node; None where there are no operators for it."""
        helper = onnx("helper")
        inputs = [f"x{i}" for i in range(len(n.src))]
        if n.op.name in _FIRST:
            outputs, body = ["y0"], [helper.make_node("Identity", inputs[:1], ["y0"])]
        else:
            try:
                outputs, body = _body(n, inputs)
            except UnsupportedError:
                return None
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_function(self.domain, name, inputs, outputs, body, opsets, list(attributes))


def op_of(name: str) -> str:
    """The op that an operator of the file is.

    >>> op_of("matmul.2"), op_of("random_bits")
    ('matmul', 'random_bits')
    """
    return name.partition(".")[0]


def _body(n: Node, inputs: Sequence[str]) -> tuple[list[str], list[Any]]:
    """Names of the results, and the operators that compute them."""
    leaves = {name: node(OPS["input"], (), {"name": name}, type=s.ty) for name, s in zip(inputs, n.src, strict=True)}
    alone = n.on(tuple(leaves.values()))
    several = len(n.types) > 1
    results = (
        [node(OPS["get_tuple_element"], (alone,), {"index": k}) for k in range(len(n.types))] if several else [alone]
    )
    graph = opened(Graph(leaves, {f"y{k}": result for k, result in enumerate(results)}), {})
    view = View(graph, Pairs({}), {})
    view.check()
    writer = Writer(view, Names(inputs), None)
    for name, leaf in leaves.items():
        writer.leaf(leaf, name)
    writer.write(tuple(graph.outputs.values()))
    outputs = [writer.result(result, name).name for name, result in graph.outputs.items()]
    constants = [onnx("helper").make_node("Constant", [], [t.name], value=t) for t in writer.initializers]
    return outputs, [*constants, *writer.protos]
