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

FEW = 2048  # pixels, up to which packing weights to vectors of channels (conv_direct_nchwc.py) costs more than it saves


def is_profitable(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Do bands fill a vector, and are there few pixels? With a stride fewer taps read each pixel."""
    pixels = conv.n * conv.out[0] * conv.out[1] * (conv.stride[0] * conv.stride[1]) ** 2
    return is_supported(op, conv, cpu, dtype) and pixels <= FEW


def is_supported(op: str, conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Can images be cut into equal bands that fill a vector?"""
    lanes, bands = mk.lanes(cpu, dtype), _bands_per_image(conv, cpu, dtype)
    rows, step = (conv.h, conv.stride[0]) if op == "conv2d_data_grad" else (conv.out[0], 1)
    return op != "conv2d_weight_grad" and bands > 1 and conv.n * bands == lanes and rows % (bands * step) == 0


def _bands_per_image(conv: Conv, cpu: Cpu, dtype: str) -> int:
    """Return the number of bands of an image."""
    return mk.lanes(cpu, dtype) // conv.n


@dataclass(frozen=True)
class Bands:
    """How images are cut: each of `bands` bands has `rows_of_band` rows of the result; the b-th reads rows of the
    source from b * step - above on. Rows outside of the source are zero."""

    bands: int
    rows_of_band: int
    step: int
    above: int
    source: Pair  # rows and columns
    columns: int  # of the result

    def reader(self, k: Kernel, read: Pixels) -> Pixels:
        """Return a function that reads pixels of bands, along a row, from images."""
        height, width = self.source

        def along(band: Value, channel: Value, pixel: Value, lanes: int) -> Expr:
            image, index = tir.floordiv(band, self.bands), tir.floormod(band, self.bands)
            row = k.bind(index * self.step + tir.floordiv(pixel, width) - self.above, "row")
            inside = tir.minimum(tir.maximum(row, 0), height - 1)
            value = read(image, channel, inside * width + tir.floormod(pixel, width), lanes)
            value = tir.cast(value, mk.accumulator(tir.dtype_of(value)))  # TVM cannot select between vectors of bf16
            return tir.select(tir.compare("equal", inside, row), value, mk.zeros(tir.dtype_of(value), lanes))

        return along

    def writer(self, k: Kernel, write: WritePixels) -> WritePixels:
        """Return a function that stores pixels of bands in images."""

        def along(band: Expr, channel: Expr, pixel: Expr, value: Expr) -> None:
            image, index = k.bind(tir.floordiv(band, self.bands), "image"), tir.floormod(band, self.bands)
            write(image, channel, k.bind(index * (self.rows_of_band * self.columns) + pixel, "pixel"), value)

        return along


class Forward(conv_direct_nchwn.Forward):
    """y from x and w."""

    by_rows = True

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        bands = _bands_per_image(conv, cpu, dtype)
        rows_of_band, stride = conv.out[0] // bands, conv.stride[0]
        reach = (rows_of_band - 1) * stride + (conv.kernel[0] - 1) * conv.dilation[0] + 1
        self.bands = Bands(bands, rows_of_band, rows_of_band * stride, conv.padding[0], (conv.h, conv.w), conv.out[1])
        super().__init__(replace(conv, n=conv.n * bands, h=reach, padding=(0, conv.padding[1])), cpu, dtype)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        super().emit(k, self.bands.reader(k, read), w, self.bands.writer(k, write), workspace)


class DataGrad(conv_direct_nchwn.DataGrad):
    """The gradient of x from that of y. The padding of a band includes the rows of y that it reads above itself."""

    by_rows = True

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        bands, stride, padding = _bands_per_image(conv, cpu, dtype), conv.stride[0], conv.padding[0]
        rows_of_band = conv.h // bands
        above = mk.ceildiv(max(0, (conv.kernel[0] - 1) * conv.dilation[0] - padding), stride)
        self.bands = Bands(bands, rows_of_band, rows_of_band // stride, above, conv.out, conv.w)
        inner = replace(conv, n=conv.n * bands, h=rows_of_band, padding=(padding + above * stride, conv.padding[1]))
        super().__init__(inner, cpu, dtype)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        super().emit(k, self.bands.reader(k, read), w, self.bands.writer(k, write), workspace)
