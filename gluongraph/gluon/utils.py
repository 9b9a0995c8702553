"""Splitting batches over contexts, and clipping gradients by their global norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gluongraph import autograd, nd
from gluongraph.context import Context
from gluongraph.errors import pluralize, warn, with_user_location
from gluongraph.host.download import check_sha1 as check_sha1
from gluongraph.host.download import download as download
from gluongraph.ndarray import NDArray
from gluongraph.ranges import Range, check_range

_NORM = Range(0, math.inf, infinite=True)  # infinity: the norm is wanted, and nothing clipped


def split_data(data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """`num_slice` parts along an axis; without `even_split` the first ones may have one sample more than the others.

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import utils
    >>> [part.shape for part in utils.split_data(nd.zeros((5, 3)), 2, even_split=False)]
    [(3, 3), (2, 3)]

    Raises:
        ValueError: fewer samples than parts, or an even split that does not divide.
    """
    size = data.shape[batch_axis]
    if size < num_slice:
        raise ValueError(
            with_user_location(f"split_data: {pluralize(size, 'sample')} cannot be split into {num_slice} parts")
        )
    if even_split and size % num_slice:
        raise ValueError(
            with_user_location(
                f"split_data: {size} samples do not divide into {num_slice} equal parts; even_split=False allows it"
            )
        )
    each, more = divmod(size, num_slice)
    ends = list(itertools.accumulate(each + (i < more) for i in range(num_slice)))
    before: tuple[Any, ...] = (slice(None),) * batch_axis
    return [data[(*before, slice(start, end))] for start, end in itertools.pairwise([0, *ends])]


def split_and_load(
    data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]:
    """`split_data`, each part on one of the contexts.

    >>> from gluongraph import cpu, nd
    >>> from gluongraph.gluon import utils
    >>> parts = utils.split_and_load(nd.array([[1.0], [2.0]]), [cpu(0), cpu(1)])
    >>> [(part.asnumpy().tolist(), part.context) for part in parts]
    [([[1.0]], cpu(0)), ([[2.0]], cpu(1))]

    Raises:
        ValueError: as `split_data`.
    """
    array = data if isinstance(data, NDArray) else nd.array(data, ctx=ctx_list[0])
    if len(ctx_list) == 1:
        return [array.as_in_context(ctx_list[0])]
    parts = split_data(array, len(ctx_list), batch_axis, even_split)
    return [part.as_in_context(ctx) for part, ctx in zip(parts, ctx_list, strict=True)]


def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: bool = True) -> Any:
    """Scale arrays in place by min(1, max_norm / (norm + 1e-8)), norm that of all their elements; gives the norm.

    Arrays on several contexts count as different ones: for replicas of the same gradient call it once per context.
    The norm comes as a number, or with check_isfinite=False as an array of shape (1,).

    >>> from gluongraph import nd
    >>> from gluongraph.gluon import utils
    >>> gradients = [nd.array([3.0]), nd.array([4.0])]
    >>> utils.clip_global_norm(gradients, max_norm=2.5)
    5.0
    >>> [gradient.asscalar().item() for gradient in gradients]
    [1.5, 2.0]

    Raises:
        AssertionError: no arrays.
        ValueError: `max_norm` is negative or NaN.
        TypeError: something else than arrays, as parameters.
    """
    if not arrays:
        raise AssertionError("clip_global_norm needs at least one array")
    if not isinstance(arrays, (list, tuple)) or not all(isinstance(array, NDArray) for array in arrays):
        help = "[p.grad() for p in net.collect_params().values() if p.grad_req != 'null']"
        raise TypeError(with_user_location("clip_global_norm takes a list of arrays", help=help))
    check_range("clip_global_norm", "max_norm", max_norm, _NORM)
    with autograd.pause():
        home = arrays[0].context
        total = nd.zeros((1,), ctx=home)
        for array in arrays:
            flat = array.astype("float32")
            total = total + (flat * flat).sum().as_in_context(home)
        norm = total.sqrt()
        value = float(norm.asscalar()) if check_isfinite else None
        if value is not None and not math.isfinite(value):
            warn(f"the norm of the gradients is {value}; clipping makes them all so")
        scale = nd.minimum(max_norm / (norm + 1e-8), 1.0)
        for array in arrays:
            array[:] = array * scale.astype(array.dtype).as_in_context(array.context)
    return norm if value is None else value
