"""MXNet's update operators (`nd.sgd_update` and the like) against the optimizers whose rules they compute by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph import nd, optimizer
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.base import arrays_of

LR, WD = 0.1, 0.05
COMMON = {"wd": WD, "rescale_grad": 0.5, "clip_gradient": 0.3}
NUMBERS: dict[str, Any] = {"lr": LR, **COMMON}


def corrected(t: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    """lr_t of Adam, which the operator leaves to its caller."""
    return LR * math.sqrt(1 - beta2**t) / (1 - beta1**t)


def adamw(weight: NDArray, grad: NDArray, *state: NDArray, out: NDArray, t: int) -> None:
    numbers = {"wd": WD, "clip_gradient": 0.3}
    nd.contrib.adamw_update(
        weight, grad, *state, nd.array([0.5]), lr=1.0, eta=corrected(t), epsilon=1e-6, out=out, **numbers
    )


def lamb(weight: NDArray, grad: NDArray, *state: NDArray, out: NDArray, t: int, **how: Any) -> None:
    direction = nd.lamb_update_phase1(weight, grad, *state, t=t, **COMMON, **how)
    nd.lamb_update_phase2(weight, direction, weight.norm(), direction.norm(), lr=LR, out=out)


def operator(name: str, **how: Any) -> Callable[..., Any]:
    """That of `nd`, with settings; those that are functions give the number for step t."""

    def call(*arrays: NDArray, out: NDArray, t: int) -> None:
        numbers = {key: value(t) if callable(value) else value for key, value in (NUMBERS | how).items()}
        getattr(nd, name)(*arrays, out=out, **numbers)

    return call


def ftml(*arrays: NDArray, out: NDArray, t: int) -> None:
    nd.ftml_update(*arrays, out=out, t=t, lr=LR, wd=WD, rescale_grad=0.5, clip_grad=0.3)


def lamb_uncorrected(*arrays: NDArray, out: NDArray, t: int) -> None:
    lamb(*arrays, out=out, t=t, bias_correction=False)


CASES: dict[str, tuple[Callable[..., Any], type[optimizer.Optimizer], dict[str, Any]]] = {
    "sgd": (operator("sgd_update"), optimizer.SGD, {}),
    "sgd_mom": (operator("sgd_mom_update", momentum=0.9), optimizer.SGD, {"momentum": 0.9}),
    "nag_mom": (operator("nag_mom_update", momentum=0.9), optimizer.NAG, {"momentum": 0.9}),
    "signsgd": (operator("signsgd_update"), optimizer.Signum, {"momentum": 0.0}),
    "signum": (operator("signum_update", momentum=0.9, wd_lh=0.2), optimizer.Signum, {"momentum": 0.9, "wd_lh": 0.2}),
    "adam": (operator("adam_update", lr=corrected), optimizer.Adam, {}),
    "adamw": (adamw, optimizer.AdamW, {}),
    "rmsprop": (operator("rmsprop_update", clip_weights=0.8), optimizer.RMSProp, {"gamma1": 0.95, "clip_weights": 0.8}),
    "rmspropalex": (operator("rmspropalex_update"), optimizer.RMSProp, {"gamma1": 0.95, "centered": True}),
    "ftrl": (operator("ftrl_update", lamda1=0.1, beta=0.5), optimizer.Ftrl, {"lamda1": 0.1, "beta": 0.5}),
    "ftml": (ftml, optimizer.FTML, {}),
    "lamb": (lamb, optimizer.LAMB, {}),
    "lamb_uncorrected": (lamb_uncorrected, optimizer.LAMB, {"bias_correction": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_its_optimizer(name: str) -> None:
    """Three steps, with decay, clipping and a scale; weights and states. The operators with a count of steps form
    1 - 0.999^t in float32, where it is off by 1e-5 of itself.
    """
    update, kind, how = CASES[name]
    rule, rng = kind(learning_rate=LR, **COMMON, **how), np.random.default_rng(0)
    weight = nd.array(rng.normal(size=(4, 5)))
    twin, state = weight.copy(), rule.create_state(0, weight)
    copies = [array.copy() for array in arrays_of(state)]
    for t in (1, 2, 3):
        grad = nd.array(rng.normal(size=(4, 5)))
        rule.update(0, weight, grad, state)
        update(twin, grad, *copies, out=twin, t=t)
    for found, wanted in zip((twin, *copies), (weight, *arrays_of(state)), strict=True):
        np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd_mom_update", "nag_mom_update", "signum_update"])
def test_operators_write_their_buffer_without_momentum_too(name: str) -> None:
    """Unlike the optimizers, which have none then. The momentum of these operators is 0 where it is not given."""
    weight, mom = nd.array([1.0]), nd.array([8.0])
    getattr(nd, name)(weight, nd.array([4.0]), mom, lr=0.5, out=weight)
    moved, buffer = (0.5, -4.0) if name == "signum_update" else (-1.0, -2.0)
    assert weight.asscalar() == moved and mom.asscalar() == buffer


def test_operators_take_numbers_that_optimizers_refuse() -> None:
    weight, mean, var = nd.array([1.0]), nd.array([2.0]), nd.array([4.0])
    nd.adam_update(weight, nd.array([7.0]), mean, var, lr=0.5, beta1=1.0, beta2=1.0, epsilon=0.0, out=weight)
    assert [array.asscalar() for array in (weight, mean, var)] == [0.5, 2.0, 4.0]


def test_the_decay_of_adamw_is_not_scaled_by_lr() -> None:
    weight, state = nd.array([4.0]), [nd.zeros((1,)), nd.zeros((1,))]
    nd.contrib.adamw_update(weight, nd.array([0.0]), *state, nd.array([1.0]), lr=0.0, eta=0.5, wd=0.5, out=weight)
    assert weight.asscalar() == 3.0
