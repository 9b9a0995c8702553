"""`mx.nd`: arrays, and functions on them by MXNet's names.

Arithmetic broadcasts as in numpy. Functions are eager, recorded or traced, as `invoke` says; most are builders of
`gluongraph.mxops`, `.mxshapes`, `.mxlayers` and `.mximages` put behind it, whose signatures and formulas they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import mximages, mxindex, mxlayers, mxlinalg, mxmath, mxops, mxoutputs, mxshapes, ops
from gluongraph import random as random
from gluongraph.context import Context
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import MXNetError, located
from gluongraph.ir import Node
from gluongraph.ndarray import NDArray as NDArray
from gluongraph.ndarray import invoke as invoke
from gluongraph.ndarray import placed
from gluongraph.nd import contrib as contrib
from gluongraph.nd import linalg as linalg
from gluongraph.nd.function import TUNING, into
from gluongraph.nd.function import function as _function
from gluongraph.nd.update import adam_update as adam_update
from gluongraph.tape import STATE
from gluongraph.tape import concrete as concrete

Shape = int | Sequence[int]


# -- making arrays


def _size(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array from numbers, nested lists, numpy or another array; float32 unless `dtype` or an NDArray says else.

    >>> array([1, 2]).dtype
    <class 'numpy.float32'>
    """
    if isinstance(source_array, NDArray):
        made = source_array.astype(dtype or source_array.dtype)
        return made if STATE.tracer is not None else placed(made.detach(), ctx or source_array.context)
    wanted = numpy_dtype(dtype_name(dtype or "float32"))
    values = np.array(source_array, wanted, order="C", ndmin=1)
    if STATE.tracer is not None:
        made = invoke(_literal, values.tobytes(), dtype_name(wanted), values.shape)
        return made  # type: ignore[no-any-return]
    return placed(NDArray(values), ctx)


def _literal(data: bytes, dtype: str, shape: tuple[int, ...]) -> Node:
    return ops.literal(np.frombuffer(data, numpy_dtype(dtype)).reshape(shape))


def full(shape: Shape, val: float, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array filled with one number."""
    name, size = dtype_name(dtype or "float32"), _size(shape)
    if STATE.tracer is not None:
        return invoke(ops.full, size, val, name)  # type: ignore[no-any-return]
    return placed(NDArray(np.full(size, val, numpy_dtype(name))), ctx)


def zeros(shape: Shape, ctx: Context | None = None, dtype: Any = None, **unused: Any) -> NDArray:
    """An array of zeros."""
    return full(shape, 0, ctx, dtype)


def ones(shape: Shape, ctx: Context | None = None, dtype: Any = None, **unused: Any) -> NDArray:
    """An array of ones."""
    return full(shape, 1, ctx, dtype)


def empty(shape: Shape, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array to be filled; it holds zeros."""
    return full(shape, 0, ctx, dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    ctx: Context | None = None,
    dtype: Any = None,
) -> NDArray:
    """The numbers from start to stop (0 to start, if only one is given), each `repeat` times."""
    if stop is None:
        start, stop = 0, start
    return array(np.repeat(np.arange(start, stop, step), repeat), ctx, dtype)


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """`num` numbers at equal distances from start to stop."""
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Ones on the k-th diagonal, zeros elsewhere."""
    return array(np.eye(N, M or N, k), ctx, dtype)


def from_numpy(ndarray: Any, zero_copy: bool = True) -> NDArray:
    """A numpy array as NDArray of the same dtype; the same memory, with `zero_copy`."""
    values = np.asarray(ndarray)
    if zero_copy and not values.flags.c_contiguous:
        raise ValueError("from_numpy: only contiguous arrays can share their memory; use zero_copy=False")
    dtype_name(values.dtype)
    return placed(NDArray(values if zero_copy else np.array(values, order="C")), None)


def from_dlpack(source: Any) -> NDArray:
    """An array of another library on the CPU, sharing its memory: `from_dlpack(torch_tensor)`."""
    return from_numpy(np.from_dlpack(source))


def to_dlpack_for_read(data: NDArray) -> Any:
    """A DLPack capsule of the array's memory."""
    return data.__dlpack__()


to_dlpack_for_write = to_dlpack_for_read


def waitall() -> None:
    """Nothing: eager ops are done when they return."""


# -- functions that are no plain builders


def cast(data: NDArray, dtype: Any) -> NDArray:
    """The elements as another type."""
    return data.astype(dtype)


def concat(*data: Any, dim: int = 1) -> NDArray:
    """Arrays one after the other along an axis; given one by one, or as a list."""
    return invoke(mxshapes.concat, *_spread(data), dim=dim)  # type: ignore[no-any-return]


def concatenate(arrays: Sequence[NDArray], axis: int = 0) -> NDArray:
    """`concat` as in numpy."""
    return concat(*arrays, dim=axis)


def stack(*data: Any, axis: int = 0) -> NDArray:
    """Arrays along a new axis; given one by one, or as a list."""
    return invoke(mxshapes.stack, *_spread(data), axis=axis)  # type: ignore[no-any-return]


def add_n(*args: Any) -> NDArray:
    """The sum of all arrays."""
    first, *rest = _spread(args)
    for each in rest:
        first = first + each
    return first  # type: ignore[no-any-return]


def _spread(data: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(data[0]) if len(data) == 1 and isinstance(data[0], list | tuple) else data


def Dropout(data: NDArray, p: float = 0.5, mode: str = "training", axes: Sequence[int] = ()) -> NDArray:
    """data / (1 - p) where a random number says keep, else 0; the data itself outside of training (mode "training").

    The elements along `axes` share one random number.
    """
    if mode not in ("training", "always"):
        raise MXNetError(located(f"Dropout: mode is 'training' or 'always', not {mode!r}"))
    if not 0 <= p < 1:
        raise MXNetError(located(f"Dropout: p is a probability below 1, not {p!r}"))
    if p == 0 or (mode == "training" and not STATE.training):
        return data
    state, draw = random.source(data.context)
    return invoke(mxlayers.dropout, data, state, p=float(p), axes=tuple(axes), draw=draw)  # type: ignore[no-any-return]


def BatchNorm(
    data: NDArray,
    gamma: NDArray,
    beta: NDArray,
    moving_mean: NDArray,
    moving_var: NDArray,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    axis: int = 1,
) -> NDArray:
    """Normalized over all axes but one, with the batch's mean and variance in training, else with the moving ones.

    In training the moving ones are updated: moving = momentum * moving + (1 - momentum) * batch. Data of 16 bits with
    vectors of 32 is computed in 32. With `fix_gamma` gamma is 1.
    """
    how = {"axis": axis, "eps": eps, "fix_gamma": fix_gamma}
    if not STATE.training or use_global_stats:
        return invoke(  # type: ignore[no-any-return]
            mxlayers.batch_norm_by_moving, data, gamma, beta, moving_mean, moving_var, **how
        )
    y, mean, var = invoke(mxlayers.batch_norm, data, gamma, beta, **how)
    before, STATE.recording = STATE.recording, False
    try:
        for moving, batch in ((moving_mean, mean), (moving_var, var)):
            moving[:] = invoke(mxlayers.moved, moving, batch.detach(), momentum=momentum)
    finally:
        STATE.recording = before
    return y  # type: ignore[no-any-return]


# -- functions that are builders behind `invoke`

add = broadcast_add = elemwise_add = broadcast_plus = _function(mxops.add)
subtract = broadcast_sub = elemwise_sub = broadcast_minus = _function(mxops.subtract)
multiply = broadcast_mul = elemwise_mul = _function(mxops.multiply)
divide = true_divide = broadcast_div = elemwise_div = _function(mxops.divide)
modulo = broadcast_mod = _function(mxops.modulo)
power = broadcast_power = _function(mxops.power)
maximum = broadcast_maximum = _function(mxops.maximum)
minimum = broadcast_minimum = _function(mxops.minimum)
equal = broadcast_equal = _function(mxops.equal)
not_equal = broadcast_not_equal = _function(mxops.not_equal)
lesser = broadcast_lesser = _function(mxops.lesser)
lesser_equal = broadcast_lesser_equal = _function(mxops.lesser_equal)
greater = broadcast_greater = _function(mxops.greater)
greater_equal = broadcast_greater_equal = _function(mxops.greater_equal)
logical_and = broadcast_logical_and = _function(mxops.logical_and)
logical_or = broadcast_logical_or = _function(mxops.logical_or)
logical_not = _function(mxops.logical_not)
negative = _function(mxops.negative)
abs = _function(mxops.abs)
sign = _function(mxops.sign)
exp = _function(mxops.exp)
expm1 = _function(mxops.expm1)
log = _function(mxops.log)
log1p = _function(mxops.log1p)
log2 = _function(mxops.log2)
log10 = _function(mxops.log10)
sqrt = _function(mxops.sqrt)
rsqrt = _function(mxops.rsqrt)
square = _function(mxops.square)
reciprocal = _function(mxops.reciprocal)
sin = _function(mxops.sin)
cos = _function(mxops.cos)
tanh = _function(mxops.tanh)
erf = _function(mxops.erf)
sigmoid = _function(mxops.sigmoid)
relu = _function(mxops.relu)
softsign = _function(mxops.softsign)
softrelu = _function(mxops.softrelu)
floor = _function(mxops.floor)
ceil = _function(mxops.ceil)
round = _function(mxops.round)
clip = _function(mxops.clip)
where = _function(mxops.where)
zeros_like = _function(mxops.zeros_like)
ones_like = _function(mxops.ones_like)
full_like = _function(mxops.full_like)
identity = _function(mxops.identity)
BlockGrad = stop_gradient = _function(mxops.stop_gradient, "BlockGrad")
Cast = cast

sum = sum_axis = _function(mxops.sum)
mean = _function(mxops.mean)
prod = _function(mxops.prod)
max = max_axis = _function(mxops.max)
min = min_axis = _function(mxops.min)
norm = _function(mxops.norm)
argmax = _function(mxops.argmax)
argmin = _function(mxops.argmin)
cumsum = _function(mxops.cumsum)

reshape = Reshape = _function(mxshapes.reshape)
reshape_like = _function(mxshapes.reshape_like)
flatten = Flatten = _function(mxshapes.flatten)
expand_dims = _function(mxshapes.expand_dims)
squeeze = _function(mxshapes.squeeze)
transpose = _function(mxshapes.transpose)
swapaxes = SwapAxis = _function(mxshapes.swapaxes)
broadcast_to = _function(mxshapes.broadcast_to)
broadcast_like = _function(mxshapes.broadcast_like)
broadcast_axis = broadcast_axes = _function(mxshapes.broadcast_axis)
tile = _function(mxshapes.tile)
repeat = _function(mxshapes.repeat)
flip = reverse = _function(mxshapes.flip)
slice = _function(mxshapes.slice)
slice_axis = _function(mxshapes.slice_axis)
slice_like = _function(mxshapes.slice_like)
split = SliceChannel = _function(mxshapes.split)
take = _function(mxshapes.take)
pick = _function(mxshapes.pick)
one_hot = _function(mxshapes.one_hot)
Embedding = _function(mxshapes.embedding, "Embedding")
Concat = concat

softmax = _function(mxlayers.softmax)
log_softmax = _function(mxlayers.log_softmax)
softmin = _function(mxlayers.softmin)
softmax_cross_entropy = _function(mxlayers.softmax_cross_entropy)
SoftmaxActivation = _function(mxlayers.SoftmaxActivation)
dot = _function(mxlayers.dot)
batch_dot = _function(mxlayers.batch_dot)
matmul = _function(mxlayers.matmul)
Activation = _function(mxlayers.Activation)
LeakyReLU = _function(mxlayers.LeakyReLU)
FullyConnected = _function(mxlayers.FullyConnected)
LayerNorm = _function(mxlayers.LayerNorm)
GroupNorm = _function(mxlayers.GroupNorm)
InstanceNorm = _function(mxlayers.InstanceNorm)
Convolution = _function(mximages.Convolution)
Deconvolution = _function(mximages.Deconvolution)
Pooling = _function(mximages.Pooling)
UpSampling = _function(mximages.UpSampling)
pad = Pad = _function(mximages.pad)
LRN = _function(mximages.LRN)
L2Normalization = _function(mximages.L2Normalization)
attention = _function(ops.attention)

random_uniform = random.uniform
random_normal = random.normal
