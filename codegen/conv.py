"""Convolutions on CPUs and both their gradients: what a rule calls. The loops are in conv_pixels.py and conv_weights.py
for many images, in conv_channels.py for few images of many channels, in conv_flat.py for few of both, in conv_points.py
for those of one tap, in conv_tiles.py for products of bf16.

Sums have an order that depends on shapes and target only, never on threads.
"""

from __future__ import annotations

from gluongraph.codegen import conv_channels, conv_flat, conv_pixels, conv_points, conv_tiles, conv_weights
from gluongraph.codegen import microkernel as mk
from gluongraph.codegen.images import Conv, Pixels, Weights, WritePixels, WriteWeights
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tir import Buf, Kernel

__all__ = [
    "Conv",
    "data_grad_workspace",
    "emit_data_grad",
    "emit_forward",
    "emit_weight_grad",
    "forward_workspace",
    "in_tiles",
    "weight_grad_workspace",
]

_Forward = conv_tiles.Forward | conv_points.Forward | conv_channels.Forward | conv_flat.Forward | conv_pixels.Forward
_DataGrad = (
    conv_tiles.DataGrad | conv_points.DataGrad | conv_channels.DataGrad | conv_flat.DataGrad | conv_pixels.DataGrad
)
_WeightGrad = conv_tiles.WeightGrad | conv_channels.WeightGrad | conv_flat.WeightGrad | conv_weights.WeightGrad


def forward_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_forward` needs; `dtype` is that of the operands."""
    return _forward(conv, dtype, cpu).workspace


def data_grad_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_data_grad` needs."""
    return _data_grad(conv, dtype, cpu).workspace


def weight_grad_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_weight_grad` needs."""
    return _weight_grad(conv, dtype, cpu).workspace


def in_tiles(conv: Conv, dtype: str, cpu: Cpu) -> bool:
    """Does a unit for tiles multiply in all three?"""
    return conv_tiles.suits(conv, cpu, dtype)


def emit_forward(
    k: Kernel, conv: Conv, dtype: str, x: Pixels, w: Weights, write: WritePixels, cpu: Cpu, workspace: Buf
) -> None:
    """y[n, o, i, j] = sum over c, kh, kw of x[n, c, i*s + kh*d - p, j*s + kw*d - p] * w[o, c, kh, kw]."""
    _forward(conv, dtype, cpu).emit(k, x, w, write, workspace)


def emit_data_grad(
    k: Kernel, conv: Conv, dtype: str, g: Pixels, w: Weights, write: WritePixels, cpu: Cpu, workspace: Buf
) -> None:
    """The gradient of x from that of y: each g[n, o, i, j] times w, added where its x was read."""
    _data_grad(conv, dtype, cpu).emit(k, g, w, write, workspace)


def emit_weight_grad(
    k: Kernel, conv: Conv, dtype: str, x: Pixels, g: Pixels, write: WriteWeights, cpu: Cpu, workspace: Buf
) -> None:
    """The gradient of w from that of y: w[o, c, kh, kw] gets the sum of g[n, o, i, j] times the x that it met there."""
    _weight_grad(conv, dtype, cpu).emit(k, x, g, write, workspace)


def _forward(conv: Conv, dtype: str, cpu: Cpu) -> _Forward:
    if conv_tiles.suits(conv, cpu, dtype):
        return conv_tiles.Forward(conv, cpu)
    sums = mk.accumulator(dtype)
    if conv_points.suits(conv, cpu, sums):
        return conv_points.Forward(conv, cpu, sums)
    if conv_channels.suits(conv, conv.o, cpu, sums):
        return conv_channels.Forward(conv, cpu, sums)
    few = conv_flat.suits(conv, cpu, sums)
    return conv_flat.Forward(conv, cpu, sums) if few else conv_pixels.Forward(conv, cpu, sums)


def _data_grad(conv: Conv, dtype: str, cpu: Cpu) -> _DataGrad:
    if conv_tiles.suits(conv, cpu, dtype):
        return conv_tiles.DataGrad(conv, cpu)
    sums = mk.accumulator(dtype)
    if conv_points.suits(conv, cpu, sums):
        return conv_points.DataGrad(conv, cpu, sums)
    if conv_channels.suits(conv, conv.c, cpu, sums):
        return conv_channels.DataGrad(conv, cpu, sums)
    few = conv_flat.suits(conv, cpu, sums)
    return conv_flat.DataGrad(conv, cpu, sums) if few else conv_pixels.DataGrad(conv, cpu, sums)


def _weight_grad(conv: Conv, dtype: str, cpu: Cpu) -> _WeightGrad:
    if conv_tiles.suits(conv, cpu, dtype):
        return conv_tiles.WeightGrad(conv, cpu)
    sums = mk.accumulator(dtype)
    if conv_channels.suits(conv, conv.c, cpu, sums):
        return conv_channels.WeightGrad(conv, cpu, sums)
    few = conv_flat.suits(conv, cpu, sums)
    return conv_flat.WeightGrad(conv, cpu, sums) if few else conv_weights.WeightGrad(conv, cpu, sums)
