"""The data module, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.datamodule import LightningDataModule

__all__ = ["LightningDataModule"]
