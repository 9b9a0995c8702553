"""One compiled entry point of a step: the graph of a mode for one set of input types, bound to its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gluongraph import random
from gluongraph import storage as storages
from gluongraph.compiler.interpreted import Interpreted
from gluongraph.gluon.trainer import Trainer
from gluongraph.ir.graph import Graph
from gluongraph.nd.row_sparse_array import RowSparseNDArray
from gluongraph.runtime.executor import Executor
from gluongraph.step.rows import Rows, rows_of
from gluongraph.storage import Array
from gluongraph.tracing.anomaly import SOUND
from gluongraph.tracing.batch_split import OnAll, is_shared_out
from gluongraph.tracing.loss_scaling import FINITE
from gluongraph.tracing.low_precision_copies import Copies
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.padding.layout import valid_part, valid_shape
from gluongraph.tracing.padding.masking import LENGTH
from gluongraph.tracing.padding.rewrite import Masked
from gluongraph.tracing.step_graph import StepGraph
from gluongraph.tracing.tracer import Traced

if TYPE_CHECKING:
    from gluongraph.codegen.rule import Target
    from gluongraph.compiler.lower import Compiled
    from gluongraph.runtime.device import DeviceExecutor

    Runner = Executor | DeviceExecutor | Interpreted


class Lower(Protocol):
    """Calls `compiler.lower`, for the target `on` if it is not this machine's, and with tuning if requested. `common`:
    what ranks must have in common besides the graph."""

    def __call__(
        self,
        graph: Graph,
        roles: Mapping[str, str],
        forward: Collection[str],
        *,
        on: Target | None = None,
        tune: float = ...,
        common: str = ...,
    ) -> Compiled: ...


class Specialization:
    """The compiled graph of one mode, with the arrays and scalars that it reads and writes."""

    padding: Masked | None = None  # of a program for padded arrays
    compared: dict[str, int]  # the smallest lengths for which that is known to be the program
    lengths: Mapping[str, int] = MappingProxyType({})  # of the call that is made: how many elements are valid
    sent_before = 0  # bytes of sums over ranks before the last call, which are no part of the graph

    def __init__(
        self, step_graph: StepGraph, traced: Traced, trainer: Trainer | None, lower: Lower, shared: OnAll | None
    ):
        graph = step_graph.graph
        self.padding = step_graph.padding
        self.compared = {} if self.padding is None else dict(self.padding.compared)
        self.traced, self.shared = traced, shared
        self.names, self.masked = step_graph.names, step_graph.masked
        self.draws, self.table = step_graph.draws, step_graph.table
        self.added, self.spends, self.guard = step_graph.added, step_graph.spends, step_graph.guard
        self.state = step_graph.held
        self.copies = Copies(graph.updates, self.state, step_graph.low)
        self._lower: Callable[[], Compiled] = partial(lower, graph, step_graph.roles, step_graph.forward)
        self._connect(
            self.compiled.executor(self._memory()), trainer, [k for k in graph.inputs if k.startswith(SCALAR)]
        )

    def set_lengths(self, lengths: Mapping[str, int]) -> None:
        """Say how many elements of the padded arrays of the next call are valid."""
        self.lengths = lengths
        for name, cell in self.length_cells.items():
            cell[0] = lengths[name.removeprefix(LENGTH)]

    @cached_property
    def compiled(self) -> Compiled:
        """The compiled graph."""
        return self._lower()

    @property
    def updated(self) -> tuple[str, ...]:
        """The names of the states that a call writes."""
        return tuple(self.compiled.traced.updates)

    @property
    def text(self) -> str:
        """The program as text, which ranks compare."""
        return self.compiled.text

    def _connect(self, runner: Runner, trainer: Trainer | None, scalars: Sequence[str]) -> None:
        """Look up the runner's memory of inputs, scalars and generator states."""
        self.runner, self.trainer = runner, trainer
        self.by_rows = [g for g in self.added.values() if isinstance(g, RowSparseNDArray)]
        self.reads = [int(name.removeprefix("data")) for name in self.runner.input_names]  # arrays of the batch
        self.moves = storages.moves()
        keys = [SCALAR + key for key in self.table.keys] if self.table else []
        self.cells = [self.runner.scalar(key) for key in keys]
        others = [name for name in scalars if name not in keys]
        self.others = {name: self.runner.scalar(name) for name in others}  # scalars that are not the optimizer's
        self.rng = {name: self.runner.scalar(name) for name in self.draws}
        lengths = [] if self.padding is None else [k for k in self.padding.graph.inputs if k.startswith(LENGTH)]
        self.length_cells = {name: self.runner.scalar(name) for name in lengths}
        self.edits = trainer.optimizer.edits if trainer is not None else None
        self.replaced = trainer.replaced if trainer is not None else 0

    def _memory(self) -> dict[str, Array]:
        return {name: array.storage.array for name, array in self.state.items()}

    def holds(self) -> bool:
        """Is the trace still valid: are parameters, states, groups of scalars and attributes unchanged?"""
        trainer = self.trainer
        if trainer is not None and self.table is not None:
            if trainer.replaced != self.replaced:
                return False
            if trainer.optimizer.edits != self.edits:
                if not self.table.holds(trainer.optimizer):
                    return False
                self.edits = trainer.optimizer.edits
        for name, grad in self.added.items():
            if self.state[name].grad is not grad:
                return False
        return self.traced.holds

    @cached_property
    def rows(self) -> Rows | None:
        """The scalars of several steps that one call runs; None if it takes a call for each."""
        if not isinstance(self.runner, Executor):
            return None
        keys = [SCALAR + key for key in self.table.keys] if self.table else []
        return rows_of(self.runner, keys, self.others, self.draws, self.going)

    @property
    def going(self) -> tuple[str, ...]:
        """The outputs that are false if a call has changed nothing."""
        return (*([FINITE] if self.masked else []), *([SOUND] if self.guard is not None else []))

    def refresh(self) -> None:
        """Before a call: bind parameters that have moved, and compute copies of weights that others have written."""
        if self.moves != storages.moves():
            self.runner.bind(self._memory())
            self.moves = storages.moves()
        self.copies.before()

    def run(self, arrays: Sequence[Array], draws: Mapping[str, Sequence[int]] | None = None) -> dict[str, Array]:
        """Run one packed call on these inputs. Scalars must have been written before. `draws` are states of random
        generators, by default the next ones."""
        self.refresh()
        if self.rng:
            for name, words in (random.take_all(self.draws) if draws is None else draws).items():
                for i, word in enumerate(words):
                    self.rng[name][i] = word
        values = self.runner([arrays[i] for i in self.reads])
        self.copies.after()
        results = dict(zip(self.runner.output_names, values, strict=True))
        self._check(arrays, results)
        self._forget()
        return results

    def check_call(self, arrays: Sequence[Array], results: Mapping[str, Array]) -> None:
        """Raise the errors of the call of an executor that has run on these inputs."""
        assert isinstance(self.runner, Executor)
        self.runner.check([arrays[i] for i in self.reads])
        self._check(arrays, results)

    def _check(self, arrays: Sequence[Array], results: Mapping[str, Array]) -> None:
        if self.guard is not None:
            self.guard.check(results, self._held() | {f"data{i}": array for i, array in enumerate(arrays)})

    def _forget(self) -> None:
        for grad in self.by_rows:
            grad.forget()

    def spend(self) -> None:
        """Note of gradients that went into updates or sums that no memory holds them."""
        for leaf in self.spends:
            leaf.spent = True

    def note_calls(self) -> None:
        """Note what calls that the runner has made by itself have done to weights and gradients."""
        self.copies.after()
        self._forget()
        self.spend()

    def _held(self) -> dict[str, Array]:
        """Return the arrays that `Guard.check` needs."""
        return self.held()

    def held(self) -> dict[str, Array]:
        """Return state and scalars, by the names of inputs."""
        keys = self.table.keys if self.table is not None else ()
        scalars = dict(zip([SCALAR + key for key in keys], self.cells, strict=True)) | self.others | self.rng
        scalars |= self.length_cells
        shapes = {name: n.shape for name, n in self.compiled.traced.inputs.items()}
        return self._memory() | {name: np.asarray(cell).reshape(shapes[name]) for name, cell in scalars.items()}

    def is_left_out(self, results: Mapping[str, Array]) -> bool:
        """Was a gradient not finite, so that only the loss scale has changed?"""
        return self.masked and not results[FINITE]

    def answer(self, results: Mapping[str, Array], batch: Sequence[Any]) -> Any:
        """Return the program's results: concatenated, or if the arguments had lists, one for each context."""
        if self.shared is None or not any(map(is_shared_out, batch)):
            return self.traced.restore(self._valid(results))
        if self.padding is not None:  # on one context
            return [self.traced.restore(self._valid(results))]
        return [self.traced.restore(each) for each in self.shared.apart(results)]

    def _valid(self, results: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the results without padding."""
        if self.padding is None:
            return results
        layouts = self.padding.layouts
        return {k: valid_part(a, layouts[k], self.lengths) if k in layouts else a for k, a in results.items()}

    @property
    def communicates(self) -> bool:
        """Has the program collectives between ranks? Before the first of them ranks learn of each other's errors."""
        return self.runner.communicates

    @property
    def can_fail(self) -> bool:
        """Can a call fail, or be skipped? Compiled calls can only if they check values."""
        runner = self.runner
        checked = isinstance(runner, Interpreted) or runner.checks_indices or self.masked or self.guard is not None
        return checked or self.communicates  # ranks may disagree

    @property
    def samples(self) -> int:
        """Return the number of samples of the loss over all ranks: its first extent, 1 for a scalar loss, of each."""
        shape = self.traced.graph.outputs[self.traced.first].shape
        if self.padding is not None:
            shape = valid_shape(self.padding.layouts[self.traced.first], self.lengths)
        ranks = self.trainer.exchange.ranks if self.trainer is not None else 1
        return ranks * (shape[0] if shape else 1)
