"""A registry by which front ends find the compiler without importing it, filled by `gluongraph.step.compile`.

`import gluongraph` must not import TVM, and imports run one way; yet `hybridize`, `Trainer` and `mx.load` need the
compiler. They ask `services.get("compile")`, and the first question that has no answer yet imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.host.process import collecting_later

_SERVICES: dict[str, Callable[..., Any]] = {}
_PROVIDER = "gluongraph.step.compile"


def register(name: str, service: Callable[..., Any]) -> None:
    """Offer `service` under `name`; the last registration counts."""
    _SERVICES[name] = service


def get(name: str) -> Callable[..., Any]:
    """The service called `name`; the compiler is imported when nobody has offered it yet.

    Raises:
        KeyError: the compiler does not offer it either.
    """
    if name not in _SERVICES:
        with collecting_later():
            import_whole(_PROVIDER)
    try:
        return _SERVICES[name]
    except KeyError:
        raise KeyError(f"no service {name!r}; there are {', '.join(sorted(_SERVICES)) or 'none'}") from None
