"""gluon.contrib.estimator: the training loop, its handlers, checkpoints and what is refused."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon.contrib.estimator import (
    BatchProcessor,
    CheckpointHandler,
    EarlyStoppingHandler,
    EpochEnd,
    Estimator,
    LoggingHandler,
    MetricHandler,
    ValidationHandler,
)

Lines = list[str]


def _data(count: int = 16, batch: int = 4) -> Any:
    x = nd.array(np.random.default_rng(0).normal(size=(count, 3)))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(x, x[:, 0] > 0), batch_size=batch)


def _estimator(hybrid: bool = False, **how: Any) -> tuple[Estimator, Lines]:
    """An estimator, and what it will have logged."""
    mx.random.seed(0)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(2, in_units=3))
    net.initialize()
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    made = Estimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer, **how)
    lines: Lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    made.logger.handlers[:] = [handler]
    return made, lines


def test_it_learns_and_says_so() -> None:
    estimator, lines = _estimator()
    estimator.fit(_data(), val_data=_data(), epochs=10)
    assert estimator.train_metrics[0].get() == ("training accuracy", 1.0)
    assert estimator.val_metrics[0].get() == ("validation accuracy", 1.0)
    assert lines[0].startswith("Training begin: using optimizer Adam") and lines[1] == "Train for 10 epochs."
    assert sum("Validation Begin" in line for line in lines) == 10 and "Train finished" in lines[-1]
    estimator.fit(_data(), batches=3, event_handlers=LoggingHandler(2, estimator.train_metrics))
    assert [line.split("[Samples")[0] for line in lines if "[Batch" in line] == [
        "[Epoch 0][Batch 0]",
        "[Epoch 0][Batch 2]",
    ]


def test_checkpoints_and_going_on(tmp_path: pathlib.Path) -> None:
    estimator, _ = _estimator(hybrid=True)
    how: Any = {"model_dir": str(tmp_path), "model_prefix": "net", "max_checkpoints": 2}
    best = CheckpointHandler(**how, monitor=estimator.train_metrics[0], save_best=True)
    estimator.fit(_data(), epochs=3, event_handlers=[best])
    written = {p.name for p in tmp_path.iterdir() if p.suffix == ".params"}
    assert written == {"net-epoch1batch8.params", "net-epoch2batch12.params", "net-best.params"}
    assert (tmp_path / "net-symbol.json").exists() and (tmp_path / "net-best.states").exists()
    after = estimator.net[0].weight.data().asnumpy()

    other, lines = _estimator()
    other.fit(_data(), epochs=5, event_handlers=[CheckpointHandler(**how, resume_from_checkpoint=True)])
    assert other.max_epoch == 2 and "2 epochs are left" in lines[1] + lines[0]
    assert (tmp_path / "net-epoch4batch20.states").exists()
    straight, _ = _estimator()
    straight.fit(_data(), epochs=5)
    assert np.array_equal(other.net[0].weight.data().asnumpy(), straight.net[0].weight.data().asnumpy())
    assert not np.array_equal(other.net[0].weight.data().asnumpy(), after)
    with pytest.raises(ValueError, match="has been trained to the end"):
        other.fit(_data(), epochs=5, event_handlers=[CheckpointHandler(**how, resume_from_checkpoint=True)])


def test_stopping_early_and_own_handlers() -> None:
    estimator, _ = _estimator()
    accuracy = estimator.train_metrics[0]
    early = EarlyStoppingHandler(accuracy, mode="min", patience=1)  # it grows, which is no improvement

    class Counting(EpochEnd):
        epochs = 0

        def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
            self.epochs += 1
            return False

    own = Counting()
    estimator.fit(_data(), epochs=50, event_handlers=[early, own])
    assert 1 < own.epochs < 50 and own.epochs == early.stopped_epoch + 1


def test_a_batch_processor_and_another_net_for_validation() -> None:
    class Doubled(BatchProcessor):
        calls = 0

        def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> Any:
            self.calls += 1
            return super().fit_batch(estimator, train_batch, batch_axis)

    processor = Doubled()
    other = gluon.nn.Dense(2, in_units=3)
    other.initialize(mx.init.Zero())
    estimator, _ = _estimator(batch_processor=processor, val_net=other, val_loss=gluon.loss.SoftmaxCrossEntropyLoss())
    estimator.fit(_data(), val_data=_data(), epochs=2)
    assert processor.calls == 8
    assert estimator.val_metrics[1].get()[1] == pytest.approx(np.log(2))


def test_what_is_refused() -> None:
    net = gluon.nn.Dense(2, in_units=3)
    loss = gluon.loss.L2Loss()
    for how, says in (
        ({"loss": "mse"}, "loss is a gluon.loss.Loss"),
        ({"train_metrics": "acc"}, "metrics are objects of mx.metric"),
        ({"trainer": "sgd"}, "trainer is a gluon.Trainer"),
        ({"context": "cpu"}, "context is a Context"),
        ({"batch_processor": 1}, "has fit_batch"),
    ):
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize()
        given: Any = {"loss": loss, "trainer": gluon.Trainer(net.collect_params(), "sgd"), **how}
        with pytest.raises(ValueError, match=says):
            Estimator(net, **given)
    with pytest.raises(AssertionError, match=r"gpu\(100\) is not available"):
        Estimator(net, loss, context=[mx.cpu(), mx.gpu(100)])
    with pytest.warns(UserWarning, match="No trainer specified"):
        estimator = Estimator(net, loss)
    with pytest.warns(UserWarning, match="already fully initialized"):
        Estimator(net, loss, initializer=mx.init.Zero(), trainer=estimator.trainer)
    with pytest.raises(ValueError, match="DataLoader, not a list"):
        estimator.fit([nd.ones(2)], epochs=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of them"):
        estimator.fit(_data(), epochs=1, batches=1)
    with pytest.raises(ValueError, match="that nothing updates"):
        estimator.fit(_data(), epochs=1, event_handlers=[LoggingHandler(metrics=[mx.metric.RMSE()])])
    with pytest.raises(ValueError, match="handlers are EventHandlers"):
        estimator.fit(_data(), epochs=1, event_handlers=[print])
    with pytest.raises(ValueError, match="'epoch' or a whole number"):
        LoggingHandler("batch")
    with pytest.raises(ValueError, match="one metric"):
        EarlyStoppingHandler(mx.metric.CompositeEvalMetric())
    with pytest.raises(ValueError, match="save_best needs a metric"):
        CheckpointHandler("/nowhere", save_best=True)


def test_the_order_of_handlers() -> None:
    estimator, _ = _estimator()
    given = [EarlyStoppingHandler(estimator.val_metrics[0]), ValidationHandler(_data(), estimator.evaluate)]
    names = [type(h).__name__ for h in estimator._prepare_default_handlers(_data(), given)]
    assert names == [
        *("GradientUpdateHandler", "ValidationHandler", "MetricHandler"),
        *("EarlyStoppingHandler", "StoppingHandler", "LoggingHandler"),
    ]
    begin, *_, end = estimator._categorize_handlers([MetricHandler([]), LoggingHandler()])
    assert len(begin) == 1 and len(end) == 1
