"""The specializations of a step, and the guards that decide whether a trace is still valid for a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gluongraph import debug
from gluongraph.context import Context, cpu
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.parameter import DeferredInitializationError
from gluongraph.gluon.trainer import Trainer
from gluongraph.host.interrupts import in_one_line, show_in_one_line
from gluongraph.host.process import collecting_later
from gluongraph.ir.graph import Graph
from gluongraph.nd import NDArray
from gluongraph.step.arenas import settle
from gluongraph.step.arguments import check_call
from gluongraph.step.batch import as_array
from gluongraph.step.dynamic import Dynamic, check_alone
from gluongraph.step.padded_program import (
    Padding,
    changed,
    check_least,
    lengths_to_compare,
    noting,
    padded,
    padded_program,
)
from gluongraph.step.sizes import SMALLEST
from gluongraph.step.specialization import Lower, Specialization
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import GradientAccumulator
from gluongraph.tracing.batch_split import OnAll, contexts_of, is_shared_out, shares
from gluongraph.tracing.ema import AveragedWeights
from gluongraph.tracing.step_graph import MODES_BY_NAME, Mode, Options, StepGraph, graph_of
from gluongraph.tracing.tracer import Traced, trace

ALONE = (cpu(),)  # the contexts of a call whose batch is not split
NOTHING = Traced(Graph({}, {}, {}), None, {}, {}, ())  # the trace of a mode without a program


class Specializations:
    """The compiled graphs of a step, by mode, types of the batch, and all other dependencies of a trace."""

    def __init__(
        self,
        function: Callable[..., Any],
        predict: Callable[..., Any],
        trainer: Trainer | None,
        lower: Lower,
        options: Options,
        averages: AveragedWeights | None,
        accumulator: GradientAccumulator,
        dynamic: Dynamic | None = None,
    ):
        self.dynamic = dynamic
        self.function, self.predict = function, predict
        self.trainer, self.lower, self.options = trainer, lower, options
        self.averages, self.accumulator = averages, accumulator
        self._known: dict[tuple[Any, ...], Specialization] = {}
        self._last: Specialization | None = None

    @property
    def last(self) -> Specialization:
        """The specialization of the last call.

        Raises:
            MXNetError: there has been none.
        """
        if self._last is None:
            raise MXNetError(
                with_user_location("nothing has been compiled yet", help="call the step once: shapes are known then")
            )
        return self._last

    @property
    def keys(self) -> tuple[tuple[Any, ...], ...]:
        """The keys of `all`: mode, shapes and dtypes of the batch, and other dependencies."""
        return tuple(self._known)

    @property
    def all(self) -> tuple[Specialization, ...]:
        """All specializations that have been compiled and may be used again."""
        return tuple(self._known.values())

    def check_clipping(self, clips: bool) -> None:
        """May later programs clip gradients by their norm, or not? Here both can be traced."""

    def prepare(self, trainer: Trainer, batch: Sequence[Any]) -> None:
        """Let the trainer prepare. Deferred shapes are inferred by a trace, without computing anything."""
        try:
            trainer.prepare(compiled=True)
        except DeferredInitializationError:
            self._complete(trainer, batch)
        except KeyboardInterrupt as error:  # `in_one_line` around it would cost every step a microsecond
            show_in_one_line(error, "compilation")
            raise

    @in_one_line("compilation")
    def _complete(self, trainer: Trainer, batch: Sequence[Any]) -> None:
        check_call(self.function, len(batch))
        given = [as_array(i, b[0] if is_shared_out(b) else b) for i, b in enumerate(batch)]
        trace(self.function, [NDArray(a) for a in given], training=True)
        trainer.prepare()

    def find(self, name: str, batch: Sequence[Any], tune: float = 0.0) -> tuple[Specialization, list[Array]]:
        """Return the specialization for a call in that mode, compiled on first use, and the arrays of the batch.

        A mode with gradients needs a prepared trainer. `tune`, in seconds, compiles it again and searches for faster
        kernels.
        """
        mode = MODES_BY_NAME[name]
        contexts = self._contexts(mode, batch)
        if contexts is ALONE:
            arrays = [as_array(i, b) for i, b in enumerate(batch)]
        else:
            each = [shares(b, partial(as_array, i), len(contexts)) for i, b in enumerate(batch)]
            arrays = [share for one_context in zip(*each, strict=True) for share in one_context]
        padding = None
        if self.dynamic is not None and mode.traces:
            check_alone(len(contexts), self.trainer.exchange.ranks if self.trainer and mode.gradients else 1)
            padding = self.dynamic.padding(arrays)
            arrays = padded(arrays, padding)
        types = tuple([(a.shape, a.dtype) for a in arrays])
        where = None if contexts is ALONE else contexts
        key = (mode, types, where, self._structure(mode), debug.how(), padding and padding.places)
        specialization = self._known.get(key)
        compiles = specialization is None or tune or not specialization.holds()
        if specialization is None or compiles:
            specialization = self._known[key] = self._compile(mode, arrays, contexts, tune, padding)
        if self.dynamic is not None and padding is not None:
            self._admit(mode, specialization, padding, arrays, contexts)
            self.dynamic.note(padding, bool(compiles))
        self._last = specialization
        return specialization, arrays

    def _admit(
        self,
        mode: Mode,
        specialization: Specialization,
        padding: Padding,
        arrays: Sequence[Array],
        contexts: tuple[Context, ...],
    ) -> None:
        """Give the lengths of a call to a program for padded arrays. Where they are below those that it has been
        compared with, it is compared for these, too: a condition in Python may make it another program."""
        program = specialization.padding
        if program is not None and self.dynamic is not None:
            check_least(program.least, padding.lengths)
            shorter = {
                name: n
                for name, n in padding.lengths.items()
                if SMALLEST <= n < specialization.compared[name] and n != padding.sizes[name]  # its own trace is that
            }
            if shorter:
                other = {**specialization.compared, **shorter}
                traced, _ = self._traced(mode, arrays, contexts)
                like = partial(self._traced, mode, contexts=contexts)
                pair = [(other, specialization.compared)]
                again = padded_program(traced, padding, pair, like, arrays, mode.gradients)
                if again.graph != program.graph:
                    raise changed(padding.lengths)
                specialization.compared.update(shorter)
        specialization.set_lengths(padding.lengths)

    def _contexts(self, mode: Mode, batch: Sequence[Any]) -> tuple[Context, ...]:
        """Return the contexts of this call; ALONE if the batch is not split."""
        everywhere = self.trainer.contexts if self.trainer is not None else ALONE
        if len(everywhere) == 1 or not mode.gradients:
            for each in batch:
                if is_shared_out(each):
                    break
            else:
                return ALONE if everywhere[0] is ALONE[0] or everywhere[0] == ALONE[0] else tuple(everywhere[:1])
        return contexts_of(batch, everywhere, mode.gradients)

    def _structure(self, mode: Mode) -> tuple[Any, ...]:
        """Return the dependencies of a trace besides its inputs."""
        if self.trainer is None or not mode.gradients:
            return ()
        clips = self.options.clip_norm is not None
        return (self.trainer.structure, clips, () if mode.traces else self.accumulator.names)

    @in_one_line("compilation")
    @collecting_later()
    def _compile(
        self,
        mode: Mode,
        arrays: Sequence[Array],
        contexts: tuple[Context, ...],
        tune: float = 0.0,
        padding: Padding | None = None,
    ) -> Specialization:
        step_graph, traced, shared = self.step_graph(mode, arrays, contexts, padding)
        lower = partial(self.lower, common=self.options.of_all_ranks())
        if tune:
            lower = partial(lower, tune=tune)
        return Specialization(step_graph, traced, self.trainer, lower, shared)

    def step_graph(
        self,
        mode: Mode,
        arrays: Sequence[Array],
        contexts: tuple[Context, ...] = ALONE,
        padding: Padding | None = None,
    ) -> tuple[StepGraph, Traced, OnAll | None]:
        """Return the graph of a mode for arrays of these types, and the traced program."""
        traced, shared, masked = NOTHING, None, None
        if mode.traces:
            with noting(padding):
                traced, shared = self._traced(mode, arrays, contexts)
            if self.dynamic is not None and padding is not None and padding.sizes:
                like = partial(self._traced, mode, contexts=contexts)
                others = lengths_to_compare(padding, self.dynamic.sizes, self.dynamic.ranges)
                masked = padded_program(traced, padding, others, like, arrays, mode.gradients)
                traced = replace(traced, graph=masked.graph)
        step_graph = graph_of(mode, traced, self.trainer, self.options, self.averages, self.accumulator)
        step_graph.padding = masked
        if self.trainer is not None:
            for states in step_graph.states:
                settle(self.trainer, step_graph.names, *states)
        return step_graph, traced, shared

    def _traced(
        self, mode: Mode, arrays: Sequence[Array], contexts: tuple[Context, ...]
    ) -> tuple[Traced, OnAll | None]:
        """Return the traced program of a mode, and what runs it on several contexts."""
        function = self.predict if mode.name == "predict" else self.function
        shared = None if contexts is ALONE else OnAll(function, contexts)
        each = len(arrays) // len(contexts)
        check_call(function, each)
        given = [NDArray(a, contexts[i // each] if each else ALONE[0]) for i, a in enumerate(arrays)]
        names = {} if self.trainer is None else self.trainer.input_names()
        return trace(shared or function, given, training=mode.training, names=names), shared
