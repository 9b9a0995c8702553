"""Numbers of a program that depend on lengths, such as the 1/n of a mean: their formula, found from two traces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, is_float
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import Extents, Refusal

EXACT, ROUNDED = 1e-11, 3e-7  # relative errors of what is computed in float64, and of what has been rounded to float32
_ROOTS = (1.0, -1.0, 0.5, -0.5)
_OFFSETS = tuple(sorted(range(-16, 17), key=abs))


@dataclass(frozen=True)
class _Formula:
    """A function of the lengths, in numbers and as nodes (f32 or f64; of integers i32)."""

    number: Callable[[Mapping[str, int]], float]
    node: Callable[[Callable[[str], Node]], Node]


Three = tuple[float, float, float]  # a number in each trace


def number_of(values: Three, dtype: str, extents: Extents, lengths: Mapping[str, Node]) -> Node:
    """The number as a function of the lengths, of shape (), given what it is in each trace.

    It may be a constant times lengths, one of which may have some elements more or less, or their roots and inverses; a
    length plus a constant; or what divides by the number of elements less one.

    Raises:
        Refusal: it is no such function.
    """
    if DTYPES[dtype].family == "bool" or not all(map(math.isfinite, values)):
        raise _unknown(values)
    if is_float(dtype):
        return _float(values, dtype, extents, lengths)
    for formula in _integers(int(values[0]), extents):
        if tuple(map(formula.number, (extents.padded, extents.other, extents.third))) == values:
            return ops.cast(formula.node(lambda name: lengths[name]), dtype)
    raise _unknown(values)


def _unknown(values: Three) -> Refusal:
    a, *others = values
    told = " and ".join(f"{value:g}" for value in others)
    return Refusal(f"the number {a:g} depends on a length in a way that is not known: for others it is {told}")


def _integers(a: int, extents: Extents) -> Iterator[_Formula]:
    for name, n in extents.padded.items():
        yield _plus(name, 1, a - n)
        yield _plus(name, -1, a + n)
    for names in _subsets(extents):
        whole = math.prod(extents.padded[name] for name in names)
        if a % whole == 0:
            yield _product(dict.fromkeys(names, 1.0), 0, a // whole)


def _float(values: Three, dtype: str, extents: Extents, lengths: Mapping[str, Node]) -> Node:
    """The first formula that fits."""
    wide = "f64" if dtype == "f64" else "f32"
    single = all(float(np.float32(value)) == value for value in values)
    for formula in _floats(values[0], extents):
        if all(
            abs(formula.number(sizes) - value) <= (ROUNDED if single else EXACT) * abs(value)
            for sizes, value in zip((extents.other, extents.third), values[1:], strict=True)
        ):
            return ops.cast(formula.node(lambda name: ops.cast(lengths[name], wide)), dtype)
    raise _unknown(values)


def _floats(a: float, extents: Extents) -> Iterator[_Formula]:
    for more in _OFFSETS:
        for names in _subsets(extents):
            least = min(sizes[name] for name in names for sizes in (extents.padded, extents.other, extents.third))
            if least + more <= 0 or (more and len(names) > 1):
                continue
            for powers in itertools.product(_ROOTS, repeat=len(names)):
                shape = dict(zip(names, powers, strict=True))
                yield _product(shape, more, a / _product(shape, more, 1.0).number(extents.padded))
        if not more:
            yield from _others(a, extents)


def _others(a: float, extents: Extents) -> Iterator[_Formula]:
    yield from _counts(a, extents)
    for name, n in extents.padded.items():
        yield _plus(name, 1, a - n)
        yield _plus(name, -1, a + n)


# Functions of a count m of elements, that of an array with free axes: m of the value, the value, the value as a node.
_OF_COUNTS: tuple[tuple[Callable[[float], float], Callable[[float], float], Callable[[Node], Node]], ...] = (
    (lambda a: a + 1, lambda m: m - 1, lambda m: m - 1.0),
    (lambda a: 1 / a + 1, lambda m: 1 / (m - 1), lambda m: ops.div(1.0, m - 1.0)),
    (lambda a: a / (a - 1), lambda m: m / (m - 1), lambda m: ops.div(m, m - 1.0)),  # of the unbiased variance
    (lambda a: 1 / (1 - a), lambda m: (m - 1) / m, lambda m: ops.div(m - 1.0, m)),
)


def _counts(a: float, extents: Extents) -> Iterator[_Formula]:
    for names in _subsets(extents):
        whole = math.prod(extents.padded[name] for name in names)
        for count_of, number, node in _OF_COUNTS:
            try:
                times = round(count_of(a) / whole)
            except (ZeroDivisionError, OverflowError):
                continue
            if times > 0 and times * whole > 1 and abs(number(times * whole) - a) <= ROUNDED * abs(a):
                count = _product(dict.fromkeys(names, 1.0), 0, float(times))
                yield _of(count, number, node)


def _of(count: _Formula, number: Callable[[float], float], node: Callable[[Node], Node]) -> _Formula:
    return _Formula(lambda sizes: number(count.number(sizes)), lambda length: node(count.node(length)))


def _subsets(extents: Extents) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(extents.padded) + 1):
        yield from itertools.combinations(extents.padded, count)


def _plus(name: str, sign: int, more: float) -> _Formula:
    """sign · length + more"""

    def node(length: Callable[[str], Node]) -> Node:
        n = length(name) if sign > 0 else ops.neg(length(name))
        return n + more if more else n

    return _Formula(lambda sizes: sign * sizes[name] + more, node)


def _product(powers: Mapping[str, float], more: int, factor: float) -> _Formula:
    """factor · the product of (length + more) to its power"""

    def node(length: Callable[[str], Node]) -> Node:
        found: Node | None = None
        for name, power in powers.items():
            n = length(name) + more if more else length(name)
            n = ops.sqrt(n) if abs(power) != 1 else n
            n = ops.div(1.0, n) if power < 0 else n
            found = n if found is None else found * n
        assert found is not None
        return found * factor

    def number(sizes: Mapping[str, int]) -> float:
        found = factor
        for name, power in powers.items():
            found *= (sizes[name] + more) if power == 1.0 else (sizes[name] + more) ** power
        return found

    return _Formula(number, node)
