"""Convolutions of bf16 images in blocks of 16 (images.py) and both their gradients as products of tiles (tiles.py).

A tile is one pixel of 16 images by 32 channels, or, for the gradient of the weights, 16 channels by two pixels of 16
images. Images lie side by side already: to pair what meets in a sum is all that copying is, and sums come out as
vectors of images, in rows of channels. What taps reach is copied, with zeros around, so that none is left out. Here is
what is read by which taps; the loops are in conv_tile_pixels.py and conv_tile_weights.py.
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

FEWEST = 8  # channels: of fewer, tiles would be emptier than half


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is this a convolution for tiles, its images in blocks?"""
    many = conv.groups == 1 and min(conv.c, conv.o) >= FEWEST and conv.n % SIDE == 0
    return amx.unit(cpu) is not None and dtype == "bf16" and many


@dataclass(frozen=True)
class Phase:
    """Rows (or columns) `first`, `first + step`, ... of the result, `count` of them. Number t reads the copy, under a
    tap of the kernel, at `t * scale` and the offset that comes with the tap."""

    first: int
    step: int
    count: int
    scale: int
    taps: tuple[Pair, ...]


@dataclass(frozen=True)
class Axis:
    """Rows (or columns) of a source of `size`, copied to `extent` places: place u is that of number u * skip - before,
    or zero where there is none."""

    size: int
    before: int
    skip: int
    extent: int
    phases: tuple[Phase, ...]

    @property
    def inside(self) -> tuple[int, int]:
        """The first place, and the one behind the last, that are not zero."""
        first = min(mk.ceildiv(self.before, self.skip), self.extent)
        return first, max(first, min(mk.ceildiv(self.size + self.before, self.skip), self.extent))

    def holds(self, place: Expr) -> Expr:
        """Is it one of them?"""
        first, last = self.inside
        return tir.logical("and", place >= first, place < last)


def reading(conv: Conv, axis: int, count: int) -> Axis:
    """What `count` rows (columns) of y read of x. Of one tap what a stride leaves out is not copied."""
    taps, stride, dilation = conv.kernel[axis], conv.stride[axis], conv.dilation[axis]
    skip = stride if taps == 1 else 1
    phase = Phase(0, 1, count, stride // skip, tuple((tap, tap * dilation) for tap in range(taps)))
    extent = (count - 1) * phase.scale + (taps - 1) * dilation + 1
    return Axis((conv.h, conv.w)[axis], conv.padding[axis], skip, extent, (phase,))


def read_by(conv: Conv, axis: int) -> Axis:
    """What rows (columns) of x read of y's gradient: those that are a stride apart alike."""
    size, out, stride = (conv.h, conv.w)[axis], conv.out[axis], conv.stride[axis]
    found = []
    for first in range(min(stride, size)):
        spread = [(tap, first + conv.padding[axis] - tap * conv.dilation[axis]) for tap in range(conv.kernel[axis])]
        taps = tuple((tap, at // stride) for tap, at in spread if at % stride == 0)
        found.append(Phase(first, stride, mk.ceildiv(size - first, stride), 1, taps))
    before = max((-at for phase in found for _, at in phase.taps), default=0)
    before = max(before, 0)
    extent = max((phase.count + at for phase in found for _, at in phase.taps), default=0) + before
    moved = (Phase(p.first, p.step, p.count, p.scale, tuple((tap, at + before) for tap, at in p.taps)) for p in found)
    return Axis(out, before, 1, max(extent, 1), tuple(moved))


class InBlocks(Job):
    """What the three have in common."""

    def __init__(self, conv: Conv, cpu: Cpu, words: int = SIDE):
        super().__init__(conv, cpu, "f32")
        unit = amx.unit(cpu, words)
        assert unit is not None
        self.unit = unit
        self.taps = conv.kernel[0] * conv.kernel[1]
        self.blocks = conv.n // SIDE
