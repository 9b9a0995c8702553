"""A module of PyTorch's on scikit-learn's handwritten digits, with its loss, its optimizer and its schedule.

    pip install torch
    python examples/torch_module.py --epochs 8

Forward, backward and the update are one compiled call. The module's own parameters are trained: at the end the module
itself predicts, in PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gluongraph as mx
from gluongraph import gluon

BATCH = 64


def network() -> Any:
    """Twice convolution, normalization and pooling, then two linear layers."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)),
    )


def main(argv: Sequence[str] | None = None) -> float:
    """Train; print and return the accuracy on scans that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args(argv)

    if importlib.util.find_spec("torch") is None:
        raise SystemExit("this example needs PyTorch: pip install torch")
    import torch

    torch.manual_seed(0)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    x, x_test, y, y_test = train_test_split(images, digits.target, test_size=0.2, random_state=0)

    model = network()
    net = mx.from_torch(model, (torch.zeros(BATCH, 1, 8, 8),), share=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    step = mx.compile(net, torch.nn.CrossEntropyLoss(label_smoothing=0.05), gluon.Trainer.from_torch(optimizer))

    order, loss = np.random.default_rng(0), None
    for epoch in range(options.epochs):
        for rows in np.array_split(order.permutation(len(x) // BATCH * BATCH), len(x) // BATCH):
            loss = step(x[rows], y[rows])
        schedule.step()
        if loss is not None:
            print(f"epoch {epoch + 1}: loss {loss.asscalar():.3f}, rate {schedule.get_last_lr()[0]:.2g}")

    model.eval()
    with torch.no_grad():
        accuracy = float((model(torch.from_numpy(x_test)).argmax(1).numpy() == y_test).mean())
    print(f"test accuracy of the module in PyTorch: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
