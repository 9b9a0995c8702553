"""Loss scaling for float16: a scaled loss, and skipped steps.

A gradient below 6e-8 is 0 in float16. So the loss is multiplied by a scale before the backward, and the gradients, in
float32 again, are divided by it. The scale is as large as possible: it is halved when a gradient is not finite, and
that step changes nothing else; it doubles after 2000 steps with finite gradients. (Micikevicius et al., Mixed Precision
Training, 2018; the numbers are those of MXNet's scaler.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ndarray import NDArray, invoke
from gluongraph.tracing.optimizer_updates import GRAD
from gluongraph.tracing.sharding import Sharding, masked

SCALE, GOOD, FINITE = "amp:scale", "amp:good", "amp:finite"
GROWTH, PATIENCE, LARGEST, SMALLEST = 2.0, 2000, 2.0**24, 2.0**-14


@dataclass(frozen=True)
class LossScale:
    """The state of a scaled loss, shared by all steps of a trainer: the scale, and the good steps since it changed."""

    scale: NDArray = field(default_factory=lambda: NDArray(np.full(1, 2.0**16, np.float32)))
    good: NDArray = field(default_factory=lambda: NDArray(np.zeros(1, np.int32)))

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return float(self.scale.asscalar())

    def accepts(self, weights: Iterable[NDArray], on_all: Callable[[bool], bool] = bool) -> bool:
        """Are the gradients of these weights finite, on all devices, and `on_all` workers? Updates the scale
        accordingly."""
        finite = on_all(all(w.grad is None or bool(np.isfinite(w.grad.storage.array).all()) for w in weights))
        scale, good = invoke(_next, self.scale, self.good, NDArray(np.array(finite)))
        self.scale.storage.write(scale.storage.array)
        self.good.storage.write(good.storage.array)
        return finite

    def progress(self) -> list[float]:
        """Return scale and count of good steps as JSON data."""
        return [self.loss_scale, int(self.good.asscalar())]

    def resume(self, progress: Sequence[float]) -> None:
        """Restore what `progress` returned."""
        for array, value in zip((self.scale, self.good), progress, strict=True):
            array.storage.write(value)

    @property
    def state(self) -> dict[str, NDArray]:
        """The arrays by the names of graph inputs."""
        return {SCALE: self.scale, GOOD: self.good}


def scaled(graph: Graph) -> tuple[Graph, Node]:
    """Return the graph with the scale as an input, and the scale as a scalar."""
    inputs = {**graph.inputs, SCALE: _SCALE}
    return Graph(inputs, graph.outputs, graph.updates, graph.origins), ops.reshape(_SCALE, ())


def unscaled(graph: Graph, ranks: int = 1) -> Graph:
    """Return the graph with its gradients divided by the scale, a power of two, which is exact.

    An additional output says whether all of them are finite, on all ranks. If not, all are set to 0: no NaN propagates,
    and no kernel computes an update, which may have to be discarded, before the flag is known.
    """
    inverse = ops.div(1.0, ops.reshape(_SCALE, ()))
    grads = {k: g * ops.cast(inverse, g.dtype) for k, g in graph.outputs.items() if k.startswith(GRAD)}
    finite = all_finite(grads.values(), ranks)
    kept = {k: ops.where(finite, g, 0.0) for k, g in grads.items()}
    return Graph(graph.inputs, {**graph.outputs, **kept, FINITE: finite}, graph.updates, graph.origins)


def all_finite(values: Iterable[Node], ranks: int = 1) -> Node:
    """Return whether every element of all values is finite, on all ranks."""
    wrong = [ops.sum(ops.where(ops.isfinite(v), 0.0, 1.0)) for v in values]
    return ops.equal(ops.allreduce(reduce(ops.add, wrong, ops.const(0.0)), ranks=ranks), 0.0)


def skipping(graph: Graph, sharding: Sharding | None = None, observing: Collection[str] = ()) -> Graph:
    """Return the graph with updates only if all gradients are finite, except those of the scale and its counter, and of
    arrays that are `observing`."""
    finite = graph.outputs[FINITE]
    graph = masked(graph, finite, sharding, observing)
    updates = dict(graph.updates)
    updates[SCALE], updates[GOOD] = _next(_SCALE, _GOOD, finite)
    return Graph({**graph.inputs, SCALE: _SCALE, GOOD: _GOOD}, graph.outputs, updates, graph.origins)


def _next(scale: Node, good: Node, finite: Node) -> tuple[Node, Node]:
    """Return the scale, and the count of good steps, after a step whose gradients were finite or not."""
    full = ops.greater_equal(good + 1, PATIENCE)
    grown = ops.where(full, ops.minimum(scale * GROWTH, LARGEST), scale)
    return (
        ops.where(finite, grown, ops.maximum(scale / GROWTH, SMALLEST)),
        ops.where(ops.logical_and(finite, ops.logical_not(full)), good + 1, 0),
    )


_SCALE = leaf(SCALE, TensorType((1,), "f32"))
_GOOD = leaf(GOOD, TensorType((1,), "i32"))
