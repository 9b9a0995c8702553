"""Optimizers written by users: as a formula, and as for MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon, init, nd, ops, optimizer
from gluongraph.gluon import Parameter
from gluongraph.ir import Node, TensorType


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


def parameters() -> list[Parameter]:
    made = [Parameter(n, shape=(3,)) for n in "ab"]
    for p in made:
        p.initialize(init.One())
    made[1].lr_mult = 0.5
    return made


@pytest.mark.parametrize("name", ["signs", "oldsigns"])
def test_in_a_trainer(name: str) -> None:
    params = parameters()
    trainer = gluon.Trainer(params, name, {"learning_rate": 0.25})
    for sign in (1, -3, 1):
        for p in params:
            p.grad()[:] = np.array([sign, 0, -sign], np.float32)
            p.data()._fresh_grad = True
        trainer.step(2)
    assert params[0].data().asnumpy().tolist() == [1.25, 1, 0.75]
    assert params[1].data().asnumpy().tolist() == [1.125, 1, 0.875]
    assert trainer.optimizer.num_update == 3 and trainer.optimizer.counts() == {0: 3, 1: 3}


@pytest.mark.parametrize("name,settings", [("sgd", {}), ("sgd", {"momentum": 0.9}), ("adam", {"clip_gradient": 0.5})])
def test_update_of_one_parameter(name: str, settings: dict[str, Any]) -> None:
    p, w = parameters()[0], nd.ones((3,))
    one = optimizer.create(name, learning_rate=0.1, **settings)
    trainer = gluon.Trainer([p], name, {"learning_rate": 0.1, **settings})
    state = one.create_state(0, w)
    for _ in range(3):
        p.grad()[:] = np.array([1, 2, -3], np.float32)
        p.data()._fresh_grad = True
        trainer.step(1)
        one.update(0, w, p.grad(), state)
    assert (w.asnumpy() == p.data().asnumpy()).all() and one.t(0) == 3
