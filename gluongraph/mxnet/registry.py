"""`mxnet.registry`: functions that register the subclasses of a class by name, and create them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.host.registry import Registry

_REGISTRIES: dict[type, Registry[Any]] = {}


def _registry_of(base_class: type, nickname: str | None = None) -> Registry[Any]:
    return _REGISTRIES.setdefault(base_class, Registry(base_class, nickname or base_class.__name__.lower()))


def get_registry(base_class: type) -> dict[str, type]:
    """The classes registered for a base class, by name."""
    return _registry_of(base_class).classes()


def get_register_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """register(cls, name=None): makes a subclass known by its name in lower case; a decorator."""

    def register(klass: type, name: str | None = None) -> type:
        _registry_of(base_class, nickname).register(klass, name)
        return klass

    register.__doc__ = f"Make a {nickname} known by its name in lower case."
    return register


def get_alias_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """alias(*names): class decorator that makes a subclass known by further names."""

    def alias(*aliases: str) -> Callable[[Any], Any]:
        return _registry_of(base_class, nickname).alias(*aliases)

    return alias


def get_create_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """create(name, *args, **kwargs): an object of a registered class; of an object itself; of what JSON says.

    Without positional arguments the name is the keyword argument `nickname`.
    """

    def create(*args: Any, **kwargs: Any) -> Any:
        spec, *rest = args or (kwargs.pop(nickname),)
        if isinstance(spec, dict):
            return create(**spec)
        return _registry_of(base_class, nickname).create(spec, *rest, **kwargs)

    create.__doc__ = f"A {nickname} by its name."
    return create
