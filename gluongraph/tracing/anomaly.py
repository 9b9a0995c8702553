"""detect_anomaly and error_if_nonfinite: a compiled step that produces a NaN or an infinity changes nothing and reports
its origin.

The compiled graph has an additional flag, and updates only if it is true. If it is false, all inputs are unchanged, and
the graph without the flag is run again, node by node in numpy, to find the node that produced the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.eager import nan_check
from gluongraph.errors import NotFiniteError, with_user_location
from gluongraph.ir.graph import Graph, Node
from gluongraph.tracing.loss_scaling import all_finite
from gluongraph.tracing.sharding import Sharding, final_gathers, masked, reached

SOUND, WATCHED = "anomaly:sound", "watched:"


def watching(graph: Graph, names: Iterable[str]) -> Graph:
    """Return the graph with these outputs under additional names, for `Guard`: later rewrites include them."""
    watched = {WATCHED + name: graph.outputs[name] for name in names}
    return graph.with_results({**graph.outputs, **watched}, graph.updates)


class Guard:
    """Adds a flag to a graph, without which it does not update: are all new values, and all watched outputs, finite?
    With `only`, is that output?

    `graph` is the graph with the flag, its output `SOUND`.
    """

    def __init__(self, graph: Graph, ranks: int = 1, sharding: Sharding | None = None, only: str | None = None):
        watched = {name: n for name, n in graph.outputs.items() if name.startswith(WATCHED)}
        others = {name: n for name, n in graph.outputs.items() if name not in watched}
        told = {name.removeprefix(WATCHED): n for name, n in watched.items()}
        if only is not None:
            told[only] = graph.outputs[only]
        plain = graph.with_results(told, graph.updates)
        self._plain = plain.map(_alone)
        if only is None:
            gathers = final_gathers(plain, sharding)  # to be made once the flag is known: shards are looked at instead
            later = reached(plain, gathers)
            made = [*(n for n in plain.results if n not in later), *(gather.src[0] for gather in gathers)]
            sound = all_finite(dict.fromkeys(n for n in made if is_float(n.dtype)), ranks)
        else:
            sound = ops.isfinite(graph.outputs[only])
        self.graph = masked(graph.with_results({**others, SOUND: sound}, graph.updates), sound, sharding)

    def check(self, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Check the flag among the results of a call with these inputs, which must be those before the call.

        Raises:
            NotFiniteError: it is false.
        """
        if results[SOUND]:
            return
        nan_check.run(self._plain, {name: inputs[name] for name in self._plain.inputs})
        message = "the compiled step has made a NaN or an infinity; computed in numpy, and on this rank, there is none"
        raise NotFiniteError(
            with_user_location(message, help="a value is at the end of its range: scale down what is computed")
        )


def _alone(n: Node) -> Node:
    """Return a sum over ranks as that of this rank; of a sum of which each rank has a part what is finite. What is not
    finite has been made by another rank, which says so, or is found among this rank's own gradients."""
    if n.op.name == "allreduce":
        return ops.allreduce(*n.src)
    if n.op.name == "get_tuple_element" and n.src[0].op.name == "reduce_scatter":
        return ops.where(ops.isfinite(n), n, 0.0)
    return n
