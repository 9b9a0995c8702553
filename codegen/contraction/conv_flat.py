"""Convolutions of few images as GEMM over flattened pixels, without im2col.

Each channel is copied into a zero-padded plane. In planes of one width, flattened row by row, the pixels that a tap
reads are the result's pixels shifted by an offset that depends on the tap alone; so a tap's row of the im2col matrix is
a contiguous part of the plane and is read from there. With a stride s, rows and columns are distributed over s planes
in each direction. The columns behind the end of a row are computed and discarded when rows are stored.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from gluongraph.codegen.contraction import gemm
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import Conv, Job, Pair, Pixels, Weights, WritePixels, WriteWeights
from gluongraph.codegen.contraction.gemm import Operand
from gluongraph.codegen.contraction.gemm_strategy import OperandKind
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES


def is_profitable(conv: Conv, cpu: Cpu, dtype: str) -> bool:
    """Are there too few images to fill vectors over images?"""
    return conv.n <= mk.lanes(cpu, dtype) // 4


@dataclass(frozen=True)
class Planes:
    """The layout of a source in planes: pixel (h, w) is at row h * dilated + shift, its column likewise; rows and
    columns are distributed over `stride` planes each, by their remainder. `out` is the size of the result."""

    channels: int  # of all images together
    source: Pair
    out: Pair
    kernel: Pair
    dilation: Pair
    stride: Pair
    dilated: Pair
    shift: Pair

    @property
    def width(self) -> int:
        """Columns of a plane."""
        return self.out[1] + (self.kernel[1] - 1) * self.dilation[1] // self.stride[1]

    @property
    def flat(self) -> int:
        """Flat pixels of the result, with the columns behind the end of a row."""
        return self.out[0] * self.width

    def size(self, lanes: int) -> int:
        """Return the elements of a plane, including those that full vectors read behind its end."""
        rows = self.out[0] + (self.kernel[0] - 1) * self.dilation[0] // self.stride[0]
        return (mk.ceildiv(rows * self.width + self.kernel[1] * self.dilation[1], lanes) + 1) * lanes

    def total(self, lanes: int) -> int:
        """Return the elements of all planes."""
        return self.channels * self.stride[0] * self.stride[1] * self.size(lanes)

    def tap(self, channel: Value, tap: Value, lanes: int) -> Expr:
        """Return the position of the first pixel that a tap reads of a channel."""
        rows, columns = (
            tir.floordiv(tap, self.kernel[1]) * self.dilation[0],
            tir.floormod(tap, self.kernel[1]) * self.dilation[1],
        )
        down, across = self.stride
        plane = (channel * down + tir.floormod(rows, down)) * across + tir.floormod(columns, across)
        return plane * self.size(lanes) + tir.floordiv(rows, down) * self.width + tir.floordiv(columns, across)

    def inside(self, axis: int) -> tuple[int, int]:
        """Return the first and last + 1 of the source rows (columns) that the planes contain."""
        extent = (self.out[axis] - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
        found = [i for i in range(self.source[axis]) if 0 <= i * self.dilated[axis] + self.shift[axis] < extent]
        return (found[0], found[-1] + 1) if found else (0, 0)

    def fill(self, k: Kernel, job: Job, read: Pixels, per_image: int, into: Buf) -> None:
        """Pack the source into zero-initialized planes."""
        lanes = job.lanes
        own = self.stride[0] * self.stride[1] * self.size(lanes)
        (top, bottom), (left, right) = self.inside(0), self.inside(1)

        def unit(_: Expr, channel: Expr) -> None:
            base = k.bind(channel * own, "base")
            with k.loop(own // lanes, name="zero") as i:
                k.store(into, tir.splat(tir.const(0, into.dtype), lanes), base + i * lanes)
            image, of_image = tir.floordiv(channel, per_image), tir.floormod(channel, per_image)

            def copy(h: Expr, w: Expr, width: int) -> None:
                row, column = h * self.dilated[0] + self.shift[0], w * self.dilated[1] + self.shift[1]
                (down, across), size = self.stride, self.size(lanes)
                plane = tir.floormod(row, down) * across + tir.floormod(column, across)
                at = plane * size + tir.floordiv(row, down) * self.width + tir.floordiv(column, across)
                value = tir.cast(read(image, of_image, h * self.source[1] + w, width), into.dtype)
                k.store(into, value, base + at)

            step = lanes if self.dilated[1] == self.stride[1] == 1 else 1
            with k.loop(bottom - top, name="h") as h:
                row = k.bind(h + top, "row")
                for first, width, count in mk.split(right - left, step):
                    with k.loop(count, name="w") as w:
                        copy(row, k.bind(w * width + (left + first), "w"), width)

        if bottom > top and right > left:
            job.for_units(k, self.channels, unit)
        else:  # nothing of the source is ever read
            with k.loop(self.total(lanes) // lanes, name="zero") as i:
                k.store(into, tir.splat(tir.const(0, into.dtype), lanes), i * lanes)


class _Flat(Job):
    """Common parts of the convolution and its gradients."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.taps = conv.kernel[0] * conv.kernel[1]

    def _forward_planes(self) -> Planes:
        conv = self.conv
        size = (conv.h, conv.w)
        return Planes(conv.n * conv.c, size, conv.out, conv.kernel, conv.dilation, conv.stride, (1, 1), conv.padding)

    def _bytes(self, elements: int) -> int:
        return elements * DTYPES[self.dtype].nbytes


class _ToImages(_Flat):
    """A convolution whose result is images: weights times planes; then rows are stored without the columns behind their
    ends."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.planes, self.produced, self.reduced = self._sides()
        self.extents = (conv.n * conv.groups, self.produced, self.planes.flat, self.reduced * self.taps)
        self.exact = self.planes.width == self.planes.out[1]  # no columns behind the rows
        self._result = 0 if self.exact else conv.n * conv.groups * self.produced * self.planes.flat
        kind = OperandKind("j", dtype)
        self._gemm_bytes = gemm.workspace(*self.extents, kind, kind, cpu)

    @property
    def workspace(self) -> int:
        """Bytes."""
        return self._bytes(self.planes.total(self.lanes) + self._result) + self._gemm_bytes

    @abstractmethod
    def _sides(self) -> tuple[Planes, int, int]:
        """Return the planes of the source, and the channels of a group that are produced, and summed over."""

    @abstractmethod
    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        """Return (output channel, q) of the weight between two channels of a group."""

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        conv, planes = self.conv, self.planes
        space = self.slots(k, workspace)
        planes.fill(k, self, read, conv.groups * self.reduced, space)
        flat = space.at(planes.total(self.lanes))

        def weights(batch: Value, i: Value, q: Value, _: int) -> Expr:
            o, at = self.weight(
                tir.floormod(batch, conv.groups), i, tir.floordiv(q, self.taps), tir.floormod(q, self.taps)
            )
            return w(o, at, 1)

        def pixels(batch: Value, q: Value, f: Value, lanes: int) -> Expr:
            channel = batch * self.reduced + tir.floordiv(q, self.taps)
            return k.load(space, planes.tap(channel, tir.floormod(q, self.taps), self.lanes) + f, lanes)

        def finished(batch: Expr, i: Expr, f: Expr, value: Expr) -> None:
            if self.exact:
                channel = tir.floormod(batch, conv.groups) * self.produced + i
                write(tir.floordiv(batch, conv.groups), channel, f, value)
            else:
                k.store(flat, value, (batch * self.produced + i) * planes.flat + f)

        kind, behind = OperandKind("j", self.dtype), flat.at(self._result)
        operation = gemm.Gemm(*self.extents, Operand(weights, kind), Operand(pixels, kind), finished, self.cpu, behind)
        gemm.emit(k, operation)
        if not self.exact:
            self._store_epilogue(k, flat, write)

    def _store_epilogue(self, k: Kernel, flat: Buf, write: WritePixels) -> None:
        planes, channels = self.planes, self.conv.groups * self.produced

        def unit(_: Expr, plane: Expr) -> None:
            image = k.bind(tir.floordiv(plane, channels), "image")
            channel = k.bind(tir.floormod(plane, channels), "channel")
            with k.loop(planes.out[0], name="h") as h:

                def part(w: Value, width: int) -> None:
                    value = k.bind(k.load(flat, plane * planes.flat + h * planes.width + w, width), "value")
                    write(image, channel, k.bind(h * planes.out[1] + w, "pixel"), value)

                mk.for_vectors(k, planes.out[1], self.lanes, part)

        self.for_units(k, self.conv.n * channels, unit)


class Forward(_ToImages):
    """y from x and w."""

    def _sides(self) -> tuple[Planes, int, int]:
        return self._forward_planes(), self.outputs, self.inputs

    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.produced + produced, reduced * self.taps + tap


class DataGrad(_ToImages):
    """The gradient of x: a convolution of the gradient of y, dilated by the stride, with the kernel rotated by 180
    degrees."""

    def _sides(self) -> tuple[Planes, int, int]:
        conv = self.conv
        reach = [(k - 1) * d - p for k, d, p in zip(conv.kernel, conv.dilation, conv.padding, strict=True)]
        planes = Planes(
            conv.n * conv.o,
            conv.out,
            (conv.h, conv.w),
            conv.kernel,
            conv.dilation,
            (1, 1),
            conv.stride,
            (reach[0], reach[1]),
        )
        return planes, self.inputs, self.outputs

    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.reduced + reduced, produced * self.taps + (self.taps - 1 - tap)


class WeightGrad(_Flat):
    """The gradient of w: a GEMM of the gradient of y, zero-padded behind its rows, with the shifted planes of all
    taps."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.planes = self._forward_planes()
        self.long = mk.ceildiv(self.planes.flat, self.lanes) * self.lanes  # flat pixels of an image, in whole vectors
        self.extents = (conv.groups, self.outputs, conv.q, conv.n * self.long)
        self._result = conv.n * conv.o * self.long
        self._gemm_bytes = gemm.workspace(*self.extents, OperandKind("j", dtype), OperandKind("i", dtype), cpu)

    @property
    def workspace(self) -> int:
        """Bytes."""
        return self._bytes(self.planes.total(self.lanes) + self._result) + self._gemm_bytes

    def emit(self, k: Kernel, x: Pixels, g: Pixels, write: WriteWeights, workspace: Buf) -> None:
        """Emit the loops."""
        conv, planes = self.conv, self.planes
        space = self.slots(k, workspace)
        planes.fill(k, self, x, conv.c, space)
        flat = space.at(planes.total(self.lanes))
        self._pack_gradient(k, g, flat)

        def gradient(group: Value, i: Value, at: Value, lanes: int) -> Expr:
            return k.load(flat, (group * self.outputs + i) * (conv.n * self.long) + at, lanes)

        def stretch(group: Value, at: Value, q: Value, lanes: int) -> Expr:
            channel = tir.floordiv(at, self.long) * conv.c + group * self.inputs + tir.floordiv(q, self.taps)
            start = planes.tap(channel, tir.floormod(q, self.taps), self.lanes)
            return k.load(space, start + tir.floormod(at, self.long), lanes)

        def finished(group: Expr, i: Expr, q: Expr, value: Expr) -> None:
            write(group * self.outputs + i, q, value)

        left, right = Operand(gradient, OperandKind("j", self.dtype)), Operand(stretch, OperandKind("i", self.dtype))
        gemm.emit(k, gemm.Gemm(*self.extents, left, right, finished, self.cpu, flat.at(self._result)))

    def _pack_gradient(self, k: Kernel, g: Pixels, flat: Buf) -> None:
        """Pack the gradient of y to [channel][image][flat pixel], zero-padded behind its rows."""
        conv, planes = self.conv, self.planes

        def unit(_: Expr, unit: Expr) -> None:
            channel, image = k.bind(tir.floordiv(unit, conv.n), "channel"), k.bind(tir.floormod(unit, conv.n), "image")
            base = k.bind(unit * self.long, "base")
            with k.loop(self.long // self.lanes, name="zero") as i:
                k.store(flat, tir.splat(tir.const(0, self.dtype), self.lanes), base + i * self.lanes)
            with k.loop(planes.out[0], name="h") as h:

                def part(w: Value, width: int) -> None:
                    value = tir.cast(g(image, channel, h * planes.out[1] + w, width), self.dtype)
                    k.store(flat, value, base + h * planes.width + w)

                mk.for_vectors(k, planes.out[1], self.lanes, part)

        self.for_units(k, conv.o * conv.n, unit)
