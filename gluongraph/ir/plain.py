"""Conversion of users' numbers to Python's own types, the only ones in graphs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

PLAIN: frozenset[Any] = frozenset({int, float, bool, str, bytes, type(None)})  # what needs no looking at
_INTEGER = frozenset({int})
_BASES: tuple[Any, ...] = (int, float, str, bytes)  # subclasses of these, as enums are, are what they hold


def plain(value: Any) -> Any:
    """numpy's numbers, and its arrays of one number without axes, as Python's; lists as tuples; all else as it is.

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
    """Are all values of a tuple of these types? A loop, since calls of eager mode ask."""
    for value in values:  # noqa: SIM110  # a generator takes three times as long
        if value.__class__ not in kinds:
            return False
    return True


def extents(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of Python's integers; one number is the shape of a single axis.

    Raises:
        TypeError: an extent is no integer.
    """
    if shape.__class__ is tuple and is_flat(shape, _INTEGER):
        return shape
    given = plain(shape)
    if isinstance(given, int):
        return (given,)
    return tuple(map(operator.index, given))
