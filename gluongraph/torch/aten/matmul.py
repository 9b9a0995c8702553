"""Products of matrices: linear layers, matmul, einsum; and what is made of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import Number, OpContext, cast, constant
from gluongraph.torch.aten.reduce import root, size_to
from gluongraph.torch.aten.table import aten


@aten("linear.default")
def linear(at: OpContext, input: Node, weight: Node, bias: Node | None = None) -> Node:
    """x Wᵀ + b"""
    rows = ops.reshape(input, (math.prod(input.shape[:-1]), input.shape[-1]))
    w = ops.reshape(weight, (1, weight.ty.size)) if weight.ty.rank == 1 else weight
    y = ops.matmul(rows, w, tb=True)
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if bias is not None and bias.ty.rank == 1:  # added to rows: the epilogue of one GEMM
        return ops.reshape(ops.add(y, bias), shape)
    y = ops.reshape(y, shape)
    return y if bias is None else ops.add(y, bias)


@aten(
    "matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default", "vdot.default", "linalg_matmul.default"
)
def matmul(at: OpContext, self: Node, other: Node) -> Node:
    """The product of matrices, over all leading axes; a vector is a row, or a column"""
    a, b = cast(self, at.dtype), cast(other, at.dtype)
    row, column = a.ty.rank == 1, b.ty.rank == 1
    a = ops.reshape(a, (1, *a.shape)) if row else a
    b = ops.reshape(b, (*b.shape, 1)) if column else b
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*lead, *(() if row else a.shape[-2:-1]), *(() if column else b.shape[-1:]))
    if b.ty.rank == 2 and a.ty.rank > 2:  # one matrix for all: the leading axes are rows
        return ops.reshape(ops.matmul(ops.reshape(a, (-1, a.shape[-1])), b), shape)
    a, b = (ops.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return ops.reshape(ops.matmul(a, b), shape)


@aten("addmm.default", "baddbmm.default", "addmv.default", "addbmm.default")
def addmm(at: OpContext, self: Node, left: Node, right: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta c + alpha a b"""
    y = matmul(at, left, right)
    if at.name.startswith("addbmm"):
        y = ops.sum(y, 0)
    return scaled_sum(at, self, y, beta, alpha)


def scaled_sum(at: OpContext, self: Node, y: Node, beta: Number, alpha: Number) -> Node:
    """beta c + alpha y; without c where beta is 0, so that NaN in it do not count."""
    c = cast(self, at.dtype)
    y = y if alpha == 1 else y * cast(alpha, at.dtype)
    if beta == 0:
        shape = np.broadcast_shapes(c.shape, y.shape)
        return ops.add(ops.mul(ops.where(ops.full(c.shape, False, "bool"), c, cast(0, at.dtype)), cast(0, at.dtype)),
                       ops.broadcast_to(y, shape))  # fmt: skip
    return ops.add(c if beta == 1 else c * cast(beta, at.dtype), y)


@aten("inner.default")
def inner(at: OpContext, self: Node, other: Node) -> Node:
    """Sums over the last axis of both"""
    a, b = cast(self, at.dtype), cast(other, at.dtype)
    if not a.ty.rank or not b.ty.rank:
        return ops.mul(a, b)
    rows, columns = (ops.reshape(x, (-1, x.shape[-1])) for x in (a, b))
    return ops.reshape(ops.matmul(rows, columns, tb=True), (*a.shape[:-1], *b.shape[:-1]))


@aten("addr.default")
def addr(at: OpContext, self: Node, vec1: Node, vec2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    """beta c + alpha a bᵀ"""
    return scaled_sum(at, self, outer(at, vec1, vec2), beta, alpha)


@aten("kron.default")
def kron(at: OpContext, self: Node, other: Node) -> Node:
    """The product of each element with the whole other array"""
    rank = max(self.ty.rank, other.ty.rank)
    a, b = ((*(1,) * (rank - x.ty.rank), *x.shape) for x in (self, other))
    left = ops.reshape(cast(self, at.dtype), tuple(n for k in a for n in (k, 1)))
    right = ops.reshape(cast(other, at.dtype), tuple(n for k in b for n in (1, k)))
    return ops.reshape(ops.mul(left, right), tuple(m * n for m, n in zip(a, b, strict=True)))


@aten("cross.default", "linalg_cross.default")
def cross(at: OpContext, self: Node, other: Node, dim: int | None = -1) -> Node:
    """The vectors at right angles to both; axes of 3 elements"""
    shape = np.broadcast_shapes(self.shape, other.shape)
    a, b = (ops.broadcast_to(cast(x, at.dtype), shape) for x in (self, other))
    axis = (
        shape.index(3)
        if dim is None or (at.name == "cross.default" and dim == -1 and shape[-1] != 3)
        else dim % len(shape)
    )
    x, y = ([ops.part(v, axis, k, k + 1) for k in range(3)] for v in (a, b))
    parts = [ops.sub(x[i] * y[k], x[k] * y[i]) for i, k in ((1, 2), (2, 0), (0, 1))]
    return ops.concat(*parts, axis=axis)


@aten("tensordot.default")
def tensordot(at: OpContext, self: Node, other: Node, dims_self: Sequence[int], dims_other: Sequence[int]) -> Node:
    """Sums over pairs of axes"""
    a, b = ([d % x.ty.rank for d in dims] for x, dims in ((self, dims_self), (other, dims_other)))
    for i, k in zip(a, b, strict=True):  # an extent of 1 meets all of the other
        if self.shape[i] == 1 and other.shape[k] > 1:
            other = ops.sum(other, (k,), True)
        elif other.shape[k] == 1 and self.shape[i] > 1:
            self = ops.sum(self, (i,), True)
    left = [k for k in range(self.ty.rank) if k not in a]
    right = [k for k in range(other.ty.rank) if k not in b]
    depth = math.prod(self.shape[k] for k in a)
    rows = ops.reshape(ops.transpose(self, (*left, *a)), (-1, depth))
    columns = ops.reshape(ops.transpose(other, (*right, *b)), (-1, depth))
    shape = (*(self.shape[k] for k in left), *(other.shape[k] for k in right))
    return ops.reshape(ops.matmul(rows, columns, tb=True), shape)


@aten("linalg_vecdot.default")
def vecdot(at: OpContext, x: Node, y: Node, *, dim: int = -1) -> Node:
    """The sum of products along an axis"""
    product = ops.mul(cast(x, at.dtype), cast(y, at.dtype))
    return ops.sum(product, dim % product.ty.rank)


@aten("outer.default", "ger.default")
def outer(at: OpContext, self: Node, vec2: Node) -> Node:
    """a bᵀ"""
    a, b = cast(self, at.dtype), cast(vec2, at.dtype)
    return ops.mul(ops.reshape(a, (a.ty.size, 1)), ops.reshape(b, (1, b.ty.size)))


@aten("bilinear.default")
def bilinear(at: OpContext, input1: Node, input2: Node, weight: Node, bias: Node | None = None) -> Node:
    """x1ᵀ W x2 + b for each W"""
    y = contracted("...a,oab,...b->...o", [input1, weight, input2])
    return y if bias is None else ops.add(y, bias)


# -- einsum


@aten("einsum.default")
def einsum(at: OpContext, equation: str, tensors: Sequence[Node], *, path: Any = None) -> Node:
    """Sums of products by the letters of axes"""
    return contracted(equation, [cast(x, at.dtype) for x in tensors])


def contracted(equation: str, tensors: Sequence[Node]) -> Node:
    """einsum, two arrays at a time from left to right; each pair is one batched matmul."""
    inputs, result = _letters(equation.replace(" ", ""), [x.ty.rank for x in tensors])
    done, letters = _diagonal(tensors[0], inputs[0])
    for k in range(1, len(tensors)):
        x, own = _diagonal(tensors[k], inputs[k])
        later = set("".join(inputs[k + 1 :])) | set(result)
        done, letters = _pair(done, letters, x, own, later)
    gone = tuple(a for a, letter in enumerate(letters) if letter not in result)
    done = ops.sum(done, gone) if gone else done
    letters = "".join(letter for letter in letters if letter in result)
    return ops.transpose(done, [letters.index(letter) for letter in result]) if result else done


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each input and of the result; those of an ellipsis are digits from the right."""
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    digits = [
        rank - len(text.replace("...", "")) if "..." in text else 0 for text, rank in zip(inputs, ranks, strict=True)
    ]
    most = "".join(chr(0x1D7D8 + k) for k in range(max(digits)))
    if not arrow:
        letters = [c for c in left if c.isalpha()]
        right = ("..." if most else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    filled = [text.replace("...", most[len(most) - n :]) for text, n in zip(inputs, digits, strict=True)]
    return filled, right.replace("...", most)


def _diagonal(x: Node, letters: str) -> tuple[Node, str]:
    """x with axes of the same letter joined to their diagonal."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            a, b = letters.index(letter), letters.rindex(letter)
            rest = [k for k in range(len(letters)) if k not in (a, b)]
            moved = ops.transpose(x, (*rest, a, b))
            n = x.shape[a]
            flat = ops.reshape(moved, (*moved.shape[:-2], n * n))
            x = ops.slice(flat, [0] * flat.ty.rank, flat.shape, (*(1,) * (flat.ty.rank - 1), n + 1))
            letters = "".join(letters[k] for k in rest) + letter
    return x, letters


def _pair(a: Node, a_letters: str, b: Node, b_letters: str, later: set[str]) -> tuple[Node, str]:
    """The product of two arrays, summed over the letters that nothing needs later."""
    only_a = [c for c in a_letters if c not in b_letters and c not in later]
    only_b = [c for c in b_letters if c not in a_letters and c not in later]
    a, a_letters = _summed(a, a_letters, only_a)
    b, b_letters = _summed(b, b_letters, only_b)
    both = [c for c in a_letters if c in b_letters]
    extents = {c: max(a.shape[a_letters.index(c)], b.shape[b_letters.index(c)]) for c in both}
    summed, batch = [c for c in both if c not in later], [c for c in both if c in later]
    rows, columns = [c for c in a_letters if c not in both], [c for c in b_letters if c not in both]
    left = _ordered(a, a_letters, [*batch, *rows, *summed], extents)
    right = _ordered(b, b_letters, [*batch, *columns, *summed], extents)
    lead, depth = [extents[c] for c in batch], math.prod(extents[c] for c in summed)
    m = [left.shape[len(batch) + k] for k in range(len(rows))]
    n = [right.shape[len(batch) + k] for k in range(len(columns))]
    flat = math.prod(lead)
    y = ops.matmul(
        ops.reshape(left, (flat, math.prod(m), depth)), ops.reshape(right, (flat, math.prod(n), depth)), tb=True
    )
    return ops.reshape(y, (*lead, *m, *n)), "".join([*batch, *rows, *columns])


def _summed(x: Node, letters: str, gone: Sequence[str]) -> tuple[Node, str]:
    if not gone:
        return x, letters
    return ops.sum(x, tuple(letters.index(c) for c in gone)), "".join(c for c in letters if c not in gone)


def _ordered(x: Node, letters: str, order: Sequence[str], extents: dict[str, int]) -> Node:
    """The axes in this order, those that both arrays have repeated to their common extent."""
    moved = ops.transpose(x, [letters.index(c) for c in order]) if order else x
    return ops.broadcast_to(moved, tuple(extents.get(c, n) for c, n in zip(order, moved.shape, strict=True)))


# -- distances


@aten("cdist.default", "_cdist_forward.default")
def cdist(at: OpContext, x1: Node, x2: Node, p: Number = 2.0, compute_mode: Any = None) -> Node:
    """The distances of all pairs of rows"""
    a = ops.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    b = ops.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return _distance(ops.sub(a, b), p)


def _distance(gap: Node, p: Number) -> Node:
    """The norm of the last axis, with the gradient 0 at 0."""
    if p == 0:
        return ops.sum(cast(ops.not_equal(gap, 0.0), gap.dtype), -1)
    if p == 1:
        return ops.sum(ops.abs(gap), -1)
    if p == math.inf:
        return ops.amax(ops.abs(gap), -1)
    if p == 2:
        return root(ops.sum(gap * gap, -1))
    return root(ops.sum(size_to(gap, p), -1), p)


@aten("pdist.default", "_pdist_forward.default")
def pdist(at: OpContext, self: Node, p: Number = 2.0) -> Node:
    """The distances of all pairs of different rows"""
    first, second = (constant(k.astype(np.int32)) for k in np.triu_indices(self.shape[0], 1))
    return _distance(ops.sub(ops.take(self, first, 0), ops.take(self, second, 0)), p)


@aten("pairwise_distance.default")
def pairwise_distance(
    at: OpContext, x1: Node, x2: Node, p: Number = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Node:
    """The distance of corresponding rows"""
    y = _distance(ops.sub(x1, x2) + eps, p)
    return ops.expand_dims(y, -1) if keepdim else y


@aten("cosine_similarity.default")
def cosine_similarity(at: OpContext, x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """x1 · x2 / (|x1| |x2|), each norm at least eps"""
    a, b = (
        ops.broadcast_to(x1, np.broadcast_shapes(x1.shape, x2.shape)),
        ops.broadcast_to(x2, np.broadcast_shapes(x1.shape, x2.shape)),
    )
    if not a.ty.rank:
        a, b, dim = ops.reshape(a, (1,)), ops.reshape(b, (1,)), 0
    axis = dim % a.ty.rank
    x, y = (ops.div(v, _held_norm(v, axis, eps)) for v in (a, b))
    return ops.sum(x * y, axis)


def _held_norm(x: Node, axis: int, eps: float) -> Node:
    """The norm, at least eps; its gradient is that of the norm also below."""
    norm = root(ops.sum(x * x, axis, True))
    return ops.add(norm, ops.stop_gradient(ops.sub(ops.maximum(norm, eps), norm)))
