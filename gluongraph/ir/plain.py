"""Conversion of users' numbers to Python's own types, the only ones in graphs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

PLAIN: frozenset[Any] = frozenset({int, float, bool, str, bytes, type(None)})  # types that need no conversion
_INTEGER = frozenset({int})
_BASES: tuple[Any, ...] = (int, float, str, bytes)  # subclasses of these, such as enums, are converted to them


def plain(value: Any) -> Any:
    """Convert numpy scalars, and arrays without axes, to Python's numbers, and lists to tuples; return others
    unchanged.

    >>> import numpy as np
    >>> plain((np.int64(2), [np.float32(0.5), np.bool_(True)]))
    (2, (0.5, True))
    """
    kind = value.__class__
    if kind in PLAIN or (kind is tuple and is_flat(value)):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        number = value.item()
        return float(number) if isinstance(number, np.longdouble) else number
    for base in _BASES:
        if isinstance(value, base):
            return base(value)
    return value


def is_flat(values: tuple[Any, ...], kinds: frozenset[Any] = PLAIN) -> bool:
    """Are all values of a tuple of these types? A loop, since every call in eager mode checks this."""
    for value in values:  # noqa: SIM110  # a generator takes three times as long
        if value.__class__ not in kinds:
            return False
    return True


def extents(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of Python's integers; a number is the shape of a single axis.

    Raises:
        TypeError: an extent is not an integer.
    """
    if shape.__class__ is tuple and is_flat(shape, _INTEGER):
        return shape
    given = plain(shape)
    if isinstance(given, int):
        return (given,)
    return tuple(map(operator.index, given))
