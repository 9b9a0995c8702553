"""Data modules and callbacks that are derived from Lightning's own classes, as those of other libraries are: they have
the same hooks, and take part."""

from __future__ import annotations

from typing import Any

from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.hooks import PACKAGES


def is_data_module(given: Any) -> bool:
    """Is it a data module, of ours or of Lightning's?

    >>> is_data_module(LightningDataModule()), is_data_module([])
    (True, False)
    """
    return isinstance(given, LightningDataModule) or _is_derived(given, "LightningDataModule")


def is_callback(given: Any) -> bool:
    """Is it a callback: one of ours, or a user's that is derived from Lightning's? Lightning's own callbacks are none:
    they look into its Trainer.

    >>> is_callback(Callback()), is_callback(print)
    (True, False)
    """
    if isinstance(given, Callback):
        return True
    own = tuple(f"{package}.callbacks" for package in PACKAGES)
    return _is_derived(given, "Callback") and not type(given).__module__.startswith(own)


def _is_derived(given: Any, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith(PACKAGES) for base in type(given).__mro__)


def idle_batches(callback: Any, trainer: Any) -> float:
    """For how many of the next batches a callback need not be called; see `Callback.idle_batches`."""
    if isinstance(callback, Callback):
        return callback.idle_batches(trainer)
    return Callback.idle_batches(callback, trainer)


def described(given: Any) -> tuple[str, str]:
    """What is wrong with something that is no callback, and the way out."""
    name = type(given).__name__
    if _is_derived(given, "Callback"):
        return f"callbacks: {name} of Lightning looks into its Trainer", f"gluongraph.lightning.callbacks.{name}"
    return f"callbacks: {given!r} is no Callback", "derive it from L.Callback"
