"""Symbols: numbers that are not known yet. A function that is run on them leaves its formulas on a tape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph.errors import MXNetError
from gluongraph.formulas.tape import ERRORS, FUNCTIONS, Row, Tape

PATHS = 256  # through a function, by its branches


class NotAFormula(MXNetError):
    """A function that cannot be written down as a formula."""


class _Fork(BaseException):
    """Both ways are to be gone from this condition on. No error: code in between is not to handle it."""

    def __init__(self, condition: int):
        self.condition = condition


class Symbol:
    """A number that will be known later."""

    __slots__ = ("slot", "trace")

    def __init__(self, trace: Trace, slot: int):
        self.trace, self.slot = trace, slot

    def made(self, op: str, *others: Any, swapped: bool = False) -> Any:
        """op(self, others), or with the two sides swapped; typed Any since it stands where floats do."""
        return self.trace.row(op, *reversed(others), self) if swapped else self.trace.row(op, self, *others)

    def __float__(self) -> float:
        raise NotAFormula("float() and functions of math want a number; formulas use those of gluongraph.formulas")

    def __bool__(self) -> bool:
        return self.trace.decide(self)

    def __int__(self) -> int:
        raise NotAFormula("int() wants a number; in a formula math.floor(x) gives one")

    __index__ = __trunc__ = __int__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<number {self.slot} of a formula>"


def _operator(op: str, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Symbol, *others: Any) -> Any:
        return self.made(op, *others, swapped=swapped)

    return method


for _name, _op in {
    **{"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "floordiv": "floordiv", "mod": "mod"},
    **{"neg": "neg", "abs": "abs", "floor": "floor", "ceil": "ceil"},
    **{name: name for name in ("lt", "le", "eq", "ne", "gt", "ge")},
}.items():
    setattr(Symbol, f"__{_name}__", _operator(_op))
    if _op in ("add", "sub", "mul", "div", "pow", "floordiv", "mod"):
        setattr(Symbol, f"__r{_name}__", _operator(_op, swapped=True))


@dataclass(frozen=True)
class _Outcome:
    """What a function has given back on some of its paths: slots by name, None where it has failed on all of them;
    and the slot that says with which of the errors it fails, 0 where it does not."""

    values: Mapping[str, int] | None
    error: int


class Trace:
    """Formulas in the making. `settings` are variables whose values are known, though they may change later.

    A branch on other numbers than settings is traced both ways; one on settings goes the way of now, and the tape
    fails if they change so that it would go the other.
    """

    def __init__(self, settings: Mapping[str, float]):
        self.settings = settings
        self.rows: list[Row] = []
        self._slots: dict[str, int] = {}  # by how a row prints: 0.0 and -0.0 differ
        self._now: list[float | None] = []  # of each row that depends on settings alone: its value
        self._taken: dict[int, bool] = {}  # condition -> the way that this path goes
        self._guards: dict[int, bool] = {}  # condition on settings -> the way it goes
        self._errors: list[tuple[str, str]] = []
        self._paths = 0

    def variable(self, name: str) -> Any:
        """A variable as a symbol, typed Any as all of them."""
        return self.row("var", name)

    def row(self, op: str, *args: Any) -> Symbol:
        """The result of a row, the one that is there or a new one."""
        if op not in ("const", "var", "product"):
            args = tuple(self._slot_of(a) for a in args)
        row = (op, *args)
        if (key := repr(row)) not in self._slots:
            self._slots[key] = len(self.rows)
            self.rows.append(row)
            self._now.append(self._value(op, args))
        return Symbol(self, self._slots[key])

    def _slot_of(self, value: Any) -> int:
        if isinstance(value, Symbol):
            return value.slot
        if not isinstance(value, (bool, int, float, np.number, np.bool_)) or not math.isfinite(value):
            raise NotAFormula(f"{value!r} in a formula, which is made of finite numbers")
        return self.row("const", float(value)).slot

    def _value(self, op: str, args: tuple[Any, ...]) -> float | None:
        if op == "const":
            return float(args[0])
        if op == "var":
            return self.settings.get(args[0])
        if op == "product":
            return None
        given = [self._now[a] for a in args]
        return None if None in given else FUNCTIONS[op][1](*given)

    def product(self, factor: Callable[[Any], Any], first: Any, last: Any, least: float) -> Any:
        """`functions.product` as a row; `factor` is traced once, of the variable i."""
        body = self._tape({"value": self._slot_of(factor(self.variable("i")))})
        if any(row[0] == "product" for row in body.rows):
            raise NotAFormula("a product within a product, whose i would be that of the inner one")
        return self.row("product", self._slot_of(first), self._slot_of(last), self._slot_of(least), body)

    # -- branches

    def decide(self, condition: Symbol) -> bool:
        """The way that a branch goes on this path."""
        slot = condition.slot
        if (value := self._now[slot]) is not None:
            if any(row[0] == "var" for row in self._tape({"": slot}).rows):
                self._guards[slot] = bool(value)
            return bool(value)
        if slot not in self._taken:
            raise _Fork(slot)
        return self._taken[slot]

    def traced(self, function: Callable[[], Mapping[str, Any]]) -> Tape:
        """The tape of a function of this trace's variables, which gives numbers by name.

        Raises:
            NotAFormula: it wants to know a number, depends on more than its variables, or has too many branches.
        """
        self._paths = 0
        outcome = self._explored(function)
        if outcome.values is None:
            kind, text = self._errors[-1]
            raise ERRORS.get(kind, MXNetError)(text)
        error: Any = Symbol(self, outcome.error)
        for condition, way in self._guards.items():
            text = "a setting of the optimizer or its schedule has changed that the compiled code depends on"
            sound = Symbol(self, condition).made("ne" if way else "eq", 0.0)
            error = self.row("where", sound, error, Symbol(self, self._failure("MXNetError", text)))
        never = self._now[error.slot] == 0.0 and not self._guards
        return self._tape(outcome.values, None if never else error.slot)

    def _explored(self, function: Callable[[], Mapping[str, Any]]) -> _Outcome:
        self._paths += 1
        if self._paths > PATHS:
            raise NotAFormula(f"it has more than {PATHS} branches")
        try:
            values = {name: self._slot_of(value) for name, value in function().items()}
            return _Outcome(values, self._slot_of(0.0))
        except _Fork as fork:
            ways = []
            for way in (True, False):
                self._taken[fork.condition] = way
                ways.append(self._explored(function))
                del self._taken[fork.condition]
            return self._merged(Symbol(self, fork.condition), *ways)
        except NotAFormula:
            raise
        except tuple(ERRORS.values()) as error:
            return _Outcome(None, self._failure(type(error).__name__, str(error)))
        except (TypeError, AttributeError, IndexError, KeyError, OverflowError) as error:
            raise NotAFormula(f"{type(error).__name__}: {error}") from error

    def _failure(self, kind: str, text: str) -> int:
        """The slot of the number of an error."""
        if (kind, text) not in self._errors:
            self._errors.append((kind, text))
        return self._slot_of(1 + self._errors.index((kind, text)))

    def _merged(self, condition: Symbol, yes: _Outcome, no: _Outcome) -> _Outcome:
        values = yes.values or no.values
        if yes.values is not None and no.values is not None:
            if yes.values.keys() != no.values.keys():
                raise NotAFormula(f"it gives {', '.join(yes.values)} or {', '.join(no.values)}, as numbers go")
            values = {name: self._either(condition, yes.values[name], no.values[name]) for name in yes.values}
        return _Outcome(values, self._either(condition, yes.error, no.error))

    def _either(self, condition: Symbol, yes: int, no: int) -> int:
        return yes if yes == no else self.row("where", condition, Symbol(self, yes), Symbol(self, no)).slot

    # -- the end

    def _tape(self, values: Mapping[str, int], error: int | None = None) -> Tape:
        """The rows that these values need, numbered anew."""
        needed: set[int] = set()
        waiting = [*values.values(), *([error] if error is not None else [])]
        while waiting:
            slot = waiting.pop()
            if slot not in needed:
                needed.add(slot)
                waiting += _sources(self.rows[slot])
        number = {old: new for new, old in enumerate(sorted(needed))}
        rows = tuple(_renumbered(self.rows[slot], number) for slot in sorted(needed))
        messages = tuple(self._errors) if error is not None else ()
        named = {name: number[slot] for name, slot in values.items()}
        return Tape(rows, named, None if error is None else number[error], messages)


def _sources(row: Row) -> tuple[int, ...]:
    op, *args = row
    return () if op in ("const", "var") else tuple(args[:-1] if op == "product" else args)


def _renumbered(row: Row, number: Mapping[int, int]) -> Row:
    sources = _sources(row)
    return (row[0], *(number[s] for s in sources), *row[1 + len(sources) :])
