"""Environment variables of communicators."""

from __future__ import annotations

import os

from gluongraph.runtime.communicator.base import CommunicationError


def seconds(name: str, default: float) -> float:
    """A time that an environment variable may set.

    Raises:
        CommunicationError: it is not a positive number.

    >>> seconds("GG_COMM_NOT_SET", 9)
    9
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise CommunicationError(f"{name}={text}: a number of seconds above 0 is needed")
    return value


def number(name: str, default: int) -> int:
    """A count, of at least one, that an environment variable may set.

    Raises:
        CommunicationError: it is not a whole number above 0.

    >>> number("GG_COMM_NOT_SET", 1)
    1
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise CommunicationError(f"{name}={text}: a whole number above 0 is needed")
    return int(text)
