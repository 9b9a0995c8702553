"""Every optimizer in a compiled step, float32 and 16-bit weights together, against float64 numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from variants import (
    BATCH,
    CLIP,
    RATE,
    TOLERANCE,
    VARIANTS,
    Expected,
    gradients,
    named,
    parameters,
    settings,
    types,
    updates,
)

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import Parameter
from gluongraph.step import TrainStep

MIXED = ("float16", "bfloat16")


def compiled(params: list[Parameter], trainer: gluon.Trainer) -> TrainStep:
    """A step whose gradients are its arguments."""

    def loss(*gradients: nd.NDArray) -> nd.NDArray:
        total = [(p.data().astype("float32") * g).sum() for p, g in zip(params, gradients, strict=True)]
        return nd.add_n(*total)

    step: TrainStep = mx.compile(loss, trainer=trainer)
    return step


@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_formula(name: str, extra: dict[str, Any]) -> None:
    params = parameters(np.random.default_rng(7), types(name, *MIXED))
    trainer = gluon.Trainer(params, name, {**settings(name, CLIP), **extra, "multi_precision": True})
    step = compiled(params, trainer)
    for grads, expected in updates(name, extra, CLIP, params):
        step(*grads, batch_size=BATCH)
        if expected.t in (1, 5):
            expected.check(trainer, params)


def test_random_numbers_come_in_the_order_of_the_program() -> None:
    """Dropout draws first, then SGLD for each parameter; with that order, a compiled step is the eager one."""
    results = []
    for compile in (False, True):
        mx.random.seed(11)
        params = parameters(np.random.default_rng(7), [((3, 5), "float32"), ((7,), "float32")])
        trainer = gluon.Trainer(params, "sgld", {"learning_rate": 0.01})

        def loss(params: list[Parameter] = params) -> nd.NDArray:
            return nd.add_n(*((nd.Dropout(p.data(), p=0.5) ** 2).sum() for p in params))

        step = mx.compile(loss, trainer=trainer)
        for _ in range(3):
            if compile:
                step()
            else:
                with autograd.record():
                    value = loss()
                value.backward()
                trainer.step(1)
        results.append([*(p.data().asnumpy() for p in params), nd.random.uniform(shape=(3,)).asnumpy()])
    for eager, compiled in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=0, atol=TOLERANCE * np.abs(eager).max())


def test_settings_act_on_the_next_step_without_compiling_again() -> None:
    params = parameters(np.random.default_rng(7), types("lamb"))
    trainer = gluon.Trainer(params, "lamb", settings("lamb", None))
    step, expected = compiled(params, trainer), Expected(params)
    grads = gradients(np.random.default_rng(1), params)
    for lr, beta1 in ((RATE, 0.9), (0.1, 0.9), (0.1, 0.5)):
        trainer.set_learning_rate(lr)
        trainer.optimizer.beta1 = beta1
        step(*grads, batch_size=BATCH)
        expected.update("lamb", grads, None, lr=lr, beta1=beta1)
    expected.check(trainer, params)
    assert len(step._specializations.all) == 1


def test_a_scheduler_that_fails_takes_the_update_back() -> None:
    def schedule(n: int) -> float:
        if n == 2:
            raise KeyError("no rate for update 2")
        return 0.1

    params = parameters(np.random.default_rng(7), [((3, 5), "float32")])
    trainer = gluon.Trainer(params, "lars", {"lr_scheduler": schedule, "momentum": 0.9})
    step, grads = compiled(params, trainer), gradients(np.random.default_rng(1), params)
    step(*grads)
    before = params[0].data().asnumpy(), trainer.optimizer.progress()
    with pytest.raises(KeyError):
        step(*grads)
    assert (params[0].data().asnumpy() == before[0]).all() and trainer.optimizer.progress() == before[1]
