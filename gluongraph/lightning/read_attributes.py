"""The Python attributes that a traced step has read: a trace holds only while they hold the same.

A step function of a module is traced once, and numbers, flags and lists that it reads become constants of the program.
Hooks may change them between batches: the weight of a loss that grows with the epochs, a layer that is put into
prediction mode. So a trace notes what it has read, and is made anew when that has changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gluongraph.errors import TraceError, with_user_location
from gluongraph.gluon.trace_guards import PLAIN, contents, is_setting
from gluongraph.tracing.tracer import guard

_T = TypeVar("_T")
_LOCAL = threading.local()
_NOTING = threading.RLock()  # one thread at a time changes a class
_MISSING = object()


class UserCode:
    """`calls` grows whenever code of the user has run that may have changed attributes: a hook of the module, of a data
    module or of a callback. Before that nothing need be compared."""

    calls = 0


class _Held:
    """An attribute that a trace has read, and what it held."""

    __slots__ = ("before", "fixed", "name", "own", "owner", "value")

    def __init__(self, owner: Any, name: str, value: Any):
        self.owner, self.name, self.value = owner, name, value
        self.own = vars(owner) if name in vars(owner) else None  # a look into it is faster than one at the owner
        self.before = snapshot(value)
        self.fixed = is_setting(value) or self.before == id(value)  # nothing within it can change

    @property
    def is_as_before(self) -> bool:
        """Does it hold the same?"""
        now = getattr(self.owner, self.name, _MISSING) if self.own is None else self.own.get(self.name, _MISSING)
        if now is self.value and self.fixed:
            return True
        return bool(snapshot(now) == self.before) if self.before != id(self.value) else now is self.value


class ReadAttributes:
    """The attributes that one trace has read, of the module, its parts and the Trainer, and what they held.

    >>> class Part:
    ...     weight = 1.0
    >>> part, reads = Part(), ReadAttributes()
    >>> reads.note(part, "weight", part.weight)
    >>> reads.unchanged
    True
    >>> part.weight = 2.0
    >>> UserCode.calls += 1
    >>> reads.unchanged
    False
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], _Held] = {}
        self._calls, self._unchanged = -1, True

    def note(self, owner: Any, name: str, value: Any) -> None:
        """An attribute has been read."""
        if (id(owner), name) not in self._held:
            self._held[id(owner), name] = _Held(owner, name, value)

    def settle(self) -> None:
        """The trace has ended: forget what it has set itself, which holds something else now."""
        self._held = {key: held for key, held in self._held.items() if held.is_as_before}

    def changed(self) -> Iterator[tuple[Any, str]]:
        """The attributes that hold something else now."""
        return ((held.owner, held.name) for held in self._held.values() if not held.is_as_before)

    @property
    def unchanged(self) -> bool:
        """Does each attribute hold what it held?"""
        if self._calls != UserCode.calls:
            self._unchanged = next(self.changed(), None) is None
            self._calls = UserCode.calls
        return self._unchanged

    def guard(self) -> None:
        """Let the trace in progress hold only as long as the attributes are unchanged."""
        guard(self, "unchanged")


def snapshot(value: Any) -> Any:
    """What a trace may have read of a value: numbers and texts, those in containers, settings in plain objects; of a
    tensor which one it is, and how often it has been written."""
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return contents(dict(vars(value)))
    if (writes := getattr(value, "_version", None)) is not None and hasattr(value, "untyped_storage"):
        return id(value), writes
    return tuple(value) if isinstance(value, range) else contents(value)


@contextmanager
def noting(reads: ReadAttributes, parts: Iterable[Any], base: type, own: frozenset[str]) -> Iterator[None]:
    """Within: attributes of these parts that are read are noted. `base` is the class that all of them are derived from,
    `own` are attributes that it keeps for itself.

    For that `base` has a `__getattribute__` of its own meanwhile; types of parts, which a trace may ask for, stay.
    """
    known = {id(part) for part in parts}
    with _NOTING:
        found: Any = base.__getattribute__

        def noted(self: Any, name: str) -> Any:
            value = found(self, name)
            # What is computed at each reading, as a torch.device, is another object each time: numbers of it are noted.
            if name not in own and id(self) in known and (type(value) in PLAIN or name in found(self, "__dict__")):
                note_read(self, name, value)
            return value

        had, before = "__getattribute__" in vars(base), getattr(_LOCAL, "reads", None)
        _LOCAL.reads = reads
        type.__setattr__(base, "__getattribute__", noted)
        try:
            yield
        finally:
            _LOCAL.reads = before
            if had:
                type.__setattr__(base, "__getattribute__", found)
            else:
                type.__delattr__(base, "__getattribute__")
            reads.settle()


def note_read(owner: Any, name: str, value: Any) -> None:
    """An attribute has been read: by the trace in progress, if there is one."""
    if (current := getattr(_LOCAL, "reads", None)) is not None:
        current.note(owner, name, value)


def noted(get: Callable[[Any], _T]) -> property:
    """A property that a trace notes when it reads it."""

    @functools.wraps(get)
    def read(self: Any) -> _T:
        value = get(self)
        note_read(self, get.__name__, value)
        return value

    return property(read)


def other_for_each_batch(get: Callable[[Any], _T]) -> property:
    """A property that has no value in a trace, since it has another one for each batch."""

    @functools.wraps(get)
    def read(self: Any) -> Any:
        return get(self) if getattr(_LOCAL, "reads", None) is None else TracedNumber(get.__name__)

    return property(read)


class TracedNumber:
    """A number that is another one for each batch, as `batch_idx`, in a step that is traced: the program is compiled
    once for all batches, so it has no value.

    (A subclass of int would not do: Python reads the value of one without asking it.)

    Raises:
        TraceError: where it is compared, computed with or printed.
    """

    def __init__(self, name: str):
        self._name = name

    def _refuse(self, *_: Any) -> Any:
        message = f"a compiled step asks for the value of {self._name}: it is one program for all batches"
        help = "do that in on_train_batch_start or on_train_batch_end, or use L.Trainer(..., eager=True)"
        raise TraceError(with_user_location(message, help=help))

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __neg__ = __pow__ = __rpow__ = _refuse
    __str__ = __format__ = __hash__ = _refuse
