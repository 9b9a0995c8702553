"""An autoencoder of scikit-learn's handwritten digits: 64 pixels, three numbers, 64 pixels again.

    pip install torch
    python examples/lightning_autoencoder.py --epochs 15

The script is written for Lightning: with `import lightning.pytorch as L` it runs there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

import gluongraph.lightning as L


class LitAutoEncoder(L.LightningModule):
    """An encoder, a decoder, and the squared error of what comes back."""

    def __init__(self, hidden: int = 64, code: int = 3, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 64))

    def forward(self, x: Any) -> Any:
        return self.encoder(x)

    def loss(self, batch: Any) -> Any:
        (x,) = batch
        return functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Digits(L.LightningDataModule):
    """The scans as vectors, without their labels: three parts."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        pixels = torch.from_numpy(load_digits().data / 16).float()
        parts = random_split(TensorDataset(pixels), [0.7, 0.15, 0.15], torch.Generator().manual_seed(0))
        self.train, self.val, self.test = parts

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, batch_size=self.batch_size)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test, batch_size=self.batch_size)

    def predict_dataloader(self) -> Any:
        return DataLoader(self.test, batch_size=self.batch_size)


def main(argv: Sequence[str] | None = None) -> float:
    """Train; print and return the error of the best model on scans that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    L.seed_everything(0)
    best = L.callbacks.ModelCheckpoint(monitor="val_loss", filename="{epoch}-{val_loss:.4f}")
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=options.epochs,
        limit_train_batches=options.batches,
        default_root_dir=options.folder,
        callbacks=[best],
        log_every_n_steps=10,
    )
    data = Digits()
    trainer.fit(LitAutoEncoder(), datamodule=data)
    (result,) = trainer.test(datamodule=data, ckpt_path="best")
    codes = torch.cat(trainer.predict(datamodule=data, ckpt_path="best"))
    spread = ", ".join(f"{value:.2f}" for value in codes.std(0).tolist())
    print(f"error of a pixel {result['test_loss']:.4f}; deviations of the three numbers {spread}")
    return float(result["test_loss"])


if __name__ == "__main__":
    main()
