"""Which values a number may have, and the errors of those that have another: they name whose argument it was."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

from gluongraph.errors import with_user_location


class Range(NamedTuple):
    """The values from `low` to `high`; `above` leaves out the lower end, `below` the upper one. NaN is in none.

    Infinity is in those alone that are `infinite`.

    >>> 0.5 in Range(0, 1), 1.0 in Range(0, 1, below=True), math.inf in Range(0, math.inf)
    (True, False, False)
    >>> print(Range(0, 1, below=True), "|", Range(0, math.inf, above=True), "|", Range(0, math.inf, infinite=True))
    from 0 to below 1 | finite and above 0 | at least 0
    """

    low: float
    high: float
    below: bool = False
    above: bool = False
    infinite: bool = False

    def __contains__(self, value: Any) -> bool:
        if not (self.infinite or math.isfinite(value)):
            return False
        inside = self.low <= value <= self.high
        return inside and not (self.below and value == self.high) and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"from {'above ' if self.above else ''}{self.low:g} to {'below ' if self.below else ''}{self.high:g}"
        parts = [] if self.infinite else ["finite"]
        if self.low > -math.inf:
            parts.append(f"{'above' if self.above else 'at least'} {self.low:g}")
        return " and ".join(parts) or "a number"


NUMBER = Range(-math.inf, math.inf, infinite=True)
FINITE = Range(-math.inf, math.inf)
NOT_NEGATIVE = Range(0, math.inf)
POSITIVE = Range(0, math.inf, above=True)
FRACTION = Range(0, 1)  # a probability, too
BELOW_1 = Range(0, 1, below=True)  # the factor of a running average that is divided by 1 - factor; a dropout
UNKNOWN = -1  # from here on a count may be one that is not known yet: 0, or as numpy says it -1


def check_range(
    owner: object, name: str, value: Any, allowed: Range = FINITE, error: type[Exception] = ValueError
) -> None:
    """Raise unless a number is in a range. `owner`: whose argument it is, an object or the name of a function.

    What an array holds is not looked at: it may be traced, or still be computed.

    >>> check_range("clip", "max_norm", 1.0, NOT_NEGATIVE)
    >>> check_range("clip", "max_norm", math.nan, NOT_NEGATIVE)
    Traceback (most recent call last):
    ValueError: clip: max_norm must be finite and at least 0, not nan...

    Raises:
        ValueError: it is out of the range, or NaN; another class of error where one is given.
        TypeError: it is no number and no array.
    """
    if not isinstance(value, Real):  # numpy's numbers are
        if hasattr(value, "shape"):
            return
        if not hasattr(value, "__float__"):
            raise TypeError(with_user_location(f"{_name_of(owner)}: {name} is a number, not {value!r}"))
    if (number := float(value)) not in allowed:
        raise error(with_user_location(f"{_name_of(owner)}: {name} must be {allowed}, not {number:g}"))


def check_count(owner: object, name: str, value: Any, least: int = 1) -> None:
    """Raise unless it is a whole number from `least` on. `owner`: whose argument it is, or the name of a function.

    >>> check_count("Dense", "units", 0)
    Traceback (most recent call last):
    ValueError: Dense: units is a whole number from 1 on, not 0...

    Raises:
        ValueError: it is not.
    """
    if not hasattr(value, "__index__") or value < least:
        raise ValueError(
            with_user_location(f"{_name_of(owner)}: {name} is a whole number from {least} on, not {value!r}")
        )


def _name_of(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__
