"""Compared runs: epochs, accumulation, intervals, limits, and how long training lasts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from parity_models import linear, loader, samples, trainer
from parity_recording import (
    BATCH_HOOKS,
    CALLBACK_HOOKS,
    DATA_HOOKS,
    GRADIENT_HOOKS,
    MODE_HOOKS,
    MODULE_HOOKS,
    STAGED_HOOKS,
    TRANSFER_HOOKS,
    logger,
    metrics,
    recorded,
    told,
    watcher,
)  # fmt: skip
from parity_table import case

Result = dict[str, Any]


def fit(L: ModuleType, train: Any = None, val: Any = None, module: Any = None, **how: Any) -> Result:
    """Train a linear model, and tell all of it: the hooks too that no gradient is needed for."""
    events: list[str] = []
    rows = logger(L)
    made = module or linear(L)
    model = recorded(made, events, MODULE_HOOKS, "module")()
    callbacks = [watcher(L, events), *how.pop("callbacks", [])]
    runner = trainer(L, logger=rows, callbacks=callbacks, **how)
    runner.fit(model, loader() if train is None else train, val)
    return told(runner, model, rows, events)


# -- the trace of hooks


@case
def epochs(L: ModuleType) -> Result:
    return fit(L, val=loader(2, seed=1), max_epochs=2)


@case
def epochs_without_validation(L: ModuleType) -> Result:
    return fit(L, max_epochs=3)


@case
def every_hook_accumulated_and_clipped(L: ModuleType) -> Result:
    """Those too that see gradients, for which we train in parts."""
    events: list[str] = []
    hooks = (*MODULE_HOOKS, *MODE_HOOKS, *TRANSFER_HOOKS, *STAGED_HOOKS)
    model = recorded(linear(L), events, hooks, "module")()
    callbacks = [watcher(L, events, (*CALLBACK_HOOKS, *GRADIENT_HOOKS))]
    runner = trainer(
        L, callbacks=callbacks, accumulate_grad_batches=2, gradient_clip_val=0.5, num_sanity_val_steps=1, max_epochs=2
    )
    runner.fit(model, loader(4), loader(2, seed=1))
    return told(runner, model, events=events)


@case
def two_callbacks_and_hooks_in_order(L: ModuleType) -> Result:
    events: list[str] = []
    first, second = (recorded(L.Callback, events, BATCH_HOOKS, f"callback {n}") for n in "ab")
    model = recorded(linear(L), events, BATCH_HOOKS, "module")()
    runner = trainer(L, callbacks=[first(), L.callbacks.EarlyStopping("val_loss"), second()])
    runner.fit(model, loader(2), loader(1, seed=1))
    return told(runner, model, events=events) | {"callbacks": [type(c).__name__ for c in runner.callbacks]}


@case
def datamodule(L: ModuleType) -> Result:
    events: list[str] = []

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(3)

        def val_dataloader(self) -> Any:
            return loader(2, seed=1)

        def test_dataloader(self) -> Any:
            return loader(1, seed=2)

        def predict_dataloader(self) -> Any:
            return loader(1, seed=3)

    model = recorded(linear(L), events, ("prepare_data", "setup", "teardown"), "module")()
    data = recorded(Data, events, (*DATA_HOOKS, *TRANSFER_HOOKS), "data")()
    runner = trainer(L, max_epochs=2)
    runner.fit(model, datamodule=data)
    tested = runner.test(model, datamodule=data, verbose=False)
    predicted = runner.predict(model, datamodule=data)
    return told(runner, model, events=events) | {"test": tested, "predict": [p.reshape(-1).tolist() for p in predicted]}


@case
def loaders_of_the_module(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def train_dataloader(self) -> Any:
            return loader(3)

        def val_dataloader(self) -> Any:
            return [loader(2, seed=1)]

    events: list[str] = []
    model = recorded(Model, events, DATA_HOOKS, "module")()
    runner = trainer(L, max_epochs=2)
    runner.fit(model)
    return told(runner, model, events=events)


@case
def loaders_made_anew(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def train_dataloader(self) -> Any:
            return loader(2)

        def val_dataloader(self) -> Any:
            return loader(1, seed=1)

    events: list[str] = []
    model = recorded(Model, events, DATA_HOOKS, "module")()
    runner = trainer(L, max_epochs=5, reload_dataloaders_every_n_epochs=2)
    runner.fit(model)
    return told(runner, model, events=events)


@case
def state_of_the_trainer(L: ModuleType) -> Result:
    """What a callback sees of the Trainer in each hook."""
    seen: list[list[Any]] = []

    class Look(L.Callback):
        def look(self, hook: str, runner: Any) -> None:
            names = ("sanity_checking", "training", "validating", "testing", "predicting", "evaluating")
            flags = [name for name in names if getattr(runner, name)]
            sizes = [runner.num_training_batches, list(runner.num_val_batches), list(runner.num_sanity_val_batches)]
            fn = str(getattr(runner.state.fn, "value", runner.state.fn))
            seen.append([hook, flags, sizes, fn, runner.is_last_batch, runner.should_stop])

        def on_train_batch_start(self, runner: Any, *args: Any) -> None:
            self.look("train batch", runner)

        def on_validation_batch_start(self, runner: Any, *args: Any) -> None:
            self.look("validation batch", runner)

        def on_train_epoch_end(self, runner: Any, *args: Any) -> None:
            self.look("epoch end", runner)

        def on_fit_start(self, runner: Any, *args: Any) -> None:
            self.look("fit start", runner)

    runner = trainer(L, callbacks=[Look()], max_epochs=2, num_sanity_val_steps=1, limit_val_batches=2)
    runner.fit(linear(L)(), loader(3), loader(4))
    known = {name: getattr(runner, name) for name in ("max_epochs", "max_steps", "min_epochs", "min_steps")}
    return {"seen": seen, **known, "steps": runner.estimated_stepping_batches}


# -- accumulation and clipping


@case
def accumulated(L: ModuleType) -> Result:
    return fit(L, loader(6), loader(1, seed=1), accumulate_grad_batches=3, max_epochs=2)


@case
def accumulated_with_a_remainder(L: ModuleType) -> Result:
    return fit(L, loader(5), accumulate_grad_batches=2, max_epochs=2)


def as_lightning_divides(L: ModuleType) -> dict[str, Any]:
    """What has ours divide the last window of an epoch by the full number of batches."""
    return {"lightning_remainder": True} if L.__name__.startswith("gluongraph") else {}


@case
def accumulated_with_a_remainder_as_lightning_divides(L: ModuleType) -> Result:
    return fit(L, loader(5), accumulate_grad_batches=2, max_epochs=2, **as_lightning_divides(L))


@case
def accumulated_with_a_remainder_clipped_as_lightning_divides(L: ModuleType) -> Result:
    how = {"gradient_clip_val": 0.3, **as_lightning_divides(L)}
    return fit(L, loader(4, rest=2), accumulate_grad_batches=3, max_epochs=2, **how)


@case
def accumulated_and_seen_as_lightning_divides(L: ModuleType) -> Result:
    """Hooks see the gradients, of the last window too."""
    seen: list[list[float]] = []

    Linear: Any = linear(L)

    class Model(Linear):
        def on_after_backward(self) -> None:
            seen.append(self.layer.weight.grad.reshape(-1).tolist())

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            seen.append(self.layer.weight.grad.reshape(-1).tolist())

    how = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, **as_lightning_divides(L)}
    return fit(L, loader(5), module=Model, max_epochs=2, **how) | {"gradients": seen}


@case
def accumulated_by_backward_as_lightning_divides(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def backward(self, loss: Any) -> None:
            loss.backward()

    return fit(L, loader(3), module=Model, accumulate_grad_batches=8, max_epochs=2, **as_lightning_divides(L))


@case
def accumulated_over_more_than_an_epoch(L: ModuleType) -> Result:
    return fit(L, loader(3), accumulate_grad_batches=8, max_epochs=2)


@case
def clipped_by_norm(L: ModuleType) -> Result:
    return fit(L, gradient_clip_val=0.3, max_epochs=2)


@case
def clipped_by_value(L: ModuleType) -> Result:
    return fit(L, gradient_clip_val=0.2, gradient_clip_algorithm="value", max_epochs=2)


def clipped_in_epochs(L: Any, *bounds: float | None, **how: Any) -> Result:
    """The bound is another one in each epoch."""

    class Bounds(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.gradient_clip_val = bounds[trainer.current_epoch]

    return fit(L, callbacks=[Bounds()], gradient_clip_val=bounds[0], max_epochs=len(bounds), **how)


@case
def clipped_by_norms_that_change(L: ModuleType) -> Result:
    return clipped_in_epochs(L, 0.3, 0.1, None, 0.2)


@case
def clipped_by_norm_from_the_second_epoch_on(L: ModuleType) -> Result:
    return clipped_in_epochs(L, None, 0.1, accumulate_grad_batches=2)


@case
def clipped_by_values_that_change(L: ModuleType) -> Result:
    return clipped_in_epochs(L, 0.2, 0.05, None, 0.1, gradient_clip_algorithm="value")


@case
def clipped_by_another_algorithm(L: Any) -> Result:
    class Algorithm(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.gradient_clip_algorithm = ("norm", "value", "norm")[trainer.current_epoch]

    return fit(L, callbacks=[Algorithm()], gradient_clip_val=0.1, max_epochs=3)


@case
def accumulated_and_clipped(L: ModuleType) -> Result:
    return fit(L, accumulate_grad_batches=2, gradient_clip_val=0.3)


@case
def accumulation_that_changes(L: ModuleType) -> Result:
    schedule = L.callbacks.GradientAccumulationScheduler({0: 1, 1: 2, 3: 4})
    return fit(L, loader(4), callbacks=[schedule], max_epochs=4)


# -- when it validates


@case
def validated_each_quarter(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(1, seed=1), val_check_interval=0.25, max_epochs=2)


@case
def validated_each_third_of_an_odd_epoch(L: ModuleType) -> Result:
    return fit(L, loader(7), loader(1, seed=1), val_check_interval=0.34)


@case
def validated_after_three_batches(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(1, seed=1), val_check_interval=3, max_epochs=2)


@case
def validated_after_three_batches_accumulated(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(1, seed=1), val_check_interval=3, accumulate_grad_batches=2)


def in_steps(L: ModuleType, steps: int, batches: int) -> Any:
    """An interval in updates, which Lightning is told in batches."""
    return f"{steps} steps" if L.__name__.startswith("gluongraph") else batches


@case
def validated_after_three_steps(L: ModuleType) -> Result:
    how = {"val_check_interval": in_steps(L, 3, 6), "accumulate_grad_batches": 2}
    stopping = L.callbacks.EarlyStopping("val_loss", patience=9)
    keeping = L.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=-1)
    callbacks = {"callbacks": [stopping, keeping], "enable_checkpointing": True}
    result = fit(L, loader(14), loader(1, seed=1), max_epochs=2, **how, **callbacks)
    return result | {"waited": stopping.wait_count, "best": float(stopping.best_score)}


@case
def validated_after_three_steps_of_a_batch(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(1, seed=1), val_check_interval=in_steps(L, 3, 3), max_epochs=2)


@case
def validated_after_steps_across_epochs(L: ModuleType) -> Result:
    how = {"check_val_every_n_epoch": None, "val_check_interval": in_steps(L, 3, 6), "accumulate_grad_batches": 2}
    return fit(L, loader(4), loader(1, seed=1), max_epochs=4, **how)


@case
def validated_after_batches_in_words(L: ModuleType) -> Result:
    interval = "3 batches" if L.__name__.startswith("gluongraph") else 3
    return fit(L, loader(8), loader(1, seed=1), val_check_interval=interval, accumulate_grad_batches=2)


@case
def validated_each_second_epoch(L: ModuleType) -> Result:
    return fit(L, loader(3), loader(1, seed=1), check_val_every_n_epoch=2, max_epochs=5)


@case
def validated_each_second_epoch_at_half(L: ModuleType) -> Result:
    return fit(L, loader(4), loader(1, seed=1), check_val_every_n_epoch=2, val_check_interval=0.5, max_epochs=4)


@case
def validated_across_epochs(L: ModuleType) -> Result:
    return fit(L, loader(3), loader(1, seed=1), check_val_every_n_epoch=None, val_check_interval=4, max_epochs=4)


@case
def not_validated(L: ModuleType) -> Result:
    return fit(L, loader(3), loader(1, seed=1), limit_val_batches=0)


@case
def sanity_check_of_all(L: ModuleType) -> Result:
    return fit(L, loader(1), loader(3, seed=1), num_sanity_val_steps=-1)


@case
def no_sanity_check(L: ModuleType) -> Result:
    return fit(L, loader(1), loader(3, seed=1), num_sanity_val_steps=0)


@case
def sanity_check_of_more_than_there_is(L: ModuleType) -> Result:
    return fit(L, loader(1), loader(1, seed=1), num_sanity_val_steps=5, limit_val_batches=1)


# -- how much of the data


@case
def limited_to_batches(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(4, seed=1), limit_train_batches=3, limit_val_batches=2, max_epochs=2)


@case
def limited_to_shares(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(5, seed=1), limit_train_batches=0.3, limit_val_batches=0.5, max_epochs=2)


@case
def limited_to_nothing(L: ModuleType) -> Result:
    return fit(L, loader(8), loader(5, seed=1), limit_train_batches=0)


@case
def overfitted_to_batches(L: ModuleType) -> Result:
    return fit(L, loader(6, shuffle=True), loader(4, seed=1), overfit_batches=2, max_epochs=2)


@case
def overfitted_to_a_share(L: ModuleType) -> Result:
    return fit(L, loader(6), loader(4, seed=1), overfit_batches=0.5, max_epochs=2)


@case
def fast_run(L: ModuleType) -> Result:
    return fit(L, loader(6), loader(4, seed=1), fast_dev_run=True, max_epochs=7)


@case
def fast_run_with_callbacks_and_loggers(L: ModuleType) -> Result:
    """Those that save are there, and save nothing; what a module calls of its logger's experiment does nothing."""

    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.logger.experiment.add_scalar("loss", 1.0, 0)
            self.logger.experiment["runs"].append(1)
            self.logger.log_metrics({"own": 1.0})
            self.logger.log_hyperparams({"rate": 0.1})
            self.logger.log_image("image", [])

    quiet = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "enable_model_summary": False}
    found: Result = {}
    settings: dict[str, Any] = {
        "by default": {},
        "a logger": {"logger": L.loggers.CSVLogger(".")},
        "no logger": {"logger": False},
        "a checkpoint": {"callbacks": [L.callbacks.ModelCheckpoint(monitor="val_loss", save_last=True)]},
        "rates": {"callbacks": [L.callbacks.LearningRateMonitor()], "enable_checkpointing": False},
    }
    for name, how in settings.items():
        runner, model = L.Trainer(fast_dev_run=True, **quiet, **how), (linear(L) if name == "no logger" else Model)()
        runner.fit(model, loader(3), loader(2))
        saving = runner.checkpoint_callback
        found[name] = {
            "best": None if saving is None else saving.best_model_path,
            "callbacks": [type(each).__name__ for each in runner.callbacks],
            "loggers": [type(each).__name__ for each in runner.loggers],
            "folder": runner.log_dir is not None,
            "files": sorted(each.name for each in Path().iterdir()),
            **metrics(runner),
        }
    return found


@case
def fast_run_of_three(L: ModuleType) -> Result:
    return fit(L, loader(6), loader(4, seed=1), fast_dev_run=3)


@case
def shuffled(L: ModuleType) -> Result:
    """Of a loader of PyTorch's with a generator of its own: the order is the loader's."""
    order = torch.Generator().manual_seed(7)
    return fit(L, loader(4, shuffle=True, generator=order), max_epochs=2)


@case
def last_batch_smaller(L: ModuleType) -> Result:
    return fit(L, loader(3, rest=2), loader(2, rest=1, seed=1), max_epochs=2)


class Batches:
    """Any object that gives batches and knows how many."""

    def __init__(self, batches: Any) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)


@case
def iterable_of_batches(L: ModuleType) -> Result:
    return fit(L, Batches(loader(3)), Batches(loader(2, seed=1)), max_epochs=2)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Samples of which nobody knows how many there are."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(list(samples(self.count)))


def stream(count: int) -> Any:
    return torch.utils.data.DataLoader(Stream(count), batch_size=4)


@case
def streamed(L: ModuleType) -> Result:
    return fit(L, stream(14), stream(6), max_epochs=2)


@case
def streamed_and_accumulated(L: ModuleType) -> Result:
    return fit(L, stream(16), accumulate_grad_batches=2, max_epochs=2)


@case
def streamed_and_validated_inside(L: ModuleType) -> Result:
    return fit(L, stream(20), stream(4), val_check_interval=2, max_epochs=2)


@case
def streamed_and_limited(L: ModuleType) -> Result:
    return fit(L, stream(20), stream(12), limit_train_batches=3, limit_val_batches=2)


# -- how long


@case
def steps_within_an_epoch(L: ModuleType) -> Result:
    return fit(L, loader(4), loader(1, seed=1), max_epochs=-1, max_steps=6)


@case
def steps_accumulated(L: ModuleType) -> Result:
    return fit(L, loader(4), max_steps=3, accumulate_grad_batches=2, max_epochs=10)


@case
def steps_to_the_end_of_an_epoch(L: ModuleType) -> Result:
    return fit(L, loader(3), loader(1, seed=1), max_epochs=9, max_steps=6)


@case
def no_epoch(L: ModuleType) -> Result:
    return fit(L, max_epochs=0)


@case
def no_step(L: ModuleType) -> Result:
    return fit(L, max_steps=0)


def stopping(L: ModuleType, batch: int, epoch: int = 0) -> Any:
    """A callback that asks for the end after a batch."""

    class Stop(L.Callback):
        def on_train_batch_end(self, runner: Any, module: Any, outputs: Any, batch_: Any, batch_idx: int) -> None:
            if (runner.current_epoch, batch_idx) == (epoch, batch):
                runner.should_stop = True

    return Stop()


@case
def stopped_in_an_epoch(L: ModuleType) -> Result:
    return fit(L, loader(4), loader(1, seed=1), callbacks=[stopping(L, 1)], max_epochs=3)


@case
def stopped_in_the_second_epoch(L: ModuleType) -> Result:
    return fit(L, loader(4), callbacks=[stopping(L, 2, epoch=1)], max_epochs=5)


@case
def stopped_before_the_fewest_epochs(L: ModuleType) -> Result:
    return fit(L, loader(3), callbacks=[stopping(L, 1)], min_epochs=2, max_epochs=4)


@case
def stopped_before_the_fewest_steps(L: ModuleType) -> Result:
    return fit(L, loader(3), callbacks=[stopping(L, 1)], min_steps=4, max_epochs=4)


@case
def stopped_in_validation(L: ModuleType) -> Result:
    class Stop(L.Callback):
        def on_validation_end(self, runner: Any, module: Any) -> None:
            runner.should_stop = not runner.sanity_checking

    return fit(L, loader(4), loader(1, seed=1), callbacks=[Stop()], val_check_interval=2, max_epochs=3)


def stopped_in(L: ModuleType, hook: str, **how: Any) -> Result:
    Base: Any = L.Callback

    def stop(self: Any, runner: Any, *args: Any) -> None:
        runner.should_stop = True

    stops = type("Stops", (Base,), {hook: stop})()
    return fit(L, loader(3), loader(1, seed=1), callbacks=[stops], max_epochs=3, **how)


@case
def stopped_before_the_first_epoch(L: ModuleType) -> Result:
    return stopped_in(L, "on_train_start")


@case
def stopped_before_the_first_batch(L: ModuleType) -> Result:
    return stopped_in(L, "on_train_epoch_start")


@case
def stopped_before_the_first_batch_with_a_least_number_of_epochs(L: ModuleType) -> Result:
    return stopped_in(L, "on_train_epoch_start", min_epochs=2)


@case
def stopped_after_a_batch_with_a_least_number_of_steps(L: ModuleType) -> Result:
    """The epoch in which they have been made comes to its end."""
    return stopped_in(L, "on_train_batch_end", min_steps=4)


@case
def rest_of_an_epoch_left_out_with_schedules(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 and self.current_epoch == 0 else None

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            make = torch.optim.lr_scheduler.StepLR
            steps = {"scheduler": make(optimizer, 1, 0.9), "interval": "step"}
            return [optimizer], [steps, make(optimizer, 1, 0.5)]

    return fit(L, loader(4), module=Model, max_epochs=2)


@case
def rest_of_an_epoch_left_out(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 2 and self.current_epoch == 0 else None

    return fit(L, loader(4), loader(1, seed=1), Model, max_epochs=2)


@case
def fitted_twice(L: ModuleType) -> Result:
    """The second call goes on counting where the first ended."""
    events: list[str] = []
    model = recorded(linear(L), events, MODULE_HOOKS, "module")()
    runner = trainer(L, max_epochs=1)
    runner.fit(model, loader(2))
    first = (runner.current_epoch, runner.global_step)
    (runner.fit_loop if hasattr(runner, "fit_loop") else runner).max_epochs = 3
    runner.fit(model, loader(2))
    return told(runner, model, events=events) | {"first": first}


# -- several loaders


def combined(L: ModuleType, mode: str) -> Result:
    """A loader of three batches and one of two."""
    seen: list[Any] = []

    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            losses = [self.loss(part) for part in batch.values() if part is not None]
            return sum(losses) / len(losses)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            shapes = {key: None if part is None else tuple(part[0].shape) for key, part in batch.items()}
            seen.append([batch_idx, shapes])

    both = {"a": loader(3), "b": loader(2, size=2, seed=5)}
    result = fit(L, L.utilities.CombinedLoader(both, mode), module=Model, max_epochs=2)
    return result | {"seen": seen}


@case
def loaders_cycled(L: ModuleType) -> Result:
    return combined(L, "max_size_cycle")


@case
def loaders_to_the_shortest(L: ModuleType) -> Result:
    return combined(L, "min_size")


@case
def loaders_to_the_longest(L: ModuleType) -> Result:
    return combined(L, "max_size")


@case
def loaders_in_a_dict(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch["a"]) + self.loss(batch["b"])

    return fit(L, {"a": loader(3), "b": loader(2, seed=5)}, module=Model, max_epochs=2)


@case
def loaders_in_a_list(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            first, second = batch
            return self.loss(first) + self.loss(second)

    return fit(L, [loader(3), loader(2, seed=5)], module=Model, max_epochs=2)
