"""One compiled entry point of a step: the graph of a mode for one set of input types, bound to its memory."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import random
from gluongraph import storage as storages
from gluongraph.context import cpu
from gluongraph.differentiate import differentiate
from gluongraph.dtypes import is_float
from gluongraph.errors import MXNetError, TraceError, located
from gluongraph.gluon.trainer import Trainer
from gluongraph.ir import Graph
from gluongraph.nd import NDArray
from gluongraph.precision import scaling
from gluongraph.precision.table import PRECISIONS, Precision
from gluongraph.replicas.shares import OnAll, is_shared_out
from gluongraph.rows.array import RowSparseNDArray
from gluongraph.runtime.arena import Arena
from gluongraph.step.anomaly import Guard
from gluongraph.step.clipping import LIMIT, clipped
from gluongraph.tape import Leaf
from gluongraph.trace import Traced, is_rng
from gluongraph.updates import GRAD, SCALAR, ScalarTable

if TYPE_CHECKING:
    from gluongraph.compiler import Compiled

Array = np.ndarray[Any, Any]
Lower = Callable[[Graph, Mapping[str, str]], "Compiled"]
Cast = Callable[[Graph], Graph]
ALONE = (cpu(),)  # the contexts of a call that has nothing to share out


@dataclass(frozen=True)
class Options:
    """What `mx.compile` was asked for. `cast` is the pass that the precision needs, if any."""

    keep_grads: bool = False
    precision: Precision = PRECISIONS["32"]
    cast: Cast | None = None
    clip_norm: float | None = None
    detect_anomaly: bool = False


@dataclass(frozen=True)
class Call:
    """What a mode of the step traces, whether layers are in training mode, and what is done with gradients."""

    name: str
    function: Callable[..., Any]
    training: bool
    gradients: bool = False
    updates: bool = False
    sums: bool = False  # over contexts


class Variant:
    """One compiled entry point for one set of input types, bound to the memory it works on."""

    def __init__(
        self,
        call: Call,
        traced: Traced,
        trainer: Trainer | None,
        lower: Lower,
        options: Options,
        shared: OnAll | None = None,
    ):
        self.traced, self.trainer, self.shared = traced, trainer, shared
        scaled = options.precision.scaled and call.gradients
        self.scaled = scaled and not call.sums  # are there steps that are left out?
        self.draws = traced.draws
        graph = traced.graph
        params = _trained(trainer, traced) if call.gradients else ()
        self.table: ScalarTable | None = None
        self.guard: Guard | None = None
        self.accumulated: dict[str, NDArray] = {}  # replicas with grad_req "add" -> what is added to
        self.by_rows: list[RowSparseNDArray] = []  # those of them that note which rows are touched
        self.spends: list[Leaf] = []  # of replicas whose gradient no memory has seen when a step is over
        state = dict(traced.captured)
        if call.gradients and trainer is not None:
            _check_loss(traced, trainer, params)
            scale = None
            if scaled:
                state |= trainer.scaler.state
                graph, scale = scaling.scaled(graph)
            graph = differentiate(graph, traced.first, params, scale)
        if options.cast is not None:
            graph = options.cast(graph)
        if call.gradients and trainer is not None:
            if scaled:
                graph = scaling.unscaled(graph, flag=self.scaled)
            watched = {traced.first: graph.outputs[traced.first]}
            if not scaled:  # gradients of a scaled loss may overflow
                watched |= {name: n for name, n in graph.outputs.items() if name.startswith(GRAD)}
            if call.sums:
                graph = trainer.exchange.sums(graph)
            else:
                self.accumulated = _accumulated(trainer, params)
                graph = trainer.exchange.accumulating(graph, self.accumulated)
                state |= {GRAD + name: grad for name, grad in self.accumulated.items()}
                self.by_rows = [g for g in self.accumulated.values() if isinstance(g, RowSparseNDArray)]
            if call.updates:
                updating = trainer.exchange.update(
                    graph,
                    trainer.optimizer,
                    trainer.contexts[0],
                    draws=traced.draws,
                    keep_grads=options.keep_grads,
                    clip=None if options.clip_norm is None else clipped,
                )
                graph, self.table = updating.graph, updating.table
                self.draws = self.table.draws
                self.spends = _spent(trainer, params, graph, self.accumulated)
                states = trainer.state_arrays(updating.owners)
                _settle(trainer, params, states)
                state |= states | trainer.residual_arrays(params)
            if self.scaled:
                graph = scaling.skipping(graph)
            if options.detect_anomaly:
                self.guard = Guard(graph, watched)
                graph = self.guard.graph
        self.state = {name: array for name, array in state.items() if name in graph.inputs}
        roles = {name: self._role(name) for name in graph.inputs}
        self.compiled = lower(graph, roles)
        self.interpreted = self.compiled.artefact is None
        self.runner = self.compiled.executor({name: a.storage.array for name, a in self.state.items()})
        self.moves = storages.moves()
        self.cells = [self.runner.scalar(SCALAR + key) for key in self.table.keys] if self.table else []
        self.limit = self.runner.scalar(LIMIT) if LIMIT in graph.inputs else None
        self.rng = {name: self.runner.scalar(name) for name in self.draws}
        self.edits = trainer.optimizer.edits if trainer is not None else None

    def _role(self, name: str) -> str:
        if name.startswith(SCALAR) or is_rng(name):
            return "scalar"
        return "state" if name in self.state else "input"

    def holds(self) -> bool:
        """Is the trace still true: same parameter arrays, scalars grouped as they were, Python attributes unchanged?"""
        trainer = self.trainer
        if trainer is not None and self.table is not None and trainer.optimizer.edits != self.edits:
            if not self.table.holds(trainer.optimizer):
                return False
            self.edits = trainer.optimizer.edits
        if any(self.traced.captured[name].grad is not grad for name, grad in self.accumulated.items()):
            return False
        return self.traced.holds

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """One packed call. Scalars must have been written before."""
        if self.moves != storages.moves():  # a parameter has moved since
            self.runner.bind({name: a.storage.array for name, a in self.state.items()})
            self.moves = storages.moves()
        if self.rng:
            for name, words in random.take_all(self.draws).items():
                for i, word in enumerate(words):
                    self.rng[name][i] = word
        values = self.runner([arrays[name] for name in self.runner.input_names])
        results = dict(zip(self.runner.output_names, values, strict=True))
        if self.guard is not None:
            self.guard.check(results, {**arrays, **self._held()})
        for grad in self.by_rows:
            grad.forget()
        return results

    def _held(self) -> dict[str, Array]:
        """State and scalars, by the names of inputs."""
        keys = self.table.keys if self.table is not None else ()
        scalars = dict(zip([SCALAR + key for key in keys], self.cells, strict=True)) | self.rng
        if self.limit is not None:
            scalars[LIMIT] = self.limit
        shapes = {name: n.shape for name, n in self.compiled.traced.inputs.items()}
        cells = {name: np.asarray(cell).reshape(shapes[name]) for name, cell in scalars.items()}
        return cells | {name: array.storage.array for name, array in self.state.items()}

    def answer(self, results: Mapping[str, Array], batch: Sequence[Any]) -> Any:
        """What the program gives back: joined, or of lists among the arguments each context's by itself."""
        if self.shared is None or not any(map(is_shared_out, batch)):
            return self.traced.restore(results)
        return [self.traced.restore(each) for each in self.shared.apart(results)]

    @property
    def samples(self) -> int:
        """How many samples the loss is of: its first extent, 1 for a scalar loss."""
        shape = self.traced.graph.outputs[self.traced.first].shape
        return shape[0] if shape else 1


def _settle(trainer: Trainer, params: Sequence[str], states: Mapping[str, NDArray]) -> None:
    """Move weights and optimizer states into the trainer's arenas, one per role, dtype and context. Who is there stays.

    The order is that of the gradients: the parameters' reversed.
    """
    groups: dict[tuple[str, str], list[storages.Storage]] = {}
    for name in reversed(params):
        weight = trainer.replica(name)
        own = {"weight": weight} | {
            key.removeprefix(f"{name}/"): array for key, array in states.items() if key.startswith(f"{name}/")
        }
        at = "" if name in trainer.exchange.replicas else f"@{weight.context}"
        for role, array in own.items():
            groups.setdefault((role + at, str(array.type.dtype)), []).append(array.storage)
    for key, members in groups.items():
        arena = trainer.arenas.get(key)
        if not isinstance(arena, Arena) or not arena.holds(members):
            trainer.arenas[key] = Arena(members)


def _trained(trainer: Trainer | None, traced: Traced) -> tuple[str, ...]:
    """Replicas of the trainer's parameters that the trace read and that want a gradient, in trainer order."""
    if trainer is None:
        raise MXNetError(located("gradients need a trainer", help="mx.compile(net, loss, trainer)"))
    wanted = (p.name for p in trainer.params if p.grad_req != "null")
    return tuple(r for name in wanted for r in trainer.exchange.replicas[name] if r in traced.captured)


def _check_loss(traced: Traced, trainer: Trainer | None, params: Sequence[str]) -> None:
    """Refuse what has no gradient that could train anything."""
    loss = traced.graph.outputs[traced.first]
    if not is_float(loss.dtype):
        raise TraceError(located(f"the loss is {loss.ty}; only floats have gradients", help="return the loss first"))
    if not params and trainer is not None and any(p.grad_req != "null" for p in trainer.params):
        raise TraceError(
            located(
                "the traced function reads no parameter of the trainer",
                help="make the trainer with the collect_params() of the net that is compiled",
            )
        )


def _accumulated(trainer: Trainer, names: Sequence[str]) -> dict[str, NDArray]:
    """The gradients that are added to, of the replicas whose parameter says so."""
    indices, found = trainer.exchange.indices, {}
    for name in names:
        grad = trainer.replica(name).grad
        if trainer.params[indices[name]].grad_req == "add" and grad is not None:
            found[name] = grad
    return found


def _spent(trainer: Trainer, names: Sequence[str], graph: Graph, kept: Container[str]) -> list[Leaf]:
    """The gradient sides of replicas whose gradients a graph with updates neither gives back nor adds to memory."""
    lost = [name for name in names if name not in kept and GRAD + name not in graph.outputs]
    return [leaf for name in lost if (leaf := trainer.replica(name)._leaf) is not None]
