"""Parameters from a file: all of them, or none where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gluongraph.context import Context
from gluongraph.dtypes import dtype_name
from gluongraph.nd.files import load
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.gluon.parameter import Parameter


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
