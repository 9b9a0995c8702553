"""A model as one builder over nodes: for inputs of given types, the graph that the file describes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import DTYPES
from gluongraph.errors import DTypeError, FormatError, MXNetError, ShapeError, UnsupportedError, pluralize
from gluongraph.ir import interpreter
from gluongraph.ir.composite import results_of
from gluongraph.ir.graph import Node, topological
from gluongraph.mxops.layers import moved
from gluongraph.onnx import functions
from gluongraph.onnx.format.model import FunctionDef, GraphDef, NodeDef, Reference
from gluongraph.onnx.format.tensors import LARGEST
from gluongraph.onnx.operators.node_context import CONSTANTS, FOLDED, NodeContext, Value, Values, constant
from gluongraph.onnx.operators.table import Row
from gluongraph.onnx.program import Program, check_types, graphs_of
from gluongraph.tracing.tracer import scope

NODES = 1 << 20  # operators of one build: more come from a loop that is unrolled without end


class Building:
    """One run through a model's nodes, in the mode and the precision that it is built for."""

    def __init__(
        self,
        program: Program,
        training: bool,
        wide: tuple[str, str] | None = None,
        sources: Sequence[tuple[Node, int]] = (),
        frozen: frozenset[str] = frozenset(),
    ):
        self.program, self.training, self.wide, self.frozen = program, training, wide, frozen
        self.sources = list(sources)
        self.statistics: dict[str, Node] = {}
        self.held: dict[str, Node] = {}  # the parameters, by the file's names
        self.opsets: list[Mapping[str, int]] = [program.model.opsets]
        self.count = 0

    def widened(self, dtype: str) -> str:
        """The element type that stands for the file's."""
        return self.wide[1] if self.wide and dtype == self.wide[0] else dtype

    # -- graphs

    def model(self, inputs: Sequence[Node], parameters: Sequence[Node]) -> list[Node]:
        """The outputs of the whole model."""
        program, graph = self.program, self.program.model.graph
        self.held = dict(zip(program.names, parameters, strict=True))
        values: dict[str, Value] = {v.name: n for v, n in zip(program.inputs, inputs, strict=True)}
        values |= self.held
        values |= {name: constant(array, self.widened) for name, array in program.constants.items()}
        self._run(graph.nodes, values)
        return [self._output(v.name, values) for v in graph.outputs]

    def _output(self, name: str, values: Mapping[str, Value]) -> Node:
        found = values[name]
        maker = next((n.where for n in self.program.model.graph.nodes if name in n.outputs), "the model")
        if not isinstance(found, Node):
            raise UnsupportedError(f"{maker}: the output {name!r} is no array; a block gives arrays")
        if not found.ty.size:
            raise UnsupportedError(
                f"{maker}: the output {name!r} is {found.ty}, and compiled code gives no empty arrays"
            )
        return found

    def graph(self, graph: GraphDef, inputs: Sequence[Value], around: Values) -> list[Value]:
        """The outputs of a graph within another."""
        values: dict[str, Value] = {name: constant(array, self.widened) for name, array in graph.constants.items()}
        values |= {v.name: n for v, n in zip(graph.inputs, inputs, strict=True)}
        inner = ChainMap(values, around)
        self._run(graph.nodes, inner)
        return [inner[v.name] for v in graph.outputs]

    def _run(self, nodes: Sequence[NodeDef], values: Values) -> None:
        for node in nodes:
            inputs = [values[name] if name else None for name in node.inputs]
            made = self.node(node, inputs, values)
            if len(made) < len(node.outputs):
                raise FormatError(f"{node.where}: {pluralize(len(node.outputs), 'output')}; it makes {len(made)}")
            values.update({name: m for name, m in zip(node.outputs, made, strict=False) if name})

    # -- nodes

    def node(self, node: NodeDef, inputs: list[Value], values: Values) -> list[Value]:
        """The outputs of one operator."""
        self.count += 1
        if self.count > NODES:
            raise FormatError(f"{node.where}: more than {NODES} operators; loops are unrolled")
        found = self.program.find(node, self.opsets[-1])
        with scope(node.name or node.op):
            if isinstance(found, FunctionDef):
                made = self._function(node, found, inputs)
            else:
                made = self._row(node, found, inputs, values)
        for each in made:
            if isinstance(each, Node) and each.ty.size * DTYPES[each.dtype].nbytes > LARGEST:
                raise FormatError(f"{node.where}: makes an array of {each.ty}, which is too large")
        made = [_nothing(m) if isinstance(m, Node) and not m.ty.size else m for m in made]
        if graphs_of(node) or not all(i is None or (isinstance(i, Node) and i.op.name in CONSTANTS) for i in inputs):
            return made
        return [self._folded(m) for m in made]

    def _row(self, node: NodeDef, row: Row, inputs: list[Value], values: Values) -> list[Value]:
        check_types(node, row)  # those of a function's nodes are known now
        site = NodeContext(self, node, self.opsets[-1].get(node.domain, 1), values)
        try:
            return listed(row.made(site, inputs, node.attrs))
        except (UnsupportedError, FormatError):
            raise
        except (ShapeError, DTypeError) as error:
            raise type(error)(f"{node.where}: {error}") from None
        except (MXNetError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, AssertionError) as why:
            types = ", ".join(str(i.ty) if isinstance(i, Node) else "nothing" for i in inputs)
            raise FormatError(f"{node.where} on {types}: {type(why).__name__}: {why}") from why

    def _function(self, node: NodeDef, found: FunctionDef, inputs: list[Value]) -> list[Value]:
        """The outputs of an operator that is made of others."""
        if not found.nodes and not found.outputs:
            version = self.opsets[-1][node.domain]
            types = [functions.type_of(i) for i in inputs]
            found = functions.of_types(node, version, types, self.opsets[-1])
        attrs = {**{k: v for k, v in found.defaults.items() if v is not None}, **node.attrs}
        values: dict[str, Value] = dict.fromkeys(found.inputs)
        values |= dict(zip(found.inputs, inputs, strict=False))
        self.opsets.append(found.opsets)
        try:
            self._run([_filled(n, attrs) for n in found.nodes], values)
        finally:
            self.opsets.pop()
        return [values.get(name) for name in found.outputs]

    def operator(self, site: NodeContext, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        """An operator that another is made of."""
        made = self.node(NodeDef(name, "", site.node.name, ("",) * len(inputs), ("y",), attrs), list(inputs), {})
        return made[0] if len(made) == 1 else tuple(made)

    def _folded(self, value: Value) -> Value:
        """Numbers that depend on nothing but constants, computed now: shapes are made of them. Random ones, which read
        the state of their generator, are drawn at each call."""
        if not isinstance(value, Node) or value.op.name in CONSTANTS or value.ty.size > FOLDED:
            return value
        if not all(n.src or n.op.name in CONSTANTS for n in topological([value])):
            return value
        (array,) = interpreter.evaluate([value], {})
        return constant(array)

    # -- randomness and running statistics

    def draw(self, site: NodeContext) -> tuple[Node, int]:
        """The next source of random numbers."""
        if not self.sources:
            raise site.unsupported("random numbers in a graph that is built more than once")
        return self.sources.pop(0)

    def moves(self, node: NodeDef) -> bool:
        """Does training move the running statistics of this BatchNormalization?"""
        names = node.inputs[3:5]
        tracked = all(n in self.held and n in self.program.statistics for n in names)
        return self.training and tracked and not any(n in self.frozen for n in names)

    def statistic(self, name: str, batch: Node, momentum: float) -> bool:
        """Note what a running statistic becomes."""
        now = self.statistics.get(name, self.held[name])
        self.statistics[name] = moved(now, ops.cast(ops.stop_gradient(batch), now.dtype), momentum)
        return True


def listed(made: Any) -> list[Value]:
    """The results of a builder as a list; a `list` is a list of outputs, a tuple of nodes several of them."""
    if isinstance(made, Node):
        return list(results_of(made))
    return list(made)


def _nothing(x: Node) -> Node:
    """An array without elements, which need not be computed."""
    return x if x.op.name in CONSTANTS else ops.full(x.shape, 0, x.dtype)


def _filled(node: NodeDef, attrs: Mapping[str, Any]) -> NodeDef:
    """A node of a function with the attributes that the function was called with; those not given are left out."""
    filled: dict[str, Any] = {}
    for name, value in node.attrs.items():
        if isinstance(value, Reference):
            value = attrs.get(value.name)
        elif isinstance(value, GraphDef):
            value = replace(value, nodes=tuple(_filled(n, attrs) for n in value.nodes))
        if value is not None:
            filled[name] = value
    return replace(node, attrs=filled)
