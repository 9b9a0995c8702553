"""Stops a training when a metric no longer gets better."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from gluongraph.errors import warn, with_user_location
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import number
from gluongraph.lightning.errors import misconfigured

log = logging.getLogger(__name__)


class EarlyStoppingReason(Enum):
    """Why `EarlyStopping` has ended a training.

    >>> EarlyStoppingReason(3).name
    'PATIENCE_EXHAUSTED'
    """

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Callback):
    """Stop when `monitor`, a metric that is logged for epochs, has not improved `patience` times.

    It is looked at after each validation; after each epoch of training where there is one validation in each, or where
    `check_on_train_epoch_end` says so. An improvement is one by more than `min_delta`. A metric that is no number or
    infinite stops the training (`check_finite`), as do one that reaches `stopping_threshold` and one that is worse than
    `divergence_threshold`. `strict`: a metric that is not there is an error. The training stops when any rank says so.

    >>> import gluongraph.lightning as L
    >>> stopping = EarlyStopping("val_loss", patience=2, mode="min")
    >>> stopping.state_key
    "EarlyStopping{'monitor': 'val_loss', 'mode': 'min'}"
    >>> [stopping._evaluate_stopping_criteria(loss)[0] for loss in (1.0, 0.5, 0.6, 0.7)]
    [False, False, False, True]
    >>> stopping.stopping_reason.name, float(stopping.best_score)
    ('PATIENCE_EXHAUSTED', 0.5)

    Raises:
        MisconfigurationException: a mode that is neither "min" nor "max".
        RuntimeError: later, the metric is not there.
    """

    mode_dict: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {"min": operator.lt, "max": operator.gt}
    order_dict: ClassVar[dict[str, str]] = {"min": "<", "max": ">"}

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ):
        if mode not in self.mode_dict:
            raise misconfigured(f"EarlyStopping(mode={mode!r})", help="mode is 'min' or 'max'")
        self.monitor, self.mode = monitor, mode
        self.min_delta = min_delta if mode == "max" else -min_delta
        self.patience, self.verbose, self.strict, self.check_finite = patience, verbose, strict, check_finite
        self.stopping_threshold, self.divergence_threshold = stopping_threshold, divergence_threshold
        self.log_rank_zero_only = log_rank_zero_only
        self.wait_count = self.stopped_epoch = 0
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None
        self.best_score: np.floating[Any] = np.float32(np.inf if mode == "min" else -np.inf)
        self._check_on_train_epoch_end = check_on_train_epoch_end

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: class, metric and mode."""
        return self._generate_state_key(monitor=self.monitor, mode=self.mode)

    @property
    def monitor_op(self) -> Callable[[Any, Any], Any]:
        """The comparison that says "better"."""
        return self.mode_dict[self.mode]

    def state_dict(self) -> dict[str, Any]:
        """The best value, how often there has been no better one, and why the training was stopped."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": float(self.best_score),
            "patience": self.patience,
            "stopping_reason": self.stopping_reason.value,
            "stopping_reason_message": self.stopping_reason_message,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given."""
        self.wait_count, self.stopped_epoch = state_dict["wait_count"], state_dict["stopped_epoch"]
        self.best_score, self.patience = number(state_dict["best_score"]), state_dict["patience"]
        self.stopping_reason = EarlyStoppingReason(state_dict.get("stopping_reason", 0))
        self.stopping_reason_message = state_dict.get("stopping_reason_message")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Decide when the metric is looked at, where that was left open."""
        if self._check_on_train_epoch_end is None:
            once = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1
            self._check_on_train_epoch_end = once and trainer.val_check_seconds is None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the metric, where that is done after epochs."""
        if self._check_on_train_epoch_end and not self._skips(trainer):
            self._run_early_stopping_check(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the metric, where that is done after validations."""
        if not self._check_on_train_epoch_end and not self._skips(trainer):
            self._run_early_stopping_check(trainer)

    def _skips(self, trainer: Any) -> bool:
        return trainer.state.fn != "fit" or bool(trainer.sanity_checking)

    def _run_early_stopping_check(self, trainer: Any) -> None:
        logs = trainer.callback_metrics
        if trainer.fast_dev_run or not self._available(logs):
            return
        stop, reason = self._evaluate_stopping_criteria(logs[self.monitor])
        if trainer.world_size > 1:
            stop = trainer.reduce(float(stop), "max") > 0
        trainer.should_stop = trainer.should_stop or stop
        if stop:
            self.stopped_epoch, self.stopping_reason_message = trainer.current_epoch, reason
        if reason and self.verbose:
            self._log_info(trainer, reason, self.log_rank_zero_only)

    def _available(self, logs: dict[str, Any]) -> bool:
        if self.monitor in logs:
            return True
        message = f"EarlyStopping(monitor={self.monitor!r}): there is no such metric"
        there = ", ".join(map(repr, logs)) or "none"
        help = f"self.log({self.monitor!r}, value) for epochs, strict=False, or one of those that are there: {there}"
        if self.strict:
            raise RuntimeError(with_user_location(message, help=help))
        if self.verbose:
            warn(f"{message}; {help}")
        return False

    def _evaluate_stopping_criteria(self, current: Any) -> tuple[bool, str | None]:
        """Does a value stop the training, and what is said of it?"""
        value, like = number(current), number(current).dtype.type
        told, sign = f"{self.monitor} = {float(value):g}", self.order_dict[self.mode]
        if self.check_finite and not np.isfinite(value):
            text = f"{told} is not finite; the best so far was {self.best_score:.3f}."
            return self._stop(EarlyStoppingReason.NON_FINITE_METRIC, text)
        reached, diverged = self.stopping_threshold, self.divergence_threshold
        if reached is not None and self.monitor_op(value, like(reached)):
            text = f"Stopping threshold reached: {told} {sign} {reached}."
            return self._stop(EarlyStoppingReason.STOPPING_THRESHOLD, text)
        if diverged is not None and self.monitor_op(-value, like(-diverged)):
            worse = self.order_dict["max" if self.mode == "min" else "min"]
            text = f"Divergence threshold reached: {told} {worse} {diverged}."
            return self._stop(EarlyStoppingReason.DIVERGENCE_THRESHOLD, text)
        with np.errstate(invalid="ignore"):
            if self.monitor_op(value - like(self.min_delta), self.best_score):
                reason = self._improvement_message(value)
                self.best_score, self.wait_count = value, 0
                return False, reason
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        text = f"{self.monitor} did not improve in the last {self.wait_count} records. Best: {self.best_score:.3f}."
        return self._stop(EarlyStoppingReason.PATIENCE_EXHAUSTED, text)

    def _stop(self, reason: EarlyStoppingReason, text: str) -> tuple[bool, str]:
        self.stopping_reason = reason
        return True, f"{text} The training stops."

    def _improvement_message(self, value: np.floating[Any]) -> str:
        if not np.isfinite(self.best_score):
            return f"Metric {self.monitor} improved. New best score: {value:.3f}"
        by = abs(self.best_score - value)
        least = abs(self.min_delta)
        return f"Metric {self.monitor} improved by {by:.3f} >= min_delta = {least}. New best score: {value:.3f}"

    @staticmethod
    def _log_info(trainer: Any, message: str, log_rank_zero_only: bool) -> None:
        if trainer.world_size == 1:
            log.info(message)
        elif not log_rank_zero_only or trainer.global_rank == 0:
            log.info("[rank: %d] %s", trainer.global_rank, message)
