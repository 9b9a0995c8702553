"""The element types: one row each, with its numpy and MXNet name, size and family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from gluongraph.errors import DTypeError


@dataclass(frozen=True)
class DType:
    """One element type: short `name` (IR), `long` name (numpy, MXNet, TVM), bytes, family."""

    name: str
    long: str
    nbytes: int
    family: str  # "float", "int", "uint" or "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16 is that of ml_dtypes."""
        return np.dtype(ml_dtypes.bfloat16) if self.name == "bf16" else np.dtype(self.long)


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("f32", "float32", 4, "float"),
        DType("f64", "float64", 8, "float"),
        DType("f16", "float16", 2, "float"),
        DType("bf16", "bfloat16", 2, "float"),
        DType("i8", "int8", 1, "int"),
        DType("i32", "int32", 4, "int"),
        DType("i64", "int64", 8, "int"),
        DType("u8", "uint8", 1, "uint"),
        DType("u32", "uint32", 4, "uint"),
        DType("u64", "uint64", 8, "uint"),
        DType("bool", "bool", 1, "bool"),
    )
}
_BY_ANY_NAME: dict[str, str] = {n: d.name for d in DTYPES.values() for n in (d.name, d.long)}
_CACHE: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """The short name of whatever names a dtype: 'float32', np.float32, np.dtype('f4'), 'f32'.

    Raises:
        DTypeError: nothing here holds elements of that type.
    """
    try:
        if (found := _CACHE.get(dtype)) is not None:
            return found
    except TypeError:  # unhashable: not a dtype at all
        raise DTypeError(f"not a dtype: {dtype!r}") from None
    name = _BY_ANY_NAME.get(dtype) if isinstance(dtype, str) else None
    if name is None:
        try:
            name = _BY_ANY_NAME.get(np.dtype(dtype).name)
        except TypeError:
            name = None
    if name is None:
        known = ", ".join(d.long for d in DTYPES.values())
        raise DTypeError(f"unknown dtype {dtype!r}; there are {known}")
    _CACHE[dtype] = name
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a short name: numpy_dtype('bf16')."""
    return _NUMPY[name]


_NUMPY = {name: row.numpy for name, row in DTYPES.items()}


def is_float(name: str) -> bool:
    """True of f16, bf16, f32 and f64."""
    return DTYPES[name].family == "float"


def is_integer(name: str) -> bool:
    """True of the integers, signed or not; bool is none."""
    return DTYPES[name].family in ("int", "uint")
