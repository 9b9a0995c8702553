"""Where the padding of an array lies: each of its axes as a product of factors, some of which are free.

A program is traced for several sets of extents. An axis whose extent differs between the traces is made of free axes;
which, and how they are merged with others, is what rules carry from the sources of a node to its result. Of a free
factor the first `length + offset` elements are valid, where `length` is known at each call only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

UNIFORM = "*"  # the name of an extent that differs between the traces, along which any order of elements is the same


class Refusal(Exception):
    """Why an op cannot be computed on padded arrays."""


@dataclass(frozen=True)
class Factor:
    """A factor of an extent: its size in the padded trace and in the other; the free axis it is, if it is one."""

    size: int
    other: int
    name: str = ""
    offset: int = 0


Axis = tuple[Factor, ...]  # the slowest first; () is an extent of 1
Layout = tuple[Axis, ...]


@dataclass(frozen=True)
class Extents:
    """The extents of the free axes, by name, in the padded trace and in the others."""

    padded: Mapping[str, int]
    other: Mapping[str, int]
    third: Mapping[str, int]  # of the trace that only tells formulas of numbers apart

    def axis(self, size: int, other: int) -> Axis:
        """An extent that is fixed, or differs between the traces and is not known to be a certain free axis."""
        if size == other:
            return fixed(size)
        return (Factor(size, other, UNIFORM),)

    def free(self, name: str, offset: int = 0) -> Axis:
        """The extent of a free axis, and so many elements more."""
        return (Factor(self.padded[name] + offset, self.other[name] + offset, name, offset),)

    def third_shape(self, layout: Layout, given: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in the third trace; of axes that are not known, what is given."""
        return tuple(
            n if any(f.name == UNIFORM for f in axis) else math.prod(_count(f, self.third) for f in axis)
            for axis, n in zip(layout, given, strict=True)
        )

    def named(self, axis: Axis) -> Axis:
        """The axis with free axes in place of what is uniform. By its sizes that is a length plus or times a constant.

        Raises:
            Refusal: the sizes are none of these.
        """
        return merged(f for given in axis for f in (self._named(given) if given.name == UNIFORM else (given,)))

    def _named(self, given: Factor) -> Axis:
        size, other = given.size, given.other
        found = [
            (abs(size - n), self.free(name, size - n))
            for name, n in self.padded.items()
            if size - n == other - self.other[name]
        ]
        if found:
            return min(found, key=lambda each: each[0])[1]
        for count in range(1, len(self.padded) + 1):
            for names in permutations(self.padded, count):
                whole = tuple(f for name in names for f in self.free(name))
                n, m = math.prod(f.size for f in whole), math.prod(f.other for f in whole)
                if size % n == 0 and other % m == 0 and size // n == other // m:
                    return (*whole, *fixed(size // n))
        raise Refusal(f"an extent of {size} follows the lengths in a way that is not known")


def fixed(size: int) -> Axis:
    """An extent that does not depend on lengths."""
    return () if size == 1 else (Factor(size, size),)


def is_fixed(axis: Axis) -> bool:
    """Does the extent depend on no length?"""
    return not any(f.name for f in axis)


def need_fixed(what: str, *axes: Axis) -> None:
    """Raise Refusal if one of these extents depends on a length."""
    if not all(map(is_fixed, axes)):
        raise Refusal(f"{what} varies")


def sizes(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes in the padded trace and in the other."""
    return (
        tuple(math.prod(f.size for f in axis) for axis in layout),
        tuple(math.prod(f.other for f in axis) for axis in layout),
    )


def merged(factors: Iterable[Factor]) -> Axis:
    """The factors with neighbours that are fixed as one, and without those of 1."""
    found: list[Factor] = []
    for f in factors:
        if not f.name and found and not found[-1].name:
            found[-1] = Factor(found[-1].size * f.size, found[-1].other * f.other)
        elif f.name or f.size != 1:
            found.append(f)
    return tuple(found)


def joined(layouts: Sequence[Layout]) -> Layout:
    """The layout of elements that are computed from those at the same place of each.

    Raises:
        Refusal: their paddings lie at different places.
    """
    return tuple(_joined(axes) for axes in zip(*layouts, strict=True))


def _joined(axes: Sequence[Axis]) -> Axis:
    found = axes[0]
    for axis in axes[1:]:
        if axis != found:
            found = _both(found, axis)
    return found


def _both(one: Axis, other: Axis) -> Axis:
    """An axis that is both: what is uniform in one becomes what it is in the other."""
    queues, found = (list(one[::-1]), list(other[::-1])), list[Factor]()
    while all(queues):
        f, g = (queue.pop() for queue in queues)
        if f == g:
            found.append(f)
            continue
        if f.name != UNIFORM:
            f, g, queues = g, f, queues[::-1]
        if f.name != UNIFORM or f.size % g.size or f.other % g.other:
            break
        found.append(g)
        if (rest := _part(f.size // g.size, f.other // g.other)) != Factor(1, 1):
            queues[0].append(rest)
    else:
        if not any(queues):
            return merged(found)
    raise Refusal("it joins axes whose lengths are not the same: " + " and ".join(map(shown, (one, other))))


def shown(axis: Axis) -> str:
    """An axis for messages."""
    names = (f.name and f"{f.name}{f'{f.offset:+}' if f.offset else ''}" for f in axis)
    return " x ".join(name or str(f.size) for name, f in zip(names, axis, strict=True)) or "1"


def regrouped(layout: Layout, shape: Sequence[int], other: Sequence[int]) -> Layout:
    """The layout of the same elements, in the same order, in another shape.

    Raises:
        Refusal: the shape cuts a free axis into parts.
    """
    queue = list(reversed(merged(f for axis in layout for f in axis)))
    found: list[Axis] = []
    for wanted in zip(shape, other, strict=True):
        size, size_other = wanted
        axis: list[Factor] = []
        while (size, size_other) != (1, 1):
            if not queue:
                raise Refusal("it changes the shape in a way that is not known")
            taken, rest = _taken(queue.pop(), size, size_other)
            if rest is not None:
                queue.append(rest)
            axis.append(taken)
            size, size_other = size // taken.size, size_other // taken.other
        found.append(merged(axis))
    return tuple(found)


def _taken(f: Factor, size: int, other: int) -> tuple[Factor, Factor | None]:
    """The part of a factor that goes into an extent of that size, and what is left for the next."""
    if size % f.size == 0 and other % f.other == 0:
        return f, None
    if f.size % size == 0 and f.other % other == 0 and (f.name == UNIFORM or (not f.name and size == other)):
        return _part(size, other), _part(f.size // size, f.other // other)
    raise Refusal(f"it cuts {shown((f,))} elements into parts of {size}")


def _part(size: int, other: int) -> Factor:
    return Factor(size, other, "" if size == other else UNIFORM)


def valid_part(array: Any, layout: Layout, lengths: Mapping[str, int]) -> Any:
    """The valid elements of an array, for these lengths."""
    if all(map(is_fixed, layout)):
        return array
    factors = [f for axis in layout for f in axis]
    whole = array.reshape([f.size for f in factors])
    part = whole[tuple(slice(_count(f, lengths)) for f in factors)]
    return np.ascontiguousarray(part).reshape(valid_shape(layout, lengths))


def valid_shape(layout: Layout, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the valid elements, for these lengths."""
    return tuple(math.prod(_count(f, lengths) for f in axis) for axis in layout)


def _count(f: Factor, lengths: Mapping[str, int]) -> int:
    return lengths[f.name] + f.offset if f.name else f.size
