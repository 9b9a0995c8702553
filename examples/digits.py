"""A small convolutional network on scikit-learn's handwritten digits: 1,797 scans of 8x8 pixels, in the package itself.

The whole training step is one compiled call: forward, backward and the update. At the end: accuracy on scans that were
not trained on, the time of one step beside eager mode's and PyTorch's, and where the generated code lies.

    python examples/digits.py --epochs 8
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.cli.words import count
from gluongraph.gluon import nn

BATCH = 64
CHANNELS, HIDDEN, CLASSES = (32, 64), 128, 10


def datasets(seed: int) -> tuple[gluon.data.ArrayDataset, gluon.data.ArrayDataset]:
    """Four fifths of the scans to train on and the rest, as images of one channel with values from 0 to 1."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    parts = train_test_split(
        images, digits.target.astype(np.int32), test_size=0.2, random_state=seed, stratify=digits.target
    )
    return gluon.data.ArrayDataset(parts[0], parts[2]), gluon.data.ArrayDataset(parts[1], parts[3])


def network() -> nn.HybridSequential:
    """Twice convolution, normalization and pooling, then two dense layers."""
    net = nn.HybridSequential()
    for channels in CHANNELS:
        net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(HIDDEN, activation="relu"), nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier())
    return net


def main(argv: Sequence[str] | None = None) -> float:
    """Train, tell, and return the accuracy on the test scans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=count, default=8)
    parser.add_argument("--steps", type=count, help="stop after so many steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="train op by op instead of compiled")
    options = parser.parse_args(argv)
    mx.random.seed(options.seed)
    np.random.seed(options.seed)  # shuffles the batches

    train, test = datasets(options.seed)
    net, loss = network(), gluon.loss.SoftmaxCrossEntropyLoss()
    net(nd.array(train[:1][0]))  # the first forward settles the shapes
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    compiled = mx.compile(net, loss, trainer)
    step = eager_step(net, loss, trainer) if options.eager else compiled
    fit(step, train, options.epochs, options.steps)

    right = accuracy(net, test)
    print(f"test accuracy {right:.1%} of {len(test)} scans")
    compare(train, net, loss, trainer, compiled, rounds=30 if options.steps is None else 2)
    return right


def eager_step(net: Any, loss: Any, trainer: gluon.Trainer) -> Callable[[Any, Any], Any]:
    """The same step, one op after the other."""

    def step(x: Any, y: Any) -> Any:
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(x.shape[0])
        return value

    return step


def fit(step: Callable[[Any, Any], Any], train: Any, epochs: int, limit: int | None) -> None:
    """Train, with a bar that shows the mean loss of the epoch."""
    loader = gluon.data.DataLoader(train, BATCH, shuffle=True, last_batch="discard")
    total = min(epochs * len(loader), limit or epochs * len(loader))
    with tqdm(total=total, unit="step", desc="first step") as bar:
        for epoch in range(epochs):
            mean = mx.metric.Loss()
            for x, y in loader:
                if bar.n == total:
                    return
                mean.update(None, [step(x, y)])
                bar.set_description(f"epoch {epoch + 1}, loss {mean.get()[1]:.4f}", refresh=False)
                bar.update()


def accuracy(net: Any, test: Any) -> float:
    """Share of the scans whose digit is found."""
    metric = mx.metric.Accuracy()
    for x, y in gluon.data.DataLoader(test, BATCH):
        metric.update([y], [net(x)])
    return float(metric.get()[1])


def compare(train: Any, net: Any, loss: Any, trainer: gluon.Trainer, compiled: Any, rounds: int) -> None:
    """Print the time of one step: compiled, op by op, and PyTorch op by op."""
    x, y = train[:BATCH]
    batch = nd.array(x), nd.array(y, dtype="int32")
    print(f"time per step, {BATCH} scans:")
    times = {
        "compiled": seconds(lambda: compiled(*batch), rounds),
        "eager": seconds(lambda: eager_step(net, loss, trainer)(*batch), rounds),
    }
    if importlib.util.find_spec("torch") is not None:
        times["PyTorch eager"] = seconds(torch_step(x, y), rounds)
    for name, each in times.items():
        print(f"  {name:15}{each * 1e3:8.2f} ms{each / times['compiled']:8.1f}x")
    if "PyTorch eager" not in times:
        print("  PyTorch is not installed, so it is not compared")
    code = compiled.artefact
    print(f"a compiled step is {len(compiled.plan.launches)} kernel calls, {len(compiled.kernels)} kernels;", end=" ")
    print(
        f"{code.compiled} of them were compiled now, in {code.seconds:.1f} s" if code.compiled else "none compiled now"
    )
    print(f"the generated code: {code.path or 'in memory, for want of a linker'}")


def seconds(step: Callable[[], Any], rounds: int) -> float:
    """Median of some calls after the first."""
    step()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def torch_step(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Callable[[], Any]:
    """The same model and batch in PyTorch, with its fused Adam."""
    import torch
    from torch import nn as tnn

    layers: list[tnn.Module] = []
    for inputs, channels in zip((1, *CHANNELS), CHANNELS, strict=False):
        layers += [tnn.Conv2d(inputs, channels, 3, padding=1), tnn.BatchNorm2d(channels), tnn.ReLU(), tnn.MaxPool2d(2)]
    features = CHANNELS[-1] * (x.shape[2] // 4) * (x.shape[3] // 4)
    net = tnn.Sequential(*layers, tnn.Flatten(), tnn.Linear(features, HIDDEN), tnn.ReLU(), tnn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    images, labels = torch.from_numpy(x), torch.from_numpy(y).long()

    def step() -> Any:
        optimizer.zero_grad()
        value = tnn.functional.cross_entropy(net(images), labels)
        value.backward()
        optimizer.step()
        return value

    return step


if __name__ == "__main__":
    main()
