"""LightningDataModule: the loaders of a training, with how their data are prepared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.lightning.hooks import DataHooks
from gluongraph.lightning.hparams import HyperparametersMixin


class LightningDataModule(DataHooks, HyperparametersMixin):
    """Loaders for training, validation, test and prediction; `prepare_data` and `setup` are called before.

    >>> import gluongraph.lightning as L
    >>> class Data(L.LightningDataModule):
    ...     def __init__(self, count: int = 3):
    ...         super().__init__()
    ...         self.save_hyperparameters()
    ...     def setup(self, stage):
    ...         self.batches = list(range(self.hparams.count))
    ...     def train_dataloader(self):
    ...         return self.batches
    >>> data = Data(2)
    >>> data.setup("fit")
    >>> data.train_dataloader()
    [0, 1]
    """

    def __init__(self) -> None:
        self.trainer: Any = None

    def state_dict(self) -> dict[str, Any]:
        """What of it is saved in a checkpoint: JSON."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint will hold."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called with what a checkpoint holds."""

    def on_exception(self, exception: BaseException) -> None:
        """Called when an error ends the loop."""

    @classmethod
    def from_loaders(cls, **loaders: Callable[[], Any]) -> LightningDataModule:
        """A data module of functions: train, val, test, predict.

        >>> LightningDataModule.from_loaders(train=lambda: [1, 2]).train_dataloader()
        [1, 2]
        """
        made = cls()
        for name, loader in loaders.items():
            setattr(made, f"{name}_dataloader", loader)
        return made
