"""What became of logged values: those that callbacks, loggers and the progress bar see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.lightning.metrics import Store

KINDS = ("callback", "log", "pbar")


class Seen(dict[str, Any]):
    """Values as a user sees them; what a user writes into them is kept, as other values are."""

    def __init__(self, kept: dict[str, float], convert: Callable[[float], Any]):
        super().__init__({name: convert(value) for name, value in kept.items()})
        self._kept = kept

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._kept[name] = float(value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Write several values."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value


class MetricLog:
    """The values of a Trainer: read from the stores when somebody looks, and kept when an epoch ends.

    `loggers` get rows; `kept` are the values of before, by kind.
    """

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self.stores = {"train": Store(True), "evaluate": Store(False)}
        self.kept: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
        self.on_step = False  # are steps being made, or is an epoch at its end?

    @property
    def store(self) -> Store:
        """The store of what runs now."""
        return self.stores["train" if self._trainer.training else "evaluate"]

    def reset(self) -> None:
        """Forget all values."""
        for store in self.stores.values():
            store.reset()
        self.kept = {kind: {} for kind in KINDS}

    def refresh(self, on_step: bool | None = None) -> dict[str, dict[str, float]]:
        """Take over the values of now; gives them by kind."""
        found = self.store.metrics(self.on_step if on_step is None else on_step)
        for kind in KINDS:
            self.kept[kind].update(found[kind])
        return found

    def seen(self, kind: str) -> dict[str, float]:
        """The values of now and of before, for one kind of reader."""
        if self._trainer.state.fn is not None:
            self.refresh()
        return self.kept[kind]

    def write(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Give values to the loggers, with the epoch; `step` is that of the x axis, or a metric of that name."""
        trainer = self._trainer
        if not trainer.loggers or not metrics:
            return
        self.kept["log"].update(metrics)
        row = dict(metrics)
        if step is None:
            named = row.pop("step", None)
            if named is not None:
                step = int(named)
            else:
                row.setdefault("epoch", trainer.current_epoch)
                step = trainer.counters.logged_steps
        for logger in trainer.loggers:
            logger.log_metrics(metrics=row, step=step)
            logger.save()
