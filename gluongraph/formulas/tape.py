"""Tapes: formulas over named numbers as rows of data, computed in float64 as C computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gluongraph.errors import FormatError, MXNetError

Row = tuple[Any, ...]
LONGEST = 1 << 24  # turns of a product


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and math.fmod(b, 2) else math.inf
    except ValueError:  # a root of a negative number, or 0 ** -1
        return math.nan if a else math.inf


def _remainder(a: float, b: float) -> float:
    return a % b if b and math.isfinite(a) else math.nan


def _whole(a: float, b: float) -> float:
    return a // b if b and math.isfinite(a) else math.nan


def _guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    """The function; where Python raises an error, C gives NaN, and so does this (of exp and log infinity)."""

    def guarded(x: float) -> float:
        try:
            return float(function(x))
        except OverflowError:
            return math.inf if function is math.exp else x
        except ValueError:
            return -math.inf if function is math.log and x == 0 else math.nan

    return guarded


# Name -> how many numbers it takes, and what it makes of them.
FUNCTIONS: dict[str, tuple[int, Callable[..., float]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "div": (2, _divided),
    "pow": (2, _power),
    "floordiv": (2, _whole),
    "mod": (2, _remainder),
    "neg": (1, lambda a: -a),
    "abs": (1, abs),
    **{name: (1, _guarded(getattr(math, name))) for name in ("sqrt", "exp", "log", "sin", "cos", "tanh")},
    **{name: (1, _guarded(getattr(math, name))) for name in ("floor", "ceil")},
    "lt": (2, lambda a, b: float(a < b)),
    "le": (2, lambda a, b: float(a <= b)),
    "eq": (2, lambda a, b: float(a == b)),
    "ne": (2, lambda a, b: float(a != b)),
    "gt": (2, lambda a, b: float(a > b)),
    "ge": (2, lambda a, b: float(a >= b)),
    "known": (1, lambda a: float(not math.isnan(a))),
    "where": (3, lambda c, a, b: a if c else b),
}
LEAVES = ("const", "var")
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ZeroDivisionError, ValueError, AssertionError, MXNetError)
}


@dataclass(frozen=True)
class Tape:
    """Rows `(op, slot...)`, each of which fills the slot of its number from slots before it; `values` names some.

    A tape whose slot `error` is not 0 has failed, with the message of that number, counted from 1. All rows are
    computed, and none fails by itself: what is not chosen by a `where` may be NaN.
    """

    rows: tuple[Row, ...]
    values: Mapping[str, int]
    error: int | None = None
    messages: tuple[tuple[str, str], ...] = ()  # (type, text)

    def run(self, variables: Mapping[str, float]) -> dict[str, float]:
        """The values for these variables.

        Raises:
            ZeroDivisionError, ValueError, AssertionError, MXNetError: as the program that was traced would have.
            MXNetError: a value is infinite or no number.
        """
        slots = self.slots(variables)
        if self.error is not None and (number := int(slots[self.error])):
            kind, text = self.messages[number - 1]
            raise ERRORS.get(kind, MXNetError)(text)
        found = {name: slots[slot] for name, slot in self.values.items()}
        for name, value in found.items():
            if not math.isfinite(value):
                raise MXNetError(f"{name} of this update is {value}")
        return found

    def slots(self, variables: Mapping[str, float]) -> list[float]:
        """What each row makes of these variables."""
        slots: list[float] = []
        for function, leaf, args in self._program:
            if function is None:
                slots.append(variables[leaf] if isinstance(leaf, str) else leaf)
            elif leaf is None:
                slots.append(function(*[slots[i] for i in args]))
            else:
                slots.append(function(leaf, variables, *[slots[i] for i in args]))
        return slots

    @cached_property
    def _program(self) -> list[tuple[Callable[..., float] | None, Any, tuple[int, ...]]]:
        """The rows with functions in place of names."""
        made: list[tuple[Callable[..., float] | None, Any, tuple[int, ...]]] = []
        for op, *args in self.rows:
            if op in LEAVES:
                made.append((None, args[0], ()))
            elif op == "product":
                made.append((_product, args[-1], tuple(args[:-1])))
            else:
                made.append((FUNCTIONS[op][1], None, tuple(args)))
        return made

    @property
    def variables(self) -> set[str]:
        """The names of the variables it reads, `i` of products aside."""
        found = {row[1] for row in self.rows if row[0] == "var"}
        for row in self.rows:
            if row[0] == "product":
                found |= row[-1].variables - {"i"}
        return found

    def to_data(self) -> dict[str, Any]:
        """As JSON takes it."""
        rows = [[x.to_data() if isinstance(x, Tape) else x for x in row] for row in self.rows]
        failing = {"error": self.error, "messages": [list(m) for m in self.messages]}
        return {"rows": rows, "values": dict(self.values)} | (failing if self.error is not None else {})

    @staticmethod
    def from_data(data: Any, repeated: bool = False) -> Tape:
        """What `to_data` gave; `repeated` is one that a product multiplies.

        Raises:
            FormatError: it is no tape.
        """
        _expect(isinstance(data, dict) and isinstance(data.get("rows"), list), "a formula has no rows")
        rows = tuple(_row(row, number, repeated) for number, row in enumerate(data["rows"]))
        values, error, messages = data.get("values"), data.get("error"), data.get("messages", [])
        _expect(
            isinstance(values, dict) and all(_is_slot(v, len(rows)) for v in values.values()), "values of a formula"
        )
        _expect(error is None or _is_slot(error, len(rows)), "the error of a formula")
        _expect(
            isinstance(messages, list)
            and all(isinstance(m, list) and len(m) == 2 and all(isinstance(t, str) for t in m) for m in messages),
            "the messages of a formula",
        )
        return Tape(rows, dict(values), error, tuple((kind, text) for kind, text in messages))


def _product(body: Tape, variables: Mapping[str, float], first: float, last: float, least: float) -> float:
    """body(first) * ... * body(last); it ends once it is at most `least`."""
    made, slot, turns = 1.0, body.values["value"], 0
    while first + turns <= last and made > least:
        if turns == LONGEST:
            return math.nan
        made *= body.slots({**variables, "i": first + turns})[slot]
        turns += 1
    return made


def _row(data: Any, number: int, repeated: bool) -> Row:
    _expect(isinstance(data, list) and data and isinstance(data[0], str), f"row {number} of a formula")
    op, *args = data
    if op == "const":
        fits = len(args) == 1 and type(args[0]) in (int, float) and math.isfinite(args[0])
        _expect(fits, f"row {number} of a formula: no number")
        return op, float(args[0])
    if op == "var":
        _expect(len(args) == 1 and isinstance(args[0], str), f"row {number} of a formula: no variable")
        return op, args[0]
    if op == "product":
        _expect(len(args) == 4 and all(_is_slot(a, number) for a in args[:3]), f"row {number} of a formula: a product")
        _expect(not repeated, f"row {number} of a formula: a product within a product")
        body = Tape.from_data(args[3], repeated=True)
        _expect("value" in body.values, f"row {number} of a formula: a product of nothing")
        return op, *args[:3], body
    _expect(op in FUNCTIONS, f"row {number} of a formula: there is no function {op!r}")
    fits = len(args) == FUNCTIONS[op][0] and all(_is_slot(a, number) for a in args)
    _expect(fits, f"row {number} of a formula: {op} of {args}")
    return op, *args


def _is_slot(value: Any, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise FormatError(message)
