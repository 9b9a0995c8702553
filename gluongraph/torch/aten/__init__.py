"""ATen's operators by families; importing this fills the table."""

from gluongraph.torch.aten import (
    control,
    conv,
    create,
    elementwise,
    index,
    loss,
    matmul,
    nn,
    norm,
    pool,
    recurrent,
    reduce,
    resample,
    shape,
)

__all__ = [
    "control",
    "conv",
    "create",
    "elementwise",
    "index",
    "loss",
    "matmul",
    "nn",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "resample",
    "shape",
]
