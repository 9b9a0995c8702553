"""One batch on several contexts: its shares, the program that runs on all of them, and the gathered results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.context import Context
from gluongraph.errors import pluralize, with_user_location
from gluongraph.mxops import shapes as mxshapes
from gluongraph.ndarray import NDArray, invoke
from gluongraph.storage import Array


def is_shared_out(given: Any) -> bool:
    """Is this argument a list with an array for each context, as split_and_load returns?"""
    return isinstance(given, (list, tuple)) and bool(given) and all(isinstance(part, NDArray) for part in given)


def contexts_of(batch: Sequence[Any], all: Sequence[Context], everywhere: bool) -> tuple[Context, ...]:
    """Return the contexts of a program: those of the lists among its arguments; without lists all, or the first one.

    Raises:
        ValueError: lists are for different contexts, or with `everywhere` not for all.
    """
    listed = [tuple(part.context for part in given) for given in batch if is_shared_out(given)]
    wanted = tuple(all) if everywhere else listed[0] if listed else tuple(all[:1])
    for where in listed:
        if where != wanted:
            message = f"an argument lies on {list(where)}, and the step needs {list(wanted)}"
            help = "split_and_load(batch, ctx_list), with the parameters' contexts in their order"
            raise ValueError(with_user_location(message, help=help))
    return wanted


def shares(given: Any, array: Callable[[Any], Array], count: int) -> list[Array]:
    """Return an argument's part for each context: the list's arrays, or equal parts along the first axis.

    `array` converts an array to numpy. An array without axes goes to every context.

    Raises:
        ValueError: the samples do not divide into equal parts.
    """
    if is_shared_out(given):
        return [array(part) for part in given]
    whole = array(given)
    if count == 1 or not whole.shape:
        return [whole] * count
    if len(whole) < count or len(whole) % count:
        raise ValueError(
            f"{pluralize(len(whole), 'sample')} do not divide into {count} equal parts, one for each context"
        )
    return list(np.split(whole, count))


class OnAll:
    """Runs a program on each context's part of a batch; arguments are the parts, one context's after another's.

    Its results are concatenated along the first axis; scalars become one element per context.
    """

    def __init__(self, function: Callable[..., Any], contexts: Sequence[Context]):
        self.function, self.contexts = function, contexts
        self.shapes: list[list[tuple[int, ...]]] = []  # by result: its shape on each context

    def __call__(self, *arrays: Any) -> Any:
        count = len(arrays) // len(self.contexts)
        found = []
        for number, ctx in enumerate(self.contexts):
            with ctx:
                found.append(self.function(*arrays[number * count : (number + 1) * count]))
        self.shapes = []
        return self._joined(found)

    def _joined(self, parts: Sequence[Any]) -> Any:
        first = parts[0]
        if isinstance(first, NDArray):
            self.shapes.append([part.shape for part in parts])
            rows = (part if part.shape else part.reshape((1,)) for part in parts)
            return first if len(parts) == 1 else invoke(mxshapes.concat, *rows, dim=0)
        if isinstance(first, dict):
            return {key: self._joined([part[key] for part in parts]) for key in first}
        if isinstance(first, (tuple, list)):
            items = [self._joined(each) for each in zip(*parts, strict=True)]
            return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
        return first

    def apart(self, results: Mapping[str, Array]) -> list[dict[str, NDArray]]:
        """Split concatenated results, by name, into those of each context."""
        found: list[dict[str, NDArray]] = [{} for _ in self.contexts]
        for shapes, (name, whole) in zip(self.shapes, results.items(), strict=False):
            rows = whole if shapes[0] else whole.reshape(-1)
            start = 0
            for each, shape, ctx in zip(found, shapes, self.contexts, strict=True):
                end = start + (shape[0] if shape else 1)
                each[name] = NDArray(rows[start:end].reshape(shape), ctx)
                start = end
        return found
