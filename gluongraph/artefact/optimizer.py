"""The optimizer of an exported step: scalars from tapes, compiled formula; its Python class is not needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gluongraph.artefact import update_scalars
from gluongraph.errors import FormatError, MXNetError, with_user_location
from gluongraph.formulas import Tape
from gluongraph.ir.graph import TensorType
from gluongraph.lr_scheduler import LRScheduler
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.base import MASTER
from gluongraph.optimizer.counting import Index

Shapes = Mapping[TensorType, Mapping[str, TensorType]]  # type of a weight -> its states


class ExportedSchedule(LRScheduler):
    """A schedule as a tape; its settings are attributes, and what is written into them counts."""

    def __init__(self, told: Mapping[str, Any]):
        vars(self).update(told.get("settings", {}))
        self._tape: Tape | None = None  # None where it could not be written down
        self._state: Any = told.get("state")
        self._others: Callable[[], Mapping[str, float]] = dict  # the settings of the optimizer
        if "state" in told:
            vars(self).update(state_dict=lambda: self._state, load_state_dict=self._load)

    def _load(self, state: Any) -> None:
        self._state = state

    def __call__(self, num_update: int) -> float:
        if self._tape is None:
            name = type(self).__name__
            message = f"the schedule {name} is Python, and the artefact does not hold it"
            help = "trainer.set_learning_rate(rate) before each step, or mx.load(path, lr_scheduler=schedule)"
            raise MXNetError(with_user_location(message, help=help))
        own = {update_scalars.SCHEDULE + name: float(v) for name, v in update_scalars.settings_of(self).items()}
        return self._tape.run({**self._others(), **own, update_scalars.UPDATES: float(num_update)})[update_scalars.RATE]


class ExportedOptimizer(Optimizer):
    """An optimizer that counts, and whose numbers are on tapes. A subclass is made with its name for each artefact,
    since checkpoints and messages call optimizers by their classes' names."""

    made_by_caller: ClassVar[bool] = False  # does the caller tell the rate?
    _is_elementwise: ClassVar[bool | None] = True  # where that matters, it has been found out before the export

    def __init__(
        self, about: Mapping[str, Any], told: Mapping[str, Any], states: Shapes, schedule: Callable[[int], float] | None
    ):
        super().__init__(lr_scheduler=_schedule(about["schedule"], told["scheduler"]))
        vars(self).update(told["settings"])
        self.lr, self.rescale_grad = told["lr"], about["scale"]
        self.begin_num_update = about["begin_num_update"]
        self.multi_precision = about["multi_precision"]
        self._index_update_count.begin = self._index_update_count.largest = self.begin_num_update
        vars(self).update(told["carried"])
        self._states, self._by_caller = states, schedule
        self._rate_told = schedule is not None
        self._counting = None if about["count"] is None else Tape.from_data(about["count"])
        if isinstance(self.lr_scheduler, ExportedSchedule) and not self.made_by_caller:
            self.lr_scheduler._tape = Tape.from_data(about["learning_rate"])
            self.lr_scheduler._others = self._settings

    # -- what the compiled code takes of it

    @property
    def has_formula(self) -> bool:
        return True

    @property
    def clips(self) -> bool:
        return False

    def structure(self) -> tuple[Any, ...]:
        return (type(self),)

    def state_types(self, weight: TensorType) -> dict[str, TensorType]:
        return dict(self._states.get(weight, {}))

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {name: type for name, type in self.state_types(weight).items() if name != MASTER}

    def scalars(self, index: Index) -> dict[str, float]:
        help = "call the step that was loaded"
        raise MXNetError(
            with_user_location(f"the formula of {type(self).__name__} is compiled, and does nothing else", help=help)
        )

    # -- its numbers

    def variable(self, name: str) -> float:
        """The value of a variable of the tapes."""
        part, _, rest = name.partition(":")
        if part == "t":
            return float(self.t(int(rest)))
        if part in ("lr_mult", "wd_mult"):
            return float(self.multipliers(int(rest))[part == "wd_mult"])
        if name == update_scalars.UPDATES:
            return float(self.num_update)
        if name == update_scalars.RESCALE:
            return float(self.rescale_grad)
        if name == update_scalars.SETTING + "lr" and self.made_by_caller:
            return float(self.learning_rate)
        part, _, rest = name.partition(".")
        owner = self.lr_scheduler if part == "schedule" else self
        if part not in ("schedule", "optimizer", "carried") or not hasattr(owner, rest):
            raise FormatError(f"the artefact's formulas read {name!r}, which nobody tells")
        value = getattr(owner, rest)
        return math.nan if value is None else float(value)

    def _settings(self) -> dict[str, float]:
        return {update_scalars.SETTING + name: float(value) for name, value in update_scalars.settings_of(self).items()}

    def count(self, indices: tuple[Index, ...]) -> None:
        before = float(self.num_update)
        super().count(indices)
        if self._counting is not None:
            known = {name: self.variable(name) for name in self._counting.variables if name != update_scalars.BEFORE}
            made = self._counting.run({**known, update_scalars.BEFORE: before})
            vars(self).update({name.removeprefix(update_scalars.CARRIED): value for name, value in made.items()})

    # -- the rate

    @property
    def learning_rate(self) -> float:
        if not self.made_by_caller:
            return super().learning_rate
        if self._by_caller is not None:
            return self._by_caller(self.num_update)
        if not self._rate_told and callable(self.lr_scheduler):
            return self.lr_scheduler(self.num_update)  # raises: nobody has told it
        return self.lr

    def set_learning_rate(self, lr: float) -> None:
        if not self.made_by_caller or self._by_caller is not None:
            super().set_learning_rate(lr)
        self.lr, self._rate_told = lr, True


def _schedule(how: Mapping[str, Any] | None, told: Mapping[str, Any] | None) -> ExportedSchedule | None:
    if how is None or told is None:
        return None
    made: ExportedSchedule = type(how["class"], (ExportedSchedule,), {})(told)
    return made


def optimizer_of(
    about: Mapping[str, Any], told: Mapping[str, Any], states: Shapes, schedule: Callable[[int], float] | None
) -> ExportedOptimizer:
    """The optimizer that an artefact tells of: `about` it, and its progress as `told` in checkpoints.

    Raises:
        MXNetError: a schedule is given, and the artefact has its own, or none.
    """
    by_caller = about["schedule"] is not None and about["schedule"]["by"] == "caller"
    if schedule is not None and not by_caller:
        message = "lr_scheduler is for artefacts whose schedule could not be exported; the rate of this one is known"
        raise MXNetError(with_user_location(message, help="leave it out; trainer.learning_rate tells the rate"))
    attributes = {
        "carried": tuple(told["carried"]),
        "copies": frozenset(about["copies"]),
        "made_by_caller": by_caller,
        "__doc__": f"{about['name']}, as an artefact holds it.",
    }
    made: ExportedOptimizer = type(about["name"], (ExportedOptimizer,), attributes)(about, told, states, schedule)
    return made
