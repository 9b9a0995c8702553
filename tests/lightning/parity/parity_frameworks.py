"""The two frameworks that runs are compared of."""

from __future__ import annotations

import importlib
import logging
import warnings
from types import ModuleType


def lightning() -> ModuleType:
    """Lightning, silent, and without a look for MPI, which would start it.

    Raises:
        ImportError: it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("lightning.pytorch")
        environments = importlib.import_module("lightning.fabric.plugins.environments")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    environments.MPIEnvironment.detect = staticmethod(lambda: False)
    return module


def ours() -> ModuleType:
    """gluongraph.lightning."""
    return importlib.import_module("gluongraph.lightning")
