"""Batches as the compiled step takes them: their arrays one after another, and the structure that these are in."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.dtypes import is_float
from gluongraph.errors import with_user_location
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.ndarray import NDArray

ARRAY = "array"
Structure = Any  # ARRAY, ("constant", value), or (kind, names, parts): hashable, equal for batches of one structure


def flatten(batch: Any) -> tuple[list[Any], Structure]:
    """The arrays of a batch in order, as numpy's or NDArrays, and its structure.

    Tuples, lists, dicts, named tuples and dataclasses are gone into; tensors of PyTorch's become arrays in the same
    memory; other values are part of the structure.

    Raises:
        TypeError: a value that cannot be compared, and so cannot be part of a compiled program.

    >>> arrays, structure = flatten({"x": np.ones(2), "scale": 3})
    >>> len(arrays), structure
    (1, ('dict', ('x', 'scale'), ('array', ('constant', 3))))
    """
    arrays: list[Any] = []
    return arrays, _flatten(batch, arrays, as_array)


def flatten_to_stack(batch: Any) -> tuple[list[Any], Structure]:
    """As `flatten`, for `stacked`: tensors stay tensors, since one conversion of a stack is faster than one of each."""
    arrays: list[Any] = []
    return arrays, _flatten(batch, arrays, _as_leaf)


def stacked(arrays: Sequence[Any]) -> Any:
    """Arrays of one type, as `flatten_to_stack` gives them, along a new first axis. It is an NDArray for float64, of
    which a step keeps the type.

    >>> stacked([np.zeros(3, np.float32), np.ones(3, np.float32)]).shape
    (2, 3)
    """
    first = arrays[0]
    if isinstance(first, (np.ndarray, NDArray)):
        parts = [a.asnumpy() if isinstance(a, NDArray) else a for a in arrays]
        # Of whole arrays concatenate makes the same as stack, in half the time.
        made = np.concatenate(parts).reshape(len(parts), *first.shape) if first.shape else np.stack(parts)
        return NDArray(made) if made.dtype == np.float64 and isinstance(first, NDArray) else made
    from gluongraph.torch.export import torch

    return _of_tensor(torch().stack(arrays))


class Copied:
    """Arrays of a batch, and copies of them made now: a loader may write its next batch over this one.

    >>> array = np.zeros(2)
    >>> batch = Copied([array])
    >>> array[:] = 1
    >>> batch.is_overwritten(), batch.copies[0].tolist()
    (True, [0.0, 0.0])
    """

    def __init__(self, arrays: Sequence[Any]):
        self._arrays = [as_array(array) for array in arrays]
        self.copies = [array.copy() for array in self._arrays]

    def is_overwritten(self) -> bool:
        """Have the arrays other bits than the copies?"""
        return any(_bits(a) != _bits(b) for a, b in zip(self._arrays, self.copies, strict=True))


def _bits(array: Any) -> bytes:
    held: np.ndarray[Any, Any] = array.asnumpy() if isinstance(array, NDArray) else array
    return held.tobytes()


def _flatten(part: Any, arrays: list[Any], leaf: Callable[[Any], Any]) -> Structure:
    kind = type(part)
    if kind is tuple or kind is list:
        return (kind.__name__, None, tuple([_flatten(each, arrays, leaf) for each in part]))
    if (array := leaf(part)) is not None:
        arrays.append(array)
        return ARRAY
    if isinstance(part, Mapping):
        return ("dict", tuple(part), tuple([_flatten(each, arrays, leaf) for each in part.values()]))
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return (kind, part._fields, tuple([_flatten(each, arrays, leaf) for each in part]))
    if isinstance(part, (tuple, list)):
        parts = tuple([_flatten(each, arrays, leaf) for each in part])
        return ("list" if isinstance(part, list) else "tuple", None, parts)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = tuple(field.name for field in dataclasses.fields(part))
        return (kind, names, tuple([_flatten(getattr(part, name), arrays, leaf) for name in names]))
    try:
        hash(part)
    except TypeError:
        message = f"a batch holds {kind.__name__}, which is no array and cannot be part of a compiled program"
        raise TypeError(with_user_location(message, help="give arrays, numbers and texts")) from None
    return ("constant", part)


def as_array(value: Any) -> Any:
    """An array of the value, in its memory; None if it is none.

    Raises:
        TypeError: a tensor that is not on the CPU.
    """
    if isinstance(value, (np.ndarray, NDArray)):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if is_torch_loaded() and isinstance(value, _tensor()):
        return _of_tensor(value)
    return None


_known_leaves: set[type] = {np.ndarray, NDArray}  # classes that `_as_leaf` need not look at again


def _as_leaf(value: Any) -> Any:
    """An array or tensor as it is; None for what is neither."""
    kind = type(value)
    if kind in _known_leaves:
        return value
    if is_torch_loaded() and isinstance(value, _tensor()):
        _known_leaves.add(kind)
        return value
    return as_array(value)


@cache
def _tensor() -> type:
    """The class of PyTorch's tensors."""
    from gluongraph.torch.export import torch

    return torch().Tensor  # type: ignore[no-any-return]


def _of_tensor(value: Any) -> Any:
    """The array of a tensor. Of float64 it is an NDArray, since numpy's float64 is taken for float32."""
    try:
        array = value.numpy()
    except (RuntimeError, TypeError):  # it needs gradients, or has a type that numpy has not, or is elsewhere
        if value.device.type != "cpu":
            message = f"a batch holds a tensor on {value.device}; batches are made on the CPU"
            raise TypeError(with_user_location(message, help="leave .cuda() and .to(device) out")) from None
        from gluongraph.torch.tensors import to_numpy

        array = to_numpy(value)
    return NDArray(array) if array.dtype.char == "d" else array


def unflatten(structure: Structure, arrays: Any) -> Any:
    """The batch of that structure, with these arrays (an iterator) in their places."""
    if structure == ARRAY:
        return next(arrays)
    if structure[0] == "constant":
        return structure[1]
    kind, names, parts = structure
    values = [unflatten(part, arrays) for part in parts]
    if kind == "tuple":
        return tuple(values)
    if kind == "list":
        return values
    if kind == "dict":
        return dict(zip(names, values, strict=True))
    return kind(**dict(zip(names, values, strict=True)))


def batch_size_of(arrays: Sequence[Any]) -> int:
    """The number of samples of a batch: the first extent of its first array that has one; 1 where none has.

    >>> batch_size_of([np.ones((3, 2))])
    3
    """
    return size_of([array.shape for array in arrays])


def size_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """The number of samples of a batch with arrays of these shapes.

    >>> size_of([(), (3, 2)])
    3
    """
    return next((int(shape[0]) for shape in shapes if shape), 1)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """A batch or a result with `function(leaf)` for each leaf, in the same structure.

    >>> map_leaves(lambda leaf: leaf + 1, {"x": [1, 2], "y": (3,)})
    {'x': [2, 3], 'y': (4,)}
    """
    if isinstance(value, Mapping):
        return {key: map_leaves(function, each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [map_leaves(function, each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)  # its constructor may take other arguments than its fields
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, map_leaves(function, getattr(value, field.name)))
        return made
    return function(value)


def cast_floats(value: Any, dtype: str) -> Any:
    """A batch whose floating-point arrays are cast; numpy's become NDArrays, tensors stay tensors."""

    def cast(leaf: Any) -> Any:
        if is_torch_loaded():
            from gluongraph.torch.export import torch
            from gluongraph.torch.tensors import is_tensor

            if is_tensor(leaf):
                return leaf.to(getattr(torch(), dtype)) if leaf.is_floating_point() else leaf
        array = as_array(leaf)
        if array is None:
            return leaf
        made = array if isinstance(array, NDArray) else NDArray(array)
        return made.astype(dtype) if is_float(made.type.dtype) else leaf

    return map_leaves(cast, value)


def to_user(value: Any, torch: bool) -> Any:
    """Results of a program as its user knows them: tensors for modules of PyTorch's, else NDArrays."""
    return map_leaves(lambda leaf: _as_tensor(leaf) if isinstance(leaf, NDArray) else leaf, value) if torch else value


def to_framework(batch: Any, torch: bool) -> Any:
    """A batch as layers take it that run eagerly: its arrays as tensors for modules of PyTorch's, else as NDArrays.
    Tensors stay the tensors that they are."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, np.generic):
            leaf = np.asarray(leaf)
        return _as_tensor(leaf) if isinstance(leaf, (np.ndarray, NDArray)) else leaf

    def array(leaf: Any) -> Any:
        made = as_array(leaf)
        return leaf if made is None else made if isinstance(made, NDArray) else nd.array(made, dtype=made.dtype)

    return map_leaves(tensor if torch else array, batch)


def _as_tensor(array: Any) -> Any:
    """A tensor of the same shape; in the same memory where that is contiguous."""
    from gluongraph.torch.tensors import to_torch

    held = array.asnumpy() if isinstance(array, NDArray) else array
    return to_torch(np.ascontiguousarray(held)).reshape(array.shape)
