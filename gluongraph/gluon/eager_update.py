"""The eager trainer's update: the optimizer's formula for all parameters at once, built once and run in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import autograd, debug, random
from gluongraph import storage as storages
from gluongraph.dtypes import numpy_dtype
from gluongraph.eager.function import Function, leaf
from gluongraph.eager.tape import STATE
from gluongraph.gluon.row_update import update_by_rows
from gluongraph.host import services
from gluongraph.ir.graph import Graph, Node
from gluongraph.nd.row_sparse_array import RowSparseNDArray
from gluongraph.ndarray import NDArray
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR, ScalarTable

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer

WORTH_COMPILING = 1 << 16  # elements; below it numpy takes less than the compiler would
LARGE = 64 << 20  # bytes that no cache of one core holds


class EagerUpdate:
    """One update of given weights from their gradients.

    Many elements are updated by one compiled call, in place; few by numpy, which needs no compiler. Where gradients
    are kept by rows, and the optimizer looks at rows, numpy updates those.
    """

    def __init__(self, trainer: Trainer, weights: tuple[NDArray, ...]):
        self.weights = weights
        self.grads = tuple(_gradient(w) for w in weights)
        self.structure, self.how = trainer.optimizer.structure(), debug.how()
        exchange = trainer.exchange
        self.indices = tuple(dict.fromkeys(exchange.indices[w.name] for w in weights))
        sparse = [trainer.optimizer.lazy and isinstance(g, RowSparseNDArray) for g in self.grads]
        self.by_rows = owners(trainer, [w for w, lazily in zip(weights, sparse, strict=True) if lazily])
        dense = [w for w, lazily in zip(weights, sparse, strict=True) if not lazily]
        if not exchange.once:  # then allreduce_grads has summed already what is to be summed
            exchange = replace(exchange, summed=False)
        arrays = {w.name: w for w in dense}
        if exchange.once:
            parameters = owners(trainer, dense)
            arrays = {name: trainer.replica(name) for owner in parameters for name in exchange.replicas[owner]}
        arrays |= {GRAD + w.name: _gradient(w) for w in dense}
        given = {name: leaf(name, array.type) for name, array in arrays.items()}
        graph = Graph(given, {name: n for name, n in given.items() if name.startswith(GRAD)})
        updating = exchange.update(graph, trainer.optimizer, trainer.contexts[0])
        graph, self.table = updating.graph, updating.table
        if exchange.sharding is not None:
            arrays |= {bucket.name: trainer.replica(bucket.name) for bucket in exchange.sharding.buckets}
        arrays |= trainer.state_arrays(updating.owners) | trainer.residual_arrays(updating.owners)
        self.edits, self.replaced = trainer.optimizer.edits, trainer.replaced
        size = sum(weight.size for weight in dense)
        backend, check = self.how  # what is looked at goes through graphs, whose results have names
        compiled = check or (size >= WORTH_COMPILING and backend != "reference")
        made = _Compiled if compiled else _Numpy
        self.run = made(graph, arrays, self.table) if dense else None

    def holds(self, trainer: Trainer, weights: tuple[NDArray, ...]) -> bool:
        """Is this still the update of these weights? A trainer whose weights and gradients are the same ones asks with
        the same tuple."""
        optimizer = trainer.optimizer
        if (optimizer.structure(), debug.how(), trainer.replaced) != (self.structure, self.how, self.replaced):
            return False
        if weights is not self.weights:
            if not (_same(weights, self.weights) and _same(map(_gradient, weights), self.grads)):
                return False
            self.weights = weights
        if optimizer.edits != self.edits:
            if not self.table.holds(optimizer):
                return False
            self.edits = optimizer.edits
        return True

    def __call__(self, trainer: Trainer) -> None:
        """Count, and update."""
        optimizer = trainer.optimizer
        with optimizer.undone_on_error(), random.undone_on_error(self.table.draws):
            optimizer.count(self.indices)
            if self.run is not None:
                self.run(self.table.values(optimizer), random.take_all(self.table.draws))
            if self.by_rows:
                with autograd.pause():
                    for name, weights in self.by_rows.items():
                        update_by_rows(trainer, name, weights)


def _same(arrays: Iterable[NDArray], others: Iterable[NDArray]) -> bool:
    """Are these the very same arrays?"""
    return all(a is b for a, b in zip_longest(arrays, others))


def owners(trainer: Trainer, weights: Sequence[NDArray]) -> dict[str, list[NDArray]]:
    """parameter -> those of its replicas that are among these."""
    found: dict[str, list[NDArray]] = {}
    for weight in weights:
        found.setdefault(trainer.names[trainer.exchange.indices[weight.name]], []).append(weight)
    return found


class PythonUpdate:
    """One update by an optimizer written for MXNet: its own `update`, parameter by parameter."""

    def __init__(self, trainer: Trainer, weights: tuple[NDArray, ...]):
        self.weights = weights
        self.owners = owners(trainer, weights)

    def holds(self, trainer: Trainer, weights: tuple[NDArray, ...]) -> bool:
        """Is this still the update of these weights?"""
        return weights is self.weights or _same(weights, self.weights)

    def __call__(self, trainer: Trainer) -> None:
        """Count, and update."""
        with autograd.pause():
            for name, weights in self.owners.items():
                if trainer.exchange.once:
                    self._update_all(trainer, name, weights)
                else:
                    self._update_each(trainer, weights)

    def _update_all(self, trainer: Trainer, name: str, weights: Sequence[NDArray]) -> None:
        """Update the first replica by the sum of the gradients, and make the others equal to it."""
        first, *others = (trainer.replica(each) for each in trainer.exchange.replicas[name])
        total = NDArray(trainer.reduced(name, weights), first.context)
        self._update(trainer, first, total)
        for other in others:
            other.storage.write(first.storage.array)

    def _update_each(self, trainer: Trainer, weights: Sequence[NDArray]) -> None:
        """Update every replica by itself, and count that as one update."""
        optimizer = trainer.optimizer
        counts, number = optimizer.counts(), optimizer.num_update
        for i, weight in enumerate(weights):
            if i:
                optimizer.restore_counts(counts, number)
            self._update(trainer, weight, _gradient(weight))

    def _update(self, trainer: Trainer, weight: NDArray, grad: NDArray) -> None:
        optimizer, index = trainer.optimizer, trainer.exchange.indices[weight.name]
        if weight.name not in trainer.states:
            trainer.states[weight.name] = optimizer.create_state_multi_precision(index, weight)
        optimizer.update_multi_precision(index, weight, grad, trainer.states[weight.name])


def _gradient(weight: NDArray) -> NDArray:
    """The gradient of a weight that has one."""
    assert weight.grad is not None
    return weight.grad


class _Compiled:
    """The update as one packed call on the arrays where they lie."""

    def __init__(self, graph: Graph, arrays: dict[str, NDArray], table: ScalarTable):
        self.arrays = {name: arrays[name] for name in graph.inputs if name in arrays}
        roles = {name: "state" if name in arrays else "scalar" for name in graph.inputs}
        memory = self._memory()
        if sum(array.nbytes for array in memory.values()) >= LARGE:
            storages.use_huge_pages(memory.values())
        self.compiled = services.get("lower")(graph, roles)
        self.runner = self.compiled.executor(memory)
        self.moves = storages.moves()
        self.written = storages.Written(arrays[name].storage for name in graph.updates)
        self.cells = [self.runner.scalar(SCALAR + key) for key in table.keys]
        self.rng = {name: self.runner.scalar(name) for name in table.draws}

    def _memory(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array.storage.array for name, array in self.arrays.items()}

    def __call__(self, scalars: Sequence[float], rng: Mapping[str, Sequence[int]]) -> None:
        if self.moves != storages.moves():
            self.runner.bind(self._memory())
            self.moves = storages.moves()
        for cell, value in zip(self.cells, scalars, strict=True):
            cell[0] = value
        for name, words in rng.items():
            for i, word in enumerate(words):
                self.rng[name][i] = word
        self.runner([])
        self.written.tell()


class _Numpy:
    """The update by the numpy meaning of its ops."""

    def __init__(self, graph: Graph, arrays: dict[str, NDArray], table: ScalarTable):
        self.names = list(graph.inputs)
        self.scalars = {SCALAR + key: numpy_dtype(graph.inputs[SCALAR + key].dtype) for key in table.keys}
        self.function = Function(_rebuild(graph), [graph.inputs[name].ty for name in self.names])
        self.sources = {name: arrays[name].storage for name in self.names if name in arrays}
        self.written = [arrays[name].storage for name in graph.updates]

    def __call__(self, scalars: Sequence[float], rng: Mapping[str, Sequence[int]]) -> None:
        given = {name: storage.array for name, storage in self.sources.items()}
        types = self.scalars.items()
        given |= {key: np.asarray(v, dtype) for (key, dtype), v in zip(types, scalars, strict=True)}
        given |= {name: np.array(words, np.uint32) for name, words in rng.items()}
        values = STATE.run(self.function.call, *(given[name] for name in self.names))
        # A state may become what another one was: that is read before anything is written.
        kept = {i: values[i].copy() for i in self.function.aliases}
        for i, storage in enumerate(self.written):
            storage.write(kept.get(i, values[i]))


def _rebuild(graph: Graph) -> Any:
    """The graph's updates as a function of its inputs."""

    def build(*given: Node) -> tuple[Node, ...]:
        table = dict(zip(graph.inputs.values(), given, strict=True))
        for n in graph.nodes():
            if n not in table:
                table[n] = n.on(tuple(table[s] for s in n.src))
        return tuple(table[n] for n in graph.updates.values())

    return build
