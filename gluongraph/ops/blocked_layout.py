"""Convolution and pooling in the blocked layout: (N, C, H, W) as (N/k, C, H, W, k), k images interleaved.

A vector then holds one pixel of k images, at any width, stride or dilation. Each op here is the op of the same name
without `_blocks` on images in this layout; `passes/layout.py` inserts them where kernels prefer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import movement
from gluongraph.ops.conv import CONV2D, DATA_GRAD, WEIGHT_GRAD
from gluongraph.ops.pool import AVG_POOL2D, AVG_POOL2D_GRAD, MAX_POOL2D, MAX_POOL2D_GRAD

Shape = tuple[int, ...]


def blocked(shape: Sequence[int], lanes: int) -> Shape:
    """Return the shape with the first axis split into blocks of `lanes`, which become a new last axis."""
    return (shape[0] // lanes, *shape[1:], lanes)


def plain(shape: Sequence[int]) -> Shape:
    """The shape without blocks."""
    return (shape[0] * shape[-1], *shape[1:-1])


def into_blocks(x: Node, lanes: int) -> Node:
    """(N, ...) as (N/lanes, ..., lanes)."""
    n, *rest = x.shape
    axes = (0, *range(2, len(rest) + 2), 1)
    return movement.transpose(movement.reshape(x, (n // lanes, lanes, *rest)), axes)


def out_of_blocks(x: Node) -> Node:
    """(N/k, ..., k) as (N, ...)."""
    last = x.ty.rank - 1
    return movement.reshape(movement.transpose(x, (0, last, *range(1, last))), plain(x.shape))


class _Plain:
    """A blocked source of a lowering rule, read by plain indices."""

    def __init__(self, e: Any, source: Any):
        self.e, self.source, self.dtype, self.shape = e, source, source.dtype, plain(source.shape)

    def __call__(self, image: Any, *index: Any) -> Any:
        lanes = self.source.shape[-1]
        block, lane = (self.e.binary(name, image, lanes) for name in ("floordiv", "floormod"))
        return self.source(block, *index, lane)


def in_blocks(op: Op, images: tuple[int, ...], made: bool = True) -> Op:
    """Return the op with the sources `images` in the blocked layout, and if `made` the result too."""
    infer, numpy, grad, lower, samples, flops = op.infer, op.numpy, op.grad, op.lower, op.samples, op.flops
    assert numpy is not None and grad is not None and lower is not None and samples is not None and callable(flops)

    def each(xs: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        return [change(x) if i in images else x for i, x in enumerate(xs)]

    def type_of(*types: TensorType, **attrs: Any) -> Any:
        found: Any = infer(*each(types, _plain_type), **attrs)
        return TensorType(blocked(found.shape, types[0].shape[-1]), found.dtype) if made else found

    def meaning(*xs: Any, **attrs: Any) -> Any:
        y = numpy(*each(xs, lambda x: x.transpose(0, -1, *range(1, x.ndim - 1)).reshape(plain(x.shape))), **attrs)
        if not made:
            return y
        lanes = xs[0].shape[-1]
        return y.reshape(len(y) // lanes, lanes, *y.shape[1:]).transpose(0, *range(2, y.ndim + 1), 1)

    def gradient(g: Node, y: Node, *xs: Node, **attrs: Any) -> tuple[Node | None, ...]:
        lanes = xs[0].shape[-1]
        g, y = (out_of_blocks(n) if made else n for n in (g, y))
        found = grad(g, y, *each(xs, out_of_blocks), **attrs)
        return tuple(into_blocks(n, lanes) if n is not None and i in images else n for i, n in enumerate(found))

    def element(e: Any, index: Any, *xs: Any, **attrs: Any) -> Any:
        if made:
            block, *rest, lane = index
            index = (block * xs[0].shape[-1] + lane, *rest)
        return lower(e, index, *each(xs, lambda x: _Plain(e, x)), **attrs)

    def cases(rng: Any) -> Iterable[tuple[tuple[Any, ...], dict[str, Any]]]:
        for xs, attrs in islice(samples(rng), 3):
            yield tuple(each(xs, lambda x: x[None].transpose(0, *range(2, x.ndim + 1), 1).copy())), attrs

    return Op(
        f"{op.name}_blocks",
        kind=op.kind,
        pattern=op.pattern,
        traits=op.traits,
        infer=type_of,
        numpy=meaning,
        grad=gradient,
        lower=element,
        samples=cases,
        flops=lambda y, *xs, **attrs: flops(_plain_type(y) if made else y, *each(xs, _plain_type), **attrs),
        numeric=op.numeric,
        doc=f"{op.name} of images (N, C, H, W) that are stored as (N/k, C, H, W, k).",
    )


def _plain_type(x: TensorType) -> TensorType:
    return TensorType(plain(x.shape), x.dtype)


IN_BLOCKS: dict[str, Op] = {
    CONV2D.name: in_blocks(CONV2D, (0,)),
    DATA_GRAD.name: in_blocks(DATA_GRAD, (0,)),
    WEIGHT_GRAD.name: in_blocks(WEIGHT_GRAD, (0, 1), made=False),
    MAX_POOL2D.name: in_blocks(MAX_POOL2D, (0,)),
    MAX_POOL2D_GRAD.name: in_blocks(MAX_POOL2D_GRAD, (0, 1, 2)),
    AVG_POOL2D.name: in_blocks(AVG_POOL2D, (0,)),
    AVG_POOL2D_GRAD.name: in_blocks(AVG_POOL2D_GRAD, (0,)),
}
