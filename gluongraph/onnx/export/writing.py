"""Models as files: one, and a second one for arrays that are too many for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gluongraph.host import params_file

LARGEST = (1 << 31) - (1 << 26)  # bytes of arrays in a protobuf message, which has less than 2 GiB


def write(path: str | os.PathLike[str], proto: Any) -> None:
    """Write a model; the file appears whole or not at all.

    Arrays that are more than such a file can hold lie in a second one beside it, `NAME.data`, which is written first.
    """
    tensors = [t for t in proto.graph.initializer if t.raw_data]
    if sum(len(t.raw_data) for t in tensors) > LARGEST:
        _set_apart(tensors, f"{os.fspath(path)}.data")
    params_file.whole(os.fspath(path), lambda file: file.write(proto.SerializeToString(deterministic=True)))


def _set_apart(tensors: Sequence[Any], path: str) -> None:
    """Write the elements of arrays into a file, one after the other, and let the arrays say where they lie."""
    parts = [t.raw_data for t in tensors]
    params_file.whole(path, lambda file: file.writelines(parts))
    offset = 0
    for t, part in zip(tensors, parts, strict=True):
        for key, value in (("location", os.path.basename(path)), ("offset", offset), ("length", len(part))):
            t.external_data.add(key=key, value=str(value))
        t.data_location = t.EXTERNAL
        t.ClearField("raw_data")
        offset += len(part)
