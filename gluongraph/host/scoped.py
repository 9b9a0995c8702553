"""Classes of which each thread has a current object."""

from __future__ import annotations

import threading
from typing import Any


class Current(type):
    """Metaclass: `Class.current` is this thread's object of the class, made without arguments when first asked for."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]):
        super().__init__(name, bases, namespace)
        if not any(isinstance(base, Current) for base in bases):  # those derived share what their base has
            cls._local = threading.local()

    @property
    def current(cls) -> Any:
        """The innermost object that this thread is within."""
        found = getattr(cls._local, "value", None)
        if found is None:
            root = next(c for c in reversed(cls.__mro__) if isinstance(c, Current))
            found = cls._local.value = root()
        return found

    @current.setter
    def current(cls, value: Any) -> None:
        cls._local.value = value
