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
from gluongraph.host import json_text
from gluongraph.storage import Array

METADATA = "__metadata__"
LONGEST = 100 << 20  # bytes of a header, as everywhere
_LENGTH, _ALIGNMENT = 8, 8  # bytes


def pieces(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Iterator[Array]:
    """The file's bytes, as arrays of uint8 one after the other; the arrays' own memory where it is contiguous.

    Arrays of wide elements come first, so that all elements lie aligned. `metadata` are texts about all of them.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
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
    """Return the arrays of a file's bytes, as views of these; `what` names the file in errors.

    Raises:
        FormatError: the bytes are no such file: its arrays lie outside of it, overlap, or leave bytes over.
    """
    return parse_all(data, what)[0]


def parse_all(data: Array, what: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays and the metadata. Raises what `parse` does."""
    try:
        start = _LENGTH + int.from_bytes(data[:_LENGTH].tobytes(), "little")
        if not _LENGTH < start <= min(data.nbytes, LONGEST):
            raise ValueError(f"a header of {start - _LENGTH} bytes in a file of {data.nbytes}")
        header = json_text.parse(data[_LENGTH:start].tobytes(), object_pairs_hook=_once)
        metadata = header.pop(METADATA, {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("what it says of itself is no text")
        elements = data[start:]
        end = 0
        for place in sorted(tuple(row["data_offsets"]) for row in header.values()):
            if len(place) != 2 or place[0] != end or place[1] < end:
                raise ValueError(f"arrays at {place}, after {end}")
            end = place[1]
        if end != elements.nbytes:
            raise ValueError(f"{elements.nbytes} bytes of elements instead of {end}")
        return {name: _array(row, elements) for name, row in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{what} is not a safetensors file: {error}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object, whose names must be distinct."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _array(row: Mapping[str, object], elements: Array) -> Array:
    name, shape, place = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(shape, list) or not isinstance(place, list):
        raise TypeError(f"{shape} at {place}")
    if not all(type(n) is int and n >= 0 for n in (*shape, *place)):
        raise ValueError(f"{shape} at {place}")
    if (short := str(name).lower()) not in DTYPES:
        raise ValueError(f"elements of type {name}")
    part = elements[place[0] : place[1]]
    if part.nbytes != math.prod(shape) * DTYPES[short].nbytes:
        raise ValueError(f"{part.nbytes} bytes for {name}{shape}")
    return part.view(numpy_dtype(short)).reshape(shape)
