"""Blocked layout for images where convolutions prefer it, converted at the ends of a net instead of in each kernel.

A convolution of which `lanes` says that k images had better lie side by side becomes its `_blocks` form. What is
computed from such images element by element, by pooling, or by sums over them goes on in blocks; any other reader gets
them turned back. What is turned is always a whole value, so that a value is turned once, however many read it.
Convolutions that are as fast on images as they are go on in blocks as well, and begin none: turned for themselves alone
they would lose what turning costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, node
from gluongraph.ir.rewrite import rebuild
from gluongraph.ops.blocked_layout import IN_BLOCKS, blocked, into_blocks, out_of_blocks

Lanes = Callable[[Node, bool], int]


def layout(graph: Graph, *, lanes: Lanes = lambda n, met: 0) -> Graph:
    """conv2d(x, w) -> conv2d_blocks(x in blocks, w) turned back, and what reads it in blocks as well.

    `lanes(n, met)` is how many images a convolution or a pooling wants side by side, which has `met` a source that lies
    so, or none; 0: it takes them as they are.
    """
    return rebuild(graph, _Layout(lanes).one)


class _Layout:
    def __init__(self, lanes: Lanes):
        self.lanes = lanes
        self.blocks: dict[Node, Node] = {}  # values as they were -> with images in blocks, or alike for all images

    def one(self, n: Node) -> Node:
        """n, whose sources may be known in blocks."""
        if isinstance(n.type, tuple):
            return n
        known = [self.blocks[s] for s in n.src if s in self.blocks]
        if n.op.kind == "contraction" and n.op.name in IN_BLOCKS:
            k = self.lanes(n, bool(known))
            return self._images(n, k) if k else n
        if not known:
            return n
        k = known[0].shape[-1]
        if n.op.kind == "elementwise":
            return self._turned_back(node(n.op, self._all(n.src, k), n.attrs, n.again), n)
        if n.op.kind == "window" and self.lanes(n, True) == k:
            return self._images(n, k)
        if n.op.kind == "reduce" and "axes" in n.attrs:
            return self._folded(n)
        return ops.reshape(known[0], n.shape) if n.op.name == "reshape" and k == 1 else n

    def _images(self, n: Node, k: int) -> Node:
        """A convolution, pooling, or gradient of one."""
        weights = n.src[1:] if n.op.name in ("conv2d", "conv2d_data_grad") else ()
        images = n.src[: len(n.src) - len(weights)]
        made = node(IN_BLOCKS[n.op.name], (*self._all(images, k), *weights), n.attrs, n.again)
        return made if made.type == n.type else self._turned_back(made, n)

    def _folded(self, n: Node) -> Node:
        """A reduction: over images it ends their blocks, over pixels or channels it leaves one number of each image."""
        (x,), axes = n.src, tuple(n.attrs["axes"])
        across = (*axes, x.ty.rank) if 0 in axes else axes
        made = node(n.op, (self.blocks[x],), {**n.attrs, "axes": across}, n.again)
        if n.attrs["keepdims"]:
            return self._turned_back(made, n)
        return made if 0 in axes else out_of_blocks(made)

    def _turned_back(self, made: Node, was: Node) -> Node:
        """Such a value as `was` is, and it is known in blocks from now on."""
        n = ops.reshape(made, was.shape) if was.shape[0] == 1 else out_of_blocks(made)
        self.blocks[n] = made
        return n

    def _all(self, src: Sequence[Node], k: int) -> tuple[Node, ...]:
        return tuple(self._in_blocks(s, k) for s in src)

    def _in_blocks(self, s: Node, k: int) -> Node:
        """A source in blocks of k; numbers that are repeated are turned before that."""
        if s in self.blocks:
            return self.blocks[s]
        shape = (*s.shape, 1) if s.shape[0] == 1 else blocked(s.shape, k)
        if s.op.name == "const":
            return ops.const(s.attrs["value"], s.dtype, shape)
        if s.op.name == "expand":
            return ops.expand(self._in_blocks(s.src[0], k), shape)
        if s.shape[0] == 1:
            return ops.reshape(s.src[0] if s.op.name == "reshape" else s, shape)
        return into_blocks(s, k)
