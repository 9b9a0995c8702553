"""EarlyStopping decides as Lightning's does."""

from __future__ import annotations

import json
import logging
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from pretend_trainer import Pretend

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import EarlyStopping
from gluongraph.lightning.callbacks.early_stopping import EarlyStoppingReason


def random_arguments(rng: random.Random) -> dict[str, Any]:
    return {
        "min_delta": rng.choice([0.0, 0.1, 0.05, 0.25]),
        "patience": rng.choice([1, 2, 3, 5]),
        "mode": rng.choice(["min", "max"]),
        "check_finite": rng.random() < 0.7,
        "stopping_threshold": rng.choice([None, None, 0.1, 0.9]),
        "divergence_threshold": rng.choice([None, None, 0.1, 0.9, 2.0]),
    }


def facts(callback: Any) -> tuple[Any, ...]:
    best = float(callback.best_score)
    return callback.wait_count, callback.stopped_epoch, best, callback.stopping_reason.name


@pytest.mark.parametrize("seed", range(100))
def test_decisions_over_random_sequences(original: Any, tmp_path: pathlib.Path, seed: int) -> None:
    """Values of one decimal meet thresholds and differences exactly, in float32 as metrics of Lightning's are."""
    rng = random.Random(seed)
    arguments = random_arguments(rng)
    pairs = [
        (EarlyStopping("loss", **arguments), Pretend(tmp_path)),
        (original.callbacks.EarlyStopping("loss", **arguments), Pretend(tmp_path, original=True)),
    ]
    for callback, trained in pairs:
        callback.setup(trained, None, "fit")
    for _ in range(30):
        value = rng.choice([round(rng.random(), 1), rng.random(), 0.1, 0.9, float("nan"), float("inf")])
        seen = []
        for callback, trained in pairs:
            trained.metrics["loss"] = float(np.float32(value))
            callback.on_train_epoch_end(trained, None)
            trained.end_epoch()
            seen.append((trained.should_stop, *facts(callback)))
        assert seen[0][:3] == seen[1][:3] and seen[0][4:] == seen[1][4:], (arguments, value)
        assert seen[0][3] == pytest.approx(seen[1][3], rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("check_val_every_n_epoch", [1, 2])
@pytest.mark.parametrize("on_train", [None, True, False])
def test_when_it_looks(
    original: Any, tmp_path: pathlib.Path, on_train: bool | None, check_val_every_n_epoch: int
) -> None:
    seen = []
    for number, make in enumerate((EarlyStopping, original.callbacks.EarlyStopping)):
        trained = Pretend(tmp_path, original=bool(number), check_val_every_n_epoch=check_val_every_n_epoch)
        callback = make("loss", patience=1, check_on_train_epoch_end=on_train)
        callback.setup(trained, None, "fit")
        trained.metrics["loss"] = 1.0
        looked = []
        for hook in ("on_validation_end", "on_train_epoch_end", "on_validation_end"):
            before = callback.wait_count, float(callback.best_score)
            getattr(callback, hook)(trained, None)
            looked.append(before != (callback.wait_count, float(callback.best_score)))
        seen.append(looked)
    assert seen[0] == seen[1]


def test_the_state_goes_on(tmp_path: pathlib.Path) -> None:
    first = EarlyStopping("loss", patience=2)
    for value in (0.5, 0.75):
        first._evaluate_stopping_criteria(value)
    state = json.loads(json.dumps(first.state_dict()))
    second = EarlyStopping("loss")
    second.load_state_dict(state)
    assert (
        second._evaluate_stopping_criteria(0.6)[0] and second.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED
    )
    fresh = EarlyStopping("loss")
    fresh.load_state_dict(EarlyStopping("loss").state_dict())
    assert fresh.best_score == np.inf


def test_a_metric_that_is_not_there(tmp_path: pathlib.Path) -> None:
    trained = Pretend(tmp_path)
    trained.metrics["train_loss"] = 1.0
    strict = EarlyStopping("val_loss", check_on_train_epoch_end=True)
    with pytest.raises(RuntimeError, match=r"(?s)'val_loss'.*'train_loss'"):
        strict.on_train_epoch_end(trained, None)
    lenient = EarlyStopping("val_loss", check_on_train_epoch_end=True, strict=False, verbose=True)
    with pytest.warns(UserWarning, match="no such metric"):
        lenient.on_train_epoch_end(trained, None)
    assert not trained.should_stop


def test_it_does_not_look_outside_of_a_training(tmp_path: pathlib.Path) -> None:
    for more in ({"sanity_checking": True}, {"fast_dev_run": 2}):
        callback = EarlyStopping("loss", patience=1, check_on_train_epoch_end=True)
        trained = Pretend(tmp_path, **more)
        trained.metrics["loss"] = float("nan")
        callback.on_train_epoch_end(trained, None)
        assert not trained.should_stop


def test_what_it_says(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = Pretend(tmp_path)
    callback = EarlyStopping("loss", patience=1, verbose=True, check_on_train_epoch_end=True)
    with caplog.at_level(logging.INFO):
        for value in (0.5, 0.25, 0.75):
            trained.metrics["loss"] = value
            callback.on_train_epoch_end(trained, None)
    assert "improved by 0.250" in caplog.text and "did not improve in the last 1 records" in caplog.text
    assert callback.stopping_reason_message is not None and "Best: 0.250" in callback.stopping_reason_message


def test_one_rank_stops_all(tmp_path: pathlib.Path) -> None:
    trained = Pretend(tmp_path, world_size=2, reduce=lambda value, op: max(value, 1.0))
    callback = EarlyStopping("loss", check_on_train_epoch_end=True)
    trained.metrics["loss"] = 0.5
    callback.on_train_epoch_end(trained, None)
    assert trained.should_stop


def test_an_unknown_mode() -> None:
    with pytest.raises(MisconfigurationException, match="mode='least'"):
        EarlyStopping("loss", mode="least")
