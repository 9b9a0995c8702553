"""Parts of a package that are imported when somebody asks for them: no program waits for what it does not use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection
from typing import Any


def imported_later(package: str, modules: Collection[str], **called: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: these modules in it are attributes without having been imported; so are those
    that are `called` otherwise, `img="image"`."""

    def find(name: str) -> Any:
        if name in modules or name in called:
            return importlib.import_module(f"{package}.{called.get(name, name)}")
        message = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[package])  # by which Python says what may be meant

    return find
