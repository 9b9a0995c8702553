"""Timer: durations, what counts, and when it stops."""

from __future__ import annotations

import json
import pathlib
import time
from datetime import timedelta
from typing import Any

import pytest
from pretend_trainer import Pretend

from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import Timer


@pytest.mark.parametrize("duration", ["00:00:00:22", "03:04:05:06", "100:23:59:59", {"days": 1, "minutes": 3}, None])
def test_durations_are_those_of_lightning(original: Any, duration: Any) -> None:
    assert Timer(duration).time_remaining() == original.callbacks.Timer(duration).time_remaining()


@pytest.mark.parametrize("duration", ["6:7", "00:00:00:0", "a:00:00:00", "-1:00:00:00", 3.5])
def test_durations_that_are_none(duration: Any) -> None:
    with pytest.raises(MisconfigurationException, match="duration"):
        Timer(duration)


def test_an_interval_that_is_none() -> None:
    with pytest.raises(MisconfigurationException, match="'step' or 'epoch'"):
        Timer(interval="batch")
    with pytest.raises(MisconfigurationException, match="stages are"):
        Timer().time_elapsed("training")


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_it_stops(tmp_path: pathlib.Path, interval: str) -> None:
    timer, trained = Timer(timedelta(seconds=0.02), interval=interval), Pretend(tmp_path)
    timer.on_fit_start(trained, None)
    timer.on_train_start(trained, None)
    timer.on_train_batch_end(trained, None, None, None, 0)
    timer.on_train_epoch_end(trained, None)
    assert not trained.should_stop
    time.sleep(0.03)
    timer.on_train_batch_end(trained, None, None, None, 1)
    assert trained.should_stop == (interval == "step")
    timer.on_train_epoch_end(trained, None)
    assert trained.should_stop


def test_it_counts_stages(tmp_path: pathlib.Path) -> None:
    timer, trained = Timer(), Pretend(tmp_path)
    assert timer.idle_batches(trained) == float("inf") and timer.time_remaining() is None
    for stage, name in (("train", "train"), ("validate", "validation"), ("test", "test")):
        getattr(timer, f"on_{name}_start")(trained, None)
        time.sleep(0.01)
        getattr(timer, f"on_{name}_end")(trained, None)
        start, end = timer.start_time(stage), timer.end_time(stage)
        assert start is not None and end is not None and timer.time_elapsed(stage) == end - start >= 0.01


def test_what_was_used_before_a_checkpoint_counts(tmp_path: pathlib.Path) -> None:
    first = Timer("00:00:01:00")
    first.on_train_start(None, None)
    time.sleep(0.01)
    state = json.loads(json.dumps(first.state_dict()))
    state["time_elapsed"]["train"] += 59.995
    second, trained = Timer("00:00:01:00"), Pretend(tmp_path)
    second.load_state_dict(state)
    second.on_fit_start(trained, None)
    assert trained.should_stop


def test_the_first_rank_decides(tmp_path: pathlib.Path) -> None:
    timer, trained = Timer("01:00:00:00"), Pretend(tmp_path, world_size=2, broadcast=lambda text: "1")
    assert timer.idle_batches(trained) == 0
    timer.on_train_batch_end(trained, None, None, None, 0)
    assert trained.should_stop


def test_it_looks_again_in_time(tmp_path: pathlib.Path) -> None:
    """Batches that need not be looked at take about half of the time that is left."""
    timer, trained = Timer(timedelta(seconds=1)), Pretend(tmp_path)
    timer.on_train_start(trained, None)
    assert timer.idle_batches(trained) == 0
    began = time.monotonic()
    for _ in range(30):
        time.sleep(0.001)
        trained.step()
    rate = 30 / (time.monotonic() - began)
    assert 0 < timer.idle_batches(trained) <= rate * 0.5
