"""Convolutions on CPUs and both their gradients: what a rule calls. The loops: conv_pixels.py and conv_weights.py.

Sums have an order that depends on shapes and target only, never on threads.
"""

from __future__ import annotations

from gluongraph.codegen.conv_pixels import DataGrad, Forward
from gluongraph.codegen.conv_weights import WeightGrad
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
    "weight_grad_workspace",
]


def forward_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_forward` needs; `dtype` is that of the sums, `microkernel.accumulator` of the operands'."""
    return Forward(conv, cpu, dtype).workspace


def data_grad_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_data_grad` needs."""
    return DataGrad(conv, cpu, dtype).workspace


def weight_grad_workspace(conv: Conv, dtype: str, cpu: Cpu) -> int:
    """Bytes that `emit_weight_grad` needs."""
    return WeightGrad(conv, cpu, dtype).workspace


def emit_forward(
    k: Kernel, conv: Conv, dtype: str, x: Pixels, w: Weights, write: WritePixels, cpu: Cpu, workspace: Buf
) -> None:
    """y[n, o, i, j] = sum over c, kh, kw of x[n, c, i*s + kh*d - p, j*s + kw*d - p] * w[o, c, kh, kw]."""
    Forward(conv, cpu, dtype).emit(k, x, w, write, workspace)


def emit_data_grad(
    k: Kernel, conv: Conv, dtype: str, g: Pixels, w: Weights, write: WritePixels, cpu: Cpu, workspace: Buf
) -> None:
    """The gradient of x from that of y: each g[n, o, i, j] times w, added where its x was read."""
    DataGrad(conv, cpu, dtype).emit(k, g, w, write, workspace)


def emit_weight_grad(
    k: Kernel, conv: Conv, dtype: str, x: Pixels, g: Pixels, write: WriteWeights, cpu: Cpu, workspace: Buf
) -> None:
    """The gradient of w from that of y: w[o, c, kh, kw] gets the sum of g[n, o, i, j] times the x that it met there."""
    WeightGrad(conv, cpu, dtype).emit(k, x, g, write, workspace)
