"""What a run of Lightning's, or of ours, is seen by: the hooks called, the rows logged, the files written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

PHASES = ("validation", "test", "predict")
EPOCH_HOOKS = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end",
    *(f"on_{phase}_{when}" for phase in PHASES for when in ("start", "end", "epoch_start", "epoch_end")),
)  # fmt: skip
BATCH_HOOKS = tuple(f"on_{phase}_batch_{when}" for phase in ("train", *PHASES) for when in ("start", "end"))
GRADIENT_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
CHECKPOINT_HOOKS = ("on_save_checkpoint", "on_load_checkpoint")
MODE_HOOKS = tuple(f"on_{phase}_model_{mode}" for phase in PHASES for mode in ("eval", "train"))
SETUP_HOOKS = ("prepare_data", "setup", "teardown", "configure_model", "configure_optimizers")
LOADER_HOOKS = tuple(f"{kind}_dataloader" for kind in ("train", "val", "test", "predict"))

# What a module of the user's overrides without a change of how it is trained; and what makes us train in parts.
MODULE_HOOKS = (*SETUP_HOOKS, *EPOCH_HOOKS, *BATCH_HOOKS, *CHECKPOINT_HOOKS)
STAGED_HOOKS = (*GRADIENT_HOOKS, "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward")
CALLBACK_HOOKS = (
    *("setup", "teardown", "on_sanity_check_start", "on_sanity_check_end", "on_exception", "state_dict"),
    *("load_state_dict", *EPOCH_HOOKS, *BATCH_HOOKS, *CHECKPOINT_HOOKS),
)
DATA_HOOKS = ("prepare_data", "setup", "teardown", *LOADER_HOOKS)


def describe(owner: str, name: str, trainer: Any, values: Iterable[Any]) -> str:
    """One line: the hook, its whole numbers and texts, and the counters at that moment."""
    plain = [getattr(value, "value", value) for value in values if isinstance(value, (int, str))]
    told = [str(value) for value in plain if not isinstance(value, bool)]
    line = " ".join((f"{owner}.{name}", *told))
    return line if trainer is None else f"{line} | epoch {trainer.current_epoch} step {trainer.global_step}"


def trainer_of(owner: Any, values: tuple[Any, ...]) -> Any:
    """The Trainer that a hook is called by, as far as the hook can know it."""
    if values and hasattr(values[0], "global_step") and hasattr(values[0], "callback_metrics"):
        return values[0]
    try:
        return owner.trainer
    except (AttributeError, RuntimeError):
        return None


def recorded(made: type, events: list[str], hooks: Iterable[str], owner: str) -> type:
    """A subclass that writes each call of these hooks into `events`, and then does what the class does."""

    def hook(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            events.append(describe(owner, name, trainer_of(self, args), (*args, *kwargs.values())))
            return getattr(super(subclass, self), name)(*args, **kwargs)

        call.__name__ = name
        return call

    subclass = type(made.__name__, (made,), {name: hook(name) for name in hooks if hasattr(made, name)})
    return subclass


def watcher(L: ModuleType, events: list[str], hooks: Iterable[str] = CALLBACK_HOOKS) -> Any:
    """A callback that records all its hooks."""
    return recorded(L.Callback, events, hooks, "callback")()


def logger(L: ModuleType) -> Any:
    """A logger that keeps what it is given: `rows` of (step, values), `params`, and how it ended."""

    class Rows(L.loggers.Logger):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int | None, dict[str, float]]] = []
            self.params: list[dict[str, Any]] = []
            self.ended: list[str] = []

        @property
        def name(self) -> str:
            return "rows"

        @property
        def version(self) -> int:
            return 0

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.rows.append((step, {key: float(metrics[key]) for key in sorted(metrics)}))

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            self.params.append(dict(params))

        def finalize(self, status: str) -> None:
            self.ended.append(str(status))

    return Rows()


def numbers(values: Any) -> dict[str, float]:
    """Metrics by name, in the order of their names."""
    return {key: float(values[key]) for key in sorted(values)}


def metrics(trainer: Any) -> dict[str, Any]:
    """The three dictionaries of metrics."""
    return {
        "callback_metrics": numbers(trainer.callback_metrics),
        "logged_metrics": numbers(trainer.logged_metrics),
        "progress_bar_metrics": numbers(trainer.progress_bar_metrics),
    }


def weights(module: Any) -> dict[str, list[float]]:
    """All parameters and buffers of floats, flat."""
    return {name: value.detach().reshape(-1).double().tolist() for name, value in module.state_dict().items()}


def checkpoints(root: str | Path = ".") -> list[str]:
    """Names of all checkpoints below a folder; Lightning's are files, ours are folders."""
    found = []
    for folder, names, files in os.walk(root):
        found += [
            Path(folder, name).relative_to(root).as_posix() for name in (*names, *files) if name.endswith(".ckpt")
        ]
        names[:] = [name for name in names if not name.endswith(".ckpt")]
    return sorted(found)


def told(trainer: Any, module: Any = None, rows: Any = None, events: list[str] | None = None) -> dict[str, Any]:
    """What is compared of a run of `fit`."""
    state = trainer.state
    result = {
        "current_epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "status": str(getattr(state.status, "value", state.status)),
        **metrics(trainer),
        "checkpoints": checkpoints(),
    }
    result |= {"weights": weights(module)} if module is not None else {}
    result |= {"rows": rows.rows, "ended": rows.ended} if rows is not None else {}
    return result | ({"events": events} if events is not None else {})
