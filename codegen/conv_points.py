"""Convolutions of one tap, with no stride and no edge, as matrix products: nothing is copied or turned.

All pixels of all images are columns: the weights times x are y, and turned around, times the gradient of y, that of x.
"""

from __future__ import annotations

from gluongraph.codegen import gemm, tir
from gluongraph.codegen import microkernel as mk
from gluongraph.codegen.gemm import Kind, Operand
from gluongraph.codegen.images import Conv, Job, Pixels, Weights, WritePixels
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

PAGE = 4096  # bytes


def suits(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Is this such a convolution, and do vectors of pixels end where images do?"""
    pixels, lanes = conv.h * conv.w, mk.lanes(cpu, dtype)
    one = conv.kernel == conv.stride == (1, 1) and conv.padding == (0, 0)
    return one and lanes > 1 and pixels % lanes == 0


class _ToPixels(Job):
    """What both have in common."""

    turned: bool  # are input channels made, and output channels summed over?

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.pixels = conv.h * conv.w
        self.made, self.reduced = (self.inputs, self.outputs) if self.turned else (self.outputs, self.inputs)
        self.extents = (conv.groups, self.made, conv.n * self.pixels, self.reduced)
        apart = self.pixels * DTYPES[dtype].nbytes % PAGE != 0  # else a column's elements share few cache sets: packed
        self.kinds = (Kind("i" if self.turned else "j", dtype), Kind("j", dtype, plain=apart))

    @property
    def workspace(self) -> int:
        """Bytes; a few where the product needs none, since every convolution is given some."""
        return max(gemm.workspace(*self.extents, *self.kinds, self.cpu), 64)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""

        def weights(group: Value, i: Value, j: Value, lanes: int) -> Expr:
            o, c = (j, i) if self.turned else (i, j)
            return tir.cast(w(group * self.outputs + o, c, lanes), self.dtype)

        def columns(group: Value, c: Value, j: Value, lanes: int) -> Expr:
            image, pixel = tir.floordiv(j, self.pixels), tir.floormod(j, self.pixels)
            return tir.cast(read(image, group * self.reduced + c, pixel, lanes), self.dtype)

        def finished(group: Expr, i: Expr, j: Expr, value: Expr) -> None:
            image, pixel = (k.bind(part(j, self.pixels)) for part in (tir.floordiv, tir.floormod))
            write(image, k.bind(group * self.made + i, "channel"), pixel, value)

        batch, m, n, kk = self.extents
        a, b = Operand(weights, self.kinds[0]), Operand(columns, self.kinds[1])
        gemm.emit(k, batch=batch, m=m, n=n, kk=kk, a=a, b=b, write=finished, cpu=self.cpu, workspace=workspace)


class Forward(_ToPixels):
    """y from x and w."""

    turned = False


class DataGrad(_ToPixels):
    """The gradient of x from that of y."""

    turned = True
