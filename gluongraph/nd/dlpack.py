"""Memory shared with other libraries through DLPack: their arrays, and the capsules that MXNet passes around."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.ndarray import NDArray
from gluongraph.storage import Array


class _Capsule:
    """A capsule of memory on the CPU, as numpy asks for it."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class _Writable:
    """The memory of an array that numpy holds for read-only, since old capsules do not say."""

    def __init__(self, array: Array):
        self._array = array  # which owns the memory
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def shared(source: Any) -> Array:
    """The memory behind an array of another library on the CPU, or behind a capsule."""
    if hasattr(source, "__dlpack__"):
        return np.from_dlpack(source)
    return np.asarray(_Writable(np.from_dlpack(_Capsule(source))))


def to_dlpack_for_read(data: NDArray) -> Any:
    """A DLPack capsule of the array's memory."""
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> Any:
    """The same: whoever writes into it writes into the array."""
    return data.to_dlpack_for_write()
