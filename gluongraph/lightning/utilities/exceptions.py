"""Errors of runs, under the names that Lightning's scripts import them by."""

from gluongraph.lightning.errors import MisconfigurationException, SIGTERMException

__all__ = ["MisconfigurationException", "SIGTERMException"]
