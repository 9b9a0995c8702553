"""`mx.AttrScope`: attributes that hold within a scope, `with AttrScope(lr_mult="0.1"):`.

They are those of symbols that are made within. Networks are blocks here, and parameters have attributes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.host.scoped import Current


class AttrScope(metaclass=Current):
    """Texts by name; scopes add up. `AttrScope.current` is the innermost one of this thread.

    Raises:
        ValueError: a value is no text.

    >>> with AttrScope(a="1"), AttrScope(b="2") as scope:
    ...     scope.get({"b": "3"})
    {'a': '1', 'b': '3'}
    """

    def __init__(self, **kwargs: str):
        if not all(isinstance(value, str) for value in kwargs.values()):
            raise ValueError(f"attributes are texts, not {kwargs}")
        self._attr = kwargs
        self._before: list[Any] = []

    def get(self, attr: Mapping[str, str] | None) -> dict[str, str]:
        """The attributes of the scope, overwritten by those given."""
        return {**self._attr, **(attr or {})}

    def __enter__(self) -> AttrScope:
        self._before.append(AttrScope.current)
        self._attr = {**AttrScope.current._attr, **self._attr}
        AttrScope.current = self
        return self

    def __exit__(self, *exc: object) -> None:
        AttrScope.current = self._before.pop()
