"""TrainStep: a whole training step as one compiled call, and the guards that say when its trace still holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import random
from gluongraph import storage as storages
from gluongraph.differentiate import differentiate
from gluongraph.errors import MXNetError, located
from gluongraph.gluon.trainer import Trainer
from gluongraph.ir import Graph
from gluongraph.nd import NDArray
from gluongraph.trace import Traced, trace
from gluongraph.updates import GRAD, SCALAR, ScalarTable, apply_updates

if TYPE_CHECKING:
    from gluongraph.compiler import Compiled

Array = np.ndarray[Any, Any]
Lower = Callable[[Graph, Mapping[str, str]], "Compiled"]
RNG = "rng"


@dataclass(frozen=True)
class Call:
    """What a mode of the step traces: the function, whether layers are in training mode, whether weights change."""

    name: str
    function: Callable[..., Any]
    training: bool
    gradients: bool = False
    updates: bool = False


class Variant:
    """One compiled entry point for one set of input types, bound to the memory it works on."""

    def __init__(self, call: Call, traced: Traced, trainer: Trainer | None, lower: Lower, keep_grads: bool):
        self.traced, self.trainer = traced, trainer
        graph = traced.graph
        self.params = _trained(trainer, traced) if call.gradients else ()
        self.table: ScalarTable | None = None
        state = dict(traced.captured)
        if call.gradients:
            graph = differentiate(graph, traced.first, self.params)
        if call.updates and trainer is not None:
            names = tuple(trainer.names)
            graph, self.table = apply_updates(graph, trainer.optimizer, names, keep_grads=keep_grads)
            state |= trainer.state_arrays(self.params)
        self.state = {name: array for name, array in state.items() if name in graph.inputs}
        roles = {name: self._role(name) for name in graph.inputs}
        self.compiled = lower(graph, roles)
        self.runner = self.compiled.executor({name: a.storage.array for name, a in self.state.items()})
        self.moves = storages.moves()
        self.written = tuple(self.state[name].storage for name in graph.updates)
        self.cells = [self.runner.scalar(SCALAR + key) for key in self.table.keys] if self.table else []
        self.rng = self.runner.scalar(RNG) if traced.draws else None

    def _role(self, name: str) -> str:
        if name.startswith(SCALAR) or name == RNG:
            return "scalar"
        return "state" if name in self.state else "input"

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """One packed call. Scalars must have been written before."""
        if self.moves != storages.moves():  # a parameter has moved since
            self.runner.bind({name: a.storage.array for name, a in self.state.items()})
            self.moves = storages.moves()
        if self.rng is not None:
            for i, word in enumerate(random.take(self.traced.draws)):
                self.rng[i] = word
        results = self.runner([arrays[name] for name in self.runner.input_names])
        for storage in self.written:
            storage.touch()
        return dict(zip(self.runner.output_names, results, strict=True))


def _trained(trainer: Trainer | None, traced: Traced) -> tuple[str, ...]:
    """Parameters of the trainer that the trace read and that want a gradient, in trainer order."""
    if trainer is None:
        raise MXNetError(located("gradients need a trainer", help="mx.compile(net, loss, trainer)"))
    return tuple(p.name for p in trainer.params if p.grad_req != "null" and p.name in traced.captured)
