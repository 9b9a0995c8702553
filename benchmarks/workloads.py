"""What is measured: sizes, batches and optimizers, which all contenders share, and gluongraph's own nets.

The nets use the public API only. Their twins for the peers are in torch_peer.py and jax_peer.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import nn, rnn


@dataclass(frozen=True)
class Workload:
    """One training step to be timed. `target` says which ratio to a contender the project set itself."""

    name: str
    model: str
    batch: int
    size: Mapping[str, Any]
    optimizer: str
    hyper: Mapping[str, float]
    target: Mapping[str, float] = field(default_factory=dict)


_MLP = {"features": 784, "hidden": (512, 256), "classes": 10}
_LENET = {"pixels": 28, "channels": (20, 50), "hidden": 500, "classes": 10}
_DIGITS = {"pixels": 8, "channels": (32, 64), "hidden": 128, "classes": 10}
_GPT = {"layers": 6, "width": 384, "heads": 6, "length": 256, "vocabulary": 96}
_GPT_SMALL = {"layers": 2, "width": 64, "heads": 4, "length": 64, "vocabulary": 96}
_LSTM = {"layers": 2, "width": 256, "length": 35, "vocabulary": 2000}
_ADAM, _MOMENTUM = {"learning_rate": 1e-3}, {"learning_rate": 0.01, "momentum": 0.9}
_ADAMW = {"learning_rate": 3e-4, "wd": 0.01}

WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-8", "mlp", 8, _MLP, "adam", _ADAM, {"torch": 2.0}),
        Workload("mlp-128", "mlp", 128, _MLP, "adam", _ADAM, {"torch": 1.1}),
        Workload("lenet-128", "lenet", 128, _LENET, "sgd", _MOMENTUM, {"torch": 1.2}),
        Workload("digits-64", "digits", 64, _DIGITS, "adam", _ADAM),
        Workload("resnet18-32", "resnet18", 32, {"classes": 10}, "sgd", _MOMENTUM | {"wd": 5e-4}),
        Workload("gpt", "gpt", 8, _GPT, "adamw", _ADAMW),
        Workload("gpt-small", "gpt", 8, _GPT_SMALL, "adamw", _ADAMW),
        Workload("lstm", "lstm", 20, _LSTM, "sgd", {"learning_rate": 1.0}),
        Workload("update", "update", 1, {}, "adam", _ADAM),
    )
}


@dataclass(frozen=True)
class Update:
    """The update alone by one optimizer: how many arrays as large as the weights its formula reads and writes."""

    optimizer: str
    words: int
    hyper: Mapping[str, float] = field(default_factory=dict)


_MOMENTUM_ONLY = {"momentum": 0.9}
# What takes norms of a whole parameter reads everything twice: for the norms, then for the update (LANS three times).
UPDATES: dict[str, Update] = {
    "sgd": Update("sgd", 2 + 1),
    "sgd-momentum": Update("sgd", 3 + 2, _MOMENTUM_ONLY),
    "nag": Update("nag", 3 + 2, _MOMENTUM_ONLY),
    "signum": Update("signum", 3 + 2),
    "signsgd": Update("signum", 2 + 1, {"momentum": 0.0}),
    "dcasgd": Update("dcasgd", 3 + 2),
    "sgld": Update("sgld", 2 + 1),
    "adam": Update("adam", 4 + 3),
    "adamw": Update("adamw", 4 + 3, {"wd": 0.01}),
    "adabelief": Update("adabelief", 4 + 3),
    "adamax": Update("adamax", 4 + 3),
    "nadam": Update("nadam", 4 + 3),
    "adagrad": Update("adagrad", 3 + 2),
    "groupadagrad": Update("groupadagrad", 2 + 1),
    "rmsprop": Update("rmsprop", 3 + 2),
    "rmsprop-centered": Update("rmsprop", 5 + 4, {"centered": True}),
    "adadelta": Update("adadelta", 4 + 3),
    "ftrl": Update("ftrl", 4 + 3),
    "ftml": Update("ftml", 5 + 4),
    "lars": Update("lars", 2 + 3 + 2, _MOMENTUM_ONLY),
    "lbsgd": Update("lbsgd", 2 + 3 + 2, {**_MOMENTUM_ONLY, "warmup_strategy": "lars"}),
    "lamb": Update("lamb", 4 + 4 + 3),
    "lans": Update("lans", 1 + 4 + 4 + 3),
}
QUICK = ("mlp-8", "mlp-128", "lenet-128", "gpt-small")


def find(name: str) -> Workload:
    """A row of WORKLOADS; or of UPDATES with a size: update/adam/25e6 parameters, update/adam/160x64 in 160 arrays."""
    if not name.startswith("update/"):
        return WORKLOADS[name]
    _, key, size = name.split("/")
    row = UPDATES[key]
    return Workload(name, "update", 1, {"parameters": size}, row.optimizer, {"learning_rate": 1e-3, **row.hyper})


def batches(workload: Workload, count: int = 4, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random inputs and labels, float32 and int32; images are NCHW. The update alone has none."""
    rng = np.random.default_rng(seed)
    size, n = workload.size, workload.batch

    def one() -> tuple[np.ndarray, np.ndarray]:
        if workload.model in ("gpt", "lstm"):
            tokens = rng.integers(0, size["vocabulary"], (n, size["length"] + 1), dtype=np.int32)
            return tokens[:, :-1].copy(), tokens[:, 1:].copy()
        shape = {
            "mlp": lambda: (n, size["features"]),
            "lenet": lambda: (n, 1, size["pixels"], size["pixels"]),
            "digits": lambda: (n, 1, size["pixels"], size["pixels"]),
            "resnet18": lambda: (n, 3, 32, 32),
        }[workload.model]()
        return rng.standard_normal(shape, dtype=np.float32), rng.integers(0, size["classes"], n, dtype=np.int32)

    return [] if workload.model == "update" else [one() for _ in range(count)]


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameter shapes of ResNet-50: 25.6 million numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convs = [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convs.append((4 * width, channels, 1, 1))
            for conv in convs:
                shapes += [conv, (conv[0],), (conv[0],)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def update_shapes(workload: Workload) -> list[tuple[int, ...]]:
    """The arrays of an update: ResNet-50's, each so many times as large that the size is met, or small ones."""
    size = str(workload.size.get("parameters", "25e6"))
    if "x" in size:
        count, elements = map(int, size.split("x"))
        return [(8, elements // 8)] * count
    shapes = resnet50_shapes()
    times = max(1, round(float(size) / sum(map(math.prod, shapes))))
    shapes = [(times * first, *rest) for first, *rest in shapes]
    if workload.optimizer == "groupadagrad":  # of matrices only
        shapes = [(first, math.prod(rest)) for first, *rest in shapes]
    return shapes


class Residual(gluon.HybridBlock):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), the basic block of ResNet-18."""

    def __init__(self, inputs: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(
            nn.Conv2D(channels, 3, stride, 1, use_bias=False, in_channels=inputs),
            nn.BatchNorm(in_channels=channels),
            nn.Activation("relu"),
            nn.Conv2D(channels, 3, 1, 1, use_bias=False, in_channels=channels),
            nn.BatchNorm(in_channels=channels),
        )
        self.shortcut = None
        if stride != 1 or inputs != channels:
            self.shortcut = nn.HybridSequential()
            self.shortcut.add(
                nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=inputs), nn.BatchNorm(in_channels=channels)
            )

    def forward(self, x: Any) -> Any:
        return nd.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


class Layer(gluon.HybridBlock):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
        self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
        self.project = nn.Dense(width, flatten=False, in_units=width)
        self.up = nn.Dense(4 * width, flatten=False, in_units=width)
        self.gelu = nn.GELU()
        self.down = nn.Dense(width, flatten=False, in_units=4 * width)

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape((n, t, 3, self.heads, d // self.heads)).transpose((2, 0, 3, 1, 4))
        y = nd.attention(qkv[0], qkv[1], qkv[2], causal=True)
        x = x + self.project(y.transpose((0, 2, 1, 3)).reshape((n, t, d)))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gpt(gluon.HybridBlock):
    """Token and position embedding, causal layers, one output per position."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = self.params.get("position", shape=(length, width))
        self.layers = nn.HybridSequential()
        self.layers.add(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(in_channels=width)
        self.head = nn.Dense(vocabulary, flatten=False, in_units=width)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.layers(self.token(tokens) + self.position.data())))


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.HybridSequential:
    """Dense layers with relu between."""
    net = nn.HybridSequential()
    for inputs, outputs in zip((features, *hidden), hidden, strict=False):
        net.add(nn.Dense(outputs, activation="relu", in_units=inputs))
    net.add(nn.Dense(classes, in_units=hidden[-1]))
    return net


def lenet(pixels: int, channels: tuple[int, int], hidden: int, classes: int) -> nn.HybridSequential:
    """Two convolutions of 5x5 with pooling, two dense layers."""
    first, second = channels
    side = ((pixels - 4) // 2 - 4) // 2
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(first, 5, activation="relu", in_channels=1),
        nn.MaxPool2D(),
        nn.Conv2D(second, 5, activation="relu", in_channels=first),
        nn.MaxPool2D(),
        nn.Flatten(),
        nn.Dense(hidden, activation="relu", in_units=second * side * side),
        nn.Dense(classes, in_units=hidden),
    )
    return net


def digits(pixels: int, channels: tuple[int, ...], hidden: int, classes: int) -> nn.HybridSequential:
    """The network of examples/digits.py: convolution, normalization and pooling, then two dense layers."""
    net, inputs = nn.HybridSequential(), 1
    for outputs in channels:
        net.add(nn.Conv2D(outputs, 3, padding=1, in_channels=inputs), nn.BatchNorm(in_channels=outputs))
        net.add(nn.Activation("relu"), nn.MaxPool2D())
        inputs, pixels = outputs, pixels // 2
    net.add(nn.Flatten(), nn.Dense(hidden, activation="relu", in_units=inputs * pixels**2))
    net.add(nn.Dense(classes, in_units=hidden))
    return net


def resnet18(classes: int) -> nn.HybridSequential:
    """ResNet-18 with a 3x3 stem, as it is used on 32x32 images."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, 3, 1, 1, use_bias=False, in_channels=3), nn.BatchNorm(in_channels=64), nn.Activation("relu"))
    inputs = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        net.add(Residual(inputs, channels, stride), Residual(channels, channels, 1))
        inputs = channels
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=512))
    return net


def lstm(layers: int, width: int, length: int, vocabulary: int) -> nn.HybridSequential:
    """A word-level language model: embedding, LSTM layers, one output per position."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(vocabulary, width), rnn.LSTM(width, layers, layout="NTC", input_size=width))
    net.add(nn.Dense(vocabulary, flatten=False, in_units=width))
    return net


MODELS: dict[str, Callable[..., gluon.HybridBlock]] = {
    "mlp": mlp,
    "lenet": lenet,
    "digits": digits,
    "resnet18": resnet18,
    "gpt": Gpt,
    "lstm": lstm,
}


def network(workload: Workload) -> gluon.HybridBlock:
    """The workload's net, initialized."""
    net = MODELS[workload.model](**workload.size)
    net.initialize(mx.init.Xavier())
    return net


def trainer(workload: Workload, net: gluon.HybridBlock) -> gluon.Trainer:
    """The workload's optimizer on the net's parameters."""
    return gluon.Trainer(net.collect_params(), workload.optimizer, dict(workload.hyper))
