"""MXNet's files of arrays (.params, and what nd.save writes), read and written byte for byte.

A file is, in little endian: 0x112 and 0 as 64 bits each; the number of arrays and the arrays; the number of names and
the names, each as its length and its bytes. An array is its magic number, storage type, shape, device, element type
and elements. Older arrays, without a storage type and with shapes of 32 bits, are read too, sparse ones as dense.
"""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError
from gluongraph.host import disk
from gluongraph.storage import Array

FILE, HEAD = 0x112, 16  # what a file begins with, and how many bytes tell
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # V3: written under MXNet's numpy semantics, with arrays of no axes
DENSE, ROW_SPARSE, CSR = 0, 1, 2
LARGEST = 2**48  # elements of an array: more bytes than a process can address
FLAGS = {0: "f32", 1: "f64", 2: "f16", 3: "u8", 4: "i32", 5: "i8", 6: "i64", 7: "bool", 12: "bf16"}
_FLAG_OF = {numpy_dtype(name): flag for flag, name in FLAGS.items()}


def is_params(head: bytes) -> bool:
    """Do these first bytes begin a file of arrays?"""
    return head[:HEAD] == struct.pack("<QQ", FILE, 0)


class _Reader:
    """Takes numbers and arrays from bytes, in order."""

    def __init__(self, data: bytes, what: str):
        self.data, self.what, self.at = data, what, 0

    def take(self, form: str) -> Any:
        """One number by struct's letter."""
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def bytes(self, count: int) -> bytes:
        """So many bytes. Raises FormatError if there are not so many."""
        if not 0 <= count <= len(self.data) - self.at:
            raise FormatError(f"{self.what} ends early: {count} bytes are missing at byte {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def shape(self, letter: str = "q", ndim: int | None = None) -> tuple[int, ...]:
        """The number of axes (unless given) and the extents."""
        ndim = self.take("I") if ndim is None else ndim
        if ndim > 32:
            raise FormatError(f"{self.what}: an array of {ndim} axes at byte {self.at}")
        found = tuple(self.take(letter) for _ in range(ndim))
        if any(n < 0 for n in found) or math.prod(n or 1 for n in found) > LARGEST:
            raise FormatError(f"{self.what}: an array of shape {list(found)} before byte {self.at}")
        return found

    def dtype(self) -> np.dtype[Any]:
        flag = self.take("i")
        if flag not in FLAGS:
            raise FormatError(f"{self.what}: unknown element type {flag} at byte {self.at}")
        return numpy_dtype(FLAGS[flag])

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        count = 1
        for n in shape:
            count *= n
        return np.frombuffer(self.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


def parse(data: bytes, what: str) -> tuple[list[Array], list[str]]:
    """The arrays and their names (none, where the file has a list); `what` names the file in errors.

    Raises:
        FormatError: the bytes are no such file.
    """
    if not is_params(data):
        raise FormatError(f"{what} is no file of arrays in MXNet's format: it does not begin with 0x112 and 0")
    reader = _Reader(data, what)
    reader.bytes(HEAD)
    arrays = [_array(reader) for _ in range(reader.take("Q"))]
    try:
        names = [reader.bytes(reader.take("Q")).decode() for _ in range(reader.take("Q"))]
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: a name before byte {reader.at} is no text: {error.reason}") from None
    return arrays, names


def parse_one(data: bytes, what: str) -> Array:
    """The one array that MXNet wrote without a file around it, as its pickles have it.

    Raises:
        FormatError: the bytes are no such array.
    """
    return _array(_Reader(data, what))


def _array(reader: _Reader) -> Array:
    magic = reader.take("I")
    if magic not in (V2, V3):
        shape = reader.shape() if magic == V1 else reader.shape("I", magic)
        return _dense(reader, shape, scalar=False)
    kind = reader.take("i")
    if kind == DENSE:
        return _dense(reader, reader.shape(), scalar=magic == V3)
    if kind not in (ROW_SPARSE, CSR):
        raise FormatError(f"{reader.what}: unknown storage type {kind} at byte {reader.at}")
    stored, shape = reader.shape(), reader.shape()
    reader.bytes(8)  # the device
    dtype = reader.dtype()
    others = [(reader.dtype(), reader.shape()) for _ in range(kind)]  # row numbers; or where rows begin, and columns
    if kind == CSR:
        stored = others[1][1]  # MXNet writes shape (0,) for values that it has not counted yet
    values = reader.array(stored, dtype)
    indices = [reader.array(s, d) for d, s in others]
    try:
        made = np.zeros(shape, dtype)
        if kind == ROW_SPARSE:
            made[indices[0]] = values
        else:
            begins, columns = indices
            made[np.repeat(np.arange(shape[0]), np.diff(begins)), columns] = values
    except (ValueError, IndexError, TypeError, MemoryError) as error:
        message = f"{reader.what}: a sparse array of shape {list(shape)} before byte {reader.at} does not fit: {error}"
        raise FormatError(message) from None
    return made


def _dense(reader: _Reader, shape: tuple[int, ...], scalar: bool) -> Array:
    if not shape and not scalar:  # MXNet's array that nobody has filled: nothing follows
        return np.zeros((0,), np.float32)
    reader.bytes(8)  # the device
    return reader.array(shape, reader.dtype())


def write(filename: str, arrays: Sequence[Array], names: Sequence[str] = ()) -> None:
    """Write arrays, with names or without; the file appears whole or not at all."""
    whole(filename, lambda file: _write(file, arrays, names))


def _write(file: IO[bytes], arrays: Sequence[Array], names: Sequence[str]) -> None:
    file.write(struct.pack("<QQQ", FILE, 0, len(arrays)))
    for array in arrays:
        if array.dtype not in _FLAG_OF:
            raise FormatError(f"MXNet's files hold no {array.dtype}; convert it with astype")
        magic = V2 if array.ndim else V3
        shape = struct.pack(f"<I{array.ndim}q", array.ndim, *array.shape)
        file.write(struct.pack("<Ii", magic, DENSE) + shape + struct.pack("<iii", 1, 0, _FLAG_OF[array.dtype]))
        file.write(np.ascontiguousarray(array).tobytes())
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        encoded = name.encode()
        file.write(struct.pack("<Q", len(encoded)) + encoded)


def need_folder(filename: str) -> None:
    """Raise FileNotFoundError unless there is a folder for the file."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(filename))):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), filename)


def whole(filename: str, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under another name and rename it: it appears whole or not at all.

    Raises:
        OSError: there is no such folder, no room, no right to write; it names the file that was asked for.
    """
    need_folder(filename)
    try:
        disk.whole(Path(filename), write)
    except OSError as wrong:  # names the other file, or none where a disk is full
        raise OSError(wrong.errno, wrong.strerror, filename) from wrong
