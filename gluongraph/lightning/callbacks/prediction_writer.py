"""Writing predictions where they are made, for results that are more than the memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.errors import misconfigured

INTERVALS = ("batch", "epoch", "batch_and_epoch")


class BasePredictionWriter(Callback):
    """Writes the predictions of each batch, of all batches, or both: override `write_on_batch_end` and
    `write_on_epoch_end`.

    Each rank writes its own. `batch_indices` are the numbers of the samples in the data set, where the loader takes
    them in the order of its sampler; else None.

    >>> class Saved(BasePredictionWriter):
    ...     def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
    ...         print(len(predictions), batch_indices)
    >>> Saved("epoch").interval
    'epoch'

    Raises:
        MisconfigurationException: `write_interval` is none of "batch", "epoch" and "batch_and_epoch".
    """

    def __init__(self, write_interval: str = "batch"):
        self.interval = str(getattr(write_interval, "value", write_interval))
        if self.interval not in INTERVALS:
            message = f"{type(self).__name__}(write_interval={write_interval!r})"
            raise misconfigured(message, help=f"one of {', '.join(map(repr, INTERVALS))}")

    def write_on_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write what `predict_step` has given for a batch."""
        raise self._missing("write_on_batch_end")

    def write_on_epoch_end(
        self, trainer: Any, pl_module: Any, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write the predictions of all batches: a list, of several loaders a list for each of them."""
        raise self._missing("write_on_epoch_end")

    def _missing(self, name: str) -> Exception:
        message = f"{type(self).__name__}({self.interval!r}) writes by {name}, which is missing"
        return misconfigured(message, help=f"override {name}, or choose another write_interval")

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a batch, where each is to be written."""
        if self.interval != "epoch":
            indices = trainer.predict_loop.current_batch_indices
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write all batches, where they are to be written together."""
        if self.interval != "batch":
            loop = trainer.predict_loop
            self.write_on_epoch_end(trainer, pl_module, loop.predictions, loop.epoch_batch_indices)
