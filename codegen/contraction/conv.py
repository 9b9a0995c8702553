"""Convolutions on CPUs and both their gradients: which algorithm computes them, and what the kernel rule calls.

* conv_direct_nchwn.py and conv_direct_nchwn_weights.py: direct, vectors over images, for many images;
* winograd.py: Winograd over vectors of images (NCHWn layout), for kernels three to five taps wide;
* conv_direct_nchwc.py: direct, vectors over channels, for few images of many channels; winograd_channels.py: the same
  by Winograd, for 3x3 kernels;
* conv_bands.py: for few pixels; conv_flat.py: for few images and few channels;
* conv_1x1.py: 1x1 convolutions as GEMM;
* conv_tile_blocks.py (NCHWn layout) and conv_tiles.py: bf16 operands on AMX or AVX512-BF16.

The order of additions depends on shapes and target only, never on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gluongraph.codegen.contraction import (
    conv_1x1,
    conv_bands,
    conv_direct_nchwc,
    conv_direct_nchwn,
    conv_direct_nchwn_weights,
    conv_flat,
    conv_tile_blocks,
    conv_tile_pixels,
    conv_tile_weights,
    conv_tiles,
    winograd,
    winograd_2d,
    winograd_channel_weights,
    winograd_channels,
    winograd_pixels,
    winograd_weights,
)
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Pixels, Weights, WritePixels, WriteWeights
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

__all__ = [
    "Conv",
    "algorithms",
    "blocked_workspace",
    "data_grad_workspace",
    "emit_blocked",
    "emit_data_grad",
    "emit_forward",
    "emit_weight_grad",
    "forward_workspace",
    "preferred_image_lanes",
    "uses_tiles",
    "weight_grad_workspace",
]


class _ToImages(Protocol):
    """Emits a convolution, or the gradient of its data."""

    @property
    def workspace(self) -> int: ...

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None: ...


class _ToWeights(Protocol):
    """Emits the gradient of the weights."""

    @property
    def workspace(self) -> int: ...

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None: ...


class _Blocked(Protocol):
    """Emits any of the three for activations in the NCHWn layout."""

    @property
    def workspace(self) -> int: ...

    @property
    def emit_blocked(self) -> Callable[..., None]: ...


# The algorithms by name, in the order of preference.
_FORWARD: dict[str, Callable[[Conv, Cpu, str], _ToImages]] = {
    "tiles": lambda conv, cpu, _: conv_tiles.Forward(conv, cpu),
    "points": conv_1x1.Forward,
    "winograd": winograd_channels.Forward,
    "bands": conv_bands.Forward,
    "channels": conv_direct_nchwc.Forward,
    "flat": conv_flat.Forward,
    "images": conv_direct_nchwn.Forward,
}
_DATA_GRAD: dict[str, Callable[[Conv, Cpu, str], _ToImages]] = {
    "tiles": lambda conv, cpu, _: conv_tiles.DataGrad(conv, cpu),
    "points": conv_1x1.DataGrad,
    "winograd": winograd_channels.DataGrad,
    "bands": conv_bands.DataGrad,
    "channels": conv_direct_nchwc.DataGrad,
    "flat": conv_flat.DataGrad,
    "images": conv_direct_nchwn.DataGrad,
}
_WEIGHT_GRAD: dict[str, Callable[[Conv, Cpu, str], _ToWeights]] = {
    "tiles": lambda conv, cpu, _: conv_tiles.WeightGrad(conv, cpu),
    "points": conv_1x1.WeightGrad,
    "winograd": winograd_channel_weights.WeightGrad,
    "channels": conv_direct_nchwc.WeightGrad,
    "flat": conv_flat.WeightGrad,
    "images": conv_direct_nchwn_weights.WeightGrad,
}
_BLOCKED: dict[str, dict[str, Callable[[Conv, Cpu, str], _Blocked]]] = {
    "conv2d": {
        "tiles": lambda conv, cpu, _: conv_tile_pixels.Forward(conv, cpu),
        "winograd": winograd_pixels.Forward,
        "points": conv_1x1.Forward,
        "images": conv_direct_nchwn.Forward,
    },
    "conv2d_data_grad": {
        "tiles": lambda conv, cpu, _: conv_tile_pixels.DataGrad(conv, cpu),
        "winograd": winograd_pixels.DataGrad,
        "points": conv_1x1.DataGrad,
        "images": conv_direct_nchwn.DataGrad,
    },
    "conv2d_weight_grad": {
        "tiles": lambda conv, cpu, _: conv_tile_weights.WeightGrad(conv, cpu),
        "winograd": winograd_weights.WeightGrad,
        "points": conv_1x1.WeightGrad,
        "images": conv_direct_nchwn_weights.WeightGrad,
    },
}

_OPS = ("conv2d", "conv2d_data_grad", "conv2d_weight_grad")


def algorithms(op: str, conv: Conv, dtype: str, cpu: Cpu) -> list[str]:
    """Return the algorithms that support an op of this geometry; the first is the default, which `algorithm=""` is."""
    tables = {"conv2d": [*_FORWARD], "conv2d_data_grad": [*_DATA_GRAD], "conv2d_weight_grad": [*_WEIGHT_GRAD]}
    if conv.blocks:
        if conv_tile_blocks.is_profitable(conv, cpu, dtype):
            return ["tiles"]
        sums = mk.accumulator(dtype)
        if conv_1x1.is_profitable(conv, cpu, sums):
            names, first = ["points", "images"], conv_1x1.is_profitable_blocked(op, conv, cpu, sums)
        else:
            names = ["winograd", "images"] if dtype == "f32" and winograd.is_supported(conv) else ["images"]
            first = winograd.is_profitable(op, conv, cpu)
        return names if first else names[::-1]
    if conv_tiles.is_profitable(conv, cpu, dtype):
        return ["tiles"]
    sums, channels = mk.accumulator(dtype), conv.o if op == "conv2d" else conv.c
    supported = {"flat", "images"}
    if points := conv_1x1.is_profitable(conv, cpu, sums):
        supported.add("points")
    if dtype == "f32" and winograd_2d.is_supported(conv, cpu):
        supported.add("winograd")
    if conv_bands.is_supported(op, conv, cpu, sums):
        supported.add("bands")
    if conv_direct_nchwc.is_supported(conv, cpu, sums):
        supported.add("channels")
    profitable = {
        "points": points,
        "winograd": winograd_2d.is_profitable(op, conv, cpu),
        "bands": conv_bands.is_profitable(op, conv, cpu, sums),
        "channels": conv_direct_nchwc.is_profitable(conv, channels, cpu, sums),
        "flat": conv_flat.is_profitable(conv, cpu, sums),
        "images": True,
    }
    return sorted((name for name in tables[op] if name in supported), key=lambda name: not profitable[name])


def preferred_image_lanes(conv: Conv, dtype: str, cpu: Cpu, source_is_blocked: bool) -> int:
    """Return how many images should be interleaved in memory (NCHW16n with 16 lanes); 0: none, the layout stays NCHW.

    A 1x1 convolution is as fast in NCHW: it prefers the blocked layout only if its source already has it.
    """
    sums, blocked_algorithms = mk.accumulator(dtype), ("images", "points") if source_is_blocked else ("images",)
    lanes = mk.lanes(cpu, sums)
    if sums != "f32" or lanes == 1 or conv.n % lanes or conv.work < mk.SERIAL_WORK:
        return 0
    if conv_tile_blocks.is_profitable(conv, cpu, dtype):
        return lanes if source_is_blocked or conv.kernel != (1, 1) else 0
    return lanes if all(algorithms(op, conv, dtype, cpu)[0] in blocked_algorithms for op in _OPS) else 0


def forward_workspace(conv: Conv, dtype: str, cpu: Cpu, algorithm: str = "") -> int:
    """Return the bytes of workspace that `emit_forward` needs; `dtype` is that of the operands."""
    return _forward(conv, dtype, cpu, algorithm).workspace


def data_grad_workspace(conv: Conv, dtype: str, cpu: Cpu, algorithm: str = "") -> int:
    """Return the bytes of workspace that `emit_data_grad` needs."""
    return _data_grad(conv, dtype, cpu, algorithm).workspace


def weight_grad_workspace(conv: Conv, dtype: str, cpu: Cpu, algorithm: str = "") -> int:
    """Return the bytes of workspace that `emit_weight_grad` needs."""
    return _weight_grad(conv, dtype, cpu, algorithm).workspace


def blocked_workspace(op: str, conv: Conv, dtype: str, cpu: Cpu, algorithm: str = "") -> int:
    """Return the bytes of workspace that `emit_blocked` needs."""
    return _blocked(op, conv, dtype, cpu, algorithm).workspace


def uses_tiles(conv: Conv, dtype: str, cpu: Cpu) -> bool:
    """Do tile multiplications (AMX or AVX512-BF16) compute the convolution and both its gradients?"""
    return algorithms("conv2d", conv, dtype, cpu)[0] == "tiles"


def emit_forward(
    k: Kernel,
    conv: Conv,
    dtype: str,
    x: Pixels,
    w: Weights,
    write: WritePixels,
    cpu: Cpu,
    workspace: Buf,
    algorithm: str = "",
) -> None:
    """Emit y[n, o, i, j] = sum over c, kh, kw of x[n, c, i*s + kh*d - p, j*s + kw*d - p] * w[o, c, kh, kw]."""
    _forward(conv, dtype, cpu, algorithm).emit(k, x, w, write, workspace)


def emit_data_grad(
    k: Kernel,
    conv: Conv,
    dtype: str,
    g: Pixels,
    w: Weights,
    write: WritePixels,
    cpu: Cpu,
    workspace: Buf,
    algorithm: str = "",
) -> None:
    """Emit the gradient of x: for each element of x the sum of w times the g[n, o, i, j] that it contributed to."""
    _data_grad(conv, dtype, cpu, algorithm).emit(k, g, w, write, workspace)


def emit_weight_grad(
    k: Kernel,
    conv: Conv,
    dtype: str,
    x: Pixels,
    g: Pixels,
    write: WriteWeights,
    cpu: Cpu,
    workspace: Buf,
    algorithm: str = "",
) -> None:
    """Emit the gradient of w: for w[o, c, kh, kw] the sum over n, i, j of g[n, o, i, j] times the x it multiplied."""
    _weight_grad(conv, dtype, cpu, algorithm).emit(k, x, g, write, workspace)


def emit_blocked(
    k: Kernel,
    op: str,
    conv: Conv,
    dtype: str,
    images: Buf,
    second: Buf,
    write: Callable[..., None],
    cpu: Cpu,
    workspace: Buf,
    algorithm: str = "",
) -> None:
    """Emit the op of that name over activations in the NCHWn layout: `write` is a WriteImages, of weights a
    WriteWeights."""

    def weights(o: Value, q: Value, lanes: int) -> Expr:
        return k.load(second, o * conv.q + q, lanes)

    other = second if op == "conv2d_weight_grad" else weights
    _blocked(op, conv, dtype, cpu, algorithm).emit_blocked(k, images, other, write, workspace)


def _forward(conv: Conv, dtype: str, cpu: Cpu, algorithm: str) -> _ToImages:
    return _FORWARD[algorithm or algorithms("conv2d", conv, dtype, cpu)[0]](conv, cpu, mk.accumulator(dtype))


def _data_grad(conv: Conv, dtype: str, cpu: Cpu, algorithm: str) -> _ToImages:
    return _DATA_GRAD[algorithm or algorithms("conv2d_data_grad", conv, dtype, cpu)[0]](
        conv, cpu, mk.accumulator(dtype)
    )


def _weight_grad(conv: Conv, dtype: str, cpu: Cpu, algorithm: str) -> _ToWeights:
    return _WEIGHT_GRAD[algorithm or algorithms("conv2d_weight_grad", conv, dtype, cpu)[0]](
        conv, cpu, mk.accumulator(dtype)
    )


def _blocked(op: str, conv: Conv, dtype: str, cpu: Cpu, algorithm: str) -> _Blocked:
    return _BLOCKED[op][algorithm or algorithms(op, conv, dtype, cpu)[0]](conv, cpu, mk.accumulator(dtype))
