"""The error of arguments and hooks that mean nothing, under the name that Lightning's scripts import it by."""

from gluongraph.lightning.errors import MisconfigurationException

__all__ = ["MisconfigurationException"]
