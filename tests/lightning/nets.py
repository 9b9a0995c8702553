"""Modules and data that the tests of the training loop share."""

from __future__ import annotations

from typing import Any

import numpy as np

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class GluonModel(L.LightningModule):
    """Two layers of Gluon's with batch normalization and dropout, so that states and generators matter."""

    def __init__(self, rate: float = 0.01, optimizer: str = "adam"):
        super().__init__()
        self.save_hyperparameters()
        mx.random.seed(3)
        self.net = gluon.nn.HybridSequential(prefix="n_")
        self.net.add(
            gluon.nn.Dense(8, activation="relu", in_units=6),
            gluon.nn.BatchNorm(in_channels=8),
            gluon.nn.Dropout(0.2),
            gluon.nn.Dense(3, in_units=8),
        )
        self.net.initialize(mx.init.Xavier())
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = self.loss(self.net(x), y).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", self.loss(self.net(x), y).mean())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(self.net(batch[0]), batch[1]).mean())

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), self.hparams.optimizer, {"learning_rate": self.hparams.rate})


def data(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples and classes."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.integers(0, 3, count).astype(np.float32)


def loader(count: int = 40, batch_size: int = 8, shuffle: bool = False) -> L.ArrayLoader:
    """Batches of `data`."""
    return L.ArrayLoader(*data(count), batch_size=batch_size, shuffle=shuffle, seed=5)


def weights(module: Any) -> list[np.ndarray]:
    """Copies of all parameters and states."""
    return [p.data().asnumpy().copy() for p in module.collect_params().values()]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    """Have they the same bits?"""
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))
