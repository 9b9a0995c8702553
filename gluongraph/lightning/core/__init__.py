"""The module and the data module, under the names that Lightning's scripts import them by."""

from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.module import LightningModule

__all__ = ["LightningDataModule", "LightningModule"]
