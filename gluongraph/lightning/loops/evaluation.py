"""The loop of validation and test, and that of predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gluongraph.lightning.batch import to_user
from gluongraph.lightning.callbacks.prediction_writer import BasePredictionWriter
from gluongraph.lightning.data.combined import CombinedLoader, batches, close
from gluongraph.lightning.data.loaders import num_batches
from gluongraph.lightning.data.sampling import batch_indices
from gluongraph.lightning.engine.steps import arguments
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.loops.gather import gathered


class EvaluationLoop:
    """Runs a step function of the module over loaders, one after another, in prediction mode.

    `kind` is "validation", "test" or "predict".
    """

    def __init__(self, trainer: Any, kind: str):
        self.trainer, self.kind = trainer, kind
        self.loaders: list[Any] | None = None
        self.batches: list[int | float] = []
        self.is_reading = False  # has a loader been begun, and not come to its end?
        self._seen: dict[int | None, int] = {}  # batches of each loader since `setup`: the x axis of logged steps

    @property
    def _short(self) -> str:
        return "val" if self.kind == "validation" else self.kind

    def setup(self) -> None:
        """Ask for the loaders, and find how many batches of each are run."""
        trainer, self._seen = self.trainer, {}
        limit = getattr(trainer, f"limit_{self._short}_batches")
        if limit == 0 or (self.kind != "predict" and not trainer.has_step(f"{self.kind}_step")):
            self.loaders, self.batches = [], []
            return
        self.loaders = trainer.data.evaluation(self._short)
        if len(self.loaders) > 1 and trainer.has_step(f"{self.kind}_step"):
            arguments(trainer.lightning_module, f"{self.kind}_step", None, 0)  # does it take the number of the loader?
        self.batches = [trainer.agreed(num_batches(each, limit, self._short)) for each in self.loaders]

    @property
    def limits(self) -> list[int | float]:
        """How many batches of each loader are run now: few, in the sanity check."""
        if not self.trainer.sanity_checking:
            return self.batches
        return [min(self.trainer.num_sanity_val_steps, n) for n in self.batches]

    def _call(self, when: str, *args: Any, **kwargs: Any) -> Any:
        return self.trainer.hooks.call(f"on_{self.kind}_{when}", *args, **kwargs)

    def run(self) -> list[dict[str, float]]:
        """Run over all loaders; gives what was logged, for each of them."""
        trainer = self.trainer
        if self.loaders is None or trainer.reloads(self):
            self.setup()
        if not sum(self.limits):
            return []
        log, store = trainer.metric_log, trainer.metric_log.stores["evaluate"]
        on_step, log.on_step = log.on_step, False
        store.reset()
        with trainer.evaluation_mode(self.kind), trainer.evaluation_weights():
            self._begin()
            outputs = self._run_loaders(store)
            made = self._end(outputs)
        store.reset()
        log.on_step = on_step
        trainer.last_validation = time.monotonic()
        return made

    def _begin(self) -> None:
        self._call("start")
        self._call("epoch_start")

    def _run_loaders(self, store: Any) -> list[dict[str, float]]:
        """Run the batches of all loaders; gives the values that belong to each."""
        trainer, several = self.trainer, len(self.loaders or ()) > 1
        outputs: list[dict[str, float]] = []
        self.is_reading = True
        for number, (loader, limit) in enumerate(zip(self.loaders or (), self.limits, strict=True)):
            index = number if several else None
            trainer.dataloader_idx = store.dataloader_idx = index
            trainer.metric_log.on_step = True  # who looks between batches sees no values of the epoch: it has not ended
            for batch_idx, batch in enumerate(_limited(loader, limit)):
                self._step(batch, batch_idx, index, store)
                trainer.termination.check()
            trainer.metric_log.on_step = False
            trainer.synchronize_metrics(store)
            if store.logs_steps:
                trainer.metric_log.refresh(True)
            outputs.append({} if trainer.sanity_checking else dict(trainer.metric_log.refresh(False)["log"]))
        trainer.dataloader_idx = store.dataloader_idx = None
        self.is_reading = False
        return outputs

    def _step(self, batch: Any, batch_idx: int, index: int | None, store: Any) -> Any:
        """One batch, with its hooks."""
        trainer = self.trainer
        trainer.batch = batch = trainer.transfer(batch, index or 0)
        where = () if index is None else (index,)
        self._call("batch_start", batch, batch_idx, *where)
        with trainer.measured(f"{self.kind}_step"):
            output = trainer.engines.evaluate(f"{self.kind}_step", batch, batch_idx, index, store)
        if trainer.hooks.anybody(f"on_{self.kind}_batch_end"):
            output = to_user(output, trainer.is_torch)
        self._call("batch_end", output, batch, batch_idx, *where)
        trainer.batch = None
        if not trainer.sanity_checking:
            if store.logs_steps:
                trainer.metric_log.write(store.metrics(True)["log"], step=self._seen.get(index, 0))
            self._seen[index] = self._seen.get(index, 0) + 1
        return output

    def _end(self, outputs: list[dict[str, float]]) -> list[dict[str, float]]:
        """The hooks at the end, and what they log."""
        trainer, log = self.trainer, self.trainer.metric_log
        self._call("epoch_end")
        trainer.synchronize_metrics(log.store)
        found = {} if trainer.sanity_checking else log.refresh(False)["log"]
        together: dict[str, float] = {}
        for each in outputs:
            together.update(each)
            each.update(found)
        together.update(found)
        if not trainer.sanity_checking:
            log.write(together)
        self._call("end")
        return outputs


class PredictionLoop(EvaluationLoop):
    """Runs `predict_step` over loaders, and keeps what it gives: `predictions` of all batches, of several loaders a
    list for each, and `epoch_batch_indices`, the numbers of their samples."""

    def __init__(self, trainer: Any):
        super().__init__(trainer, "predict")
        self.return_predictions = True
        self.predictions: list[Any] = []
        self.current_batch_indices: list[int] | None = None
        self.epoch_batch_indices: list[list[list[int] | None]] = []

    def _keeps(self) -> bool:
        """Does anybody want the predictions of all batches?"""
        writers = (c for c in self.trainer.callbacks if isinstance(c, BasePredictionWriter))
        return self.return_predictions or any(c.interval != "batch" for c in writers)

    def predict(self) -> Any:
        """The results: a list of the batches', or of several loaders a list of those."""
        trainer = self.trainer
        self.setup()
        if not sum(self.limits):
            return None
        store = trainer.metric_log.stores["evaluate"]
        results: list[list[Any]] = []
        self.epoch_batch_indices, keeps = [], self._keeps()
        with trainer.evaluation_mode(self.kind), trainer.evaluation_weights():
            self._begin()
            several = len(self.loaders or ()) > 1
            for number, (loader, limit) in enumerate(zip(self.loaders or (), self.limits, strict=True)):
                index = number if several else None
                trainer.dataloader_idx = index
                results.append(self._over(loader, limit, index, store, keeps))
            trainer.dataloader_idx = None
            self.predictions = results if several else results[0]
            self._call("epoch_end")
            self._call("end")
        self.predictions = []
        if not self.return_predictions:
            return None
        if trainer.world_size > 1 and trainer.use_distributed_sampler:
            results = [gathered(made, trainer.ranks, trainer.is_torch) for made in results]
        return results if several else results[0]

    def _over(self, loader: Any, limit: int | float, index: int | None, store: Any, keeps: bool) -> list[Any]:
        """The predictions for the batches of one loader, if they are kept."""
        made, indices = list[Any](), batch_indices(loader)
        self.epoch_batch_indices.append(numbers := [])
        for batch_idx, batch in enumerate(_limited(loader, limit)):
            self.current_batch_indices = next(indices)
            output = to_user(self._step(batch, batch_idx, index, store), self.trainer.is_torch)
            self.trainer.termination.check()
            if keeps:
                made.append(output)
                numbers.append(self.current_batch_indices)
        return made


def _limited(loader: Any, limit: int | float) -> Iterator[Any]:
    """The first batches of a loader.

    Raises:
        MisconfigurationException: it gives none.
    """
    if limit <= 0:
        return
    number = 0
    source = batches(loader)
    try:
        for batch in source:
            number += 1
            yield batch
            if number >= limit:
                return
    finally:
        close(source)
        if isinstance(loader, CombinedLoader):
            loader.reset()
    if number == 0:
        raise misconfigured(f"the loader {type(loader).__name__} gave no batch", help="give a loader that has some")
