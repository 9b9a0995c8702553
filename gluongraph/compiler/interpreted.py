"""An entry point that is interpreted in numpy: for GG_BACKEND=reference, and GG_CHECK=nan, which checks every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.eager import nan_check
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.ops import index_checks
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.environment import world

Array = np.ndarray[Any, Any]


def has_collectives(graph: Graph) -> bool:
    """Do ranks exchange values in this graph?"""
    return any(n.op.kind == "collective" or n.attrs.get("ranks", 1) > 1 for n in graph.nodes())


class Interpreted:
    """Runs a graph node by node in numpy, with the interface of `runtime.Executor`."""

    checks_indices = True  # by the ops' numpy implementations

    def __init__(
        self,
        graph: Graph,
        roles: Mapping[str, str],
        state: Mapping[str, Array],
        check: bool,
        text: Callable[[], str],
    ):
        """`text` tells what all ranks must have in common, where the graph communicates."""
        self.graph, self.check = graph, check
        self.communicates = has_collectives(graph)
        self._agreement = Agreement(world(), text()) if self.communicates else None
        self._flag = index_checks.flagged(graph).outputs.get(INDEX_FLAG)
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
        if self._agreement is not None and not self._agreement(failed=self._refuses(values)):
            index_checks.raise_error(self.graph, values)
        outputs, updates = (nan_check.run if self.check else interpreter.run)(self.graph, values)
        for name, array in updates.items():
            self._state[name].reshape(array.shape)[...] = array
        return [np.array(outputs[name]) for name in self.output_names]

    def _refuses(self, values: Mapping[str, Array]) -> bool:
        """Is an index out of range? Other ranks have to know before the first collective."""
        if self._flag is None:
            return False
        given = {n: np.asarray(values[name]) for name, n in self.graph.inputs.items() if name in values}
        return bool(interpreter.evaluate([self._flag], given)[0])
