"""What optimizers and schedules compute in Python, as tapes: every one of them, to the same bits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from variants import CLIP, DECAY, RATE, TORCH, VARIANTS, named

from gluongraph import gluon, lr_scheduler
from gluongraph.artefact.update_scalars import (
    BEFORE,
    UPDATES,
    Numbers,
    carried_by,
    check,
    numbers_of,
    variables_at,
    variables_of,
)
from gluongraph.artefact.update_scalars import RATE as TOLD
from gluongraph.formulas import NotAFormula, Tape, Trace, cos, exp, known, log, number, product, sin, sqrt, tanh
from gluongraph.tracing.optimizer_updates import scalar_table

SCHEDULES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "factor": lambda: lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1, warmup_steps=2, warmup_begin_lr=0.01),
    "multifactor": lambda: lr_scheduler.MultiFactorScheduler([3, 6, 20], 0.1, base_lr=0.2),
    "poly": lambda: lr_scheduler.PolyScheduler(20, base_lr=0.1, warmup_steps=3, warmup_mode="constant"),
    "cosine": lambda: lr_scheduler.CosineScheduler(20, base_lr=0.1, final_lr=0.01, warmup_steps=2),
}


def _optimizer(name: str, settings: dict[str, Any], schedule: Any = None) -> Any:
    """The optimizer of a trainer of three parameters, of which one has a multiplier."""
    params = [gluon.Parameter(f"p{i}_weight", shape=(3, 2)) for i in range(3)]
    for p in params:
        p.initialize()
    params[1].lr_mult = 0.5
    decay = {} if name in ("groupadagrad", "torch.rprop") else {"wd": DECAY}
    given = {"learning_rate": RATE, **decay, **settings, **({} if schedule is None else {"lr_scheduler": schedule})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gluon.Trainer(params, name, given).optimizer


@pytest.mark.parametrize(
    ("name", "settings"), [*VARIANTS, *TORCH, ("sgld", {}), ("adam", {"clip_gradient": CLIP})], ids=named
)
def test_numbers_of_an_optimizer(name: str, settings: dict[str, Any]) -> None:
    for begin in (0, 30):
        optimizer = _optimizer(name, {**settings, "begin_num_update": begin})
        table = scalar_table(optimizer, (0, 1, 2))
        numbers = numbers_of(optimizer)
        tape = numbers.scalars(table, [])
        assert Tape.from_data(tape.to_data()) == tape
        for _ in range(12):
            optimizer.rescale_grad = 0.25
            check(optimizer, numbers, table, tape, {})  # raises where the next three updates differ
            optimizer.count(table.indices)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["adam", "lars", "lbsgd"])
def test_numbers_of_a_schedule(name: str, schedule: str) -> None:
    optimizer = _optimizer(name, {"momentum": 0.9} if name != "adam" else {}, SCHEDULES[schedule]())
    table = scalar_table(optimizer, (0, 1, 2))
    numbers = numbers_of(optimizer)
    assert numbers.by_formula == (schedule != "none")
    tape = numbers.scalars(table, [])
    for _ in range(25):
        check(optimizer, numbers, table, tape, {})
        optimizer.count(table.indices)
        variables = variables_at(optimizer, numbers.by_formula, table.indices)
        assert numbers.rate().run(variables) == {TOLD: optimizer.learning_rate}


def test_what_is_carried_begins_unknown() -> None:
    optimizer = _optimizer("lars", {"momentum": 0.9})
    tape = Numbers(optimizer, by_formula=False).counting()
    assert tape is not None and all(map(math.isnan, carried_by(optimizer).values()))
    known = {**variables_of(optimizer, schedule=False), **carried_by(optimizer), UPDATES: 1.0, BEFORE: 0.0}
    assert tape.run(known) == {"carried.last_lr": RATE, "carried.cur_lr": RATE}
    assert tape.run({**known, **tape.run(known), "optimizer.lr": 0.01, UPDATES: 2.0, BEFORE: 1.0}) == {
        "carried.last_lr": RATE,
        "carried.cur_lr": 0.01,
    }


def test_errors_of_a_formula_are_its_own() -> None:
    optimizer = _optimizer("ftrl", {})
    table = scalar_table(optimizer, (0, 1, 2))
    tape = numbers_of(optimizer).scalars(table, [])
    with optimizer.undone():
        optimizer.count(table.indices)
        variables = variables_at(optimizer, False, table.indices)
    with pytest.raises(ZeroDivisionError, match="Ftrl divides by the learning rate"):
        tape.run({**variables, "optimizer.lr": 0.0})
    with pytest.raises(Exception, match="of this update is inf"):
        tape.run({**variables, "rescale": math.inf})


# -- tracing itself


def _program(x: Any, n: Any, slope: Any) -> dict[str, Any]:
    """Branches, loops, functions and the arithmetic that there is."""
    y = -x + 2 * x - 1 / (x * x + 1) + x**2 % 3 - abs(x) // 2 + math.floor(x) * 0.5 - math.ceil(x)
    for limit in (2, 4, 8):
        if n > limit:
            y = y * slope
    y = max(y, -5.0) + min(n, 6) + sum(n >= k for k in range(3)) + (1.0 if x == 1 else 0.0)
    y += sqrt(n) + exp(-n) + log(n + 1) + sin(y) + cos(y) + tanh(y) + number(x != 2) + number(x < n) + number(x <= n)
    p = product(lambda i: 1 - slope / (i + 1), 1, n, 0.2, {}, (slope,))
    return {"y": y, "p": p, "k": 1.0 if known(slope) else 0.0}


def test_programs_become_tapes() -> None:
    trace = Trace({"slope": 0.5})
    tape = trace.traced(lambda: _program(trace.variable("x"), trace.variable("n"), trace.variable("slope")))
    for x in (-3.5, -1.0, 0.0, 0.25, 1.0, 2.0, 7.0):
        for n in (1, 2, 3, 5, 9, 40):
            assert tape.run({"x": x, "n": float(n), "slope": 0.5}) == _program(x, n, 0.5), (x, n)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: math.sqrt(x), "want a number"),
        (lambda x: int(x), "want a number|wants a number"),
        (lambda x: [1.0, 2.0][x], "wants a number"),
        (lambda x: x.real, "AttributeError"),
        (lambda x: x + float("inf"), "finite"),
        (lambda x: x * "a", "finite numbers"),
        (lambda x: sum(x > i and x > i + 0.5 and 1 for i in range(99)), "branches"),
    ],
)
def test_what_is_no_formula(function: Callable[[Any], Any], why: str) -> None:
    trace = Trace({})
    with pytest.raises(NotAFormula, match=why):
        trace.traced(lambda: {"y": function(trace.variable("x"))})


def test_a_branch_on_a_setting_goes_one_way() -> None:
    trace = Trace({"momentum": 0.9})
    tape = trace.traced(lambda: {"y": trace.variable("x") * (2.0 if trace.variable("momentum") else 3.0)})
    assert tape.run({"x": 2.0, "momentum": 0.1}) == {"y": 4.0}
    with pytest.raises(Exception, match="a setting of the optimizer or its schedule has changed"):
        tape.run({"x": 2.0, "momentum": 0.0})
