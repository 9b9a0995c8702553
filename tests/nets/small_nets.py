"""Small nets for tests of recomputation and of optimizer states: each with what these must not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import nn

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def mlp_with_dropout() -> nn.HybridSequential:
    net = nn.HybridSequential()
    for _ in range(4):
        net.add(nn.Dense(32, activation="tanh", in_units=32), nn.Dropout(0.3))
    net.add(nn.Dense(4, in_units=32))
    return net


def convolutions_with_batch_norm() -> nn.HybridSequential:
    net, channels = nn.HybridSequential(), 3
    for _ in range(3):
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=channels), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
        channels = 8
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(4, in_units=8))
    return net


class Layer(gluon.HybridBlock):
    """x + attention(norm(x)), then x + mlp(norm(x)), with dropout."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
        self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
        self.up = nn.Dense(4 * width, flatten=False, in_units=width)
        self.gelu, self.drop = nn.GELU(), nn.Dropout(0.1)
        self.down = nn.Dense(width, flatten=False, in_units=4 * width)

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape((n, t, 3, 2, d // 2)).transpose((2, 0, 3, 1, 4))
        y = nd.attention(qkv[0], qkv[1], qkv[2], causal=True).transpose((0, 2, 1, 3)).reshape((n, t, d))
        x = x + self.drop(y)
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def transformer() -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(Layer(16), Layer(16), nn.Dense(4, in_units=8 * 16))
    return net


NETS: dict[str, tuple[Callable[[], nn.HybridSequential], tuple[int, ...]]] = {
    "mlp with dropout": (mlp_with_dropout, (64, 32)),
    "convolutions with batch norm": (convolutions_with_batch_norm, (16, 3, 12, 12)),
    "transformer": (transformer, (8, 8, 16)),
}


def batch(name: str) -> Batch:
    """Inputs and labels."""
    rng = np.random.default_rng(0)
    shape = NETS[name][1]
    return rng.standard_normal(shape).astype(np.float32), rng.integers(0, 4, shape[0]).astype(np.int32)


def compiled(name: str, contexts: int = 1, grad_req: str = "write", **options: Any) -> tuple[gluon.HybridBlock, Any]:
    """The net, always with the same weights, on so many contexts, and its step."""
    mx.random.seed(3)
    net = NETS[name][0]()
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(i) for i in range(contexts)])
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            parameter.grad_req = grad_req
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return net, mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **options)
