"""Blocked layout for images where convolutions prefer it, converted at the ends of a net instead of in each kernel.

A convolution for which `lanes` returns k > 0 is replaced by its `_blocks` op, with k images interleaved (NCHWn).
Elementwise work, pooling and reductions of such values stay in the blocked layout; other readers get them converted
back to NCHW. Conversions are nodes of their own, so a value is converted once, however many nodes read it. Convolutions
that are equally fast in NCHW stay in the blocked layout if their source is blocked, but do not introduce it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, node
from gluongraph.ir.rewrite import rebuild
from gluongraph.ops.blocked_layout import IN_BLOCKS, blocked, into_blocks, out_of_blocks

Lanes = Callable[[Node, bool], int]


def layout(graph: Graph, *, lanes: Lanes = lambda n, source_is_blocked: 0) -> Graph:
    """conv2d(x, w) -> conv2d_blocks(blocked x, w), converted back, and its readers likewise.

    `lanes(n, source_is_blocked)` is how many images a convolution or a pooling wants interleaved; 0: NCHW.
    """
    return rebuild(graph, _Layout(lanes).one)


class _Layout:
    def __init__(self, lanes: Lanes):
        self.lanes = lanes
        self.blocks: dict[Node, Node] = {}  # NCHW value -> blocked value, or one that is equal for all images

    def one(self, n: Node) -> Node:
        """Return n, whose sources may have blocked forms."""
        if isinstance(n.type, tuple):
            return n
        blocked_sources = [self.blocks[s] for s in n.src if s in self.blocks]
        if n.op.kind == "contraction" and n.op.name in IN_BLOCKS:
            k = self.lanes(n, bool(blocked_sources))
            return self._blocked_op(n, k) if k else n
        if not blocked_sources:
            return n
        k = blocked_sources[0].shape[-1]
        if n.op.kind == "elementwise":
            return self._unblocked(node(n.op, self._all(n.src, k), n.attrs, n.copy_id), n)
        if n.op.kind == "window" and self.lanes(n, True) == k:
            return self._blocked_op(n, k)
        if n.op.kind == "reduce" and "axes" in n.attrs:
            return self._folded(n)
        return ops.reshape(blocked_sources[0], n.shape) if n.op.name == "reshape" and k == 1 else n

    def _blocked_op(self, n: Node, k: int) -> Node:
        """Return a convolution, pooling, or gradient of one in the blocked layout."""
        weights = n.src[1:] if n.op.name in ("conv2d", "conv2d_data_grad") else ()
        images = n.src[: len(n.src) - len(weights)]
        made = node(IN_BLOCKS[n.op.name], (*self._all(images, k), *weights), n.attrs, n.copy_id)
        return made if made.type == n.type else self._unblocked(made, n)

    def _folded(self, n: Node) -> Node:
        """Return a reduction of a blocked value: over images it also reduces the lane axis; otherwise the result is
        blocked, and converted back."""
        (x,), axes = n.src, tuple(n.attrs["axes"])
        across = (*axes, x.ty.rank) if 0 in axes else axes
        made = node(n.op, (self.blocks[x],), {**n.attrs, "axes": across}, n.copy_id)
        if n.attrs["keepdims"]:
            return self._unblocked(made, n)
        return made if 0 in axes else out_of_blocks(made)

    def _unblocked(self, made: Node, was: Node) -> Node:
        """Return a blocked value converted to the layout of `was`, and note its blocked form."""
        n = ops.reshape(made, was.shape) if was.shape[0] == 1 else out_of_blocks(made)
        self.blocks[n] = made
        return n

    def _all(self, src: Sequence[Node], k: int) -> tuple[Node, ...]:
        return tuple(self._as_blocked(s, k) for s in src)

    def _as_blocked(self, s: Node, k: int) -> Node:
        """Return a source in blocks of k images; broadcasts are applied after the conversion."""
        if s in self.blocks:
            return self.blocks[s]
        shape = (*s.shape, 1) if s.shape[0] == 1 else blocked(s.shape, k)
        if s.op.name == "const":
            return ops.const(s.attrs["value"], s.dtype, shape)
        if s.op.name == "expand":
            return ops.expand(self._as_blocked(s.src[0], k), shape)
        if s.shape[0] == 1:
            return ops.reshape(s.src[0] if s.op.name == "reshape" else s, shape)
        return into_blocks(s, k)
