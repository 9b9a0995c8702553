"""The operators of ONNX, by families; importing this fills the table."""

from gluongraph.onnx.operators import (
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
from gluongraph.onnx.operators.table import find, rows

__all__ = [
    "control",
    "find",
    "images",
    "index",
    "logic",
    "loss",
    "math",
    "nn",
    "norm",
    "pool",
    "random",
    "recurrent",
    "reduce",
    "rows",
    "sequence",
    "shape",
    "training",
]
