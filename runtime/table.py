"""The table of an entry point's arguments, whose address is the argument of a call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char, c_void_p
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.ir.entry_point import Arg

Array = np.ndarray[Any, Any]
CPU, CUDA = 1, 2  # DLPack's types of devices

# DLPack's description of a tensor, DLTensor of dlpack.h.
_ROW = np.dtype(
    [
        ("data", "u8"),
        ("device_type", "i4"),
        ("device_id", "i4"),
        ("ndim", "i4"),
        ("code", "u1"),
        ("bits", "u1"),
        ("lanes", "u2"),
        ("shape", "u8"),
        ("strides", "u8"),
        ("byte_offset", "u8"),
    ]
)
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}  # DLPack's codes of element types
_BFLOAT = 4


class Table:
    """An array of DLTensors, one for each argument, all flat. After construction only their data pointers change."""

    def __init__(self, args: Sequence[Arg], device: int, number: int):
        self._args = args
        self._sizes = np.array([arg.size for arg in args], np.int64)
        self._strides = np.ones(1, np.int64)
        rows = self._rows = np.zeros(len(args), _ROW)
        rows["device_type"], rows["device_id"], rows["ndim"], rows["lanes"] = device, number, 1, 1
        rows["code"] = [_BFLOAT if arg.dtype == "bf16" else _CODES[DTYPES[arg.dtype].family] for arg in args]
        rows["bits"] = [8 * DTYPES[arg.dtype].nbytes for arg in args]
        rows["shape"] = self._sizes.ctypes.data + np.arange(len(args)) * self._sizes.itemsize
        rows["strides"] = self._strides.ctypes.data
        self._data = rows["data"]
        self._expected = [(numpy_dtype(arg.dtype), arg.nbytes) for arg in args]
        self.address, self.nbytes = int(rows.ctypes.data), rows.nbytes

    def point(self, position: int, address: int) -> None:
        """Set the address of the argument at a position."""
        self._data[position] = address

    def copies(self, count: int) -> Array:
        """Return so many copies of the table, one after another; "data" is the field of addresses. They need this
        table's memory."""
        return np.repeat(self._rows[None], count, axis=0)

    def address_at(self, position: int) -> int:
        """Return the address of the argument at a position."""
        return int(self._data[position])

    def put(self, position: int, array: Array) -> None:
        """Bind the argument at a position to a host array, which the caller keeps alive.

        Raises:
            CompileError: it is not contiguous, or has another dtype or size.
        """
        if self._expected[position] != (array.dtype, array.nbytes) or not array.flags.c_contiguous:
            arg = self._args[position]
            given = f"{'a contiguous' if array.flags.c_contiguous else 'a strided'} {array.dtype}{list(array.shape)}"
            raise CompileError(f"argument {arg.name!r} is {numpy_dtype(arg.dtype)}{list(arg.shape)}, not {given}")
        self._data[position] = address_of(array)

    def tensor(self, position: int) -> c_void_p:
        """Return the DLTensor of the argument at a position, to call a single kernel."""
        return c_void_p(self.address + position * _ROW.itemsize)


def address_of(array: Array) -> int:
    """Return the address of a contiguous array."""
    try:
        return addressof(c_char.from_buffer(array.data))  # a quarter of the time that array.ctypes takes
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that the buffer protocol lacks
        return int(array.ctypes.data)
