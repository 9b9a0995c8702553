"""Classes that are found by name: what `register`, `alias` and `create` of initializers and metrics share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from gluongraph.errors import warn
from gluongraph.host import json_text

T = TypeVar("T")


class Registry(Generic[T]):
    """The subclasses of `base` by name in lower case; `kind` is what messages and configurations call one of them."""

    def __init__(self, base: type[T], kind: str):
        self._base, self._kind = base, kind
        self._classes: dict[str, type[T]] = {}

    def register(self, cls: type[T], name: str | None = None) -> None:
        """Make a class known by its own name, or by `name`; the last one of a name counts.

        Raises:
            AssertionError: it is no subclass of the base.
        """
        if not (isinstance(cls, type) and issubclass(cls, self._base)):
            raise AssertionError(f"only subclasses of {self._base.__name__} can be registered, {cls!r} is none")
        key = (name or cls.__name__).lower()
        if key in self._classes:
            known = self._classes[key]
            warn(
                f"the {self._kind} {key!r} was {known.__module__}.{known.__name__} and is now "
                f"{cls.__module__}.{cls.__name__}"
            )
        self._classes[key] = cls

    def classes(self) -> dict[str, type[T]]:
        """The classes by their names."""
        return dict(self._classes)

    def alias(self, *names: str) -> Callable[[Any], Any]:
        """Class decorator: makes a class known by further names."""

        def decorate(cls: Any) -> Any:
            for name in names:
                self.register(cls, name)
            return cls

        return decorate

    def create(self, spec: Any, *args: Any, **kwargs: Any) -> T:
        """An instance from a name, a class, a configuration, or the instance itself.

        A configuration is a dict {kind: name, **arguments}, or JSON: '{...}' of that, or '["name", {arguments}]'.

        Raises:
            AssertionError: nothing has that name, or arguments come with something that has its own.
        """
        if isinstance(spec, type) and issubclass(spec, self._base):
            return spec(*args, **kwargs)
        if isinstance(spec, str) and not spec.startswith(("[", "{")):
            return self._named(spec)(*args, **kwargs)
        if args or kwargs:
            raise AssertionError(f"arguments go with the name of a {self._kind}, not with {spec!r}")
        if isinstance(spec, self._base):
            return spec
        read = json_text.parse(spec) if isinstance(spec, str) else spec
        if isinstance(read, list) and len(read) == 2:
            return self.create(read[0], **read[1])
        if isinstance(read, Mapping) and self._kind in read:
            return self.create(read[self._kind], **{k: v for k, v in read.items() if k != self._kind})
        raise AssertionError(f"the {self._kind} is given by name, by configuration or as it is, not as {spec!r}")

    def _named(self, name: str) -> type[T]:
        if found := self._classes.get(name.lower()):
            return found
        names = sorted(self._classes)
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise AssertionError(f"no {self._kind} is called {name!r}{hint} There are: {', '.join(names)}")
