"""Parameter files: safetensors, by structural name; MXNet's .params files are read too. None of them holds code.

The format itself would let a byte that has changed on the disk pass. So a digest lies among the texts of the header,
where other readers leave it alone; files of others, which have none, are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.context import Context
from gluongraph.dtypes import dtype_name
from gluongraph.errors import FormatError, located
from gluongraph.host import json_text, params_file
from gluongraph.host.interrupts import import_whole
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.gluon.parameter import Parameter


DIGEST = "sha256"


def save(filename: str, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays, and texts beside them; the file appears whole or not at all."""
    safetensors: Any = import_whole("safetensors.numpy")  # here: `import gluongraph` need not wait for it
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # others are written scrambled
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
        raise FormatError(located(message, help="restore it from a copy"))
    return arrays, texts


_KINDS = ("arg:", "aux:")  # how HybridBlock.export tells parameters from running statistics


def fill(
    filename: str,
    parameters: Mapping[str, Parameter],
    ctx: Context | Sequence[Context] | None,
    allow_missing: bool,
    ignore_extra: bool,
    cast_dtype: bool = False,
    dtype_source: str = "current",
    legacy: Mapping[str, Parameter] | None = None,
) -> None:
    """Check a file against the parameters, then set them all; nothing is changed when it does not fit.

    `legacy` are the parameters by the names that older files have for them, which contain no dot.
    """
    arrays = load(filename)
    if legacy is not None and not any("." in name or name in parameters for name in arrays):
        parameters = legacy
    missing = [name for name in parameters if name not in arrays]
    # A shared parameter is saved once with deduplicate=True; any of its names will do.
    present = {id(parameters[name]) for name in arrays if name in parameters}
    missing = [name for name in missing if id(parameters[name]) not in present]
    if missing and not allow_missing:
        raise AssertionError(
            f"{filename} has no {', '.join(missing)}; allow_missing=True leaves them. It has: {', '.join(arrays)}"
        )
    extra = [name for name in arrays if name not in parameters]
    if extra and not ignore_extra:
        raise ValueError(
            f"{filename} has {', '.join(extra)}, which the block lacks; ignore_extra=True skips them. "
            f"The block has: {', '.join(parameters)}"
        )
    for name, array in arrays.items():
        if name in parameters:
            _check(filename, name, parameters[name], array, cast_dtype)
    for name, array in arrays.items():
        if (parameter := parameters.get(name)) is None:
            continue
        if cast_dtype and dtype_source == "saved":
            parameter.cast(array.dtype)
        if parameter._arrays is None and parameter._waiting is None:
            parameter.shape = array.shape
            parameter.initialize(ctx=ctx)
        parameter.set_data(array)
        if parameter.ready:
            parameter.finish_deferred_init()


def _check(filename: str, name: str, parameter: Parameter, array: Array, cast_dtype: bool) -> None:
    shape = parameter.shape
    if shape is not None and (
        len(shape) != array.ndim or any(s > 0 and s != a for s, a in zip(shape, array.shape, strict=True))
    ):
        raise AssertionError(f"{filename}: {name} has shape {array.shape}, the block's parameter has {shape}")
    if dtype_name(array.dtype) != dtype_name(parameter.dtype) and not cast_dtype:
        raise AssertionError(
            f"{filename}: {name} is {array.dtype}, the block's parameter {parameter.dtype.__name__}; "
            "cast_dtype=True converts"
        )
