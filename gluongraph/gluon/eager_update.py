"""The eager trainer's update: the optimizer's formula for all parameters at once, built once and run in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import autograd, debug, engine
from gluongraph import storage as storages
from gluongraph.eager import Function
from gluongraph.gluon.parameter import Parameter
from gluongraph.ir import OPS, Graph, Node, node
from gluongraph.ndarray import NDArray
from gluongraph.updates import GRAD, SCALAR, apply_updates

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer

WORTH_COMPILING = 1 << 16  # elements; below it numpy takes less than the compiler would


class EagerUpdate:
    """One update of given parameters from their gradients.

    Many elements are updated by one compiled call, in place; few by numpy, which needs no compiler.
    """

    def __init__(self, trainer: Trainer, params: Sequence[Parameter]):
        self.params = tuple(params)
        self.indices = tuple(trainer.index(p) for p in params)
        self.weights = tuple(p.data() for p in params)
        self.grads = tuple(p.grad() for p in params)
        self.structure = trainer.optimizer.structure()
        arrays: dict[str, NDArray] = {}
        for p, weight, grad in zip(params, self.weights, self.grads, strict=True):
            arrays |= {p.name: weight, GRAD + p.name: grad}
        arrays |= trainer.state_arrays([p.name for p in params])
        given = {name: _input(name, arrays[name]) for name in arrays if "/" not in name}
        outputs = {name: n for name, n in given.items() if name.startswith(GRAD)}
        graph, self.table = apply_updates(Graph(given, outputs), trainer.optimizer, trainer.names)
        self.edits = trainer.optimizer.edits
        size = sum(weight.size for weight in self.weights)
        compiled = size >= WORTH_COMPILING and debug.settings().backend != "reference"
        self.run = _Compiled(graph, arrays, self.table.keys) if compiled else _Numpy(graph, arrays, self.table.keys)

    def holds(self, trainer: Trainer, params: Sequence[Parameter]) -> bool:
        """Is this still the update of these parameters?"""
        optimizer = trainer.optimizer
        if len(params) != len(self.params) or optimizer.structure() != self.structure:
            return False
        for p, mine, weight in zip(params, self.params, self.weights, strict=True):
            if p is not mine or p.data() is not weight:
                return False
        if any(w.grad is not g for w, g in zip(self.weights, self.grads, strict=True)):
            return False
        if optimizer.edits != self.edits:
            if not self.table.holds(optimizer):
                return False
            self.edits = optimizer.edits
        return True

    def __call__(self, trainer: Trainer) -> None:
        """Count, and update."""
        optimizer = trainer.optimizer
        with optimizer.undone_on_error() if debug.settings().check else nullcontext():
            optimizer.count(self.indices)
            self.run(self.table.values(optimizer))


class PythonUpdate:
    """One update by an optimizer written for MXNet: its own `update`, parameter by parameter."""

    def __init__(self, trainer: Trainer, params: Sequence[Parameter], states: dict[int, Any]):
        self.params = tuple(params)
        self.weights = tuple(p.data() for p in params)
        self.states = states

    def holds(self, trainer: Trainer, params: Sequence[Parameter]) -> bool:
        """Never: it is nothing but a loop."""
        return False

    def __call__(self, trainer: Trainer) -> None:
        """Count, and update."""
        optimizer = trainer.optimizer
        with autograd.pause():
            for p, weight in zip(self.params, self.weights, strict=True):
                index = trainer.index(p)
                if index not in self.states:
                    self.states[index] = optimizer.create_state_multi_precision(index, weight)
                optimizer.update_multi_precision(index, weight, p.grad(), self.states[index])


class _Compiled:
    """The update as one packed call on the arrays where they lie."""

    def __init__(self, graph: Graph, arrays: dict[str, NDArray], scalars: Sequence[str]):
        self.arrays = {name: arrays[name] for name in graph.inputs if name in arrays}
        roles = {name: "state" if name in arrays else "scalar" for name in graph.inputs}
        self.runner = engine.get("lower")(graph, roles).executor(self._memory())
        self.moves = storages.moves()
        self.cells = [self.runner.scalar(SCALAR + key) for key in scalars]

    def _memory(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array.storage.array for name, array in self.arrays.items()}

    def __call__(self, scalars: Sequence[float]) -> None:
        if self.moves != storages.moves():
            self.runner.bind(self._memory())
            self.moves = storages.moves()
        for cell, value in zip(self.cells, scalars, strict=True):
            cell[0] = value
        self.runner([])


class _Numpy:
    """The update by the numpy meaning of its ops."""

    def __init__(self, graph: Graph, arrays: dict[str, NDArray], scalars: Sequence[str]):
        names = list(graph.inputs)
        self.function = Function(_rebuild(graph), [graph.inputs[name].ty for name in names])
        self.sources = [arrays[name].storage for name in names if name in arrays]
        if names != [name for name in names if name in arrays] + [SCALAR + key for key in scalars]:
            raise AssertionError("the scalars of an update come last")
        self.written = [arrays[name].storage for name in graph.updates]

    def __call__(self, scalars: Sequence[float]) -> None:
        values = self.function.call(*(s.array for s in self.sources), *(np.asarray(v, np.float32) for v in scalars))
        for storage, value in zip(self.written, values, strict=True):
            storage.write(value)


def _rebuild(graph: Graph) -> Any:
    """The graph's updates as a function of its inputs."""

    def build(*given: Node) -> tuple[Node, ...]:
        table = dict(zip(graph.inputs.values(), given, strict=True))
        for n in graph.nodes():
            if n not in table:
                table[n] = n.on(tuple(table[s] for s in n.src))
        return tuple(table[n] for n in graph.updates.values())

    return build


def _input(name: str, array: NDArray) -> Node:
    return node(OPS["input"], (), {"name": name}, type=array.type)
