"""Questions about models."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import MissingError, with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.datamodule import LightningDataModule
from gluongraph.lightning.hooks import overrides
from gluongraph.lightning.module import LightningModule


def is_overridden(method_name: str, instance: object | None, parent: type | None = None) -> bool:
    """Does a module, data module or callback have a method of its own where its base, `parent`, has one?

    >>> from gluongraph.lightning import Callback
    >>> class Mine(Callback):
    ...     def on_fit_start(self, trainer, pl_module): ...
    >>> is_overridden("on_fit_start", Mine()), is_overridden("on_fit_end", Mine())
    (True, False)

    Raises:
        ValueError: it is none of these, and no `parent` is given; or the parent has no such method.
    """
    if instance is None:
        return False
    if parent is None:
        bases = (LightningModule, LightningDataModule, Callback)
        parent = next((base for base in bases if isinstance(instance, base)), None)
    if parent is None:
        message = f"is_overridden({method_name!r}, {type(instance).__name__}): no module, data module or callback"
        raise ValueError(with_user_location(message, help="parent=..."))
    if not hasattr(parent, method_name):
        raise ValueError(with_user_location(f"{parent.__name__} has no {method_name}"))
    return overrides(instance, method_name, parent)


def get_torchvision_model(model_name: str, **kwargs: Any) -> Any:
    """The model of torchvision of that name; `kwargs` are its arguments.

    Raises:
        MissingError: torchvision is not installed.
    """
    try:
        models = import_whole("torchvision.models")
    except ImportError:
        message = f"get_torchvision_model({model_name!r}): torchvision is not installed"
        raise MissingError(with_user_location(message, help="pip install torchvision")) from None
    return models.get_model(model_name, **kwargs)
