"""The sequences that MXNet 1.9.1 gives, and the defects of its that are fixed."""

from __future__ import annotations

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
    with pytest.raises(NotImplementedError):
        LRScheduler()(3)
