"""Lazy imports: parts of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any


def imported_later(
    package: str, modules: Collection[str] = (), members: Mapping[str, str] = MappingProxyType({}), **called: str
) -> Callable[[str], Any]:
    """The `__getattr__` of a package: these modules in it are attributes without having been imported; so are those
    that are `called` otherwise, `img="image"`, and the `members` of other modules, {"ImageIter": "gluongraph.io"}. Of
    MXNet's names that do not exist it says what to do instead."""

    def find(name: str) -> Any:
        if name in modules or name in called:
            return importlib.import_module(f"{package}.{called.get(name, name)}")
        if name in members:
            return getattr(importlib.import_module(members[name]), name)
        # A module that lies there is no name of MXNet's: Python imports it when it hears that there is no attribute.
        if not name.startswith("__") and find_spec(f"{package}.{name}") is None:
            caller = sys._getframe(1).f_code.co_filename
            imported = caller == "<frozen importlib._bootstrap>"  # `from package import name`
            path = f"{package}.{name}".removeprefix("gluongraph.")
            if (wrong := importlib.import_module("gluongraph.mxnet.missing").refusal(path, imported)) is not None:
                raise wrong
        message = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[package])  # by which Python says what may be meant

    return find
