"""Arrays of ONNX files, checked before anything of their size is made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES as ROWS
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError, UnsupportedError
from gluongraph.onnx.format.model import DTYPES
from gluongraph.onnx.format.package import onnx
from gluongraph.storage import Array

LARGEST = 1 << 36  # bytes of one array: more is a damaged file, or a machine that these models are not for

LONGEST = 255  # characters of the name of a file beside the model

# Where the elements lie that are not raw bytes, and how many numbers make an element.
_FIELDS = {
    "f32": "float_data", "f64": "double_data", "i64": "int64_data", "u64": "uint64_data", "u32": "uint64_data",
}  # fmt: skip


def dtype_of(number: int, what: str) -> str:
    """The element type of a number that files have for it.

    Raises:
        UnsupportedError: nothing here holds elements of that type.
    """
    if number in DTYPES:
        return DTYPES[number]
    names = onnx().TensorProto.DataType
    name = names.Name(number) if number in names.values() else f"number {number}"
    known = ", ".join(ROWS[each].long for each in DTYPES.values())
    raise UnsupportedError(f"{what} has elements of type {name}, which do not exist here; there are {known}")


def array_of(tensor: Any, what: str, folder: Path | None) -> Array:
    """The array of a TensorProto; `folder` is where the file lies, and its external data.

    Raises:
        FormatError: shape and data do not fit, or the data lie outside of the folder.
        UnsupportedError: an element type that does not exist here, or a part of an array.
    """
    what = f"{what}: array {tensor.name!r}"
    dtype, shape = dtype_of(tensor.data_type, what), tuple(tensor.dims)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{what} is a segment of a larger one")
    if min(shape, default=0) < 0:
        raise FormatError(f"{what} has the shape {list(shape)}")
    size = math.prod(shape)
    nbytes = size * ROWS[dtype].nbytes
    if nbytes > LARGEST:
        raise FormatError(f"{what} of shape {list(shape)} would take {nbytes:.3g} bytes")
    data: bytes
    if tensor.data_location == tensor.EXTERNAL:
        data = _external(tensor, what, folder, nbytes)
    elif tensor.HasField("raw_data"):
        data = tensor.raw_data
    else:
        return _typed(tensor, what, dtype, shape)
    if len(data) != nbytes:
        raise FormatError(f"{what} of shape {list(shape)} has {len(data)} bytes of data instead of {nbytes}")
    return np.frombuffer(data, numpy_dtype(dtype).newbyteorder("<")).astype(numpy_dtype(dtype)).reshape(shape)


def _typed(tensor: Any, what: str, dtype: str, shape: tuple[int, ...]) -> Array:
    field = _FIELDS.get(dtype, "int32_data")
    given = np.array(getattr(tensor, field))
    if given.size != math.prod(shape):
        raise FormatError(f"{what} of shape {list(shape)} has {given.size} elements")
    if dtype in ("f16", "bf16"):  # the bits, as integers
        return given.astype(np.uint16).view(numpy_dtype(dtype)).reshape(shape)
    return given.astype(numpy_dtype(dtype)).reshape(shape)


def _external(tensor: Any, what: str, folder: Path | None, nbytes: int) -> bytes:
    """The bytes that lie in a file beside the model."""
    about = {entry.key: entry.value for entry in tensor.external_data}
    location = about.get("location", "")
    if len(location) > LONGEST:
        raise FormatError(f"{what} lies in a file whose name has {len(location)} characters")
    if folder is None:
        raise FormatError(f"{what} lies in the file {location!r}, and the model did not come from a file")
    file = (folder / location).resolve()
    if not location or not file.is_relative_to(folder.resolve()):
        raise FormatError(f"{what} lies in {location!r}, which is outside of the model's folder")
    try:
        offset, length = int(about.get("offset", 0)), int(about.get("length", nbytes))
    except ValueError:
        raise FormatError(f"{what} lies at the places {about} of {location!r}, which are no numbers") from None
    if not file.is_file():
        raise FormatError(f"{what} lies in {location!r}, which does not exist")
    if length != nbytes or offset < 0 or offset + length > file.stat().st_size:
        raise FormatError(f"{what} needs {nbytes} bytes, and has {length} at {offset} of {location!r}")
    with file.open("rb") as opened:
        opened.seek(offset)
        data: bytes = opened.read(length)
    return data
