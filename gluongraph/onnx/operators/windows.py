"""What convolution and pooling share: attributes of windows, and where the padding goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.onnx.operators.node_context import NodeContext
from gluongraph.onnx.operators.table import attributes

AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
Ints = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Windows over the axes behind the channels; `before` and `after` is the padding."""

    kernel: Ints
    stride: Ints
    dilation: Ints
    before: Ints
    after: Ints

    @property
    def symmetric(self) -> bool:
        """Is the padding the same on both sides?"""
        return self.before == self.after

    @property
    def reach(self) -> Ints:
        """How many elements a window spans on each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def places(self, size: Sequence[int], ceil: bool) -> Ints:
        """How many windows there are; with `ceil` one more that hangs over, unless it begins in the padding behind."""
        found = []
        for n, r, s, b, a in zip(size, self.reach, self.stride, self.before, self.after, strict=True):
            room = n + b + a - r
            count = -(-room // s) + 1 if ceil else room // s + 1
            if ceil and (count - 1) * s >= n + b:
                count -= 1
            found.append(count)
        return tuple(found)


@attributes
@dataclass(frozen=True)
class Sliding:
    """How windows move over an array, in ONNX's words."""

    auto_pad: str = "NOTSET"
    dilations: Ints | None = None
    pads: Ints | None = None
    strides: Ints | None = None

    def windows(self, at: NodeContext, size: Ints, kernel: Ints | None, ceil: bool = False) -> Windows:
        """Windows over axes of these extents.

        Raises:
            FormatError: there are not as many numbers as axes, or none that can be.
        """
        axes = len(size)
        if kernel is None or axes not in (1, 2, 3):
            raise at.unsupported(f"windows over {axes} axes; there are one, two or three")
        ones = (1,) * axes
        stride, dilation = self.strides or ones, self.dilations or ones
        given = self.pads or (0,) * (2 * axes)
        if any(len(each) != axes for each in (kernel, stride, dilation)) or len(given) != 2 * axes:
            raise at.wrong(f"kernel {kernel}, strides {stride}, dilations {dilation}, pads {given} for {axes} axes")
        if min((*kernel, *stride, *dilation)) < 1 or min(given) < 0:
            raise at.wrong(f"kernel {kernel}, strides {stride}, dilations {dilation}, pads {given}")
        at.choose("auto_pad", self.auto_pad, *AUTO)
        found = Windows(kernel, stride, dilation, given[:axes], given[axes:])
        if self.auto_pad == "VALID":
            found = Windows(kernel, stride, dilation, (0,) * axes, (0,) * axes)
        elif self.auto_pad != "NOTSET":
            total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, stride, found.reach, strict=True)]
            found = Windows(kernel, stride, dilation, *self.split(total))
        if min(found.places(size, ceil)) < 1:
            raise at.wrong(f"a window of {found.reach} is larger than the padded extents {size}")
        return found

    def split(self, total: Sequence[int]) -> tuple[Ints, Ints]:
        """So much padding, before and after; of an odd number SAME_UPPER has more after."""
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (less, more) if self.auto_pad == "SAME_UPPER" else (more, less)


def framed(x: Node, before: Sequence[int], after: Sequence[int], value: float | int = 0) -> Node:
    """The array with elements of one value around the axes behind the channels."""
    if not any((*before, *after)):
        return x
    return ops.pad(x, (0, 0, *before), (0, 0, *after), value)
