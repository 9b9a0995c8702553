"""Loaders as the training loop reads them: limits, several at once, parts by rank, and where in an epoch they are."""

from gluongraph.lightning.data.array_loader import ArrayLoader
from gluongraph.lightning.data.combined import CombinedLoader
from gluongraph.lightning.data.position import EpochIterator

__all__ = ["ArrayLoader", "CombinedLoader", "EpochIterator"]
