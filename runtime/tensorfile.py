"""Named arrays in a safetensors file: 8 bytes that say how long the header is, the header in JSON, the elements.

Written here and not by the package, which makes a second copy of everything in memory, and holds Python's lock while
it does: a thread that saves would stop the training that it runs beside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np

from gluongraph.dtypes import DTYPES, dtype_name, numpy_dtype
from gluongraph.errors import FormatError
from gluongraph.storage import Array

_LENGTH, _ALIGNMENT = 8, 8  # bytes


def pieces(arrays: Mapping[str, Array]) -> Iterator[Array]:
    """The file's bytes, as arrays of uint8 one after the other; the arrays' own memory where it is contiguous.

    Arrays of wide elements come first, so that all elements lie aligned.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, end = {}, 0
    for name in order:
        array = arrays[name]
        at, end = end, end + array.nbytes
        dtype = dtype_name(array.dtype).upper()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield np.frombuffer(len(text).to_bytes(_LENGTH, "little") + text, np.uint8)
    for name in order:
        yield np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)


def parse(data: Array, what: str) -> dict[str, Array]:
    """The arrays of a file's bytes, in their memory; `what` names the file in errors.

    Raises:
        FormatError: the bytes are no such file, or its arrays lie outside of it.
    """
    try:
        start = _LENGTH + int.from_bytes(data[:_LENGTH].tobytes(), "little")
        header = json.loads(data[_LENGTH:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _array(row, data[start:]) for name, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{what} is not a safetensors file: {error}") from None


def _array(row: Mapping[str, object], elements: Array) -> Array:
    name, shape, place = row["dtype"], row["shape"], row["data_offsets"]
    assert isinstance(shape, list) and isinstance(place, list)
    if (short := str(name).lower()) not in DTYPES:
        raise ValueError(f"elements of type {name}")
    part = elements[place[0] : place[1]]
    if part.nbytes != math.prod(shape) * DTYPES[short].nbytes:
        raise ValueError(f"{part.nbytes} bytes for {name}{shape}")
    return part.view(numpy_dtype(short)).reshape(shape)
