"""A language model of torch.nn's Transformer layers, which learns Python from the standard library, letter by letter.

    pip install torch
    python examples/lightning_transformer.py --steps 300

The script is written for Lightning: with `import lightning.pytorch as L` it runs there.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, random_split

import gluongraph.lightning as L

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
LENGTH = 32


class Text(Dataset):  # type: ignore[type-arg]
    """Pieces of a text as numbers of letters: LENGTH of them, and the same one further."""

    def __init__(self, files: Sequence[str] = ("argparse.py", "ast.py", "calendar.py", "textwrap.py")) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = "".join((folder / name).read_text() for name in files)
        self.letters = torch.tensor([ALPHABET.index(c) for c in text if c in ALPHABET])

    def __len__(self) -> int:
        return len(self.letters) // LENGTH - 1

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        start = index * LENGTH
        return self.letters[start : start + LENGTH], self.letters[start + 1 : start + LENGTH + 1]


class Transformer(nn.Module):
    """Embedding, positions, encoder layers that look back only, and scores of the next letter."""

    def __init__(
        self, width: int = 64, heads: int = 4, hidden: int = 128, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, len(ALPHABET))
        at = torch.arange(LENGTH).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("positions", torch.stack((at.sin(), at.cos()), 2).reshape(LENGTH, width))
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))
        self.width = width

    def forward(self, letters: Any) -> Any:
        x = self.embedding(letters) * math.sqrt(self.width) + self.positions
        return self.decoder(self.encoder(x, mask=self.mask))


class LanguageModel(L.LightningModule):
    """The Transformer, and the cross entropy of the next letter."""

    def __init__(self, lr: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = Transformer()

    def loss(self, batch: Any) -> Any:
        letters, following = batch
        scores = self.model(letters)
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(argv: Sequence[str] | None = None) -> float:
    """Train; print and return the cross entropy of pieces that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", default=".", help="where logs and checkpoints go")
    options = parser.parse_args(argv)

    L.seed_everything(42)
    train, val, test = random_split(Text(), [0.9, 0.05, 0.05], torch.Generator().manual_seed(42))
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        max_epochs=-1,
        gradient_clip_val=0.25,
        default_root_dir=options.folder,
        callbacks=[L.callbacks.LearningRateMonitor("step")],
        log_every_n_steps=10,
    )
    model = LanguageModel()
    whole = {"batch_size": 32, "drop_last": True}
    trainer.fit(model, DataLoader(train, shuffle=True, **whole), DataLoader(val, **whole))
    (result,) = trainer.test(model, DataLoader(test, **whole))
    print(f"cross entropy of a letter {result['test_loss']:.3f}, {math.log(len(ALPHABET)):.3f} when all are alike")
    return float(result["test_loss"])


if __name__ == "__main__":
    main()
