"""The numpy twin of a compiled entry point: GG_BACKEND=reference, and GG_CHECK=nan, which must see every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import reference
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import NotFiniteError
from gluongraph.ir import Graph, Node

Array = np.ndarray[Any, Any]


class Interpreted:
    """Runs a graph node by node in numpy, with the interface of `runtime.Executor`."""

    def __init__(self, graph: Graph, roles: Mapping[str, str], state: Mapping[str, Array], check: bool):
        self.graph, self.check = graph, check
        self.input_names = tuple(name for name in graph.inputs if roles[name] == "input")
        self.output_names = tuple(graph.outputs)
        self._scalars = {
            name: np.zeros(n.shape, numpy_dtype(n.dtype)) for name, n in graph.inputs.items() if roles[name] == "scalar"
        }
        self.bind(state)

    def bind(self, state: Mapping[str, Array]) -> None:
        """Read and write these arrays from now on."""
        self._state = dict(state)

    def scalar(self, name: str) -> memoryview[Any]:
        """The memory of one host scalar."""
        return self._scalars[name].reshape(-1).data

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once; the updated state arrays are written at the end, all or none."""
        given = {**self._state, **self._scalars, **dict(zip(self.input_names, inputs, strict=True))}
        values = {name: array.reshape(self.graph.inputs[name].shape) for name, array in given.items()}
        outputs, updates = reference.run(self.graph, values, watch=self._watch if self.check else None)
        for name, array in updates.items():
            self._state[name].reshape(array.shape)[...] = array
        return [np.array(outputs[name]) for name in self.output_names]

    def _watch(self, n: Node, value: Any) -> None:
        """Raise at the first node that makes a NaN out of none."""
        parts = value if isinstance(value, tuple) else (value,)
        if n.op.kind == "leaf" or not any(p.dtype.kind == "f" and np.isnan(p).any() for p in parts):
            return
        origin = self.graph.origins.get(n)
        sources = ", ".join(str(s.type) for s in n.src)
        where = f"\n  made by {origin.scope or 'the step'} at {origin.file}:{origin.line}" if origin else ""
        raise NotFiniteError(
            f"{n.op.name}({sources}) made a NaN{where}\n"
            "  help: look at this op's inputs; a smaller learning rate, clip_gradient or a guard before log, sqrt and"
            " division are the usual cures"
        )
