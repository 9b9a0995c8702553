"""Names of Lightning's that do not exist here: asking for one, or importing it, says what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from gluongraph.errors import MissingError, with_user_location
from gluongraph.host.interrupts import import_whole


class AbsentName(ImportError, NotImplementedError):
    """A name of Lightning's that is imported and does not exist here; try and except ImportError finds another way."""


def says_what_instead(package: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package in which these names do not exist. Modules in it are imported by it, as
    `L.utilities.model_summary`.

    >>> find = says_what_instead("gluongraph.lightning.callbacks", {"ModelPruning": "prune after the training"})
    >>> find("ModelPruning")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    gluongraph.errors.MissingError: gluongraph.lightning.callbacks.ModelPruning does not exist
      help: prune after the training
    """

    def find(name: str) -> Any:
        if name not in instead:
            if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_whole(f"{package}.{name}")
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules.get(package))
        message = with_user_location(f"{package}.{name} does not exist", help=instead[name])
        if sys._getframe(1).f_code.co_filename == "<frozen importlib._bootstrap>":  # from package import name
            raise AbsentName(message, name=package)
        raise MissingError(message)

    return find
