"""Segmentation by a small U-Net: discs and squares in noisy images, with several metrics.

    pip install torch
    python examples/lightning_segmentation.py --epochs 6

The script is written for Lightning: with `import lightning.pytorch as L` it runs there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gluongraph.lightning as L

SIZE, CLASSES = 24, 3  # nothing, a disc, a square


def images(count: int, seed: int) -> Any:
    """Noisy images with a disc and a square each, and the class of each pixel."""
    draw = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    places = torch.randint(5, SIZE - 5, (count, 4, 1, 1), generator=draw)
    radii = torch.randint(3, 6, (count, 2, 1, 1), generator=draw)
    disc = (x - places[:, 0]) ** 2 + (y - places[:, 1]) ** 2 < radii[:, 0] ** 2
    square = torch.maximum((x - places[:, 2]).abs(), (y - places[:, 3]).abs()) < radii[:, 1]
    classes = torch.where(square, 2, torch.where(disc, 1, 0))
    shades = torch.tensor([0.0, 0.6, 1.0])[classes] + 0.3 * torch.randn(count, SIZE, SIZE, generator=draw)
    return TensorDataset(shades.unsqueeze(1), classes)


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with normalization."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()),
    )


class UNet(nn.Module):
    """Two times down, two times up, with what was there before."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = twice(1, width), twice(width, 2 * width)
        self.lowest = twice(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_second, self.join_first = twice(4 * width, 2 * width), twice(2 * width, width)
        self.scores = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Any) -> Any:
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        lowest = self.lowest(functional.max_pool2d(second, 2))
        second = self.join_second(torch.cat((self.up_second(lowest), second), 1))
        return self.scores(self.join_first(torch.cat((self.up_first(second), first), 1)))


class Segmentation(L.LightningModule):
    """The U-Net with cross entropy; the share of right pixels, and intersection over union of each class."""

    def __init__(self, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = UNet()

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, classes = batch
        loss = functional.cross_entropy(self(x), classes)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def evaluate(self, batch: Any, stage: str) -> None:
        x, classes = batch
        scores = self(x)
        found = scores.argmax(1)
        self.log(f"{stage}_loss", functional.cross_entropy(scores, classes), prog_bar=True)
        self.log(f"{stage}_accuracy", (found == classes).float().mean(), prog_bar=True)
        for number, name in ((1, "disc"), (2, "square")):
            both = ((found == number) & (classes == number)).float().sum()
            either = ((found == number) | (classes == number)).float().sum()
            self.log(f"{stage}_iou_{name}", both / either.clamp(min=1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [schedule]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return the metrics of the best model on images that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=options.epochs,
        limit_train_batches=options.batches,
        default_root_dir=options.folder,
        logger=L.loggers.CSVLogger(options.folder, "segmentation"),
        callbacks=[
            L.callbacks.ModelCheckpoint(monitor="val_iou_disc", mode="max", save_last=True),
            L.callbacks.EarlyStopping("val_loss", patience=3),
            L.callbacks.LearningRateMonitor("epoch"),
        ],
        log_every_n_steps=5,
    )
    model = Segmentation()
    trainer.fit(
        model, DataLoader(images(512, 1), batch_size=16, shuffle=True), DataLoader(images(96, 2), batch_size=32)
    )
    (result,) = trainer.test(model, DataLoader(images(96, 3), batch_size=32), ckpt_path="best")
    return result


if __name__ == "__main__":
    main()
