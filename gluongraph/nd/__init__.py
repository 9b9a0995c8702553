"""`mx.nd`: arrays, and functions on them by MXNet's names.

Arithmetic broadcasts as in numpy. A function computes at once, is recorded for gradients as well, or becomes part of
the graph that is traced. Most are built of `gluongraph.mxops`, whose signatures and formulas they have.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import ops
from gluongraph import random as random
from gluongraph.context import Context
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.eager.function import spanning
from gluongraph.eager.tape import STATE
from gluongraph.eager.tape import concrete as concrete
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.ir.plain import extents
from gluongraph.mxops import correlation as mxcorrelation
from gluongraph.mxops import ctc as mxctc
from gluongraph.mxops import images as mximages
from gluongraph.mxops import index as mxindex
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import math as mxmath
from gluongraph.mxops import ops as mxops
from gluongraph.mxops import outputs as mxoutputs
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd import contrib as contrib
from gluongraph.nd import dlpack
from gluongraph.nd import linalg as linalg
from gluongraph.nd import sparse as sparse
from gluongraph.nd.dlpack import to_dlpack_for_read as to_dlpack_for_read
from gluongraph.nd.dlpack import to_dlpack_for_write as to_dlpack_for_write
from gluongraph.nd.examples import document as _document
from gluongraph.nd.function import TUNING, into, no_such
from gluongraph.nd.function import function as _function
from gluongraph.nd.multi import multi_mp_sgd_mom_update as multi_mp_sgd_mom_update
from gluongraph.nd.multi import multi_mp_sgd_update as multi_mp_sgd_update
from gluongraph.nd.multi import multi_sgd_mom_update as multi_sgd_mom_update
from gluongraph.nd.multi import multi_sgd_update as multi_sgd_update
from gluongraph.nd.multi import preloaded_multi_mp_sgd_mom_update as preloaded_multi_mp_sgd_mom_update
from gluongraph.nd.multi import preloaded_multi_mp_sgd_update as preloaded_multi_mp_sgd_update
from gluongraph.nd.multi import preloaded_multi_sgd_mom_update as preloaded_multi_sgd_mom_update
from gluongraph.nd.multi import preloaded_multi_sgd_update as preloaded_multi_sgd_update
from gluongraph.nd.recurrent import RNN as RNN
from gluongraph.nd.sparse import cast_storage as cast_storage
from gluongraph.nd.sparse import check_storage
from gluongraph.nd.update import adam_update as adam_update
from gluongraph.nd.update import ftml_update as ftml_update
from gluongraph.nd.update import ftrl_update as ftrl_update
from gluongraph.nd.update import lamb_update_phase1 as lamb_update_phase1
from gluongraph.nd.update import lamb_update_phase2 as lamb_update_phase2
from gluongraph.nd.update import mp_nag_mom_update as mp_nag_mom_update
from gluongraph.nd.update import mp_sgd_mom_update as mp_sgd_mom_update
from gluongraph.nd.update import mp_sgd_update as mp_sgd_update
from gluongraph.nd.update import nag_mom_update as nag_mom_update
from gluongraph.nd.update import rmsprop_update as rmsprop_update
from gluongraph.nd.update import rmspropalex_update as rmspropalex_update
from gluongraph.nd.update import sgd_mom_update as sgd_mom_update
from gluongraph.nd.update import sgd_update as sgd_update
from gluongraph.nd.update import signsgd_update as signsgd_update
from gluongraph.nd.update import signum_update as signum_update
from gluongraph.nd.whole import Custom as Custom
from gluongraph.nd.whole import fill_element_0index as fill_element_0index
from gluongraph.nd.whole import histogram as histogram
from gluongraph.nd.whole import load as load
from gluongraph.nd.whole import load_frombuffer as load_frombuffer
from gluongraph.nd.whole import onehot_encode as onehot_encode
from gluongraph.nd.whole import reset_arrays as reset_arrays
from gluongraph.nd.whole import save as save
from gluongraph.ndarray import NDArray as NDArray
from gluongraph.ndarray import invoke as invoke
from gluongraph.ndarray import placed
from gluongraph.storage import given_array, native, shared_view

if TYPE_CHECKING:
    from gluongraph.nd import image as image

Shape = int | Sequence[int]


_no_such = no_such(__name__, globals())


def __getattr__(name: str) -> Any:
    """MXNet's modules of functions and of the array, which `nd` has all names of, are in it too."""
    if name == "image":
        return importlib.import_module("gluongraph.nd.image")  # and with it how files are decoded
    if name in ("op", "ndarray"):
        return sys.modules[__name__ if name == "op" else "gluongraph.ndarray"]
    return _no_such(name)


# -- making arrays


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array from numbers, nested lists, numpy or another array; float32 unless `dtype` or an NDArray says else."""
    if isinstance(source_array, NDArray):
        made = source_array.astype(dtype or source_array.dtype)
        return made if STATE.tracer is not None else placed(made.detach(), ctx or source_array.context)
    wanted = numpy_dtype(dtype_name(dtype or "float32"))
    values = given_array(source_array, wanted, copy=True)
    if STATE.tracer is not None:
        made = invoke(_literal, values.tobytes(), dtype_name(wanted), values.shape)
        return made
    return placed(NDArray(values), ctx)


def _literal(data: bytes, dtype: str, shape: tuple[int, ...]) -> Node:
    return ops.literal(np.frombuffer(data, numpy_dtype(dtype)).reshape(shape))


@spanning("_full")
def full(
    shape: Shape, val: float, ctx: Context | None = None, dtype: Any = None, out: NDArray | None = None
) -> NDArray:
    """An array filled with one number."""
    return _filled(shape, val, ctx, dtype, out)


def _filled(shape: Shape, val: float, ctx: Context | None, dtype: Any, out: NDArray | None = None) -> NDArray:
    if out is not None:
        out[:] = val
        return out
    name, size = dtype_name(dtype or "float32"), extents(shape)
    if STATE.tracer is not None:
        return invoke(ops.full, size, val, name)
    return placed(NDArray(np.full(size, val, numpy_dtype(name))), ctx)


@spanning("_zeros")
def zeros(
    shape: Shape,
    ctx: Context | None = None,
    dtype: Any = None,
    stype: str | None = None,
    out: NDArray | None = None,
    name: str | None = None,
) -> NDArray:
    """An array of zeros."""
    check_storage("nd.zeros", stype)
    if out is not None or STATE.tracer is not None:
        return _filled(shape, 0, ctx, dtype, out)
    made = np.zeros(extents(shape), numpy_dtype(dtype_name(dtype or "float32")))  # takes no memory until it is written
    return placed(NDArray(made), ctx)


@spanning("_ones")
def ones(
    shape: Shape,
    ctx: Context | None = None,
    dtype: Any = None,
    out: NDArray | None = None,
    name: str | None = None,
) -> NDArray:
    """An array of ones."""
    return _filled(shape, 1, ctx, dtype, out)


def empty(shape: Shape, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array to be filled; it holds zeros."""
    check_storage("nd.empty", stype)
    return _filled(shape, 0, ctx, dtype)


@spanning("_arange")
def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    ctx: Context | None = None,
    dtype: Any = None,
) -> NDArray:
    """The numbers from start to stop (0 to start, if only one is given), each `repeat` times.

    Of an integer type they are as many, beginning at the whole part of `start`, in steps of the whole part of `step`.
    """
    if stop is None:
        start, stop = 0, start
    values = np.arange(start, stop, step)
    if numpy_dtype(dtype_name(dtype or "float32")).kind in "iu":  # as many, but by whole steps: as MXNet counts
        values = int(start) + int(step) * np.arange(values.size)
    return array(np.repeat(values, repeat), ctx, dtype)


@spanning("_linspace")
def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """`num` numbers at equal distances from start to stop."""
    return array(np.linspace(start, stop, num, endpoint), ctx, dtype)


@spanning("_eye")
def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Ones on the k-th diagonal, zeros elsewhere."""
    return array(np.eye(N, M or N, k), ctx, dtype)


def from_numpy(ndarray: Any, zero_copy: bool = True) -> NDArray:
    """A numpy array as NDArray of the same dtype; the same memory, with `zero_copy`, which numpy may then only read.

    Memory that numpy could only read before, other than by `from_numpy`, is not written here either.

    Raises:
        ValueError: memory that cannot be shared: not contiguous, or in the byte order of other machines.
    """
    values = given_array(ndarray)
    if zero_copy and not values.flags.c_contiguous:
        raise ValueError("from_numpy: only contiguous arrays can share their memory; use zero_copy=False")
    if zero_copy and not values.dtype.isnative:
        raise ValueError(f"from_numpy: {values.dtype} has the byte order of other machines; use zero_copy=False")
    values = native(values)
    dtype_name(values.dtype)
    if zero_copy and values is ndarray:
        values = shared_view(ndarray)  # writes through the NDArray are seen in both
    return placed(NDArray(values if zero_copy else np.array(values, order="C")), None)


def from_dlpack(source: Any) -> NDArray:
    """An array of another library on the CPU, or a capsule, sharing its memory: `from_dlpack(torch_tensor)`."""
    return from_numpy(dlpack.shared(source))


def waitall() -> None:
    """Nothing: eager ops are done when they return."""


# -- functions that are no plain builders


def cast(data: NDArray, dtype: Any, out: NDArray | None = None, name: str | None = None) -> NDArray:
    """The elements as another type."""
    made = data.astype(dtype)
    return made if out is None else into(out, made)


def concat(*data: Any, dim: int = 1, **how: Any) -> NDArray:
    """Arrays one after the other along an axis; given one by one, or as a list."""
    return _concat(*_spread(data), dim=dim, **how)


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """`concat` as in numpy."""
    return arrays[0].copy() if len(arrays) == 1 and always_copy else concat(*arrays, dim=axis)


def stack(*data: Any, axis: int = 0, **how: Any) -> NDArray:
    """Arrays along a new axis; given one by one, or as a list."""
    return _stack(*_spread(data), axis=axis, **how)


def add_n(*args: Any, **how: Any) -> NDArray:
    """The sum of all arrays, given one by one, or as a list."""
    return _add_n(*_spread(args), **how)


_concat, _stack, _add_n = (
    _function(build, ignored=("num_args",)) for build in (mxshapes.concat, mxshapes.stack, mxops.add_n)
)


def _spread(data: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(data[0]) if len(data) == 1 and isinstance(data[0], list | tuple) else data


def Dropout(
    data: NDArray, p: float = 0.5, mode: str = "training", axes: Sequence[int] = (), name: str | None = None
) -> NDArray:
    """data / (1 - p) where a random number says keep, else 0; the data itself outside of training (mode "training").

    The elements along `axes` share one random number. p=1 gives zeros.
    """
    if mode not in ("training", "always"):
        raise MXNetError(with_user_location(f"Dropout: mode is 'training' or 'always', not {mode!r}"))
    if not 0 <= p <= 1:
        raise MXNetError(with_user_location(f"Dropout: p is a probability, not {p!r}"))
    if p == 0 or (mode == "training" and not STATE.training):
        return data
    if p == 1:
        return invoke(mxlayers.dropped, data)
    state, draw = random.source(data.context)
    return invoke(mxlayers.dropout, data, state, p=float(p), axes=tuple(axes), draw=draw)


def LeakyReLU(
    data: NDArray,
    gamma: NDArray | None = None,
    act_type: str = "leaky",
    slope: float = 0.25,
    lower_bound: float = 0.125,
    upper_bound: float = 0.334,
    **how: Any,
) -> NDArray:
    """One of leaky, elu, selu, gelu, prelu (whose slopes are `gamma`) and rrelu.

    "rrelu" has in training a random slope between the bounds for each element, otherwise their mean.
    """
    if act_type != "rrelu":
        slopes = () if gamma is None else (gamma,)
        return _leaky_relu(data, *slopes, act_type=act_type, slope=slope, **how)
    if not STATE.training:
        return _leaky_relu(data, slope=(lower_bound + upper_bound) / 2, **how)
    drawn = random.uniform(lower_bound, upper_bound, data.shape, data.dtype, data.context)
    return where(data > 0, data, data * drawn, **how)


_leaky_relu = _function(mxlayers.LeakyReLU)


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
    name: str | None = None,
    cudnn_off: bool = False,
    output_mean_var: bool = False,
) -> Any:
    """Normalized over all axes but one, with the batch's mean and variance in training, else with the moving ones.

    In training the moving ones are updated: moving = momentum * moving + (1 - momentum) * batch. Data of 16 bits with
    vectors of 32 is computed in 32. With `fix_gamma` gamma is 1. With `output_mean_var` also the mean and
    1 / sqrt(var + eps) that the data was normalized with.
    """
    how = {"axis": axis, "eps": eps, "fix_gamma": fix_gamma}
    if not STATE.training or use_global_stats:
        y = invoke(mxlayers.batch_norm_by_moving, data, gamma, beta, moving_mean, moving_var, **how)
        return [y, moving_mean.copy(), rsqrt(moving_var + eps)] if output_mean_var else y
    y, mean, var = invoke(mxlayers.batch_norm, data, gamma, beta, **how)
    before, STATE.recording = STATE.recording, False
    try:
        for moving, batch in ((moving_mean, mean), (moving_var, var)):
            moving[:] = invoke(mxlayers.moved, moving, batch.detach(), momentum=momentum)
    finally:
        STATE.recording = before
    return [y, mean, rsqrt(var + eps)] if output_mean_var else y


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
logical_xor = broadcast_logical_xor = _function(mxops.logical_xor)
logical_not = _function(mxops.logical_not)
broadcast_hypot = _function(mxmath.broadcast_hypot)
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
tan = _function(mxmath.tan)
arcsin = _function(mxmath.arcsin)
arccos = _function(mxmath.arccos)
arctan = _function(mxmath.arctan)
degrees = _function(mxmath.degrees)
radians = _function(mxmath.radians)
sinh = _function(mxmath.sinh)
cosh = _function(mxmath.cosh)
tanh = _function(mxops.tanh)
arcsinh = _function(mxmath.arcsinh)
arccosh = _function(mxmath.arccosh)
arctanh = _function(mxmath.arctanh)
cbrt = _function(mxmath.cbrt)
rcbrt = _function(mxmath.rcbrt)
gamma = _function(mxmath.gamma)
gammaln = _function(mxmath.gammaln)
erf = _function(mxops.erf)
erfinv = _function(mxmath.erfinv)
hard_sigmoid = _function(mxmath.hard_sigmoid)
smooth_l1 = _function(mxmath.smooth_l1)
sigmoid = _function(mxops.sigmoid)
relu = _function(mxops.relu)
softsign = _function(mxops.softsign)
softrelu = _function(mxops.softrelu)
floor = _function(mxops.floor)
ceil = _function(mxops.ceil)
round = _function(mxops.round)
rint = _function(mxmath.rint)
trunc = fix = _function(mxmath.trunc)
clip = _function(mxops.clip)
where = _function(mxops.where)
zeros_like = _function(mxops.zeros_like)
ones_like = _function(mxops.ones_like)
full_like = _function(mxops.full_like)
identity = _function(mxops.identity)
BlockGrad = stop_gradient = _function(mxops.stop_gradient, "BlockGrad")
shape_array = _function(mxshapes.shape_array)
size_array = _function(mxshapes.size_array)
Cast = amp_cast = cast
ElementWiseSum = add_n

sum = sum_axis = _function(mxops.sum)
mean = _function(mxops.mean)
prod = _function(mxops.prod)
max = max_axis = _function(mxops.max)
min = min_axis = _function(mxops.min)
norm = _function(mxops.norm)
argmax = _function(mxops.argmax)
argmin = _function(mxops.argmin)
argmax_channel = _function(mxops.argmax_channel)
cumsum = _function(mxops.cumsum)
nansum = _function(mxindex.nansum)
nanprod = _function(mxindex.nanprod)
moments = _function(mxindex.moments)
all_finite = _function(mxindex.all_finite)
multi_all_finite = _function(mxindex.multi_all_finite)
multi_sum_sq = _function(mxindex.multi_sum_sq)
argsort = _function(mxindex.argsort)
sort = _function(mxindex.sort)
topk: Callable[..., Any] = _function(mxindex.topk)

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
slice = crop = _function(mxshapes.slice)
slice_axis = _function(mxshapes.slice_axis)
slice_like = _function(mxshapes.slice_like)
split: Callable[..., Any] = _function(mxshapes.split)
SliceChannel = split
split_v2: Callable[..., Any] = _function(mxindex.split_v2)
moveaxis = _function(mxindex.moveaxis)
depth_to_space = _function(mxindex.depth_to_space)
space_to_depth = _function(mxindex.space_to_depth)
diag = _function(mxindex.diag)
khatri_rao = _function(mxindex.khatri_rao)

take = _function(mxshapes.take)
pick = choose_element_0index = _function(mxshapes.pick)
batch_take = _function(mxshapes.batch_take)
Correlation = _function(mxcorrelation.Correlation)
gather_nd = _function(mxindex.gather_nd)
scatter_nd = _function(mxindex.scatter_nd)
ravel_multi_index = _function(mxindex.ravel_multi_index)
unravel_index = _function(mxindex.unravel_index)
SequenceMask = _function(mxindex.SequenceMask)
SequenceLast = _function(mxindex.SequenceLast)
SequenceReverse = _function(mxindex.SequenceReverse)
one_hot = _function(mxshapes.one_hot)
Embedding = _function(mxshapes.embedding, "Embedding")
Concat = concat

softmax = _function(mxlayers.softmax)
log_softmax = _function(mxlayers.log_softmax)
softmin = _function(mxlayers.softmin)
softmax_cross_entropy = _function(mxlayers.softmax_cross_entropy)
CTCLoss = ctc_loss = _function(mxctc.CTCLoss)
SoftmaxActivation = _function(mxlayers.SoftmaxActivation)
dot = _function(mxlayers.dot)
batch_dot = _function(mxlayers.batch_dot)
matmul = _function(mxlayers.matmul)
Activation = _function(mxlayers.Activation)
FullyConnected = _function(mxlayers.FullyConnected)
LayerNorm: Callable[..., Any] = _function(mxlayers.LayerNorm)  # an array, or with output_mean_var three
GroupNorm: Callable[..., Any] = _function(mxlayers.GroupNorm)
InstanceNorm = _function(mxlayers.InstanceNorm)
Convolution = _function(mximages.Convolution, ignored=TUNING)
Deconvolution = _function(mximages.Deconvolution, ignored=TUNING)
Pooling = _function(mximages.Pooling, ignored=TUNING)
UpSampling = _function(mximages.UpSampling, ignored=TUNING)
pad = Pad = _function(mximages.pad)
LRN = _function(mximages.LRN)
L2Normalization = _function(mximages.L2Normalization)
attention = _function(ops.attention)

SoftmaxOutput = Softmax = _function(mxoutputs.SoftmaxOutput)
LinearRegressionOutput = _function(mxoutputs.LinearRegressionOutput)
LogisticRegressionOutput = _function(mxoutputs.LogisticRegressionOutput)
MAERegressionOutput = _function(mxoutputs.MAERegressionOutput)
SVMOutput = _function(mxoutputs.SVMOutput)
MakeLoss = _function(mxoutputs.MakeLoss)
make_loss = _function(mxoutputs.make_loss)

linalg_gemm, linalg_gemm2 = linalg.gemm, linalg.gemm2
linalg_syrk, linalg_trmm = linalg.syrk, linalg.trmm
linalg_potrf, linalg_potri, linalg_trsm = linalg.potrf, linalg.potri, linalg.trsm
linalg_gelqf, linalg_syevd = linalg.gelqf, linalg.syevd
linalg_inverse, linalg_det, linalg_slogdet = linalg.inverse, linalg.det, linalg.slogdet
linalg_sumlogdiag = linalg.sumlogdiag
linalg_extractdiag, linalg_makediag = linalg.extractdiag, linalg.makediag
linalg_extracttrian, linalg_maketrian = linalg.extracttrian, linalg.maketrian

uniform = random_uniform = random.uniform
normal = random_normal = random.normal
random_randint = random.randint
random_gamma = random.gamma
random_poisson = random.poisson
random_exponential = random.random_exponential
random_negative_binomial = random.negative_binomial
random_generalized_negative_binomial = random.generalized_negative_binomial
sample_multinomial = random.multinomial
sample_uniform = random.sample_uniform
sample_normal = random.sample_normal
sample_gamma = random.sample_gamma
sample_poisson = random.sample_poisson
sample_exponential = random.sample_exponential
sample_negative_binomial = random.sample_negative_binomial
sample_generalized_negative_binomial = random.sample_generalized_negative_binomial
shuffle = random.shuffle

_document(__name__, globals())
_document(random.__name__, vars(random))
