"""Views: movement that copies nothing, as an offset and strides.

A kernel that reads by strides can read a value from its source, and one that writes by strides can store to its
destination.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gluongraph.ir.graph import Node

READ = frozenset({"reshape", "transpose", "slice", "expand"})  # ops whose result is often a view of their source
WRITTEN = frozenset({"reshape", "transpose", "concat", "cast"})  # ops whose sources can be views of the result


@dataclass(frozen=True)
class View:
    """Element (i, j, ...) is at start + i * strides[0] + j * strides[1] + ..., in elements.

    >>> View.of((2, 3, 4)).transposed((1, 0, 2)).strides
    (4, 12, 1)
    >>> View.of((2, 12)).reshaped((2, 3, 4)).strides
    (12, 4, 1)
    >>> View.of((2, 3)).transposed((1, 0)).reshaped((6,)) is None
    True
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> View:
        """Return the view of a contiguous array."""
        return cls(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))

    @property
    def in_rows(self) -> bool:
        """Are elements contiguous along the last axis?"""
        return self.shape[-1:] == (1,) or self.strides[-1:] == (1,)

    def transposed(self, axes: tuple[int, ...]) -> View:
        """Return the view with permuted axes."""
        return View(tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes), self.start)

    def sliced(self, shape: tuple[int, ...], begin: tuple[int, ...], steps: tuple[int, ...]) -> View:
        """Return a slice: `shape` elements along each axis from `begin` on, by strides."""
        start = self.start + sum(b * stride for b, stride in zip(begin, self.strides, strict=True))
        return View(shape, tuple(step * stride for step, stride in zip(steps, self.strides, strict=True)), start)

    def expanded(self, shape: tuple[int, ...]) -> View:
        """Return the view with axes of size 1 repeated."""
        pairs = zip(self.shape, shape, self.strides, strict=True)
        return View(shape, tuple(stride if old == new else 0 for old, new, stride in pairs), self.start)

    def reshaped(self, shape: tuple[int, ...]) -> View | None:
        """Return the view with another shape; None if the elements are not evenly spaced along its axes."""
        runs: list[tuple[int, int]] = []  # merged axes: number of elements, stride
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if runs and runs[-1][1] == extent * stride:
                runs[-1] = runs[-1][0] * extent, stride
            elif extent != 1:
                runs.append((extent, stride))
        strides: list[int] = []
        left, stride = 1, 1
        for extent in reversed(shape):
            if extent > 1 and left == 1 and runs:
                left, stride = runs.pop()
            if extent == 0 or left % extent:
                return None
            strides.append(stride)
            left, stride = left // extent, stride * extent
        return View(shape, tuple(reversed(strides)), self.start)

    def after(self, n: Node) -> View | None:
        """Return the view of n, a node of READ whose source has this view."""
        match n.op.name:
            case "reshape":
                return self.reshaped(n.shape)
            case "transpose":
                return self.transposed(n.attrs["axes"])
            case "slice":
                return self.sliced(n.shape, n.attrs["begin"], n.attrs["strides"])
            case _:
                return self.expanded(n.shape)

    def before(self, n: Node, number: int) -> View | None:
        """Return the view of a source of n, a node of WRITTEN that has this view."""
        source = n.src[number].shape
        match n.op.name:
            case "reshape":
                return self.reshaped(source)
            case "transpose":
                axes = n.attrs["axes"]
                return self.transposed(tuple(axes.index(a) for a in range(len(axes))))
            case "concat":
                axis = n.attrs["axis"]
                first = sum(s.shape[axis] for s in n.src[:number])
                begin = tuple(first if a == axis else 0 for a in range(len(source)))
                return self.sliced(source, begin, (1,) * len(source))
            case _:
                return self


def read(n: Node) -> tuple[list[Node], View]:
    """The movement through which n can be read in rows, n first, and how n lies in what it begins with: the source of
    the last of these nodes, or n itself where there are none."""
    path: list[Node] = []
    view, s = View.of(n.shape), n
    while s.op.name in READ and (longer := _within([*path, s])) is not None and longer.in_rows:
        path.append(s)
        view, (s,) = longer, s.src
    return path, view


def _within(path: list[Node]) -> View | None:
    """Return the view of the first node of a path of movement in the source of the last."""
    view: View | None = View.of(path[-1].src[0].shape)
    for n in reversed(path):
        view = view.after(n) if view is not None else None
    return view


def written(n: Node) -> dict[Node, View] | None:
    """Where the values that n is moved together from have to lie, in rows, so that n lies by itself; None where that
    cannot be."""
    found: dict[Node, View] = {}
    stack = [(n, View.of(n.shape))]
    while stack:
        each, view = stack.pop()
        if each.op.name not in WRITTEN:
            if each in found or not view.in_rows:
                return None
            found[each] = view
            continue
        for i, s in enumerate(each.src):
            if (inner := view.before(each, i)) is None:
                return None
            stack.append((s, inner))
    return found
