"""Convolutions of fewer images than a vector has lanes, by the kernels for many images (conv_direct_nchwn.py).

An image is cut into horizontal bands of rows. Each band is packed as an image of its own, with the rows above and below
that its taps read. Nothing else is copied: the weights, which are many where pixels are few, are read in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gluongraph.codegen.contraction import conv_direct_nchwn
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Pair, Pixels, Weights, WritePixels
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

FEW = 2048  # pixels: to turn weights to vectors of channels (conv_direct_nchwc.py) costs more, for so many


def is_profitable(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Can images be cut so that bands fill a vector, and are pixels few? A stride has each read for fewer taps."""
    pixels = conv.n * conv.out[0] * conv.out[1] * (conv.stride[0] * conv.stride[1]) ** 2
    return is_supported(op, conv, cpu, dtype) and pixels <= FEW


def is_supported(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Can images be cut so that bands fill a vector?"""
    lanes, number = mk.lanes(cpu, dtype), _number(conv, cpu, dtype)
    rows, step = (conv.h, conv.stride[0]) if op == "conv2d_data_grad" else (conv.out[0], 1)
    return op != "conv2d_weight_grad" and number > 1 and conv.n * number == lanes and rows % (number * step) == 0


def _number(conv: Conv, cpu: Cpu, dtype: str) -> int:
    """Bands of an image."""
    return mk.lanes(cpu, dtype) // conv.n


@dataclass(frozen=True)
class Bands:
    """How images are cut: the b-th band of `number` is `made` rows of the result, and reads rows of the source from
    b * step - above on. Those outside of it are zeros."""

    number: int
    made: int
    step: int
    above: int
    source: Pair  # rows and columns
    columns: int  # of the result

    def reader(self, k: Kernel, read: Pixels) -> Pixels:
        """The pixels of bands, along a row."""
        height, width = self.source

        def along(band: Value, channel: Value, pixel: Value, lanes: int) -> Expr:
            image, number = tir.floordiv(band, self.number), tir.floormod(band, self.number)
            row = k.bind(number * self.step + tir.floordiv(pixel, width) - self.above, "row")
            inside = tir.minimum(tir.maximum(row, 0), height - 1)
            value = read(image, channel, inside * width + tir.floormod(pixel, width), lanes)
            value = tir.cast(value, mk.accumulator(tir.dtype_of(value)))  # TVM makes no choice between vectors of bf16
            return tir.select(tir.compare("equal", inside, row), value, mk.zeros(tir.dtype_of(value), lanes))

        return along

    def writer(self, k: Kernel, write: WritePixels) -> WritePixels:
        """Takes pixels of bands."""

        def along(band: Expr, channel: Expr, pixel: Expr, value: Expr) -> None:
            image, number = k.bind(tir.floordiv(band, self.number), "image"), tir.floormod(band, self.number)
            write(image, channel, k.bind(number * (self.made * self.columns) + pixel, "pixel"), value)

        return along


class Forward(conv_direct_nchwn.Forward):
    """y from x and w."""

    by_rows = True

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        number = _number(conv, cpu, dtype)
        made, stride = conv.out[0] // number, conv.stride[0]
        reach = (made - 1) * stride + (conv.kernel[0] - 1) * conv.dilation[0] + 1
        self.bands = Bands(number, made, made * stride, conv.padding[0], (conv.h, conv.w), conv.out[1])
        super().__init__(replace(conv, n=conv.n * number, h=reach, padding=(0, conv.padding[1])), cpu, dtype)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        super().emit(k, self.bands.reader(k, read), w, self.bands.writer(k, write), workspace)


class DataGrad(conv_direct_nchwn.DataGrad):
    """The gradient of x from that of y. A band has as many rows of padding more as the rows of y are above it."""

    by_rows = True

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        number, stride, padding = _number(conv, cpu, dtype), conv.stride[0], conv.padding[0]
        made = conv.h // number
        above = mk.ceildiv(max(0, (conv.kernel[0] - 1) * conv.dilation[0] - padding), stride)
        self.bands = Bands(number, made, made // stride, above, conv.out, conv.w)
        inner = replace(conv, n=conv.n * number, h=made, padding=(padding + above * stride, conv.padding[1]))
        super().__init__(inner, cpu, dtype)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        super().emit(k, self.bands.reader(k, read), w, self.bands.writer(k, write), workspace)
