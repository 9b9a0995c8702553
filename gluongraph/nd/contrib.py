"""`mx.nd.contrib`: MXNet's younger operators, and control flow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.eager.tape import STATE
from gluongraph.errors import HostCallError, MXNetError, with_user_location
from gluongraph.mxops import contrib as mxcontrib
from gluongraph.mxops import ctc as mxctc
from gluongraph.mxops import deformable as mxdeformable
from gluongraph.mxops import images as mximages
from gluongraph.mxops import index as mxindex
from gluongraph.mxops import quantize as mxquantize
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd.boxes import bipartite_matching as bipartite_matching
from gluongraph.nd.boxes import box_decode as box_decode
from gluongraph.nd.boxes import box_encode as box_encode
from gluongraph.nd.control import cond as cond
from gluongraph.nd.control import foreach as foreach
from gluongraph.nd.control import while_loop as while_loop
from gluongraph.nd.detection import MultiBoxDetection as MultiBoxDetection
from gluongraph.nd.detection import MultiBoxPrior as MultiBoxPrior
from gluongraph.nd.detection import MultiBoxTarget as MultiBoxTarget
from gluongraph.nd.detection import box_nms as box_nms
from gluongraph.nd.examples import document
from gluongraph.nd.function import function, no_such
from gluongraph.nd.hawkes import hawkesll as hawkesll
from gluongraph.nd.multi import mp_adamw_update as mp_adamw_update
from gluongraph.nd.multi import multi_adamw_update as multi_adamw_update
from gluongraph.nd.multi import multi_lamb_update as multi_lamb_update
from gluongraph.nd.multi import multi_mp_adamw_update as multi_mp_adamw_update
from gluongraph.nd.multi import multi_mp_lamb_update as multi_mp_lamb_update
from gluongraph.nd.regions import ROIAlign as ROIAlign
from gluongraph.nd.regions import RROIAlign as RROIAlign
from gluongraph.nd.update import adamw_update as adamw_update
from gluongraph.ndarray import NDArray, invoke
from gluongraph.util import is_np_shape

DeformableConvolution = function(mxdeformable.DeformableConvolution)
ModulatedDeformableConvolution = function(mxdeformable.ModulatedDeformableConvolution)
quantize = function(mxquantize.quantize)
dequantize = function(mxquantize.dequantize)
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
box_non_maximum_suppression = box_nms
box_iou = function(mxcontrib.box_iou)
BilinearResize2D = function(mximages.BilinearResize2D)
AdaptiveAvgPooling2D = function(mximages.AdaptiveAvgPooling2D)
CTCLoss = ctc_loss = function(mxctc.CTCLoss)
interleaved_matmul_selfatt_qk = function(mxcontrib.interleaved_matmul_selfatt_qk)
interleaved_matmul_selfatt_valatt = function(mxcontrib.interleaved_matmul_selfatt_valatt)
interleaved_matmul_encdec_qk = function(mxcontrib.interleaved_matmul_encdec_qk)
interleaved_matmul_encdec_valatt = function(mxcontrib.interleaved_matmul_encdec_valatt)


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0) -> NDArray:
    """The slices of data along an axis where index is not 0. How many there are depends on values: eager only.

    A hybridized block with it is not compiled, and runs in eager mode.

    Raises:
        HostCallError: in a function that is being compiled.
        MXNetError: nothing is left, and shapes do not follow numpy's rules (`mx.np_shape`).
    """
    if STATE.tracer is not None:
        message = "the result of boolean_mask has a shape that depends on values, which no graph has"
        raise HostCallError(with_user_location(message, help="multiply by the mask, or choose with nd.where"))
    rows = np.flatnonzero(index.asnumpy()).astype(np.int32)
    if rows.size == 0 and not is_np_shape():
        raise MXNetError(
            with_user_location("boolean_mask: nothing is left, and arrays without elements do not exist in MXNet")
        )
    return invoke(mxshapes.take, data, NDArray(rows, data.context), axis=axis)


def SyncBatchNorm(
    data: NDArray,
    gamma: NDArray,
    beta: NDArray,
    moving_mean: NDArray,
    moving_var: NDArray,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    ndev: int = 1,
    key: str = "",
) -> Any:
    """`nd.BatchNorm` along axis 1 over the batch of one device; with `output_mean_var` also the mean and variance.

    `ndev` and `key` say which devices share a batch in MXNet.
    """
    from gluongraph.nd import BatchNorm  # which imports this module

    vectors = (gamma, beta, moving_mean, moving_var)
    made = BatchNorm(data, *vectors, eps, momentum, fix_gamma, use_global_stats, output_mean_var=output_mean_var)
    return [made[0], made[1], 1 / made[2] ** 2 - eps] if output_mean_var else made


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


document(__name__, globals())
__getattr__ = no_such(__name__, globals())
