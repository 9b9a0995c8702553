"""Compared runs: early stopping, checkpoints and going on from them."""

from __future__ import annotations

import warnings
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from parity_loops import fit
from parity_models import linear, loader, samples, trainer
from parity_recording import CALLBACK_HOOKS, MODULE_HOOKS, logger, recorded, told, watcher, weights
from parity_table import case
from torch.optim.swa_utils import get_ema_avg_fn, get_ema_multi_avg_fn

Result = dict[str, Any]


def scripted(L: ModuleType, values: list[float], name: str = "val_loss") -> type:
    """A module whose validation logs these values, one for each epoch."""

    Linear: Any = linear(L)

    class Model(Linear):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch)

        def on_validation_epoch_end(self) -> None:
            self.log(name, values[min(self.current_epoch, len(values) - 1)])

    return Model


# -- early stopping


def stopped(L: ModuleType, values: list[float], **how: Any) -> Result:
    stopping = L.callbacks.EarlyStopping("val_loss", **how)
    result = fit(L, loader(2), loader(1, seed=1), scripted(L, values), callbacks=[stopping], max_epochs=8)
    seen = {name: getattr(stopping, name) for name in ("wait_count", "stopped_epoch", "patience", "monitor", "mode")}
    return result | seen | {"best": float(stopping.best_score)}


@case
def early_stopping(L: ModuleType) -> Result:
    return stopped(L, [1.0, 1.1, 1.2, 1.3, 1.4], patience=2)


@case
def early_stopping_that_waits(L: ModuleType) -> Result:
    return stopped(L, [1.0, 1.1, 0.9, 1.0, 1.0, 1.0, 1.0], patience=3)


@case
def early_stopping_of_a_maximum(L: ModuleType) -> Result:
    return stopped(L, [0.1, 0.2, 0.15, 0.1, 0.05], mode="max", patience=1)


@case
def early_stopping_by_a_difference(L: ModuleType) -> Result:
    return stopped(L, [1.0, 0.95, 0.9, 0.85, 0.8], min_delta=0.2, patience=2)


@case
def early_stopping_at_a_threshold(L: ModuleType) -> Result:
    return stopped(L, [1.0, 0.5, 0.2, 0.1], stopping_threshold=0.3)


@case
def early_stopping_at_divergence(L: ModuleType) -> Result:
    return stopped(L, [1.0, 5.0, 2.0], divergence_threshold=4.0)


@case
def early_stopping_at_nan(L: ModuleType) -> Result:
    return stopped(L, [1.0, float("nan"), 2.0])


@case
def early_stopping_of_training(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def on_train_epoch_end(self) -> None:
            self.log("end", [3.0, 2.0, 2.5, 2.6][min(self.current_epoch, 3)])

    stopping = L.callbacks.EarlyStopping("end", patience=1, check_on_train_epoch_end=True)
    return fit(L, loader(2), module=Model, callbacks=[stopping], max_epochs=8)


@case
def early_stopping_inside_an_epoch(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def on_validation_epoch_end(self) -> None:
            self.log("value", float(self.global_step))

    stopping = L.callbacks.EarlyStopping("value", patience=2)
    return fit(L, loader(6), loader(1), Model, callbacks=[stopping], val_check_interval=2, max_epochs=3)


@case
def early_stopping_after_the_fewest_epochs(L: ModuleType) -> Result:
    stopping = L.callbacks.EarlyStopping("val_loss", patience=1)
    values = [1.0, 2.0, 3.0, 0.1, 0.2, 0.3]
    return fit(L, loader(2), loader(1), scripted(L, values), callbacks=[stopping], min_epochs=4, max_epochs=8)


# -- names of checkpoints, and which ones stay

VALUES = [0.5, 0.3, 0.4, 0.2, 0.6]


def saved(L: ModuleType, *, module: Any = None, trainer_: dict[str, Any] | None = None, **how: Any) -> Result:
    """Five epochs of three batches, with a ModelCheckpoint; what is on the disk after each epoch, and what it knows."""
    on_disk: list[list[str]] = []

    class Look(L.Callback):
        def on_train_epoch_start(self, runner: Any, module: Any) -> None:
            on_disk.append(sorted(path.name for path in Path(".").rglob("*.ckpt")))

    keeper = L.callbacks.ModelCheckpoint(**how)
    settings = {"callbacks": [keeper, Look()], "max_epochs": 5, "enable_checkpointing": True} | (trainer_ or {})
    result = fit(L, loader(3), loader(1, seed=1), module or scripted(L, VALUES), **settings)
    here = str(Path.cwd())
    known = {
        "best_path": keeper.best_model_path.replace(here, "."),
        "last_path": keeper.last_model_path.replace(here, "."),
        "best_score": None if keeper.best_model_score is None else float(keeper.best_model_score),
        "best_k": {path.replace(here, "."): float(v) for path, v in sorted(keeper.best_k_models.items())},
        "kth": keeper.kth_best_model_path.replace(here, "."),
        "on_disk": on_disk,
    }
    return result | known


@case
def checkpoint_by_default(L: ModuleType) -> Result:
    return saved(L)


@case
def checkpoint_of_the_trainer(L: ModuleType) -> Result:
    """Nobody asks for it: the Trainer makes one."""
    runner, model = trainer(L, enable_checkpointing=True, max_epochs=2), linear(L)()
    runner.fit(model, loader(3))
    keeper = runner.checkpoint_callback
    return told(runner, model) | {"best": Path(keeper.best_model_path).name, "many": len(runner.checkpoint_callbacks)}


@case
def checkpoint_in_a_folder(L: ModuleType) -> Result:
    return saved(L, dirpath="here")


@case
def checkpoint_of_the_best(L: ModuleType) -> Result:
    return saved(L, monitor="val_loss")


@case
def checkpoint_of_the_best_two(L: ModuleType) -> Result:
    return saved(L, monitor="val_loss", save_top_k=2)


@case
def checkpoint_of_the_largest(L: ModuleType) -> Result:
    return saved(L, monitor="val_loss", mode="max", save_top_k=2)


@case
def checkpoint_of_all(L: ModuleType) -> Result:
    return saved(L, save_top_k=-1)


@case
def checkpoint_and_last(L: ModuleType) -> Result:
    return saved(L, monitor="val_loss", save_last=True)


@case
def checkpoint_of_last_alone(L: ModuleType) -> Result:
    return saved(L, save_top_k=0, save_last=True)


@case
def checkpoint_each_second_epoch(L: ModuleType) -> Result:
    return saved(L, every_n_epochs=2, save_top_k=-1)


@case
def checkpoint_each_fourth_step(L: ModuleType) -> Result:
    return saved(L, every_n_train_steps=4, save_top_k=-1)


@case
def checkpoint_of_the_best_by_steps(L: ModuleType) -> Result:
    return saved(L, monitor="train_loss", every_n_train_steps=4, save_top_k=2, save_last=True)


@case
def checkpoint_steps_accumulated(L: ModuleType) -> Result:
    how = {"accumulate_grad_batches": 3}
    return saved(L, every_n_train_steps=2, save_top_k=-1, trainer_=how)


@case
def checkpoint_name_with_metrics(L: ModuleType) -> Result:
    return saved(L, filename="{epoch}-{val_loss:.2f}", monitor="val_loss", save_top_k=2)


@case
def checkpoint_name_without_their_names(L: ModuleType) -> Result:
    how = {"filename": "e{epoch:02d}-v{val_loss:.3f}-s{step}", "auto_insert_metric_name": False}
    return saved(L, monitor="val_loss", save_top_k=-1, **how)


@case
def checkpoint_name_with_a_slash(L: ModuleType) -> Result:
    module = scripted(L, VALUES, "val/loss")
    return saved(L, module=module, filename="{epoch}-{val/loss:.1f}", monitor="val/loss", save_top_k=1)


@case
def checkpoint_name_that_is_always_the_same(L: ModuleType) -> Result:
    return saved(L, filename="model", save_top_k=-1)


@case
def checkpoint_name_overwritten(L: ModuleType) -> Result:
    return saved(L, filename="model", save_top_k=-1, enable_version_counter=False)


@case
def checkpoint_at_the_end_of_the_training_epoch(L: ModuleType) -> Result:
    return saved(L, monitor="val_loss", save_on_train_epoch_end=True, save_top_k=2)


@case
def checkpoint_inside_epochs(L: ModuleType) -> Result:
    return saved(L, save_top_k=-1, save_on_train_epoch_end=False, trainer_={"val_check_interval": 1, "max_epochs": 2})


@case
def checkpoint_of_weights(L: ModuleType) -> Result:
    return saved(L, save_weights_only=True)


@case
def checkpoint_by_two(L: ModuleType) -> Result:
    first = L.callbacks.ModelCheckpoint(filename="a-{epoch}", monitor="val_loss")
    second = L.callbacks.ModelCheckpoint(filename="b-{epoch}", save_top_k=-1, every_n_epochs=2)
    settings = {"callbacks": [first, second], "enable_checkpointing": True, "max_epochs": 4}
    return fit(L, loader(2), loader(1, seed=1), scripted(L, VALUES), **settings)


@case
def checkpoint_beside_a_logger(L: ModuleType) -> Result:
    """It lies in the folder of the logger's version."""
    runner, model = trainer(L, logger=L.loggers.CSVLogger(".", "run"), enable_checkpointing=True), linear(L)()
    runner.fit(model, loader(2))
    again, model = trainer(L, logger=L.loggers.CSVLogger(".", "run"), enable_checkpointing=True), linear(L)()
    again.fit(model, loader(2))
    return told(again, model)


@case
def checkpoint_at_an_exception(L: ModuleType) -> Result:
    class Fail(L.Callback):
        def on_train_batch_end(self, runner: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if runner.global_step == 4:
                raise RuntimeError("no more")

    callbacks = [L.callbacks.OnExceptionCheckpoint(".", "failed"), Fail()]
    runner, model = trainer(L, max_epochs=3, callbacks=callbacks, enable_checkpointing=True), linear(L)()
    try:
        runner.fit(model, loader(3))
    except RuntimeError as error:
        return told(runner, model) | {"error": str(error).splitlines()[0], "interrupted": runner.interrupted}
    return {}


# -- going on


def schedule(L: ModuleType) -> type:
    """A module with momentum and a schedule, which a resumed run has to go on with."""

    Linear: Any = linear(L)

    class Model(Linear):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 0.05)
            step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": step, "interval": "step"}}

    return Model


def resumed(L: ModuleType, first: dict[str, Any], then: dict[str, Any], at: int | None = None) -> Result:
    """Train, save (at the end, or after so many updates), go on in another Trainer; and the same without a stop."""

    class Save(L.Callback):
        def on_train_batch_end(self, runner: Any, *args: Any) -> None:
            if runner.global_step == at:
                runner.save_checkpoint("saved.ckpt")

    events: list[str] = []
    rows = logger(L)
    before = trainer(L, **first, callbacks=[Save()])
    before.fit(schedule(L)(), loader(3), loader(1, seed=1))
    if at is None:
        before.save_checkpoint("saved.ckpt")
    model = recorded(schedule(L), events, MODULE_HOOKS, "module")()
    again = trainer(L, logger=rows, callbacks=[watcher(L, events)], **then)
    again.fit(model, loader(3), loader(1, seed=1), ckpt_path="saved.ckpt")
    whole, runner = schedule(L)(), trainer(L, **then)
    runner.fit(whole, loader(3), loader(1, seed=1))
    exact = weights(model) == weights(whole)
    return told(again, model, rows, events) | {"exact": exact, "steps_of_the_whole": runner.global_step}


@case
def resumed_without_a_callback(L: ModuleType) -> Result:
    """What it had known is lost, with a warning."""
    stopping, keeping = L.callbacks.EarlyStopping, L.callbacks.ModelCheckpoint
    how = {"enable_checkpointing": True, "max_epochs": 1}
    runner = trainer(L, callbacks=[stopping("val_loss"), keeping("there", monitor="val_loss")], **how)
    runner.fit(schedule(L)(), loader(3), loader(1, seed=1))
    runner.save_checkpoint("saved.ckpt")
    told_of: list[bool] = []
    for callbacks in ([stopping("val_loss")], [keeping("there", monitor="val_loss"), stopping("val_loss", mode="max")]):
        again = trainer(L, callbacks=callbacks, **{**how, "max_epochs": 2})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again.fit(schedule(L)(), loader(3), loader(1, seed=1), ckpt_path="saved.ckpt")
        said = [str(each.message) for each in caught if "checkpoint" in str(each.message)]
        told_of.append(any("ModelCheckpoint{" in each and "callbacks" in each for each in said))
        told_of.append(any("EarlyStopping{" in each and "callbacks" in each for each in said))
    return {"told_of": told_of}


@case
def resumed_between_epochs(L: ModuleType) -> Result:
    return resumed(L, {"max_epochs": 2}, {"max_epochs": 4})


@case
def resumed_when_nothing_is_left(L: ModuleType) -> Result:
    return resumed(L, {"max_epochs": 2}, {"max_epochs": 2})


@case
def resumed_with_steps(L: ModuleType) -> Result:
    return resumed(L, {"max_steps": 3}, {"max_steps": 9})


@case
def resumed_inside_an_epoch(L: ModuleType) -> Result:
    return resumed(L, {"max_epochs": 2}, {"max_epochs": 3}, at=4)


@case
def resumed_from_last(L: ModuleType) -> Result:
    """With the memory of ModelCheckpoint and EarlyStopping."""

    def run(epochs: int, ckpt_path: str | None) -> Result:
        keeper = L.callbacks.ModelCheckpoint(dirpath="kept", monitor="val_loss", save_last=True)
        stopping = L.callbacks.EarlyStopping("val_loss", patience=3)
        runner = trainer(L, max_epochs=epochs, enable_checkpointing=True, callbacks=[keeper, stopping])
        model = scripted(L, [0.5, 0.3, 0.4, 0.45, 0.5, 0.6])()
        runner.fit(model, loader(2), loader(1, seed=1), ckpt_path=ckpt_path)
        known = {"best": Path(keeper.best_model_path).name, "score": float(keeper.best_model_score)}
        return told(runner, model) | known | {"wait": stopping.wait_count, "stopped": stopping.stopped_epoch}

    return {"first": run(3, None), "then": run(8, "last")}


@case
def own_state_in_checkpoints(L: ModuleType) -> Result:
    """What the module, a callback and a datamodule put in comes back."""
    seen: list[Any] = []

    class Counting(L.Callback):
        def __init__(self) -> None:
            self.count = 0

        def on_train_batch_end(self, *args: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            seen.append(["callback", state_dict])
            self.count = state_dict["count"]

    Linear: Any = linear(L)

    class Model(Linear):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"numbers": [1, 2.5], "text": "a"}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            seen.append(["module", checkpoint["mine"], checkpoint["epoch"], checkpoint["global_step"]])

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(3)

        def state_dict(self) -> dict[str, Any]:
            return {"place": 4}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            seen.append(["data", state_dict])

    runner = trainer(L, callbacks=[Counting()])
    runner.fit(Model(), datamodule=Data())
    runner.save_checkpoint("own.ckpt")
    counting = Counting()
    runner = trainer(L, callbacks=[counting], max_epochs=2)
    model = Model()
    runner.fit(model, datamodule=Data(), ckpt_path="own.ckpt")
    return told(runner, model) | {"seen": seen, "count": counting.count}


@case
def tested_with_the_best(L: ModuleType) -> Result:
    events: list[str] = []
    keeper = L.callbacks.ModelCheckpoint(dirpath="kept", monitor="val_loss", save_last=True)
    watch = watcher(
        L, events, [hook for hook in CALLBACK_HOOKS if hook in ("setup", "on_load_checkpoint", "on_test_start")]
    )
    runner = trainer(L, max_epochs=3, enable_checkpointing=True, callbacks=[keeper, watch])
    model = scripted(L, [0.5, 0.3, 0.4])()
    runner.fit(model, loader(3), loader(1, seed=1))
    best = runner.test(model, loader(2, seed=2), ckpt_path="best", verbose=False)
    after_best = weights(model)
    last = runner.test(model, loader(2, seed=2), ckpt_path="last", verbose=False)
    named = runner.test(ckpt_path=keeper.best_model_path, dataloaders=loader(2, seed=2), verbose=False)
    current = runner.test(model, loader(2, seed=2), verbose=False)
    without_model = runner.test(dataloaders=loader(2, seed=2), verbose=False)
    results = {"best": best, "last": last, "named": named, "current": current, "without_model": without_model}
    return told(runner, model, events=events) | results | {"after_best": after_best}


@case
def module_from_a_checkpoint(L: ModuleType) -> Result:
    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, width: int = 2, rate: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()

    runner, model = trainer(L), Model(width=5)
    runner.fit(model, loader(3))
    runner.save_checkpoint("made.ckpt")
    again = Model.load_from_checkpoint("made.ckpt", rate=0.5)
    return {"weights": weights(again), "hparams": dict(again.hparams), "same": weights(model)}


@case
def hyperparameters_in_one_argument(L: ModuleType) -> Result:
    """Of a namespace or dict that `__init__` takes and `save_hyperparameters` gets."""

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, config: Any, width: int = 1) -> None:
            super().__init__()
            self.save_hyperparameters(config)
            self.seen, self.width = (config if isinstance(config, dict) else vars(config)), width

    class Data(L.LightningDataModule):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.save_hyperparameters(config)

        def train_dataloader(self) -> Any:
            return loader(self.hparams.batches)

    found: Result = {}
    for kind in (dict, Namespace):
        runner = trainer(L)
        runner.fit(Model(kind(rate=0.5, sizes=[1, 2])), datamodule=Data(kind(batches=2)))
        runner.save_checkpoint("saved.ckpt")
        modules = [Model.load_from_checkpoint("saved.ckpt", **more) for more in ({}, {"rate": 0.1}, {"width": 3})]
        found[kind.__name__] = [dict(each.hparams) for each in (*modules, Data.load_from_checkpoint("saved.ckpt"))]
        found[f"{kind.__name__} as given"] = [[dict(each.seen), each.width] for each in modules]
    return found


@case
def averaged_weights(L: ModuleType) -> Result:
    averaging = L.callbacks.EMAWeightAveraging(decay=0.8)
    runner, model = trainer(L, callbacks=[averaging], max_epochs=2), linear(L)()
    runner.fit(model, loader(4), loader(1, seed=1))
    return told(runner, model)


@case
def averaged_weights_by_a_function(L: ModuleType) -> Result:
    """The example of Lightning's documentation, with fewer steps."""

    class Late(L.callbacks.WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            return step_idx is not None and step_idx >= 3

    results = {}
    for name, make in {"avg_fn": get_ema_avg_fn, "multi_avg_fn": get_ema_multi_avg_fn}.items():
        runner, model = trainer(L, callbacks=[Late(**{name: make(0.7)})], max_epochs=2), linear(L)()
        runner.fit(model, loader(4), loader(1, seed=1))
        results[name] = told(runner, model)
    return results


@case
def averaged_weights_at_ends_of_epochs(L: ModuleType) -> Result:
    averaging = L.callbacks.EMAWeightAveraging(decay=0.6, update_every_n_steps=3, update_starting_at_epoch=1)
    runner, model = trainer(L, callbacks=[averaging], max_epochs=3), linear(L)()
    runner.fit(model, loader(4), loader(1, seed=1))
    return told(runner, model)


@case
def averaged_weights_of_checkpoints(L: ModuleType) -> Result:
    """Averages are what is loaded and tested; a training goes on with the weights."""
    saving = L.callbacks.ModelCheckpoint(".", "{epoch}", monitor="val_loss", save_top_k=-1)
    callbacks = [L.callbacks.EMAWeightAveraging(decay=0.8), saving]
    runner = trainer(L, callbacks=callbacks, max_epochs=2, enable_checkpointing=True)
    runner.fit(linear(L)(), loader(4), loader(1, seed=1))
    loaded, tested, resumed = linear(L).load_from_checkpoint("epoch=0.ckpt"), linear(L)(), linear(L)()
    results = trainer(L).validate(tested, loader(1, seed=1), ckpt_path="epoch=0.ckpt", verbose=False)
    later = trainer(L, callbacks=[L.callbacks.EMAWeightAveraging(decay=0.8)], max_epochs=2)
    later.fit(resumed, loader(4), ckpt_path="epoch=0.ckpt")
    return {"weights": [weights(each) for each in (loaded, tested, resumed)], "results": results}


# -- data modules


@case
def data_module_of_a_checkpoint(L: ModuleType) -> Result:
    """Made with what it was made with, with its state."""

    class Data(L.LightningDataModule):
        def __init__(self, batches: int = 2, name: str = "a") -> None:
            super().__init__()
            self.save_hyperparameters()
            self.seen = 0

        def train_dataloader(self) -> Any:
            self.seen += 1
            return loader(self.hparams.batches)

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.seen = state_dict["seen"]

    Linear: Any = linear(L)

    class Model(Linear):
        def __init__(self, width: int = 1) -> None:
            super().__init__()
            self.save_hyperparameters()

    runner = trainer(L)
    runner.fit(Model(), datamodule=Data(batches=3))
    runner.save_checkpoint("saved.ckpt")
    Path("own.yaml").write_text("name: of a file\nbatches: 4\n")
    again, other = Data.load_from_checkpoint("saved.ckpt"), Data.load_from_checkpoint("saved.ckpt", name="b")
    of_file = Data.load_from_checkpoint("saved.ckpt", hparams_file="own.yaml")
    Path("width.yaml").write_text("width: 5\n")
    module = Model.load_from_checkpoint("saved.ckpt", hparams_file="width.yaml")
    seen = [each.seen for each in (again, other, of_file)]
    return {"hparams": [dict(each.hparams) for each in (again, other, of_file, module)], "seen": seen}


@case
def data_module_of_datasets(L: ModuleType) -> Result:
    class Data(L.LightningDataModule):
        def __init__(self, batch_size: int = 7) -> None:
            super().__init__()
            self.batch_size = batch_size

    data = Data.from_datasets(samples(12), [samples(8), samples(4)], predict_dataset={"a": samples(6)}, batch_size=4)
    torch.manual_seed(0)
    sizes = [len(data.train_dataloader()), *map(len, data.val_dataloader()), len(data.predict_dataloader()["a"])]
    runner, model = trainer(L), linear(L)()
    runner.fit(model, data.train_dataloader(), data.val_dataloader()[0])
    return told(runner, model) | {"sizes": sizes, "batch_size": data.batch_size}
