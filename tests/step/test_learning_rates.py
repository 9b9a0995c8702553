"""Learning rates in compiled steps are numbers that each call brings along: schedules cost no compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon
from gluongraph.lr_scheduler import CosineScheduler, FactorScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler

WARMUP = {"base_lr": 0.5, "warmup_steps": 3, "warmup_begin_lr": 0.125}


class Inverse(LRScheduler):
    """Of one's own, as MXNet's scripts write it."""

    def __call__(self, num_update: int) -> float:
        return self.base_lr / num_update


SCHEDULES: list[Callable[[int], float]] = [
    FactorScheduler(2, 0.5, **WARMUP),
    MultiFactorScheduler([4, 6], 0.5, **WARMUP, warmup_mode="constant"),
    PolyScheduler(9, **WARMUP),
    CosineScheduler(9, final_lr=0.0625, **WARMUP),
    Inverse(base_lr=1.0),
    lambda num_update: 2.0**-num_update,
]


def made(settings: dict[str, Any]) -> tuple[Any, gluon.Trainer, Any, list[int]]:
    """A weight whose gradient is 1, its trainer, its step, and a list that grows with every compilation."""
    w = gluon.Parameter("w", shape=(2,))
    w.initialize(mx.init.Zero())
    trainer = gluon.Trainer([w], "sgd", settings)
    step = mx.compile(lambda x: (w.data() * x).sum(), trainer=trainer)
    compilations: list[int] = []
    lower = step._specializations.lower
    step._specializations.lower = lambda *args, **how: (compilations.append(1), lower(*args, **how))[1]
    return w, trainer, step, compilations


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_schedules(number: int) -> None:
    """Update n moves by the schedule's value for n; one compilation serves all of them."""
    schedule = SCHEDULES[number]
    with debug.override(backend="reference" if number else ""):  # the code is the same for all
        w, trainer, step, compilations = made({"lr_scheduler": schedule})
        before = 0.0
        for n in range(1, 12):
            step(np.ones(2, np.float32))
            after = float(w.data().asnumpy()[0])
            assert before - after == pytest.approx(schedule(n), abs=1e-6) and trainer.learning_rate == schedule(n)
            before = after
        assert len(compilations) == 1


def test_rates_and_multipliers_that_are_set() -> None:
    with debug.override(backend="reference"):
        w, trainer, step, compilations = made({"learning_rate": 1.0})
        for rate, factor in ((1.0, 1.0), (0.5, 1.0), (0.5, 0.5)):
            before = float(w.data().asnumpy()[0])
            trainer.set_learning_rate(rate)
            w.lr_mult = factor
            step(np.ones(2, np.float32))
            assert float(w.data().asnumpy()[0]) - before == pytest.approx(-rate * factor)
        assert len(compilations) == 1
