"""Logs learning rates, and momenta and weight decays on demand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.callbacks.looking import logs, until_multiple
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.utilities.rank_zero import rank_zero_warn

Group = Mapping[str, Any]


class LearningRateMonitor(Callback):
    """Log the learning rates of all optimizers: at "step"s that are logged, at the start of each "epoch", or where
    `logging_interval` is None when their schedulers change them.

    They are called "lr-" and the class of the optimizer, as "lr-Adam", or by the `name` of the scheduler; of several
    optimizers of a class the second is "lr-Adam-1", of several groups of parameters "lr-Adam/pg1" or by the `name` of
    the group. `log_momentum` adds "lr-Adam-momentum" (the first of `betas`), `log_weight_decay` "lr-Adam-weight_decay".
    Optimizers of PyTorch's and of Gluon's are read alike.

    >>> monitor = LearningRateMonitor(logging_interval="step", log_momentum=True)
    >>> LearningRateMonitor(logging_interval="batch")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    MisconfigurationException: LearningRateMonitor(logging_interval='batch')

    Raises:
        MisconfigurationException: an interval of another name; later, a Trainer without loggers.
    """

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ):
        if logging_interval not in (None, "step", "epoch"):
            message = f"LearningRateMonitor(logging_interval={logging_interval!r})"
            raise misconfigured(message, help="logging_interval is 'step', 'epoch' or None")
        self.logging_interval = logging_interval
        self.log_momentum, self.log_weight_decay = log_momentum, log_weight_decay
        self.lrs: dict[str, list[float]] = {}
        self.last_momentum_values: dict[str, Any] = {}
        self.last_weight_decay_values: dict[str, Any] = {}

    def idle_batches(self, trainer: Any) -> float:
        """Those before the next step that is logged, where rates are logged at steps."""
        if self.logging_interval == "epoch" or (self.logging_interval is None and not _by_step(trainer)):
            return math.inf
        return until_multiple(trainer.counters.logged_steps, trainer.log_every_n_steps)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Give names to what is logged."""
        if not trainer.loggers:
            message = "LearningRateMonitor with a Trainer that has no logger"
            raise misconfigured(message, help="Trainer(logger=True), or leave it out")
        if self.log_momentum and any(not _has_momentum(each) for each in _optimizers(trainer)):
            rank_zero_warn("log_momentum=True: an optimizer has no momentum, and 0 is logged for it.")
        names = [name for _, _, names in named(trainer) for name in names]
        self.lrs = {name: [] for name in names}
        self.last_momentum_values = {f"{name}-momentum": None for name in names}
        self.last_weight_decay_values = {f"{name}-weight_decay": None for name in names}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Log what is logged at steps."""
        if self.logging_interval != "epoch" and logs(trainer):
            self._log(trainer, "step")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Log what is logged at epochs."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch")

    def _log(self, trainer: Any, interval: str) -> None:
        stats = self._extract_stats(trainer, interval if self.logging_interval is None else "any")
        if stats:
            for logger in trainer.loggers:
                logger.log_metrics(stats, step=trainer.counters.logged_steps)

    def _extract_stats(self, trainer: Any, interval: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for optimizer, each, names in named(trainer):
            self._rename(names)
            if each in (None, interval) or interval == "any":
                for group, name in zip(groups(optimizer), names, strict=False):
                    found |= self._of_group(group, name)
        trainer.metric_log.kept["callback"].update(found)
        return found

    def _of_group(self, group: Group, name: str) -> dict[str, float]:
        found = {name: group["lr"]}
        self.lrs[name].append(group["lr"])
        if self.log_momentum:
            found[f"{name}-momentum"] = group["betas"][0] if "betas" in group else group.get("momentum", 0)
            self.last_momentum_values[f"{name}-momentum"] = found[f"{name}-momentum"]
        if self.log_weight_decay:
            found[f"{name}-weight_decay"] = group["weight_decay"]
            self.last_weight_decay_values[f"{name}-weight_decay"] = group["weight_decay"]
        return found

    def _rename(self, names: Sequence[str]) -> None:
        """Where an optimizer has got further groups, its rates so far are those of the first."""
        for name in names:
            before = name.replace("/pg1", "")
            if name not in self.lrs:
                self.lrs[name] = self.lrs.pop(before) if before != name and before in self.lrs else []


def groups(optimizer: Any) -> list[Group]:
    """The groups of parameters of an optimizer, with "lr", "weight_decay", and "momentum" or "betas".

    >>> from gluongraph import optimizer
    >>> groups(optimizer.Adam(learning_rate=0.5, beta1=0.75, wd=0.25))
    [{'lr': 0.5, 'weight_decay': 0.25, 'betas': (0.75, 0.999)}]
    """
    if hasattr(optimizer, "param_groups"):
        return list(optimizer.param_groups)
    made: dict[str, Any] = {"lr": optimizer.learning_rate, "weight_decay": optimizer.wd}
    if hasattr(optimizer, "beta1"):
        made["betas"] = (optimizer.beta1, optimizer.beta2)
    elif hasattr(optimizer, "momentum"):
        made["momentum"] = optimizer.momentum
    return [made]


def named(trainer: Any) -> Iterator[tuple[Any, str | None, list[str]]]:
    """Each optimizer, the interval of its scheduler (None: it has none) and the names of its groups."""
    counted: Counter[type] = Counter()
    scheduled = []
    for config in trainer.lr_scheduler_configs:
        optimizer = _inner(config.scheduler.optimizer)
        scheduled.append(optimizer)
        yield optimizer, config.interval, _names(optimizer, config.name, counted)
    for optimizer in _optimizers(trainer):
        if not any(optimizer is each for each in scheduled):
            yield optimizer, None, _names(optimizer, None, counted)


def _names(optimizer: Any, given: str | None, counted: Counter[type]) -> list[str]:
    kind = type(optimizer)
    if given is None:
        counted[kind] += 1
    name = f"lr-{kind.__name__}" if given is None else given
    if counted[kind] > 1:
        name = f"{name}-{counted[kind] - 1}"
    own = [group.get("name") for group in groups(optimizer)]
    if len(own) == 1:
        return [f"{name}/{own[0]}" if own[0] else name]
    parts = [each or f"pg{number}" for number, each in enumerate(own, 1)]
    if twice := sorted({part for part in parts if parts.count(part) > 1}):
        raise misconfigured(f"{name}: several groups of parameters are called {twice[0]!r}", help="a name for each")
    return [f"{name}/{part}" for part in parts]


def _inner(optimizer: Any) -> Any:
    """The optimizer within a wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _optimizers(trainer: Any) -> list[Any]:
    return [_inner(each) for each in trainer.optimizers]


def _has_momentum(optimizer: Any) -> bool:
    return any("momentum" in group or "betas" in group for group in groups(optimizer))


def _by_step(trainer: Any) -> bool:
    """Is there a rate that changes at steps, or that no scheduler changes, which is logged at steps and epochs?"""
    return any(interval in (None, "step") for _, interval, _ in named(trainer))
