"""The training loop, with Lightning's names: `import gluongraph.lightning as L`. See docs/lightning.md."""

from gluongraph.lightning import accelerators, callbacks, core, data, loggers, profilers, strategies, tuner, utilities
from gluongraph.lightning.callbacks import Callback
from gluongraph.lightning.data import ArrayLoader
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import MisconfigurationException
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.trainer import Trainer
from gluongraph.lightning.utilities import cli_lightning_logo, seed_everything

__all__ = [
    "ArrayLoader",
    "Callback",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "Trainer",
    "accelerators",
    "callbacks",
    "cli_lightning_logo",
    "core",
    "data",
    "loggers",
    "profilers",
    "seed_everything",
    "strategies",
    "tuner",
    "utilities",
]
