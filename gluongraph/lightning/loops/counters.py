"""Where a training is: one counter for each meaning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Counters:
    """The counters of a training.

    >>> Counters(steps_applied=3).state()["steps_applied"]
    3
    """

    epoch: int = 0  # epochs that are complete
    batch_idx: int = -1  # the number of the last batch within the epoch
    batches_seen: int = 0  # in all epochs
    steps_applied: int = 0  # updates
    steps_skipped: int = 0  # updates left out because a gradient was not finite, or training_step gave None
    logged_steps: int = 0  # the x axis of loggers: one a window of accumulated batches, whatever optimizers did
    window: int = 0  # batches accumulated since the last update
    steps_before_epoch: int = 0  # global_step when the epoch began
    steps_before_batch: int = 0  # global_step before the last batch
    is_last_batch: bool = False
    begun: bool = False  # has the last batch been begun, and the weights are still those before it?
    due: str = ""  # what is left to be done: after on_train_batch_end, a validation, or the end of the epoch

    @property
    def global_step(self) -> int:
        """Windows that have ended in a step of the optimizer, applied or skipped."""
        return self.steps_applied + self.steps_skipped

    def begin_batch(self) -> None:
        """Count a batch that is about to be trained on."""
        self.batch_idx += 1
        self.batches_seen += 1
        self.begun = True

    def state(self) -> dict[str, Any]:
        """All of them, for a checkpoint. A batch that has only been begun, as where it raises an error, is not counted:
        a training that goes on trains on it."""
        told = asdict(self)
        if self.begun:
            told |= {
                "batch_idx": self.batch_idx - 1,
                "batches_seen": self.batches_seen - 1,
                "is_last_batch": False,
                "begun": False,
            }
        return told

    def load(self, state: dict[str, Any]) -> None:
        """Go on from those of a checkpoint. One that was saved at the end of an epoch goes on with the next."""
        for name, value in state.items():
            setattr(self, name, value)
        if self.due == "epoch_end":
            self.epoch, self.batch_idx, self.due = self.epoch + 1, -1, ""
