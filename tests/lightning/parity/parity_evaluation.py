"""Compared runs: validate, test and predict on their own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from parity_loops import Batches
from parity_models import linear, loader, trainer
from parity_recording import (
    CALLBACK_HOOKS,
    MODE_HOOKS,
    MODULE_HOOKS,
    TRANSFER_HOOKS,
    logger,
    metrics,
    recorded,
    watcher,
)
from parity_table import case

Result = dict[str, Any]


def plain(values: Any) -> Any:
    """Tensors as lists, within whatever they are in."""
    if isinstance(values, dict):
        return {key: plain(each) for key, each in values.items()}
    if isinstance(values, (list, tuple)):
        return [plain(each) for each in values]
    return values.tolist() if hasattr(values, "tolist") else values


def evaluated(L: ModuleType, run: Any, module: Any = None, **how: Any) -> Result:
    """What `run(trainer, model)` returns, the hooks, rows and metrics."""
    events: list[str] = []
    hooks = (*MODULE_HOOKS, *MODE_HOOKS, *TRANSFER_HOOKS)
    rows, model = logger(L), recorded(module or linear(L), events, hooks, "module")()
    runner = trainer(L, logger=rows, callbacks=[watcher(L, events, CALLBACK_HOOKS)], **how)
    returned = run(runner, model)
    result = {"returned": plain(returned), "events": events, "rows": rows.rows, **metrics(runner)}
    return result | {"epoch": runner.current_epoch, "step": runner.global_step, "training": model.training}


@case
def validate(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.validate(model, loader(3, rest=1), verbose=False))


@case
def test(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.test(model, loader(3, rest=1), verbose=False))


@case
def predict(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.predict(model, loader(2, rest=1)))


@case
def predict_two_loaders(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return {"y": self(batch[0]), "from": dataloader_idx}

    return evaluated(L, lambda runner, model: runner.predict(model, [loader(2), loader(1, seed=1)]), Model)


@case
def predict_without_results(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.predict(model, loader(2), return_predictions=False))


@case
def predict_by_forward(L: ModuleType) -> Result:
    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    batches = Batches(x for x, _ in loader(2))
    return evaluated(L, lambda runner, model: runner.predict(model, batches), Model)


@case
def predict_a_list_of_batches(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return tuple(batch.shape)

    batches = [x for x, _ in loader(2)]
    return {"returned": plain(trainer(L).predict(Model(), batches))}


@case
def predict_limited(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.predict(model, loader(5)), limit_predict_batches=2)


@case
def test_limited(L: ModuleType) -> Result:
    return evaluated(L, lambda runner, model: runner.test(model, loader(6), verbose=False), limit_test_batches=0.5)


@case
def test_two_loaders(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            loss = self.loss(batch)
            self.log("a", loss)
            self.log("b", loss, on_step=True, on_epoch=True)
            return loss

    loaders = [loader(2), loader(1, rest=1, seed=1)]
    return evaluated(L, lambda runner, model: runner.test(model, loaders, verbose=False), Model)


@case
def test_that_logs_nothing(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def test_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    return evaluated(L, lambda runner, model: runner.test(model, loader(2), verbose=False), Model)


@case
def test_epoch_end_that_collects(L: ModuleType) -> Result:
    """The way that Lightning's guide collects outputs: in an attribute, at the end of each batch."""

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.outputs: list[Any] = []

        def test_step(self, batch: Any, batch_idx: int) -> Any:
            return self(batch[0])

        def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.outputs.append(outputs)

        def on_test_epoch_end(self) -> None:
            self.log("mean", torch.cat(self.outputs).mean())

    return evaluated(L, lambda runner, model: runner.test(model, loader(2), verbose=False), Model)


@case
def evaluation_after_fit(L: ModuleType) -> Result:
    def run(runner: Any, model: Any) -> Any:
        runner.fit(model, loader(2), loader(1, seed=1))
        tested = runner.test(model, loader(2, seed=2), verbose=False)
        return [tested, runner.validate(model, loader(2, seed=3), verbose=False), runner.predict(model, loader(1))]

    return evaluated(L, run, max_epochs=2)


@case
def validate_during_dropout(L: ModuleType) -> Result:
    """Evaluation is in eval mode, whatever mode the module was in."""

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.drop = torch.nn.Dropout(0.9)

        def forward(self, x: Any) -> Any:
            return self.layer(self.drop(x))

    return evaluated(L, lambda runner, model: runner.validate(model, loader(2), verbose=False), Model)
