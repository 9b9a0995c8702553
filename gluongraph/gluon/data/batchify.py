"""Batches out of lists of samples: what a DataLoader takes as `batchify_fn`. Names and meanings are MXNet 2's.

`use_shared_mem` is accepted and changes nothing: what comes from a worker process is in shared memory always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.ranges import check_count
from gluongraph.storage import Array


def default_batchify_fn(data: list[Any]) -> Any:
    """Samples stacked along a new first axis; tuples are stacked elementwise. The dtype of the dataset stays.

    >>> from gluongraph.gluon.data import default_batchify_fn
    >>> data, label = default_batchify_fn([([1, 2], 0), ([3, 4], 1), ([5, 6], 0)])
    >>> data.tolist(), label.tolist()
    ([[1, 2], [3, 4], [5, 6]], [0, 1, 0])

    Raises:
        ShapeError: the samples have different shapes.
    """
    if isinstance(data[0], tuple):
        return [default_batchify_fn(list(column)) for column in zip(*data, strict=True)]
    return _stacked(data)


def _stacked(data: Sequence[Any]) -> NDArray:
    first = data[0]
    try:
        array = np.stack([x.asnumpy() for x in data]) if isinstance(first, NDArray) else np.asarray(data)
    except ValueError as error:
        shapes = sorted({str(list(np.shape(x))) for x in data})
        raise ShapeError(
            f"samples of the shapes {', '.join(shapes)} cannot be stacked; batchify.Pad() makes them equal, and "
            "batchify.Append() keeps them apart"
        ) from error
    return nd.array(array, dtype=array.dtype)


class Stack:
    """Samples of one shape along a new first axis; each column of samples that are tuples or lists of arrays.

    >>> import numpy as np
    >>> from gluongraph.gluon.data.batchify import Stack
    >>> Stack()([[1, 2], [3, 4]])[0].tolist()
    [1, 3]
    >>> Stack()([np.array([1, 2]), np.array([3, 4])]).tolist()
    [[1, 2], [3, 4]]

    Raises:
        ShapeError: the samples have different shapes.
    """

    def __init__(self, use_shared_mem: bool = False):
        pass

    def __call__(self, data: Sequence[Any]) -> Any:
        if isinstance(data[0], (tuple, list)):
            return [self(column) for column in zip(*data, strict=True)]
        return _stacked(data)


class Pad:
    """Samples of different shapes, filled up with `val` to the largest extent of each axis, along a new first axis.

    `round_to` makes extents multiples of a number.

    >>> from gluongraph.gluon.data.batchify import Pad
    >>> Pad(val=-1)([[1, 2, 3], [4]]).tolist()
    [[1, 2, 3], [4, -1, -1]]

    Raises:
        TypeError: samples are tuples; `Group(Pad(), ...)` takes those.
        ShapeError: samples have different numbers of axes.
    """

    def __init__(
        self, val: float | None = None, dtype: Any = None, round_to: int | None = None, use_shared_mem: bool = False
    ):
        if round_to is not None:
            check_count(self, "round_to", round_to, 0)
        self._value, self._dtype, self._round_to = 0 if val is None else val, dtype, round_to or 1

    def __call__(self, data: Sequence[Any]) -> NDArray:
        if isinstance(data[0], tuple):
            raise TypeError("Pad takes samples of one array each; Group(Pad(), Pad(), ...) takes tuples")
        arrays = [x.asnumpy() if isinstance(x, NDArray) else np.asarray(x) for x in data]
        if len({array.ndim for array in arrays}) > 1:
            raise ShapeError(f"Pad: samples have {sorted({array.ndim for array in arrays})} axes")
        dtype = arrays[0].dtype if self._dtype is None else numpy_dtype(dtype_name(self._dtype))
        extents = [self._rounded(max(sizes)) for sizes in zip(*(array.shape for array in arrays), strict=True)]
        made: Array = np.full((len(arrays), *extents), self._value, dtype)
        for row, array in zip(made, arrays, strict=True):
            row[tuple(slice(size) for size in array.shape)] = array
        return nd.array(made, dtype=made.dtype)

    def _rounded(self, size: int) -> int:
        return self._round_to * math.ceil(size / self._round_to)


class Append:
    """A list with an array for each sample, of any shape; with `expand` each has a batch axis of extent 1.

    >>> from gluongraph.gluon.data.batchify import Append
    >>> [array.shape for array in Append()([[1, 2, 3], [4]])]
    [(1, 3), (1, 1)]
    >>> [array.shape for array in Append(expand=False)([[1, 2, 3], [4]])]
    [(3,), (1,)]
    """

    def __init__(self, expand: bool = True, batch_axis: int = 0, use_shared_mem: bool = False):
        self._expand, self._axis = expand, batch_axis

    def __call__(self, data: Sequence[Any]) -> list[NDArray]:
        arrays = [x if isinstance(x, NDArray) else nd.array(x) for x in data]
        return [x.expand_dims(axis=self._axis) for x in arrays] if self._expand else arrays


class Group:
    """A batchify function for each element of samples that are tuples: Group(Pad(), Stack()), or of a list of them.

    >>> from gluongraph.gluon.data.batchify import Group, Pad, Stack
    >>> texts, labels = Group(Pad(), Stack())([([1, 2], 0), ([3], 1)])
    >>> texts.tolist(), labels.tolist()
    ([[1, 2], [3, 0]], [0, 1])

    Raises:
        AssertionError: a list and more, something that cannot be called, or another number of elements.
    """

    def __init__(self, fn: Any, *args: Callable[[Sequence[Any]], Any]):
        if isinstance(fn, (list, tuple)):
            if args:
                raise AssertionError(with_user_location("Group takes its functions one by one, or as one list"))
            self._functions = tuple(fn)
        else:
            self._functions = (fn, *args)
        for number, function in enumerate(self._functions):
            if not callable(function):
                raise AssertionError(
                    with_user_location(
                        f"Group: function {number} is a {type(function).__name__}, which cannot be called"
                    )
                )

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        if len(data[0]) != len(self._functions):
            raise AssertionError(
                f"Group has {len(self._functions)} functions, and samples have {len(data[0])} elements"
            )
        columns = zip(*data, strict=True)
        return tuple(function(list(column)) for function, column in zip(self._functions, columns, strict=True))


Tuple = Group


class AsList:
    """The samples as they are, in a list: for texts.

    >>> from gluongraph.gluon.data.batchify import AsList, Group, Stack
    >>> Group(AsList(), Stack())([("a", 0), ("b", 1)])[0]
    ['a', 'b']
    """

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        return list(data)


List = AsList
