"""What optimizers are given and cannot use, said by its name: settings that are no numbers, results of a `rule`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.ranges import BELOW_1, FINITE, FRACTION, NOT_NEGATIVE, NUMBER, Range, check_range

P = ParamSpec("P")
_NUMBERS = ("float", "int", float, int)  # how annotations read, as text or not
_NUMBERS_OR_NONE = ("float | None", "int | None", float | None, int | None)


# The settings of all optimizers by name; others may be any number. Formulas divide by 1 - beta ** t.
RANGES: Mapping[str, Range] = {
    **dict.fromkeys(("lr", "learning_rate", "what lr_scheduler gives", "wd", "wd_lh", "eta"), NOT_NEGATIVE),
    **dict.fromkeys(("epsilon", "eps", "schedule_decay", "lamda1", "lamda", "beta"), NOT_NEGATIVE),
    **dict.fromkeys(("lr_decay", "initial_accumulator_value", "momentum_decay"), NOT_NEGATIVE),
    **dict.fromkeys(("beta1", "beta2"), BELOW_1),
    **dict.fromkeys(("rho", "gamma1", "gamma2"), FRACTION),
    "momentum": Range(-1, 1),
    "etaminus": Range(0, 1, below=True, above=True),
    "etaplus": Range(1, math.inf, above=True),
    **dict.fromkeys(("rescale_grad", "lr_mult", "wd_mult"), FINITE),
}


def numbers_in(init: Callable[..., None]) -> dict[str, bool]:
    """The arguments of an `__init__` that are annotated as numbers -> may they be None?

    >>> from gluongraph.optimizer.arguments import numbers_in
    >>> def init(self, eps: float, clip: float | None, name: str) -> None: ...
    >>> numbers_in(init)
    {'eps': False, 'clip': True}
    """
    annotations = {name: p.annotation for name, p in inspect.signature(init).parameters.items()}
    wanted = (*_NUMBERS, *_NUMBERS_OR_NONE)
    return {name: kind in _NUMBERS_OR_NONE for name, kind in annotations.items() if kind in wanted}


def checked(init: Callable[P, None]) -> Callable[P, None]:
    """The `__init__` of an optimizer; it raises TypeError where an argument annotated as a number is none.

    >>> from gluongraph.optimizer.arguments import checked
    >>> class Rule:
    ...     @checked
    ...     def __init__(self, eps: float): ...
    >>> Rule("small")
    Traceback (most recent call last):
        ...
    TypeError: Rule: eps is a number, not 'small'...
    """
    names, numbers = tuple(inspect.signature(init).parameters), numbers_in(init)

    @wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in numbers:
                check_number(args[0], name, value, numbers[name])
        init(*args, **kwargs)

    return call


def check_number(optimizer: Any, name: str, given: Any, or_none: bool = False) -> None:
    """Raise TypeError unless it is a number, or what float() makes one of; or None, where that is allowed. ValueError
    where it is NaN, or not in the range that RANGES has for the name.

    An array is none, whatever its size: settings are compared and hashed at each step, and an array may change unseen.

    >>> from gluongraph.optimizer.arguments import check_number
    >>> from gluongraph.optimizer import SGD
    >>> check_number(SGD(), "wd", 0.5)
    >>> check_number(SGD(), "wd", -1.0)
    Traceback (most recent call last):
        ...
    ValueError: SGD: wd must be finite and at least 0, not -1...
    """
    if or_none and given is None:
        return
    if isinstance(given, (int, float, np.number)):  # formulas that are being exported have no value
        allowed = RANGES.get(name.partition(" of ")[0], NUMBER)  # "lr_mult of 'conv0_weight'" is an lr_mult
        check_range(optimizer, name, given, allowed)
        return
    array = hasattr(given, "shape") and not isinstance(given, np.generic)
    if array or not hasattr(given, "__float__"):
        wanted = "a number or None" if or_none else "a number"
        told = f"an array of shape {tuple(given.shape)}" if array else repr(given)
        help = "float(array) makes a number of one element" if array else ""
        raise TypeError(with_user_location(f"{type(optimizer).__name__}: {name} is {wanted}, not {told}", help=help))


def check_update(optimizer: Any, made: Any, states: Collection[str]) -> None:
    """Raise TypeError unless this is what `rule` gives: a weight, and its new states by their names.

    >>> from gluongraph.optimizer.arguments import check_update
    >>> from gluongraph.optimizer import SGD
    >>> check_update(SGD(), ("weight", {"mom": "state"}), ["mom"])
    """
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        given = made[1].keys()
        if not (missing := [name for name in states if name not in given]):
            return
        wrong = f"and {', '.join(missing)} is not among the states"
    else:
        wrong = f"not {type(made).__name__}"
    help = "return new, {'name': state}; for an optimizer without states, new, {}"
    raise TypeError(
        with_user_location(f"{type(optimizer).__name__}.rule gives the new weight and its states, {wrong}", help=help)
    )
