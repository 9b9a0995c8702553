"""What `configure_optimizers` gives: optimizers, and schedulers with the interval at which they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from gluongraph.errors import warn
from gluongraph.gluon.torch_trainer import can_take_over, is_of_torch, why_unknown
from gluongraph.gluon.trainer import Trainer as GluonTrainer
from gluongraph.lightning.errors import misconfigured
from gluongraph.optimizer import Optimizer

FORMS = (
    "an optimizer, a list of them, ([optimizers], [schedulers]), or"
    ' {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": name}'
)


@dataclass
class LRSchedulerConfig:
    """A scheduler, and when it is stepped: every `frequency` epochs or updates."""

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


@dataclass
class Configured:
    """Optimizers, as they were given, and the schedulers."""

    optimizers: list[Any]
    schedulers: list[LRSchedulerConfig]


def configured(given: Any, manual: bool) -> Configured:
    """Optimizers and schedulers of what `configure_optimizers` gave.

    Raises:
        MisconfigurationException: it has none of the forms; several optimizers without manual optimization; a scheduler
            that is none, at an interval that is none, or without the metric that it needs.
    """
    if given is None:
        warn("configure_optimizers gave None: nothing is trained")
        return Configured([], [])
    optimizers, schedulers, monitor = _parts(given)
    if len(optimizers) > 1 and not manual:
        message = f"configure_optimizers gave {len(optimizers)} optimizers, with automatic optimization"
        help = "self.automatic_optimization = False, and manual_backward and optimizer.step() in training_step"
        raise misconfigured(message, help=help)
    return Configured(optimizers, [_scheduler(each, monitor, optimizers, manual) for each in schedulers])


def is_optimizer(given: Any) -> bool:
    """Is it an optimizer of torch.optim, a gluon.Trainer, or an optimizer of mx.optimizer?"""
    return isinstance(given, (GluonTrainer, Optimizer)) or (not isinstance(given, (list, tuple)) and is_of_torch(given))


def _parts(given: Any) -> tuple[list[Any], list[Any], str | None]:
    """Optimizers, schedulers, and the metric to be monitored."""
    if is_optimizer(given):
        return [given], [], None
    if isinstance(given, dict):
        _check_dict(given)
        return [given["optimizer"]], [given["lr_scheduler"]] if "lr_scheduler" in given else [], given.get("monitor")
    if isinstance(given, (list, tuple)):
        if len(given) == 2 and isinstance(given[0], list) and all(map(is_optimizer, given[0])):
            schedulers = given[1] if isinstance(given[1], list) else [given[1]]
            return given[0], schedulers, None
        if given and all(isinstance(each, dict) for each in given):
            for each in given:
                _check_dict(each)
            return (
                [each["optimizer"] for each in given],
                [e["lr_scheduler"] for e in given if "lr_scheduler" in e],
                None,
            )
        if given and all(map(is_optimizer, given)):
            return list(given), [], None
    raise misconfigured(f"configure_optimizers gave {_shown(given)}", help=f"give {FORMS}")


def _shown(given: Any) -> str:
    if isinstance(given, (list, tuple)):
        return f"a {type(given).__name__} of {', '.join(type(each).__name__ for each in given) or 'nothing'}"
    return f"{type(given).__name__}: {given!r}"


def _check_dict(given: Mapping[str, Any]) -> None:
    if strange := sorted(given.keys() - {"optimizer", "lr_scheduler", "monitor"}):
        warn(f"configure_optimizers gave a dict with {', '.join(strange)}, which mean nothing")
    if not is_optimizer(given.get("optimizer")):
        raise misconfigured(
            f'configure_optimizers gave a dict with "optimizer": {given.get("optimizer")!r}', help=FORMS
        )


def _scheduler(given: Any, monitor: str | None, optimizers: list[Any], manual: bool) -> LRSchedulerConfig:
    known = {field.name for field in fields(LRSchedulerConfig)}
    if isinstance(given, dict):
        if strange := sorted(given.keys() - known):
            warn(f"the scheduler's dict has {', '.join(strange)}, which mean nothing; there are {', '.join(known)}")
        if "scheduler" not in given:
            raise misconfigured('a scheduler\'s dict without the key "scheduler"', help='{"scheduler": scheduler, ...}')
        made = LRSchedulerConfig(**{name: value for name, value in given.items() if name in known})
    else:
        made = LRSchedulerConfig(given)
    plateau = type(made.scheduler).__name__ == "ReduceLROnPlateau"
    made.reduce_on_plateau = made.reduce_on_plateau or plateau
    made.monitor = made.monitor or monitor
    if made.interval not in ("epoch", "step"):
        raise misconfigured(f'a scheduler\'s interval is "epoch" or "step", not {made.interval!r}')
    if not isinstance(made.frequency, int) or isinstance(made.frequency, bool) or made.frequency < 1:
        message = f"a scheduler's frequency is a whole number from 1 on, not {made.frequency!r}"
        raise misconfigured(message, help="how many epochs, or updates, are between its steps")
    if not hasattr(made.scheduler, "step") or is_optimizer(made.scheduler):
        raise misconfigured(f"{type(made.scheduler).__name__} is no scheduler", help="of torch.optim.lr_scheduler")
    if made.reduce_on_plateau and made.monitor is None and not manual:
        help = '{"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}'
        raise misconfigured("ReduceLROnPlateau without the metric that it looks at", help=help)
    owner = getattr(made.scheduler, "optimizer", None)
    if owner is not None and all(owner is not each for each in optimizers):
        raise misconfigured(f"the optimizer of {type(made.scheduler).__name__} is none that configure_optimizers gave")
    return made


class OwnUpdates(Optimizer):
    """In place of optimizers of PyTorch's that make the updates of eager steps themselves, and keep their states."""

    def rule(self, w: Any, g: Any, state: Any, s: Any) -> Any:
        """None: there are no updates here."""
        raise misconfigured("optimizers of PyTorch's make these updates", help="trainer.fit(...)")


def gluon_trainer(
    optimizers: list[Any], module: Any, how: dict[str, Any], parameters: Mapping[str, Any] | None
) -> GluonTrainer:
    """The gluon.Trainer that updates as these optimizers do; `how` are its arguments about ranks, if there are
    several. Where steps are eager, and PyTorch's optimizers are other ones than it knows, it holds the `parameters` of
    the module alone; they are None where steps are compiled.

    Raises:
        MisconfigurationException: steps are compiled, and the formula of an optimizer is not known.
    """
    first = optimizers[0]
    if is_of_torch(optimizers):
        if parameters is None:
            _check_known(optimizers)
        elif not can_take_over(optimizers):
            return GluonTrainer(dict(parameters), OwnUpdates(), **how)
    for each in optimizers:
        if how and isinstance(each, GluonTrainer):
            each.distribute(how.get("strategy"))
    if isinstance(first, GluonTrainer):
        return first
    if isinstance(first, Optimizer):
        return GluonTrainer(module.collect_params(), first, **how)
    return GluonTrainer.from_torch(optimizers if len(optimizers) > 1 else first, **how)


def _check_known(optimizers: list[Any]) -> None:
    """Raise MisconfigurationException for a class of optimizers that a compiled step cannot update by."""
    for each in optimizers:
        if why := why_unknown(each):
            help = "L.Trainer(eager=True), where steps and updates are PyTorch's"
            raise misconfigured(f"a compiled step cannot update by {why}", help=help)


class LightningOptimizer:
    """An optimizer as `self.optimizers()` gives it: its steps are counted, and run the hooks around an update."""

    def __init__(
        self, optimizer: Any, step: Callable[[Any, Callable[[], Any] | None, dict[str, Any]], Any], module: Any
    ):
        self._optimizer, self._step, self._module = optimizer, step, module

    @property  # type: ignore[misc]  # object's can be set, this one only be read: isinstance asks for it
    def __class__(self) -> Any:
        """The optimizer's class, as in Lightning: schedulers ask whether they are given an optimizer."""
        return type(self._optimizer)

    @property
    def optimizer(self) -> Any:
        """The optimizer itself."""
        return self._optimizer

    def step(self, closure: Any = None, **how: Any) -> Any:
        """One update; a closure computes the gradients before. Of a gluon.Trainer: step(batch_size)."""
        return self._step(self._optimizer, closure, how)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Within: parameters of other optimizers need no gradients."""
        self._module.toggle_optimizer(self)
        try:
            yield
        finally:
            self._module.untoggle_optimizer(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)
