"""Where the loaders of a run come from: the arguments of `fit`, a data module, or the module's own hooks."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from typing import Any

from gluongraph.lightning.data import pieces, sampling
from gluongraph.lightning.data.array_loader import ArrayLoader
from gluongraph.lightning.data.combined import CombinedLoader, as_evaluation_loaders, as_training_loader, flatten
from gluongraph.lightning.data.loaders import is_gluon_loader, is_torch_loader, num_samples, set_epoch
from gluongraph.lightning.data.persistent import end_workers, start_workers
from gluongraph.lightning.data.position import EpochIterator
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.hooks import DataHooks, overrides

CALLS = {"train": "fit", "val": "validate", "test": "test", "predict": "predict"}


class LoaderSource:
    """The loaders of a run, asked for where they are needed, and where the training's loader is in its epoch."""

    def __init__(self, trainer: Any, module: Any, datamodule: Any, given: dict[str, Any]):
        self.trainer, self.module, self.datamodule, self.given = trainer, module, datamodule, given
        self._epoch: EpochIterator | None = None
        self._saved: Any = None  # where a checkpoint was in its epoch
        self._read: weakref.WeakSet[Any] = weakref.WeakSet()  # PyTorch's loaders, whose workers may stay

    def has(self, kind: str) -> bool:
        """Is there a loader of "train", "val", "test" or "predict"?"""
        return self.given.get(kind) is not None or self._owner(kind) is not None

    def _owner(self, kind: str) -> Any:
        """The data module or module whose hook gives the loader; None if neither has it."""
        for owner in (self.datamodule, self.module):
            if owner is not None and overrides(owner, f"{kind}_dataloader", (LightningDataModule, DataHooks)):
                return owner
        return None

    def _request(self, kind: str) -> Any:
        if self.given.get(kind) is not None:
            return self.given[kind]
        name, owner = f"{kind}_dataloader", self._owner(kind)
        if owner is None:
            message = (
                f"`Trainer.{CALLS[kind]}` has no {kind} loader: no argument, and no {name} of module or data module"
            )
            raise misconfigured(message, help=f"trainer.{CALLS[kind]}(model, loader)")
        made = getattr(owner, name)()
        if made is None:
            raise misconfigured(f"{type(owner).__name__}.{name} gave None", help="give a loader")
        return made

    def _given(self, kind: str) -> list[Any]:
        """The loaders that are arguments of the call."""
        given = self.given.get(kind)
        return [] if given is None else flatten(getattr(given, "iterables", given))

    def training(self) -> Any:
        """The loader of the training; several are one that gives a batch of each.

        Raises:
            MisconfigurationException: there is none, or it is no loader.
        """
        loader = as_training_loader(self._request("train"), passes=self.trainer.max_epochs != 1)
        made = [self._prepared(part, "train") for part in _flat([loader])]
        if isinstance(loader, CombinedLoader):
            loader.flattened = made
            return loader
        return made[0]

    def evaluation(self, kind: str) -> list[Any]:
        """The loaders of "val", "test" or "predict".

        Raises:
            MisconfigurationException: there is none, or one is no loader.
        """
        passes = kind == "val" and self.trainer.state.fn == "fit"
        loaders = as_evaluation_loaders(self._request(kind), f"{kind}_dataloaders", passes)
        return [self._prepared(loader, kind) for loader in loaders]

    def _prepared(self, loader: Any, kind: str) -> Any:
        """A loader as this rank reads it."""
        trainer = self.trainer
        if kind == "val" and isinstance(loader, ArrayLoader) and any(loader is each for each in self._given("train")):
            loader = copy.copy(loader)  # which counts its own passes
        if trainer.overfit_batches and kind in ("train", "val") and trainer.state.fn == "fit":
            loader = sampling.without_shuffling(loader, kind)
        if trainer.world_size > 1 and trainer.use_distributed_sampler:
            shuffle = sampling.is_shuffled(loader)
            loader = sampling.by_rank(loader, trainer.world_size, trainer.global_rank, shuffle, pad=kind != "predict")
        sampling.seed_workers(loader, trainer.global_rank)
        self._read.update(each for each in _flat([loader]) if is_torch_loader(each))
        return loader

    # -- where the training's loader is

    def epoch(self, loader: Any, epoch: int, limit: int | float) -> EpochIterator:
        """The batches of an epoch of training, or those that are left of it."""
        set_epoch(loader, epoch)
        saved, self._saved = self._saved, None
        shared = self._is_shared(self._validated())
        if saved is None:
            self._epoch = EpochIterator(loader, limit, is_shared=shared)
            return self._epoch
        validation = list(zip(self._validated(), saved.get("validation", ()), strict=False))
        for each, told in validation:
            if told["pieces"].get("workers"):
                start_workers(each)  # that of a first pass draws a seed, before generators are put where they were
        self._epoch = EpochIterator(loader, limit, saved, is_shared=shared)
        self._epoch.restore()
        for each, told in validation:
            if told["samples"] == num_samples(each):  # another number of samples: new data, whose passes begin anew
                pieces.put(each, told["pieces"], between=True)
        return self._epoch

    def state(self) -> Any:
        """Where the training's loader is, for a checkpoint: JSON."""
        if self._epoch is None:
            return None
        validation = [{"samples": num_samples(each), "pieces": self._pieces(each)} for each in self._validated()]
        return {**self._epoch.state_dict(self._completed()), "validation": validation}

    def _completed(self) -> int | None:
        """How many batches of the epoch are done, where more have been taken: those are trained on once more, since an
        error has come before their updates. None where all are."""
        assert self._epoch is not None
        counters, taken = self.trainer.counters, self._epoch.taken
        done: int = counters.state()["batch_idx"] + 1
        return done if done < taken and (counters.begun or not self._epoch.finished) else None

    def _validated(self) -> list[Any]:
        """The loaders of the validation within a training."""
        return _flat(self.trainer.validate_loop.loaders or ())

    def _pieces(self, loader: Any) -> Any:
        """What decides the next pass of a loader of the validation: nothing of one that says itself where it is, where
        that may be within a pass of the validation, or of the training."""
        trainer = self.trainer
        ends = isinstance(loader, ArrayLoader) or is_gluon_loader(loader) or trainer.limit_val_batches == 1.0
        is_within = trainer.validate_loop.is_reading or not ends or self._is_shared([loader])
        return {} if is_within and pieces.own_state(loader) is not None else pieces.take(loader)

    def _is_shared(self, loaders: Iterable[Any]) -> bool:
        """Is one of these loaders of the validation read by the training as well?"""
        read = _flat([self.trainer.fit_loop.loader])
        return any(each is other for each in loaders for other in read)

    def load(self, state: Any) -> None:
        """Go on from there, in the next epoch that is begun."""
        self._saved = state

    def finish_epoch(self, loader: Any, epoch: int, limit: int | float) -> None:
        """After the checkpoint of an epoch that was complete: put generators to where they were when it was saved."""
        if self._saved is not None:
            self.epoch(loader, epoch, limit)

    def close(self) -> None:
        """End worker processes that read ahead, and those that stay from pass to pass."""
        if self._epoch is not None:
            self._epoch.close()
        for loader in self._read:
            end_workers(loader)


def _flat(loaders: Iterable[Any]) -> list[Any]:
    """The loaders, and in place of a combined one those in it."""
    return [part for each in loaders for part in (each.flattened if isinstance(each, CombinedLoader) else [each])]
