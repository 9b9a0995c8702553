"""The NCHWn layout of activations: [block of images][channel][pixel][image of the block].

A vector holds one pixel of as many images as there are lanes, so that every lane is used at any width, stride or
dilation. Activations are in this layout in memory (`Conv.blocks`), or each kernel packs what it reads and unpacks what
it writes. Pixels are counted row by row, p = h * W + w, and so are the weights of one output channel,
q = (c * KH + kh) * KW + kw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value

Pixels = Callable[[Value, Value, Value, int], Expr]  # (image, channel, pixel, lanes) -> values along the pixels
Weights = Callable[[Value, Value, int], Expr]  # (output channel, q, lanes) -> values along q
WritePixels = Callable[[Expr, Expr, Expr, Expr], None]  # (image, channel, pixel, values along the pixels)
WriteImages = Callable[[Expr, Expr, Expr, Expr, Expr], None]  # (block, channel, row, column, values of its images)
WriteWeights = Callable[[Expr, Expr, Expr], None]  # (output channel, q, values along q)
Pair = tuple[int, int]


@dataclass(frozen=True)
class Conv:
    """The shapes of a convolution: n images of c channels, h x w pixels, o output channels; `blocks`: in NCHWn."""

    n: int
    c: int
    h: int
    w: int
    o: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    blocks: bool = False

    @property
    def out(self) -> Pair:
        """Rows and columns of the result."""
        sizes = zip((self.h, self.w), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes)
        return height, width

    @property
    def q(self) -> int:
        """The number of weights of one output channel."""
        return self.c // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.n * self.o * self.q * self.out[0] * self.out[1]


class Job(ABC):
    """Emits a convolution or a gradient of one."""

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        self.conv, self.cpu, self.dtype = conv, cpu, dtype
        self.lanes = mk.lanes(cpu, dtype)
        self.serial = conv.work < mk.SERIAL_WORK
        self.inputs, self.outputs = conv.c // conv.groups, conv.o // conv.groups  # channels of a group

    @property
    @abstractmethod
    def workspace(self) -> int:
        """Bytes of workspace."""

    def num_chunks(self, units: int) -> int:
        """Return into how many parallel chunks `units` units of the work are split."""
        return 1 if self.serial else mk.num_chunks(units, self.cpu)

    def for_units(self, k: Kernel, units: int, body: Callable[[Expr, Expr], None]) -> None:
        """Emit body(chunk, unit) for every unit, in parallel chunks."""
        mk.parallel_chunks(k, units, self.num_chunks(units), body)

    def slots(self, k: Kernel, workspace: Buf | None) -> Buf:
        """Return the workspace as elements of the sums' dtype."""
        return mk.workspace(k, workspace, self.dtype, self.workspace)


def plane(conv: Conv, size: Pair) -> int:
    """Return the vectors from one channel of a block to the next; odd in packed copies, else the same pixel of all
    channels would share few cache sets."""
    pixels = size[0] * size[1]
    return pixels if conv.blocks else pixels | 1


def pack_blocked(
    k: Kernel, job: Job, read: Pixels, channels: int, size: Pair, into: Buf, by_rows: bool = False
) -> None:
    """Pack the job's images, `channels` of `size` pixels, to [block][channel][pixel][image of the block], zero-padded
    behind the last image. If `by_rows`, a vector read from the source does not cross the end of a row."""
    images, pixels, side, dtype = job.conv.n, size[0] * size[1], job.lanes, job.dtype

    def unit(_: Expr, unit: Expr) -> None:
        block, channel = k.bind(tir.floordiv(unit, channels), "block"), k.bind(tir.floormod(unit, channels), "channel")
        numbers: list[Expr] = [block * side + lane for lane in range(side)]
        if images % side:
            numbers = [k.bind(tir.minimum(number, images - 1), "image") for number in numbers]

        def square(pixel: Value, width: int) -> None:
            rows = [mk.padded(tir.cast(read(number, channel, pixel, width), dtype), side) for number in numbers]
            zero = tir.splat(tir.const(0, dtype), side)
            for lane in range(images % side, side) if images % side else ():
                rows[lane] = tir.select(block * side + lane < images, rows[lane], zero)
            at = k.bind((unit * plane(job.conv, size) + pixel) * side, "at")
            for i, column in enumerate(mk.transposed(k, [k.bind(row, "t") for row in rows])[:width]):
                k.store(into, column, at + i * side)

        if not by_rows:
            mk.for_vectors(k, pixels, side, square)
            return
        with k.loop(size[0], name="row") as row:
            start = k.bind(row * size[1], "start")
            mk.for_vectors(k, size[1], side, lambda column, width: square(start + column, width))

    job.for_units(k, mk.ceildiv(images, side) * channels, unit)


@contextmanager
def channel_step(
    k: Kernel, groups: int, of_group: int, step: int, first: Value, count: Value
) -> Iterator[tuple[Expr, Expr, Value]]:
    """A loop over blocks of `step` channels, numbered through all groups: (group, first channel of it, channels)."""
    steps = mk.ceildiv(of_group, step)
    with k.loop(count, name="step") as s:
        at = k.bind(tir.index(first + s), "step")
        group = tir.index(0)
        if groups > 1:
            group = k.bind(tir.floordiv(at, steps), "group")
            at = k.bind(tir.floormod(at, steps), "step")
        start = k.bind(at * step, "channel")
        even = of_group % step == 0
        yield group, start, step if even else k.bind(tir.minimum(of_group - start, step), "channels")


def sizes(k: Kernel, number: Value, full: int, extent: int) -> Iterator[int]:
    """Iterate over the values that a number of channels may have, `full` or the rest of the extent; the code emitted
    for each is guarded by the condition that the number has that value."""
    if isinstance(number, int):
        yield number
        return
    for size in (full, extent % full):
        if size <= extent:
            with k.when(tir.compare("equal", number, tir.index(size))):
                yield size
