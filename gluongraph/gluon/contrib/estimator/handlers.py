"""What happens around the batches and epochs of an Estimator: a handler's class says at which events it is called.

Handlers are called in the order of their `priority`, lower first, 0 if they have none. A `batch_end` that gives True
ends the epoch, an `epoch_end` that does ends the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph.errors import warn, with_user_location
from gluongraph.metric import CompositeEvalMetric, EvalMetric
from gluongraph.metric import Loss as LossMetric
from gluongraph.ndarray import NDArray


class EventHandler:
    """The base of all handlers."""


class TrainBegin(EventHandler):
    """Called when `fit` begins."""

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """What to do then; subclasses say."""


class TrainEnd(EventHandler):
    """Called when `fit` ends."""

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """What to do then; subclasses say."""


class EpochBegin(EventHandler):
    """Called when a pass over the data begins."""

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """What to do then; subclasses say."""


class EpochEnd(EventHandler):
    """Called when a pass over the data ends."""

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """What to do then; subclasses say. True ends the training."""
        return False


class BatchBegin(EventHandler):
    """Called before each batch."""

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """What to do then, with `batch`; subclasses say."""


class BatchEnd(EventHandler):
    """Called after each batch."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """What to do then, with `batch`, `pred`, `label` and `loss`; subclasses say. True ends the epoch."""
        return False


def check_handlers(handlers: EventHandler | Sequence[EventHandler] | None) -> list[EventHandler]:
    """Handlers as a list. Raises ValueError if something else is among them."""
    listed = [handlers] if isinstance(handlers, EventHandler) else list(handlers or ())
    if not all(isinstance(handler, EventHandler) for handler in listed):
        raise ValueError(f"handlers are EventHandlers, not {listed}")
    return listed


def check_metrics(metrics: Any) -> list[EvalMetric]:
    """Metrics as a list, those of composites one by one. Raises ValueError if something else is among them."""
    if isinstance(metrics, CompositeEvalMetric):
        return [each for metric in metrics.metrics for each in check_metrics(metric)]
    listed = [metrics] if isinstance(metrics, EvalMetric) else metrics or []
    if isinstance(listed, str) or not all(isinstance(metric, EvalMetric) for metric in listed):
        raise ValueError(f"metrics are objects of mx.metric, not {metrics!r}")
    return list(listed)


class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    """Ends the training after the estimator's number of batches or epochs."""

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None):
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.current_batch += 1
        self.stop_training |= self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        self.current_epoch += 1
        self.stop_training |= self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Updates metrics after each batch; comes before what reads them."""

    def __init__(self, metrics: Any, priority: float = -1000):
        self.metrics, self.priority = check_metrics(metrics), priority

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        for metric in self.metrics:
            if isinstance(metric, LossMetric):
                metric.update(0, kwargs["loss"])
            else:
                metric.update(kwargs["label"], kwargs["pred"])


class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    """Calls `eval_fn(val_data=..., batch_axis=..., event_handlers=...)` every so many epochs and batches."""

    def __init__(
        self,
        val_data: Any,
        eval_fn: Callable[..., Any],
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        priority: float = -1000,
        event_handlers: Any = None,
    ):
        self.val_data, self.eval_fn, self.event_handlers = val_data, eval_fn, event_handlers
        self.epoch_period, self.batch_period, self.priority = epoch_period, batch_period, priority
        self.current_batch = self.current_epoch = 0

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.current_batch += 1
        self._evaluate(estimator, self.current_batch, self.batch_period)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.current_epoch += 1
        self._evaluate(estimator, self.current_epoch, self.epoch_period)

    def _evaluate(self, estimator: Any, count: int, period: int | None) -> None:
        if period and count % period == 0:
            self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    """Writes metrics and times to the estimator's logger: per epoch, with a number also every so many batches.

    Raises:
        ValueError: log_interval is neither "epoch" nor a number.
    """

    def __init__(self, log_interval: int | str = "epoch", metrics: Any = None, priority: float = math.inf):
        if not isinstance(log_interval, int) and log_interval != "epoch":
            raise ValueError(with_user_location(f"log_interval is 'epoch' or a whole number, not {log_interval!r}"))
        self.metrics, self.priority, self.log_interval = check_metrics(metrics), priority, log_interval
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.log_interval_time = self.train_start = self.epoch_start = self.batch_start = 0.0

    def _values(self) -> str:
        pairs = (metric.get() for metric in self.metrics)
        return ", ".join(f"{name}: {value:.4f}" for name, value in pairs)

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.train_start, self.log_interval_time = time.monotonic(), 0.0
        trainer = estimator.trainer
        name = type(trainer.optimizer).__name__
        estimator.logger.info(f"Training begin: using optimizer {name} with learning rate {trainer.learning_rate:.4f}")
        span = f"{estimator.max_epoch} epochs" if estimator.max_epoch else f"{estimator.max_batch} batches"
        estimator.logger.info(f"Train for {span}.")

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        taken = time.monotonic() - self.train_start
        done = f"Train finished using total {taken:.0f}s with {self.current_epoch} epochs."
        estimator.logger.info(f"{done} {self._values()}")

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.batch_start = time.monotonic()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.log_interval, int):
            self.log_interval_time += time.monotonic() - self.batch_start
            self.processed_samples += kwargs["batch"][0].shape[0]
            if self.batch_index % self.log_interval == 0:
                place = f"[Epoch {self.current_epoch}][Batch {self.batch_index}][Samples {self.processed_samples}]"
                taken = f"time/interval: {self.log_interval_time:.3f}s"
                estimator.logger.info(f"{place} {taken} {self._values()}")
                self.log_interval_time = 0.0
        self.batch_index += 1

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.epoch_start = time.monotonic()
        if any("training" in metric.name for metric in self.metrics):
            rate = estimator.trainer.learning_rate
            estimator.logger.info(f"[Epoch {self.current_epoch}] Begin, current learning rate: {rate:.4f}")
        else:
            estimator.logger.info("Validation Begin")

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        taken = time.monotonic() - self.epoch_start
        estimator.logger.info(f"[Epoch {self.current_epoch}] Finished in {taken:.3f}s, {self._values()}")
        self.current_epoch, self.batch_index = self.current_epoch + 1, 0


class Improvement:
    """Whether a metric has got better: by `mode` "min" or "max"; "auto" is "max" for accuracies and F1, else "min"."""

    def __init__(self, monitor: EvalMetric, mode: str, margin: float = 0.0):
        if mode not in ("auto", "min", "max"):
            warn(f"mode {mode!r} is not known, 'auto' takes its place; there are auto, min, max")
            mode = "auto"
        name = str(monitor.get()[0]).lower()
        self.larger = mode == "max" or (mode == "auto" and any(word in name for word in ("acc", "f1")))
        self.margin, self.best = margin, 0.0
        self.restart(None)

    def restart(self, baseline: float | None) -> None:
        """Forget what was best; the baseline, if there is one, has to be beaten."""
        worst = -math.inf if self.larger else math.inf
        self.best = worst if baseline is None else baseline

    def seen(self, value: float) -> bool:
        """Is the value better than the best one, by more than the margin? It is then the best one."""
        better = value - self.margin > self.best if self.larger else value + self.margin < self.best
        if better:
            self.best = value
        return better


class EarlyStoppingHandler(TrainBegin, EpochEnd, TrainEnd):
    """Ends the training when a metric has not improved by more than `min_delta` for `patience` epochs.

    Raises:
        ValueError: `monitor` is no metric, or several.
    """

    def __init__(
        self,
        monitor: EvalMetric,
        min_delta: float = 0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
    ):
        if not isinstance(monitor, EvalMetric) or isinstance(monitor, CompositeEvalMetric):
            raise ValueError(
                with_user_location(
                    f"monitor is one metric of the estimator's train_metrics or val_metrics, not {monitor!r}"
                )
            )
        self.monitor, self.patience, self.baseline = monitor, patience, baseline
        self._improvement = Improvement(monitor, mode, min_delta)
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False
        self._improvement.restart(self.baseline)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        name, value = self.monitor.get()
        if math.isnan(value):
            warn(f"{name} is not updated; give a metric of the estimator's train_metrics or val_metrics")
        elif self._improvement.seen(value):
            self.wait = 0
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch, self.stop_training = self.current_epoch, True
        self.current_epoch += 1
        return self.stop_training

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        if self.stopped_epoch:
            name = self.monitor.get()[0]
            estimator.logger.info(f"[Epoch {self.stopped_epoch}] stopped early: {name} has not improved")


class GradientUpdateHandler(BatchEnd):
    """Lets the trainer update the weights after each batch; comes first."""

    def __init__(self, priority: float = -2000):
        self.priority = priority

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        loss = kwargs["loss"]
        parts = [loss] if isinstance(loss, NDArray) else loss
        estimator.trainer.step(sum(part.shape[0] for part in parts))
