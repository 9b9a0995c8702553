"""Averages of the weights, which are part of a compiled step and stand in for the weights in validations."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.errors import misconfigured


class WeightAveraging(Callback):
    """Average the weights after updates: average = decay average + (1 - decay) weight, within the compiled step.

    Which updates count is what `should_update` says; override it. Each counts as much as the others (the mean of all
    weights so far); with `EMAWeightAveraging`, and with `avg_fn=get_ema_avg_fn()` or `multi_avg_fn=` of
    torch.optim.swa_utils, the later ones count more. The averages stand in for the weights in validations, and are the
    weights when the training ends.

    Running statistics, as those of BatchNorm, are not averaged: they go on following the weights.

    >>> class Late(WeightAveraging):
    ...     def should_update(self, step_idx=None, epoch_idx=None):
    ...         return step_idx is not None and step_idx >= 100
    >>> Late().should_update(step_idx=99), Late().should_update(step_idx=100)
    (False, True)

    Raises:
        MisconfigurationException: another argument of PyTorch's AveragedModel; later, an `avg_fn` that is no
            decay average + (1 - decay) weight.
    """

    def __init__(self, device: Any = None, use_buffers: bool = True, **kwargs: Any):
        self._average = _function(kwargs.pop("avg_fn", None), kwargs.pop("multi_avg_fn", None))
        if kwargs:
            message = f"{type(self).__name__}({', '.join(kwargs)}=...): averages are part of the compiled step"
            raise misconfigured(message, help="EMAWeightAveraging(decay=0.999), or override should_update and decay_at")
        self.device, self.use_buffers = device, use_buffers
        self._updates = 0  # how many weights the averages are of
        self._latest_update_step = 0
        self._shown: AbstractContextManager[Any] | None = None

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Do the averages follow the update of this number, from 0 on? Asked with `epoch_idx` when an epoch ends:
        do they follow the weights of then?

        >>> WeightAveraging().should_update(step_idx=0), WeightAveraging().should_update(epoch_idx=0)
        (True, False)
        """
        return step_idx is not None

    def decay_at(self, updates: int) -> float:
        """The decay for an update, where the averages are of so many weights already; 0 for none, which copies them.

        >>> WeightAveraging().decay_at(0), WeightAveraging().decay_at(3)
        (0.0, 0.75)
        """
        if self._average is None:
            return updates / (updates + 1)
        return _decay(self._average, updates) if updates else 0.0

    def _decay_of(self, step_idx: int) -> float:
        """The decay of a step: 1 leaves the averages as they are; before the first they are the weights."""
        if self.should_update(step_idx=step_idx):
            return self.decay_at(self._updates)
        return 1.0 if self._updates else 0.0

    def idle_batches(self, trainer: Any) -> float:
        """None: the next decay may be another one."""
        return 0.0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let averages be part of the step."""
        if stage == "fit":
            trainer.ema = self._decay_of(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Set the decay of this step, where it is compiled."""
        self._averages(trainer).decay = self._decay_of(trainer.global_step)

    def _averages(self, trainer: Any) -> Any:
        """The averages of the engine that trains.

        Raises:
            MisconfigurationException: there are none of all that is trained.
        """
        averages = getattr(trainer.engines.engine, "averages", None)
        if averages is None or (not trainer.is_torch and len(trainer.optimizers) > 1):
            several = f"{len(trainer.optimizers)} trainers of Gluon's" if averages is not None else "no optimizer"
            raise misconfigured(f"{type(self).__name__} with {several}", help="train by one gluon.Trainer")
        return averages

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the update, where there has been one."""
        self._count(trainer)

    def _count(self, trainer: Any) -> None:
        """Count the updates since the last time: several, where batches were not looked at. After eager steps the
        averages follow the weights here, once for a batch, in which there may be several updates."""
        if trainer.engines.mode == "eager":
            updated = trainer.global_step > self._latest_update_step
            self._latest_update_step = trainer.global_step
            if updated and self.should_update(step_idx=trainer.global_step - 1):
                self._follow(trainer)
            return
        steps = range(self._latest_update_step, trainer.global_step)
        self._updates += sum(self.should_update(step_idx=step) for step in steps)
        self._latest_update_step = max(self._latest_update_step, trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Count updates; let the averages follow the weights once more, where `should_update` says so."""
        self._count(trainer)
        if self.should_update(epoch_idx=trainer.current_epoch):
            self._follow(trainer)

    def _follow(self, trainer: Any) -> None:
        """Let the averages follow the weights of now."""
        averages, of = self._averages(trainer), trainer.gluon_trainer
        if trainer.engines.mode == "eager":
            averages.inputs(of, of.names)  # those of compiled steps are of what these update
        averages.follow(of, self.decay_at(self._updates))
        self._updates += 1

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the averages in the place of the weights."""
        self._count(trainer)
        if trainer.state.fn == "fit" and self._updates and self._shown is None:
            self._shown = trainer.averaged_weights()
            self._shown.__enter__()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the weights back."""
        self._hide()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put the weights back."""
        self._hide()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Let the averages be the weights from now on."""
        self._hide()
        self._count(trainer)
        if not self._updates:
            return
        parameters = trainer.gluon_trainer.params
        with trainer.averaged_weights():
            values = [each.data().asnumpy() for each in parameters]
        for each, value in zip(parameters, values, strict=True):
            each.set_data(value)

    def _hide(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.__exit__(None, None, None)

    def state_dict(self) -> dict[str, Any]:
        """How many weights the averages are of; the averages themselves are in the checkpoint of the step."""
        return {"latest_update_step": self._latest_update_step, "updates": self._updates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given."""
        self._latest_update_step, self._updates = state_dict["latest_update_step"], state_dict["updates"]


class EMAWeightAveraging(WeightAveraging):
    """Exponential moving averages of the weights, in the compiled step: decay average + (1 - decay) weight.

    They follow each `update_every_n_steps`-th update from `update_starting_at_step` on, and the weights at the end of
    each epoch from `update_starting_at_epoch` on. The first average is the weights after the first of these. They stand
    in for the weights in validations, and are the weights when the training ends.

    >>> EMAWeightAveraging(decay=0.9, update_every_n_steps=2).should_update(step_idx=3)
    False

    Raises:
        MisconfigurationException: a decay that is not from 0 to below 1; an argument of PyTorch's AveragedModel.
    """

    def __init__(
        self,
        device: Any = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(device, use_buffers, **kwargs)
        if self._average is not None:
            message = f"{type(self).__name__}: its decay and an averaging function"
            raise misconfigured(message, help="WeightAveraging(avg_fn=...)")
        if not 0 <= decay < 1:
            raise misconfigured(f"EMAWeightAveraging(decay={decay!r})", help="from 0 to below 1, as 0.999")
        if update_every_n_steps < 1:
            raise misconfigured(f"EMAWeightAveraging(update_every_n_steps={update_every_n_steps})", help="1 or more")
        self.decay, self.update_every_n_steps = decay, update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Do the averages follow the update of this number, from 0 on, or the weights at the end of this epoch?"""
        if epoch_idx is not None and self.update_starting_at_epoch is not None:
            return epoch_idx >= self.update_starting_at_epoch
        if step_idx is None or step_idx % self.update_every_n_steps:
            return False
        return self.update_starting_at_step is None or step_idx >= self.update_starting_at_step

    def decay_at(self, updates: int) -> float:
        """The decay for an update, where the averages are of so many weights already; 0 for none.

        >>> EMAWeightAveraging(decay=0.9).decay_at(0), EMAWeightAveraging(decay=0.9).decay_at(5)
        (0.0, 0.9)
        """
        return self.decay if updates else 0.0

    def idle_batches(self, trainer: Any) -> float:
        """All after the first update where each is followed; else none, since the next decay may be another one."""
        own = type(self).should_update is not EMAWeightAveraging.should_update
        own = own or type(self).decay_at is not EMAWeightAveraging.decay_at
        steady = self._updates > 0 and self.update_every_n_steps == 1
        steady = steady and trainer.step is not None and self._averages(trainer).decay == self.decay
        return math.inf if steady and not own else 0.0


def _function(average: Any, of_lists: Any) -> Callable[[Any, Any, Any], Any] | None:
    """The average after an update, of the average, the weight and the number of updates before it; None: the mean."""
    if of_lists is None:
        of_each: Callable[[Any, Any, Any], Any] | None = average
        return of_each

    def of_one(average: Any, weight: Any, updates: Any) -> Any:
        averages = [average.clone()]
        of_lists(averages, [weight], updates)
        return averages[0]

    return of_one


def _decay(average: Callable[[Any, Any, Any], Any], updates: int) -> float:
    """The decay by which a function averages, found by calling it.

    Raises:
        MisconfigurationException: it is another kind of average.
    """
    torch = import_whole("torch")

    def of(before: float, weight: float) -> float:
        numbers = torch.tensor([before], dtype=torch.float64), torch.tensor([weight], dtype=torch.float64)
        return float(average(*numbers, torch.tensor(updates)))

    decay = of(1.0, 0.0)
    if not math.isclose(of(0.0, 1.0), 1 - decay, abs_tol=1e-6) or not math.isclose(
        of(3.0, 5.0), 3 * decay + 5 * (1 - decay), abs_tol=1e-5
    ):
        message = "WeightAveraging(avg_fn=...): the function is no decay average + (1 - decay) weight"
        raise misconfigured(message, help="EMAWeightAveraging(decay=0.999), or override decay_at")
    return decay
