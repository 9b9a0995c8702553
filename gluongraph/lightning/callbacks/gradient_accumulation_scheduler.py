"""Changes the number of batches whose gradients are accumulated, by the epoch."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.errors import misconfigured


class GradientAccumulationScheduler(Callback):
    """Accumulate over `scheduling[epoch]` batches from that epoch on; over one before the first of them.

    >>> accumulation = GradientAccumulationScheduler({4: 2, 8: 4})  # the fifth epoch has the number 4
    >>> [accumulation.get_accumulate_grad_batches(epoch) for epoch in (0, 3, 4, 7, 8, 100)]
    [1, 1, 2, 2, 4, 4]

    Raises:
        TypeError: no epoch at all.
        MisconfigurationException: epochs that are no numbers from 0, or factors that are no numbers from 1.
        RuntimeError, ValueError: later, the module optimizes by itself; the Trainer accumulates, too.
    """

    def __init__(self, scheduling: dict[int, int]):
        if not scheduling:
            message = "GradientAccumulationScheduler: no epochs are given"
            raise TypeError(with_user_location(message, help="GradientAccumulationScheduler({4: 2})"))
        if any(not _whole(epoch) or epoch < 0 for epoch in scheduling):
            message = f"GradientAccumulationScheduler: epochs are whole numbers from 0, not {list(scheduling)}"
            raise misconfigured(message, help="{4: 2} accumulates two batches from the fifth epoch on")
        if any(not _whole(factor) or factor < 1 for factor in scheduling.values()):
            message = (
                f"GradientAccumulationScheduler: factors are whole numbers from 1, not {list(scheduling.values())}"
            )
            raise misconfigured(message, help="{4: 2} accumulates two batches from the fifth epoch on")
        self.scheduling = scheduling if 0 in scheduling else {**scheduling, 0: 1}
        self.epochs = sorted(self.scheduling)

    def going_to_accumulate_grad_batches(self) -> bool:
        """Are gradients accumulated in any epoch?

        >>> GradientAccumulationScheduler({4: 2}).going_to_accumulate_grad_batches()
        True
        """
        return any(factor > 1 for factor in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """Over how many batches gradients are accumulated in an epoch.

        >>> GradientAccumulationScheduler({1: 3}).get_accumulate_grad_batches(1)
        3
        """
        return self.scheduling[max((each for each in self.epochs if each <= epoch), default=0)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot go together with this."""
        if not pl_module.automatic_optimization:
            message = "GradientAccumulationScheduler with a module that optimizes by itself"
            raise RuntimeError(with_user_location(message, help="accumulate in training_step, or leave this out"))
        if trainer.accumulate_grad_batches != 1:
            message = f"accumulate_grad_batches={trainer.accumulate_grad_batches} and a GradientAccumulationScheduler"
            raise ValueError(with_user_location(message, help="one of them"))
        if trainer.counters.batch_idx >= 0:  # it goes on within an epoch, whose beginning is not called again
            self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the number of this epoch."""
        trainer.accumulate_grad_batches = self.get_accumulate_grad_batches(trainer.current_epoch)


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
