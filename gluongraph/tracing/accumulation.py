"""Gradient accumulation over several batches: `accumulate` adds to it, `apply` updates by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ndarray import NDArray, zeros
from gluongraph.optimizer.base import computed_in
from gluongraph.tracing.optimizer_updates import GRAD, joined
from gluongraph.tracing.trainer import Trainer

WINDOW = "window:"


class GradientAccumulator:
    """One accumulator for each replica of a parameter, in float32 or float64; all are 0 after an update.

    Parameters with grad_req "add" are accumulated in `grad()`, which the user resets; here only their names are
    recorded.
    """

    def __init__(self) -> None:
        self.batches = 0  # number of batches that have been added, including skipped ones
        self.samples = 0.0
        self.sums: dict[str, NDArray] = {}  # replica -> the sum of its gradients
        self.names: tuple[str, ...] = ()  # the replicas that have accumulated gradients, in order of their first batch

    def add(self, names: Iterable[str], samples: float) -> None:
        """Record a batch that has been added to the sums of these replicas."""
        self.names = tuple(dict.fromkeys((*self.names, *names)))
        self.batches += 1
        self.samples += samples

    def resume(self, names: Iterable[str], batches: int, samples: float) -> None:
        """Continue with sums that have been restored."""
        self.names, self.batches, self.samples = tuple(names), batches, samples

    @property
    def live(self) -> dict[str, NDArray]:
        """The sums of the replicas that have accumulated gradients."""
        return {name: self.sums[name] for name in self.names if name in self.sums}

    def begin(self) -> None:
        """Start a new accumulation after an update, which has reset the accumulators to 0."""
        self.batches, self.samples, self.names = 0, 0.0, ()

    def clear(self) -> None:
        """Reset the accumulators to 0, and start a new accumulation."""
        for array in self.sums.values():
            array.storage.write(0)
        self.begin()

    def inputs(self, trainer: Trainer, names: Sequence[str]) -> dict[str, NDArray]:
        """Return the sums of these replicas by the names of graph inputs; allocate those that do not exist yet."""
        for name in names:
            weight = trainer.replica(name)
            if name not in self.sums or self.sums[name].shape != weight.shape:
                dtype = "f64" if computed_in(weight.type.dtype) == "f64" else "f32"
                self.sums[name] = zeros(TensorType(weight.shape, dtype), weight.context)
        return {WINDOW + name: self.sums[name] for name in names}

    def adding(self, graph: Graph, names: Sequence[str]) -> Graph:
        """Return the graph with the gradients of these replicas added to their sums, instead of being outputs."""
        sums = {WINDOW + name: leaf(WINDOW + name, self.sums[name].type) for name in names}
        totals = {
            key: old + ops.cast(graph.outputs[GRAD + key.removeprefix(WINDOW)], old.dtype) for key, old in sums.items()
        }
        outputs = {key: n for key, n in graph.outputs.items() if not key.startswith(GRAD)}
        return Graph(joined(graph.inputs, sums), outputs, {**graph.updates, **totals}, graph.origins)

    def gradients(self, weights: Mapping[str, NDArray], added: Mapping[str, NDArray]) -> Graph:
        """Return a graph whose gradients are the sums of these replicas; `added` are the sums of those with grad_req
        "add"."""
        inputs: dict[str, Node] = {name: leaf(name, weight.type) for name, weight in weights.items()}
        outputs: dict[str, Node] = {}
        for name in weights:
            key, array = (GRAD + name, added[name]) if name in added else (WINDOW + name, self.sums[name])
            outputs[GRAD + name] = inputs[key] = leaf(key, array.type)
        return Graph(inputs, outputs, {})

    def emptied(self, graph: Graph) -> Graph:
        """Return the graph with updates that reset the accumulators it reads to 0."""
        empty = {name: ops.zeros(n.ty) for name, n in graph.inputs.items() if name.startswith(WINDOW)}
        return graph.with_results(graph.outputs, {**graph.updates, **empty})
