"""Free axes of a step's batch: few programs for many lengths, on arrays that are padded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gluongraph.errors import ArgumentError, MXNetError, ShapeError, pluralize, warn, with_user_location
from gluongraph.host import progress
from gluongraph.step.padded_program import Padding
from gluongraph.step.sizes import LIMIT, by_name, few
from gluongraph.storage import Array
from gluongraph.tracing.padding.free_axes import FreeAxes

BATCH = "batch"


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


def _tell(name: str, length: int, size: int) -> None:
    """One line for who is looking."""
    if progress.wanted():
        padded = f" is padded to {size}" if size != length else ", so shorter ones are padded to it"
        print(f"gluongraph: a length of {length} of {name!r}{padded}", file=sys.stderr)


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
