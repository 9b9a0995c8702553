"""Tensors of PyTorch's and numpy's arrays, and storages that both share."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.host.torch_module import is_torch_loaded
from gluongraph.initializer import Initializer
from gluongraph.ndarray import NDArray
from gluongraph.storage import AbsentElements, Array, Storage, aligned_empty
from gluongraph.torch.aten.context import DTYPE_NAMES
from gluongraph.torch.export import torch


def is_tensor(value: Any) -> bool:
    """Is it a tensor of PyTorch's? Asked without importing torch."""
    return is_torch_loaded() and isinstance(value, torch().Tensor)


def to_numpy(tensor: Any) -> Array:
    """The elements of a tensor, in its memory where it is contiguous."""
    dense = tensor.detach().contiguous()
    if str(dense.dtype) == "torch.bfloat16":
        return np.asarray(dense.view(torch().int16).numpy().view(numpy_dtype("bf16")))
    return np.asarray(dense.numpy())


def to_torch(array: Array) -> Any:
    """A tensor in the memory of an array."""
    if array.dtype == numpy_dtype("bf16"):
        return torch().from_numpy(array.view(np.int16)).view(torch().bfloat16)
    return torch().from_numpy(array)


def dtype_of(tensor: Any) -> str:
    """The short name of a tensor's element type."""
    return DTYPE_NAMES[str(tensor.dtype)]


class SharedStorage(Storage):
    """The memory of a tensor: where the storage moves, into the arena of a trainer, the tensor follows.

    `parted` tells whether the tensor has been given other memory since, by `tensor.data = ...`.
    """

    __slots__ = ("address", "tensor")

    def __init__(self, tensor: Any):
        with torch().no_grad():
            if not tensor.is_contiguous():
                tensor.data = tensor.contiguous()
        super().__init__(to_numpy(tensor))
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.lend()  # PyTorch may write into it at any time

    @property
    def parted(self) -> bool:
        """Does the tensor live elsewhere?"""
        return bool(self.tensor.data_ptr() != self.address)

    def rejoin(self, values: Any, stay: bool = False) -> None:
        """Take the values of a tensor, and let its own live here again: in new memory, since somebody may keep what it
        had before, to put it back. With `stay` it is that before."""
        array = self.array if stay else aligned_empty(self.array.shape, self.array.dtype)
        to_torch(array).copy_(values.detach())
        self.rehome(array, copy=False)

    def follow(self, tensor: Any, stay: bool = False) -> None:
        """Be the memory of another tensor from now on, with its values. The one before keeps its own. With `stay` the
        memory is that before."""
        if stay and not self.parted:
            self.tensor.data = self.tensor.data.clone()
        self.tensor = tensor
        self.rejoin(tensor, stay)

    def rehome(self, array: Array, *, copy: bool = True) -> None:
        """Live in `array` from now on, the tensor too."""
        super().rehome(array, copy=copy)
        if array.flags.writeable:
            self.tensor.data = to_torch(array)
        else:  # of elements on other ranks: the shape, without memory; who reads it is not to go on with a wrong number
            held = self.tensor.data
            self.tensor.data = held.new_full((), float("nan") if held.is_floating_point() else 0).expand(array.shape)
        self.address = self.tensor.data_ptr()

    @staticmethod
    def without_elements() -> type[Storage]:
        """The class of a shared storage whose elements are on other ranks."""
        return SharedAbsent

    @staticmethod
    def with_elements() -> type[Storage]:
        """The class of a shared storage with its elements."""
        return SharedStorage


class SharedAbsent(AbsentElements, SharedStorage):  # type: ignore[override]  # `array` is an attribute of all others
    """The storage of a tensor whose elements are on other ranks; the tensor has its shape, and NaN."""

    __slots__ = ()


class FromTensor(Initializer):
    """The elements that a tensor has when a parameter is initialized again."""

    def __init__(self, tensor: Any):
        super().__init__()
        self._tensor = tensor

    def __call__(self, desc: Any, arr: NDArray | None = None) -> None:
        """Fill the array."""
        assert arr is not None
        arr[:] = NDArray(to_numpy(self._tensor))


def array_in(storage: Storage) -> NDArray:
    """An array that lives in a storage."""
    array = NDArray(storage.array)
    array._storage = storage
    return array
