"""The training loop, with Lightning's names: `import gluongraph.lightning as L`. See docs/lightning.md."""

from gluongraph.lightning import callbacks, loggers
from gluongraph.lightning.callbacks import Callback
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.errors import MisconfigurationException
from gluongraph.lightning.module import LightningModule
from gluongraph.lightning.trainer import Trainer

__all__ = [
    "Callback",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "Trainer",
    "callbacks",
    "loggers",
]
