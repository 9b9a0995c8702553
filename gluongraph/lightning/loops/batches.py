"""Batches of loaders, up to a limit, with the last one known as such; and where the loaders come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gluongraph.lightning.errors import misconfigured


class Batches:
    """Iterates over the first batches of a loader; `is_last` tells whether the batch given is the last one.

    Where the number of batches is known nothing is read ahead, else one batch is.
    """

    def __init__(self, loader: Any, limit: int | float):
        self.loader, self.limit = loader, limit
        self.is_last = False

    def __iter__(self) -> Iterator[Any]:
        self.is_last = False
        if not math.isinf(self.limit):
            for number, batch in enumerate(self.loader, 1):
                self.is_last = number >= self.limit
                yield batch
                if self.is_last:
                    return
            return
        ahead = iter(self.loader)
        try:
            batch = next(ahead)
        except StopIteration:
            return
        for following in ahead:
            yield batch
            batch = following
        self.is_last = True
        yield batch


def loaders_of(trainer: Any, short: str, limit: int | float) -> tuple[list[Any], list[int | float]]:
    """The loaders of "val", "test" or "predict", and how many batches of each are run."""
    given = trainer.data.request(short)
    loaders = list(given) if isinstance(given, (list, tuple)) else [given]
    return loaders, [number_of_batches(each, limit, short) for each in loaders]


def number_of_batches(loader: Any, limit: int | float, name: str) -> int | float:
    """How many batches of a loader are run: all of them, a number, or a share rounded down.

    Raises:
        MisconfigurationException: it is no loader; a share that gives none.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise misconfigured(f"the {name} loader is {type(loader).__name__}, which gives no batches")
    try:
        length: float = len(loader)
    except (TypeError, NotImplementedError):
        length = math.inf
    if limit == 0 or length == 0:
        return 0
    if isinstance(limit, int):
        return min(length, limit)
    if math.isinf(length):
        if limit == 1.0:
            return math.inf
        help = "give a number of batches"
        raise misconfigured(f"limit_{name}_batches={limit}: the loader has no length to take a share of", help=help)
    count = int(length * limit)
    if count == 0:
        message = f"limit_{name}_batches={limit} of {length} batches is none"
        raise misconfigured(message, help=f"at least {1 / length:.3g}")
    return count
