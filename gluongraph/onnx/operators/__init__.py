"""The operators of ONNX, by families; importing this fills the table."""

from gluongraph.onnx.operators import (  # noqa: F401 - each adds its rows
    control,
    images,
    index,
    logic,
    loss,
    math,
    nn,
    norm,
    pool,
    random,
    recurrent,
    reduce,
    sequence,
    shape,
    training,
)
from gluongraph.onnx.table import find, rows

__all__ = ["find", "rows"]
