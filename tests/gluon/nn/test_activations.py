"""Activations against numpy, and blocks of functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from both import eager_is_hybridized

from gluongraph import autograd, nd
from gluongraph.gluon import nn

X = np.random.default_rng(9).normal(size=(3, 4, 5)) * 2
ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


LAYERS: dict[str, tuple[Any, Any]] = {
    "leaky": (lambda: nn.LeakyReLU(0.1), np.where(X > 0, X, 0.1 * X)),
    "prelu": (lambda: nn.PReLU(), np.where(X > 0, X, 0.25 * X)),
    "prelu by channel": (lambda: nn.PReLU(in_channels=4, alpha_initializer="ones"), X),
    "elu": (lambda: nn.ELU(0.7), np.where(X > 0, X, 0.7 * np.expm1(X))),
    "selu": (lambda: nn.SELU(), SCALE * np.where(X > 0, X, ALPHA * np.expm1(X))),
    "gelu": (lambda: nn.GELU(), X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))),
    "swish": (lambda: nn.Swish(1.5), X * sigmoid(1.5 * X)),
    "silu": (lambda: nn.SiLU(), X * sigmoid(X)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_value(name: str) -> None:
    make, want = LAYERS[name]
    layer = make()
    layer.initialize()
    np.testing.assert_allclose(layer(nd.array(X)).asnumpy(), want, rtol=2e-6, atol=2e-6)


def test_hybridized() -> None:
    eager_is_hybridized({name: (make(), X.shape) for name, (make, _) in LAYERS.items()})


def test_the_slope_is_trained() -> None:
    layer = nn.PReLU(in_channels=4)
    layer.initialize()
    with autograd.record():
        y = layer(nd.array(X))
    y.backward()
    np.testing.assert_allclose(layer.alpha.grad().asnumpy(), np.minimum(X, 0).sum((0, 2)), rtol=1e-5)


def test_reprs() -> None:
    assert repr(nn.LeakyReLU(0.1)) == "LeakyReLU(0.1)" and repr(nn.Activation("tanh")) == "Activation(tanh)"
    for layer in (nn.PReLU(), nn.ELU(), nn.SELU(), nn.GELU(), nn.Swish(), nn.Identity()):
        assert repr(layer) == f"{type(layer).__name__}(\n\n)"  # as MXNet shows a block without children


def test_functions() -> None:
    x = nd.array(X)
    want = np.tanh(X)
    for layer in (
        nn.Lambda("tanh"),
        nn.HybridLambda("tanh"),
        nn.Lambda(nd.tanh),
        nn.HybridLambda(lambda F, x: F.tanh(x)),
    ):
        np.testing.assert_allclose(layer(x).asnumpy(), want, rtol=2e-6, atol=2e-6)
    assert repr(nn.Lambda("tanh")) == "Lambda(tanh)"


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: nn.LeakyReLU(-1), AssertionError, "alpha must be finite and at least 0, not -1"),
    (lambda: nn.GELU("sigmoid"), ValueError, "'erf' or 'tanh'"),
    (lambda: nn.Lambda("no_such_operator"), AssertionError, "no operator called 'no_such_operator'"),
    (lambda: nn.HybridLambda(3), ValueError, "3 is neither a function"),
    (lambda: nd.LeakyReLU(nd.ones((2,)), act_type="rellu"), RuntimeError, "no act_type 'rellu'"),
    (lambda: nd.Activation(nd.ones((2,)), act_type="rellu"), RuntimeError, "no act_type 'rellu'"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
