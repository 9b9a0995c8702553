"""The module and the data module, under the names that Lightning's scripts import them by."""

from gluongraph.lightning.absent import says_what_instead
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.module import LightningModule

__all__ = ["LightningDataModule", "LightningModule"]

__getattr__ = says_what_instead(__name__, {})
