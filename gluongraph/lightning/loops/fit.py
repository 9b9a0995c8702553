"""The loop of a training: epochs of batches, with validation, schedulers, logging and stopping where they are due."""

from __future__ import annotations

import math
import time
from typing import Any

from gluongraph.errors import pluralize, warn
from gluongraph.lightning.batch import Copied, as_array, flatten, flatten_to_stack, stacked, to_user
from gluongraph.lightning.data.loaders import num_batches
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.hooks import BATCH_HOOKS
from gluongraph.lightning.loops.counters import Counters
from gluongraph.lightning.loops.schedules import step_schedulers

_ENDED = object()  # in place of a batch


class FitLoop:
    """Runs the epochs of a training, from where `counters` are."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.counters = Counters()
        self.loader: Any = None
        self.num_batches: int | float = math.inf
        self.val_check_batch: int | float | None = None
        self._skip_epoch = False
        self._batches_stay = False  # is known that the loader does not write batches over those before?
        self._said_min = False
        self._loaded_epoch = -1
        self.plateau_due = False  # is a step of schedulers left that look at a metric of the last epoch?

    # -- what is to be done

    def setup(self) -> None:
        """Ask for the loader, and find how many batches an epoch has, and after which of them is validated."""
        trainer = self.trainer
        if trainer.limit_train_batches == 0:
            self.num_batches = 0
            return
        self.loader = trainer.data.training()
        self._loaded_epoch = self.counters.epoch
        self.num_batches = trainer.agreed(num_batches(self.loader, trainer.limit_train_batches, "train"))
        self.val_check_batch = self._val_check_batch()
        if trainer.loggers and self.num_batches < trainer.log_every_n_steps and not trainer.fast_dev_run:
            warn(
                f"an epoch has {self.num_batches} batches, and log_every_n_steps={trainer.log_every_n_steps}: nothing"
                " is logged for steps. Give a smaller number to see that"
            )

    def _val_check_batch(self) -> int | float | None:
        trainer, interval = self.trainer, self.trainer.val_check_interval
        if trainer.val_check_seconds is not None:
            return None
        if trainer.val_check_steps is not None:
            self._check_val_check_steps(trainer.val_check_steps)
            return None
        if isinstance(interval, int):
            too_large = interval > self.num_batches and trainer.check_val_every_n_epoch is not None
            if too_large and trainer.limit_val_batches > 0:
                message = f"val_check_interval={interval}, and an epoch has {self.num_batches} batches"
                help = "limit_val_batches=0 for no validation; check_val_every_n_epoch=None counts across epochs"
                raise misconfigured(message, help=help)
            return interval
        if math.isinf(self.num_batches):
            if interval == 1.0:
                return math.inf
            message = f"val_check_interval={interval}, and the loader has no length to take a share of"
            raise misconfigured(message, help="1.0, or a number of batches")
        return max(1, int(self.num_batches * interval))

    def _check_val_check_steps(self, interval: int) -> None:
        """Raise MisconfigurationException where no epoch has so many updates."""
        trainer = self.trainer
        if trainer.check_val_every_n_epoch is None or math.isinf(self.num_batches) or trainer.limit_val_batches == 0:
            return
        steps = math.ceil(self.num_batches / trainer.accumulate_grad_batches)
        if trainer.lightning_module.automatic_optimization and interval > steps:
            message = f'val_check_interval="{interval} steps", and an epoch has {pluralize(steps, "step")}'
            help = "limit_val_batches=0 for no validation; check_val_every_n_epoch=None counts across epochs"
            raise misconfigured(message, help=help)

    @property
    def max_epochs(self) -> int:
        """That of the Trainer: settable, for another call of fit that goes on."""
        return int(self.trainer.max_epochs)

    @max_epochs.setter
    def max_epochs(self, count: int) -> None:
        self.trainer.max_epochs = count

    # Scripts read these of Lightning's loop, or of the loop of an epoch within it.

    @property
    def epoch_loop(self) -> FitLoop:
        """The loop of an epoch, which is this one."""
        return self

    @property
    def global_step(self) -> int:
        """The updates so far."""
        return self.counters.global_step

    @property
    def batch_idx(self) -> int:
        """The number of the batch within the epoch; -1 before the first."""
        return self.counters.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """The number of the batch in all epochs; -1 before the first."""
        return self.counters.batches_seen - 1

    @property
    def max_steps(self) -> int:
        """That of the Trainer."""
        return int(self.trainer.max_steps)

    @property
    def min_steps(self) -> int | None:
        """That of the Trainer."""
        steps: int | None = self.trainer.min_steps
        return steps

    @property
    def min_epochs(self) -> int | None:
        """That of the Trainer."""
        epochs: int | None = self.trainer.min_epochs
        return epochs

    @property
    def max_batches(self) -> int | float:
        """The batches of an epoch; inf where the loader does not know."""
        return self.num_batches

    @property
    def can_stop_early(self) -> bool:
        """Have the least numbers of epochs and steps been made?"""
        trainer = self.trainer
        epochs = self._epochs_run >= trainer.min_epochs if trainer.min_epochs else True
        steps = self.counters.global_step >= trainer.min_steps if trainer.min_steps else True
        return bool(epochs and steps)

    @property
    def _epochs_run(self) -> int:
        return self.counters.epoch

    @property
    def _steps_done(self) -> bool:
        return bool(self.trainer.max_steps != -1 and self.counters.global_step >= self.trainer.max_steps)

    @property
    def done(self) -> bool:
        """Is there nothing more to be done?"""
        trainer = self.trainer
        if self.num_batches == 0:
            trainer.say("`Trainer.fit` stopped: No training batches.")
            return True
        if self._steps_done:
            trainer.say(f"`Trainer.fit` stopped: `max_steps={trainer.max_steps}` reached.")
            return True
        if trainer.max_epochs != -1 and self._epochs_run >= trainer.max_epochs:
            trainer.say(f"`Trainer.fit` stopped: `max_epochs={trainer.max_epochs}` reached.")
            return True
        return bool(trainer.should_stop and self.can_stop_early)

    # -- epochs

    def run(self) -> None:
        """Run all epochs that are left."""
        trainer = self.trainer
        self.setup()
        self.counters.begun = False  # by a call that an error has ended
        if self.plateau_due:  # of the epoch at whose end the checkpoint was saved
            step_schedulers(trainer, "epoch", self.counters.epoch, plateau=True)
            self.plateau_due = False
        if self.num_batches == 0 or self.done:
            return
        trainer.last_validation = time.monotonic()
        trainer.setup_validation()
        if self.counters.batch_idx < 0:
            trainer.data.finish_epoch(self.loader, self.counters.epoch, self.num_batches)
        trainer.hooks.call("on_train_start")
        while not self.done:
            self._epoch()
        trainer.hooks.call("on_train_end")

    def _epoch(self) -> None:
        trainer, counters = self.trainer, self.counters
        if trainer.reloads(self):
            self.setup()
        resumed = counters.batch_idx >= 0
        batches = trainer.data.epoch(self.loader, counters.epoch, self.num_batches)
        if not resumed:
            counters.steps_before_epoch = counters.global_step
            trainer.hooks.call("on_train_epoch_start")
        trainer.metric_log.on_step = True
        self._skip_epoch, counters.is_last_batch, self._batches_stay = False, False, False
        with trainer.profiler.profile("run_training_epoch"):
            if resumed:
                self._resume_batch(batches)
            if not self._done_within():
                self._run_batches(batches)
        if counters.batch_idx < 0 and not self._skip_epoch and not trainer.should_stop:
            raise misconfigured("the training loader gave no batch", help="give a loader that has some")
        self._end_epoch()

    def _end_epoch(self) -> None:
        trainer, counters, log = self.trainer, self.counters, self.trainer.metric_log
        counters.due = "epoch_end"
        log.refresh(True)
        log.on_step = False
        trainer.synchronize_metrics(log.store)
        trainer.hooks.call_callbacks("on_train_epoch_end", monitoring=False)
        trainer.hooks.call_module("on_train_epoch_end")
        trainer.hooks.call_callbacks("on_train_epoch_end", monitoring=True)
        log.refresh()
        if self.at_last_batch:
            step_schedulers(trainer, "epoch", counters.epoch + 1, plateau=True)
        counters.logged_steps -= 1
        log.write(log.store.metrics(False)["log"])
        counters.logged_steps += 1
        log.store.reset()
        counters.epoch += 1
        counters.batch_idx, counters.due = -1, ""

    # -- batches

    def _run_batches(self, batches: Any) -> None:
        """Run the batches of an epoch, several in one call where nobody looks in between."""
        counters = self.counters
        while True:
            count = self._free() if self._joins else 1
            if count < 2 or not self._run_stack(batches, count):
                if (batch := next(batches, _ENDED)) is _ENDED:
                    break
                if count < 2:
                    counters.begin_batch()
                    counters.is_last_batch = batches.is_last
                    self._advance(batch)
                else:
                    self._run_joined(batch, batches, count)
            self.trainer.termination.check()
            if self._skip_epoch or self._done_within():
                break

    def _done_within(self) -> bool:
        """Does the epoch end after this batch?"""
        if self._steps_done or self.at_last_batch:
            return True
        if self.trainer.should_stop:
            if self.can_stop_early:
                return True
            if not self._said_min:
                self._said_min = True
                self.trainer.say(
                    f"Trainer was signaled to stop but the required `min_epochs={self.trainer.min_epochs!r}` or"
                    f" `min_steps={self.trainer.min_steps!r}` has not been met. Training will continue..."
                )
        return False

    @property
    def at_last_batch(self) -> bool:
        """Was the last batch that of an epoch's end?"""
        return self.counters.is_last_batch or self.counters.batch_idx + 1 == self.num_batches

    @property
    def _accumulates(self) -> bool:
        """Are the gradients of this batch added, without an update after it?"""
        every = self.trainer.accumulate_grad_batches
        return (self.counters.batch_idx + 1) % every != 0 and not self.at_last_batch

    def _advance(self, batch: Any) -> None:
        """One batch, with all that is due around it."""
        trainer, counters, hooks = self.trainer, self.counters, self.trainer.hooks
        trainer.batch = batch = trainer.transfer(batch, 0)
        index = counters.batch_idx
        hooks.call_callbacks("on_train_batch_start", batch, index)
        if hooks.overridden("on_train_batch_start") and hooks.call_module("on_train_batch_start", batch, index) == -1:
            self._skip_epoch, trainer.batch = True, None
            counters.is_last_batch, counters.begun = True, False
            step_schedulers(trainer, "step", index + 1, plateau=False)
            step_schedulers(trainer, "epoch", counters.epoch + 1, plateau=False)
            return
        accumulates = self._accumulates
        counters.steps_before_batch = counters.global_step
        with trainer.measured("run_training_batch"):
            result = trainer.engines.train(batch, index, accumulates)
        counters.begun = False
        if not accumulates:
            step_schedulers(trainer, "step", index + 1, plateau=False)
        if self.at_last_batch:
            step_schedulers(trainer, "epoch", counters.epoch + 1, plateau=False)
        counters.due = "batch_end"
        self._end_batch(result, batch, index)
        trainer.batch = None
        self._after_batch(accumulates)

    def _after_batch(self, accumulates: bool) -> None:
        """What is due after on_train_batch_end: logging, validation, the count of steps. `counters.due` says what of it
        is left, for checkpoints that are saved in between."""
        counters = self.counters
        if counters.due == "batch_end":
            if not accumulates:
                self._log_step()
            counters.due = "validation"
            if self._validates():
                self._validate()
        counters.due = ""
        if not accumulates:
            step_schedulers(self.trainer, "step", counters.batch_idx + 1, plateau=True)
            counters.logged_steps += 1

    def _resume_batch(self, batches: Any) -> None:
        """Do what was left of the batch after which a checkpoint was saved."""
        batches.restore()
        self.counters.is_last_batch = batches.is_last
        if self.counters.due:
            self._after_batch(self._accumulates)

    def _end_batch(self, result: Any, batch: Any, index: int) -> None:
        hooks, name = self.trainer.hooks, "on_train_batch_end"
        if hooks.anybody(name):
            outputs = outputs_of(result, self.trainer.is_torch, self.trainer.accumulate_grad_batches)
            if not hooks.overridden(name):
                hooks.call_callbacks(name, outputs, batch, index)
                return
            hooks.call_callbacks(name, outputs, batch, index, monitoring=False)
            hooks.call_module(name, outputs, batch, index)  # before a checkpoint: it cannot be made up for after one
            hooks.call_callbacks(name, outputs, batch, index, monitoring=True)

    def _log_step(self) -> None:
        trainer = self.trainer
        if not trainer.loggers or not trainer.log_every_n_steps:
            return
        due = (self.counters.logged_steps + 1) % trainer.log_every_n_steps == 0
        if due or trainer.should_stop or trainer.fast_dev_run:
            trainer.metric_log.write(trainer.metric_log.store.metrics(True)["log"])

    # -- validation

    def validates_in_epoch(self) -> bool:
        """Is this epoch one that is validated?"""
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and (every is None or (self.counters.epoch + 1) % every == 0)

    def _validates(self) -> bool:
        """Is a validation due after this batch?"""
        trainer, counters = self.trainer, self.counters
        if not self.validates_in_epoch():
            return False
        last = self.at_last_batch
        if last and self.val_check_batch == math.inf:
            return True
        if trainer.should_stop and self.can_stop_early:
            return True
        if trainer.val_check_seconds is not None:
            return bool(time.monotonic() - trainer.last_validation >= trainer.val_check_seconds)
        if trainer.val_check_steps is not None:
            now, before = self._steps_of(counters.global_step), self._steps_of(counters.steps_before_batch)
            return bool(now // trainer.val_check_steps > before // trainer.val_check_steps)
        if isinstance(trainer.limit_train_batches, int) and self.val_check_batch == math.inf:
            return (counters.batch_idx + 1) % trainer.limit_train_batches == 0
        if self.val_check_batch in (math.inf, None):
            return last
        number = counters.batches_seen if trainer.check_val_every_n_epoch is None else counters.batch_idx + 1
        return number % self.val_check_batch == 0

    def _steps_of(self, step: int) -> int:
        """The number of a step in the epoch, or in the training, as intervals of validation count."""
        return step if self.trainer.check_val_every_n_epoch is None else step - self.counters.steps_before_epoch

    def _validate(self) -> None:
        trainer = self.trainer
        if not self._accumulates and trainer.hooks.overridden("on_validation_model_zero_grad"):
            trainer.hooks.call_module("on_validation_model_zero_grad")
        trainer.metric_log.refresh(True)
        trainer.validate_in_fit()

    # -- several batches in one call

    @property
    def _joins(self) -> bool:
        """May several batches be one call: does nobody look between them?"""
        trainer = self.trainer
        if not trainer.engines.joins or trainer.should_stop or math.isinf(self.num_batches):
            return False
        if trainer.accumulate_grad_batches != 1:  # which a callback may change between epochs
            return False
        return not any(trainer.hooks.overridden(name) for name in BATCH_HOOKS)

    def _free(self) -> int:
        """How many of the next batches nobody looks at: the last of them may be one that is looked at after."""
        trainer, counters = self.trainer, self.counters
        limits = [float(trainer.engines.joins), trainer.hooks.idle_batches(), self.num_batches - counters.batch_idx - 2]
        if trainer.max_steps != -1:
            limits.append(trainer.max_steps - counters.global_step)
        if trainer.loggers and trainer.log_every_n_steps and trainer.metric_log.store.logs_steps:
            every = trainer.log_every_n_steps
            limits.append(every - 1 - counters.logged_steps % every)
        if self.validates_in_epoch():
            if trainer.val_check_steps is not None:
                steps = self._steps_of(counters.global_step)
                limits.append(trainer.val_check_steps - 1 - steps % trainer.val_check_steps)
            elif trainer.val_check_seconds is not None or self.val_check_batch is None:
                limits.append(1)
            elif not math.isinf(self.val_check_batch):
                number = counters.batches_seen if trainer.check_val_every_n_epoch is None else counters.batch_idx + 1
                limits.append(self.val_check_batch - 1 - number % self.val_check_batch)
        return int(min(limits)) if min(limits) < 2**31 else 2**31

    def _run_stack(self, source: Any, count: int) -> bool:
        """Train on so many batches in one call, if the loader gives them in one array."""
        trainer = self.trainer
        if trainer.cast is not None or (stack := source.stack(count)) is None:
            return False
        arrays, structure = flatten(stack)
        with trainer.measured("run_training_batch"):
            trainer.engines.train_many(arrays, structure, count)
        self._count(count)
        return True

    def _count(self, batches: int) -> None:
        self.counters.batch_idx += batches
        self.counters.batches_seen += batches
        self.counters.logged_steps += batches

    def _run_joined(self, batch: Any, source: Any, count: int) -> None:
        """Train on this batch and those that follow, `count` of one type or fewer, in one call.

        The first time in an epoch it is seen whether the loader gives the same memory for each batch, or for some in
        turn. Then the first of those that are at hand is trained on as it was, and batches are read one by one.
        """
        trainer, counters = self.trainer, self.counters
        arrays, structure = flatten_to_stack(trainer.transfer(batch, 0))
        many, kinds = [arrays], _types(arrays)
        first, self._batches_stay = None if self._batches_stay else Copied(arrays), True
        rest: Any = None
        for following in source:
            if first is not None and first.is_overwritten():
                many = [first.copies, *([as_array(array) for array in each] for each in many[1:])]
                trainer.engines.stop_joining()
                rest = following
                break
            arrays, other = flatten_to_stack(trainer.transfer(following, 0))
            if other != structure or _types(arrays) != kinds:
                rest = following
                break
            many.append(arrays)
            if len(many) == count:
                break
        stacks = [stacked(each) for each in zip(*many, strict=True)]
        with trainer.measured("run_training_batch"):
            trainer.engines.train_many(stacks, structure, len(many))
        self._count(len(many))
        if rest is not None:
            counters.begin_batch()
            self._advance(rest)


def _types(arrays: list[Any]) -> list[Any]:
    return [(a.shape, a.dtype) for a in arrays]


def outputs_of(result: Any, torch: bool, accumulated: int = 1) -> Any:
    """What on_train_batch_end gets: a dict with "loss", among what training_step gave; None where that gave None. The
    loss is divided by the number of batches to an update, as in Lightning."""
    if result is None:
        return None
    loss, given = result
    made = dict(given) if isinstance(given, dict) else {}
    return to_user({**made, "loss": loss if accumulated == 1 or loss is None else loss / accumulated}, torch)
