"""MXNet's Correlation: how well patches of two images agree at every displacement (FlowNet, Fischer et al., 2015)."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.images import Pooling


def Correlation(
    data1: Node,
    data2: Node,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
) -> Node:
    """Means over patches of products of data1 and displaced data2, both (N, C, H, W): (N, D^2, height, width).

    D = 2 (max_displacement // stride2) + 1 displacements of each axis, `stride2` apart; patches of kernel_size^2,
    `stride1` apart, of images with `pad_size` zeros around. Without `is_multiply`, of |data1 - data2|.

    Raises:
        MXNetError: an even kernel, or no patch fits.
        ShapeError: images of different shapes.
    """
    if data1.ty != data2.ty or data1.ty.rank != 4:
        raise ShapeError(
            with_user_location(f"Correlation: two images (N, C, H, W) of one type, not {data1.ty} and {data2.ty}")
        )
    if kernel_size % 2 == 0:
        raise MXNetError(with_user_location(f"Correlation: kernel_size is odd, not {kernel_size}"))
    around = (0, 0, pad_size, pad_size)
    a, b = (ops.pad(x, around, around, 0.0) for x in (data1, data2))
    height, width = (n - 2 * max_displacement for n in a.shape[2:])
    if min(height, width) < kernel_size:
        help = "a larger pad_size, or a smaller kernel_size or max_displacement"
        raise MXNetError(
            with_user_location(f"Correlation: no patch of {kernel_size} pixels fits into {data1.ty}", help=help)
        )
    reach = max_displacement // stride2
    steps = [i * stride2 for i in range(-reach, reach + 1)]
    fixed = _window(a, max_displacement, max_displacement, height, width)
    found = []
    for dy in steps:
        for dx in steps:
            moved = _window(b, max_displacement + dy, max_displacement + dx, height, width)
            agreement = ops.mul(fixed, moved) if is_multiply else ops.abs(ops.sub(fixed, moved))
            found.append(ops.div(ops.sum(agreement, (1,), True), float(a.shape[1])))
    every = ops.concat(*found, axis=1)
    square = (kernel_size, kernel_size)
    return Pooling(every, kernel=square, pool_type="avg", stride=(stride1, stride1), pad=(0, 0))


def _window(x: Node, top: int, left: int, height: int, width: int) -> Node:
    return ops.part(ops.part(x, 2, top, top + height), 3, left, left + width)
