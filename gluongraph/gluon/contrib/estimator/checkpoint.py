"""Saving the net and the trainer of an Estimator while it trains, and going on from there."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from gluongraph.errors import warn, with_user_location
from gluongraph.gluon.contrib.estimator.handlers import BatchEnd, EpochEnd, Improvement, TrainBegin
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.host.file_names import check_name
from gluongraph.metric import EvalMetric

_ONE_PERIOD = "to resume, save by what is trained by: epoch_period alone with epochs, batch_period alone with batches"


class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    """Saves parameters and trainer states every so many epochs and batches: <prefix>-epoch<e>batch<b>.params, .states.

    With `save_best` also as <prefix>-best whenever `monitor` has improved. The newest `max_checkpoints` are kept. Of a
    hybridized net the graph is saved once, as <prefix>-symbol.json. `resume_from_checkpoint` goes on from the newest
    one of the folder, and trains what is left of the epochs or batches.

    Raises:
        ArgumentError: the name of the folder is empty.
        ValueError: save_best without a metric; or nothing is left to train.
    """

    def __init__(
        self,
        model_dir: str,
        model_prefix: str = "model",
        monitor: EvalMetric | None = None,
        verbose: int = 0,
        save_best: bool = False,
        mode: str = "auto",
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        max_checkpoints: int = 5,
        resume_from_checkpoint: bool = False,
    ):
        if save_best and not isinstance(monitor, EvalMetric):
            raise ValueError(
                with_user_location(
                    "save_best needs a metric of the estimator's train_metrics or val_metrics as monitor"
                )
            )
        check_name("CheckpointHandler", model_dir, "CheckpointHandler('checkpoints')", "folder")
        self._folder = Path(model_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.model_dir, self.model_prefix, self.monitor, self.verbose = model_dir, model_prefix, monitor, verbose
        self.save_best, self.epoch_period, self.batch_period = save_best, epoch_period, batch_period
        self.max_checkpoints, self.resume_from_checkpoint = max_checkpoints, resume_from_checkpoint
        self._improvement = Improvement(monitor, mode) if save_best and monitor is not None else None
        self.saved_checkpoints: list[str] = []
        self.current_epoch = self.current_batch = 0
        self.trained_epoch = self.trained_batch = -1

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.current_epoch = self.current_batch = 0
        self.trained_epoch = self.trained_batch = -1
        if self._improvement is not None:
            self._improvement.restart(None)
        if self.resume_from_checkpoint:
            by_epochs = bool(estimator.max_epoch)
            if bool(self.epoch_period) != by_epochs or bool(self.batch_period) == by_epochs:
                raise AssertionError(_ONE_PERIOD)
            self._resume(estimator)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if self.current_batch == 0:
            self._save_graph(estimator)
        if self.batch_period and (self.current_batch + 1) % self.batch_period == 0:
            self._checkpoint(estimator, self.current_batch + self.trained_batch + 1)
        self.current_batch += 1

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0:
            self._checkpoint(estimator, self.current_batch + max(self.trained_batch, 0))
        self.current_epoch += 1

    def _save_graph(self, estimator: Any) -> None:
        path = self._folder / f"{self.model_prefix}-symbol.json"
        net = estimator.net
        if isinstance(net, HybridBlock) and net._is_traced:
            net._exported_symbol().save(str(path))
        else:
            estimator.logger.info(f"{path} is not saved: call net.hybridize() on a HybridBlock first")

    def _checkpoint(self, estimator: Any, batch: int) -> None:
        epoch = self.current_epoch + self.trained_epoch + 1
        name = f"{self.model_prefix}-epoch{epoch}batch{batch}"
        self._save(estimator, name)
        self.saved_checkpoints.append(name)
        for old in self.saved_checkpoints[: -self.max_checkpoints]:
            for suffix in (".params", ".states"):
                (self._folder / (old + suffix)).unlink(missing_ok=True)
        self.saved_checkpoints = self.saved_checkpoints[-self.max_checkpoints :]
        if self.verbose:
            estimator.logger.info(f"[Epoch {self.current_epoch}] saved {self._folder / name}")
        if self._improvement is not None and self.monitor is not None:
            self._save_if_best(estimator, self._improvement, self.monitor)

    def _save_if_best(self, estimator: Any, improvement: Improvement, monitor: EvalMetric) -> None:
        name, value = monitor.get()
        if math.isnan(value):
            warn(f"the best is not saved: {name} is not updated; give a metric of the estimator's as monitor")
        elif improvement.seen(value):
            self._save(estimator, f"{self.model_prefix}-best")
            if self.verbose:
                estimator.logger.info(f"[Epoch {self.current_epoch}] {name} improved to {value:.5f}, saved as the best")

    def _save(self, estimator: Any, name: str) -> None:
        estimator.net.save_parameters(str(self._folder / f"{name}.params"))
        estimator.trainer.save_states(str(self._folder / f"{name}.states"))

    def _resume(self, estimator: Any) -> None:
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params")
        found = sorted(
            (int(m[1]), int(m[2])) for path in self._folder.iterdir() if (m := pattern.fullmatch(path.name)) is not None
        )
        if not found:
            estimator.logger.info("no checkpoint found, training begins anew")
            return
        self.saved_checkpoints = [f"{self.model_prefix}-epoch{e}batch{b}" for e, b in found]
        epoch, batch = found[-1]
        done, what = (epoch, "max_epoch") if estimator.max_epoch else (batch, "max_batch")
        left = getattr(estimator, what) - done - 1
        if left <= 0:
            raise ValueError(f"{self.saved_checkpoints[-1]} has been trained to the end; resume_from_checkpoint=False")
        self.trained_epoch, self.trained_batch = epoch, batch
        setattr(estimator, what, left)
        path = self._folder / self.saved_checkpoints[-1]
        estimator.net.load_parameters(f"{path}.params", ctx=estimator.context)
        estimator.trainer.load_states(f"{path}.states")
        estimator.logger.info(f"resumed from {path}, {left} {what.removeprefix('max_')}s are left")
