"""Trainings that are exported: small nets with everything that an artefact has to carry on."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 5)).astype(np.float32), RNG.integers(0, 3, 24).astype(np.int32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def network(layers: bool = True) -> gluon.HybridBlock:
    """A net; with `layers` one that draws random numbers and keeps statistics."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(6, in_units=5))
    if layers:
        net.add(gluon.nn.BatchNorm(in_channels=6), gluon.nn.Activation("tanh"), gluon.nn.Dropout(0.3))
    net.add(gluon.nn.Dense(3, in_units=6))
    net.initialize(mx.init.Xavier())
    return net


def training(
    optimizer: Any = "adam", settings: dict[str, Any] | None = None, layers: bool = True, **options: Any
) -> mx.step.TrainStep:
    """A compiled step that has not been called."""
    net = network(layers)
    for p in net.collect_params().values():
        if optimizer in ("groupadagrad", "torch.muon") and len(p.shape) != 2:
            p.grad_req = "null"  # it is for matrices
    given = {"learning_rate": 0.05} if settings is None and isinstance(optimizer, str) else settings
    trainer = gluon.Trainer(net.collect_params(), optimizer, given)
    return mx.compile(net, LOSS, trainer, **options)


def batch(number: int, size: int = 4) -> tuple[Array, Array]:
    """One of the batches."""
    at = number * size % len(X)
    return X[at : at + size], Y[at : at + size]


def run(step: Any, numbers: Sequence[int], window: int = 0, size: int = 4) -> list[Any]:
    """Train on these batches: the losses. With `window` an update for so many batches."""
    losses = []
    for number in numbers:
        losses.append((step.accumulate if window else step)(*batch(number, size)).asnumpy().tolist())
        if window and (number + 1) % window == 0:
            step.apply()
    return losses


def state(step: Any) -> dict[str, Any]:
    """All that a training goes on from, random numbers aside, by names that do not depend on the process."""
    content = mx.checkpoint.taken(step, None, None)
    arrays = {f"{group}/{name}": a.tolist() for group, of in content.groups.items() for name, a in of.items()}
    parts = {name: part for name, part in content.about["parts"].items() if name != "random"}
    return {**arrays, "parts": parts}


def exported(step: Any, folder: pathlib.Path, **how: Any) -> Any:
    """The step through a file, at the same point of the training."""
    random = mx.random.get_state()
    step.export(folder / "step.gga", **how)
    assert mx.random.get_state() == random
    return mx.load(folder / "step.gga")
