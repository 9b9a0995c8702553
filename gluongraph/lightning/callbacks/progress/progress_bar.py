"""The base of progress bars: totals, what is shown, and how often it is drawn."""

from __future__ import annotations

import math
import time
from typing import Any

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import Pace
from gluongraph.lightning.utilities.rank_zero import rank_zero_warn


class ProgressBar(Callback):
    """Shows how far a training is; a bar of your own overrides `enable`, `disable` and the hooks that it needs.

    `draws_every` is the time in seconds between two drawings. Batches in between are not looked at, so a bar costs
    nothing for them, and metrics are read from the device only when they are drawn.

    >>> class Percent(ProgressBar):
    ...     def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
    ...         super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
    ...         print(f"{100 * (batch_idx + 1) / self.total_train_batches:.0f} %", end="\\r")
    >>> Percent().train_description
    'Training'
    """

    draws_every = 0.1

    def __init__(self) -> None:
        self._trainer: Any = None
        self._current_eval_dataloader_idx: int | None = None
        self._pace, self._drawn = Pace(), -math.inf
        self._epoch_total = math.inf
        self._warned = False

    @property
    def trainer(self) -> Any:
        """The Trainer that this is a callback of.

        Raises:
            TypeError: none has begun yet.
        """
        if self._trainer is None:
            raise TypeError(f"{type(self).__name__} belongs to no Trainer that has begun")
        return self._trainer

    sanity_check_description = "Sanity Checking"
    train_description = "Training"
    validation_description = "Validation"
    test_description = "Testing"
    predict_description = "Predicting"

    @property
    def is_enabled(self) -> bool:
        """Is it shown?"""
        return True

    @property
    def is_disabled(self) -> bool:
        """Is it hidden?"""
        return not self.is_enabled

    # -- totals

    @property
    def total_train_batches(self) -> float:
        """The number of batches of an epoch of training; infinite where nobody knows."""
        trainer = self.trainer
        if trainer.max_epochs == -1 and trainer.max_steps is not None and trainer.max_steps > 0:
            return _number(min(trainer.num_training_batches, trainer.max_steps - trainer.global_step))
        return _number(trainer.num_training_batches)

    @property
    def total_val_batches_current_dataloader(self) -> float:
        """The number of batches of the loader that is validated with now."""
        trainer = self.trainer
        return self._of_loader(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches)

    @property
    def total_test_batches_current_dataloader(self) -> float:
        """The number of batches of the loader that is tested with now."""
        return self._of_loader(self.trainer.num_test_batches)

    @property
    def total_predict_batches_current_dataloader(self) -> float:
        """The number of batches of the loader that predictions are made for now."""
        return self._of_loader(self.trainer.num_predict_batches)

    @property
    def total_val_batches(self) -> float:
        """The number of batches of all loaders of a validation; 0 where this epoch has none."""
        trainer = self.trainer
        every = trainer.check_val_every_n_epoch
        if every is not None and (trainer.current_epoch + 1) % every != 0:
            return 0
        batches = trainer.num_val_batches
        return _number(sum(batches)) if isinstance(batches, list) else _number(batches)

    def _of_loader(self, batches: Any) -> float:
        if isinstance(batches, list):
            return _number(batches[self._current_eval_dataloader_idx or 0])
        return _number(batches)

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Is this another loader than that of the batch before?"""
        before, self._current_eval_dataloader_idx = self._current_eval_dataloader_idx, dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """The next loader is the first one."""
        self._current_eval_dataloader_idx = None

    # -- what a bar does

    def disable(self) -> None:
        """Hide it. A bar of your own has to say how."""
        raise NotImplementedError(f"{type(self).__name__}.disable")

    def enable(self) -> None:
        """Show it. A bar of your own has to say how."""
        raise NotImplementedError(f"{type(self).__name__}.enable")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print beside the bar, as `trainer.print` does.

        >>> ProgressBar().print("epoch", 3)
        epoch 3
        """
        print(*args, **kwargs)

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        """What is shown: the version of the run, and values logged with prog_bar=True. Override to change it."""
        standard, logged = get_standard_metrics(trainer), trainer.progress_bar_metrics
        if (twice := sorted(standard.keys() & logged.keys())) and not self._warned:
            self._warned = True
            rank_zero_warn(f"self.log({twice[0]!r}, prog_bar=True) hides what the progress bar shows by that name.")
        return {**standard, **logged}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remember the Trainer; hide the bar on all ranks but the first."""
        self._trainer = trainer
        if not trainer.is_global_zero:
            self.disable()

    # -- how often it is drawn

    _draws_by_time = False  # does the class draw in time's pace?
    _each = 1  # it is drawn at multiples of so many batches

    def idle_batches(self, trainer: Any) -> float:
        """Those that should pass before the next drawing, none beyond the end of the epoch; all where it is hidden.
        A bar of your own is called for each batch, unless it says something else."""
        if self.is_disabled:
            return math.inf
        if not self._draws_by_time:
            return super().idle_batches(trainer)
        done = int(trainer.counters.batch_idx) + 1
        idle = self._pace.until(self._drawn + self.draws_every, trainer.counters.batches_seen)
        idle += -(done + 1 + idle) % self._each
        left = self._epoch_total - done - 1
        return float(min(idle, left) if left >= 0 else idle)

    def _begin_epoch(self) -> float:
        """An epoch of so many batches begins."""
        self._epoch_total = self.total_train_batches
        return self._epoch_total

    def _is_due(self, done: int, total: float | None) -> bool:
        """Is it to be drawn after so many batches of so many?"""
        now = time.monotonic()
        if done != total and (done % self._each or now - self._drawn < self.draws_every):
            return False
        self._drawn = now
        return self.is_enabled


def get_standard_metrics(trainer: Any) -> dict[str, int | str]:
    """What all progress bars show: the version of the run, of a longer text the last four letters."""
    versions = [logger.version for logger in trainer.loggers]
    version = versions[0] if len(versions) == 1 else "_".join(dict.fromkeys(map(str, versions)))
    if version in ("", None):
        return {}
    return {"v_num": version[-4:] if isinstance(version, str) else version}


def _number(batches: Any) -> float:
    """A number, a whole one as it is."""
    return int(batches) if isinstance(batches, int) else float(batches)
