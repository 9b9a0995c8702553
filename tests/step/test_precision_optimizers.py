"""Every optimizer in mixed precision: steps that overflow, scales that are too large, weights that are set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug, gluon, nd
from gluongraph.optimizer import Optimizer
from gluongraph.step import TrainStep

Array = np.ndarray[Any, Any]
SETTINGS: dict[str, dict[str, Any]] = {name: {"momentum": 0.9} for name in ("sgd", "nag", "lars", "lbsgd", "dcasgd")}
NAMES = sorted(
    name for name, made in Optimizer.opt_registry.items() if made.__module__.startswith("gluongraph.")
)  # not those of other tests
EVERY = pytest.mark.parametrize("optimizer", NAMES)
COMPILED = ("adam", "lamb", "sgld")  # a plain one, one with a norm, one that draws
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
FITTING, LARGEST = 256.0, 2.0**24  # scales of the loss


@pytest.fixture
def interpreted() -> Iterator[None]:
    """What is left out does not depend on the compiler; with it, COMPILED look at that."""
    with debug.override(backend="reference"):
        yield


class Training:
    """A dense layer and its step, whose random numbers are always the same."""

    def __init__(self, optimizer: str, precision: str, dtype: str = "float32"):
        mx.random.seed(3)
        self.net = gluon.nn.Dense(2, in_units=3, use_bias=False)
        self.net.initialize(mx.init.Xavier())
        self.net.cast(dtype)
        given = {"learning_rate": 0.1, "multi_precision": True, **SETTINGS.get(optimizer, {})}
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, given)
        self.step: TrainStep = mx.compile(self.loss, trainer=self.trainer, precision=precision)
        self.trainer.scaler.scale[:] = FITTING
        mx.random.seed(4)

    def loss(self, x: Any) -> Any:
        return ((self.net(x.astype(self.net.weight.dtype)).astype("float32") - 1) ** 2).sum(axis=1)

    @property
    def weight(self) -> Array:
        return self.net.weight.data().asnumpy()

    def state(self) -> dict[str, Any]:
        """All that a step may change, but for the scale of the loss."""
        arrays = {"w": self.net.weight.data(), **self.trainer.state_arrays(self.trainer.names)}
        told = {key.rpartition("/")[2]: array.asnumpy().tolist() for key, array in arrays.items()}
        return {**told, **self.trainer.optimizer.progress(), "rng": mx.random.get_state(mx.cpu())}


def is_left_out(optimizer: str, dtype: str) -> None:
    """Between good steps one with infinite and one with NaN gradients: as if those had never been."""
    training, straight = (Training(optimizer, "16-mixed", dtype) for _ in range(2))
    start = mx.random.get_state(mx.cpu())
    training.step(X)
    scaler = training.trainer.scaler
    before, scale = training.state(), scaler.progress()[0]
    for number, bad in enumerate((np.inf, np.nan), 1):
        training.step(np.where(X > 1, bad, X))
        assert training.state() == before
        assert (training.step.skipped, scaler.progress()) == (number, [scale / 2**number, 0])
    training.step(X)
    assert scaler.progress() == [scale / 4, 1]
    after = training.state()
    mx.random.set_state(start, mx.cpu())
    for _ in range(2):
        straight.step(X)
    assert straight.state() == after != before


@EVERY
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.usefixtures("interpreted")
def test_a_step_that_overflows_changes_the_scale_alone(optimizer: str, dtype: str) -> None:
    is_left_out(optimizer, dtype)


@pytest.mark.parametrize("optimizer", COMPILED)
def test_a_compiled_step_that_overflows(optimizer: str) -> None:
    is_left_out(optimizer, "float32")


@EVERY
@pytest.mark.usefixtures("interpreted")
def test_a_scale_that_is_too_large_ends_where_one_that_fits_begins(optimizer: str) -> None:
    """A scale is a power of two: it changes no bit of what is not too large, nor too small, for float16."""
    training, fitting = (Training(optimizer, "16-mixed") for _ in range(2))
    start = mx.random.get_state(mx.cpu())
    training.trainer.scaler.scale[:] = LARGEST
    while training.trainer.optimizer.num_update < 1:
        training.step(X)
    assert training.step.skipped > 5
    after = training.state()
    mx.random.set_state(start, mx.cpu())
    fitting.step(X)
    assert fitting.step.skipped == 0 and fitting.state() == after


def is_set(optimizer: str, precision: str) -> None:
    """The step after multiplies with the weight that was set, and goes on from it, as in float32."""
    found = []
    for each in (precision, "32"):
        training = Training(optimizer, each)
        for _ in range(2):
            training.step(X)
        training.net.weight.set_data(nd.array([[3, -2, 1], [0.5, 4, -3]]))
        found.append((training.step(X).asnumpy(), training.weight))
    for low, exact in zip(*found, strict=True):
        np.testing.assert_allclose(low, exact, rtol=2e-2, atol=2e-2)


@EVERY
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.usefixtures("interpreted")
def test_no_copy_is_stale_after_set_data(optimizer: str, precision: str) -> None:
    is_set(optimizer, precision)


@pytest.mark.parametrize("optimizer", COMPILED)
def test_no_copy_of_a_compiled_step_is_stale_after_set_data(optimizer: str) -> None:
    is_set(optimizer, "bf16-mixed")
