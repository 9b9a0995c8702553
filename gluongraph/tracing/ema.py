"""Exponential moving averages of the weights, as part of the step that updates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.base import MASTER, computed_in
from gluongraph.storage import Array
from gluongraph.tracing.optimizer_updates import SCALAR, joined, state_name
from gluongraph.tracing.trainer import Trainer

AVERAGE, DECAY, REST = "average:", f"{SCALAR}average_decay", f"{SCALAR}average_rest"


class AveragedWeights(Mapping[str, NDArray]):
    """average = decay average + (1 - decay) weight, after each update; the first average is the first weight.

    A mapping by the names of the parameters that the step has updated. `decay` may be changed between steps.

    Averages are float32 or float64; for float16 weights with master weights they are of the master weights. Polyak,
    Juditsky: Acceleration of stochastic approximation by averaging (1992), with the weights of Tarvainen, Valpola: Mean
    teachers (2017).
    """

    def __init__(self, decay: float):
        self.decay = decay
        self._arrays: dict[str, NDArray] = {}
        self.shown = False  # are the averages stored in place of the weights?

    def __getitem__(self, name: str) -> NDArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def scalars(self) -> dict[str, float]:
        """The scalars of a step, by the names of graph inputs; 1 - decay is computed in float64."""
        return {DECAY: self.decay, REST: 1.0 - self.decay}

    def inputs(self, trainer: Trainer, owners: Sequence[str]) -> dict[str, NDArray]:
        """Return the averages of the parameters among these replicas, by the names of graph inputs."""
        names = [name for name in owners if name in trainer.exchange.replicas]
        for name in names:
            weight = trainer.replica(name)
            if name not in self or self[name].shape != weight.shape:
                wide = "float64" if computed_in(weight.type.dtype) == "f64" else "float32"
                self._arrays[name] = NDArray(_exact(trainer, name).asnumpy().astype(wide), weight.context)
        return {AVERAGE + name: self[name] for name in names}

    def put(self, trainer: Trainer, values: Mapping[str, Array]) -> None:
        """Restore these averages; those of other parameters are set to the weights."""
        self.inputs(trainer, [name for name in trainer.names if name in values])
        for name, array in self.items():
            array.storage.write(values[name] if name in values else _exact(trainer, name).asnumpy())

    def follow(self, trainer: Trainer, decay: float) -> None:
        """Let the averages follow the weights of now once, outside a step: 0 copies them."""
        for name, array in self.items():
            old = array.asnumpy()
            new = _exact(trainer, name).asnumpy().astype(old.dtype)
            array.storage.write((old.dtype.type(decay) * old + old.dtype.type(1.0 - decay) * new).astype(old.dtype))

    def following(self, graph: Graph) -> Graph:
        """Return the graph with updates of the averages of the weights that it updates."""
        scalars = {name: leaf(name, TensorType((), "f32")) for name in self.scalars}
        inputs, updates = {**graph.inputs, **scalars}, dict(graph.updates)
        for name, array in self.items():
            if name not in graph.updates:
                continue
            old = leaf(AVERAGE + name, array.type)
            inputs = joined(inputs, {AVERAGE + name: old})
            new = graph.updates.get(state_name(name, MASTER), graph.updates[name])
            decay, rest = (ops.cast(n, old.dtype) for n in scalars.values())
            updates[AVERAGE + name] = decay * old + rest * ops.cast(new, old.dtype)
        return Graph(inputs, graph.outputs, updates, graph.origins)

    @contextmanager
    def swapped(self, trainer: Trainer) -> Iterator[None]:
        """Store the averages in place of the weights, on every context, within this context manager."""
        if self.shown:
            raise MXNetError(with_user_location("averaged() within averaged()", help="one block is enough"))
        indices = trainer.exchange.indices
        places = {name: trainer.params[indices[name]].list_data() for name in self}
        kept = {name: [array.copy() for array in arrays] for name, arrays in places.items()}
        self.shown = True
        try:
            for name, arrays in places.items():
                for array in arrays:
                    array.storage.write(self[name].storage.array)
            yield
        finally:
            self.shown = False
            for name, arrays in places.items():
                for array, before in zip(arrays, kept[name], strict=True):
                    array.storage.write(before.storage.array)


def _exact(trainer: Trainer, name: str) -> NDArray:
    """Return a parameter, or its master weight if there is one that is not divided among ranks."""
    sharding = trainer.exchange.sharding
    if sharding is not None and name in sharding.parameters:
        return trainer.replica(name)
    return trainer.state_arrays([name]).get(state_name(name, MASTER), trainer.replica(name))
