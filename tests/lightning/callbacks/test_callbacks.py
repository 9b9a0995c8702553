"""Callbacks without a file of their own here: the base, functions, accumulation, checkpoints after errors."""

from __future__ import annotations

import inspect
import math
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from pretend_trainer import Pretend

from gluongraph.lightning import MisconfigurationException, callbacks
from gluongraph.lightning.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from gluongraph.lightning.callbacks.callback import BATCH_HOOKS

MODULE = SimpleNamespace(automatic_optimization=True)


def hooks(cls: type) -> dict[str, list[str]]:
    found = {n: v for n, v in vars(cls).items() if inspect.isfunction(v) and not n.startswith("_")}
    return {name: list(inspect.signature(value).parameters) for name, value in found.items()}


def test_hooks_are_those_of_lightning(original: Any) -> None:
    ours = hooks(Callback)
    assert ours.pop("idle_batches") == ["self", "trainer"]
    assert ours == hooks(original.Callback)


def test_arguments_are_those_of_lightning(original: Any) -> None:
    """Names, order and defaults; what is there in addition comes last."""
    for name in callbacks.__all__:
        if name in ("RichProgressBar", "BackboneFinetuning", "StochasticWeightAveraging"):
            continue  # a default that is an object or a function
        if name in ("LambdaCallback", "ThroughputMonitor"):
            continue  # arguments of any name; an argument that may be left out here
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (callbacks, original.callbacks))
        pairs = [(p.name, p.default, p.kind) for p in theirs.values()]
        assert [(p.name, p.default, p.kind) for p in ours.values()][: len(pairs)] == pairs, name


def test_a_callback_that_looks_at_batches_is_called_for_each() -> None:
    for name in BATCH_HOOKS:
        made = type("Own", (Callback,), {name: lambda self, *args: None})()
        assert made.idle_batches(None) == 0, name
    assert type("Own", (Callback,), {"on_train_epoch_end": lambda self, *args: None})().idle_batches(None) == math.inf


def test_functions_as_hooks() -> None:
    said: list[Any] = []
    callback = LambdaCallback(on_train_batch_end=lambda *args: said.append(args), setup=None)
    callback.on_train_batch_end("trainer", "module", None, None, 3)
    callback.setup(None, None, "fit")
    assert said == [("trainer", "module", None, None, 3)] and callback.idle_batches(None) == 0
    assert LambdaCallback(on_fit_start=print).idle_batches(None) == math.inf
    with pytest.raises(TypeError, match="no hook on_train_batch"):
        LambdaCallback(on_train_batch=print)


@pytest.mark.parametrize("scheduling", [{4: 2}, {0: 3, 2: 1, 7: 8}, {1: 1}])
def test_accumulation_by_epoch(original: Any, tmp_path: pathlib.Path, scheduling: dict[int, int]) -> None:
    ours = GradientAccumulationScheduler(dict(scheduling))
    theirs = original.callbacks.GradientAccumulationScheduler(dict(scheduling))
    trained = Pretend(tmp_path, accumulate_grad_batches=1)
    ours.on_train_start(trained, MODULE)
    for epoch in range(10):
        ours.on_train_epoch_start(trained, MODULE)
        assert trained.accumulate_grad_batches == theirs.get_accumulate_grad_batches(epoch)
        trained.end_epoch()
    assert ours.going_to_accumulate_grad_batches() == theirs.going_to_accumulate_grad_batches()


def test_accumulation_that_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="no epochs"):
        GradientAccumulationScheduler({})
    for wrong in ({-1: 2}, {"a": 2}, {1: 0}, {1: 1.5}, {True: 2}):
        with pytest.raises(MisconfigurationException, match="whole numbers"):
            GradientAccumulationScheduler(wrong)  # type: ignore[arg-type]
    callback = GradientAccumulationScheduler({1: 2})
    with pytest.raises(ValueError, match="accumulate_grad_batches=2"):
        callback.on_train_start(Pretend(tmp_path, accumulate_grad_batches=2), MODULE)
    with pytest.raises(RuntimeError, match="optimizes by itself"):
        callback.on_train_start(Pretend(tmp_path), SimpleNamespace(automatic_optimization=False))


def test_a_checkpoint_after_an_exception(tmp_path: pathlib.Path) -> None:
    callback, trained = OnExceptionCheckpoint(tmp_path / "c"), Pretend(tmp_path)
    callback.setup(trained, MODULE, "fit")
    callback.on_exception(trained, MODULE, RuntimeError("x"))
    callback.teardown(trained, MODULE, "fit")
    assert pathlib.Path(callback.ckpt_path).is_dir()
    callback.setup(trained, MODULE, "fit")  # a later training, which ends well
    callback.teardown(trained, MODULE, "fit")
    assert not pathlib.Path(callback.ckpt_path).exists()
    with pytest.raises(ValueError, match="filename is empty"):
        OnExceptionCheckpoint(tmp_path, filename="")


def test_keys_of_states_are_those_of_lightning(original: Any) -> None:
    made = [
        ("ModelCheckpoint", {"monitor": "a", "every_n_train_steps": 3}),
        ("ModelCheckpoint", {}),
        ("EarlyStopping", {"monitor": "a", "mode": "max"}),
        ("Timer", {}),
    ]
    for name, arguments in made:
        ours, theirs = (getattr(each, name)(**arguments).state_key for each in (callbacks, original.callbacks))
        assert ours == theirs
    assert ModelCheckpoint(monitor="a").state_key != ModelCheckpoint(monitor="b").state_key


@pytest.mark.parametrize("name", ["LearningRateFinder", "BatchSizeFinder", "ModelPruning"])
def test_what_does_not_exist_says_what_to_do(name: str) -> None:
    assert not hasattr(callbacks, name)
    with pytest.raises(AttributeError, match="help: "):
        getattr(callbacks, name)
    with pytest.raises(ImportError, match="help: "):
        exec(f"from gluongraph.lightning.callbacks import {name}")
    with pytest.raises(ImportError, match="Nothing"):
        exec("from gluongraph.lightning.callbacks import Nothing")
