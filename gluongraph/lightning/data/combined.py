"""Several loaders read as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning.data.array_loader import ArrayPass
from gluongraph.lightning.data.loaders import begin, check_loader, is_array, is_batch, length
from gluongraph.lightning.errors import misconfigured

Triple = tuple[Any, int, int]  # batch, number of the batch, number of the loader
Limits = Sequence[int | float]


class CombinedLoader:
    """Loaders in a list, a dictionary or nested ones, read as one. It gives (batch, batch_idx, dataloader_idx).

    | mode | batch | a pass ends |
    |---|---|---|
    | "min_size" | the loaders' batches in their collection | with the shortest loader |
    | "max_size_cycle" | the same; shorter loaders begin again | when each loader has ended once |
    | "max_size" | the same; None for loaders that have ended | with the longest loader |
    | "sequential" | the batches of one loader after those of another | with the last loader |

    In training a list or dictionary of loaders is read by "max_size_cycle", in evaluation one after another.

    >>> from gluongraph.lightning.data import CombinedLoader
    >>> loaders = {"a": [1, 2, 3], "b": [10, 20]}
    >>> [batch for batch, _, _ in CombinedLoader(loaders, "max_size_cycle")]
    [{'a': 1, 'b': 10}, {'a': 2, 'b': 20}, {'a': 3, 'b': 10}]
    >>> list(CombinedLoader(loaders, "sequential"))[2:4]
    [(3, 2, 0), (10, 0, 1)]

    Raises:
        ValueError: an unknown mode; limits that are not as many as the loaders.
    """

    def __init__(self, iterables: Any, mode: str = "min_size"):
        if mode not in _MODES:
            message = f"CombinedLoader: mode={mode!r} is none of {', '.join(map(repr, _MODES))}"
            raise ValueError(with_user_location(message))
        self.mode, self._iterables = mode, iterables
        self._flattened = flatten(iterables)
        self._limits: list[int | float] | None = None
        self._pass: _Together | _Sequential | None = None
        self.on_restart: Callable[[], None] = _nothing  # called before a loader begins again within a pass

    @property
    def iterables(self) -> Any:
        """The loaders in their collection."""
        return self._iterables

    @property
    def flattened(self) -> list[Any]:
        """The loaders one after another; as many others may be put in their place."""
        return self._flattened

    @flattened.setter
    def flattened(self, loaders: Sequence[Any]) -> None:
        if len(loaders) != len(self._flattened):
            message = f"CombinedLoader: {len(loaders)} loaders cannot take the places of {len(self._flattened)}"
            raise ValueError(with_user_location(message))
        self._iterables, self._flattened = unflatten(self._iterables, iter(loaders)), list(loaders)

    @property
    def limits(self) -> list[int | float] | None:
        """How many batches of each loader count, one number for all or a list; None: all of them."""
        return self._limits

    @limits.setter
    def limits(self, limits: int | float | Sequence[int | float] | None) -> None:
        if isinstance(limits, (int, float)):
            limits = [limits] * len(self._flattened)
        if limits is not None and len(limits) != len(self._flattened):
            message = f"CombinedLoader: {len(limits)} limits for {len(self._flattened)} loaders"
            raise ValueError(with_user_location(message))
        self._limits = None if limits is None else list(limits)

    def __len__(self) -> int:
        """How many batches a pass has, by the limits. Raises TypeError where that is not known."""
        limits = self._limits or [math.inf] * len(self._flattened)
        lengths = [_limited(length(each), limit) for each, limit in zip(self._flattened, limits, strict=True)]
        batches = _MODES[self.mode](lengths) if lengths else 0
        if batches == math.inf:
            raise TypeError(f"CombinedLoader: how many batches a pass by {self.mode!r} has is not known")
        return int(batches)

    def __iter__(self) -> Iterator[Triple]:
        limits = self._limits or [math.inf] * len(self._flattened)
        kind = _Sequential if self.mode == "sequential" else _Together
        self._pass = kind(self, limits)
        return self._pass

    def __next__(self) -> Triple:
        if self._pass is None:
            iter(self)
        assert self._pass is not None
        return next(self._pass)

    def reset(self) -> None:
        """End the pass that is running."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None


_MODES: dict[str, Callable[[list[int | float]], int | float]] = {
    "min_size": min,
    "max_size_cycle": max,
    "max_size": max,
    "sequential": sum,
}
_ENDED = object()


def _nothing() -> None: ...


def _limited(batches: int | None, limit: int | float) -> int | float:
    return limit if batches is None else min(batches, limit)


class _Together(Iterator[Triple]):
    """A pass with a batch of each loader at a time."""

    def __init__(self, combined: CombinedLoader, limits: Limits):
        self._combined, self._given = combined, 0
        self._iterators = [begin(loader) for loader in combined.flattened]
        self._ended = [False] * len(self._iterators)

    def __next__(self) -> Triple:
        if not self._iterators:
            raise StopIteration
        batches = [self._next(i) for i in range(len(self._iterators))]
        if self._combined.mode == "max_size" and all(self._ended):
            raise StopIteration
        self._given += 1
        return unflatten(self._combined.iterables, iter(batches)), self._given - 1, 0

    def _next(self, i: int) -> Any:
        batch = next(self._iterators[i], _ENDED)
        if batch is not _ENDED:
            return batch
        self._ended[i] = True
        if self._combined.mode == "max_size":
            return None
        if self._combined.mode == "min_size" or all(self._ended):
            raise StopIteration
        self._combined.on_restart()
        self._iterators[i] = begin(self._combined.flattened[i])
        batch = next(self._iterators[i], _ENDED)
        if batch is _ENDED:
            raise misconfigured(f"loader number {i} has no batches", help="give loaders with at least one batch")
        return batch

    def close(self) -> None:
        """End the loaders' passes."""
        for iterator in self._iterators:
            close(iterator)


class _Sequential(Iterator[Triple]):
    """A pass with the loaders one after another, each up to its limit."""

    def __init__(self, combined: CombinedLoader, limits: Limits):
        self._loaders, self._limits = combined.flattened, limits
        self._number, self._given = 0, 0
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Triple:
        while self._number < len(self._loaders):
            if self._given < self._limits[self._number]:
                if self._iterator is None:
                    self._iterator = begin(self._loaders[self._number])
                batch = next(self._iterator, _ENDED)
                if batch is not _ENDED:
                    self._given += 1
                    return batch, self._given - 1, self._number
            self.close()
            self._number, self._given = self._number + 1, 0
        raise StopIteration

    def close(self) -> None:
        """End the pass of the loader that is being read."""
        if self._iterator is not None:
            close(self._iterator)
            self._iterator = None


def batches(loader: Any) -> Iterator[Any]:
    """The batches of the next pass over a loader, of a combined one without their numbers.

    >>> from gluongraph.lightning.data import CombinedLoader
    >>> from gluongraph.lightning.data.combined import batches
    >>> list(batches(CombinedLoader([[1, 2], [3]], "sequential")))
    [1, 2, 3]
    """
    if isinstance(loader, CombinedLoader):
        return (batch for batch, _, _ in loader)
    return begin(loader)


def close(iterator: Any) -> None:
    """End a pass early: worker processes that serve it alone are ended, generators run their `finally`."""
    if callable(shutdown := getattr(iterator, "_shutdown_workers", None)):  # PyTorch's
        if not getattr(iterator, "_persistent_workers", False):
            shutdown()
    elif isinstance(iterator, (Generator, ArrayPass, _Together, _Sequential)):
        iterator.close()


def flatten(loaders: Any) -> list[Any]:
    """The loaders in nested dictionaries, lists and tuples, in order. A list of batches is one loader.

    >>> from gluongraph.lightning.data.combined import flatten
    >>> flatten({"a": range(2), "b": [range(3), range(4)]})
    [range(0, 2), range(0, 3), range(0, 4)]
    """
    if (parts := _parts(loaders)) is None:
        return [loaders]
    return [loader for part in parts for loader in flatten(part)]


def unflatten(like: Any, parts: Iterator[Any]) -> Any:
    """The parts in the places that the loaders have in a collection.

    >>> from gluongraph.lightning.data.combined import unflatten
    >>> unflatten({"a": range(2), "b": (range(3),)}, iter("xy"))
    {'a': 'x', 'b': ('y',)}
    """
    if _parts(like) is None:
        return next(parts)
    if isinstance(like, Mapping):
        return {key: unflatten(each, parts) for key, each in like.items()}
    made = [unflatten(each, parts) for each in like]
    if hasattr(like, "_fields"):
        return type(like)(*made)
    return tuple(made) if isinstance(like, tuple) else made


def _parts(loaders: Any) -> Sequence[Any] | None:
    """Those of a collection; None of one loader, as which a list counts whose elements are no loaders but batches."""
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    if not isinstance(loaders, (list, tuple)):
        return None
    if isinstance(loaders, list) and loaders and all(_is_element(each) for each in loaders):
        return None
    return loaders


def _is_element(value: Any) -> bool:
    return is_batch(value) or is_array(value) or isinstance(value, (int, float, str, bytes)) or value is None


def as_training_loader(loaders: Any, name: str = "train_dataloaders", passes: bool = True) -> Any:
    """One loader of what a user gives for training: several are read together, shorter ones again. Without `passes` a
    single one is read once.

    >>> from gluongraph.lightning.data.combined import as_training_loader
    >>> as_training_loader(range(3)), as_training_loader([range(3), range(2)]).mode
    (range(0, 3), 'max_size_cycle')

    Raises:
        TypeError: something that is no loader.
        MisconfigurationException: an iterator that can be read once only.
    """
    made = loaders
    if not isinstance(loaders, CombinedLoader) and _parts(loaders) is not None:
        _refuse_arrays(loaders, name)
        made = CombinedLoader(loaders, "max_size_cycle")
    if not isinstance(made, CombinedLoader):
        check_loader(made, name, passes)
        return made
    for each in made.flattened:
        check_loader(each, name)
    return made


def as_evaluation_loaders(loaders: Any, name: str, passes: bool = True) -> list[Any]:
    """The loaders, in order, of what a user gives for validation, test or prediction. A CombinedLoader that is not
    sequential is one of them.

    >>> from gluongraph.lightning.data.combined import as_evaluation_loaders
    >>> as_evaluation_loaders({"a": range(3), "b": range(2)}, "val_dataloaders")
    [range(0, 3), range(0, 2)]

    Raises:
        TypeError: something that is no loader.
        MisconfigurationException: with `passes`, an iterator that can be read once only.
    """
    if isinstance(loaders, CombinedLoader):
        for each in loaders.flattened:
            check_loader(each, name, passes)
        return list(loaders.flattened) if loaders.mode == "sequential" else [loaders]
    _refuse_arrays(loaders, name)
    found = flatten(loaders)
    for each in found:
        check_loader(each, name, passes)
    return found


def _refuse_arrays(loaders: Any, name: str) -> None:
    """A collection with an array among its loaders is that of someone who takes arrays for loaders."""
    for each in _parts(loaders) or ():
        if is_array(each):
            kind, collection = type(each).__name__, type(loaders).__name__
            message = f"{name}: {kind} is no loader, and a {collection} stands for several loaders"
            help = "L.data.ArrayLoader(x, y, batch_size=32) makes batches of arrays; a list of arrays is one of batches"
            raise TypeError(with_user_location(message, help=help))
