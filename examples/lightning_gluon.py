"""A Gluon net in a LightningModule, on scikit-learn's handwritten digits: the Trainer without PyTorch.

python examples/lightning_gluon.py --epochs 8
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon, nd
from gluongraph.gluon import nn

BATCH = 64


class Classifier(L.LightningModule):
    """Twice convolution, normalization and pooling, then two dense layers."""

    def __init__(self, width: int = 32, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.HybridSequential()
        for channels in (width, 2 * width):
            self.net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
        self.net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dropout(0.2), nn.Dense(10))
        self.net.initialize(mx.init.Xavier())
        self.net(nd.zeros((1, 1, 8, 8)))  # the first forward settles the shapes
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = self.loss(self.net(x), y).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def evaluate(self, batch: Any, stage: str) -> None:
        x, y = batch
        scores = self.net(x)
        self.log(f"{stage}_loss", self.loss(scores, y).mean(), prog_bar=True)
        self.log(
            f"{stage}_accuracy", (scores.argmax(axis=1).astype("int32") == y).astype("float32").mean(), prog_bar=True
        )

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), "adam", {"learning_rate": self.hparams.lr})


def loaders() -> tuple[Any, Any, Any]:
    """Loaders of the scans: of 70 % to train on, of 15 % to validate with, of 15 % to test."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    x, rest_x, y, rest_y = train_test_split(images, digits.target.astype(np.int32), test_size=0.3, random_state=0)
    parts = [(x, y), (rest_x[::2], rest_y[::2]), (rest_x[1::2], rest_y[1::2])]
    train, val, test = (gluon.data.ArrayDataset(*part) for part in parts)
    make = gluon.data.DataLoader
    return make(train, BATCH, shuffle=True, last_batch="discard"), make(val, BATCH), make(test, BATCH)


def main(argv: Sequence[str] | None = None) -> float:
    """Train; print and return the accuracy of the best model on scans that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    L.seed_everything(0)
    train, val, test = loaders()
    trainer = L.Trainer(
        max_epochs=options.epochs,
        limit_train_batches=options.batches,
        default_root_dir=options.folder,
        logger=L.loggers.CSVLogger(options.folder, "gluon"),
        callbacks=[L.callbacks.ModelCheckpoint(monitor="val_accuracy", mode="max")],
        log_every_n_steps=10,
    )
    model = Classifier()
    trainer.fit(model, train, val)
    (result,) = trainer.test(model, test, ckpt_path="best")
    print(f"{trainer.global_step} updates, test accuracy {result['test_accuracy']:.1%}; logs in {trainer.log_dir}")
    return float(result["test_accuracy"])


if __name__ == "__main__":
    main()
