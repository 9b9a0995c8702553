"""The base of callbacks that save checkpoints."""

from __future__ import annotations

from gluongraph.lightning.callbacks.callback import Callback


class Checkpoint(Callback):
    """A callback that saves checkpoints: the Trainer calls it after all others, and adds none of its own.

    >>> class EachEpoch(Checkpoint):
    ...     def on_train_epoch_end(self, trainer, pl_module):
    ...         trainer.save_checkpoint(f"epoch-{trainer.current_epoch}.ckpt")
    >>> isinstance(EachEpoch(), Callback)
    True
    """
