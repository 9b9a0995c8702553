"""An entry point that is interpreted in numpy: for GG_BACKEND=reference, and GG_CHECK=nan, which checks every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.eager import nan_check
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph

Array = np.ndarray[Any, Any]


class Interpreted:
    """Runs a graph node by node in numpy, with the interface of `runtime.Executor`."""

    checks_indices = True  # by the ops' numpy implementations

    def __init__(self, graph: Graph, roles: Mapping[str, str], state: Mapping[str, Array], check: bool):
        self.graph, self.check = graph, check
        self.input_names = tuple(name for name in graph.inputs if roles[name] == "input")
        self.output_names = tuple(graph.outputs)
        self._scalars = {
            name: np.zeros(n.shape, numpy_dtype(n.dtype)) for name, n in graph.inputs.items() if roles[name] == "scalar"
        }
        self.bind(state)

    def bind(self, state: Mapping[str, Array]) -> None:
        """Use these arrays as state from now on."""
        self._state = dict(state)

    def scalar(self, name: str) -> memoryview[Any]:
        """Return the memory of a host scalar."""
        return self._scalars[name].reshape(-1).data

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once; updated state arrays are written at the end, all or none."""
        given = {**self._state, **self._scalars, **dict(zip(self.input_names, inputs, strict=True))}
        values = {name: array.reshape(self.graph.inputs[name].shape) for name, array in given.items()}
        outputs, updates = (nan_check.run if self.check else interpreter.run)(self.graph, values)
        for name, array in updates.items():
            self._state[name].reshape(array.shape)[...] = array
        return [np.array(outputs[name]) for name in self.output_names]
