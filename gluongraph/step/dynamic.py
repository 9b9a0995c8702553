"""Free axes of a step's batch: few programs for many lengths, on arrays that are padded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gluongraph.errors import ArgumentError, MXNetError, ShapeError, pluralize, warn, with_user_location
from gluongraph.host import progress
from gluongraph.step.sizes import LIMIT, SMALLEST, by_name, few
from gluongraph.storage import Array
from gluongraph.tracing.padding.free_axes import FreeAxes
from gluongraph.tracing.padding.layout import Extents, Layout
from gluongraph.tracing.padding.rewrite import WAY_OUT, Masked, PaddingError, mask_padding
from gluongraph.tracing.tracer import ARGUMENT, Traced

BATCH = "batch"
Places = tuple[tuple[tuple[int, str], ...], ...]  # of each array its free axes and their names


class Padding(NamedTuple):
    """The padding of one call: where free axes are, how long they are, and the sizes of the padded arrays."""

    places: Places
    lengths: Mapping[str, int]
    sizes: Mapping[str, int]


class Dynamic:
    """The free axes of a step's batch, and the sizes that they have been padded to; `step.dynamic`.

    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> step = mx.compile(net, dynamic="batch", sizes=[8, 32])
    >>> [step.predict(nd.ones((n, 2))).shape[0] for n in (3, 8, 20, 31)]
    [3, 8, 20, 31]
    >>> step.dynamic
    batch: 8, 32; 2 compilations
    """

    def __init__(
        self,
        axes: Mapping[int, Mapping[int, str]] | None,
        sizes: Any = None,
        ranges: Mapping[str, tuple[int, int | None]] | None = None,
        inputs: int | None = None,
    ):
        """`axes` are the free axes of each array of a batch; None: the first of all is "batch". Of a net with so many
        `inputs` that says what is free, arrays behind them have the free axes of the inputs, by position and length."""
        self.axes, self.ranges, self.inputs = axes, ranges or {}, inputs
        names = [BATCH] if axes is None else list(dict.fromkeys(n for each in axes.values() for n in each.values()))
        self._policies = by_name(names, sizes)
        self._sizes: dict[str, list[int]] = {name: [] for name, policy in self._policies.items() if policy is not None}
        self._labels: dict[int, tuple[tuple[int, str], ...]] = {}  # arrays behind the inputs -> their free axes
        self.compilations = 0

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that each free axis has been padded to, by name.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon
        >>> mx.compile(gluon.nn.Dense(1), dynamic="batch").dynamic.sizes
        {'batch': ()}
        """
        return {name: tuple(sizes) for name, sizes in self._sizes.items()}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {', '.join(map(str, s)) or 'none yet'}" for name, s in self._sizes.items())
        return f"{sizes}; {pluralize(self.compilations, 'compilation')}"

    # -- one call

    def padding(self, arrays: Sequence[Array]) -> Padding:
        """Where the arrays of a call are padded, and to which sizes.

        Raises:
            ShapeError: an array without that axis; different lengths of one axis; or one that is too long.
        """
        places = tuple(self._places(number, array, arrays) for number, array in enumerate(arrays))
        lengths: dict[str, int] = {}
        for number, (array, each) in enumerate(zip(arrays, places, strict=True)):
            for axis, name in each:
                n = array.shape[axis]
                if lengths.setdefault(name, n) != n:
                    message = f"dynamic: axis {axis} of array {number} has {n} elements; {name!r} is {lengths[name]}"
                    raise ShapeError(with_user_location(message, help="axes of one name have one length"))
        sizes = {}
        for name, n in lengths.items():
            policy = self._policies[name]
            assert policy is not None
            sizes[name] = policy(n, self._sizes[name], self.ranges.get(name, (0, None))[1])
        return Padding(places, lengths, sizes)

    def _places(self, number: int, array: Array, arrays: Sequence[Array]) -> tuple[tuple[int, str], ...]:
        found: tuple[tuple[int, str], ...] = ()
        if self.axes is None:
            found = ((0, BATCH),) if array.ndim else ()
        elif self.inputs is not None and number >= self.inputs:
            found = self._labels.get(number) or tuple(self._alike(array, arrays))
        else:
            found = tuple(sorted(self.axes.get(number, {}).items()))
        if found and found[-1][0] >= array.ndim:
            message = f"dynamic: array {number} has no axis {found[-1][0]}: its shape is {array.shape}"
            raise ShapeError(with_user_location(message, help="dynamic={array: {axis: name}}, both counted from 0"))
        return tuple((axis, name) for axis, name in found if name in self._sizes)

    def _alike(self, array: Array, arrays: Sequence[Array]) -> Iterator[tuple[int, str]]:
        """The axes of an array of labels that are as long as the free axis of an input at the same place."""
        assert self.axes is not None and self.inputs is not None
        for axis, n in enumerate(array.shape):
            for number, given in enumerate(arrays[: self.inputs]):
                name = self.axes.get(number, {}).get(axis)
                if name is not None and given.shape[axis] == n:
                    yield axis, name
                    break

    def note(self, padding: Padding, compiled: bool) -> None:
        """Keep the sizes of a call that has been compiled, and tell of new ones."""
        self.compilations += compiled
        if self.inputs is not None:
            self._labels |= {k: p for k, p in enumerate(padding.places) if k >= self.inputs and p}
        for name, size in padding.sizes.items():
            if size in self._sizes[name]:
                continue
            self._sizes[name] = sorted([*self._sizes[name], size])
            _tell(name, padding.lengths[name], size)
            if self._policies[name] is few and len(self._sizes[name]) == LIMIT + 1:
                used = ", ".join(map(str, self._sizes[name]))
                warn(f"{name!r} grows: it has been padded to {used}, each of which was compiled\n  help: sizes=[...]")

    def masked(
        self,
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

    def others(self, padding: Padding) -> list[tuple[dict[str, int], dict[str, int]]]:
        """Pairs of lengths to compare a program with: near the lower end of those that are padded to its sizes, and
        others."""
        lowest = {
            name: max([SMALLEST, *(s + 1 for s in self._sizes[name] if s < size)])
            for name, size in padding.sizes.items()
        }
        numbers = {name: k for k, name in enumerate(padding.sizes)}
        wanted: tuple[Callable[[str, int], int], ...] = (
            lambda name, size: lowest[name] + numbers[name],
            lambda name, size: size * 3 // 4 - numbers[name],
            lambda name, size: size - 1 - numbers[name],
            lambda name, size: size + 5 + 3 * numbers[name],
        )
        allowed = [self._allowed(padding, {k: n(k, size) for k, size in padding.sizes.items()}) for n in wanted]
        found = [each for k, each in enumerate(allowed) if each and each not in allowed[:k]]
        return list(zip(found, [*found[1:], *found[:1]], strict=True))

    def _allowed(self, padding: Padding, wanted: Mapping[str, int]) -> dict[str, int]:
        """Lengths like these that may be, each by another number of elements from the padded one; empty if none."""
        found: dict[str, int] = {}
        differences: set[int] = set()
        for name, size in padding.sizes.items():
            low, high = self.ranges.get(name, (0, None))
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


def _tell(name: str, length: int, size: int) -> None:
    """One line for who is looking."""
    if progress.wanted():
        padded = f" is padded to {size}" if size != length else ", so shorter ones are padded to it"
        print(f"gluongraph: a length of {length} of {name!r}{padded}", file=sys.stderr)


def _resized(arrays: Sequence[Array], places: Places, sizes: Mapping[str, int]) -> list[Array]:
    """Arrays of other extents, without values of their own."""
    found = []
    for array, each in zip(arrays, places, strict=True):
        shape = list(array.shape)
        for axis, name in each:
            shape[axis] = sizes[name]
        found.append(np.broadcast_to(np.zeros((), array.dtype), shape))
    return found


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


def check_least(least: Mapping[str, int], lengths: Mapping[str, int]) -> None:
    """Raise ShapeError where a length is below what the program takes for granted."""
    for name, count in least.items():
        if lengths[name] < count:
            message = f"dynamic: {name!r} has {lengths[name]} elements, and the program reads {count}"
            raise ShapeError(with_user_location(message, help=f'sizes={{{name!r}: "exact"}}'))


def dynamic_of(dynamic: Any, sizes: Any, net: Any, inputs: int) -> Dynamic | None:
    """The free axes that `mx.compile(..., dynamic=, sizes=)` asks for; None if there are none.

    Raises:
        TypeError, ValueError: `dynamic` or `sizes` is not what it can be.
        ArgumentError: True, and the net does not say which axes are free.
    """
    if dynamic is None or dynamic is False:
        if sizes is not None:
            raise ValueError(with_user_location("sizes= without dynamic=", help='dynamic="batch"'))
        return None
    if dynamic == BATCH:
        return Dynamic(None, sizes)
    if dynamic is True:
        return _declared(sizes, net, inputs)
    if not isinstance(dynamic, Mapping) or not all(map(_is_axes, dynamic.items())):
        message = f"dynamic is {BATCH!r}, True, or says which axes are free, not {dynamic!r}"
        help = 'dynamic={0: {0: "batch", 1: "length"}, 1: {0: "batch"}}: by array of the batch and axis'
        raise TypeError(with_user_location(message, help=help))
    return Dynamic({k: dict(v) for k, v in dynamic.items()}, sizes)


def _is_axes(item: tuple[Any, Any]) -> bool:
    number, axes = item
    return (
        isinstance(number, int)
        and number >= 0
        and isinstance(axes, Mapping)
        and all(isinstance(k, int) and k >= 0 and isinstance(n, str) and n for k, n in axes.items())
    )


def _declared(sizes: Any, net: Any, inputs: int) -> Dynamic:
    """The free axes that an imported net has."""
    free = getattr(net, "free_axes", None)
    if not isinstance(free, FreeAxes) or not free.ranges:
        message = "dynamic=True, and the net does not say which axes are free"
        help = 'dynamic="batch", or by array and axis: dynamic={0: {0: "batch"}, 1: {0: "batch"}}'
        raise ArgumentError(with_user_location(message, help=help))
    found = Dynamic(dict(enumerate(free.inputs)), sizes, free.ranges, inputs)
    for name, where in free.mixed.items():
        if name in found.sizes:
            message = f"dynamic: {where} is computed from {name!r}, which cannot be padded"
            raise ArgumentError(with_user_location(message, help=f'sizes={{{name!r}: "exact"}}'))
    return found


def check_alone(contexts: int, ranks: int) -> None:
    """Refuse what has several batches at a time, each with a length of its own."""
    if contexts > 1:
        message = "dynamic, with parameters on several contexts, each of which would have a length of its own"
        raise MXNetError(with_user_location(message, help="leave dynamic out"))
    if ranks > 1:
        message = "dynamic, on several ranks: each would run another program, and sums over ranks need one"
        raise MXNetError(with_user_location(message, help="leave dynamic out, or pad on all ranks to the same size"))


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
