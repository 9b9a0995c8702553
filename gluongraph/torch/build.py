"""An exported program as one builder over nodes: for inputs of given shapes, the graph that PyTorch has traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.errors import DTypeError, MXNetError, ShapeError, UnsupportedError
from gluongraph.ir.graph import Node
from gluongraph.torch import aten
from gluongraph.torch.aten.context import DTYPE_NAMES, OpContext, Value, constant
from gluongraph.torch.aten.table import ATEN, IGNORED, PLACEMENT, TABLE
from gluongraph.torch.program import Program, key_of
from gluongraph.torch.tensors import to_numpy
from gluongraph.tracing.tracer import scope

assert aten.__all__  # importing it has filled the table
# What a builder raises for arguments that it does not know.
_TROUBLE = (MXNetError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, AssertionError)


def _constant_in_gradients(state: Node) -> Node:
    """What becomes of a state; whoever reads it later has no gradient with respect to what it was computed from."""
    return ops.stop_gradient(state) if is_float(state.dtype) and state.op.name != "stop_gradient" else state


class Building:
    """One run through a program's nodes.

    `wide` are the float type of the program and that which its parameters have been cast to. `sources` are states of
    random generators, with the number of a draw, each used once.
    """

    def __init__(self, program: Program, wide: tuple[str, str] | None, sources: Sequence[tuple[Node, int]]):
        self.program, self.wide, self._sources = program, wide, list(sources)

    def widened(self, dtype: str) -> str:
        """The element type that stands for the program's."""
        return self.wide[1] if self.wide and dtype == self.wide[0] else dtype

    def draw(self) -> tuple[Node, int]:
        """The state of the random generator, and the number of a draw."""
        return self._sources.pop()

    def run(self, inputs: Sequence[Node], state: Mapping[str, Node]) -> tuple[list[Node], dict[str, Node]]:
        """The results that are arrays, and the states that the program changes, by name."""
        values: dict[str, Value] = {}
        for name, (kind, what) in self.program.sources.items():
            values[name] = inputs[what] if kind == "input" else state[what] if kind == "state" else self.constant(what)
        outputs = self._graph(self.program.exported.program.graph_module, values)
        results = [outputs[i] for i in self.program.results]
        return (
            [r for r in results if isinstance(r, Node)],
            {name: _constant_in_gradients(outputs[i]) for i, name in self.program.moved.items()},
        )

    def constant(self, what: Any) -> Value:
        """An array, or a Python value, as part of the graph."""
        if not hasattr(what, "dtype"):
            return what
        made = constant(what)
        return constant(what, self.widened(made.dtype)) if self.widened(made.dtype) != made.dtype else made

    def subgraph(self, graph_module: Any, args: Sequence[Value]) -> list[Value]:
        """The results of a graph within the program."""
        placeholders = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
        return self._graph(graph_module, dict(zip(placeholders, args, strict=True)))

    def _graph(self, graph_module: Any, values: dict[str, Value]) -> list[Value]:
        """The outputs of a graph, from the values of its placeholders by name."""

        def value(argument: Any) -> Value:
            if isinstance(argument, (list, tuple)):
                return [value(a) for a in argument]
            if hasattr(argument, "op") and hasattr(argument, "graph"):  # a node of torch.fx
                return values[argument.name]
            return argument

        for node in graph_module.graph.nodes:
            if node.op == "get_attr":
                values[node.name] = getattr(graph_module, node.target)
                if hasattr(values[node.name], "is_contiguous"):
                    values[node.name] = self.constant(to_numpy(values[node.name]))
            elif node.op == "call_function":
                key = key_of(node.target)
                if key in IGNORED:
                    continue
                kwargs = {k: value(v) for k, v in node.kwargs.items() if k not in PLACEMENT and k != "dtype"}
                values[node.name] = self._call(node, key, [value(a) for a in node.args], kwargs)
            elif node.op == "output":
                made = value(node.args[0])
                return made if isinstance(made, list) else [made]
        raise AssertionError("a graph without an output")

    def _call(self, node: Any, key: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        """The result of one operator."""
        at = OpContext(self, key.removeprefix(ATEN), self._dtypes(node.meta.get("val")))
        origin = self.program.exported.origins.get(node.name)
        build: Callable[..., Value] = TABLE[key]
        with scope(origin.scope or node.name if origin else node.name, at=origin):
            try:
                return build(at, *args, **kwargs)
            except _TROUBLE as why:
                raise self._explained(node, key, [*args, *kwargs.values()], why) from why

    def _dtypes(self, value: Any) -> list[str | None]:
        """The element types of what torch.export says that a node gives."""
        values = value if isinstance(value, (list, tuple)) else [value]
        names = [DTYPE_NAMES.get(str(getattr(v, "dtype", ""))) for v in values]
        return [None if name is None else self.widened(name) for name in names]

    def _explained(self, node: Any, key: str, args: Sequence[Value], why: Exception) -> MXNetError:
        """The error of a builder, with the operator, its types, the submodule and the user's line."""
        types = ", ".join(str(a.ty) for a in args if isinstance(a, Node))
        origin = self.program.exported.origins.get(node.name)
        within = f" in {origin.scope}" if origin and origin.scope else ""
        line = f"\n  at {origin.file}:{origin.line}" if origin and origin.file else ""
        kind = next((k for k in (UnsupportedError, ShapeError, DTypeError) if isinstance(why, k)), UnsupportedError)
        text = str(why) if isinstance(why, MXNetError) else f"{type(why).__name__}: {why}"
        return kind(f"{key}({types}){within}: {text}{line}")
