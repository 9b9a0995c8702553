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
FEW = 128  # rows of the GEMM
LONG, DEPTH = 1024, 256  # pixels from which the gradient of the weights is summed in passes, and pixels of a pass


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is the kernel 1x1 without padding, and are the pixels of an image full vectors?"""
    lanes = mk.lanes(cpu, dtype)
    one = conv.kernel == (1, 1) and conv.padding == (0, 0)
    return one and lanes > 1 and (conv.blocks or conv.out[0] * conv.out[1] % lanes == 0)


def is_profitable_blocked(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is the GEMM faster than the direct algorithm in the NCHWn layout? It is if channels are many: a pixel of each is
    on a page of its own, and the GEMM packs them; few of them stay in cache without packing."""
    lanes, summed = mk.lanes(cpu, dtype), conv.o if op == "conv2d_data_grad" else conv.c
    if op == "conv2d_weight_grad":
        return conv.q * conv.o > (8 * lanes) ** 2
    return summed // conv.groups > 4 * lanes


class _Conv1x1(Job):
    """Common parts of the convolution and its gradients: a GEMM whose batch is the groups."""

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
        """Return (batch, m, n, k) of the GEMM, and the kinds of its operands."""

    def _strategy(self) -> Strategy:
        """Return the strategy of the GEMM. If few tiles read a panel of columns, it is packed with all of its terms, in
        blocks that stay near L1."""
        strategy = choose(*self.extents, *self.kinds, self.cpu)
        panel = replace(strategy, depth=0).panel(self.extents[3], self.cpu) * DTYPES[self.dtype].nbytes
        near = 2 * self.cpu.l1 // panel
        if strategy.form == "inner" or self.extents[1] > FEW or strategy.pack_a or not strategy.pack_b or near == 0:
            return strategy
        return replace(strategy, depth=0, block=min(strategy.block, near))

    @property
    def workspace(self) -> int:
        """Bytes; not 0, since the convolution rule expects a workspace of every algorithm."""
        gemm_bytes = self.strategy.workspace(*self.extents, self.cpu)
        return max(self._copied * DTYPES[self.dtype].nbytes + gemm_bytes, 64)

    def multiply(self, k: Kernel, a: Operand, b: Operand, write: gemm.Write, workspace: Buf) -> None:
        """Emit the loops of the GEMM, whose workspace follows the copy."""
        space = self.slots(k, workspace).at(self._copied)
        gemm.emit(k, gemm.Gemm(*self.extents, a, b, write, self.cpu, space), self.strategy)

    def strided_pixels(self, k: Kernel, x: Pixels, workspace: Buf) -> Pixels:
        """Return a reader of the pixels of x that the convolution reads: all of them, or a copy of those at multiples
        of the stride."""
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

        self.for_units(k, self.images * conv.c, unit)
        return lambda image, channel, p, lanes: k.load(space, (image * conv.c + channel) * self.pixels + p, lanes)

    def blocked_reader(self, k: Kernel, buf: Buf, channels: int, size: Pair) -> Pixels:
        """Return a reader of an array in the NCHWn layout, of `channels` channels and `size` pixels."""
        plane = size[0] * size[1] * self.side
        return lambda block, channel, at, lanes: k.load(buf, (block * channels + channel) * plane + at, lanes)

    def pixel_rows(self, read: Pixels, channels: int) -> Callable[[Value, Value, Value, int], Expr]:
        """Return a reader along the pixels of all images, for a group and a channel of it."""

        def along(group: Value, channel: Value, at: Value, lanes: int) -> Expr:
            image, pixel = tir.floordiv(at, self.pixels), tir.floormod(at, self.pixels)
            return tir.cast(read(image, group * channels + channel, pixel, lanes), self.dtype)

        return along


class _ToImages(_Conv1x1):
    """A convolution whose result is images: forward, or the gradient of the data."""

    transposed: bool  # are input channels produced, and output channels summed over?

    def _gemm(self) -> tuple[tuple[int, int, int, int], tuple[OperandKind, OperandKind]]:
        produced, reduced = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        # Rows at multiples of a page: a column's elements would share few cache sets, so it is packed.
        apart = self.pixels * DTYPES[self.dtype].nbytes % PAGE != 0
        kinds = (OperandKind("i" if self.transposed else "j", self.dtype), OperandKind("j", self.dtype, plain=apart))
        return (self.conv.groups, produced, self.images * self.pixels, reduced), kinds

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        _, produced, _, reduced = self.extents

        def weights(group: Value, i: Value, j: Value, lanes: int) -> Expr:
            o, c = (j, i) if self.transposed else (i, j)
            return tir.cast(w(group * self.outputs + o, c, lanes), self.dtype)

        columns = self.pixel_rows(read, reduced)

        def finished(group: Expr, i: Expr, j: Expr, value: Expr) -> None:
            image, pixel = (k.bind(part(j, self.pixels)) for part in (tir.floordiv, tir.floormod))
            write(image, k.bind(group * produced + i, "channel"), pixel, value)

        self.multiply(k, Operand(weights, self.kinds[0]), Operand(columns, self.kinds[1]), finished, workspace)

    def emit_blocked(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Emit the loops for source and result in the NCHWn layout."""
        conv = self.conv
        sides = ((conv.h, conv.w), conv.out)
        (_, width), source = sides if self.transposed else sides[::-1]

        def write_pixels(block: Expr, channel: Expr, at: Expr, value: Expr) -> None:
            pixel = k.bind(tir.floordiv(at, self.side), "pixel")
            row, column = (k.bind(part(pixel, width)) for part in (tir.floordiv, tir.floormod))
            write(block, channel, row, column, value)

        read = self.blocked_reader(k, images, conv.o if self.transposed else conv.c, source)
        self.emit(k, read, w, write_pixels, workspace)


class Forward(_ToImages):
    """y from x and w."""

    transposed = False

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        super().emit(k, self.strided_pixels(k, read, workspace), w, write, workspace)


class DataGrad(_ToImages):
    """The gradient of x from that of y; with a stride the GEMM's result is stored in the workspace, then dilated."""

    transposed = True

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        if not self._copied:
            super().emit(k, read, w, write, workspace)
            return
        space = self.slots(k, workspace)

        def store_copy(image: Expr, channel: Expr, pixel: Expr, value: Expr) -> None:
            k.store(space, value, (image * self.conv.c + channel) * self.pixels + pixel)

        super().emit(k, read, w, store_copy, workspace)
        self._store_dilated(k, space, write)

    def _store_dilated(self, k: Kernel, space: Buf, write: WritePixels) -> None:
        """Store the copy's pixels through the epilogue, with zeros between them."""
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
                        strided_pixels = tir.compare("equal", tir.floormod(column, across), tir.index(0))
                        value = tir.select(strided_pixels, near, zero)
                    write(image, channel, k.bind((row * conv.w + column) * side, "at"), value)

            with k.loop(conv.out[0], name="row") as row:
                line(k.bind(row * down, "row"), k.bind(unit * self.pixels + row * (conv.out[1] * side), "source"))
                with k.loop(tir.minimum(down - 1, conv.h - 1 - row * down), name="below") as below:
                    line(k.bind(row * down + 1 + below, "row"), None)

        self.for_units(k, self.images * conv.c, unit)


class WeightGrad(_Conv1x1):
    """The gradient of w: sums over the pixels of all images, along which both operands are contiguous."""

    def _gemm(self) -> tuple[tuple[int, int, int, int], tuple[OperandKind, OperandKind]]:
        kinds = (OperandKind("j", self.dtype), OperandKind("i", self.dtype))
        return (self.conv.groups, self.outputs, self.inputs, self.images * self.pixels), kinds

    def _strategy(self) -> Strategy:
        """Return a strategy of several passes over the pixels, so that the transposed panels of x stay in L1."""
        strategy = super()._strategy()
        whole = strategy.form == "inner" or self.extents[3] < LONG
        return strategy if whole or strategy.depth else replace(strategy, depth=DEPTH)

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        left, right = (
            self.pixel_rows(g, self.outputs),
            self.pixel_rows(self.strided_pixels(k, x, workspace), self.inputs),
        )

        def finished(group: Expr, i: Expr, j: Expr, value: Expr) -> None:
            write(k.bind(group * self.outputs + i, "o"), j, value)

        transposed = Operand(lambda group, at, c, lanes: right(group, c, at, lanes), self.kinds[1])
        self.multiply(k, Operand(left, self.kinds[0]), transposed, finished, workspace)

    def emit_blocked(self, k: Kernel, xs: Buf, gs: Buf, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops for activations in the NCHWn layout."""
        conv = self.conv
        x, g = self.blocked_reader(k, xs, conv.c, (conv.h, conv.w)), self.blocked_reader(k, gs, conv.o, conv.out)
        self.emit(k, x, g, write, workspace)
