"""The modules, data and Trainers of the compared runs: small ones of PyTorch's, made anew for each framework."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

FEATURES = 4


def samples(count: int, seed: int = 0) -> Any:
    """A data set of `count` vectors, with a target that is linear in them."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=draw)
    y = x @ torch.arange(1.0, FEATURES + 1).unsqueeze(1) / FEATURES + 0.1 * torch.randn(count, 1, generator=draw)
    return torch.utils.data.TensorDataset(x, y)


def loader(batches: int = 4, size: int = 4, rest: int = 0, seed: int = 0, **how: Any) -> Any:
    """A DataLoader of PyTorch's with so many whole batches, and a last one of `rest` samples."""
    return torch.utils.data.DataLoader(samples(batches * size + rest, seed), batch_size=size, **how)


def linear(L: ModuleType, **settings: Any) -> type:
    """The class of a linear model that logs its losses, with `settings` as attributes of the class."""

    class Linear(L.LightningModule):
        lr = 0.05

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(FEATURES, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

        def loss(self, batch: Any) -> Any:
            x, y = batch
            return functional.mse_loss(self(x), y)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss(batch))

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_loss", self.loss(batch))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    return type("Linear", (Linear,), settings)


def trainer(L: ModuleType, **how: Any) -> Any:
    """A Trainer on one CPU that prints nothing and writes nothing that is not asked for."""
    settings: dict[str, Any] = {
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False, "default_root_dir": "."},
        **{"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False},
        "log_every_n_steps": 1,
    }
    return L.Trainer(**settings | how)
