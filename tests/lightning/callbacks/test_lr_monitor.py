"""LearningRateMonitor logs what Lightning's logs."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from pretend_trainer import Pretend

import gluongraph as mx
from gluongraph import gluon
from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import LearningRateMonitor


class Rows:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.rows.append((step, dict(metrics)))


def optimizers(kind: str) -> tuple[list[Any], list[Any]]:
    """Optimizers of PyTorch's and configurations of schedulers for them."""
    torch = pytest.importorskip("torch")
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    halved = torch.optim.lr_scheduler.StepLR
    if kind == "one":
        made = [torch.optim.Adam(parameters, lr=0.1)]
        return made, [SimpleNamespace(scheduler=halved(made[0], 1), interval="epoch", name=None)]
    if kind == "two of a class":
        made = [torch.optim.SGD(parameters[:2], lr=0.1, momentum=0.9), torch.optim.SGD(parameters[2:], lr=0.2)]
        return made, [SimpleNamespace(scheduler=halved(each, 1), interval="step", name=None) for each in made]
    if kind == "groups":
        groups = [{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:]}]
        return [torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5)], []
    if kind == "named groups":
        groups = [{"params": parameters[:2], "name": "body"}, {"params": parameters[2:], "name": "head"}]
        return [torch.optim.SGD(groups, lr=0.1)], []
    made = [torch.optim.Adam(parameters[:2], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.5)]
    return made, [SimpleNamespace(scheduler=halved(made[1], 1), interval="step", name="my_rate")]


KINDS = ("one", "two of a class", "groups", "named groups", "named scheduler")


def train(callback: Any, trained: Any, configs: list[Any]) -> list[tuple[int, dict[str, Any]]]:
    rows = Rows()
    trained.loggers, trained.log_every_n_steps = [rows], 2
    callback.on_train_start(trained, None)
    for _ in range(2):
        callback.on_train_epoch_start(trained, None)
        for index in range(3):
            callback.on_train_batch_start(trained, None, None, index)
            trained.step()
            for config in configs:
                if config.interval == "step":
                    config.scheduler.step()
            trained.counters.logged_steps += 1
            trained.fit_loop.epoch_loop._batches_that_stepped = trained.counters.logged_steps
        for config in configs:
            if config.interval == "epoch":
                config.scheduler.step()
        trained.end_epoch()
    return rows.rows


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("interval", [None, "step", "epoch"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_logged(original: Any, tmp_path: pathlib.Path, kind: str, interval: Any) -> None:
    seen = []
    for number, make in enumerate((LearningRateMonitor, original.callbacks.LearningRateMonitor)):
        made, configs = optimizers(kind)
        trained = Pretend(tmp_path, original=bool(number), optimizers=made, lr_scheduler_configs=configs)
        trained.fit_loop.epoch_loop._batches_that_stepped = 0

        class Connector:
            @property
            def should_update_logs(self, trained: Any = trained) -> bool:
                return bool((trained.counters.logged_steps + 1) % trained.log_every_n_steps == 0)

        trained._logger_connector = Connector()
        callback = make(interval, log_momentum=True, log_weight_decay=True)
        seen.append((train(callback, trained, configs), callback.lrs))
    assert seen[0] == seen[1] and seen[0][0]


def test_optimizers_of_gluon(tmp_path: pathlib.Path) -> None:
    weight = gluon.Parameter("w", shape=(2,))
    weight.initialize()
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5)
    adam = gluon.Trainer([weight], "adam", {"learning_rate": 0.5, "wd": 0.25, "lr_scheduler": schedule})
    trained = Pretend(tmp_path, optimizers=[adam, mx.optimizer.SGD(learning_rate=0.25, momentum=0.75)])
    callback = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
    (_, row), *_ = train(callback, trained, [])
    assert row == {
        "lr-Adam": 0.5,
        "lr-Adam-momentum": 0.9,
        "lr-Adam-weight_decay": 0.25,
        "lr-SGD": 0.25,
        "lr-SGD-momentum": 0.75,
        "lr-SGD-weight_decay": 0.0,
    }
    assert trained.metrics["lr-SGD"] == 0.25


def test_which_batches_it_looks_at(tmp_path: pathlib.Path) -> None:
    trained = Pretend(tmp_path, optimizers=[mx.optimizer.SGD(learning_rate=0.5)], log_every_n_steps=3)
    seen = []
    for _ in range(6):
        seen.append(LearningRateMonitor("step").idle_batches(trained))
        trained.counters.logged_steps += 1
    assert seen == [2, 1, 0, 2, 1, 0] and LearningRateMonitor("epoch").idle_batches(trained) == float("inf")


def test_what_it_refuses(tmp_path: pathlib.Path) -> None:
    with pytest.raises(MisconfigurationException, match="no logger"):
        LearningRateMonitor().on_train_start(Pretend(tmp_path), None)
    with pytest.raises(MisconfigurationException, match="logging_interval"):
        LearningRateMonitor(logging_interval="batch")  # type: ignore[arg-type]
    twice = SimpleNamespace(param_groups=[{"lr": 1.0, "name": "a"}, {"lr": 1.0, "name": "a"}])
    trained = Pretend(tmp_path, optimizers=[twice], loggers=[Rows()])
    with pytest.raises(MisconfigurationException, match="called 'a'"):
        LearningRateMonitor().on_train_start(trained, None)
    trained.optimizers = [SimpleNamespace(param_groups=[{"lr": 1.0}])]
    with pytest.warns(UserWarning, match="no momentum"):
        LearningRateMonitor(log_momentum=True).on_train_start(trained, None)
