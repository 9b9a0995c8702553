"""The precisions of a compiled step, and what float16 needs beside casts: a scaled loss, and steps that are left out.

A gradient below 6e-8 is 0 in float16. So the loss is multiplied by a scale before the backward, and the gradients, in
float32 again, are divided by it. The scale is as large as goes well: it is halved whenever a gradient is not finite,
and that step changes nothing else; it doubles after 2000 steps without. (Micikevicius et al., Mixed Precision
Training, 2018; the numbers are those of MXNet's scaler.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from gluongraph import nd, ops
from gluongraph.dtypes import is_float
from gluongraph.eager import leaf
from gluongraph.errors import located
from gluongraph.ir import Graph, Node, TensorType
from gluongraph.ndarray import NDArray
from gluongraph.updates import GRAD

SCALE, GOOD, FINITE = "amp:scale", "amp:good", "amp:finite"
GROWTH, PATIENCE, LARGEST, SMALLEST = 2.0, 2000, 2.0**24, 2.0**-14


@dataclass(frozen=True)
class Precision:
    """A row of the table: `low` is the dtype of what contractions multiply; `whole` that of parameters and inputs."""

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
    """The precision of that name; Lightning's other names for them are known too.

    Raises:
        ValueError: there is none.
    """
    asked = str(name)
    if (found := PRECISIONS.get(_ALSO.get(asked, asked))) is None:
        message = f"precision={name!r}: there are {', '.join(map(repr, PRECISIONS))}"
        help = "8-bit floats (transformer-engine) are not there" if asked.startswith("transformer") else "choose one"
        raise ValueError(located(message, help=help))
    return found


def in_whole(precision: Precision, net: Any, loss: Any, trainer: Any) -> tuple[Any, Any]:
    """net and loss in the dtype of everything, where the precision has one.

    The parameters are cast here and now: those of a Block as `cast` does it, which leaves BatchNorm in float32; of a
    function, those of the trainer. Inputs of the net are cast on their way; a loss works in float32 or float64.
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


@dataclass(frozen=True)
class LossScale:
    """The state of a scaled loss, shared by all steps of a trainer: the scale, and the good steps since it changed."""

    scale: NDArray = field(default_factory=lambda: nd.full((1,), 2.0**16))
    good: NDArray = field(default_factory=lambda: nd.zeros((1,), dtype="int32"))

    def progress(self) -> list[float]:
        """Scale and count of good steps, as JSON takes them."""
        return [float(self.scale.asscalar()), int(self.good.asscalar())]

    def resume(self, progress: Sequence[float]) -> None:
        """Go on from what `progress` told."""
        for array, value in zip((self.scale, self.good), progress, strict=True):
            array.storage.write(value)

    @property
    def state(self) -> dict[str, NDArray]:
        """The arrays by the names of graph inputs."""
        return {SCALE: self.scale, GOOD: self.good}


def scaled(graph: Graph) -> tuple[Graph, Node]:
    """The graph with the input that the scale is, and the scale as one number."""
    inputs = {**graph.inputs, SCALE: _SCALE}
    return Graph(inputs, graph.outputs, graph.updates, graph.origins), ops.reshape(_SCALE, ())


def unscaled(graph: Graph, flag: bool) -> Graph:
    """The gradients among the outputs divided by the scale, a power of two: only their exponents change.

    With `flag`, an output says whether all of them are finite. If not, all are 0: no NaN goes any further, and no
    kernel begins an update before the flag is known, to store what may have to be thrown away.
    """
    inverse = ops.div(1.0, ops.reshape(_SCALE, ()))
    grads = {k: g * ops.cast(inverse, g.dtype) for k, g in graph.outputs.items() if k.startswith(GRAD)}
    outputs = {**graph.outputs, **grads}
    if flag:
        finite = outputs[FINITE] = all_finite(grads.values())
        outputs |= {k: ops.where(finite, g, 0.0) for k, g in grads.items()}
    return Graph(graph.inputs, outputs, graph.updates, graph.origins)


def all_finite(values: Iterable[Node]) -> Node:
    """Is every element of all of them finite?"""
    wrong = [ops.sum(ops.where(ops.isfinite(v), 0.0, 1.0)) for v in values]
    return ops.equal(reduce(ops.add, wrong, ops.const(0.0)), 0.0)


def skipping(graph: Graph) -> Graph:
    """Updates happen where all gradients are finite; those of the scale and of the count of good steps in any case."""
    finite = graph.outputs[FINITE]
    updates = {k: ops.where(finite, new, graph.inputs[k]) for k, new in graph.updates.items()}
    full = ops.greater_equal(_GOOD + 1, PATIENCE)
    grown = ops.where(full, ops.minimum(_SCALE * GROWTH, LARGEST), _SCALE)
    updates[SCALE] = ops.where(finite, grown, ops.maximum(_SCALE / GROWTH, SMALLEST))
    updates[GOOD] = ops.where(ops.logical_and(finite, ops.logical_not(full)), _GOOD + 1, 0)
    return Graph({**graph.inputs, SCALE: _SCALE, GOOD: _GOOD}, graph.outputs, updates, graph.origins)


_SCALE = leaf(SCALE, TensorType((1,), "f32"))
_GOOD = leaf(GOOD, TensorType((1,), "i32"))
