"""The `state` of optimizers of torch.optim whose updates a Trainer makes: the trainer's, read when somebody looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gluongraph.torch.export import torch

# What looks into a dictionary, or writes into it.
_ACCESSES = (
    *("__getitem__", "__contains__", "__iter__", "__reversed__", "__len__", "get", "items", "keys", "values"),
    *("__setitem__", "__delitem__", "pop", "popitem", "clear", "setdefault", "update"),
    *("__eq__", "__ne__", "__or__", "__ror__", "__ior__", "__repr__"),
)


class Snapshot:
    """The states of optimizers, to be compared with those of later. Writing into a tensor counts as a change."""

    def __init__(self, states: Iterable[Mapping[Any, Mapping[str, Any]]]):
        # The values are held, so that no other one can have the same id.
        self._states = [{id(key): _versions(state) for key, state in each.items() if state} for each in states]

    def is_of(self, states: Iterable[Mapping[Any, Mapping[str, Any]]]) -> bool:
        """Are the states as they were?"""
        now = Snapshot(states)._states
        return len(now) == len(self._states) and all(map(_are_same, now, self._states))


def _versions(state: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (value, getattr(value, "_version", None)) for name, value in state.items()}


def _are_same(now: Mapping[int, dict[str, Any]], before: Mapping[int, dict[str, Any]]) -> bool:
    return now.keys() == before.keys() and all(_is_same(now[key], before[key]) for key in now)


def _is_same(now: Mapping[str, tuple[Any, Any]], before: Mapping[str, tuple[Any, Any]]) -> bool:
    return now.keys() == before.keys() and all(
        version == before[name][1] and (value is before[name][0] or (version is None and value == before[name][0]))
        for name, (value, version) in now.items()
    )


class LiveStates(defaultdict[Any, Any]):
    """A dictionary as `Optimizer.state` is one. `read` gives the states by tensor; it is called at the first access
    after `forget`."""

    def __init__(self, read: Callable[[], Mapping[Any, dict[str, Any]]]):
        super().__init__(dict)
        self._read = read
        self._seen: Snapshot | None = None
        self._reading = False

    def look(self) -> None:
        """Have the states of now, if they have not been read yet."""
        if self._seen is not None or self._reading:
            return
        self._reading = True  # reading asks this dictionary itself, where parameters have been added
        try:
            with torch().inference_mode(False):  # tensors made within it have no versions
                found = self._read()
            dict.update(self, found)
            self._seen = Snapshot([found])
        finally:
            self._reading = False

    @property
    def has_been_read(self) -> bool:
        """Has somebody looked since they were forgotten?"""
        return self._seen is not None

    @property
    def changed(self) -> bool:
        """Have the states been changed since they were read?"""
        return self._seen is not None and not self._seen.is_of([self])

    def forget(self) -> None:
        """Read the states again at the next access."""
        if self._seen is not None:
            dict.clear(self)
            self._seen = None

    def copy(self) -> Any:
        """The states of now, which later updates do not change."""
        return defaultdict(dict, self)

    __copy__ = copy

    def __reduce__(self) -> Any:
        return defaultdict, (dict,), None, None, iter(self.items())


def _access(name: str) -> Callable[..., Any]:
    own = getattr(defaultdict, name)

    def access(self: LiveStates, *args: Any, **kwargs: Any) -> Any:
        self.look()
        return own(self, *args, **kwargs)

    access.__name__, access.__doc__ = name, own.__doc__
    return access


for _name in _ACCESSES:
    setattr(LiveStates, _name, _access(_name))
