"""The optimizer as hooks and manual optimization get it, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.optimizers import LightningOptimizer

__all__ = ["LightningOptimizer"]
