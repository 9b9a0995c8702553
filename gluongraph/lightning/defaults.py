"""The loggers and callbacks that a Trainer has by default."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.foreign import described, is_callback
from gluongraph.lightning.hooks import overrides


def default_loggers(trainer: Any, given: Any) -> list[Any]:
    """The loggers for what the argument `logger` says."""
    import_whole("gluongraph.lightning.loggers")
    from gluongraph.lightning import loggers
    from gluongraph.lightning.loggers.logger import DummyLogger

    import_whole("gluongraph.lightning.loggers.tensorboard")
    from gluongraph.lightning.loggers.tensorboard import is_available

    if given is False or (given is None and trainer.barebones):
        return []
    if trainer.fast_dev_run and (given is None or given is True):
        return [DummyLogger()]
    if given is None or given is True:
        kind = loggers.TensorBoardLogger if is_available() else loggers.CSVLogger
        return [kind(save_dir=trainer.default_root_dir)]
    made = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for each in made:
        if not hasattr(each, "log_metrics"):
            raise misconfigured(
                f"logger={each!r} is no logger", help="derive it from gluongraph.lightning.loggers.Logger"
            )
    return [DummyLogger()] if made and trainer.fast_dev_run else made


def default_callbacks(
    trainer: Any,
    given: Any,
    checkpoints: bool | None,
    progress: bool | None,
    summary: bool | None,
    max_time: float | None,
) -> list[Any]:
    """The callbacks given, and those that a training has unless they are switched off; those that save come last."""
    import_whole("gluongraph.lightning.callbacks")
    from gluongraph.lightning import callbacks as all

    made = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for each in made:
        if not is_callback(each):
            message, help = described(each)
            raise misconfigured(message, help=help)
    _check_switch("enable_checkpointing", checkpoints, made, all.Checkpoint)
    _check_switch("enable_progress_bar", progress, made, all.ProgressBar)
    if len(bars := [type(c).__name__ for c in made if isinstance(c, all.ProgressBar)]) > 1:
        raise misconfigured(f"callbacks have {len(bars)} progress bars: {', '.join(bars)}", help="leave one of them in")
    if progress is not False and not any(isinstance(c, all.ProgressBar) for c in made):
        made.append(all.TQDMProgressBar())
    if summary is not False and not any(isinstance(c, all.ModelSummary) for c in made):
        made.append(all.ModelSummary())
    if checkpoints is not False and not any(isinstance(c, all.Checkpoint) for c in made):
        made.append(all.ModelCheckpoint())
    if max_time is not None and not any(isinstance(c, all.Timer) for c in made):
        made.append(all.Timer(duration=timedelta(seconds=max_time)))
    keys = [c.state_key for c in made if overrides(c, "state_dict", all.Callback)]
    for key in keys:
        if keys.count(key) > 1:
            raise misconfigured(f"two callbacks have the state_key {key!r}", help="give them different arguments")
    return in_order(made)


def in_order(callbacks: list[Any]) -> list[Any]:
    """Callbacks with those that save checkpoints last."""
    import_whole("gluongraph.lightning.callbacks")
    from gluongraph.lightning.callbacks import Checkpoint

    return sorted(callbacks, key=lambda c: isinstance(c, Checkpoint))


def _check_switch(name: str, value: bool | None, given: list[Any], kind: type) -> None:
    if value is False and any(isinstance(c, kind) for c in given):
        raise misconfigured(f"{name}=False, and callbacks have a {kind.__name__}", help="leave one of them out")
