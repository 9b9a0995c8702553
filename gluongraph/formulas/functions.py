"""What formulas use instead of `float` and `math`: the same of floats, rows of a tape of symbols."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

from gluongraph.formulas.symbols import Symbol


def number(x: float) -> float:
    """float(x); of a symbol the symbol."""
    return x if isinstance(x, Symbol) else float(x)


def sqrt(x: float) -> float:
    """The square root."""
    return x.made("sqrt") if isinstance(x, Symbol) else math.sqrt(x)


def exp(x: float) -> float:
    """e to that power."""
    return x.made("exp") if isinstance(x, Symbol) else math.exp(x)


def log(x: float) -> float:
    """The natural logarithm."""
    return x.made("log") if isinstance(x, Symbol) else math.log(x)


def sin(x: float) -> float:
    """The sine."""
    return x.made("sin") if isinstance(x, Symbol) else math.sin(x)


def cos(x: float) -> float:
    """The cosine."""
    return x.made("cos") if isinstance(x, Symbol) else math.cos(x)


def tanh(x: float) -> float:
    """The hyperbolic tangent."""
    return x.made("tanh") if isinstance(x, Symbol) else math.tanh(x)


def known(x: float | None) -> TypeGuard[float]:
    """Is it a number, and not None? On a tape None is NaN."""
    return bool(x.made("known")) if isinstance(x, Symbol) else x is not None


def product(
    factor: Callable[[int], float],
    first: int,
    last: int,
    least: float,
    memory: dict[tuple[float, ...], list[float]],
    settings: tuple[float, ...],
) -> float:
    """factor(first) ... factor(last), multiplied from the left; it ends once it is at most `least`.

    `memory` keeps the products that have been made, for the next `last`, of the settings that they depend on.
    """
    if isinstance(last, Symbol):
        return last.trace.product(factor, first, last, least)
    done = last - first + 1
    if settings not in memory:
        memory.clear()
        memory[settings] = [1.0]
    made = memory[settings]
    while len(made) <= done and made[-1] > least:
        made.append(made[-1] * factor(first - 1 + len(made)))
    return made[min(done, len(made) - 1)]
