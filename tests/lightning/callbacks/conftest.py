"""Lightning itself, where it is installed: what ours is compared with."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.fixture(scope="session")
def original() -> Any:
    """`lightning.pytorch`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch", exc_type=ImportError)
