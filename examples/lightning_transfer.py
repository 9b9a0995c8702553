"""Transfer learning on scikit-learn's handwritten digits, in three runs of the Trainer.

    pip install torch
    python examples/lightning_transfer.py --epochs 8

A convolutional network learns the digits 0 to 4. Its features, frozen, carry a new linear layer that learns 5 to 9 from
few scans. Then all is trained a little, the features at a tenth of the rate. The script is written for Lightning: with
`import lightning.pytorch as L` it runs there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gluongraph.lightning as L

CLASSES = 5


class Classifier(L.LightningModule):
    """What both classifiers share: the loss and the accuracy."""

    def scores(self, batch: Any, stage: str) -> Any:
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        accuracy = (scores.argmax(1) == y).float().mean()
        self.log_dict({f"{stage}_loss": loss, f"{stage}_accuracy": accuracy}, prog_bar=stage != "train")
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.scores(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.scores(batch, "val")


class FromScratch(Classifier):
    """Features and a linear layer, trained together."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


class Transfer(Classifier):
    """The features of another network, frozen unless `tune`, and a linear layer of its own."""

    def __init__(self, features: nn.Module, tune: bool = False) -> None:
        super().__init__()
        self.features, self.tune = features, tune
        self.features.requires_grad_(tune)
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, x: Any) -> Any:
        self.features.eval()  # the statistics of its normalization stay, too
        if self.tune:
            return self.classifier(self.features(x))
        with torch.no_grad():
            features = self.features(x)
        return self.classifier(features)

    def configure_optimizers(self) -> Any:
        if not self.tune:
            return torch.optim.Adam(self.classifier.parameters(), lr=1e-2)
        groups = [
            {"params": self.features.parameters(), "lr": 2e-4, "name": "features"},
            {"params": self.classifier.parameters(), "name": "classifier"},
        ]
        return torch.optim.Adam(groups, lr=2e-3)


def loaders(classes: range, count: int) -> tuple[Any, Any]:
    """`count` scans of these digits to train on and the others to validate with; labels from 0 on."""
    digits = load_digits()
    mine = torch.from_numpy((digits.target >= classes.start) & (digits.target < classes.stop))
    x = torch.from_numpy(digits.images / 16).float()[mine].unsqueeze(1)
    y = torch.from_numpy(digits.target).long()[mine] - classes.start
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, val = (TensorDataset(x[rows], y[rows]) for rows in (order[:count], order[count:]))
    return DataLoader(train, batch_size=32, shuffle=True, drop_last=True), DataLoader(val, batch_size=64)


def main(argv: Sequence[str] | None = None) -> float:
    """Train three times; print the accuracies, and return the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    def run(title: str, model: Any, data: tuple[Any, Any], epochs: int) -> float:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            limit_train_batches=options.batches,
            default_root_dir=options.folder,
            log_every_n_steps=5,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, *data)
        accuracy = float(trainer.callback_metrics["val_accuracy"])
        print(f"{title}: {accuracy:.1%}")
        return accuracy

    L.seed_everything(0)
    source = FromScratch()
    run("digits 0 to 4, all weights", source, loaders(range(0, 5), 700), options.epochs)
    few = loaders(range(5, 10), 96)
    frozen = Transfer(source.features)
    before = {name: value.clone() for name, value in frozen.features.state_dict().items()}
    run("digits 5 to 9 of 96 scans, frozen features", frozen, few, 2 * options.epochs)
    assert all(torch.equal(value, before[name]) for name, value in frozen.features.state_dict().items())
    tuned = Transfer(frozen.features, tune=True)
    tuned.classifier.load_state_dict(frozen.classifier.state_dict())
    return run("digits 5 to 9 of 96 scans, all weights tuned", tuned, few, options.epochs)


if __name__ == "__main__":
    main()
