"""Concatenations that begin alike read one another's results; values and gradients are those of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd, ops
from gluongraph.gluon import nn
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.tracing.concat_prefixes import share_prefixes

A, B, C, D = (ops.input(name, TensorType((2, k + 1), "f32")) for k, name in enumerate("abcd"))


def shared(*outputs: Any) -> list[Any]:
    inputs = {n.attrs["name"]: n for n in (A, B, C, D)}
    graph = Graph(inputs, {f"out{k}": n for k, n in enumerate(outputs)})
    return list(share_prefixes(graph).outputs.values())


def test_the_longest_prefix_is_read() -> None:
    ab, abc, abcd = (ops.concat(*sources, axis=1) for sources in ([A, B], [A, B, C], [A, B, C, D]))
    first, second, third = shared(ab, abc, abcd)
    assert first is ab
    assert second is ops.concat(ab, C, axis=1)
    assert third is ops.concat(second, D, axis=1)


@pytest.mark.parametrize(
    "one, other",
    [
        (ops.concat(A, B, axis=1), ops.concat(A, D, C, axis=1)),
        (ops.concat(B, C, axis=1), ops.concat(A, B, C, axis=1)),
        (ops.concat(A, A, axis=0), ops.concat(A, A, A, axis=1)),
    ],
    ids=["other sources", "a suffix", "another axis"],
)
def test_others_stay(one: Any, other: Any) -> None:
    assert shared(one, other) == [one, other]


class Dense(gluon.HybridBlock):
    """Each layer reads the results of all before it, in a list."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = [nn.Dense(3, in_units=4 + 3 * k, activation="tanh") for k in range(layers)]
        for k, layer in enumerate(self.layers):
            setattr(self, f"layer{k}", layer)

    def forward(self, x: Any) -> Any:
        found = [x]
        for layer in self.layers:
            found.append(layer(nd.concat(*found, dim=1) if len(found) > 1 else x))
        return nd.concat(*found, dim=1)


def test_a_step_of_densely_connected_layers() -> None:
    """Its slices grow with the number of layers, not with its square; its updates are those of eager mode."""
    x, y = nd.array(np.random.default_rng(0).normal(size=(5, 4))), nd.zeros((5, 22))
    nets = []
    for _ in range(2):
        mx.random.seed(3)
        np.random.seed(3)
        net = Dense(6)
        net.initialize(mx.init.Xavier())
        nets.append((net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})))
    (net, trainer), (other, by_hand) = nets
    loss = gluon.loss.L2Loss()
    step = mx.compile(net, loss, trainer)
    step(x, y)
    assert sum(n.op.name == "slice" for n in step.graph.nodes()) <= 2 * 6
    with autograd.record():
        value = loss(other(x), y)
    value.backward()
    by_hand.step(5)
    for one, two in zip(trainer.params, by_hand.params, strict=True):
        np.testing.assert_allclose(one.data().asnumpy(), two.data().asnumpy(), rtol=1e-5, atol=1e-6)
