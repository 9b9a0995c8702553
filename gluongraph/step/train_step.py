"""TrainStep: a whole training step as one compiled call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gluongraph import checkpoint, random
from gluongraph.checkpoint import collective
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.step_lock import serialized
from gluongraph.gluon.trainer import Trainer
from gluongraph.host.file_names import check_name
from gluongraph.nd import NDArray
from gluongraph.runtime.checkpoint import Keep
from gluongraph.runtime.communicator.base import PeerLost
from gluongraph.runtime.saving import Saver, room
from gluongraph.step import several
from gluongraph.step.dynamic import Dynamic
from gluongraph.step.elastic import is_elastic, recover
from gluongraph.step.inspection import StepInspection
from gluongraph.step.micro_batches import MicroBatches, joined
from gluongraph.step.specialization import Lower, Specialization
from gluongraph.step.specializations import Specializations
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import GradientAccumulator
from gluongraph.tracing.ema import AveragedWeights
from gluongraph.tracing.grad_norm import LIMIT, NORM
from gluongraph.tracing.loss_scaling import LossScale
from gluongraph.tracing.optimizer_updates import GRAD
from gluongraph.tracing.step_graph import Options, check_clip_norm


class TrainStep(StepInspection):
    """A training step compiled as a whole: forward, backward and update are one call.

    `step(*batch)` returns the per-sample loss and updates the parameters by the gradient of its sum / batch_size, as
    `loss.backward(); trainer.step(batch_size)` would. Other shapes, dtypes, or settings that the trace depended on
    compile a specialization of their own, once. Made by `mx.compile`.

    With parameters on several contexts each gets an equal share of the batch, and its own replicas of the parameters;
    arguments are whole arrays, which are split along their first axis, or lists as `split_and_load` gives them. Whole
    arrays give results joined along the first axis (of scalars, one per context), lists give a list with the results
    of each context. `predict` and `evaluate` of whole arrays run on the first context.

    Threads may share a step: its calls take turns, with those of all other steps of its trainer.

    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
    >>> step(x, y).shape  # one update
    (4,)
    >>> step.predict(x).shape
    (4, 1)
    """

    dynamic: Dynamic | None = None  # the free axes of batches, and the sizes that they are padded to

    def __init__(
        self,
        function: Callable[..., Any],
        trainer: Trainer | None,
        lower: Lower,
        predict: Callable[..., Any] | None = None,
        options: Options | None = None,
        inputs: int | None = None,
        dynamic: Dynamic | None = None,
    ):
        self._begin(trainer, options or Options(), predict or function, inputs)
        self.dynamic = dynamic
        self._specializations = Specializations(
            function, self.net, trainer, lower, self.options, self.averages, self.accumulator, dynamic
        )

    def _begin(self, trainer: Trainer | None, options: Options, net: Callable[..., Any], inputs: int | None) -> None:
        """Everything but the specializations."""
        self.trainer, self.options = trainer, options
        self.inputs = inputs  # how many of a batch's arrays `predict` takes; None: all
        self.skipped = 0  # batches left out because a gradient was not finite
        self.grad_norm: float | None = None  # of the last update: of all gradients / batch_size, before clipping
        self.net = net  # a Block names its parameters in checkpoints
        self.averages = None if options.ema is None else AveragedWeights(options.ema)
        self.kept_elsewhere: tuple[NDArray, ...] = ()  # arrays that it changes, and that no checkpoint of it holds
        self.accumulator = GradientAccumulator()  # what `accumulate` has added up since the last `apply`
        self._saver = Saver()
        self._reports = _Reports(trainer)
        self.step_lock = threading.RLock() if trainer is None else trainer.step_lock

    def __repr__(self) -> str:
        name = getattr(self.net, "name", None) or getattr(self.net, "__name__", type(self.net).__name__)
        optimizer = "" if self.trainer is None else f", {self.trainer.optimizer!r}"
        return f"TrainStep({name}{optimizer}, precision={self.options.precision.name!r})"

    def __getstate__(self) -> NoReturn:
        help = "step.save and step.load keep a training; a copied net needs another mx.compile"
        raise TypeError(with_user_location("a compiled step cannot be copied or pickled", help=help))

    @property
    def clip_norm(self) -> float | None:
        """The largest norm that all gradients together have in an update, divided by the batch size; None: any.

        It may be set, for later updates. From None to a number and back is another program, which the next call
        compiles.

        Raises:
            ValueError: neither None nor a positive number is set.
            UnsupportedError: the step is loaded from an artefact, which has only one of both programs.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, use_bias=False, prefix="d_")
        >>> net.initialize(mx.init.Zero())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer, clip_norm=5.0)
        >>> step.clip_norm = 1.0
        >>> _ = step(nd.array([[3.0, 4.0]]), nd.array([[2.0]]))  # the gradient is (-6, -8)
        >>> net.weight.data().asnumpy().round(4)
        array([[0.6, 0.8]], dtype=float32)
        """
        return self.options.clip_norm

    @clip_norm.setter
    def clip_norm(self, value: float | None) -> None:
        check_clip_norm(value)
        with self.step_lock:
            self._specializations.check_clipping(value is not None)
            self.options = self._specializations.options = replace(self.options, clip_norm=value)

    # -- training

    @serialized
    def __call__(self, *batch: Any, batch_size: float | None = None) -> Any:
        """One step. Batch: NDArrays or numpy arrays (shared, not copied, where they are contiguous).

        Compiled with `steps_per_call`, a step on each batch of a stack: arrays have the batches along a first axis, and
        so do the results. An error then says which batch it is about, and the steps on those before it stand.

        `batch_size` defaults to the first extent of the loss, over all contexts; a scalar loss counts as one sample of
        its context. As nd.array does, this makes float32 of numpy's float64 and of lists; an NDArray keeps its type. An
        error leaves everything as it was.

        Raises:
            ShapeError, DTypeError: an array that does not fit, or has no elements.
            ZeroDivisionError, ValueError: batch_size is no positive number.
            ValueError: samples that do not divide into equal shares; lists for other contexts than the parameters'.
            NotFiniteError: a NaN or an infinity, with detect_anomaly.
            TraceError: the program wants numbers of traced values, or gives back no loss.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step(x, y).asnumpy().tolist()  # (2 - 0)² / 2 for each sample
        [2.0, 2.0, 2.0, 2.0]
        """
        if (most := self.options.steps_per_call) is not None:
            return several.call(self, batch, batch_size, most)
        return self._single(batch, batch_size)

    @serialized
    def single(self, *batch: Any, batch_size: float | None = None) -> Any:
        """One step on one batch, also where a call takes a stack of them (`steps_per_call`).

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer, steps_per_call=8)
        >>> step.single(nd.ones((4, 2)), nd.zeros((4, 1))).shape
        (4,)

        Raises:
            Exception: whatever a call of the step raises; everything stays as it was.
        """
        return self._single(batch, batch_size)

    def _single(self, batch: Sequence[Any], batch_size: float | None) -> Any:
        """One step on one batch; after the loss of a rank that this run goes on without, no step but the batch's
        loss."""
        while True:
            try:
                return self._step(batch, batch_size)
            except PeerLost:
                if not is_elastic() or self.trainer is None:
                    raise
            if recover(self, self.trainer):
                return self.evaluate(*batch)

    def _step(self, batch: Sequence[Any], batch_size: float | None) -> Any:
        with self._reports:
            trainer = self._ready(batch)
        if self.options.micro_batches:
            return self._in_micro_batches(trainer, batch, batch_size)
        if self._in_python(trainer):
            return self._backward_and_step(trainer, batch, batch_size)
        with self._reports:
            specialization, arrays = self._specializations.find("step", batch)
        results = self._update(
            trainer, specialization, arrays, batch_size if batch_size is not None else specialization.samples
        )
        return specialization.answer(results, batch)

    @serialized
    def accumulate(self, *batch: Any, batch_size: float | None = None) -> Any:
        """The loss of a batch, whose gradients are added to those since the last `apply`; weights stay as they are.

        `batch_size` says for how many samples the batch counts in `apply`; by default for those of its loss.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> trainer = gluon.Trainer(net.collect_params(), "adam")
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> for _ in range(4):
        ...     loss = step.accumulate(nd.ones((8, 2)), nd.zeros((8, 1)))
        >>> step.apply()  # one update, as of a step on these 32 samples

        Raises:
            Exception: whatever a call of the step raises; everything stays as it was.
        """
        trainer = self._ready(batch)
        if self.options.micro_batches:
            help = "give the whole batch to the step, which computes it in micro-batches"
            raise MXNetError(with_user_location("accumulate(), with deterministic", help=help))
        specialization, arrays = self._specializations.find("accumulate", batch)
        size = batch_size if batch_size is not None else specialization.samples
        trainer.scale_for(size)  # raises before anything changes
        results = self._run(specialization, arrays)
        if specialization.is_left_out(results):
            self.accumulator.add((), 0)
        else:
            self.accumulator.add(specialization.names, size)
        specialization.spend()
        return specialization.answer(results, batch)

    @serialized
    def apply(self, batch_size: float | None = None) -> None:
        """One update by the gradients that `accumulate` has added up, divided by their number of samples.

        Parameters that none of the batches read stay as they are. Gradients of parameters with grad_req "add" are the
        user's to empty, as after any step. With "16-mixed", batches whose gradients were not finite count for nothing;
        if there are no others, nothing happens.

        Raises:
            MXNetError: nothing has been accumulated.
            ZeroDivisionError, ValueError: batch_size is no positive number.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> for k in range(2):
        ...     loss = step.accumulate(x, y)
        >>> step.apply()
        >>> trainer.optimizer.num_update
        1
        """
        accumulator = self.accumulator
        with self._reports:
            if self.trainer is not None and not accumulator.batches:
                raise MXNetError(
                    with_user_location("apply: nothing has been accumulated", help="step.accumulate(x, y) comes first")
                )
            trainer = self._ready(())
        size = batch_size if batch_size is not None else trainer.mean_of_workers(accumulator.samples)
        if accumulator.names and self._in_python(trainer):
            self._check_whole(trainer)
            trainer.scale_for(size)
            self._step_in_python(trainer, {GRAD + k: sum.storage.array for k, sum in accumulator.live.items()}, size)
            accumulator.clear()
        elif accumulator.names:
            with self._reports:
                specialization, arrays = self._specializations.find("apply", ())
            self._update(trainer, specialization, arrays, size)
        accumulator.begin()

    def _in_micro_batches(self, trainer: Trainer, batch: Sequence[Any], batch_size: float | None) -> Any:
        """One step in micro-batches: their summed gradients are put where `apply` takes them from."""
        self._check_micro_batches(trainer)
        micro = MicroBatches(self, trainer, self.options.micro_batches)
        specialization, results, grads = micro.gradients(batch)
        size = batch_size if batch_size is not None else specialization.samples * micro.own
        accumulator, names = self.accumulator, [name.removeprefix(GRAD) for name in grads]
        accumulator.inputs(trainer, names)
        for name, total in zip(names, grads.values(), strict=True):
            accumulator.sums[name].storage.write(total)
        accumulator.add(names, size)
        try:
            apply, arrays = self._specializations.find("apply", ())
            self._update(trainer, apply, arrays, size)
            apply.sent_before = micro.sent
        finally:
            accumulator.clear()
        return specialization.answer(joined(results), batch)

    def _check_micro_batches(self, trainer: Trainer) -> None:
        """Refuse what is not computed in micro-batches."""
        exchange, wrong = trainer.exchange, ""
        if self._in_python(trainer):
            wrong = "where Python acts between gradients and updates"
        elif len(trainer.contexts) > 1:
            wrong = "with parameters on several contexts"
        elif exchange.sharding is not None or exchange.compression is not None:
            wrong = "with sharded state or compressed gradients"
        elif self.options.precision.scaled:
            wrong = "with a scaled loss"
        elif self.accumulator.batches:
            wrong = "after accumulate(), whose sums are of one rank"
        elif any(p.grad_req == "add" for p in trainer.params):
            wrong = 'with grad_req "add"'
        if wrong:
            raise MXNetError(with_user_location(f"deterministic, {wrong}", help="leave deterministic out"))

    def _ready(self, batch: Sequence[Any]) -> Trainer:
        """The trainer, prepared for a batch. Raises what forbids a step."""
        if (trainer := self.trainer) is None:
            raise MXNetError(
                with_user_location("this was compiled without a trainer, it cannot update", help="use predict(...)")
            )
        if self.averages is not None and self.averages.shown:
            raise MXNetError(
                with_user_location("training within averaged()", help="leave the block first: weights come back")
            )
        self._saver.check()
        self._specializations.prepare(trainer, batch)
        trainer.check_shards(eager=False)
        return trainer

    def _update(
        self, trainer: Trainer, specialization: Specialization, arrays: Sequence[Array], batch_size: float
    ) -> dict[str, Array]:
        """Run a graph with updates. An error leaves everything as it was; so does a gradient that is not finite, where
        updates are masked, but for the scale of the loss."""
        optimizer, table = trainer.optimizer, specialization.table
        assert table is not None
        scale = trainer.scale_for(batch_size)
        rollback = optimizer.checkpoint()
        try:  # a scheduler may fail, and a graph that is looked at while it runs
            optimizer.rescale_grad = scale
            optimizer.count(table.indices)
            for cell, value in zip(specialization.cells, table.values(optimizer), strict=True):
                cell[0] = value
            if specialization.others:
                values = self._others(scale)
                for name, cell in specialization.others.items():
                    cell[0] = values[name]
            results = self._run(specialization, arrays)
        except BaseException:
            rollback()
            raise
        if NORM in results:
            self.grad_norm = float(results[NORM]) * scale
        if specialization.is_left_out(results):
            rollback()
        elif self.options.keep_grads:
            _write_grads(trainer, results)
        specialization.spend()
        return results

    def _others(self, scale: float) -> dict[str, float]:
        """The scalars of an update that are not the optimizer's, by the names of inputs."""
        values = self.averages.scalars if self.averages is not None else {}
        return {**values, LIMIT: (self.options.clip_norm or 0.0) / scale}

    def _run(self, specialization: Specialization, arrays: Sequence[Array]) -> dict[str, Array]:
        """Run a graph. Where it fails, or its batch is left out, no random number has been drawn."""
        if not specialization.can_fail:
            return specialization.run(arrays)
        rollback = random.checkpoint(specialization.draws)
        try:
            results = specialization.run(arrays)
        except BaseException:
            rollback()
            raise
        if specialization.is_left_out(results):
            rollback()
            self.skipped += 1
        return results

    def _in_python(self, trainer: Trainer) -> bool:
        """Does Python act between gradients and updates? amp's look at gradients is in the graph where one is there."""
        return trainer.in_python or (trainer.skips and not self.options.precision.scaled)

    def _backward_and_step(self, trainer: Trainer, batch: Sequence[Any], batch_size: float | None) -> Any:
        """Forward and backward as one compiled call, then the trainer's `step`, because Python has a part in that."""
        self._check_whole(trainer)
        with self._reports:
            specialization, arrays = self._specializations.find("backward", batch)
        size = batch_size if batch_size is not None else specialization.samples
        trainer.scale_for(size)  # raises before anything changes
        with nullcontext() if specialization.communicates else self._reports:
            results = self._run(specialization, arrays)
        if not specialization.is_left_out(results):
            self._step_in_python(trainer, results, size)
        return specialization.answer(results, batch)

    def _check_whole(self, trainer: Trainer) -> None:
        """Refuse what is part of the graph that an update is, where Python acts between gradients and updates."""
        options = self.options
        for name, asked, instead in (
            ("clip_norm", options.clip_norm is not None, "gluon.utils.clip_global_norm in between"),
            ("grad_norm", options.grad_norm, "gluon.utils.clip_global_norm in between gives it"),
            ("error_if_nonfinite", options.error_if_nonfinite, "detect_anomaly looks at gradients too"),
            ("ema", options.ema is not None, "an average of your own after each step"),
        ):
            if asked:
                message = f"{name}, where Python acts between gradients and updates"
                raise MXNetError(with_user_location(message, help=f"leave {name} out; {instead}"))

    def _step_in_python(self, trainer: Trainer, results: Mapping[str, Array], batch_size: float) -> None:
        for name in _write_grads(trainer, results):
            trainer.replica(name)._fresh_grad = True
        trainer.step(batch_size, ignore_stale_grad=True)  # parameters that the program does not read stay

    # -- without updates

    @serialized
    def evaluate(self, *batch: Any) -> Any:
        """The loss (and metrics) of a batch with layers in prediction mode; nothing changes.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.evaluate(x, y).asnumpy().tolist()
        [2.0, 2.0, 2.0, 2.0]
        """
        specialization, arrays = self._specializations.find("evaluate", batch)
        return specialization.answer(specialization.run(arrays), batch)

    @serialized
    def predict(self, *inputs: Any) -> Any:
        """The net's output for inputs alone, layers in prediction mode.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.predict(x).asnumpy().tolist()
        [[2.0], [2.0], [2.0], [2.0]]
        """
        specialization, arrays = self._specializations.find("predict", inputs)
        return specialization.answer(specialization.run(arrays), inputs)

    @serialized
    def grads(self, *batch: Any) -> dict[str, NDArray]:
        """Gradients of the summed loss by parameter name; weights stay as they are, running statistics do not.

        With "16-mixed" they are 0 where one of them is not finite: the batch is left out, as a step on it would be.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.grads(x, y)["d_weight"].asnumpy().tolist()
        [[8.0, 8.0]]
        """
        with self._reports:
            if self.trainer is not None:
                self._specializations.prepare(self.trainer, batch)
            specialization, arrays = self._specializations.find("grads", batch)
        results = self._run(specialization, arrays)
        return {k.removeprefix(GRAD): NDArray(v) for k, v in results.items() if k.startswith(GRAD)}

    # -- what it keeps

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss, and the good steps since it changed, with precision="16-mixed".

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.loss_scale is None  # precision="32"
        True
        """
        return self.trainer.scaler if self.trainer is not None and self.options.precision.scaled else None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within: the parameters hold their averages, to evaluate, predict, export or save them; no training.

            with step.averaged():
                net.save_parameters("averaged.params")

        Raises:
            MXNetError: this was compiled without `ema`.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer, ema=0.5)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)  # the weights go from 1 to 0.8
        >>> with step.averaged():
        ...     round(float(net.weight.data().asnumpy()[0, 0]), 3)
        0.9
        """
        if self.averages is None or self.trainer is None:
            raise MXNetError(
                with_user_location("averaged() of a step without averages", help="mx.compile(..., ema=0.999)")
            )
        with self.averages.swapped(self.trainer):
            yield

    @serialized
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

        On several ranks all call this: rank 0 writes what all of them have, and all return when it is on disk.

        Raises:
            OSError: it could not be written; checkpoints that were there are whole.
            Disagreement: another rank has an error, or does not save.
            TypeError: `extra` holds what JSON does not, or a metric is no number.
            ArgumentError: the name of the folder is empty.
            ValueError: `keep` asks for less than one, or goes by a metric that is not given.
            MXNetError: there is no trainer; or a part of the state is where nothing can read it.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> import os, tempfile
        >>> loss = step(x, y)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     folder = step.save(run, extra={"epoch": 3})
        ...     os.path.isdir(folder)
        True
        """
        with self._reports:
            folder = _folder("save", dir)
            policy = checkpoint.keeping(keep, metrics)
            self._saver.wait()
            content = checkpoint.taken(self, extra, metrics)
        return str(collective.save(self, self._saver, folder, content, policy, asynchronous))

    @serialized
    def reserve(self) -> None:
        """Take the memory that asynchronous saves copy the state to now, in a thread, beside the training.

        The first of them need not wait for it then: to get memory takes longer than to copy. Call it after the first
        step, which makes the optimizer's states. Raises what `save` raises.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)
        >>> step.reserve()
        """
        self._saver.reserve(room(checkpoint.taken(self, None, None)))

    @serialized
    def load(self, dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from the newest checkpoint of a run's folder, or from the one whose folder this is: its `extra`.

        A checkpoint that is not as it was written is not read: the one before is, and a warning says so.

        On several ranks all call this: rank 0 reads for all of them. There may be more or fewer than have saved.

        Raises:
            ArgumentError: the name of the folder is empty.
            FileNotFoundError: there is no checkpoint.
            FormatError: none is whole, or the newest is of another net, optimizer or version; nothing is changed.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> import tempfile
        >>> loss = step(x, y)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     folder = step.save(run, extra={"epoch": 3})
        ...     step.load(run)
        {'epoch': 3}
        """
        with self._reports:
            folder = _folder("load", dir)
            self._saver.wait()
        return collective.load(self, folder)

    def wait(self) -> None:
        """Until an asynchronous `save` is on disk: on several ranks, for rank 0. Raises OSError where it could not be
        written.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> import tempfile
        >>> loss = step(x, y)
        >>> with tempfile.TemporaryDirectory() as run:
        ...     folder = step.save(run, asynchronous=True)
        ...     step.wait()
        """
        self._saver.wait()

    @serialized
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        batches: Sequence[Sequence[Any]] | None = None,
        batch_sizes: Sequence[int] | None = None,
        modes: Sequence[str] | None = None,
        target: str | None = None,
        progress: bool = True,
    ) -> None:
        """Write the step as an artefact: one file that trains on where this program is not. See docs/artefact.md.

        It holds the compiled code of every mode, weights, states, counters and the schedule. `mx.load(path)` gives the
        step back, without tracing or compiling, and so does a runner without Python; training goes on bit for bit. Of
        several ranks one exports; where each has a part of the state, by a strategy or what compression keeps back, all
        call this, and the first one writes.

        Args:
            batches: arrays, as a call takes them, for whose shapes it is compiled; by default those of calls so far.
            batch_sizes: instead, the last of these with other first extents: `[32, 5]`.
            modes: some of step, evaluate, predict, grads, accumulate, apply; by default all.
            target: a row of `gluongraph.codegen.targets`, or "cuda:sm_90"; by default that of the step.
            progress: on a terminal, show how far it is; GG_PROGRESS=0 in the environment shows nothing either.

        Raises:
            ArgumentError: the name of the file is empty.
            MXNetError: no shapes are known yet; or what it does cannot be written down: several contexts, an optimizer
                without a formula, numbers of an update that are none.
            CompileError: no such target, or nothing here that links for it.
            OSError: the file cannot be written.
            Disagreement: where all ranks export, not all of them do.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     step.export(folder + "/step.gga", batches=[(x, y)], modes=["step"])
        ...     os.listdir(folder)
        ['step.gga']
        """
        from gluongraph.artefact.export import export

        export(self, path, batches, batch_sizes, modes, target, progress)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the graph of the last call as ONNX: of a step forward, backward and update, and what they update.

        Its operators are the IR's own, in the domain `gluongraph`; `mx.onnx.load_graph` gives the identical graph back.
        docs/onnx.md says how they are written. A network for others to run is `net.export_onnx(path)`.

        Raises:
            ArgumentError: the name of the file is empty.
            MXNetError: nothing has been called yet, or the package onnx is not installed.
            OSError: the file cannot be written.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> import os, tempfile
        >>> loss = step(x, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     step.export_onnx(folder + "/step.onnx")
        ...     os.listdir(folder)
        ['step.onnx']
        """
        check_name("export_onnx", path, "step.export_onnx('step.onnx')")
        from gluongraph.onnx.export.program import program
        from gluongraph.onnx.export.writing import write

        last = self._specializations.last
        arrays = {name: a.asnumpy() for name, a in last.state.items() if name in self.graph.inputs}
        write(path, program(self.graph, arrays, "step"))


class _Reports:
    """Within: an error lets the other workers of a trainer know, who have begun the same step, before they communicate.
    One object for all steps: they enter it twice."""

    __slots__ = ("trainer",)

    def __init__(self, trainer: Trainer | None):
        self.trainer = trainer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and self.trainer is not None:
            self.trainer.report(error)


def _folder(method: str, dir: str | os.PathLike[str]) -> Path:
    """The folder of a run. An empty name would mean the current one."""
    check_name(method, dir, f"step.{method}('run')", "folder")
    return Path(dir)


def _write_grads(trainer: Trainer, results: Mapping[str, Array]) -> list[str]:
    """Put gradients where an eager backward would have; gives the names of the replicas."""
    written = []
    for name in trainer.exchange.indices:
        if (value := results.get(GRAD + name)) is not None and (leaf := trainer.replica(name)._leaf) is not None:
            leaf.grad.storage.write(value)
            leaf.spent = False
            written.append(name)
    return written
