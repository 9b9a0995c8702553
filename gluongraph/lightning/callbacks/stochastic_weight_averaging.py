"""Stochastic weight averaging: the mean of the weights at the ends of the last epochs, at a rate that stays high."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.engine.steps import arguments
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.optimizers import LRSchedulerConfig
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.lightning.utilities.rank_zero import rank_zero_info


class StochasticWeightAveraging(Callback):
    """Average the weights of a module of PyTorch's over the last epochs, from `swa_epoch_start` on (counted from 1; a
    share of all epochs if it is a float). The rates go to `swa_lrs` within `annealing_epochs`, along a cosine or a
    line, instead of as the schedule of the module has it.

    When the training ends the averages are the weights, and statistics of BatchNorm layers are computed anew with them,
    by a pass over the training data. `avg_fn(average, weight, how_many)` gives the next average, by default the mean of
    all.

    >>> StochasticWeightAveraging(swa_lrs=1e-2).swa_epoch_start
    0.8

    Source: Izmailov et al. 2018, Averaging Weights Leads to Wider Optima; the callback of that name in Lightning.

    Raises:
        MisconfigurationException: an argument is out of its range; later, when the training begins: several optimizers
            or schedulers, divided parameters, layers of Gluon's, or a share of epochs that have no end.
    """

    def __init__(
        self,
        swa_lrs: float | Sequence[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Callable[[Any, Any, Any], Any] | None = None,
        device: Any = "cpu",
    ):
        share = isinstance(swa_epoch_start, float)
        if not (0 <= swa_epoch_start <= 1 if share else swa_epoch_start >= 1):
            message = f"StochasticWeightAveraging(swa_epoch_start={swa_epoch_start!r})"
            raise misconfigured(message, help="an epoch from 1 on, or a share of them from 0.0 to 1.0")
        rates = [swa_lrs] if isinstance(swa_lrs, (int, float)) else list(swa_lrs)
        if not rates or not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            message = f"StochasticWeightAveraging(swa_lrs={swa_lrs!r})"
            raise misconfigured(message, help="a rate above 0, or one for each parameter group")
        if annealing_strategy not in ("cos", "linear"):
            message = f"StochasticWeightAveraging(annealing_strategy={annealing_strategy!r})"
            raise misconfigured(message, help='"cos" or "linear"')
        self.swa_lrs, self.swa_epoch_start = rates, swa_epoch_start
        self.annealing_epochs, self.annealing_strategy = annealing_epochs, annealing_strategy
        self.avg_fn, self.device = avg_fn or _mean, device
        self._first, self._last = 0, float("inf")  # epochs, from 0 on
        self._averages: list[Any] = []
        self._averaged = 0  # of how many weights they are
        self._latest = -1  # the epoch of the latest
        self._scheduler: Any = None
        self._scheduler_state: Any = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the first and the last epoch, and refuse what cannot be averaged."""
        if not trainer.is_torch or trainer.sharding is not None:
            message = "StochasticWeightAveraging of " + ("divided parameters" if trainer.is_torch else "Gluon's layers")
            raise misconfigured(message, help="WeightAveraging averages within the compiled step")
        counts = {"optimizers": len(trainer.optimizers), "schedulers": len(trainer.lr_scheduler_configs)}
        if wrong := [what for what, count in counts.items() if count > 1]:
            raise misconfigured(f"StochasticWeightAveraging with {counts[wrong[0]]} {wrong[0]}", help="use one")
        endless = trainer.max_epochs == -1
        start = self.swa_epoch_start
        if isinstance(start, float):
            if endless:
                message = f"StochasticWeightAveraging(swa_epoch_start={start}), a share of epochs that have no end"
                raise misconfigured(message, help="give the epoch as a whole number, or max_epochs")
            start = int(trainer.max_epochs * start)
        self._first, self._last = max(start - 1, 0), float("inf") if endless else trainer.max_epochs - 1
        if self._scheduler_state is not None:  # of the checkpoint: another scheduler took the place of the module's
            trainer.lr_scheduler_configs.clear()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on with the schedule of a checkpoint, which may be one within an epoch."""
        if self._scheduler_state is not None:
            self._set_schedule(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the weights of now into the averages, and let the rates go to theirs."""
        if not self._first <= trainer.current_epoch <= self._last:
            return
        if self._scheduler is None:
            self._set_schedule(trainer)
        if trainer.current_epoch > self._latest:
            weights = [p.detach() for p in pl_module.parameters()]
            if not self._averaged:
                self._averages = [weight.clone() for weight in weights]
            else:
                for average, weight in zip(self._averages, weights, strict=True):
                    average.copy_(self.avg_fn(average, weight, self._averaged))
            self._averaged, self._latest = self._averaged + 1, trainer.current_epoch

    def _set_schedule(self, trainer: Any) -> None:
        """Replace the schedule by one that goes to `swa_lrs`."""
        (optimizer,) = trainer.optimizers
        groups = optimizer.param_groups
        rates = self.swa_lrs * len(groups) if len(self.swa_lrs) == 1 else self.swa_lrs
        for rate, group in zip(rates, groups, strict=True):
            group["initial_lr"] = rate
        self._scheduler = import_whole("torch.optim.swa_utils").SWALR(
            optimizer,
            swa_lr=rates,
            anneal_epochs=self.annealing_epochs,
            anneal_strategy=self.annealing_strategy,
            last_epoch=trainer.max_epochs if self.annealing_strategy == "cos" else -1,
        )
        if self._scheduler_state is not None:
            self._scheduler.load_state_dict(self._scheduler_state)
        for config in trainer.lr_scheduler_configs:
            rank_zero_info(f"the schedule is SWALR now, in place of {type(config.scheduler).__name__}")
        trainer.lr_scheduler_configs[:] = [LRSchedulerConfig(self._scheduler)]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Let the averages be the weights, and compute statistics of BatchNorm layers anew."""
        if not self._averaged or (self._last != float("inf") and trainer.current_epoch <= self._last):
            return  # it was stopped before the last epoch
        for parameter, average in zip(pl_module.parameters(), self._averages, strict=True):
            parameter.detach().copy_(average)
        layers = [m for m in pl_module.modules() if _has_statistics(m)]
        if layers and self._last != float("inf"):
            with _from_the_start(layers):
                _run_training_steps(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The averages, of how many weights they are, and the schedule."""
        return {
            "n_averaged": self._averaged,
            "latest_update_epoch": self._latest,
            "scheduler_state": None if self._scheduler is None else _plain_state(self._scheduler.state_dict()),
            "averages": list(self._averages),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given."""
        self._averaged, self._latest = state_dict["n_averaged"], state_dict["latest_update_epoch"]
        self._scheduler_state, self._averages = state_dict["scheduler_state"], list(state_dict["averages"])


def _mean(average: Any, weight: Any, averaged: Any) -> Any:
    """The mean of `averaged` weights and one more."""
    return average + (weight - average) / (averaged + 1)


def _plain_state(state: dict[str, Any]) -> dict[str, Any]:
    """What JSON holds of the state of a scheduler."""
    plain = (bool, int, float, str, list, type(None))
    return {name: value for name, value in state.items() if isinstance(value, plain)}


def _has_statistics(module: Any) -> bool:
    norm = import_whole("torch").nn.modules.batchnorm._BatchNorm
    return isinstance(module, norm) and module.running_mean is not None


@contextmanager
def _from_the_start(layers: Sequence[Any]) -> Iterator[None]:
    """Within: statistics of BatchNorm layers are the mean over the batches, from none on."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _run_training_steps(trainer: Any, module: Any) -> None:
    """Run training_step in PyTorch over the training data, without gradients and without logging."""
    limit = None if trainer.num_training_batches == float("inf") else int(trainer.num_training_batches)
    module.train()
    with import_whole("torch").no_grad():
        for number, batch in enumerate(islice(iter(trainer.train_dataloader), limit)):
            given = arguments(module, "training_step", trainer.transfer(batch, 0), None)
            with recording(Recorder("training_step")):
                module.training_step(*(number if i == 1 else each for i, each in enumerate(given)))
