"""A module and its data: what `gluongraph fit` is tried on."""

import numpy as np

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon


class Net(L.LightningModule):
    """A small network.

    Args:
        lr: the learning rate.
        hidden: units of the hidden layer.
    """

    def __init__(self, lr: float = 0.01, hidden: int = 16):
        super().__init__()
        self.save_hyperparameters()
        self.net = gluon.nn.HybridSequential()
        self.net.add(gluon.nn.Dense(hidden, activation="relu", in_units=8), gluon.nn.Dense(3, in_units=hidden))
        self.net.initialize(mx.init.Xavier())
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self.net(x), y).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", self.loss(self.net(x), y).mean())

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", self.loss(self.net(x), y).mean())

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return gluon.Trainer(self.collect_params(), "adam", {"learning_rate": self.hparams.lr})


class Data(L.LightningDataModule):
    """The arrays of data.npz."""

    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        with np.load("data.npz") as data:
            self.arrays = data["x"], data["y"]

    def train_dataloader(self):
        return L.data.ArrayLoader(*self.arrays, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return L.data.ArrayLoader(*self.arrays, batch_size=self.hparams.batch_size)

    test_dataloader = predict_dataloader = val_dataloader
