"""The module, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.module import LightningModule

__all__ = ["LightningModule"]
