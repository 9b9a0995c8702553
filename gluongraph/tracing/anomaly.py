"""detect_anomaly: a compiled step that produces a NaN or an infinity changes nothing and reports its origin.

The compiled graph has one flag more, and updates only where it is true. Where it is not, all inputs still are what they
were, and the graph without the flag is run once more, node by node in numpy, to find who is to blame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.eager import nan_check
from gluongraph.errors import NotFiniteError, located
from gluongraph.ir.graph import Graph
from gluongraph.tracing.loss_scaling import all_finite

SOUND, WATCHED = "anomaly:sound", "watched:"


def watching(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with these outputs noted under other names, for `Guard`: whoever changes the graph changes them too."""
    watched = {WATCHED + name: graph.outputs[name] for name in names}
    return graph.with_results({**graph.outputs, **watched}, graph.updates)


class Guard:
    """A graph whose updates happen only where all new values, and what is watched, are finite.

    `graph` is that graph; its output `SOUND` says whether they are.
    """

    def __init__(self, graph: Graph):
        watched = {name: n for name, n in graph.outputs.items() if name.startswith(WATCHED)}
        others = {name: n for name, n in graph.outputs.items() if name not in watched}
        told = {name.removeprefix(WATCHED): n for name, n in watched.items()}
        self._plain = graph.with_results(told, graph.updates)
        floats = [n for n in self._plain.results if is_float(n.dtype)]
        sound = all_finite(dict.fromkeys(floats))
        updates = {name: ops.where(sound, new, graph.inputs[name]) for name, new in graph.updates.items()}
        self.graph = graph.with_results({**others, SOUND: sound}, updates)

    def check(self, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Look at the flag among the results of a call with these inputs, which are as they were before it.

        Raises:
            NotFiniteError: it is false.
        """
        if results[SOUND]:
            return
        nan_check.run(self._plain, {name: inputs[name] for name in self._plain.inputs})
        message = "the compiled step has made a NaN or an infinity; computed in numpy there is none"
        raise NotFiniteError(located(message, help="a value is at the end of its range: scale down what is computed"))
