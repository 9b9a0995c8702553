"""Optimizers written by users: as a formula, and as for MXNet, which then runs after a compiled backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, init, nd, ops, optimizer
from gluongraph.gluon import Parameter
from gluongraph.ir.graph import Node, TensorType


@optimizer.Optimizer.register
class Signs(optimizer.Optimizer):
    """w - lr sign(m), m a running mean: stated as a formula."""

    def states(self, weight: TensorType) -> dict[str, TensorType]:
        return {"m": weight}

    def rule(self, w: Node, g: Node, state: Mapping[str, Node], s: Mapping[str, Node]) -> tuple[Node, dict[str, Node]]:
        m = 0.5 * state["m"] + 0.5 * g * s["rescale"]
        return w - s["lr"] * ops.sign(m), {"m": m}


@optimizer.register
class OldSigns(optimizer.Optimizer):
    """The same, as one writes it for MXNet."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return nd.zeros(weight.shape, ctx=weight.context, dtype=weight.dtype)

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        state[:] = 0.5 * state + 0.5 * grad * self.rescale_grad
        weight[:] = weight - self._get_lr(index) * nd.sign(state)


@optimizer.register
class OldAdam(optimizer.Optimizer):
    """MXNet's Adam with what such classes use: a tuple of states, the count of an index, rate, decay, clipping."""

    def create_state(self, index: Any, weight: nd.NDArray) -> Any:
        return nd.zeros_like(weight), nd.zeros_like(weight)

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        self._update_count(index)
        t, lr, wd = self._index_update_count[index], self._get_lr(index), self._get_wd(index)
        mean, var = state
        grad = grad * self.rescale_grad + wd * weight
        if self.clip_gradient is not None:
            grad = nd.clip(grad, -self.clip_gradient, self.clip_gradient)
        mean[:] = 0.9 * mean + 0.1 * grad
        var[:] = 0.999 * var + 0.001 * nd.square(grad)
        lr *= (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
        weight[:] -= lr * mean / (nd.sqrt(var) + 1e-8)


@optimizer.register
class Halved(optimizer.SGD):
    """Something of its own on top of one that has a formula, as users do it."""

    def update(self, index: Any, weight: nd.NDArray, grad: nd.NDArray, state: Any) -> None:
        super().update(index, weight, grad / 2, state)


def parameters(dtype: str = "float32") -> list[Parameter]:
    made = [Parameter(n, shape=(3,), dtype=dtype) for n in "ab"]
    for p in made:
        p.initialize(init.One())
    made[1].lr_mult = 0.5
    return made


def step_by(trainer: gluon.Trainer, params: list[Parameter], compiled: bool) -> Any:
    """A function that takes a step with a given gradient of every parameter."""

    def loss(g: nd.NDArray) -> nd.NDArray:
        return nd.add_n(*((p.data().astype("float32") * g).sum() for p in params))

    if compiled:
        return mx.compile(loss, trainer=trainer)

    def step(g: Any, batch_size: float) -> Any:
        with autograd.record():
            value = loss(nd.array(g))
        value.backward()
        trainer.step(batch_size)
        return value

    return step


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["signs", "oldsigns"])
def test_in_a_trainer(name: str, compiled: bool) -> None:
    params = parameters()
    trainer = gluon.Trainer(params, name, {"learning_rate": 0.25})
    step = step_by(trainer, params, compiled)
    for sign in (1, -3, 1):
        value = step(np.array([sign, 0, -sign], np.float32), batch_size=2)
    assert value.size == 1
    assert params[0].data().asnumpy().tolist() == [1.25, 1, 0.75]
    assert params[1].data().asnumpy().tolist() == [1.125, 1, 0.875]
    assert trainer.optimizer.num_update == 3 and trainer.optimizer.counts() == {0: 3, 1: 3}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_written_for_mxnet_is_as_good_as_ours(dtype: str, compiled: bool) -> None:
    rng, found = np.random.default_rng(0), []
    gradients = [rng.normal(size=3).astype(dtype).astype(np.float32) for _ in range(4)]
    for name in ("oldadam", "adam"):
        params = parameters(dtype)
        settings = {"learning_rate": 0.1, "wd": 0.01, "clip_gradient": 0.4, "multi_precision": True}
        trainer = gluon.Trainer(params, name, settings)
        step = step_by(trainer, params, compiled)
        for g in gradients:
            step(g, batch_size=2)
        found.append([p.data().astype("float32").asnumpy() for p in params])
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_update_over_a_formula_is_what_runs(compiled: bool) -> None:
    params = parameters()
    trainer = gluon.Trainer(params, "halved", {"learning_rate": 1.0})
    assert not trainer.optimizer.has_formula
    step_by(trainer, params, compiled)(np.ones(3, np.float32), batch_size=1)
    assert params[0].data().asnumpy().tolist() == [0.5] * 3


def test_a_formula_is_fused_as_ours_are() -> None:
    """The update runs within the kernel of the gradient that it needs."""
    plans = []
    for name in ("signs", "signum"):
        net = gluon.nn.Dense(4, in_units=3)
        net.initialize()
        step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), name))
        step(np.ones((2, 3)), np.ones((2, 4)))
        plans.append(step.plan)
    own, ours = plans
    assert len(own.launches) == len(ours.launches)
    assert any("matmul" in launch.label and launch.group.inplace for launch in own.launches)


def test_a_class_that_says_nothing() -> None:
    class Nothing(optimizer.Optimizer):
        pass

    p = parameters()[0]
    with pytest.raises(NotImplementedError, match=r"Nothing says its formula in rule\(w, g, state, s\)"):
        Nothing().update(0, p.data(), p.grad(), None)
