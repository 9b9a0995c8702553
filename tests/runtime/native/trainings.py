"""Trainings that the runner has to repeat bit for bit, as small as they can be, and what runs it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd

Array = np.ndarray[Any, Any]
SAMPLES, SIZES = 37, [32, 5]  # the last batch is another one
WORDS, LENGTH = 11, 6


def _compiled(net: Any, optimizer: Any, settings: dict[str, Any] | None, **options: Any) -> Any:
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings)
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **options)


def convolutions() -> Any:
    """SGD with momentum and a schedule; running statistics, dropout."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Activation("relu"))
    net.add(gluon.nn.MaxPool2D(), gluon.nn.Dropout(0.3), gluon.nn.Dense(3, in_units=4 * 3 * 3))
    schedule = mx.lr_scheduler.CosineScheduler(150, base_lr=0.05, final_lr=0.001, warmup_steps=10)
    return _compiled(net, "sgd", {"momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule})


class Attention(gluon.HybridBlock):
    """A causal language model of one block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.words = gluon.nn.Embedding(WORDS, width)
        self.first, self.second = gluon.nn.LayerNorm(in_channels=width), gluon.nn.LayerNorm(in_channels=width)
        self.mixed = gluon.nn.Dense(3 * width, flatten=False, in_units=width)
        self.wide = gluon.nn.Dense(2 * width, flatten=False, in_units=width, activation="relu")
        self.narrow = gluon.nn.Dense(width, flatten=False, in_units=2 * width)
        self.out = gluon.nn.Dense(WORDS, flatten=False, in_units=width)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        q, k, v = nd.split(self.mixed(self.first(x)), num_outputs=3, axis=2)
        scores = nd.batch_dot(q, k, transpose_b=True) / self.width**0.5
        later = nd.array(np.triu(np.full((1, LENGTH, LENGTH), -1e4, np.float32), 1))
        x = x + nd.batch_dot(nd.softmax(nd.broadcast_add(scores, later)), v)
        return self.out(x + self.narrow(self.wide(self.second(x))))


def language() -> Any:
    """A GPT in bfloat16, its gradients clipped by their norm."""
    return _compiled(Attention(), "adamw", {"learning_rate": 3e-3}, precision="bf16-mixed", clip_norm=0.5)


def recurrent() -> Any:
    """Gluon's LSTM."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(WORDS, 6), gluon.rnn.LSTM(7, layout="NTC", input_size=6))
    net.add(gluon.nn.Dense(WORDS, flatten=False, in_units=7))
    return _compiled(net, "adam", {"learning_rate": 0.01})


def grouped() -> Any:
    """Parameters in float64, in groups of PyTorch's optimizers with settings of their own; states that are numbers."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.HybridLambda(lambda F, x: x.astype("float64")))
    net.add(gluon.nn.Dense(8, in_units=64, activation="relu"), gluon.nn.Dense(3, in_units=8))
    net.cast("float64")
    rules = mx.optimizer.torch
    members = [rules.NAdam(lr=0.01, weight_decay=0.1), rules.RAdam(lr=0.02, betas=(0.8, 0.99)), rules.ASGD(lambd=0.1)]
    return _compiled(net, mx.optimizer.ParameterGroups(members, {0: 0, 1: 1, 2: 2, 3: 1}), None)


def scaled() -> Any:
    """As much of a descriptor as a small step can have: a product among the formulas, a scaled loss, random numbers."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, in_units=64, activation="relu"), gluon.nn.Dropout(0.3), gluon.nn.Dense(3, in_units=8))
    schedule = mx.lr_scheduler.CosineScheduler(150, base_lr=0.05, final_lr=0.001, warmup_steps=10)
    settings = {"lr_scheduler": schedule, "wd": 1e-4}
    return _compiled(net, "nadam", settings, precision="16-mixed", clip_norm=1.0, ema=0.99)


def images() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(SAMPLES, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, SAMPLES).astype(np.int32)


def texts() -> tuple[Array, Array]:
    words = np.random.default_rng(2).integers(0, WORDS, (SAMPLES, LENGTH + 1)).astype(np.int32)
    return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])


TRAININGS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Array, Array]]]] = {
    "convolutions": (convolutions, images),
    "language": (language, texts),
    "recurrent": (recurrent, texts),
    "grouped": (grouped, images),
}


def batch(data: tuple[Array, Array], number: int) -> tuple[Array, ...]:
    """The batch with this number, pass after pass: 32 samples, then 5."""
    return tuple(a[32:] if number % 2 else a[:32] for a in data)


def mean(loss: Any) -> float:
    """As the runner computes it: one sum in float64."""
    values = loss.asnumpy().astype(np.float64).reshape(-1)
    return float(sum(values.tolist()) / values.size)


def go(step: Any, data: tuple[Array, Array], numbers: range) -> list[float]:
    """Train on: the mean losses."""
    return [mean(step(*batch(data, i))) for i in numbers]


def weights(step: Any) -> dict[str, Array]:
    """All parameters, as they are."""
    return {key: p.data().asnumpy().copy() for key, p in step.net._collect_params_with_prefix().items()}


def run(
    runner: pathlib.Path, *words: object, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """gg-run, with nothing in its environment but what is given."""
    line = [str(runner / "gg-run"), *map(str, words)]
    clean = {name: os.environ[name] for name in ("ASAN_OPTIONS", "LSAN_OPTIONS") if name in os.environ}
    return subprocess.run(line, capture_output=True, text=True, env={**clean, **environment}, timeout=timeout)


def logged(path: pathlib.Path) -> list[float]:
    """The losses that the runner has written."""
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]
