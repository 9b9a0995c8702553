"""Training progress: the optimizer's counts, rate, settings, schedule; the loss scale; the number of skipped steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.checkpoint.part import Groups, Part, Put, Training, check_json, misfit
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.lr_scheduler import LRScheduler
from gluongraph.runtime.checkpoint import Content

# Told elsewhere, of one step, or structure.
UNSAVED = {"lr", "lr_scheduler", "rescale_grad", "begin_num_update", "multi_precision"}


def _settings(of: object) -> dict[str, Any]:
    """The public attributes that are plain numbers or texts."""
    values = {k: v.item() if isinstance(v, np.generic) else v for k, v in vars(of).items()}
    return {
        k: v
        for k, v in values.items()
        if not k.startswith("_") and k not in UNSAVED and (v is None or isinstance(v, (bool, int, float, str)))
    }


def _scheduler(scheduler: Any) -> Any:
    """What does not follow from the number of updates: settings that may have been changed, or what it says itself."""
    if scheduler is None:
        return None
    told: dict[str, Any] = {"class": type(scheduler).__name__}
    if hasattr(scheduler, "state_dict"):
        check_json(state := scheduler.state_dict(), f"{told['class']}.state_dict()")
        return {**told, "state": state}
    return {**told, "settings": _settings(scheduler) if isinstance(scheduler, LRScheduler) else {}}


def _check_store(trainer: Trainer) -> None:
    if trainer._exchange.once and not trainer._own_store:
        message = f"{trainer._kvstore} keeps weights and states of its own, which no checkpoint can read or set"
        raise MXNetError(with_user_location(message, help="make the Trainer with update_on_kvstore=False"))


def _take(training: Training, groups: Groups) -> Any:
    trainer, optimizer = training.trainer, training.trainer.optimizer
    _check_store(trainer)
    progress = optimizer.progress()
    return {
        **progress,
        "counts": {training.keys[trainer.names[index]]: t for index, t in progress["counts"]},
        "settings": {k: v for k, v in optimizer.settings().items() if k not in UNSAVED},
        "loss_scale": trainer.scaler.progress(),
        "skipped": training.step.skipped,
        "scheduler": _scheduler(optimizer.lr_scheduler),
        "multipliers": {key: [p.lr_mult, p.wd_mult] for key, p in training.parameters.items()},
    }


def _put(training: Training, content: Content, told: Any) -> Put:
    trainer, optimizer = training.trainer, training.trainer.optimizer
    _check_store(trainer)
    if (name := type(optimizer).__name__) != told["optimizer"]:
        raise misfit(f"the checkpoint is of {told['optimizer']}, the trainer uses {name}")
    found = (_scheduler(optimizer.lr_scheduler) or {"class": "none"})["class"]
    if (name := (told["scheduler"] or {"class": "none"})["class"]) != found:
        raise misfit(f"the checkpoint's lr_scheduler is {name}, the trainer's {found}")
    if told["carried"].keys() != set(optimizer.carried):
        raise misfit(f"the checkpoint is of another {type(optimizer).__name__}, which carried {list(told['carried'])}")
    index = {training.keys[name]: i for i, name in enumerate(trainer.names)}
    if strange := sorted(told["counts"].keys() - index.keys()):
        raise misfit(f"the checkpoint counts updates of {', '.join(strange)}, which the trainer does not hold")

    def put() -> None:
        optimizer.resume({**told, "counts": [[index[key], t] for key, t in told["counts"].items()]})
        trainer.scaler.resume(told["loss_scale"])
        training.step.skipped = told.get("skipped", 0)  # of the first files
        known = optimizer.settings()
        optimizer.set_settings({k: v for k, v in told["settings"].items() if k in known})
        for key, (lr_mult, wd_mult) in told["multipliers"].items():
            training.parameters[key].lr_mult, training.parameters[key].wd_mult = lr_mult, wd_mult
        scheduler: Any = optimizer.lr_scheduler
        if scheduler is not None and "state" in told["scheduler"]:
            scheduler.load_state_dict(told["scheduler"]["state"])
        elif scheduler is not None:
            vars(scheduler).update(told["scheduler"]["settings"])

    return put


PART = Part(_take, _put)
