"""The sequences that MXNet 1.9.1 gives, and the defects of its that are fixed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gluongraph.lr_scheduler import CosineScheduler, FactorScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler

SEQUENCES: list[tuple[LRScheduler, list[float]]] = [
    (FactorScheduler(3, 0.5, base_lr=1.0), [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]),
    (
        FactorScheduler(3, 0.5, base_lr=1.0, warmup_steps=4, warmup_begin_lr=0.2),
        [0.2, 0.4, 0.6, 0.8, 0.5, 0.5, 0.5, 0.25],
    ),
    (
        FactorScheduler(3, 0.5, base_lr=1.0, warmup_steps=4, warmup_begin_lr=0.2, warmup_mode="constant"),
        [0.2, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.25],
    ),
    (FactorScheduler(1, 0.1, stop_factor_lr=0.05, base_lr=1.0), [1, 1, 0.1, 0.05, 0.05]),
    (MultiFactorScheduler([3, 6], 0.1, base_lr=1.0), [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
    (
        PolyScheduler(10, base_lr=1.0, pwr=2, final_lr=0.1),
        [1, 0.829, 0.676, 0.541, 0.424, 0.325, 0.244, 0.181, 0.136, 0.109, 0.1, 0.1],
    ),
    (PolyScheduler(10, base_lr=1.0, warmup_steps=4), [0, 0.25, 0.5, 0.75, 1, 0.694, 0.444, 0.25, 0.111, 0.0278, 0, 0]),
    (
        CosineScheduler(10, base_lr=1.0, final_lr=0.1),
        [1, 0.978, 0.914, 0.815, 0.689, 0.55, 0.411, 0.285, 0.186, 0.122, 0.1, 0.1],
    ),
    (
        CosineScheduler(10, base_lr=1.0, warmup_steps=4, warmup_begin_lr=0.5),
        [0.5, 0.625, 0.75, 0.875, 1, 0.933, 0.75, 0.5, 0.25, 0.067, 0, 0],
    ),
]


@pytest.mark.parametrize("scheduler,expected", SEQUENCES)
def test_sequence(scheduler: LRScheduler, expected: list[float]) -> None:
    assert [scheduler(n) for n in range(len(expected))] == pytest.approx(expected, abs=5e-4)
    assert scheduler(1) == pytest.approx(expected[1], abs=5e-4)  # it may be asked to go back


BASE, BEGIN, FINAL, END = 0.8, 0.2, 0.1, 10
RULES: list[tuple[Any, dict[str, Any], Callable[[int, int], float]]] = [  # the last: the rate of update n, warm-up w
    (FactorScheduler, {"step": 3, "factor": 0.5}, lambda n, w: BASE * 0.5 ** (max(n - 1, 0) // 3)),
    (
        FactorScheduler,
        {"step": 1, "factor": 0.1, "stop_factor_lr": 0.05},
        lambda n, w: max(BASE * 0.1 ** max(n - 1, 0), 0.05),
    ),
    (
        MultiFactorScheduler,
        {"step": [3, 6, 7], "factor": 0.1},
        lambda n, w: BASE * 0.1 ** ((n > 3) + (n > 6) + (n > 7)),
    ),
    (
        PolyScheduler,
        {"max_update": END, "pwr": 3, "final_lr": FINAL},
        lambda n, w: FINAL + (BASE - FINAL) * (1 - min((n - w) / (END - w), 1)) ** 3,
    ),
    (
        CosineScheduler,
        {"max_update": END, "final_lr": FINAL},
        lambda n, w: FINAL + (BASE - FINAL) * (1 + math.cos(math.pi * min((n - w) / (END - w), 1))) / 2,
    ),
]


@pytest.mark.parametrize("mode", ["linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize("cls,arguments,rule", RULES)
def test_formula(
    cls: Any, arguments: dict[str, Any], rule: Callable[[int, int], float], warmup: int, mode: str
) -> None:
    given = {"base_lr": BASE, "warmup_steps": warmup, "warmup_begin_lr": BEGIN, "warmup_mode": mode}
    scheduler = cls(**arguments, **given)
    climb = (BASE - BEGIN) / warmup if warmup and mode == "linear" else 0.0
    for n in range(16):
        assert scheduler(n) == pytest.approx(BEGIN + climb * n if n < warmup else rule(n, warmup), rel=1e-12)


def test_beyond_the_end_at_first() -> None:
    assert PolyScheduler(10, base_lr=1.0, final_lr=0.1)(50) == pytest.approx(0.1)


ERRORS: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    (FactorScheduler, {"step": 1, "base_lr": 0.1, "warmup_begin_lr": 0.2}, ValueError),
    (FactorScheduler, {"step": 1, "warmup_steps": -1}, ValueError),
    (FactorScheduler, {"step": 1, "warmup_mode": "cubic"}, ValueError),
    (FactorScheduler, {"step": 1, "factor": 1.5}, ValueError),
    (FactorScheduler, {"step": 0}, ValueError),
    (MultiFactorScheduler, {"step": [3, 3]}, ValueError),
    (MultiFactorScheduler, {"step": []}, AssertionError),
    (MultiFactorScheduler, {"step": 3}, AssertionError),
    (PolyScheduler, {"max_update": 0}, ValueError),
    (PolyScheduler, {"max_update": 2.5}, AssertionError),
    (CosineScheduler, {"max_update": 5, "warmup_steps": 5}, ValueError),
    (CosineScheduler, {"max_update": 5, "warmup_steps": 1.5}, AssertionError),
]


@pytest.mark.parametrize("cls,arguments,error", ERRORS)
def test_errors(cls: Any, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        cls(**arguments)


def test_the_base_class_has_no_rate() -> None:
    with pytest.raises(NotImplementedError, match=r"rate\(num_update\)"):
        LRScheduler()(3)


def test_schedules_of_ones_own() -> None:
    class Old(LRScheduler):
        """As written for MXNet: __call__ says everything."""

        def __call__(self, num_update: int) -> float:
            return self.base_lr / (1 + num_update)

    class New(LRScheduler):
        def rate(self, num_update: int) -> float:
            return self.base_lr / (1 + num_update)

    assert [Old(base_lr=1.0, warmup_steps=9)(n) for n in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert [New(base_lr=1.0, warmup_steps=2)(n) for n in (0, 1, 3)] == [0.0, 0.5, 0.25]
