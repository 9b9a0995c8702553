"""`mx.util`: whether numpy's semantics are on. They never are."""

from __future__ import annotations

import os

from gluongraph.context import num_gpus


def is_np_array() -> bool:
    """Are arrays numpy-like? No."""
    return False


def is_np_shape() -> bool:
    """Do shapes follow numpy's rules for 0 and ()? No."""
    return False


def get_gpu_count() -> int:
    """How many CUDA devices there are."""
    return num_gpus()


def getenv(name: str) -> str | None:
    """An environment variable; None if it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable, or take it away with None."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
