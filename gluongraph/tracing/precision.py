"""The precisions of a compiled step: a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from gluongraph.dtypes import is_float
from gluongraph.errors import with_user_location
from gluongraph.ndarray import NDArray


@dataclass(frozen=True)
class Precision:
    """A row of the table: `low` is the dtype of contractions' operands; `whole` that of parameters and inputs."""

    name: str
    low: str | None = None
    scaled: bool = False
    whole: str | None = None


PRECISIONS: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision("32"),
        Precision("bf16-mixed", low="bf16"),
        Precision("16-mixed", low="f16", scaled=True),
        Precision("64", whole="float64"),
        Precision("bf16-true", whole="bfloat16"),
        Precision("16-true", whole="float16"),
    )
}
_ALSO = {"32-true": "32", "64-true": "64", "16": "16-mixed", "bf16": "bf16-mixed"}


def precision_of(name: str | int) -> Precision:
    """Return the precision of that name; Lightning's other names are accepted too.

    Raises:
        ValueError: there is no such precision.
    """
    asked = str(name)
    if (found := PRECISIONS.get(_ALSO.get(asked, asked))) is None:
        message = f"precision={name!r}: there are {', '.join(map(repr, PRECISIONS))}"
        help = "8-bit floats (transformer-engine) are not there" if asked.startswith("transformer") else "choose one"
        raise ValueError(with_user_location(message, help=help))
    return found


def in_whole(precision: Precision, net: Any, loss: Any, trainer: Any) -> tuple[Any, Any]:
    """Return net and loss in the precision's dtype of all values, if it has one.

    The parameters are cast at once: those of a Block by `cast`, which leaves BatchNorm in float32; for a function,
    those of the trainer. Inputs of the net are cast at each call; a loss is computed in float32 or float64.
    """
    if (dtype := precision.whole) is None:
        return net, loss
    if hasattr(net, "cast"):
        net.cast(dtype)
    else:
        for parameter in trainer.params if trainer is not None else ():
            parameter.cast(dtype)
    return partial(_net_in, dtype, net), loss and partial(_loss_in, dtype, loss)


def _net_in(dtype: str, net: Any, *inputs: Any) -> Any:
    return net(*(_as(dtype, x) for x in inputs))


def _loss_in(dtype: str, loss: Any, prediction: Any, *labels: Any) -> Any:
    wide = "float64" if dtype == "float64" else "float32"
    return loss(_as(wide, prediction), *(_as(wide, y) for y in labels))


def _as(dtype: str, x: Any) -> Any:
    return x.astype(dtype) if isinstance(x, NDArray) and is_float(x.type.dtype) else x
