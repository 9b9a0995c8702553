"""`nd.contrib.ROIAlign` and `RROIAlign`: how many points a bin has may depend on the regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph.eager.tape import STATE
from gluongraph.errors import HostCallError, MXNetError, with_user_location
from gluongraph.mxops import regions as mxregions
from gluongraph.nd.function import into
from gluongraph.ndarray import NDArray, invoke
from gluongraph.storage import Array

Pair = tuple[int, int]


def ROIAlign(
    data: NDArray,
    rois: NDArray,
    pooled_size: Sequence[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    position_sensitive: bool = False,
    aligned: bool = False,
    out: NDArray | None = None,
    name: str | None = None,
) -> NDArray:
    """Regions (image, x0, y0, x1, y1) of images (N, C, H, W), each as (C, *pooled_size): means over points in bins.

    Coordinates are multiplied by `spatial_scale`; with `aligned` pixels have their numbers in their middle. A bin has
    `sample_ratio` points along each axis, or as many as it is pixels long, which depends on values: eager only. With
    `position_sensitive` each bin has channels of its own. An image below 0 gives zeros. No gradient flows to the
    regions.

    Raises:
        HostCallError: sample_ratio is not given in a function that is being compiled.
        IndexRangeError: there is no such image.
    """
    bins = _bins("ROIAlign", pooled_size)

    def sizes(boxes: Array) -> Array:
        return np.asarray((boxes[:, [4, 3]] - boxes[:, [2, 1]]) * spatial_scale)

    samples, adaptive = _samples("ROIAlign", rois, sizes, bins, sample_ratio)
    how: tuple[Any, ...] = (bins, float(spatial_scale), samples, adaptive, bool(position_sensitive), bool(aligned))
    made = invoke(mxregions.roi_align, data, rois, *how)
    return made if out is None else into(out, made)


def RROIAlign(
    data: NDArray,
    rois: NDArray,
    pooled_size: Sequence[int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    out: NDArray | None = None,
    name: str | None = None,
) -> NDArray:
    """`ROIAlign` of regions that are turned: (image, x and y of the center, width, height, angle in degrees).

    Raises:
        HostCallError: sampling_ratio is not given in a function that is being compiled.
        IndexRangeError: there is no such image.
    """
    bins = _bins("RROIAlign", pooled_size)

    def sizes(boxes: Array) -> Array:
        return np.asarray(boxes[:, [4, 3]] * spatial_scale)

    samples, adaptive = _samples("RROIAlign", rois, sizes, bins, sampling_ratio)
    made = invoke(mxregions.rroi_align, data, rois, bins, float(spatial_scale), samples, adaptive)
    return made if out is None else into(out, made)


def _bins(op: str, pooled_size: Sequence[int]) -> Pair:
    if len(pooled_size) != 2 or any(n < 1 for n in pooled_size):
        raise MXNetError(with_user_location(f"{op}: pooled_size is two positive numbers, not {tuple(pooled_size)}"))
    return int(pooled_size[0]), int(pooled_size[1])


def _samples(op: str, rois: NDArray, sizes: Callable[[Array], Array], bins: Pair, ratio: int) -> tuple[Pair, bool]:
    """How many points a bin has at most along each axis, and whether it is for each region to say how many.

    Powers of 2, so that other regions mostly are another call of the same function.
    """
    if ratio > 0:
        return (ratio, ratio), False
    if STATE.tracer is not None:
        message = f"{op}: how many points a bin has depends on the regions, which no graph has"
        raise HostCallError(with_user_location(message, help="say how many: 2, for example"))
    if rois.ndim != 2 or rois.shape[1] < 5 or not rois.shape[0]:
        return (1, 1), True  # which the builder refuses, or does not look at
    longest = np.maximum(np.nan_to_num(sizes(rois.asnumpy())), 1).max(0) / bins
    rows, columns = (2 ** math.ceil(math.log2(math.ceil(n * 1.0001))) for n in longest.tolist())
    return (rows, columns), True
