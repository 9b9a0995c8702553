"""Compared runs: exceptions inside of a run, and calls that are refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from parity_loops import stream
from parity_models import linear, loader, trainer
from parity_recording import CALLBACK_HOOKS, MODULE_HOOKS, logger, recorded, told, watcher
from parity_table import case

Result = dict[str, Any]


def failing(L: ModuleType, where: str, error: BaseException, **how: Any) -> Result:
    """Raise in a hook of the module; tell what was called after that, and what comes out."""

    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.trainer.global_step >= 2 and not self.trainer.sanity_checking:
            raise error

    events: list[str] = []
    rows = logger(L)
    model = recorded(linear(L, **{where: hook}), events, MODULE_HOOKS, "module")()
    runner = trainer(L, logger=rows, callbacks=[watcher(L, events, CALLBACK_HOOKS)], **{"max_epochs": 2} | how)
    raised = ""
    try:
        runner.fit(model, loader(3), loader(1, seed=1))
    except BaseException as caught:
        raised = type(caught).__name__
    return told(runner, model, rows, events) | {"raised": raised, "interrupted": runner.interrupted}


@case
def exception_at_a_batch(L: ModuleType) -> Result:
    return failing(L, "on_train_batch_end", RuntimeError("broken"))


@case
def exception_in_validation(L: ModuleType) -> Result:
    return failing(L, "on_validation_epoch_end", ValueError("broken"))


@case
def exception_at_the_end_of_an_epoch(L: ModuleType) -> Result:
    return failing(L, "on_train_epoch_end", KeyError("broken"))


@case
def interrupted_by_the_user(L: ModuleType) -> Result:
    return failing(L, "on_train_batch_end", KeyboardInterrupt())


def refused(attempt: Any) -> bool:
    """Is it refused with an error that says why?"""
    try:
        attempt()
    except Exception as error:
        return len(str(error)) > 5
    return False


@case
def arguments_refused(L: ModuleType) -> Result:
    """Of the Trainer's constructor."""
    bad: dict[str, dict[str, Any]] = {
        "unknown": {"max_epoch": 3},
        "epochs": {"max_epochs": -2},
        "steps": {"max_steps": -2},
        "algorithm": {"gradient_clip_algorithm": "norms", "gradient_clip_val": 1.0},
        "clip": {"gradient_clip_val": "much"},
        "precision": {"precision": "8-mixed"},
        "accelerator": {"accelerator": "abacus"},
        "devices": {"devices": 0},
        "limit": {"limit_train_batches": 1.5},
        "limit below": {"limit_val_batches": -0.1},
        "overfit": {"overfit_batches": 1.2},
        "fast": {"fast_dev_run": -1},
        "interval": {"val_check_interval": 1.5},
        "none and share": {"check_val_every_n_epoch": None, "val_check_interval": 0.5},
        "every": {"check_val_every_n_epoch": 1.5},
        "accumulate": {"accumulate_grad_batches": 0},
        "profiler": {"profiler": "magic"},
        "strategy": {"strategy": "hope"},
        "log": {"log_every_n_steps": 0.5},
        "time": {"max_time": "five minutes"},
        "checkpoints disabled": {"callbacks": [L.callbacks.ModelCheckpoint()], "enable_checkpointing": False},
        "reload": {"reload_dataloaders_every_n_epochs": -1},
    }  # fmt: skip
    return {name: refused(lambda how=how: trainer(L, **how)) for name, how in bad.items()}


@case
def fits_refused(L: ModuleType) -> Result:
    """Of `fit`: the loaders, the module, the metrics and the checkpoints."""

    class Bare(L.LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    def run(train: Any = None, val: Any = None, module: Any = None, ckpt_path: str | None = None, **how: Any) -> Any:
        def attempt() -> None:
            trainer(L, **how).fit(module or linear(L)(), train, val, ckpt_path=ckpt_path)

        return attempt

    stopping = L.callbacks.EarlyStopping
    keeping = {"enable_checkpointing": True, "max_epochs": 1}
    attempts = {
        "no loader": run(),
        "no optimizer": run(loader(), module=Bare()),
        "no training_step": run(loader(), module=L.LightningModule()),
        "no module": run(loader(), module=42),
        "share of nothing": run(loader(), limit_train_batches=0.1),
        "interval beyond": run(loader(), loader(1), val_check_interval=9),
        "share of a stream": run(stream(8), loader(1), val_check_interval=0.5),
        "limit of a stream": run(stream(8), limit_train_batches=0.5),
        "nothing to stop by": run(loader(), loader(1), callbacks=[stopping("missing")]),
        "nothing to keep by": run(loader(), callbacks=[L.callbacks.ModelCheckpoint(monitor="missing")], **keeping),
        "no file": run(loader(), ckpt_path="nowhere.ckpt"),
        "loaders one after another": run(L.utilities.CombinedLoader([loader(), loader()], "sequential")),
        "no best": run(loader(), ckpt_path="best"),
    }
    return {name: refused(attempt) for name, attempt in attempts.items()}


@case
def evaluations_refused(L: ModuleType) -> Result:
    class NoSteps(L.LightningModule):
        def forward(self, x: Any) -> Any:
            return x

    Linear: Any = linear(L)

    class NoIndex(Linear):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("a", self.loss(batch))

    attempts = {
        "no step": lambda: trainer(L).test(NoSteps(), loader()),
        "no loader": lambda: trainer(L).test(linear(L)()),
        "no module": lambda: trainer(L).test(dataloaders=loader()),
        "no index": lambda: trainer(L).test(NoIndex(), [loader(), loader()], verbose=False),
        "best when fast": lambda: trainer(L, fast_dev_run=True).test(linear(L)(), loader(), ckpt_path="best"),
        "best of nothing": lambda: trainer(L).validate(linear(L)(), loader(), ckpt_path="best"),
        "no file": lambda: trainer(L).predict(linear(L)(), loader(), ckpt_path="nowhere.ckpt"),
    }
    return {name: refused(attempt) for name, attempt in attempts.items()}


@case
def logs_refused(L: ModuleType) -> Result:
    def logging(where: str, *args: Any, **how: Any) -> Any:
        def hook(self: Any, *_: Any) -> None:
            self.log(*args, **how)

        def attempt() -> None:
            trainer(L).fit(linear(L, **{where: hook})(), loader(1), loader(1))

        return attempt

    attempts = {
        "on fit start": logging("on_fit_start", "a", 1.0),
        "step of an epoch": logging("on_train_epoch_end", "a", 1.0, on_step=True),
        "text": logging("on_train_epoch_end", "a", "b"),
        "nested": logging("on_train_epoch_end", "a", {"b": {"c": 1.0}}),
        "index in the name": logging("on_validation_epoch_end", "a/dataloader_idx_0", 1.0),
        "reduction": logging("on_train_epoch_end", "a", 1.0, reduce_fx="median"),
        "neither": logging("on_train_batch_end", "a", 1.0, on_step=False, on_epoch=False),
        "name": logging("on_train_epoch_end", 5, 1.0),
    }
    return {name: refused(attempt) for name, attempt in attempts.items()}


@case
def checkpoints_refused(L: ModuleType) -> Result:
    """Arguments of the callbacks."""
    make = L.callbacks.ModelCheckpoint
    attempts = {
        "top_k without monitor": lambda: make(save_top_k=3),
        "mode": lambda: make(monitor="a", mode="best"),
        "two intervals": lambda: make(every_n_epochs=1, every_n_train_steps=2),
        "negative": lambda: make(every_n_epochs=-1),
        "fewer": lambda: make(save_top_k=-2),
        "stop mode": lambda: L.callbacks.EarlyStopping("a", mode="best"),
        "stop without monitor": lambda: L.callbacks.EarlyStopping(),
        "rate interval": lambda: L.callbacks.LearningRateMonitor(logging_interval="day"),
        "schedule from 1": lambda: L.callbacks.GradientAccumulationScheduler({1: 0}),
        "rates without schedule": lambda: trainer(L, callbacks=[L.callbacks.LearningRateMonitor()]).fit(
            linear(L)(), loader(1)
        ),
    }
    return {name: refused(attempt) for name, attempt in attempts.items()}
