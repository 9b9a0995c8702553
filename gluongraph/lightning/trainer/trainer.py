"""Trainer: the arguments of a training, and fit, validate, test and predict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.lightning import arguments as args
from gluongraph.lightning.accelerators.accelerator import accelerator_of
from gluongraph.lightning.batch import cast_floats
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.defaults import default_callbacks, default_loggers
from gluongraph.lightning.engine.engines import JOINED
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.foreign import is_data_module
from gluongraph.lightning.loggers.logger import Logger
from gluongraph.lightning.profilers import PassThroughProfiler, profiler_of
from gluongraph.lightning.ranks import Ranks
from gluongraph.lightning.run import TRUE_PRECISIONS, Run
from gluongraph.lightning.run_state import RunState
from gluongraph.lightning.states import RunningStage
from gluongraph.lightning.strategies import Strategy, strategy_of_trainer


class Trainer(RunState):
    """Runs the loops of a training: epochs, validation, checkpoints, logging. Arguments are Lightning's.

    Each batch is one call of a compiled step, which makes forward, backward and update; see docs/lightning.md.

    Args:
        accelerator: "auto", "cpu", or "gpu", or an object.
        strategy: "auto", "ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", or an object.
        devices: how many processes train together; they are started unless mpiexec, srun or torchrun has started them.
        num_nodes: hosts; each runs `devices` processes.
        precision: "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true".
        logger: a logger, a list of them, True for TensorBoard or else CSV, False for none.
        callbacks: callbacks, called in this order.
        fast_dev_run: run so many batches of everything, once; loggers and ModelCheckpoint write nothing.
        max_epochs, min_epochs, max_steps, min_steps: when to stop; steps are updates. 1000 epochs without either.
        max_time: "DD:HH:MM:SS", a timedelta or its arguments.
        limit_train_batches, limit_val_batches, limit_test_batches, limit_predict_batches: a number of batches, or a
            share of them.
        overfit_batches: train and validate on so many batches (or that share), the same in each epoch.
        val_check_interval: a share of an epoch or a number of batches after which is validated, a number of updates as
            "10 steps", or a time.
        check_val_every_n_epoch: validate in each n-th epoch; None counts batches or steps across epochs.
        num_sanity_val_steps: batches of validation before the training; -1 for all.
        log_every_n_steps: how often loggers get values of steps; 10 and "10 steps" are the same.
        enable_checkpointing, enable_progress_bar, enable_model_summary: the callbacks that are there by default.
        accumulate_grad_batches: batches to an update, by the mean of their gradients.
        lightning_remainder: divide the gradients of the last window of an epoch, which may have fewer batches, by
            `accumulate_grad_batches`, as Lightning does; by default by their number.
        gradient_clip_val, gradient_clip_algorithm: the largest norm ("norm") or element ("value") of gradients.
        gradient_clip_norm_type: which norm: the p of (sum |g|^p)^(1/p), or "inf" for the largest |g|.
        error_if_nonfinite: where the norm of all gradients is not finite, change nothing and raise NotFiniteError.
        deterministic: accepted; results are the same for the same seed in any case.
        profiler: "simple", "advanced", "pytorch", or an object with `profile(name)`.
        detect_anomaly: stop at the first NaN or infinity, and name the op that made it.
        barebones: leave out everything that takes time beside the steps.
        sync_batchnorm: with Gluon's SyncBatchNorm layers only.
        use_distributed_sampler: let each rank have its part of the samples.
        reload_dataloaders_every_n_epochs: ask for loaders again.
        default_root_dir: where logs and checkpoints are written.
        steps_per_call: updates in one call where nobody looks in between; None decides by the time of a step.
        eager: run steps in the framework of the module's layers, without compiling them.

    Raises:
        MisconfigurationException: values that mean nothing, or that contradict each other.

    >>> import gluongraph.lightning as L
    >>> trainer = L.Trainer(max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False)
    >>> trainer.max_epochs, trainer.current_epoch, trainer.global_step
    (3, 0, 0)
    """

    @args.checks_names
    def __init__(
        self,
        *,
        accelerator: Any = "auto",
        strategy: str | Strategy = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        logger: Logger | Iterable[Logger] | bool | None = None,
        callbacks: list[Callback] | Callback | None = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: Any = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: Any = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | str | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: Any = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: str | PassThroughProfiler | None = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Any = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: Any = None,
        enable_autolog_hparams: bool = True,
        model_registry: Any = None,
        steps_per_call: int | None = None,
        eager: bool = False,
        gradient_clip_norm_type: float | str = 2.0,
        error_if_nonfinite: bool = False,
        lightning_remainder: bool = False,
    ):
        args.check_switches(
            enable_checkpointing=enable_checkpointing,
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            deterministic=None if deterministic == "warn" else deterministic,
            benchmark=benchmark,
            inference_mode=inference_mode,
            use_distributed_sampler=use_distributed_sampler,
            detect_anomaly=detect_anomaly,
            barebones=barebones,
            sync_batchnorm=sync_batchnorm,
            enable_autolog_hparams=enable_autolog_hparams,
            eager=eager,
            error_if_nonfinite=error_if_nonfinite,
            lightning_remainder=lightning_remainder,
        )
        if barebones:
            args.check_barebones(
                logger=logger,
                fast_dev_run=fast_dev_run,
                num_sanity_val_steps=num_sanity_val_steps,
                log_every_n_steps=log_every_n_steps,
                enable_checkpointing=enable_checkpointing,
                enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary,
                profiler=profiler,
                detect_anomaly=detect_anomaly,
            )
        if plugins or model_registry:
            raise misconfigured("plugins and model_registry: there are none", help="leave them out")
        self.target = args.target_of(accelerator)
        self.accelerator = accelerator_of(accelerator, self.target)
        self.precision = args.check_precision(precision)
        self.sharding = args.strategy_of(strategy)  # the strategy of the gluon.Trainer
        args.check_count("num_nodes", num_nodes, 1)
        self.num_nodes, self.num_devices = num_nodes, args.devices_of(devices, self.target)
        self.ranks = Ranks(self.num_devices, num_nodes)
        self.strategy = strategy_of_trainer(strategy, self.ranks)
        self.barebones = barebones
        self._set_durations(max_epochs, min_epochs, max_steps, min_steps, max_time)
        self._set_limits(
            fast_dev_run,
            limit_train_batches,
            limit_val_batches,
            limit_test_batches,
            limit_predict_batches,
            overfit_batches,
        )
        self._set_validation(val_check_interval, check_val_every_n_epoch, num_sanity_val_steps)
        self.log_every_n_steps: int = args.updates_of("log_every_n_steps", log_every_n_steps, 50)
        args.check_count("accumulate_grad_batches", accumulate_grad_batches, 1)
        self.accumulate_grad_batches, self.lightning_remainder = accumulate_grad_batches, lightning_remainder
        self._clipping = gradient_clip_val, args.check_clipping(gradient_clip_val, gradient_clip_algorithm)
        self.gradient_clip_norm_type = args.check_norm_type(gradient_clip_norm_type, *self._clipping)
        self.deterministic, self.benchmark, self.inference_mode = deterministic, benchmark, inference_mode
        self.use_distributed_sampler, self.sync_batchnorm = use_distributed_sampler, sync_batchnorm
        args.check_count("reload_dataloaders_every_n_epochs", reload_dataloaders_every_n_epochs, 0)
        self.reload_dataloaders_every_n_epochs = reload_dataloaders_every_n_epochs
        self.detect_anomaly = detect_anomaly
        self.default_root_dir = args.folder_of("default_root_dir", default_root_dir)
        self.enable_autolog_hparams = enable_autolog_hparams
        args.check_count("steps_per_call", steps_per_call, 1)
        self.steps_per_call, self.eager, self.error_if_nonfinite = steps_per_call, eager, error_if_nonfinite
        self.profiler = profiler_of(profiler)
        self._begin()
        self.loggers: list[Any] = default_loggers(self, False if barebones else logger)
        self.callbacks: list[Callback] = default_callbacks(
            self,
            callbacks,
            checkpoints=enable_checkpointing if not barebones else False,
            progress=enable_progress_bar if not barebones else False,
            summary=enable_model_summary if not barebones else False,
            max_time=self.max_time,
        )

    def _set_durations(self, max_epochs: Any, min_epochs: Any, max_steps: Any, min_steps: Any, max_time: Any) -> None:
        args.check_count("max_steps", max_steps, -1)
        if max_epochs is not None:
            args.check_count("max_epochs", max_epochs, -1)
        args.check_count("min_epochs", min_epochs, 0)
        args.check_count("min_steps", min_steps, 0)
        self.max_time = args.seconds_of("max_time", max_time)
        if max_epochs is None:
            max_epochs = 1000 if max_steps == -1 and self.max_time is None else -1
        self.max_epochs, self.max_steps = max_epochs, max_steps
        if min_epochs is None and min_steps is not None:
            min_epochs = 1  # as in Lightning: an epoch that is begun is ended
        self.min_epochs, self.min_steps = min_epochs or 0, min_steps

    def _set_limits(self, fast_dev_run: Any, train: Any, val: Any, test: Any, predict: Any, overfit: Any) -> None:
        fast_dev_run = int(fast_dev_run) if isinstance(fast_dev_run, bool) else fast_dev_run
        args.check_count("fast_dev_run", fast_dev_run, 0, ", or True or False")
        self.fast_dev_run = fast_dev_run or 0
        self.overfit_batches = 0.0 if overfit == 0 else args.check_limit("overfit_batches", overfit)
        limits = {"train": train, "val": val, "test": test, "predict": predict}
        for name, value in limits.items():
            limit = args.check_limit(f"limit_{name}_batches", value)
            if self.fast_dev_run:
                limit = self.fast_dev_run
            elif self.overfit_batches and name in ("train", "val"):
                limit = self.overfit_batches
            setattr(self, f"limit_{name}_batches", limit)
        if self.fast_dev_run:
            self.max_steps, self.max_epochs = self.fast_dev_run, 1
            self.min_epochs = self.min_steps = None

    limit_train_batches: int | float
    limit_val_batches: int | float
    limit_test_batches: int | float
    limit_predict_batches: int | float

    def _set_validation(self, interval: Any, every: Any, sanity: Any) -> None:
        args.check_count("check_val_every_n_epoch", every, 1)
        self.check_val_every_n_epoch = every
        count, unit = args.counted("val_check_interval", interval)
        interval = count if unit == "batches" else interval
        self.val_check_steps = count if unit == "steps" else None
        is_time = interval is not None and unit is None and not isinstance(interval, (int, float))
        otherwise = ', or "10 steps", a number of batches or a share of the epoch'
        self.val_check_seconds = args.seconds_of("val_check_interval", interval, otherwise) if is_time else None
        self.val_check_interval = interval if unit == "steps" else args.check_val_check_interval(interval, every)
        if self.fast_dev_run:
            self.val_check_interval, self.check_val_every_n_epoch = 1.0, 1
            self.val_check_seconds = self.val_check_steps = None
        if sanity is not None:
            args.check_count("num_sanity_val_steps", sanity, -1)
        steps = (0 if self.barebones else 2) if sanity is None else sanity
        self.num_sanity_val_steps: float = 0 if self.fast_dev_run else float("inf") if steps == -1 else steps

    # -- the four calls

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train a model.

        Args:
            model: a LightningModule, or (net, loss, optimizer).
            train_dataloaders: a loader: any iterable of batches; or a data module.
            val_dataloaders: a loader or a list of them.
            datamodule: a LightningDataModule, in place of loaders.
            ckpt_path: go on from a checkpoint: its path, "best" or "last".

        Raises:
            MisconfigurationException: hooks, loaders or arguments that contradict each other.
            TypeError: it is no model.
        """
        train_dataloaders, datamodule = _split(train_dataloaders, datamodule, "fit")
        given = {"train": train_dataloaders, "val": val_dataloaders}
        Run(self, "fit", model, given, datamodule, ckpt_path)()

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run the validation: what was logged, a dict for each loader.

        Without a model that of the last fit, with the weights of its best checkpoint.
        """
        return self._evaluate("validate", model, dataloaders, ckpt_path, verbose, datamodule)

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run the test: what was logged, a dict for each loader.

        Without a model that of the last fit, with the weights of its best checkpoint.
        """
        return self._evaluate("test", model, dataloaders, ckpt_path, verbose, datamodule)

    def _evaluate(
        self, fn: str, model: Any, loaders: Any, ckpt_path: Any, verbose: bool, datamodule: Any
    ) -> list[dict[str, float]]:
        loaders, datamodule = _split(loaders, datamodule, fn)
        kind = "val" if fn == "validate" else "test"
        results: list[dict[str, float]] = Run(self, fn, model, {kind: loaders}, datamodule, ckpt_path)()
        if verbose and self.is_global_zero:
            import_whole("gluongraph.lightning.table")
            from gluongraph.lightning.table import print_results

            print_results(results, fn)
        return results

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Run predict_step: its results, a list for each loader; of a single loader that list.

        On several ranks all get the results of all of them, in the order of the samples.
        """
        loaders, datamodule = _split(dataloaders, datamodule, "predict")
        self.predict_loop.return_predictions = return_predictions is not False
        return Run(self, "predict", model, {"predict": loaders}, datamodule, ckpt_path)()

    # -- steps

    @property
    def manual_optimizers(self) -> list[Any]:
        """The optimizers as manual optimization uses them."""
        engine = getattr(self.engines, "engine", None)
        return list(getattr(engine, "optimizers", None) or self.optimizers)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """The backward pass of manual optimization."""
        self.engines.engine.backward(loss, *args, **kwargs)

    @property
    def gradient_clip_val(self) -> float | None:
        """The bound of gradients; it may be set during a fit, for the updates after that."""
        return self._clipping[0]

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        self._clip(value, self.gradient_clip_algorithm)

    @property
    def gradient_clip_algorithm(self) -> str | None:
        """What is bounded: the "norm" of all gradients, or the "value" of each element; None is "norm"."""
        return self._clipping[1]

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, algorithm: str | None) -> None:
        self._clip(self.gradient_clip_val, algorithm)

    def _clip(self, value: float | None, algorithm: str | None) -> None:
        self._clipping = value, args.check_clipping(value, algorithm)
        if self.engines is not None:
            self.engines.clip()

    def clip_gradients(self, optimizer: Any, value: float | None, algorithm: str | None) -> None:
        """Clip the gradients that parameters show now: by the arguments, or the Trainer's settings."""
        import_whole("gluongraph.lightning.clipping")
        from gluongraph.lightning.clipping import clip

        value = self.gradient_clip_val if value is None else value
        clip(self, optimizer, value, algorithm or self.gradient_clip_algorithm or "norm")

    @property
    def clip_norm(self) -> float | None:
        """The bound of the norm of all gradients; None where it is not bounded."""
        value, algorithm = self._clipping
        return float(value) if value and algorithm != "value" else None

    @property
    def clip_value(self) -> float | None:
        """The bound of each element of the gradients; None where it is not bounded."""
        value, algorithm = self._clipping
        return float(value) if value and algorithm == "value" else None

    def window_length(self, batch_idx: int) -> int:
        """By how many batches the gradients of the window of this batch are divided: those that it has, unless
        `lightning_remainder`."""
        every = self.accumulate_grad_batches
        if every == 1 or self.lightning_remainder or self.num_training_batches == float("inf"):
            return every
        begin = batch_idx // every * every
        return min(every, int(self.num_training_batches) - begin)

    def compile_options(self, evaluation: bool = False) -> dict[str, Any]:
        """The arguments of `mx.compile`."""
        mixed = self.precision if self.precision.endswith("-mixed") else "32"
        options: dict[str, Any] = {"target": self.target, "precision": mixed}
        if evaluation:
            return {**options, "precision": "bf16-mixed" if mixed == "bf16-mixed" else "32"}
        options["clip_norm"], options["norm_type"] = self.clip_norm, self.gradient_clip_norm_type
        if self.ema is not None:
            options["ema"] = self.ema
        options["detect_anomaly"], options["error_if_nonfinite"] = self.detect_anomaly, self.error_if_nonfinite
        joins = self.steps_per_call != 1 and self.target == "cpu"
        options["steps_per_call"] = (self.steps_per_call or JOINED) if joins else None
        return options

    def transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """A batch as the hooks of the module make it, cast to the precision."""
        if self.transfers:
            owner = self.data.datamodule or self.lightning_module
            for each in (owner, self.lightning_module) if owner is not self.lightning_module else (owner,):
                batch = each.on_before_batch_transfer(batch, dataloader_idx)
                batch = each.transfer_batch_to_device(batch, self.lightning_module.device, dataloader_idx)
                batch = each.on_after_batch_transfer(batch, dataloader_idx)
        return batch if self.cast is None else cast_floats(batch, self.cast)

    @property
    def step(self) -> Any:
        """The compiled step; None where nothing is compiled."""
        engine = getattr(self.engines, "engine", None)
        return getattr(engine, "step", None)

    @property
    def step_flops(self) -> float | None:
        """The floating-point operations of one update; None before the first one."""
        import_whole("gluongraph.lightning.engine.cost")
        from gluongraph.lightning.engine.cost import step_cost

        return step_cost(self.step)[0]

    @property
    def step_bytes(self) -> float | None:
        """The bytes that one update moves; None before the first one."""
        import_whole("gluongraph.lightning.engine.cost")
        from gluongraph.lightning.engine.cost import step_cost

        return step_cost(self.step)[1]

    # -- evaluation within fit

    def setup_validation(self) -> None:
        """Ask for the loaders of the validation, before the training, so that their lengths are known."""
        if self.validate_loop.loaders is None and self.enable_validation:
            self.validate_loop.setup()

    def validate_in_fit(self) -> None:
        """The validation where the training has come to."""
        with self.stage("validate"):
            self.validate_loop.run()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Within: this is what is being done."""
        before, self.state.stage = self.state.stage, RunningStage(name)
        try:
            yield
        finally:
            self.state.stage = before

    @contextmanager
    def evaluation_mode(self, kind: str) -> Iterator[None]:
        """Within: the module predicts."""
        module = self.lightning_module
        modes = [(m, m.training) for m in module.modules()] if self.is_torch else []
        self.hooks.call_module(f"on_{kind}_model_eval")
        try:
            yield
        finally:
            name = f"on_{kind}_model_train"
            if kind != "predict" and self.hooks.overridden(name):
                self.hooks.call_module(name)
            for each, training in modes:
                each.training = training

    def evaluation_weights(self) -> Any:
        """Within: weights are whole, where ranks have parts of them."""
        return (
            self.gluon_trainer.whole_parameters() if self.sharding == "fsdp" and self.gluon_trainer else nullcontext()
        )

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Within: parameters hold their running averages.

        Raises:
            MXNetError: there are none.
        """
        if (averages := getattr(self.engines.engine, "averages", None)) is None:
            raise misconfigured("there are no averages of the weights", help="callbacks=[EMAWeightAveraging()]")
        self.engines.steps.take_over()
        with averages.swapped(self.gluon_trainer):
            yield

    def reloads(self, loop: Any) -> bool:
        """Are the loaders of a loop to be asked for again?"""
        every = self.reload_dataloaders_every_n_epochs
        if not every or self.state.fn != "fit":
            return False
        since = getattr(loop, "_loaded_epoch", 0)
        due = self.current_epoch - since >= every
        if due:
            loop._loaded_epoch = self.current_epoch
        return bool(due)

    # -- modules

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Iterator[None]:
        """Within: tensors of PyTorch's are made with the type of the precision. `empty_init` is taken, and weights have
        their first values in any case.

        >>> import gluongraph.lightning as L
        >>> import torch
        >>> with L.Trainer(max_epochs=1, precision="64-true", logger=False).init_module():
        ...     layer = torch.nn.Linear(2, 1)
        >>> layer.weight.dtype
        torch.float64
        """
        dtype = TRUE_PRECISIONS.get(self.precision)
        if dtype is None or not is_torch_loaded():
            yield
            return
        torch = import_whole("torch")
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    # -- checkpoints

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = False, storage_options: Any = None) -> None:
        """Write a checkpoint, a folder of that name; all ranks call this. It is there when it is whole, or not at all.

        Raises:
            MisconfigurationException: no module is attached.
            OSError: it cannot be written.
        """
        import_whole("gluongraph.lightning.checkpoints")
        from gluongraph.lightning.checkpoints import save

        if self.lightning_module is None:
            raise misconfigured("save_checkpoint before a fit, validate, test or predict: there is no module")
        save(self, filepath, bool(weights_only))


def _split(loaders: Any, datamodule: Any, fn: str) -> tuple[Any, Any]:
    """Loaders and data module: a data module may come in the place of loaders."""
    if is_data_module(loaders):
        loaders, datamodule = None, loaders
    if loaders is not None and datamodule is not None:
        raise misconfigured(f"`Trainer.{fn}` got loaders and a data module", help="give one of them")
    return loaders, datamodule
