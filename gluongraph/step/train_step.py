"""TrainStep: a whole training step as one compiled call, and the guards that say when its trace still holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import checkpoint, debug, random
from gluongraph.context import Context
from gluongraph.errors import MXNetError, located
from gluongraph.gluon.parameter import DeferredInitializationError
from gluongraph.gluon.trainer import Trainer
from gluongraph.interpreted import Interpreted
from gluongraph.ir import Graph
from gluongraph.nd import NDArray
from gluongraph.plan import Launch, Plan
from gluongraph.precision.scaling import FINITE, LossScale
from gluongraph.replicas.shares import OnAll, contexts_of, is_shared_out, shares
from gluongraph.runtime.checkpoint import Keep
from gluongraph.runtime.saving import Saver
from gluongraph.step.batch import as_array
from gluongraph.step.clipping import NORM
from gluongraph.step.footprint import Footprint
from gluongraph.step.variant import ALONE, Call, Lower, Options, Variant
from gluongraph.trace import trace
from gluongraph.updates import GRAD

if TYPE_CHECKING:
    from gluongraph.codegen.build import Artefact
    from gluongraph.runtime.profile import Row

Array = np.ndarray[Any, Any]


class _LeftOut(Exception):
    """A gradient was not finite: what has been counted is to be taken back."""


def _write_grads(trainer: Trainer, results: Mapping[str, Array]) -> list[str]:
    """Put gradients where an eager backward would have; gives the names of the replicas."""
    written = []
    for name in trainer.exchange.indices:
        if (value := results.get(GRAD + name)) is not None and (leaf := trainer.replica(name)._leaf) is not None:
            leaf.grad.storage.write(value)
            leaf.spent = False
            written.append(name)
    return written


class TrainStep:
    """A training step compiled as a whole: forward, backward and update are one call.

    `step(*batch)` returns the per-sample loss and updates the parameters by the gradient of its sum / batch_size, as
    `loss.backward(); trainer.step(batch_size)` would. Other shapes, dtypes, or settings that the trace depended on
    compile a variant of their own, once. Made by `mx.compile`.

    With parameters on several contexts each gets an equal share of the batch, and its own replicas of the parameters;
    arguments are whole arrays, which are split along their first axis, or lists as `split_and_load` gives them. Whole
    arrays give results joined along the first axis (of scalars, one per context), lists give a list with the results
    of each context. `predict` and `evaluate` of whole arrays run on the first context.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        trainer: Trainer | None,
        lower: Lower,
        predict: Callable[..., Any] | None = None,
        options: Options | None = None,
    ):
        self.trainer, self._lower, self._options = trainer, lower, options or Options()
        self.skipped = 0  # steps left out because a gradient was not finite
        self.grad_norm: float | None = None  # of the last step, with clip_norm: of all gradients / batch_size, before
        train = Call("step", function, training=True, gradients=True, updates=True)
        self._modes = {
            "step": train,
            "backward": Call("backward", function, training=True, gradients=True),
            "grads": Call("grads", function, training=True, gradients=True, sums=True),
            "evaluate": Call("evaluate", function, training=False),
            "predict": Call("predict", predict or function, training=False),
        }
        self._variants: dict[tuple[Any, ...], Variant] = {}
        self._last: Variant | None = None
        self.net = predict or function  # a Block names its parameters in checkpoints
        self._saver = Saver()

    def __call__(self, *batch: Any, batch_size: float | None = None) -> Any:
        """One step. Batch: NDArrays or numpy arrays (shared, not copied, where they are contiguous).

        `batch_size` defaults to the first extent of the loss, over all contexts; a scalar loss counts as one sample of
        its context. As nd.array does, this makes float32 of numpy's float64 and of lists; an NDArray keeps its type. An
        error leaves everything as it was.

        Raises:
            ShapeError, DTypeError: an array that does not fit, or has no elements.
            ZeroDivisionError, ValueError: batch_size is no positive number.
            ValueError: samples that do not divide into equal shares; lists for other contexts than the parameters'.
            NotFiniteError: a NaN or an infinity, with detect_anomaly.
            TraceError: the program wants numbers of traced values, or gives back no loss.
        """
        trainer = self.trainer
        if trainer is None:
            raise MXNetError(located("this was compiled without a trainer, it cannot update", help="use predict(...)"))
        self._saver.check()
        self._make_ready(trainer, "step", batch)
        if trainer.in_python:
            return self._backward_and_step(trainer, batch, batch_size)
        variant, arrays = self._prepare("step", batch)
        optimizer, table = trainer.optimizer, variant.table
        assert table is not None
        scale = trainer.scale_for(batch_size if batch_size is not None else variant.samples)
        # A compiled call itself cannot fail any more unless it is guarded; a scheduler may, and an interpreted one.
        draws = variant.draws if variant.interpreted or variant.scaled or variant.guard else {}
        left_out = True
        with suppress(_LeftOut), optimizer.undone_on_error(), random.undone_on_error(draws):
            optimizer.rescale_grad = scale
            optimizer.count(table.indices)
            for cell, value in zip(variant.cells, table.values(optimizer), strict=True):
                cell[0] = value
            if variant.limit is not None:
                variant.limit[0] = (self._options.clip_norm or 0.0) / scale
            results = variant.run(arrays)
            if self._is_left_out(variant, results):
                raise _LeftOut
            left_out = False
        if NORM in results:
            self.grad_norm = float(results[NORM]) * scale
        if self._options.keep_grads and not left_out:
            _write_grads(trainer, results)
        for leaf in variant.spends:
            leaf.spent = True
        return variant.answer(results, batch)

    def _is_left_out(self, variant: Variant, results: Mapping[str, Array]) -> bool:
        """Has a step with a scaled loss changed nothing but the scale? Then it is counted here, and nowhere else."""
        left_out = variant.scaled and not results[FINITE]
        self.skipped += left_out
        return left_out

    def _backward_and_step(self, trainer: Trainer, batch: tuple[Any, ...], batch_size: float | None) -> Any:
        """Forward and backward as one compiled call, then the trainer's `step`, because Python has a part in that."""
        if self._options.clip_norm is not None:
            help = "clip in between, by gluon.utils.clip_global_norm, and leave clip_norm out"
            raise MXNetError(located("clip_norm, where Python acts between gradients and updates", help=help))
        variant, arrays = self._prepare("backward", batch)
        size = batch_size if batch_size is not None else variant.samples
        trainer.scale_for(size)  # raises before anything changes
        with suppress(_LeftOut), random.undone_on_error(variant.draws):
            results = variant.run(arrays)
            if self._is_left_out(variant, results):
                raise _LeftOut
        if variant.scaled and not results[FINITE]:
            return variant.answer(results, batch)
        for name in _write_grads(trainer, results):
            trainer.replica(name)._fresh_grad = True
        trainer.step(size, ignore_stale_grad=True)  # parameters that the program does not read stay
        return variant.answer(results, batch)

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss, and the good steps since it changed, with precision="16-mixed"."""
        return self.trainer.scaler if self.trainer is not None and self._options.precision.scaled else None

    def save(
        self,
        dir: str | os.PathLike[str],
        *,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        keep: int | Keep | None = None,
        asynchronous: bool = False,
    ) -> str:
        """Write a checkpoint, all that the training goes on from, into a run's folder: its path there.

        `extra` is what of the training is the user's: JSON, as the epoch, `loader.state_dict()`; `load` gives it back.
        `keep` says which of the folder's checkpoints stay: so many of the newest, or a `mx.checkpoint.Keep`, which may
        also go by one of the `metrics`; None keeps all. With `asynchronous` a copy of the state is taken, and written
        while the training goes on; an error then comes out of the next step, `save`, `load` or `wait`.

        Raises:
            OSError: it could not be written; checkpoints that were there are whole.
            TypeError: `extra` holds what JSON does not, or a metric is no number.
            ValueError: `keep` asks for less than one, or goes by a metric that is not given.
            MXNetError: there is no trainer; or a part of the state is where nothing can read it.
        """
        policy = checkpoint.keeping(keep, metrics)
        self._saver.wait()
        return str(self._saver.save(Path(dir), checkpoint.taken(self, extra, metrics), policy, asynchronous))

    def load(self, dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from the newest checkpoint of a run's folder, or from the one whose folder this is: its `extra`.

        A checkpoint that is not as it was written is not read: the one before is, and a warning says so.

        Raises:
            FileNotFoundError: there is no checkpoint.
            FormatError: none is whole, or the newest is of another net, optimizer or version; nothing is changed.
        """
        self._saver.wait()
        return checkpoint.put(self, checkpoint.read(dir))

    def wait(self) -> None:
        """Until an asynchronous `save` is on disk. Raises OSError where it could not be written."""
        self._saver.wait()

    @property
    def graph(self) -> Graph:
        """The graph of the last call, as traced: forward, gradients and updates."""
        return self._latest.compiled.traced

    @property
    def plan(self) -> Plan:
        """The plan of the last call: kernels, order, memory. `print(show_plan(step.plan))` shows it."""
        return self._latest.compiled.plan

    @property
    def artefact(self) -> Artefact:
        """The compiled code of the last call, and where it lies."""
        artefact = self._latest.compiled.artefact
        if artefact is None:
            raise MXNetError("there is no compiled code: GG_BACKEND or GG_CHECK has graphs interpreted")
        return artefact

    @property
    def kernels(self) -> dict[str, Launch]:
        """The distinct kernels of the last call, by name."""
        return self.plan.kernels

    def profile(self, *batch: Any, repeat: int = 20) -> list[Row]:
        """The time of each kernel of a step on this batch: rows that print as a table. Weights stay as they are."""
        from gluongraph.runtime.profile import profile

        variant, arrays = self._prepare("step" if self.trainer is not None else "predict", batch)
        runner = variant.runner
        if isinstance(runner, Interpreted):
            raise MXNetError("nothing to profile: GG_BACKEND or GG_CHECK has graphs interpreted")
        inputs = [arrays[name] for name in runner.input_names]
        return profile(runner, variant.compiled.module(), variant.compiled.plan, inputs, repeat)

    def memory(self, *batch: Any) -> Footprint:
        """What a step on this batch holds in memory, by what it is for. It is compiled where need be, and not run."""
        return self._prepare("step" if self.trainer is not None else "predict", batch)[0].compiled.footprint

    @property
    def _latest(self) -> Variant:
        if self._last is None:
            raise MXNetError(located("nothing has been compiled yet", help="call the step once: shapes are known then"))
        return self._last

    def evaluate(self, *batch: Any) -> Any:
        """The loss (and metrics) of a batch with layers in prediction mode; nothing changes."""
        variant, arrays = self._prepare("evaluate", batch)
        return variant.answer(variant.run(arrays), batch)

    def predict(self, *inputs: Any) -> Any:
        """The net's output for inputs alone, layers in prediction mode."""
        variant, arrays = self._prepare("predict", inputs)
        return variant.answer(variant.run(arrays), inputs)

    def grads(self, *batch: Any) -> dict[str, NDArray]:
        """Gradients of the summed loss by parameter name; weights stay as they are."""
        variant, arrays = self._prepare("grads", batch)
        with random.undone_on_error(variant.draws):
            results = variant.run(arrays)
        return {k.removeprefix(GRAD): NDArray(v) for k, v in results.items() if k.startswith(GRAD)}

    def _prepare(self, mode: str, batch: tuple[Any, ...]) -> tuple[Variant, dict[str, Array]]:
        """The variant for this call, compiled if it is the first of its kind, and the batch by input name."""
        contexts = self._contexts(mode, batch)
        if contexts is ALONE:
            arrays = [as_array(i, b) for i, b in enumerate(batch)]
        else:
            each = [shares(b, partial(as_array, i), len(contexts)) for i, b in enumerate(batch)]
            arrays = [share for one_context in zip(*each, strict=True) for share in one_context]
        types = tuple((a.shape, a.dtype.str) for a in arrays)
        where = None if contexts is ALONE else contexts
        key = (mode, types, where, self._structure(mode), debug.how())
        variant = self._variants.get(key)
        if variant is None or not variant.holds():
            variant = self._variants[key] = self._compile(mode, arrays, contexts)
        self._last = variant
        return variant, {f"data{i}": a for i, a in enumerate(arrays)}

    def _make_ready(self, trainer: Trainer, mode: str, batch: tuple[Any, ...]) -> None:
        """Let the trainer prepare. Shapes that wait for a first forward are completed by a trace, and no more."""
        try:
            trainer.prepare()
        except DeferredInitializationError:
            given = [as_array(i, b[0] if is_shared_out(b) else b) for i, b in enumerate(batch)]
            trace(self._modes[mode].function, [NDArray(a) for a in given], training=True)
            trainer.prepare()

    def _contexts(self, mode: str, batch: tuple[Any, ...]) -> tuple[Context, ...]:
        """Where this call runs; ALONE if there is nothing to share out."""
        trainer, gradients = self.trainer, self._modes[mode].gradients
        if trainer is not None and gradients:
            self._make_ready(trainer, mode, batch)
        everywhere = trainer.contexts if trainer is not None else ALONE
        if (len(everywhere) == 1 or not gradients) and not any(map(is_shared_out, batch)):
            return ALONE if everywhere[0] is ALONE[0] or everywhere[0] == ALONE[0] else tuple(everywhere[:1])
        return contexts_of(batch, everywhere, gradients)

    def _structure(self, mode: str) -> tuple[Any, ...]:
        """What a trace depends on besides its inputs."""
        trainer = self.trainer
        if trainer is None or not self._modes[mode].gradients:
            return ()
        exchange = trainer.exchange
        how = (exchange.once, exchange.summed, exchange.threshold)
        return (trainer.optimizer.structure(), tuple(p.grad_req for p in trainer.params), how)

    def _compile(self, mode: str, arrays: Sequence[Array], contexts: tuple[Context, ...]) -> Variant:
        call = self._modes[mode]
        shared = None if contexts is ALONE else OnAll(call.function, contexts)
        each = len(arrays) // len(contexts)
        given = [NDArray(a, contexts[i // each] if each else ALONE[0]) for i, a in enumerate(arrays)]
        traced = trace(shared or call.function, given, training=call.training)
        return Variant(call, traced, self.trainer, self._lower, self._options, shared)
