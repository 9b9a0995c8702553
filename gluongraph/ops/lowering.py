"""The algebra of scalar (or vector) expressions for `lower` rules, which every target implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Expr = Any  # one value of the target's language: a scalar, or a vector of consecutive elements
Index = tuple[Expr, ...]
Lower = Callable[..., Expr]


class Read(Protocol):
    """A source of the op: `x(*index)` is its element there; rules may ask for its shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def __call__(self, *index: Expr) -> Expr: ...


class Algebra(Protocol):
    """Expressions on a target. Python's + - * on expressions, and the comparisons below, broadcast scalars.

    A constant operand of `binary`, `where` and `fma` is `const(value, dtype)`, of the other operands' dtype. Python's
    operators take plain numbers.

    `/` is used on floats only; integers use `floordiv` and `floormod`. An index (an element of `i`, an
    argument of `element` in `reduce`, and sums and products of them) is of type i32 or a plain Python int; the operand
    of `cast`, and either or both operands of `binary`, may be such ints.
    """

    def const(self, value: float | int | bool, dtype: str) -> Expr: ...
    def cast(self, x: Expr, dtype: str) -> Expr: ...
    def bitcast(self, x: Expr, dtype: str) -> Expr: ...
    def fma(self, x: Expr, y: Expr, z: Expr) -> Expr:
        """x * y + z of floats, rounded once where the target can."""
        ...

    def named(self, x: Expr) -> Expr:
        """x, bound to a variable: without it the expression is repeated for each reader."""
        ...

    def where(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """Both sides are evaluated: keep reads inside the array (clamp the index)."""
        ...

    def unary(self, name: str, x: Expr) -> Expr:
        """neg abs sign exp log log1p expm1 sqrt rsqrt sin cos tanh erf normal_cdf normal_pdf sigmoid floor ceil round
        logical_not isfinite isnan."""
        ...

    def binary(self, name: str, x: Expr, y: Expr) -> Expr:
        """add sub mul div pow maximum minimum floordiv floormod equal not_equal less less_equal greater
        greater_equal logical_and logical_or bitwise_xor bitwise_and bitwise_or shift_left shift_right."""
        ...

    def reduce(self, name: str, extents: Sequence[int], element: Callable[..., Expr], dtype: str) -> Expr:
        """Fold element(*r) over all r below extents with name = sum, prod, max or min. Outermost in a rule.

        `dtype` is that of the elements and of the result; sums and products of 16-bit floats accumulate in f32.
        """
        ...


def unary(name: str) -> Lower:
    """The target's function of that name."""
    return lambda e, i, x: e.unary(name, x(*i))


def binary(name: str) -> Lower:
    """The target's function of that name, of two."""
    return lambda e, i, x, y: e.binary(name, x(*i), y(*i))
