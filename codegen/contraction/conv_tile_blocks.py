"""Convolutions of bf16 in the NCHW16n layout and both their gradients by tile multiplications (amx.py): common parts.

A tile is one pixel of 16 images by 32 channels, or, for the gradient of the weights, 16 channels by two pixels of 16
images. Images are interleaved already: packing only pairs the values that are added into one sum, and sums are vectors
over images, in rows of channels. Activations are packed with zero padding, so that no tap is skipped. This module says
which taps read which rows and columns; the loops are in conv_tile_pixels.py and conv_tile_weights.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gluongraph.codegen.contraction import amx
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.amx import SIDE
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Expr

FEWEST = 8  # channels: with fewer, tiles would be less than half full


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Should tile multiplications compute this convolution in the NCHW16n layout?"""
    many = conv.groups == 1 and min(conv.c, conv.o) >= FEWEST and conv.n % SIDE == 0
    return amx.unit(cpu) is not None and dtype == "bf16" and many


@dataclass(frozen=True)
class Phase:
    """Rows (or columns) `first`, `first + step`, ... of the result, `count` of them. `taps` are (tap of the kernel,
    offset): the t-th row reads the packed source at t * scale + offset."""

    first: int
    step: int
    count: int
    scale: int
    taps: tuple[Pair, ...]


@dataclass(frozen=True)
class Axis:
    """Rows (or columns) of a source of `size`, packed with padding to `extent` rows: packed row u is row
    u * skip - before of the source, or zero outside of it."""

    size: int
    before: int
    skip: int
    extent: int
    phases: tuple[Phase, ...]

    @property
    def inside(self) -> tuple[int, int]:
        """First and last + 1 of the packed rows that are not padding."""
        first = min(mk.ceildiv(self.before, self.skip), self.extent)
        return first, max(first, min(mk.ceildiv(self.size + self.before, self.skip), self.extent))

    def holds(self, place: Expr) -> Expr:
        """Return the condition that a packed row is not padding."""
        first, last = self.inside
        return tir.logical("and", place >= first, place < last)


def forward_axis(conv: Conv, axis: int, count: int) -> Axis:
    """Return how `count` rows (columns) of y read x. With a single tap, rows that the stride skips are not packed."""
    taps, stride, dilation = conv.kernel[axis], conv.stride[axis], conv.dilation[axis]
    skip = stride if taps == 1 else 1
    phase = Phase(0, 1, count, stride // skip, tuple((tap, tap * dilation) for tap in range(taps)))
    extent = (count - 1) * phase.scale + (taps - 1) * dilation + 1
    return Axis((conv.h, conv.w)[axis], conv.padding[axis], skip, extent, (phase,))


def data_grad_axis(conv: Conv, axis: int) -> Axis:
    """Return how rows (columns) of x read the gradient of y: one phase for rows with the same remainder by the
    stride."""
    size, out, stride = (conv.h, conv.w)[axis], conv.out[axis], conv.stride[axis]
    phases = []
    for first in range(min(stride, size)):
        dilated = [(tap, first + conv.padding[axis] - tap * conv.dilation[axis]) for tap in range(conv.kernel[axis])]
        taps = tuple((tap, at // stride) for tap, at in dilated if at % stride == 0)
        phases.append(Phase(first, stride, mk.ceildiv(size - first, stride), 1, taps))
    before = max((-at for phase in phases for _, at in phase.taps), default=0)
    before = max(before, 0)
    extent = max((phase.count + at for phase in phases for _, at in phase.taps), default=0) + before
    moved = (Phase(p.first, p.step, p.count, p.scale, tuple((tap, at + before) for tap, at in p.taps)) for p in phases)
    return Axis(out, before, 1, max(extent, 1), tuple(moved))


class BlockedKernel(Job):
    """Common parts of the convolution and its gradients."""

    def __init__(self, conv: Conv, cpu: Cpu, words: int = SIDE):
        super().__init__(conv, cpu, "f32")
        unit = amx.unit(cpu, words)
        assert unit is not None
        self.unit = unit
        self.taps = conv.kernel[0] * conv.kernel[1]
        self.blocks = conv.n // SIDE
