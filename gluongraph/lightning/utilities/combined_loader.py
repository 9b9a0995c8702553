"""Several loaders as one, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.data.combined import CombinedLoader

__all__ = ["CombinedLoader"]
