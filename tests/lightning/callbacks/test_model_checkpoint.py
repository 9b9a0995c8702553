"""ModelCheckpoint keeps the files that Lightning's keeps, and is as before where one cannot be written."""

from __future__ import annotations

import os
import pathlib
import random
import time
import warnings
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretend_trainer import Pretend

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import ModelCheckpoint

MODULE = SimpleNamespace(automatic_optimization=True)


def random_arguments(rng: random.Random) -> dict[str, Any]:
    monitor = rng.choice([None, "val_loss", "val_loss"])
    made: dict[str, Any] = {
        "monitor": monitor,
        "mode": rng.choice(["min", "max"]),
        "save_top_k": rng.choice([-1, 0, 1] if monitor is None else [-1, 0, 1, 2, 3]),
        "save_last": rng.choice([None, True, "link"]),
        "filename": rng.choice([None, "{epoch}", "best", "{epoch}-{val_loss:.1f}", "{step}"]),
        "enable_version_counter": rng.random() < 0.8,
        "save_on_train_epoch_end": rng.choice([None, None, True, False]),
    }
    if (when := rng.choice(["", "steps", "epochs"])) == "steps":
        made["every_n_train_steps"] = rng.choice([1, 2, 3, 5])
    elif when:
        made["every_n_epochs"] = rng.choice([1, 2])
    return made


class Pair:
    """Ours and Lightning's, in the same training."""

    def __init__(self, original: Any, folder: pathlib.Path, arguments: dict[str, Any], **trainer: Any):
        self.folders = folder / "ours", folder / "theirs"
        made = ModelCheckpoint, original.callbacks.ModelCheckpoint
        self.callbacks = [make(dirpath=place, **arguments) for make, place in zip(made, self.folders, strict=True)]
        self.trainers = [Pretend(folder, original=bool(i), **trainer) for i in range(2)]
        for trained, callback in zip(self.trainers, self.callbacks, strict=True):
            trained.checkpoint_callback = callback
            callback.setup(trained, MODULE, "fit")
            callback.on_train_start(trained, MODULE)

    def call(self, hook: str, *args: Any) -> None:
        for trained, callback in zip(self.trainers, self.callbacks, strict=True):
            getattr(callback, hook)(trained, MODULE, *args)

    def set(self, **metrics: float) -> None:
        for trained in self.trainers:
            trained.metrics.update(metrics)

    def compare(self) -> None:
        assert self._facts(0) == self._facts(1)

    def _facts(self, number: int) -> dict[str, Any]:
        callback, folder = self.callbacks[number], self.folders[number]
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        links = {name: os.readlink(folder / name) for name in names if (folder / name).is_symlink()}

        def score(value: Any) -> float | None:
            return None if value is None else float(np.float32(float(value)))

        return {
            "files": names,
            "links": links,
            "best": os.path.basename(callback.best_model_path),
            "score": score(callback.best_model_score),
            "kth": os.path.basename(callback.kth_best_model_path),
            "last": os.path.basename(callback.last_model_path),
            "kept": {os.path.basename(path): score(value) for path, value in callback.best_k_models.items()},
        }


@pytest.mark.parametrize("seed", range(60))
def test_files_over_random_trainings(original: Any, tmp_path: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    every = rng.choice([1, 1, 2])
    pair = Pair(original, tmp_path, random_arguments(rng), check_val_every_n_epoch=every)
    steps = rng.choice([2, 3, 4])
    for epoch in range(7):
        for index in range(steps):
            for trained in pair.trainers:
                trained.step(last=index == steps - 1)
            pair.call("on_train_batch_end", None, None, index)
            pair.compare()
        if (epoch + 1) % every == 0:
            value = rng.choice([rng.random(), rng.random(), float("nan"), 0.5])
            pair.set(val_loss=value)
            for trained in pair.trainers:
                trained.fit_loop.epoch_loop.val_loop._has_run = True
            pair.call("on_validation_end")
            pair.compare()
        elif "val_loss" not in pair.trainers[0].metrics:
            pair.set(val_loss=1.0)
        pair.call("on_train_epoch_end")
        pair.compare()
        for trained in pair.trainers:
            trained.end_epoch()
    pair.call("on_train_end")
    pair.compare()


def run(callback: ModelCheckpoint, trained: Pretend, *losses: float) -> None:
    """Epochs of one batch with a validation."""
    for loss in losses:
        trained.step(last=True)
        trained.metrics["val_loss"] = loss
        callback.on_validation_end(trained, MODULE)
        callback.on_train_epoch_end(trained, MODULE)
        trained.end_epoch()


def made(tmp_path: pathlib.Path, **arguments: Any) -> tuple[ModelCheckpoint, Pretend]:
    callback, trained = ModelCheckpoint(dirpath=tmp_path / "c", monitor="val_loss", **arguments), Pretend(tmp_path)
    callback.setup(trained, MODULE, "fit")
    callback.on_train_start(trained, MODULE)
    return callback, trained


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_changes_where_a_checkpoint_cannot_be_written(
    tmp_path: pathlib.Path, error: type[BaseException]
) -> None:
    """The best path names a checkpoint that is whole, and what was to be replaced is still there."""
    callback, trained = made(tmp_path, save_last=True)
    run(callback, trained, 0.5)
    best, before = callback.best_model_path, callback.state_dict()
    files = sorted((tmp_path / "c").iterdir())

    def fail(path: str, weights_only: bool) -> None:
        assert callback.best_model_path == path  # it is part of what is written
        raise error

    saving, trained.save_checkpoint = trained.save_checkpoint, fail  # type: ignore[method-assign]
    with pytest.raises(error):
        run(callback, trained, 0.25)
    assert (callback.best_model_path, callback.state_dict()) == (best, before)
    assert sorted((tmp_path / "c").iterdir()) == files
    trained.save_checkpoint = saving  # type: ignore[method-assign]
    run(callback, trained, 0.125)
    assert callback.best_model_score == 0.125 and not os.path.exists(best)


def test_the_state_goes_on(tmp_path: pathlib.Path) -> None:
    callback, trained = made(tmp_path, save_top_k=2)
    run(callback, trained, 0.5, 0.25, 0.75)
    with pytest.warns(UserWarning, match="not empty"):
        later, trained_later = made(tmp_path, save_top_k=2)
    assert later.state_key == callback.state_key
    later.load_state_dict(callback.state_dict())
    trained_later.counters = trained.counters
    run(later, trained_later, 0.125)
    assert later.best_model_score == 0.125 and set(later.best_k_models.values()) == {0.25, 0.125}
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_of_another_folder_only_the_best_is_known(tmp_path: pathlib.Path) -> None:
    callback, trained = made(tmp_path)
    run(callback, trained, 0.5)
    other = ModelCheckpoint(dirpath=tmp_path / "other", monitor="val_loss")
    with pytest.warns(UserWarning, match="dirpath was"):
        other.load_state_dict(callback.state_dict())
    assert other.best_model_path == callback.best_model_path and other.best_k_models == {}


def test_what_a_training_goes_on_from_stays(tmp_path: pathlib.Path) -> None:
    callback, trained = made(tmp_path)
    run(callback, trained, 0.5)
    first = trained.ckpt_path = callback.best_model_path
    run(callback, trained, 0.25)
    assert os.path.isdir(first) and callback.best_model_path != first


def test_saving_by_time(tmp_path: pathlib.Path) -> None:
    callback = ModelCheckpoint(dirpath=tmp_path / "c", train_time_interval=timedelta(seconds=0.05))
    trained = Pretend(tmp_path)
    callback.setup(trained, MODULE, "fit")
    callback.on_train_start(trained, MODULE)
    assert callback.every_n_epochs == 0 and callback.idle_batches(trained) == 0
    trained.step()
    callback.on_train_batch_end(trained, MODULE, None, None, 0)
    assert not (tmp_path / "c").exists()
    time.sleep(0.06)
    trained.step()
    callback.on_train_batch_end(trained, MODULE, None, None, 1)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["epoch=0-step=2.ckpt"]


def test_on_exception(tmp_path: pathlib.Path) -> None:
    callback, trained = made(tmp_path, save_on_exception=True)
    trained.step()
    callback.on_exception(trained, MODULE, RuntimeError("x"))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["epoch=0-step=1.ckpt"]
    silent, other = made(tmp_path / "other")
    other.step()
    silent.on_exception(other, MODULE, RuntimeError("x"))
    assert not (tmp_path / "other" / "c").exists()


def test_which_batches_it_looks_at(tmp_path: pathlib.Path) -> None:
    trained = Pretend(tmp_path)
    assert ModelCheckpoint().idle_batches(trained) == float("inf")
    every = ModelCheckpoint(every_n_train_steps=5)
    seen = []
    for _ in range(12):
        seen.append(every.idle_batches(trained))
        trained.step()
    assert seen == [4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3]
    trained.lightning_module.automatic_optimization = False
    assert every.idle_batches(trained) == 0 and ModelCheckpoint().idle_batches(trained) == float("inf")


def test_a_metric_that_is_not_there(tmp_path: pathlib.Path) -> None:
    callback, trained = made(tmp_path)
    trained.step()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        callback.on_train_epoch_end(trained, MODULE)
        callback.on_train_epoch_end(trained, MODULE)
    assert len(said) == 1 and "'val_loss'" in str(said[0].message)
    trained.metrics["loss"] = 1.0
    callback._save_on_train_epoch_end = False
    with pytest.raises(MisconfigurationException, match="no such metric"):
        callback.on_validation_end(trained, MODULE)


def test_folders_by_default(tmp_path: pathlib.Path) -> None:
    trained, callback = Pretend(tmp_path), ModelCheckpoint()
    callback.setup(trained, MODULE, "fit")
    assert callback.dirpath == str(tmp_path / "checkpoints")
    trained.loggers = [SimpleNamespace(save_dir=str(tmp_path), name="digits", version=3)]
    callback = ModelCheckpoint()
    callback.setup(trained, MODULE, "fit")
    assert callback.dirpath == str(tmp_path / "digits" / "version_3" / "checkpoints")


@pytest.mark.parametrize("name", ["last", "{epoch}-last", "newest"])
def test_last_checkpoints_are_found(tmp_path: pathlib.Path, name: str) -> None:
    callback, trained = made(tmp_path, save_last=True)
    callback.CHECKPOINT_NAME_LAST = name
    run(callback, trained, 0.5, 0.75)
    (tmp_path / "c" / "lasting.ckpt").mkdir()
    assert callback._find_last_checkpoints(trained) == {callback.last_model_path}


def test_a_folder_that_is_not_empty_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x").touch()
    with pytest.warns(UserWarning, match="not empty"):
        made(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "least"},
        {"save_top_k": -2},
        {"save_top_k": 2},
        {"every_n_train_steps": -1},
        {"every_n_epochs": -1},
        {"every_n_epochs": 1, "every_n_train_steps": 2},
        {"every_n_train_steps": 2, "train_time_interval": timedelta(seconds=1)},
    ],
)
def test_arguments_that_contradict_each_other(original: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException):
        ModelCheckpoint(**arguments)
    with pytest.raises(original.utilities.exceptions.MisconfigurationException):
        original.callbacks.ModelCheckpoint(**arguments)


def test_the_best_in_a_file(original: Any, tmp_path: pathlib.Path) -> None:
    yaml = pytest.importorskip("yaml")
    with pytest.raises(MisconfigurationException, match=r"to_yaml\(\) before a fit"):
        ModelCheckpoint().to_yaml()
    found = []
    for make in (ModelCheckpoint, original.callbacks.ModelCheckpoint):
        folder = tmp_path / make.__module__
        folder.mkdir()
        callback = make(folder, monitor="val_loss", save_top_k=2)
        callback.best_k_models = {"a b/epoch=1.ckpt": np.float32(0.25), "epoch=2-v1.ckpt": np.float32(1e-05)}
        callback.to_yaml()
        callback.to_yaml(tmp_path / "other.yaml")
        assert (folder / "best_k_models.yaml").read_text() == (tmp_path / "other.yaml").read_text()
        found.append(yaml.safe_load((folder / "best_k_models.yaml").read_text()))
    assert found[0] == found[1] and len(found[0]) == 2
