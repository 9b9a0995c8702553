"""The training loop: Estimator."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Sequence
from typing import Any

from gluongraph.context import Context, cpu, num_gpus
from gluongraph.errors import ShapeError, warn, with_user_location
from gluongraph.gluon.contrib.estimator.batch_processor import BatchProcessor
from gluongraph.gluon.contrib.estimator.handlers import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    EventHandler,
    GradientUpdateHandler,
    LoggingHandler,
    MetricHandler,
    StoppingHandler,
    TrainBegin,
    TrainEnd,
    ValidationHandler,
    check_handlers,
    check_metrics,
)
from gluongraph.gluon.data import DataLoader
from gluongraph.gluon.data.sampler import BatchSampler, last_batch_misfit
from gluongraph.gluon.loss import Loss, SoftmaxCrossEntropyLoss
from gluongraph.gluon.trainer import Trainer
from gluongraph.metric import Accuracy, EvalMetric
from gluongraph.metric import Loss as LossMetric

_EVENTS = (TrainBegin, EpochBegin, BatchBegin, BatchEnd, EpochEnd, TrainEnd)


class Estimator:
    """Trains a net on the batches of a DataLoader, and evaluates it, with handlers of what happens on the way.

    Without metrics it takes the accuracy, for SoftmaxCrossEntropyLoss, and the loss; without a trainer, SGD at rate
    0.001. A net that has not been initialized is, by `initializer`. `logger` is its own, and writes to standard output.

    Raises:
        ValueError: loss, metrics, trainer, context or batch_processor are something else.
        AssertionError: a context where no arrays can live.

    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(2)
    >>> net.initialize()
    >>> data = gluon.data.DataLoader(gluon.data.ArrayDataset(nd.ones((8, 3)), nd.zeros(8)), batch_size=4)
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> estimator = Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer)
    >>> estimator.logger.setLevel("WARNING")
    >>> estimator.fit(data, epochs=3)
    >>> estimator.train_metrics[0].get()
    ('training accuracy', 1.0)
    """

    def __init__(
        self,
        net: Any,
        loss: Loss,
        train_metrics: Any = None,
        val_metrics: Any = None,
        initializer: Any = None,
        trainer: Trainer | None = None,
        context: Context | list[Context] | None = None,
        val_net: Any = None,
        val_loss: Loss | None = None,
        batch_processor: Any = None,
    ):
        self.net, self.val_net = net, net if val_net is None else val_net
        self.loss = _loss(loss)
        self.val_loss = self.loss if val_loss is None else _loss(val_loss)
        self._train_metrics = check_metrics(train_metrics) or _metrics_for(self.loss)
        self._val_metrics = check_metrics(val_metrics) or copy.deepcopy(self._train_metrics)
        for kind, metrics in (("training", self._train_metrics), ("validation", self._val_metrics)):
            for metric in metrics:
                metric.name = f"{kind} {metric.name.removeprefix('training ').removeprefix('validation ')}"
        self.logger = logging.Logger("Estimator", logging.INFO)
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        self.context = _contexts(context)
        self._initialize(initializer)
        self.trainer = self._trainer(trainer)
        self.batch_processor = BatchProcessor() if batch_processor is None else batch_processor
        if not all(callable(getattr(self.batch_processor, m, None)) for m in ("fit_batch", "evaluate_batch")):
            raise ValueError(
                with_user_location(
                    f"a batch processor has fit_batch() and evaluate_batch(), {batch_processor!r} has not"
                )
            )
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0

    def _initialize(self, initializer: Any) -> None:
        parameters = self.net.collect_params().values()
        if any(p._arrays is None and not p.deferred for p in parameters):
            missing = [p for p in parameters if p._arrays is None and not p.deferred]
            for parameter in missing:
                parameter.initialize(None, self.context, initializer)
        elif initializer:
            warn(
                "Network already fully initialized: the estimator's initializer is not used; call"
                " net.initialize(init, force_reinit=True) for another one"
            )

    def _trainer(self, trainer: Any) -> Trainer:
        if trainer is None:
            warn("No trainer specified: SGD at a learning rate of 0.001 is used")
            return Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.001})
        if not isinstance(trainer, Trainer):
            raise ValueError(f"trainer is a gluon.Trainer, not {trainer!r}")
        return trainer

    @property
    def train_metrics(self) -> list[EvalMetric]:
        """The metrics of the training."""
        return self._train_metrics

    @property
    def val_metrics(self) -> list[EvalMetric]:
        """The metrics of the validation."""
        return self._val_metrics

    def evaluate(self, val_data: DataLoader, batch_axis: int = 0, event_handlers: Any = None) -> None:
        """Run the validation's net and loss over all batches; `val_metrics` have the results.

        Raises:
            ShapeError: the net takes batches of one size, and the last one is smaller.
            ValueError: the data are no DataLoader.
        """
        _check_data(val_data, self.net)
        for metric in self.val_metrics:
            metric.reset()
        handlers = self._prepare_default_validation_handlers(event_handlers)
        _, epoch_begin, batch_begin, batch_end, epoch_end, _ = self._categorize_handlers(handlers)
        for handler in epoch_begin:
            handler.epoch_begin(self)
        for batch in val_data:
            for handler in batch_begin:
                handler.batch_begin(self, batch=batch)
            _, label, pred, loss = self.batch_processor.evaluate_batch(self, batch, batch_axis)
            for handler in batch_end:
                handler.batch_end(self, batch=batch, pred=pred, label=label, loss=loss)
        for handler in epoch_end:
            handler.epoch_end(self)

    def fit(
        self,
        train_data: DataLoader,
        val_data: DataLoader | None = None,
        epochs: int | None = None,
        event_handlers: Any = None,
        batches: int | None = None,
        batch_axis: int = 0,
    ) -> None:
        """Train for so many epochs, or so many batches; with `val_data` the net is evaluated after each epoch.

        Raises:
            ShapeError: the net takes batches of one size, and the last one is smaller.
            ValueError: the data are no DataLoader; epochs and batches, or neither; a handler has other metrics.
        """
        _check_data(train_data, self.net)
        if val_data is not None:
            _check_data(val_data, self.net)
        if bool(epochs) == bool(batches):
            raise ValueError(with_user_location("fit takes the number of epochs, or that of batches, and one of them"))
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        handlers = self._prepare_default_handlers(val_data, event_handlers)
        begin, epoch_begin, batch_begin, batch_end, epoch_end, end = self._categorize_handlers(handlers)
        for handler in begin:
            handler.train_begin(self)
        stopped = False
        while not stopped:
            for handler in epoch_begin:
                handler.epoch_begin(self)
            for batch in train_data:
                for handler in batch_begin:
                    handler.batch_begin(self, batch=batch)
                _, label, pred, loss = self.batch_processor.fit_batch(self, batch, batch_axis)
                what = {"batch": batch, "pred": pred, "label": label, "loss": loss}
                stops = [handler.batch_end(self, **what) for handler in batch_end]  # all of them are called
                if any(stops):
                    break
            stops = [handler.epoch_end(self) for handler in epoch_end]
            stopped = any(stops)
        for handler in end:
            handler.train_end(self)

    def _prepare_default_handlers(self, val_data: Any, event_handlers: Any) -> list[Any]:
        """The handlers given, and those that every training has, in order."""
        own: list[EventHandler] = [
            StoppingHandler(self.max_epoch, self.max_batch),
            GradientUpdateHandler(),
            MetricHandler(self.train_metrics),
            LoggingHandler(metrics=self.train_metrics),
        ]
        if val_data:
            own.insert(3, ValidationHandler(val_data, self.evaluate))
        return _merged(check_handlers(event_handlers), own, [*self.train_metrics, *self.val_metrics])

    def _prepare_default_validation_handlers(self, event_handlers: Any) -> list[Any]:
        """The handlers given, and those that every evaluation has, in order."""
        own = [MetricHandler(self.val_metrics), LoggingHandler(metrics=self.val_metrics)]
        return _merged(check_handlers(event_handlers), own, self.val_metrics)

    def _categorize_handlers(self, event_handlers: Sequence[Any]) -> tuple[list[Any], ...]:
        """The handlers of each event: train_begin, epoch_begin, batch_begin, batch_end, epoch_end, train_end."""
        return tuple([h for h in event_handlers if isinstance(h, event)] for event in _EVENTS)


def _merged(given: list[EventHandler], own: Sequence[EventHandler], known: Sequence[EvalMetric]) -> list[Any]:
    """The handlers given and those of no such kind among them, by priority.

    Raises:
        ValueError: a handler reads metrics that nobody updates.
    """
    added = [h for h in own if isinstance(h, StoppingHandler) or not any(isinstance(g, type(h)) for g in given)]
    for handler in given if added else ():
        for name, value in vars(handler).items():
            for metric in (value if isinstance(value, list) else [value]) if "metric" in name else ():
                if isinstance(metric, EvalMetric) and not any(metric is each for each in known):
                    kind = type(handler).__name__
                    help = "take them from the estimator's train_metrics and val_metrics"
                    raise ValueError(
                        with_user_location(f"{kind} has a metric {metric} that nothing updates", help=help)
                    )
    return sorted([*given, *added], key=lambda handler: getattr(handler, "priority", 0))


def _loss(loss: Any) -> Loss:
    if not isinstance(loss, Loss):
        raise ValueError(f"loss is a gluon.loss.Loss, not {loss!r}")
    return loss


def _metrics_for(loss: Loss) -> list[EvalMetric]:
    accuracy: list[EvalMetric] = [Accuracy()] if isinstance(loss, SoftmaxCrossEntropyLoss) else []
    return [*accuracy, LossMetric(loss.name.rstrip("0123456789"))]


def _contexts(context: Any) -> list[Context]:
    contexts = [cpu()] if not context else [context] if isinstance(context, Context) else context
    if not isinstance(contexts, list) or not all(isinstance(c, Context) for c in contexts):
        raise ValueError(f"context is a Context, as mx.cpu(), or a list of them, not {context!r}")
    if absent := [c for c in contexts if c.device_type != "cpu" and c.device_id >= num_gpus()]:
        raise AssertionError(f"{absent[0]} is not available; there are mx.cpu() and {num_gpus()} CUDA devices")
    return contexts


def _check_data(data: Any, net: Any) -> None:
    if not isinstance(data, DataLoader):
        raise ValueError(with_user_location(f"the data are a gluon.data.DataLoader, not a {type(data).__name__}"))
    batches, fixed = data._batches, getattr(net, "fixed_batch", None)  # an imported net may have a fixed batch
    if not isinstance(batches, BatchSampler) or batches._last_batch != "keep" or batches._batch_size != fixed:
        return
    if misfit := last_batch_misfit(fixed, len(batches._sampler)):
        help = 'DataLoader(..., last_batch="discard") leaves it out; an export with a free first axis takes any batch'
        raise ShapeError(with_user_location(misfit, help=help))
