"""The dict whose values are attributes, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.hparams import Hyperparameters as AttributeDict

__all__ = ["AttributeDict"]
