"""Compared runs: what `self.log` gives to loggers, callbacks and the progress bar."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from parity_models import FEATURES, linear, loader, trainer
from parity_recording import logger, metrics, numbers, told
from parity_table import case

Result = dict[str, Any]


def logged(L: ModuleType, module: type, train: Any = None, val: Any = None, **how: Any) -> Result:
    """Train and tell the rows and metrics, those too that a callback sees at the ends of batches and epochs."""
    seen: list[Any] = []

    class Look(L.Callback):
        def on_train_batch_end(self, runner: Any, *args: Any) -> None:
            seen.append(["batch", numbers(runner.callback_metrics), numbers(runner.progress_bar_metrics)])

        def on_train_epoch_end(self, runner: Any, *args: Any) -> None:
            seen.append(["epoch", numbers(runner.callback_metrics), numbers(runner.progress_bar_metrics)])

        def on_validation_end(self, runner: Any, *args: Any) -> None:
            seen.append(["validation", numbers(runner.callback_metrics), numbers(runner.logged_metrics)])

    rows = logger(L)
    model = module()
    runner = trainer(L, **{"logger": rows, "callbacks": [Look()], "max_epochs": 2} | how)
    runner.fit(model, loader(3) if train is None else train, val)
    return told(runner, model, rows) | {"seen": seen}


def logs(L: ModuleType, **how: Any) -> type:
    """A module that logs its training loss so."""

    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, **how)
            return loss

    return Model


@case
def log_of_steps(L: ModuleType) -> Result:
    return logged(L, logs(L))


@case
def log_of_epochs(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=False, on_epoch=True))


@case
def log_of_both(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True))


@case
def log_in_the_progress_bar(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True, prog_bar=True))


@case
def log_without_loggers(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True, logger=False))


@case
def log_each_second_step(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True), loader(5), log_every_n_steps=2)


@case
def log_seldom(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True), log_every_n_steps=50)


@case
def log_never(L: ModuleType) -> Result:
    return logged(L, logs(L), log_every_n_steps=0)


@case
def log_of_accumulated_steps(L: ModuleType) -> Result:
    """A row for each update, not for each batch."""
    return logged(L, logs(L, on_step=True, on_epoch=True), loader(6), accumulate_grad_batches=2)


@case
def log_of_accumulated_steps_seldom(L: ModuleType) -> Result:
    return logged(L, logs(L), loader(8), accumulate_grad_batches=2, log_every_n_steps=3)


@case
def log_weighted_by_the_size(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=False, on_epoch=True), loader(2, rest=1))


@case
def log_weighted_by_a_number(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=False, on_epoch=True, batch_size=2), loader(2, rest=1))


@case
def log_reductions(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            for name in ("min", "max", "sum", "mean"):
                self.log(name, loss, on_step=False, on_epoch=True, reduce_fx=name)
            self.log("torch_max", loss, on_step=True, on_epoch=True, reduce_fx=torch.max)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loss = self.loss(batch)
            for name in ("min", "max", "sum"):
                self.log(f"val_{name}", loss, reduce_fx=name)

    return logged(L, Model, loader(2, rest=1), loader(2, rest=1, seed=1))


@case
def log_reductions_of_values_that_are_no_numbers(L: ModuleType) -> Result:
    """A NaN is not passed over, wherever the value comes from."""
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            for name in ("min", "max", "sum", "mean"):
                self.log(name, (batch[0].mean() - 0.5).sqrt().detach(), on_step=False, on_epoch=True, reduce_fx=name)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            value = float("nan") if batch_idx == 1 else float(batch_idx)
            for name in ("min", "max"):
                self.log(f"hook_{name}", value, on_step=False, on_epoch=True, reduce_fx=name)

    return logged(L, Model, loader(2, rest=1))


@case
def log_weighted_by_what_the_step_computes(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss, count = self.loss(batch), (batch[0] > 0).sum()
            self.log("tensor", loss, on_step=True, on_epoch=True, batch_size=count)
            self.log("item", loss, on_step=False, on_epoch=True, batch_size=count.item())
            self.log("most", loss, on_step=False, on_epoch=True, batch_size=count, reduce_fx="max")
            self.log("plain", loss, on_step=False, on_epoch=True)
            self.log_dict({"a": loss, "b": 2 * loss}, on_step=False, on_epoch=True, batch_size=count)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch), batch_size=(batch[0] > 0).sum())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("hook", float(batch_idx), on_step=False, on_epoch=True, batch_size=0 if batch_idx else 2)

    return logged(L, Model, loader(3, rest=1), loader(2, rest=1, seed=1))


@case
def log_by_pythons_functions_and_by_place(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("max", loss, on_step=False, on_epoch=True, reduce_fx=max)
            self.log("min", loss, on_step=False, on_epoch=True, reduce_fx=min)
            self.log_dict({"e": loss}, True, False, True, True, "max")
            self.log("twice", loss, on_step=False, on_epoch=True, batch_size=1)
            self.log("twice", 2 * loss, on_step=False, on_epoch=True, batch_size=3)
            return loss

    return logged(L, Model)


@case
def log_of_validation_steps_in_two_fits(L: ModuleType) -> Result:
    """The steps of validations are counted in each call anew."""
    Linear: Any = linear(L)

    class Model(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch), on_step=True, on_epoch=False)

    rows, model = logger(L), Model()
    runner = trainer(L, logger=rows, max_epochs=1)
    runner.fit(model, loader(2), loader(2, seed=1))
    runner.validate(model, loader(2, seed=1), verbose=False)
    runner.fit_loop.max_epochs = 2
    runner.fit(model, loader(2), loader(2, seed=1))
    return told(runner, model, rows)


@case
def log_of_validation(L: ModuleType) -> Result:
    return logged(L, linear(L), val=loader(2, rest=1, seed=1))


@case
def log_of_validation_inside_an_epoch(L: ModuleType) -> Result:
    return logged(L, logs(L, on_step=True, on_epoch=True), loader(6), loader(2, seed=1), val_check_interval=2)


@case
def log_of_validation_steps(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch), on_step=True, on_epoch=True, prog_bar=True)

    return logged(L, Model, val=loader(3, seed=1))


def two(L: ModuleType, add: bool) -> Result:
    """A validation with two loaders."""

    Linear: Any = linear(L)

    class Model(Linear):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val" if add else f"val_{dataloader_idx}", self.loss(batch), add_dataloader_idx=add)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("test" if add else f"test_{dataloader_idx}", self.loss(batch), add_dataloader_idx=add)

    loaders = [loader(2, seed=1), loader(3, seed=2)]
    result = logged(L, Model, val=loaders)
    runner, model = trainer(L), Model()
    result["validate"] = runner.validate(model, loaders, verbose=False)
    result["test"] = runner.test(model, loaders, verbose=False)
    return result | {f"tested_{name}": value for name, value in metrics(runner).items()}


@case
def log_of_two_loaders(L: ModuleType) -> Result:
    return two(L, True)


@case
def log_of_two_loaders_by_own_names(L: ModuleType) -> Result:
    return two(L, False)


@case
def log_of_a_dict(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log_dict({"a": loss, "b": loss * 2}, prog_bar=True, on_step=True, on_epoch=True)
            return {"loss": loss, "twice": (loss * 2).detach()}

    return logged(L, Model)


@case
def log_in_hooks(L: ModuleType) -> Result:
    """Values of Python's, which hooks log at the ends of batches and epochs."""

    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("batch", float(batch_idx))

        def on_train_epoch_start(self) -> None:
            self.log("start", float(self.current_epoch))

        def on_train_epoch_end(self) -> None:
            self.log("end", 2.0 * self.current_epoch, prog_bar=True)

        def on_validation_epoch_end(self) -> None:
            self.log("val_end", 3.0)

    return logged(L, Model, val=loader(2, seed=1))


@case
def log_in_hooks_of_batches(L: ModuleType) -> Result:
    """Values of an epoch that hooks log weigh as much as the samples of their batches; the last batch has one."""

    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("start", float(batch_idx), on_step=True, on_epoch=True, prog_bar=True)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("mean", float(batch_idx), on_step=False, on_epoch=True)
            self.log("sum", float(batch_idx), on_step=False, on_epoch=True, reduce_fx="sum")
            self.log("given", float(batch_idx), on_step=False, on_epoch=True, batch_size=batch_idx + 1)

        def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("val_start", float(batch_idx))

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("val_mean", float(batch_idx), on_step=True, on_epoch=True)

    return logged(L, Model, loader(3, rest=1), loader(2, rest=2, seed=1))


@case
def log_with_sizes_of_batches(L: ModuleType) -> Result:
    """Each batch says its size, the last smaller one too."""

    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(batch[0]))
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch), batch_size=batch[0].shape[0])
            self.log_dict({"twice": 2 * self.loss(batch)}, True, batch_size=batch[0].size(0))

    return logged(L, Model, loader(3, rest=1), loader(2, rest=2, seed=1))


@case
def log_as_seen_between_batches_of_an_evaluation(L: ModuleType) -> Result:
    """A validation has no values of its epoch before that has ended: those of the one before are there."""
    seen: list[Any] = []

    class Look(L.Callback):
        def look(self, runner: Any) -> None:
            seen.append([numbers(runner.callback_metrics), numbers(runner.progress_bar_metrics)])

        def on_validation_batch_end(self, runner: Any, *args: Any) -> None:
            self.look(runner)

        def on_test_batch_end(self, runner: Any, *args: Any) -> None:
            self.look(runner)

    Linear: Any = linear(L)

    class Model(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch), prog_bar=True)
            self.log("both", self.loss(batch), on_step=True, on_epoch=True, prog_bar=True)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

    result = logged(L, Model, loader(3), loader(3, seed=1), callbacks=[Look()], val_check_interval=2)
    runner = trainer(L, callbacks=[Look()])
    return result | {"tested": runner.test(Model(), loader(2), verbose=False), "between": seen}


@case
def log_in_callbacks(L: ModuleType) -> Result:
    class Own(L.Callback):
        def on_train_batch_end(self, runner: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            module.log("doubled", float(outputs["loss"]) * 2)

        def on_train_epoch_end(self, runner: Any, module: Any) -> None:
            module.log("epoch_of_callback", float(runner.current_epoch))

        def on_validation_epoch_end(self, runner: Any, module: Any) -> None:
            module.log("val_of_callback", float(runner.global_step))

    return logged(L, linear(L), val=loader(1, seed=1), callbacks=[Own()])


@case
def log_with_a_step_of_its_own(L: ModuleType) -> Result:
    """A value named "step" is where the row stands."""

    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_epoch_end(self) -> None:
            self.log("step", float(self.current_epoch))
            self.log("value", 5.0)

    return logged(L, Model)


@case
def log_by_the_logger(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_epoch_end(self) -> None:
            self.logger.log_metrics({"direct": 1.5}, step=self.global_step)

    return logged(L, Model)


@case
def log_of_hyperparameters(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, width: int = 3, rate: float = 0.05, *, name: str = "x") -> None:
            super().__init__()
            self.save_hyperparameters(ignore=["name"])

    class Data(L.LightningDataModule):
        def __init__(self, batches: int = 2) -> None:
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self) -> Any:
            return loader(self.hparams.batches)

    rows, model, data = logger(L), Model(width=7, name="y"), Data(3)
    runner = trainer(L, logger=rows)
    runner.fit(model, datamodule=data)
    result = told(runner, model, rows) | {"params": [dict(sorted(each.items())) for each in rows.params]}
    return result | {
        "hparams": dict(model.hparams),
        "attribute": model.hparams.width,
        "initial": dict(model.hparams_initial),
    }


@case
def log_of_hyperparameters_that_differ(L: ModuleType) -> Result:
    """Of a module and a data module: one value in both, several, and where nobody logs them."""

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, rate: Any = 0.1, batches: int = 2, logged: bool = True) -> None:
            super().__init__()
            self.save_hyperparameters(ignore=["logged"], logger=logged)

    class Data(L.LightningDataModule):
        def __init__(self, rate: Any = 0.1, size: int = 4) -> None:
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self) -> Any:
            return loader(2, self.hparams.size)

    def run(model: Any, data: Any, rows: Any = False) -> list[Any]:
        try:
            trainer(L, logger=rows).fit(model, datamodule=data)
        except (RuntimeError, ValueError) as error:
            return ["refused", "rate" in str(error)]
        return [dict(sorted(each.items())) for each in rows.params] if rows else []

    return {
        "same": run(Model(0.3), Data(0.3), logger(L)),
        "different": run(Model(0.1), Data(0.3), logger(L)),
        "another type": run(Model(1), Data(1.0), logger(L)),
        "lists": run(Model([1, 2]), Data([1, 3]), logger(L)),
        "not logged": run(Model(0.1, logged=False), Data(0.3), logger(L)),
        "no logger": run(Model(0.1), Data(0.3)),
    }


@case
def log_of_hyperparameters_and_graph_by_calls(L: ModuleType) -> Result:
    """Loggers are told of the module before each run, evaluations too."""
    rows, calls = logger(L), []
    rows.log_hyperparams = lambda params, *args: calls.append(["hyperparameters", dict(params)])
    rows.log_graph = lambda model, *args: calls.append(["graph", type(model).__name__])

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, rate: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()

    runner, model = trainer(L, logger=rows), Model()
    for run in (runner.validate, runner.fit, runner.test, runner.predict):
        calls.append([run.__name__])
        run(model, loader(2))
    return told(runner, model, rows) | {"calls": calls}


@case
def log_of_a_graph_for_tensorboard(L: ModuleType) -> Result:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Linear: Any = linear(L)

    class Model(Linear):
        example_input_array = torch.ones(2, FEATURES)

    runner, model = trainer(L, logger=L.loggers.TensorBoardLogger(".", log_graph=True)), Model()
    runner.fit(model, loader(2))
    found = EventAccumulator(runner.log_dir).Reload()
    return told(runner, model) | {"layer": any("layer" in node.name for node in found.Graph().node)}


@case
def log_of_learning_rates(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    monitor = L.callbacks.LearningRateMonitor(logging_interval="step", log_momentum=True)
    return logged(L, Model, callbacks=[monitor])


@case
def log_of_learning_rates_by_epoch(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(
                [{"params": [self.layer.weight], "name": "w"}, {"params": [self.layer.bias], "lr": 0.2, "name": "b"}],
                lr=0.1,
            )
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    return logged(L, Model, callbacks=[L.callbacks.LearningRateMonitor(logging_interval="epoch")], max_epochs=3)


@case
def log_to_two_loggers(L: ModuleType) -> Result:
    one, other = logger(L), logger(L)
    runner, model = trainer(L, logger=[one, other]), linear(L)()
    runner.fit(model, loader(2))
    return told(runner, model, one) | {"other": other.rows, "first": runner.logger is one, "count": len(runner.loggers)}


@case
def log_twice_in_a_step(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            for factor in (1, 3):
                for reduction in ("mean", "sum", "max", "min"):
                    self.log(reduction, factor * loss, on_step=True, on_epoch=True, reduce_fx=reduction)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val", self.loss(batch))
            self.log("val", 3 * self.loss(batch))

    return logged(L, Model, loader(3, rest=2), loader(2, seed=1))


@case
def log_to_csv(L: ModuleType) -> Result:
    """The file itself: columns may stand in another order."""
    import csv

    runner, model = trainer(L, logger=L.loggers.CSVLogger("."), max_epochs=2, enable_checkpointing=True), logs(L)()
    runner.fit(model, loader(3), loader(1, seed=1))
    with open("lightning_logs/version_0/metrics.csv") as file:
        rows = [{key: float(value) for key, value in sorted(row.items()) if value} for row in csv.DictReader(file)]
    return told(runner, model) | {"csv": rows, "folder": runner.log_dir, "version": runner.logger.version}


@case
def outputs_of_steps(L: ModuleType) -> Result:
    """What on_train_batch_end and on_validation_batch_end are given."""
    seen: list[Any] = []

    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return {"loss": loss, "double": 2 * loss.detach(), "batch": batch[0]}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"of": self.loss(batch), "shape": self(batch[0])}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append([batch_idx, sorted(outputs), float(outputs["loss"]), float(outputs["double"])])
            seen.append(tuple(outputs["batch"].shape))

        def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            seen.append([batch_idx, sorted(outputs), float(outputs["of"]), tuple(outputs["shape"].shape)])

    return logged(L, Model, loader(4), loader(2, seed=1), accumulate_grad_batches=2) | {"outputs": seen}
