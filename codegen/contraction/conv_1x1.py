"""Convolutions with a 1x1 kernel and no padding, as GEMM over the activations in memory: nothing is transposed, and
only a stride makes a copy, of the pixels that it reads.

All pixels of all images are columns of the GEMM: weights times x is y, transposed weights times the gradient of y is
the gradient of x, and the gradient of y times transposed x is the gradient of the weights. In the NCHWn layout each
image of a block has a column, adjacent to those of the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from gluongraph.codegen.contraction import gemm
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import (
    Conv,
    Job,
    Pair,
    Pixels,
    Weights,
    WriteImages,
    WritePixels,
    WriteWeights,
)
from gluongraph.codegen.contraction.gemm import Operand
from gluongraph.codegen.contraction.gemm_strategy import OperandKind, Strategy, choose
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

PAGE = 4096  # bytes
FEW = 128  # rows
LONG, DEPTH = 1024, 256  # pixels from which the gradient of the weights is summed in passes, and those of one


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is this such a convolution, and do vectors of pixels end where images do?"""
    lanes = mk.lanes(cpu, dtype)
    one = conv.kernel == (1, 1) and conv.padding == (0, 0)
    return one and lanes > 1 and (conv.blocks or conv.out[0] * conv.out[1] % lanes == 0)


def is_profitable_blocked(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Are channels of images in blocks so many that a product had better copy them together? A pixel of each lies on a
    page of its own; a few of them stay in cache."""
    lanes, summed = mk.lanes(cpu, dtype), conv.o if op == "conv2d_data_grad" else conv.c
    if op == "conv2d_weight_grad":
        return conv.q * conv.o > (8 * lanes) ** 2
    return summed // conv.groups > 4 * lanes


class _Points(Job):
    """What all three have in common: groups of products of these extents and kinds of operands."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.side = self.lanes if conv.blocks else 1  # images of a block
        self.images = conv.n // self.side  # or blocks of them
        self.pixels = conv.out[0] * conv.out[1] * self.side
        self.extents, self.kinds = self._gemm()
        self.strategy = self._strategy()
        self._copied = 0 if conv.stride == (1, 1) else self.images * conv.c * self.pixels

    @abstractmethod
    def _gemm(self) -> tuple[tuple[int, int, int, int], tuple[OperandKind, OperandKind]]:
        """Batch, rows, columns, terms; the operands."""

    def _strategy(self) -> Strategy:
        """How to multiply. Where a panel of columns is of use to few tiles it is copied, all of its terms, where they
        find it soonest: in the first cache, or next to it."""
        strategy = choose(*self.extents, *self.kinds, self.cpu)
        panel = replace(strategy, depth=0).panel(self.extents[3], self.cpu) * DTYPES[self.dtype].nbytes
        near = 2 * self.cpu.l1 // panel
        if strategy.form == "inner" or self.extents[1] > FEW or strategy.pack_a or not strategy.pack_b or near == 0:
            return strategy
        return replace(strategy, depth=0, block=min(strategy.block, near))

    @property
    def workspace(self) -> int:
        """Bytes; a few where the product needs none, since every convolution is given some."""
        gemm_bytes = self.strategy.workspace(*self.extents, self.cpu)
        return max(self._copied * DTYPES[self.dtype].nbytes + gemm_bytes, 64)

    def multiply(self, k: Kernel, a: Operand, b: Operand, write: gemm.Write, workspace: Buf) -> None:
        """Write the loops of the product, whose workspace lies behind the copy."""
        space = self.slots(k, workspace).at(self._copied)
        gemm.emit(k, gemm.Gemm(*self.extents, a, b, write, self.cpu, space), self.strategy)

    def met(self, k: Kernel, x: Pixels, workspace: Buf) -> Pixels:
        """The pixels of x that meet the tap: all of them, or a copy."""
        conv = self.conv
        if not self._copied:
            return x
        space, (height, width), (down, across) = self.slots(k, workspace), conv.out, conv.stride

        def unit(_: Expr, unit: Expr) -> None:
            image, channel = k.bind(tir.floordiv(unit, conv.c), "image"), k.bind(tir.floormod(unit, conv.c), "channel")
            with k.loop(height, name="row") as row:
                if conv.blocks:
                    with k.loop(width, name="column") as column:
                        first = k.bind((row * (down * conv.w) + column * across) * self.side, "first")
                        found = tir.cast(x(image, channel, first, self.side), self.dtype)
                        k.store(space, found, unit * self.pixels + (row * width + column) * self.side)
                    return

                def vector(column: Value, count: int) -> None:
                    first = k.bind(row * (down * conv.w) + column * across, "first")
                    last = (count - 1) * across + 1
                    parts = [(at, min(self.lanes, last - at)) for at in range(0, last, self.lanes)]
                    found = [k.bind(tir.cast(x(image, channel, first + at, n), self.dtype), "x") for at, n in parts]
                    k.store(
                        space, tir.shuffle(found, range(0, last, across)), unit * self.pixels + row * width + column
                    )

                mk.for_vectors(k, width, self.lanes, vector)

        self.spread(k, self.images * conv.c, unit)
        return lambda image, channel, p, lanes: k.load(space, (image * conv.c + channel) * self.pixels + p, lanes)

    def of_block(self, k: Kernel, buf: Buf, channels: int, size: Pair) -> Pixels:
        """Elements of images in blocks, so many channels of so many pixels."""
        plane = size[0] * size[1] * self.side
        return lambda block, channel, at, lanes: k.load(buf, (block * channels + channel) * plane + at, lanes)

    def lines(self, read: Pixels, channels: int) -> Callable[[Value, Value, Value, int], Expr]:
        """Elements along the pixels of all images, of a group's channel."""

        def along(group: Value, channel: Value, at: Value, lanes: int) -> Expr:
            image, pixel = tir.floordiv(at, self.pixels), tir.floormod(at, self.pixels)
            return tir.cast(read(image, group * channels + channel, pixel, lanes), self.dtype)

        return along


class _ToPixels(_Points):
    """Results are pixels."""

    transposed: bool  # are input channels made, and output channels summed over?

    def _gemm(self) -> tuple[tuple[int, int, int, int], tuple[OperandKind, OperandKind]]:
        made, reduced = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        # Else a column's elements share few cache sets: packed.
        apart = self.pixels * DTYPES[self.dtype].nbytes % PAGE != 0
        kinds = (OperandKind("i" if self.transposed else "j", self.dtype), OperandKind("j", self.dtype, plain=apart))
        return (self.conv.groups, made, self.images * self.pixels, reduced), kinds

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        _, made, _, reduced = self.extents

        def weights(group: Value, i: Value, j: Value, lanes: int) -> Expr:
            o, c = (j, i) if self.transposed else (i, j)
            return tir.cast(w(group * self.outputs + o, c, lanes), self.dtype)

        columns = self.lines(read, reduced)

        def finished(group: Expr, i: Expr, j: Expr, value: Expr) -> None:
            image, pixel = (k.bind(part(j, self.pixels)) for part in (tir.floordiv, tir.floormod))
            write(image, k.bind(group * made + i, "channel"), pixel, value)

        self.multiply(k, Operand(weights, self.kinds[0]), Operand(columns, self.kinds[1]), finished, workspace)

    def emit_in_blocks(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Write the loops for images that lie in blocks, and shall."""
        conv = self.conv
        sides = ((conv.h, conv.w), conv.out)
        (_, width), source = sides if self.transposed else sides[::-1]

        def write_pixels(block: Expr, channel: Expr, at: Expr, value: Expr) -> None:
            pixel = k.bind(tir.floordiv(at, self.side), "pixel")
            row, column = (k.bind(part(pixel, width)) for part in (tir.floordiv, tir.floormod))
            write(block, channel, row, column, value)

        read = self.of_block(k, images, conv.o if self.transposed else conv.c, source)
        self.emit(k, read, w, write_pixels, workspace)


class Forward(_ToPixels):
    """y from x and w."""

    transposed = False

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        super().emit(k, self.met(k, read, workspace), w, write, workspace)


class DataGrad(_ToPixels):
    """The gradient of x from that of y; with a stride the product is a copy of its own, from which it is spread."""

    transposed = True

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        if not self._copied:
            super().emit(k, read, w, write, workspace)
            return
        space = self.slots(k, workspace)

        def keep(image: Expr, channel: Expr, pixel: Expr, value: Expr) -> None:
            k.store(space, value, (image * self.conv.c + channel) * self.pixels + pixel)

        super().emit(k, read, w, keep, workspace)
        self._spread_out(k, space, write)

    def _spread_out(self, k: Kernel, space: Buf, write: WritePixels) -> None:
        """Hand on the copy's pixels, zeros between them."""
        conv, (down, across), side = self.conv, self.conv.stride, self.side
        whole = max(1, self.lanes // across) * across  # columns that begin with one of the copy's

        def unit(_: Expr, unit: Expr) -> None:
            image, channel = k.bind(tir.floordiv(unit, conv.c), "image"), k.bind(tir.floormod(unit, conv.c), "channel")

            def line(row: Expr, source: Expr | None) -> None:
                def vector(column: Value, lanes: int) -> None:
                    value = zero = tir.splat(tir.const(0, self.dtype), lanes)
                    if source is not None:
                        count = mk.ceildiv(lanes, across)
                        near = k.bind(k.load(space, source + tir.floordiv(column, across), count), "near")
                        order = [i // across if i % across == 0 else count for i in range(lanes)]
                        value = k.bind(tir.shuffle([near, zero], order), "value")
                    write(image, channel, k.bind(row * conv.w + column, "pixel"), value)

                if not conv.blocks:
                    mk.for_vectors(k, conv.w, whole, vector)
                    return
                with k.loop(conv.w, name="column") as column:
                    value = zero = mk.zeros(self.dtype, side)
                    if source is not None:
                        near = k.load(space, source + tir.floordiv(column, across) * side, side)
                        met = tir.compare("equal", tir.floormod(column, across), tir.index(0))
                        value = tir.select(met, near, zero)
                    write(image, channel, k.bind((row * conv.w + column) * side, "at"), value)

            with k.loop(conv.out[0], name="row") as row:
                line(k.bind(row * down, "row"), k.bind(unit * self.pixels + row * (conv.out[1] * side), "source"))
                with k.loop(tir.minimum(down - 1, conv.h - 1 - row * down), name="below") as below:
                    line(k.bind(row * down + 1 + below, "row"), None)

        self.spread(k, self.images * conv.c, unit)


class WeightGrad(_Points):
    """The gradient of w: sums over the pixels of all images, along which both operands lie."""

    def _gemm(self) -> tuple[tuple[int, int, int, int], tuple[OperandKind, OperandKind]]:
        kinds = (OperandKind("j", self.dtype), OperandKind("i", self.dtype))
        return (self.conv.groups, self.outputs, self.inputs, self.images * self.pixels), kinds

    def _strategy(self) -> Strategy:
        """In passes over pixels, so that the transposed panels of x lie in the first cache."""
        strategy = super()._strategy()
        whole = strategy.form == "inner" or self.extents[3] < LONG
        return strategy if whole or strategy.depth else replace(strategy, depth=DEPTH)

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Write the loops."""
        left, right = self.lines(g, self.outputs), self.lines(self.met(k, x, workspace), self.inputs)

        def finished(group: Expr, i: Expr, j: Expr, value: Expr) -> None:
            write(k.bind(group * self.outputs + i, "o"), j, value)

        transposed = Operand(lambda group, at, c, lanes: right(group, c, at, lanes), self.kinds[1])
        self.multiply(k, Operand(left, self.kinds[0]), transposed, finished, workspace)

    def emit_in_blocks(self, k: Kernel, xs: Buf, gs: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Write the loops for images that lie in blocks."""
        conv = self.conv
        x, g = self.of_block(k, xs, conv.c, (conv.h, conv.w)), self.of_block(k, gs, conv.o, conv.out)
        self.emit(k, x, g, write, workspace)
