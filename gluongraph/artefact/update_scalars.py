"""The scalars of an update, from an optimizer's Python to tapes that run without Python."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.formulas import NotAFormula, Tape, Trace
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.counting import Index
from gluongraph.tracing.ema import DECAY, REST
from gluongraph.tracing.grad_norm import LIMIT
from gluongraph.tracing.optimizer_updates import SCALAR, ScalarTable

UPDATES, RATE, SETTING, SCHEDULE, CARRIED = "num_update", "learning_rate", "optimizer.", "schedule.", "carried."
T, LR_MULT, WD_MULT, BEFORE, RESCALE = "t:", "lr_mult:", "wd_mult:", "before", "rescale"
CLIP, EMA = "clip_norm", "ema"
TOLD_APART = ("rescale_grad", "begin_num_update")  # numbers of an optimizer that are no settings
PROBES = (0, 1, 2, 3, 7, 50, 999, 12345)  # updates ahead at which a tape is held against the program it came from


def settings_of(owner: object) -> dict[str, float]:
    """The public attributes that are numbers; of an optimizer its settings."""
    values = owner.settings() if isinstance(owner, Optimizer) else getattr(owner, "__dict__", {})
    return {
        name: float(value)
        for name, value in values.items()
        if not name.startswith("_")
        and isinstance(value, (int, float, np.number))
        and not isinstance(value, (bool, np.bool_))
    }


def variables_of(optimizer: Optimizer, schedule: bool) -> dict[str, float]:
    """The settings that tapes of this optimizer read, by the names of variables."""
    carried = set(optimizer.carried)
    own = {k: v for k, v in settings_of(optimizer).items() if k not in TOLD_APART and k not in carried}
    found = {SETTING + name: float(value) for name, value in own.items()}
    if schedule:
        found |= {SCHEDULE + name: float(v) for name, v in settings_of(optimizer.lr_scheduler).items()}
    return found


class _Counting:
    """Stands for the counts of an optimizer: t of each parameter, and their maximum before and after an update."""

    def __init__(self, trace: Trace, counted: bool):
        self.trace = trace
        self.largest = trace.variable(UPDATES if counted else BEFORE)

    def get(self, index: Index, default: Any = None) -> Any:
        return self.trace.variable(f"{T}{index}")

    def count(self, indices: tuple[Index, ...]) -> None:
        self.largest = self.trace.variable(UPDATES)


class Probe:
    """A copy of an optimizer whose numbers are symbols."""

    def __init__(self, optimizer: Optimizer, schedule: bool, counted: bool = True):
        settings = variables_of(optimizer, schedule)
        # A rate or decay of its own is no reason for another artefact: what branches on it is traced both ways.
        self.trace = trace = Trace({k: v for k, v in settings.items() if k not in (SETTING + "lr", SETTING + "wd")})
        self.optimizer: Any = copy.copy(optimizer)
        own = vars(self.optimizer)
        own.update({name: trace.variable(CARRIED + name) for name in optimizer.carried})
        own["rescale_grad"] = trace.variable(RESCALE)
        own["_index_update_count"] = _Counting(trace, counted)
        own["param_dict"] = _Parameters(trace, optimizer.param_dict)
        own["lr_scheduler"] = copy.copy(optimizer.lr_scheduler) if schedule else None
        for variable in settings:
            part, _, name = variable.partition(".")
            if part == "optimizer":
                self.optimizer.set_settings({name: trace.variable(variable)})
            else:
                vars(own["lr_scheduler"])[name] = trace.variable(variable)


class _Parameters(dict[Index, Any]):
    """index -> a parameter whose multipliers are symbols."""

    def __init__(self, trace: Trace, known: Mapping[Index, Any]):
        for i, p in known.items():
            mults = trace.variable(f"{LR_MULT}{i}"), trace.variable(f"{WD_MULT}{i}")
            self[i] = SimpleNamespace(name=getattr(p, "name", i), lr_mult=mults[0], wd_mult=mults[1])


@dataclass(frozen=True)
class Numbers:
    """All tapes of an optimizer. `by_formula`: is its schedule, if it has one, among them?"""

    optimizer: Optimizer
    by_formula: bool

    def rate(self) -> Tape:
        """What `learning_rate` tells."""
        probe = Probe(self.optimizer, self.by_formula)
        return probe.trace.traced(lambda: {RATE: probe.optimizer.learning_rate})

    def counting(self) -> Tape | None:
        """What counting an update makes of the numbers that are carried from one to the next."""
        if not self.optimizer.carried:
            return None
        probe = Probe(self.optimizer, self.by_formula, counted=False)

        def counted() -> dict[str, Any]:
            made = copy.copy(probe.optimizer)
            vars(made)["_index_update_count"] = _Counting(probe.trace, counted=False)
            made.count((0,))
            return {CARRIED + name: getattr(made, name) for name in self.optimizer.carried}

        return probe.trace.traced(counted)

    def scalars(self, table: ScalarTable, others: Sequence[str]) -> Tape:
        """The scalars of an update by the names of graph inputs: those of the optimizer's table, and the step's own."""
        probe = Probe(self.optimizer, self.by_formula)
        steps = _of_the_step(probe.trace)

        def numbers() -> dict[str, Any]:
            values = table.values(probe.optimizer)
            own = {SCALAR + key: value for key, value in zip(table.keys, values, strict=True)}
            return own | {name: steps[name]() for name in others}

        return probe.trace.traced(numbers)


def _of_the_step(trace: Trace) -> dict[str, Callable[[], Any]]:
    """The scalars that are not the optimizer's, as `TrainStep` computes them."""
    return {
        DECAY: lambda: trace.variable(EMA),
        REST: lambda: 1.0 - trace.variable(EMA),
        LIMIT: lambda: trace.variable(CLIP) / trace.variable(RESCALE),
    }


def numbers_of(optimizer: Optimizer) -> Numbers:
    """The tapes of an optimizer. Where its schedule is no formula of num_update alone, the caller has to tell the rate.

    Raises:
        MXNetError: the optimizer's own numbers are no formulas.
    """
    scheduled = optimizer.lr_scheduler is not None
    numbers = Numbers(optimizer, scheduled and _is_formula(optimizer))
    try:
        numbers.counting()
    except NotAFormula as error:
        raise _unwritable(optimizer, error) from error
    return numbers


def _unwritable(optimizer: Optimizer, why: object) -> MXNetError:
    name = type(optimizer).__name__
    message = f"the numbers of {name} cannot be written down as formulas: {why}"
    help = "in scalars(), use gluongraph.formulas for float and math, and name what lasts between updates in `carried`"
    return MXNetError(with_user_location(message, help=help))


def _is_formula(optimizer: Optimizer) -> bool:
    """Can the schedule be traced, and does its tape tell what it tells?"""
    if hasattr(optimizer.lr_scheduler, "state_dict"):
        return False
    try:
        tape = Numbers(optimizer, by_formula=True).rate()
        schedule: Any = copy.deepcopy(optimizer.lr_scheduler)
        variables, now = variables_of(optimizer, schedule=True), optimizer.num_update
        for n in (now + ahead for ahead in PROBES):
            with suppress(OverflowError):  # of integers that Python makes far ahead: there floats are 0 or infinite
                if tape.run({**variables, UPDATES: float(n)}) != {RATE: float(schedule(n))}:
                    return False
    except Exception:  # a schedule is anybody's code, and what it makes of symbols may be anything
        return False
    return True


def check(optimizer: Optimizer, numbers: Numbers, table: ScalarTable, tape: Tape, known: Mapping[str, float]) -> None:
    """Hold a tape of scalars against the optimizer that it came from, for the next three updates.

    Raises:
        MXNetError: they differ: the numbers depend on something else.
    """
    counting = numbers.counting()
    if not numbers.by_formula:
        optimizer = copy.copy(optimizer)
        optimizer.lr_scheduler = None  # the rate is the caller's
    with optimizer.undone():
        for _ in range(3):
            before, carried = float(optimizer.num_update), carried_by(optimizer)
            optimizer.count(table.indices)
            state = {**known, **variables_at(optimizer, numbers.by_formula, table.indices), BEFORE: before}
            made = counting.run({**state, **carried}) if counting is not None else {}
            if made != carried_by(optimizer):
                raise _unwritable(optimizer, "what it carries from one update to the next depends on something else")
            wanted = {SCALAR + key: float(v) for key, v in zip(table.keys, table.values(optimizer), strict=True)}
            found = tape.run(state)
            if different := [name for name, value in wanted.items() if found[name] != value]:
                raise _unwritable(optimizer, f"{', '.join(different)} of an update depends on something else")


def carried_by(optimizer: Optimizer) -> dict[str, float]:
    """The carried numbers, NaN where one is None, by the names of variables."""
    values = {name: getattr(optimizer, name) for name in optimizer.carried}
    return {CARRIED + name: float("nan") if v is None else float(v) for name, v in values.items()}


def variables_at(optimizer: Optimizer, schedule: bool, indices: Sequence[Index]) -> dict[str, float]:
    """The variables of tapes for the update that has just been counted."""
    found = variables_of(optimizer, schedule) | carried_by(optimizer)
    found |= {UPDATES: float(optimizer.num_update), RESCALE: float(optimizer.rescale_grad)}
    for i in indices:
        found[f"{T}{i}"] = float(optimizer.t(i))
        found[f"{LR_MULT}{i}"], found[f"{WD_MULT}{i}"] = map(float, optimizer.multipliers(i))
    return found
