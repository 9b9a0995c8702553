"""RunState: what a Trainer is doing, and what users, callbacks and loggers ask of it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.batch import batch_size_of, flatten
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.loops.counters import Counters
from gluongraph.lightning.loops.evaluation import EvaluationLoop, PredictionLoop
from gluongraph.lightning.loops.fit import FitLoop
from gluongraph.lightning.metric_log import MetricLog, Seen
from gluongraph.lightning.metrics import Logged, Store
from gluongraph.lightning.optimizers import LRSchedulerConfig
from gluongraph.lightning.profilers import PassThroughProfiler
from gluongraph.lightning.ranks import Ranks
from gluongraph.lightning.read_attributes import noted, other_for_each_batch
from gluongraph.lightning.states import TrainerState
from gluongraph.lightning.termination import Termination

_UNMEASURED = nullcontext()


class RunState:
    """Stages, counters, batches, loaders, callbacks, metrics and ranks of a run. A `Trainer` is one."""

    callbacks: list[Callback]
    loggers: list[Any]
    ranks: Ranks
    profiler: Any
    num_devices: int
    default_root_dir: str
    max_epochs: Any
    max_steps: int
    accumulate_grad_batches: int
    lightning_remainder: bool
    limit_val_batches: Any
    num_sanity_val_steps: Any

    def _begin(self) -> None:
        """What a run changes."""
        self.state = TrainerState()
        self.should_stop = False
        self.termination = Termination()
        self.fit_loop = FitLoop(self)
        self.validate_loop = EvaluationLoop(self, "validation")
        self.test_loop = EvaluationLoop(self, "test")
        self.predict_loop = PredictionLoop(self)
        self.metric_log = MetricLog(self)
        self.lightning_module: Any = None
        self.datamodule: Any = None
        self.data: Any = None
        self.hooks: Any = None
        self.engines: Any = None
        self.gluon_trainer: Any = None
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.dataloader_idx: int | None = None
        self.batch: Any = None  # the one that hooks and steps are called for, None between batches
        self.last_validation = 0.0
        self.ckpt_path: str | None = None
        self.is_torch = False
        self.transfers = False
        self.cast: str | None = None  # what floats of batches are cast to
        self.ema: float | None = None

    @property
    def counters(self) -> Counters:
        """The counters of the training."""
        return self.fit_loop.counters

    @noted
    def current_epoch(self) -> int:
        """The number of the epoch, from 0 on."""
        return self.counters.epoch

    @other_for_each_batch
    def global_step(self) -> int:
        """How many updates have been made."""
        return self.counters.global_step

    @other_for_each_batch
    def is_last_batch(self) -> bool:
        """Is this the last batch of the epoch?"""
        return self.counters.is_last_batch

    @noted
    def training(self) -> bool:
        """Is a batch of the training being run?"""
        return self.state.stage == "train"

    @noted
    def sanity_checking(self) -> bool:
        """Is the validation run before the training?"""
        return self.state.stage == "sanity_check"

    @noted
    def validating(self) -> bool:
        """Is a validation being run?"""
        return self.state.stage == "validate"

    @noted
    def testing(self) -> bool:
        """Is a test being run?"""
        return self.state.stage == "test"

    @noted
    def predicting(self) -> bool:
        """Are predictions being made?"""
        return self.state.stage == "predict"

    @noted
    def evaluating(self) -> bool:
        """Is a validation or a test being run?"""
        return self.state.stage in ("validate", "test", "sanity_check")

    @property
    def interrupted(self) -> bool:
        """Has the last call been ended by an error?"""
        return self.state.status == "interrupted"

    def measured(self, name: str) -> Any:
        """Within: the profiler, if there is one, measures this part."""
        return _UNMEASURED if type(self.profiler) is PassThroughProfiler else self.profiler.profile(name)

    @property
    def received_sigterm(self) -> bool:
        """Has the process been asked to end by SIGTERM? The run ends after the batch."""
        return self.termination.received

    @property
    def model(self) -> Any:
        """The module."""
        return self.lightning_module

    @property
    def num_training_batches(self) -> int | float:
        """The batches of an epoch; inf where the loader does not know."""
        return self.fit_loop.num_batches

    @property
    def val_check_batch(self) -> int | float | None:
        """After how many batches is validated; None where that is counted in updates or by the clock."""
        return self.fit_loop.val_check_batch

    @property
    def num_val_batches(self) -> list[int | float]:
        """The batches of each loader of the validation."""
        return self.validate_loop.batches

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """The batches of each loader in the sanity check."""
        return [min(self.num_sanity_val_steps, n) for n in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[int | float]:
        """The batches of each loader of the test."""
        return self.test_loop.batches

    @property
    def num_predict_batches(self) -> list[int | float]:
        """The batches of each loader of the predictions."""
        return self.predict_loop.batches

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training."""
        return self.fit_loop.loader

    @property
    def val_dataloaders(self) -> Any:
        """The loader of the validation, or the list of them."""
        return _one_or_many(self.validate_loop.loaders)

    @property
    def test_dataloaders(self) -> Any:
        """The loader of the test, or the list of them."""
        return _one_or_many(self.test_loop.loaders)

    @property
    def predict_dataloaders(self) -> Any:
        """The loader of the predictions, or the list of them."""
        return _one_or_many(self.predict_loop.loaders)

    @property
    def estimated_stepping_batches(self) -> int | float:
        """How many updates `fit` will make; inf where it is not known."""
        if self.fit_loop.loader is None and self.data is not None:
            self.fit_loop.setup()
        if self.max_epochs == -1:
            return float("inf") if self.max_steps == -1 else self.max_steps
        if self.num_training_batches == float("inf"):
            return self.max_steps if self.max_steps != -1 else float("inf")
        updates: int = -(-int(self.num_training_batches) // self.accumulate_grad_batches) * self.max_epochs
        return updates if self.max_steps == -1 else min(updates, self.max_steps)

    @property
    def enable_validation(self) -> bool:
        """Is there a validation in `fit`?"""
        return bool(
            self.data is not None
            and self.data.has("val")
            and self.has_step("validation_step")
            and self.limit_val_batches > 0
        )

    @property
    def logger(self) -> Any:
        """The first logger; None without one."""
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> str | None:
        """Where the first logger writes."""
        made = (
            self.default_root_dir
            if not self.loggers
            else getattr(self.loggers[0], "log_dir", None) or self.loggers[0].save_dir
        )
        return self.broadcast(str(made)) if made is not None else None

    def has_step(self, name: str) -> bool:
        """Does the module have a step function of its own?"""
        return self.hooks is not None and self.hooks.overridden(name)

    # -- callbacks

    def _callbacks_of(self, *kinds: str) -> list[Any]:
        import_whole("gluongraph.lightning.callbacks")
        from gluongraph.lightning import callbacks

        classes = tuple(getattr(callbacks, kind) for kind in kinds)
        return [c for c in self.callbacks if isinstance(c, classes)]

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """The callbacks that save checkpoints."""
        return self._callbacks_of("Checkpoint")

    @property
    def checkpoint_callback(self) -> Any:
        """The first callback that saves checkpoints; None without one."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """The callbacks that stop early."""
        return self._callbacks_of("EarlyStopping")

    @property
    def early_stopping_callback(self) -> Any:
        """The first callback that stops early; None without one."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Any:
        """The progress bar; None without one."""
        return next(iter(self._callbacks_of("ProgressBar")), None)

    # -- metrics

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """All logged values by name, as callbacks see them."""
        return self._values("callback")

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """The values that loggers get."""
        return self._values("log")

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The values that the progress bar shows."""
        return dict(self.metric_log.seen("pbar"))

    def _values(self, kind: str) -> dict[str, Any]:
        found = self.metric_log.seen(kind)
        if not self.is_torch:
            return Seen(found, np.float64)
        from gluongraph.torch.export import torch

        dtype = torch().float64 if self.cast == "float64" else None  # PyTorch's default
        return Seen(found, partial(torch().tensor, dtype=dtype))

    def log_value(self, logged: Logged, value: float) -> None:
        """Take a value that a hook logs."""
        weighted = logged.reduce_fx == "mean" and logged.on_epoch and logged.batch_size is None
        known = weighted and self.batch is not None
        self.metric_log.store.log(logged, value, batch_size_of(flatten(self.batch)[0]) if known else 1)

    def synchronize_metrics(self, store: Store) -> None:
        """Reduce the values that are logged with sync_dist over all ranks."""
        if self.world_size > 1:
            store.synchronize(self.ranks.reduce_all, self.ranks.agree)

    # -- ranks

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self.ranks.size

    @property
    def global_rank(self) -> int:
        """The number of this process."""
        return self.ranks.rank

    @property
    def local_rank(self) -> int:
        """The number of this process on its host."""
        return self.ranks.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this host."""
        return self.ranks.rank // max(self.num_devices, 1)

    @property
    def is_global_zero(self) -> bool:
        """Is this the first process?"""
        return self.ranks.rank == 0

    @property
    def device_ids(self) -> list[int]:
        """The devices of this host."""
        return list(range(self.num_devices))

    def reduce(self, value: float, op: str = "mean") -> float:
        """A number of all ranks, reduced by "mean", "sum", "max" or "min"; all ranks call this."""
        return self.ranks.reduce(value, op)

    def agreed(self, count: int | float) -> int | float:
        """The least of the numbers of batches that the ranks have."""
        return count if self.world_size == 1 else self._whole(self.reduce(float(count), "min"))

    @staticmethod
    def _whole(count: float) -> int | float:
        return count if count == float("inf") else int(count)

    def broadcast(self, text: str) -> str:
        """The text of the first rank; all ranks call this."""
        return self.ranks.broadcast(text)

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks are here."""
        self.ranks.barrier()

    def all_gather(self, data: Any) -> Any:
        """The arrays of all ranks, stacked along a new first axis; of one rank as they are. All ranks call this."""
        return self.ranks.all_gather(data, self.is_torch)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first rank, above the progress bar."""
        if self.is_global_zero:
            bar = self.progress_bar_callback
            (print if bar is None or not getattr(bar, "is_enabled", False) else bar.print)(*args, **kwargs)

    def say(self, message: str) -> None:
        """Tell how the loop goes on, on the first rank."""
        import_whole("gluongraph.lightning.utilities.rank_zero")
        from gluongraph.lightning.utilities.rank_zero import rank_zero_info

        rank_zero_info(message)


def _one_or_many(loaders: list[Any] | None) -> Any:
    return loaders[0] if loaders and len(loaders) == 1 else loaders
