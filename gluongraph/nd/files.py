"""Parameter files: safetensors, by structural name; MXNet's .params files are read too. None of them holds code.

The format itself would let a byte that has changed on the disk pass. So a digest lies among the texts of the header,
where other readers leave it alone; files of others, which have none, are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name
from gluongraph.errors import FormatError, with_user_location
from gluongraph.host import json_text, params_file
from gluongraph.host.interrupts import import_whole
from gluongraph.storage import Array

DIGEST = "sha256"
_KINDS = ("arg:", "aux:")  # how HybridBlock.export tells parameters from running statistics


def save(filename: str, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays, and texts beside them; the file appears whole or not at all."""
    safetensors: Any = import_whole("safetensors.numpy")  # here: `import gluongraph` need not wait for it
    # Others are written scrambled. ascontiguousarray would give an array without axes one.
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    texts = dict(metadata or {})
    data = safetensors.save(arrays, metadata={**texts, DIGEST: _digest(arrays, texts)})
    params_file.whole(filename, lambda file: file.write(data))


def _digest(arrays: Mapping[str, Array], texts: Mapping[str, str]) -> str:
    """That of everything in a file, in an order of its own."""
    found = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(json.dumps([name, dtype_name(array.dtype), array.shape]).encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def load(filename: str) -> dict[str, Array]:
    """Read named arrays from a safetensors file, or from one in MXNet's format, without `arg:` and `aux:`.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is neither, or damaged, or its arrays have no names.
    """
    with open(filename, "rb") as file:
        if params_file.is_params(file.read(params_file.HEAD)):
            file.seek(0)
            arrays, names = params_file.parse(file.read(), filename)
            if len(names) != len(arrays):
                raise FormatError(f"{filename} holds {len(arrays)} arrays and {len(names)} names; nd.load reads it")
            return {n[4:] if n[:4] in _KINDS else n: a for n, a in zip(names, arrays, strict=True)}
    return read(filename)[0]


def read(filename: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a safetensors file, and the texts saved beside them.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is something else, or damaged.
    """
    safetensors: Any = import_whole("safetensors.numpy")

    with open(filename, "rb") as file:
        data = file.read()
    try:
        arrays: dict[str, Array] = safetensors.load(data)
        header = json_text.parse(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except Exception as error:  # safetensors has an error type of its own, without a public name
        raise FormatError(f"{filename} is neither a safetensors file nor MXNet's: {error}") from None
    texts: dict[str, str] = header.get("__metadata__", {})
    digest = texts.pop(DIGEST, None)
    if digest is not None and digest != _digest(arrays, texts):
        message = f"{filename} is damaged: its content is not what was written"
        raise FormatError(with_user_location(message, help="restore it from a copy"))
    return arrays, texts
