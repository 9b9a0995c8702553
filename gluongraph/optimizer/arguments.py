"""Arguments of optimizers that are to be numbers, and are none: said where they are given, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from gluongraph.errors import located

P = ParamSpec("P")
_NUMBERS = ("float", "int", float, int)  # how annotations read, as text or not
_NUMBERS_OR_NONE = ("float | None", "int | None", float | None, int | None)


def checked(init: Callable[P, None]) -> Callable[P, None]:
    """The `__init__` of an optimizer; it raises TypeError where an argument annotated as a number is none."""
    annotations = {name: p.annotation for name, p in inspect.signature(init).parameters.items()}

    @wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in (*zip(annotations, args, strict=False), *kwargs.items()):
            wanted = annotations.get(name)
            if wanted in _NUMBERS or (wanted in _NUMBERS_OR_NONE and value is not None):
                check_number(args[0], name, value)
        init(*args, **kwargs)

    return call


def check_number(optimizer: Any, name: str, given: Any) -> None:
    """Raise TypeError unless it is a number, or what float() makes one of."""
    if not hasattr(given, "__float__"):
        raise TypeError(located(f"{type(optimizer).__name__}: {name} is a number, not {given!r}"))
