"""Conversion of the arrays of a batch for a compiled step."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import dtype_name
from gluongraph.errors import DTypeError, ShapeError, with_user_location
from gluongraph.ir.graph import TensorType
from gluongraph.nd import NDArray
from gluongraph.storage import Array, given_array, native


def as_array(number: int, given: Any) -> Array:
    """Return a batch array as numpy: shared if it is contiguous and writable, else copied; float64 becomes float32."""
    if isinstance(given, NDArray):
        array = given.storage.array
    else:
        try:
            array = native(given_array(given))
            if array.dtype == np.float64 or (array.dtype.kind in "biu" and not hasattr(given, "dtype")):
                array = array.astype(np.float32)  # as nd.array does
            dtype_name(array.dtype)  # raises for unsupported dtypes
        except (TypeError, ValueError) as error:
            if isinstance(error, DTypeError) and hasattr(given, "requires_grad"):
                raise
            kind = f"{type(given).__name__}" + (f" of {given.dtype}" if hasattr(given, "dtype") else "")
            message = f"argument {number} of the step is {kind}: {error}"
            raise DTypeError(with_user_location(message, help="give arrays of numbers, batch axis first")) from None
        array = np.require(array, requirements=("C", "W"))
    if not array.size:
        message = f"argument {number} of the step has no elements: {TensorType(array.shape, dtype_name(array.dtype))}"
        raise ShapeError(with_user_location(message, help="leave empty batches out"))
    return array
