"""A module of PyTorch's and the Trainer on scikit-learn's handwritten digits: fit, logs, checkpoints, going on, test.

    pip install torch
    python examples/lightning_digits.py --epochs 8

`training_step` is traced once, and compiled together with its gradients and the update. The script is written for
Lightning: with `import lightning.pytorch as L` it runs there.
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


class Classifier(L.LightningModule):
    """Twice convolution, normalization and pooling, then two linear layers."""

    def __init__(self, width: int = 32, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(8 * width, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)),
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = functional.cross_entropy(self(x), y, label_smoothing=0.05)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def evaluate(self, batch: Any, stage: str) -> None:
        x, y = batch
        scores = self(x)
        self.log(f"{stage}_loss", functional.cross_entropy(scores, y), prog_bar=True)
        self.log(f"{stage}_accuracy", (scores.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Digits(L.LightningDataModule):
    """1,797 scans of 8x8 pixels, in three parts."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.from_numpy(digits.images / 16).float().unsqueeze(1)
        scans = TensorDataset(images, torch.from_numpy(digits.target).long())
        self.train, self.val, self.test = random_split(scans, [0.7, 0.15, 0.15], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, batch_size=self.hparams.batch_size)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test, batch_size=self.hparams.batch_size)


def main(argv: Sequence[str] | None = None) -> float:
    """Train, in two parts; print and return the accuracy of the best model on scans that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    def trainer(epochs: int) -> Any:
        best = L.callbacks.ModelCheckpoint(monitor="val_accuracy", mode="max", save_last=True)
        return L.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            limit_train_batches=options.batches,
            gradient_clip_val=1.0,
            default_root_dir=options.folder,
            logger=L.loggers.CSVLogger(options.folder, "digits"),
            callbacks=[best, L.callbacks.EarlyStopping("val_loss", patience=4), L.callbacks.LearningRateMonitor()],
            log_every_n_steps=10,
        )

    L.seed_everything(0)
    data, first = Digits(), trainer(max(1, options.epochs // 2))
    first.fit(Classifier(), datamodule=data)
    # Another Trainer goes on where that one ended, with a module that is made of the checkpoint's hyperparameters.
    last = first.checkpoint_callback.last_model_path
    then, model = trainer(options.epochs), Classifier.load_from_checkpoint(last)
    then.fit(model, datamodule=data, ckpt_path=last)
    (result,) = then.test(model, datamodule=data, ckpt_path="best")
    print(f"{then.global_step} updates, test accuracy {result['test_accuracy']:.1%}; logs in {then.log_dir}")
    return float(result["test_accuracy"])


if __name__ == "__main__":
    main()
