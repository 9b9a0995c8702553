"""Parameter files: safetensors, by structural name; MXNet's .params files are read too. None of them holds code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gluongraph import params
from gluongraph.context import Context
from gluongraph.dtypes import dtype_name
from gluongraph.errors import FormatError
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.gluon.parameter import Parameter


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("parameter files need the package safetensors: pip install safetensors") from error
    return safetensors.numpy


def save(filename: str, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays; the file appears whole or not at all."""
    module = _safetensors()
    data = module.save(dict(arrays), metadata=None if metadata is None else dict(metadata))
    params.whole(filename, lambda file: file.write(data))


def load(filename: str) -> dict[str, Array]:
    """Read named arrays from a safetensors file, or from one in MXNet's format, without `arg:` and `aux:`.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is neither, or its arrays have no names.
    """
    with open(filename, "rb") as file:
        if params.is_params(file.read(params.HEAD)):
            file.seek(0)
            arrays, names = params.parse(file.read(), filename)
            if len(names) != len(arrays):
                raise FormatError(f"{filename} holds {len(arrays)} arrays and {len(names)} names; nd.load reads it")
            return {n[4:] if n[:4] in _KINDS else n: a for n, a in zip(names, arrays, strict=True)}
    module = _safetensors()
    try:
        found: dict[str, Array] = module.load_file(filename)
    except Exception as error:  # safetensors has an error type of its own, without a public name
        raise FormatError(f"{filename} is neither a safetensors file nor MXNet's: {error}") from None
    return found


_KINDS = ("arg:", "aux:")  # how HybridBlock.export tells parameters from running statistics


def metadata(filename: str) -> dict[str, str]:
    """The texts saved beside the arrays."""
    _safetensors()
    from safetensors import safe_open

    with safe_open(filename, framework="numpy") as file:
        found: dict[str, str] | None = file.metadata()
    return found or {}


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
