"""scikit-learn's handwritten digits on several processes, each with its share of every batch.

    gluongraph run -n 2 examples/distributed_digits.py --epochs 8

The same program runs on one process too. Gradients are summed over all workers in the compiled step, so two workers
train what one would on the whole batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.cli.words import count
from gluongraph.gluon import nn

BATCH = 64  # of all workers together


def network() -> nn.HybridSequential:
    """Two convolutions, then two dense layers."""
    net = nn.HybridSequential()
    for channels in (32, 64):
        net.add(nn.Conv2D(channels, 3, padding=1, activation="relu"), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


def main(argv: Sequence[str] | None = None) -> float:
    """Train, tell, and return the accuracy on digits that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=count, default=8)
    parser.add_argument("--steps", type=count, help="stop after so many steps")
    parser.add_argument("--kv-store", default="dist_sync", help="dist_sync, or dist_async with a server")
    parser.add_argument("--strategy", help="zero1, zero2 or fsdp: what each worker keeps")
    options = parser.parse_args(argv)
    mx.random.seed(0)

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    x, x_test, y, y_test = train_test_split(images, digits.target.astype(np.int32), test_size=0.2, random_state=0)
    net, loss = network(), gluon.loss.SoftmaxCrossEntropyLoss()
    net(nd.array(x[:1]))  # the first forward settles the shapes
    trainer = gluon.Trainer(
        net.collect_params(), "adam", {"learning_rate": 2e-3}, kvstore=options.kv_store, strategy=options.strategy
    )
    step = mx.compile(net, loss, trainer)
    workers = trainer.communicator
    own = slice(workers.rank * BATCH // workers.size, (workers.rank + 1) * BATCH // workers.size)
    order, batches = np.random.default_rng(0), len(x) // BATCH  # the same order on all workers
    for epoch in range(options.epochs):
        total = 0.0
        for chosen in order.permutation(len(x))[: batches * BATCH].reshape(batches, BATCH)[: options.steps]:
            total += float(step(x[chosen[own]], y[chosen[own]]).mean().asscalar())
        if workers.rank == 0:
            print(f"epoch {epoch}: loss {total / batches:.3f} on worker 0 of {workers.size}")
    right = float((step.predict(nd.array(x_test)).asnumpy().argmax(1) == y_test).mean())
    if workers.rank == 0:
        print(f"test accuracy {right:.1%} of {len(y_test)} scans")
    return right


if __name__ == "__main__":
    main()
