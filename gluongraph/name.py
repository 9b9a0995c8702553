"""`mx.name`: who names what has no name, `with mx.name.Prefix("net_"):`."""

from __future__ import annotations

from typing import Any

from gluongraph.host.scoped import Current


class NameManager(metaclass=Current):
    """Gives names by counting: "conv0", "conv1". `NameManager.current` is the innermost one of this thread.

    >>> manager = NameManager()
    >>> manager.get(None, "conv"), manager.get(None, "conv"), manager.get("mine", "conv")
    ('conv0', 'conv1', 'mine')
    """

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._before: list[Any] = []

    def get(self, name: str | None, hint: str) -> str:
        """The name given, or `hint` with a number."""
        if name:
            return name
        number = self._counter.get(hint, 0)
        self._counter[hint] = number + 1
        return f"{hint}{number}"

    def __enter__(self) -> NameManager:
        self._before.append(NameManager.current)
        NameManager.current = self
        return self

    def __exit__(self, *exc: object) -> None:
        NameManager.current = self._before.pop()


class Prefix(NameManager):
    """Puts a prefix before all names.

    >>> Prefix("net_").get(None, "conv")
    'net_conv0'
    """

    def __init__(self, prefix: str):
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)
