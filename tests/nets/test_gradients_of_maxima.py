"""The gradient of a largest element finds it, whatever computes the values that it was chosen from again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.gluon import nn

Layers = Callable[[], list[gluon.HybridBlock]]


def block(fn: Callable[..., Any]) -> gluon.HybridBlock:
    return nn.HybridLambda(lambda F, x: fn(F, x))


BEFORE: dict[str, Layers] = {
    "bias": lambda: [],
    "layer norm": lambda: [nn.LayerNorm(axis=3)],
    "layer norm of channels": lambda: [nn.LayerNorm(axis=1)],
    "batch norm": lambda: [nn.BatchNorm()],
    "batch norm and relu": lambda: [nn.BatchNorm(), nn.Activation("relu")],
    "group norm": lambda: [nn.GroupNorm(2)],
    "instance norm": lambda: [nn.InstanceNorm()],
    "gelu": lambda: [nn.GELU()],
    "products": lambda: [block(lambda F, x: x * F.flip(x, axis=1) - F.flip(x, axis=2) * F.tanh(x))],
}
CHOOSE: dict[str, Layers] = {
    "global pool": lambda: [nn.GlobalMaxPool2D()],
    "pool": lambda: [nn.MaxPool2D(3, 2)],
    "max of a row": lambda: [block(lambda F, x: F.max(x, axis=3))],
    "min of pixels": lambda: [block(lambda F, x: F.min(x, axis=(2, 3)))],
    "max of a batch": lambda: [block(lambda F, x: F.max(x, axis=0))],
    "two largest": lambda: [block(lambda F, x: F.topk(x, axis=1, k=2, ret_typ="value"))],
    "where equal": lambda: [block(lambda F, x: x * F.broadcast_equal(x, F.max(x, axis=1, keepdims=True)))],
    "largest norm": lambda: [block(lambda F, x: F.max(F.abs(x), axis=(1, 2)))],
    "pool and max": lambda: [nn.MaxPool2D(2), block(lambda F, x: F.max(x, axis=(2, 3)))],
}


@pytest.mark.parametrize(("before", "choose"), list(product(BEFORE, CHOOSE)))
def test_gradients_are_those_of_eager_mode(before: str, choose: str) -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), *BEFORE[before](), *CHOOSE[choose]())
    net.initialize()
    net.cast("float64")
    rng = np.random.default_rng(0)
    x = nd.array(rng.normal(size=(4, 2, 6, 6)), dtype="float64")
    label = nd.array(rng.normal(size=net(x).shape), dtype="float64")
    for p in net.collect_params().values():
        p.set_data(nd.array(rng.uniform(0.5, 1.5, p.shape), dtype="float64"))
    loss = gluon.loss.L2Loss()
    eager = gradients(net, loss, x, label)
    net.hybridize()
    found = {"hybridized": gradients(net, loss, x, label)}
    for remat in (None, "blocks"):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
        compiled = mx.compile(net, loss, trainer, remat=remat).grads(x, label)
        found[f"compiled, remat={remat}"] = {name: g.asnumpy() for name, g in compiled.items()}
    largest = max(np.abs(g).max() for g in eager.values())
    for way, made in found.items():
        for name, g in eager.items():
            np.testing.assert_allclose(made[name], g, rtol=0, atol=1e-11 * largest, err_msg=f"{name} {way}")


def gradients(net: gluon.Block, loss: gluon.loss.Loss, x: Any, label: Any) -> dict[str, Any]:
    """By backward."""
    with autograd.record():
        value = loss(net(x), label)
    value.backward()
    return {name: p.grad().asnumpy().copy() for name, p in net.collect_params().items() if p.grad_req != "null"}
