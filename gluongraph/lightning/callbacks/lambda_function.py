"""A callback made of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.callbacks.callback import Callback

HOOKS = tuple(
    name
    for name, value in vars(Callback).items()
    if inspect.isfunction(value) and name.startswith(("on_", "setup", "teardown"))
)


class LambdaCallback(Callback):
    """The hooks that are given by name, as `on_train_epoch_end=lambda trainer, pl_module: ...`.

    >>> said = []
    >>> callback = LambdaCallback(on_train_start=lambda trainer, pl_module: said.append("begins"))
    >>> callback.on_train_start(None, None)
    >>> said
    ['begins']

    Raises:
        TypeError: there is no such hook.
    """

    def __init__(self, **hooks: Callable[..., Any] | None):
        if unknown := [name for name in hooks if name not in HOOKS]:
            message = f"LambdaCallback: there is no hook {unknown[0]}"
            raise TypeError(with_user_location(message, help=f"hooks are {', '.join(HOOKS)}"))
        vars(self).update({name: hook for name, hook in hooks.items() if hook is not None})
