"""`mx.nd.contrib`: MXNet's younger operators, and control flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import mxcontrib, mxctc, mximages, mxindex, mxshapes, random
from gluongraph.errors import MXNetError, located
from gluongraph.nd.function import function
from gluongraph.ndarray import NDArray, invoke

arange_like = function(mxcontrib.arange_like)
div_sqrt_dim = function(mxcontrib.div_sqrt_dim)
quadratic = function(mxcontrib.quadratic)
isfinite = function(mxcontrib.isfinite)
isnan = function(mxcontrib.isnan)
isinf = function(mxcontrib.isinf)
allclose = function(mxcontrib.allclose)
round_ste = function(mxcontrib.round_ste)
sign_ste = function(mxcontrib.sign_ste)
gradientmultiplier = function(mxcontrib.gradientmultiplier)
index_copy = function(mxindex.index_copy)
index_array = function(mxindex.index_array)
box_iou = function(mxcontrib.box_iou)
BilinearResize2D = function(mximages.BilinearResize2D)
AdaptiveAvgPooling2D = function(mximages.AdaptiveAvgPooling2D)
CTCLoss = ctc_loss = function(mxctc.CTCLoss)
interleaved_matmul_selfatt_qk = function(mxcontrib.interleaved_matmul_selfatt_qk)
interleaved_matmul_selfatt_valatt = function(mxcontrib.interleaved_matmul_selfatt_valatt)
interleaved_matmul_encdec_qk = function(mxcontrib.interleaved_matmul_encdec_qk)
interleaved_matmul_encdec_valatt = function(mxcontrib.interleaved_matmul_encdec_valatt)


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0) -> NDArray:
    """The slices of data along an axis where index is not 0. How many there are depends on values: eager only."""
    rows = np.flatnonzero(index.asnumpy()).astype(np.int32)
    if rows.size == 0:
        raise MXNetError(located("boolean_mask: nothing is left, and arrays without elements do not exist in MXNet"))
    return invoke(mxshapes.take, data, NDArray(rows, data.context), axis=axis)  # type: ignore[no-any-return]


def rand_zipfian(
    true_classes: NDArray, num_sampled: int, range_max: int, ctx: Any = None
) -> tuple[NDArray, NDArray, NDArray]:
    """Classes drawn with P(k) = log((k + 2) / (k + 1)) / log(range_max + 1), and how often each is to be expected.

    Gives the classes drawn, the expected count of the true classes, and that of those drawn.
    """
    span = math.log(range_max + 1)
    drawn = (random.uniform(0.0, span, shape=(num_sampled,), ctx=ctx).exp() - 1).floor() % range_max

    def expected(classes: NDArray) -> NDArray:
        k = classes.astype("float32")
        return ((k + 2) / (k + 1)).log() * (num_sampled / span)

    return drawn.astype("int32"), expected(true_classes), expected(drawn)


# -- control flow: in eager mode Python's own; in a trace loops are unrolled, and conditions on values raise


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """`outputs[t], states = body(data[t], states)` for every t along axis 0: the stacked outputs, and the last states.

    `data`, `init_states` and the outputs are an array or a list of them each.
    """
    from gluongraph.nd import stack

    several = isinstance(data, (list, tuple))
    length = len(data[0] if several else data)
    states, turns = init_states, []
    for t in range(length):
        made, states = body([x[t] for x in data] if several else data[t], states)
        turns.append(made)
    if isinstance(turns[0], (list, tuple)):
        return [stack(*column) for column in zip(*turns, strict=True)], states
    return stack(*turns), states


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Any,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[list[NDArray], Any]:
    """`outputs[t], loop_vars = func(*loop_vars)` while `cond(*loop_vars)`: the stacked outputs, and the last variables.

    Raises:
        ValueError: max_iterations is not given.
    """
    from gluongraph.nd import concat, stack, zeros

    if max_iterations is None:
        raise ValueError("while_loop: max_iterations says how many steps the outputs have room for")
    single = not isinstance(loop_vars, (list, tuple))
    current: Sequence[Any] = [loop_vars] if single else list(loop_vars)
    turns: list[Sequence[Any]] = []
    while len(turns) < max_iterations and cond(*current):
        made, after = func(*current)
        current = [after] if isinstance(after, NDArray) else list(after)
        turns.append([made] if isinstance(made, NDArray) else list(made or ()))
    outputs = [stack(*column) for column in zip(*turns, strict=True)]
    room = max_iterations - len(turns)
    if room and outputs:  # MXNet leaves the rest of the outputs undefined; here it is 0
        outputs = [concat(o, zeros((room, *o.shape[1:]), o.context, o.dtype), dim=0) for o in outputs]
    return outputs, current[0] if single else list(current)


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """`then_func()` if pred is not 0, else `else_func()`."""
    return then_func() if bool(pred) else else_func()
