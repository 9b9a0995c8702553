"""Finding a learning rate: a short training whose rate grows, and the rate at which the loss falls fastest.

Source: Smith 2017, Cyclical Learning Rates for Training Neural Networks; the Tuner of Lightning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluongraph.errors import MissingError, with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.data import generators
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.trainer import Trainer
from gluongraph.lightning.utilities.rank_zero import rank_zero_warn

_SMOOTHING = 0.98  # of the losses, as an exponential moving average
NAMES = ("lr", "learning_rate")  # of the attribute of a module that holds its rate


@dataclass
class LRFinder:
    """The smoothed losses at growing rates: `results["lr"]` and `results["loss"]`."""

    mode: str
    lr_min: float
    lr_max: float
    num_training: int
    results: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, step: int) -> float:
        """The rate of an update, from 0 on.

        >>> [LRFinder("linear", 0.0, 1.0, 4).rate(step) for step in range(4)]
        [0.0, 0.5, 0.75, 1.0]
        """
        share = (step + 1) / self.num_training if step else 0.0
        if self.mode == "linear":
            return self.lr_min + share * (self.lr_max - self.lr_min)
        return float(self.lr_min * (self.lr_max / self.lr_min) ** share)

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate where the loss falls fastest, without the first and last ones; None where there are too few."""
        place = self._steepest(skip_begin, skip_end)
        return None if place is None else self.results["lr"][place]

    def _steepest(self, skip_begin: int = 10, skip_end: int = 1) -> int | None:
        losses, rates = np.asarray(self.results["loss"]), np.asarray(self.results["lr"])
        places = np.arange(len(losses))[skip_begin : len(losses) - skip_end]
        places = places[np.isfinite(losses[places])]
        if len(places) < 2:
            rank_zero_warn(f"no rate can be suggested from {len(places)} losses; num_training= asks for more")
            return None
        return int(places[np.argmin(np.gradient(losses[places], rates[places]))])

    def plot(self, suggest: bool = False, show: bool = False, ax: Any = None) -> Any:
        """The figure of loss over rate, by matplotlib; with `suggest` the suggested rate is marked.

        Raises:
            MissingError: matplotlib is not installed.
        """
        try:
            pyplot = import_whole("matplotlib.pyplot")
        except ImportError:
            help = "pip install matplotlib; results has the numbers"
            raise MissingError(with_user_location("plot: matplotlib is not installed", help=help)) from None
        figure, ax = pyplot.subplots() if ax is None else (ax.figure, ax)
        rates, losses = self.results["lr"], self.results["loss"]
        ax.plot(rates, losses)
        ax.set(xlabel="learning rate", ylabel="loss", xscale="log" if self.mode == "exponential" else "linear")
        if suggest and (place := self._steepest()) is not None:
            ax.plot(rates[place], losses[place], marker="o", markersize=10, color="red")
        if show:
            pyplot.show()
        return figure


class _Sweep(Callback):
    """Sets the rate of each update, and keeps the losses; stops where they have grown too much."""

    def __init__(self, finder: LRFinder, threshold: float | None):
        self.finder, self.threshold = finder, threshold
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._average = self._best = 0.0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse several optimizers; leave schedules out."""
        if len(trainer.optimizers) != 1:
            message = f"lr_find with {len(trainer.optimizers)} optimizers"
            raise misconfigured(message, help="a module with one, and automatic optimization")
        trainer.lr_scheduler_configs.clear()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Set the rate."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.rates.append(self.finder.rate(len(self.rates)))
            set_rate(trainer.optimizers[0], self.rates[-1])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss, as a moving average."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        step = len(self.losses) + 1
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * float("nan" if loss is None else loss)
        smoothed = self._average / (1 - _SMOOTHING ** (step + 1))
        if self.threshold is not None and step > 1 and smoothed > self.threshold * self._best:
            trainer.should_stop = True
        if smoothed < self._best or step == 1:
            self._best = smoothed
        self.losses.append(smoothed)


def set_rate(optimizer: Any, rate: float) -> None:
    """Set the rate of an optimizer of PyTorch's, of all its groups, or of a gluon.Trainer or optimizer."""
    if hasattr(optimizer, "set_learning_rate"):
        optimizer.set_learning_rate(rate)
    else:
        for group in optimizer.param_groups:
            group["lr"] = rate


class Tuner:
    """Finds hyperparameters for a Trainer and a module.

    >>> import gluongraph.lightning as L
    >>> tuner = Tuner(L.Trainer(max_epochs=3, logger=False))
    >>> tuner.scale_batch_size(None)
    Traceback (most recent call last):
        ...
    gluongraph.errors.MissingError: Tuner.scale_batch_size does not exist...
    """

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def lr_find(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LRFinder | None:
        """Train for `num_training` updates at rates from `min_lr` to `max_lr`, and put the weights back.

            found = L.tuner.Tuner(trainer).lr_find(model, loader)
            print(found.suggestion())

        The training ends early where the smoothed loss is above `early_stop_threshold` times the least. The suggested
        rate becomes the module's `lr` or `learning_rate`, or that hyperparameter of it, or `attr_name`.

        Raises:
            MisconfigurationException: the module has no such attribute, with `update_attr`; no such mode or method.
        """
        if method != "fit" or mode not in ("exponential", "linear"):
            message = f"lr_find(method={method!r}, mode={mode!r})"
            raise misconfigured(message, help='method="fit", and mode="exponential" or "linear"')
        if self._trainer.fast_dev_run:
            rank_zero_warn("fast_dev_run: no rate is looked for")
            return None
        name = _attribute(model, attr_name) if update_attr else ""
        finder = LRFinder(mode, min_lr, max_lr, num_training)
        sweep = _Sweep(finder, early_stop_threshold)
        with _put_back(model), generators.kept():
            _short(self._trainer, num_training, sweep).fit(model, train_dataloaders, datamodule=datamodule)
        finder.results = {"lr": sweep.rates, "loss": sweep.losses}
        if update_attr and (rate := finder.suggestion()) is not None:
            _set_attribute(model, name, rate)
        return finder

    def scale_batch_size(self, model: Any, *args: Any, **kwargs: Any) -> None:
        """There is none: memory is known before a step runs.

        Raises:
            MissingError: always.
        """
        help = "mx.compile(memory_budget=...) and gluongraph inspect say what memory a step takes"
        raise MissingError(with_user_location("Tuner.scale_batch_size does not exist", help=help))


def _short(trainer: Trainer, steps: int, sweep: Callback) -> Trainer:
    """A Trainer like this one for a few updates, of which nothing remains."""
    return Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu" if trainer.target == "cpu" else "gpu",
        precision=trainer.precision,
        devices=trainer.num_devices,
        num_nodes=trainer.num_nodes,
        strategy=trainer.strategy,
        accumulate_grad_batches=trainer.accumulate_grad_batches,
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        limit_train_batches=trainer.limit_train_batches,
        limit_val_batches=0,
        eager=trainer.eager,
        callbacks=[sweep],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _attribute(model: Any, given: str) -> str:
    """The name of the attribute that holds the rate."""
    hparams = getattr(model, "hparams", {})
    for name in (given,) if given else NAMES:
        if hasattr(model, name) or name in hparams:
            return name
    known = repr(given) if given else " nor ".join(NAMES)
    message = f"lr_find: {type(model).__name__} and its hparams have no {known}"
    raise misconfigured(message, help="attr_name=..., or update_attr=False")


def _set_attribute(model: Any, name: str, rate: float) -> None:
    if hasattr(model, name):
        setattr(model, name, rate)
    if name in getattr(model, "hparams", {}):
        model.hparams[name] = rate


@contextmanager
def _put_back(model: Any) -> Iterator[None]:
    """Within, the module is trained; after it, its weights, buffers and Trainer are those of before."""
    before: Sequence[Any]
    trainer = model._trainer
    if list(getattr(model, "parameters", list)()):
        before = [(tensor, tensor.detach().clone()) for tensor in model.state_dict(keep_vars=True).values()]
    else:
        before = [(p, p.data().copy()) for p in model.collect_params().values() if not p.deferred]
    try:
        yield
    finally:
        for each, value in before:
            if hasattr(each, "set_data"):
                each.set_data(value)
            else:
                each.detach().copy_(value)
        model._trainer = trainer
