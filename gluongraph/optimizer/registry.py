"""Optimizers by name: `register`, `create`, and what is said when a name or an argument is wrong."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, TypeVar

from gluongraph.errors import with_user_location
from gluongraph.optimizer.base import Optimizer

_Class = TypeVar("_Class", bound="type[Optimizer]")


def register(cls: _Class) -> _Class:
    """Class decorator: makes an optimizer known by its name in lower case.

    >>> from gluongraph import optimizer
    >>> optimizer.register(optimizer.SGD) is optimizer.SGD
    True
    >>> optimizer.create("SGD")
    SGD(learning_rate=0.01, wd=0.0)
    """
    return Optimizer.register(cls)


def create(name: str | Optimizer, **kwargs: Any) -> Optimizer:
    """An optimizer by name (in any case), with its arguments: create('sgd', learning_rate=0.1).

    >>> from gluongraph import optimizer
    >>> optimizer.create("adam", learning_rate=0.5, wd=0.25)
    Adam(learning_rate=0.5, wd=0.25)

    Raises:
        ValueError: no optimizer has that name.
        TypeError: the optimizer takes no such argument.
    """
    if isinstance(name, Optimizer):
        return name
    known = Optimizer.opt_registry
    found = known.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        hint = _meant(str(name).lower(), list(known))
        raise ValueError(f"no optimizer is called {name!r}{hint} There are: {', '.join(sorted(known))}")
    try:
        return found(**kwargs)
    except TypeError:
        if not (unknown := [key for key in kwargs if key not in _arguments(found)]):
            raise
        raise TypeError(_no_such_argument(found, unknown[0])) from None


def name_of(cls: type[Optimizer]) -> str | None:
    """The name that `create` knows a class by; None where it has not been registered.

    >>> from gluongraph import optimizer
    >>> from gluongraph.optimizer.registry import name_of
    >>> name_of(optimizer.Adam), name_of(optimizer.torch.Adam), name_of(optimizer.Optimizer)
    ('adam', 'torch.adam', None)
    """
    return next((name for name, known in Optimizer.opt_registry.items() if known is cls), None)


def _meant(given: str, known: list[str]) -> str:
    """The nearest name, as the end of a sentence: with most letters in common, and about as long."""

    def likeness(name: str) -> float:
        begins = 0.1 * (name[:1] == given[:1])  # few mistype the first letter
        return difflib.SequenceMatcher(None, given, name).ratio() + begins - 0.05 * abs(len(name) - len(given))

    near = difflib.get_close_matches(given, known)
    return f"; did you mean {max(near, key=likeness)!r}?" if near else "."


# What other libraries call the same thing.
_ELSEWHERE = {"lr": "learning_rate", "weight_decay": "wd", "eps": "epsilon", "scheduler": "lr_scheduler"}


def _arguments(cls: type[Optimizer]) -> list[str]:
    """The keywords of a class, those that it hands on to its bases among them."""
    found: list[str] = []
    for base in cls.__mro__:
        if (init := base.__dict__.get("__init__")) is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(found))


def _no_such_argument(cls: type[Optimizer], key: str) -> str:
    known = _arguments(cls)
    hint = f"; did you mean {_ELSEWHERE[key]!r}?" if _ELSEWHERE.get(key) in known else _meant(key, known)
    return with_user_location(f"{cls.__name__} takes no argument {key!r}{hint} There are: {', '.join(sorted(known))}")
