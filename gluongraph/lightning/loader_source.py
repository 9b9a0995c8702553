"""Where the loaders of a run come from: the arguments of `fit`, a data module, or the module's own hooks."""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.hooks import DataHooks, overrides
from gluongraph.lightning.loops.batches import Batches

KINDS = ("train", "val", "test", "predict")


class LoaderSource:
    """The loaders of a run, asked for where they are needed."""

    def __init__(self, trainer: Any, module: Any, datamodule: Any, given: dict[str, Any]):
        self.trainer, self.module, self.datamodule, self.given = trainer, module, datamodule, given
        self._state: Any = None

    def has(self, kind: str) -> bool:
        """Is there a loader of "train", "val", "test" or "predict"?"""
        if self.given.get(kind) is not None:
            return True
        name = f"{kind}_dataloader"
        owner = self.datamodule
        if owner is not None and overrides(owner, name, (LightningDataModule, DataHooks)):
            return True
        return overrides(self.module, name, (DataHooks,))

    def request(self, kind: str) -> Any:
        """The loader, or the list of them.

        Raises:
            MisconfigurationException: there is none.
        """
        if self.given.get(kind) is not None:
            return self.given[kind]
        name = f"{kind}_dataloader"
        for owner in (self.datamodule, self.module):
            if owner is not None and overrides(owner, name, (LightningDataModule, DataHooks)):
                made = getattr(owner, name)()
                if made is None:
                    raise misconfigured(f"{type(owner).__name__}.{name} gave None", help="give a loader")
                return made
        what = {"train": "fit", "val": "validate"}.get(kind, kind)
        message = f"`Trainer.{what}` has no {kind} loader: neither an argument nor {name} of a module or data module"
        raise misconfigured(message, help=f"trainer.{what}(model, loader)")

    def epoch(self, loader: Any, epoch: int, limit: int | float) -> Batches:
        """The batches of an epoch of training."""
        sampler = getattr(loader, "sampler", None)
        for each in (loader, sampler, getattr(sampler, "sampler", None)):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        return Batches(loader, limit)

    def end_epoch(self) -> None:
        """An epoch of training is complete."""

    def state(self) -> Any:
        """Where the training's loader is, for a checkpoint."""
        return None

    def load(self, state: Any) -> None:
        """Go on from there."""
