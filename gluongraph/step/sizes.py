"""To which sizes a free axis is padded: the policies of `mx.compile(..., sizes=)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluongraph.errors import ShapeError, with_user_location

SMALLEST = 2  # an extent of 1 broadcasts, so that a program is another one for it
LIMIT = 3  # sizes of an axis, where no policy is given
GROWTH = 4
# The least second and third size of an axis that grows. Lengths that come in order, beginning with short ones, would
# otherwise need a fourth soon.
LEAST = (0, 32, 256)
EXACT = "exact"
POWERS = "powers of two"

# (length, sizes so far, the largest length that there may be) -> size
Policy = Callable[[int, Sequence[int], int | None], int]


def policy_of(name: str, sizes: Any) -> Policy | None:
    """The policy of an axis; None if each length is compiled for itself.

    Raises:
        TypeError: `sizes` is none of None, "exact", "powers of two", a number, and a list of numbers.
        ValueError: a number is not positive.
    """
    if sizes is None:
        return few
    if sizes == EXACT:
        return None
    if sizes == POWERS:
        return powers_of_two
    numbers = [sizes] if _is_number(sizes) else sizes
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or not all(map(_is_number, numbers)):
        message = f"sizes: {name!r} cannot have {sizes!r}"
        help = f'None, "{POWERS}", "{EXACT}", a number whose multiples they are, or a list of sizes'
        raise TypeError(with_user_location(message, help=help))
    if not numbers or min(numbers) < 1:
        raise ValueError(with_user_location(f"sizes: {name!r} cannot have {sizes!r}", help="sizes are 1 or more"))
    return multiples(numbers[0]) if _is_number(sizes) else listed(name, numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def few(length: int, used: Sequence[int], most: int | None = None) -> int:
    """At most three sizes: the first length itself, a quarter of it or so, and what is larger in steps of 4, from 32
    and then from 256 on.

    >>> few(100, []), few(20, [100]), few(30, [25, 100]), few(101, [25, 100])
    (100, 25, 100, 400)
    >>> few(1, []), few(3, [2]), few(33, [2, 32])
    (2, 32, 256)
    """
    length = max(length, SMALLEST)
    fitting = [size for size in used if size >= length]
    if not used:
        return length
    if fitting:
        smaller = max(-(-min(fitting) // GROWTH), SMALLEST)
        worth = len(used) == 1 and length <= smaller and 2 * smaller <= min(fitting)
        return smaller if worth else min(fitting)
    if most is not None and len(used) >= LIMIT - 1:
        return most
    size = max(used)
    while size < length:
        size *= GROWTH
    size = max(size, LEAST[len(used)] if len(used) < LIMIT else 0)
    return size if most is None else min(size, most)


def powers_of_two(length: int, used: Sequence[int], most: int | None = None) -> int:
    """The next power of two."""
    size = SMALLEST
    while size < length:
        size *= 2
    return size if most is None else max(min(size, most), length)


def multiples(of: int) -> Policy:
    """The next multiple of a number."""

    def policy(length: int, used: Sequence[int], most: int | None = None) -> int:
        size = max(-(-length // of) * of, SMALLEST)
        return size if most is None else max(min(size, most), length)

    return policy


def listed(name: str, sizes: Sequence[int]) -> Policy:
    """The next of these sizes."""
    ordered = sorted(sizes)

    def policy(length: int, used: Sequence[int], most: int | None = None) -> int:
        for size in ordered:
            if size >= length:
                return size
        message = f"{name!r} has {length} elements, and the largest of its sizes is {ordered[-1]}"
        raise ShapeError(with_user_location(message, help=f"mx.compile(..., sizes=[..., {length}])"))

    return policy


def by_name(names: Sequence[str], sizes: Any) -> dict[str, Policy | None]:
    """The policy of each free axis: `sizes` is one for all, or a dictionary by name.

    Raises:
        ValueError: a name that there is not.
        TypeError: no policy.
    """
    given: Mapping[Any, Any] = sizes if isinstance(sizes, Mapping) else dict.fromkeys(names, sizes)
    if strange := [name for name in given if name not in names]:
        message = f"sizes: there is no free axis {strange[0]!r}"
        raise ValueError(with_user_location(message, help=f"there are {', '.join(map(repr, names)) or 'none'}"))
    return {name: policy_of(name, given.get(name)) for name in names}
