"""Padded arrays for a compiled step, and the program for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gluongraph.errors import ShapeError, with_user_location
from gluongraph.step.sizes import SMALLEST
from gluongraph.storage import Array
from gluongraph.tracing.padding.layout import Extents, Layout
from gluongraph.tracing.padding.rewrite import WAY_OUT, Masked, PaddingError, mask_padding
from gluongraph.tracing.tracer import ARGUMENT, Traced

Places = tuple[tuple[tuple[int, str], ...], ...]  # of each array its free axes and their names


class Padding(NamedTuple):
    """The padding of one call: where free axes are, how long they are, and the sizes of the padded arrays."""

    places: Places
    lengths: Mapping[str, int]
    sizes: Mapping[str, int]


def padded(arrays: Sequence[Array], padding: Padding) -> list[Array]:
    """The arrays with copies of their last valid elements behind them: what is computed of these stays finite."""
    return [_padded(array, places, padding) for array, places in zip(arrays, padding.places, strict=True)]


def _padded(array: Array, places: Sequence[tuple[int, str]], padding: Padding) -> Array:
    for axis, name in places:
        n, size = padding.lengths[name], padding.sizes[name]
        if n == size:
            continue
        wide = np.empty((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
        front = (slice(None),) * axis
        wide[(*front, slice(n))] = array
        wide[(*front, slice(n, None))] = array[(*front, slice(n - 1, n))]
        array = wide
    return array


def padded_program(
    traced: Traced,
    padding: Padding,
    others: Iterable[tuple[Mapping[str, int], Mapping[str, int]]],
    trace: Callable[[list[Array]], tuple[Traced, Any]],
    arrays: Sequence[Array],
    gradients: bool,
) -> Masked:
    """The program for padded arrays, of its trace for these and those for two other lengths, which `trace` gives.

    Of several pairs it takes the first for which the program is of the same form: an extent that is equal to
    another by chance may hide what it does. With `gradients` the loss is 0 where it is padding.

    Raises:
        PaddingError: the program cannot be computed on padded arrays.
        Exception: what the program raises for all other lengths.
    """
    wrong: list[Exception] = []
    for pair in others:
        extents = Extents(padding.sizes, *pair)
        try:
            graphs = [trace(_resized(arrays, padding.places, other))[0].graph for other in pair]
            inputs = _layouts(arrays, padding.places, extents)
            loss = traced.first if gradients else ""
            return mask_padding(traced.graph, graphs[0], graphs[1], inputs, extents, loss)
        except Exception as error:
            wrong.append(error)
    if not wrong:
        raise changed(padding.lengths)
    raise next((error for error in wrong if isinstance(error, PaddingError)), wrong[0])


def lengths_to_compare(
    padding: Padding, used: Mapping[str, Sequence[int]], ranges: Mapping[str, tuple[int, int | None]]
) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Pairs of lengths to compare a program with: near the lower end of those that are padded to its sizes, and others.

    `used` are the sizes so far, `ranges` the lengths that there may be.
    """
    lowest = {name: max([SMALLEST, *(s + 1 for s in used[name] if s < size)]) for name, size in padding.sizes.items()}
    numbers = {name: k for k, name in enumerate(padding.sizes)}
    wanted: tuple[Callable[[str, int], int], ...] = (
        lambda name, size: lowest[name] + numbers[name],
        lambda name, size: size * 3 // 4 - numbers[name],
        lambda name, size: size - 1 - numbers[name],
        lambda name, size: size + 5 + 3 * numbers[name],
    )
    allowed = [_allowed(padding, {k: n(k, size) for k, size in padding.sizes.items()}, ranges) for n in wanted]
    found = [each for k, each in enumerate(allowed) if each and each not in allowed[:k]]
    return list(zip(found, [*found[1:], *found[:1]], strict=True))


def _allowed(
    padding: Padding, wanted: Mapping[str, int], ranges: Mapping[str, tuple[int, int | None]]
) -> dict[str, int]:
    """Lengths like these that may be, each by another number of elements from the padded one; empty if none."""
    found: dict[str, int] = {}
    differences: set[int] = set()
    for name, size in padding.sizes.items():
        low, high = ranges.get(name, (0, None))
        other = max(wanted[name], low, 1)
        while other == size or abs(other - size) in differences:
            other += 1
        if high is not None and other > high:
            return {}
        differences.add(abs(other - size))
        found[name] = other
    return found


def _layouts(arrays: Sequence[Array], places: Places, extents: Extents) -> dict[str, Layout]:
    """Where the padding of the arguments lies, by the names of inputs."""
    found = {}
    for number, (array, each) in enumerate(zip(arrays, places, strict=True)):
        names = dict(each)
        axes = enumerate(array.shape)
        found[f"{ARGUMENT}{number}"] = tuple(
            extents.free(names[axis]) if axis in names else extents.axis(n, n) for axis, n in axes
        )
    return found


def _resized(arrays: Sequence[Array], places: Places, sizes: Mapping[str, int]) -> list[Array]:
    """Arrays of other extents, without values of their own."""
    found = []
    for array, each in zip(arrays, places, strict=True):
        shape = list(array.shape)
        for axis, name in each:
            shape[axis] = sizes[name]
        found.append(np.broadcast_to(np.zeros((), array.dtype), shape))
    return found


def check_least(least: Mapping[str, int], lengths: Mapping[str, int]) -> None:
    """Raise ShapeError where a length is below what the program takes for granted."""
    for name, count in least.items():
        if lengths[name] < count:
            message = f"dynamic: {name!r} has {lengths[name]} elements, and the program reads {count}"
            raise ShapeError(with_user_location(message, help=f'sizes={{{name!r}: "exact"}}'))


@contextmanager
def noting(padding: Padding | None) -> Iterator[None]:
    """Within: errors tell of extents that nobody has given."""
    try:
        yield
    except Exception as error:
        for name, size in ({} if padding is None else padding.sizes).items():
            error.add_note(f"  dynamic: {name!r} is padded to {size}; sizes= says to what it may be")
        raise


def changed(lengths: Mapping[str, int]) -> PaddingError:
    """The error for lengths for which a program is another than for the size that they are padded to."""
    told = " and ".join(f"{n} of {name!r}" for name, n in lengths.items())
    message = f"dynamic: for a length of {told} the program computes something else than for what it is padded to"
    return PaddingError(with_user_location(message, help=WAY_OUT))
