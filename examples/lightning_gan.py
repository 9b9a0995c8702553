"""A generative adversarial network on scikit-learn's handwritten digits: two optimizers, stepped by hand.

    pip install torch
    python examples/lightning_gan.py --epochs 30

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
from torch.utils.data import DataLoader, TensorDataset

import gluongraph.lightning as L

LATENT, PIXELS = 16, 64
SHADES = " .:-=+*#%@"


class GAN(L.LightningModule):
    """A generator of scans and a discriminator, each with its optimizer."""

    def __init__(self, lr: float = 1e-3, b1: float = 0.5, b2: float = 0.999) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            *(nn.Linear(LATENT, 128), nn.LeakyReLU(0.2), nn.Linear(128, 256), nn.BatchNorm1d(256), nn.LeakyReLU(0.2)),
            *(nn.Linear(256, PIXELS), nn.Sigmoid()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Linear(PIXELS, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)),
        )

    def forward(self, z: Any) -> Any:
        return self.generator(z)

    def judge(self, x: Any, real: bool) -> Any:
        """The loss of the discriminator's answer to x, if x is to be called real, or not."""
        answer = self.discriminator(x)
        wanted = torch.ones_like(answer) if real else torch.zeros_like(answer)
        return functional.binary_cross_entropy_with_logits(answer, wanted)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        (real,) = batch
        z = torch.randn(real.shape[0], LATENT)
        generating, judging = self.optimizers()

        self.toggle_optimizer(generating)
        loss = self.judge(self(z), True)
        self.log("g_loss", loss, prog_bar=True)
        self.manual_backward(loss)
        generating.step()
        generating.zero_grad()
        self.untoggle_optimizer(generating)

        self.toggle_optimizer(judging)
        loss = (self.judge(real, True) + self.judge(self(z).detach(), False)) / 2
        self.log("d_loss", loss, prog_bar=True)
        self.manual_backward(loss)
        judging.step()
        judging.zero_grad()
        self.untoggle_optimizer(judging)

    def configure_optimizers(self) -> Any:
        lr, betas = self.hparams.lr, (self.hparams.b1, self.hparams.b2)
        generating = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=betas)
        judging = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=betas)
        return [generating, judging], []


def drawn(image: Any) -> str:
    """An image of 8 by 8 pixels in letters."""
    return "\n".join("".join(SHADES[min(9, int(v * 10))] * 2 for v in row) for row in image.reshape(8, 8).tolist())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; print an image, and return both losses of the last step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batches", type=int, help="train on so many batches of each epoch")
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    L.seed_everything(0)
    scans = torch.from_numpy(load_digits().data / 16).float()
    model = GAN()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=options.epochs,
        limit_train_batches=options.batches,
        default_root_dir=options.folder,
        log_every_n_steps=10,
    )
    trainer.fit(model, DataLoader(TensorDataset(scans), batch_size=64, shuffle=True, drop_last=True))
    model.eval()
    with torch.no_grad():
        print(drawn(model(torch.randn(1, LATENT))[0]))
    losses = {name: float(trainer.callback_metrics[name]) for name in ("g_loss", "d_loss")}
    print(", ".join(f"{name} {value:.3f}" for name, value in losses.items()))
    return losses


if __name__ == "__main__":
    main()
