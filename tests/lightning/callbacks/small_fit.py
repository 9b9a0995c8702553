"""A linear model and its data, for fits of a moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon, nd


class Loader:
    """So many batches of (inputs, targets)."""

    def __init__(self, batches: int, size: int = 8):
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((4, 1))
        inputs = [rng.standard_normal((size, 4)) for _ in range(batches)]
        self._batches = [(nd.array(x), nd.array(x @ weight)) for x in inputs]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class Linear(L.LightningModule):
    """One layer of Gluon's."""

    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = gluon.nn.Dense(1, in_units=4, use_bias=False)
        self.net.initialize(mx.init.Zero())
        self.loss = gluon.loss.L2Loss()

    def _loss(self, batch: Any) -> Any:
        return self.loss(self.net(batch[0]), batch[1]).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self._loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return mx.optimizer.SGD(learning_rate=self.hparams["lr"])

    @property
    def weight(self) -> np.ndarray[Any, Any]:
        value: np.ndarray[Any, Any] = self.net.weight.data().asnumpy()
        return value.copy()


def quiet(folder: Any, **more: Any) -> L.Trainer:
    """A Trainer that shows and saves nothing unless asked to."""
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(default_root_dir=folder, **{**off, "max_epochs": 1, "log_every_n_steps": 1, **more})
