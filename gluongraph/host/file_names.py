"""Names of files and folders that programs give."""

from __future__ import annotations

import os
from typing import Any

from gluongraph.errors import ArgumentError, with_user_location


def check_name(asker: str, name: Any, example: str, what: str = "file") -> None:
    """Raise where the name of what `asker` is to read or write is empty; `example` is a call with one that is not.

    Some systems' calls take an empty name for the current folder, and others say that there is no such file.

    >>> check_name("save_parameters", "net.params", "net.save_parameters('net.params')")
    >>> check_name("save_parameters", "", "net.save_parameters('net.params')")
    Traceback (most recent call last):
    gluongraph.errors.ArgumentError: save_parameters: the name of the file is empty...

    Raises:
        ArgumentError: it is.
    """
    given = os.fspath(name) if isinstance(name, os.PathLike) else name
    if isinstance(given, (str, bytes)) and not given:
        raise ArgumentError(with_user_location(f"{asker}: the name of the {what} is empty", help=example))
