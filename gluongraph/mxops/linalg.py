"""MXNet's linear algebra on the last two axes, as builders over nodes: products, factors, triangles, diagonals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.ir.graph import Node
from gluongraph.mxops.index import extractdiag as extractdiag
from gluongraph.mxops.index import makediag as makediag


def gemm(
    A: Node,
    B: Node,
    C: Node,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    axis: int = -2,
) -> Node:
    """alpha A B + beta C"""
    return ops.add(gemm2(A, B, transpose_a, transpose_b, alpha, axis), ops.mul(C, beta))


def gemm2(
    A: Node, B: Node, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, axis: int = -2
) -> Node:
    """alpha A B over equal leading axes; `axis` is that of the rows, the last one that of the columns."""
    rank = A.ty.rank
    rows = axis % rank
    a, b = (ops.moveaxis(x, rows, rank - 2) for x in (A, B))
    made = ops.moveaxis(ops.matmul(a, b, ta=transpose_a, tb=transpose_b), rank - 2, rows)
    return made if alpha == 1.0 else ops.mul(made, alpha)


def syrk(A: Node, transpose: bool = False, alpha: float = 1.0) -> Node:
    """alpha A Aᵀ, or alpha Aᵀ A"""
    made = ops.matmul(A, A, ta=transpose, tb=not transpose)
    return made if alpha == 1.0 else ops.mul(made, alpha)


def trmm(
    A: Node, B: Node, transpose: bool = False, rightside: bool = False, lower: bool = True, alpha: float = 1.0
) -> Node:
    """alpha A B (B A with rightside), reading the lower (upper) triangle of A, or of its transpose"""
    triangle = ops.where(_triangle(A, lower), A, 0)
    if rightside:
        made = ops.matmul(B, triangle, ta=False, tb=transpose)
    else:
        made = ops.matmul(triangle, B, ta=transpose, tb=False)
    return made if alpha == 1.0 else ops.mul(made, alpha)


def _triangle(A: Node, lower: bool) -> Node:
    """True on and below the diagonal (on and above it)."""
    rank = A.ty.rank
    rows, columns = ops.iota(A.shape, rank - 2), ops.iota(A.shape, rank - 1)
    return ops.less_equal(columns, rows) if lower else ops.greater_equal(columns, rows)


def potrf(A: Node, lower: bool = True) -> Node:
    """The lower triangle L with L Lᵀ = A (Cholesky), for symmetric positive definite matrices; for others an error
    in eager mode, NaN in compiled code

    With lower=False Lᵀ, the upper triangle U with Uᵀ U = A.
    """
    made = ops.cholesky(A)
    return made if lower else _turned(made)


def potri(A: Node, lower: bool = True) -> Node:
    """(L Lᵀ)⁻¹, where L is the lower triangle of A, as potrf gives it; with lower=False (Uᵀ U)⁻¹ of the upper one"""
    if not lower:
        A = _turned(A)
    rank = A.ty.rank
    one = ops.equal(ops.iota(A.shape, rank - 2), ops.iota(A.shape, rank - 1))
    return ops.solve_triangular(A, ops.solve_triangular(A, ops.cast(one, A.dtype)), True)


def trsm(
    A: Node, B: Node, transpose: bool = False, rightside: bool = False, lower: bool = True, alpha: float = 1.0
) -> Node:
    """X with L X = alpha B (X L = alpha B with rightside): L is the lower (upper) triangle of A, or its transpose"""
    b = B if alpha == 1.0 else ops.mul(B, alpha)
    if not lower:  # an upper triangle is the transpose of a lower one
        A, transpose = _turned(A), not transpose
    if rightside:
        return _turned(ops.solve_triangular(A, _turned(b), not transpose))
    return ops.solve_triangular(A, b, transpose)


def _turned(A: Node) -> Node:
    return ops.moveaxis(A, A.ty.rank - 1, A.ty.rank - 2)


def inverse(A: Node) -> Node:
    """A⁻¹; where there is none an error in eager mode, NaN in compiled code"""
    return ops.inverse(A)


def slogdet(A: Node) -> tuple[Node, Node]:
    """[sign, logarithm of the absolute value] of the determinant"""
    sign, logarithm = ops.slogdet(A)
    return _one_axis(sign), _one_axis(logarithm)


def det(A: Node) -> Node:
    """The determinant."""
    sign, log = ops.slogdet(A)
    return _one_axis(ops.mul(sign, ops.exp(log)))


def _one_axis(x: Node) -> Node:
    return x if x.ty.rank else ops.reshape(x, (1,))


def gelqf(A: Node) -> tuple[Node, Node]:
    """[Q, L] with A = L Q: Q has orthonormal rows, L is a lower triangle; A has at most as many rows as columns"""
    return ops.gelqf(A)


def syevd(A: Node) -> tuple[Node, Node]:
    """[U, λ] of symmetric matrices, with A = Uᵀ diag(λ) U: the rows of U are eigenvectors, λ ascending

    The largest element of each eigenvector is positive. Where eigenvalues are equal the gradient through U is not
    finite.
    """
    return ops.syevd(A)


def sumlogdiag(A: Node) -> Node:
    """The sum of the logarithms of the diagonal."""
    return _one_axis(ops.sum(ops.log(extractdiag(A)), -1))


def extracttrian(A: Node, offset: int = 0, lower: bool = True) -> Node:
    """The elements on and below (above) the diagonal `offset` as one axis, row by row (upper: column by column).

    A positive offset means the upper triangle, a negative one the lower; `lower` counts for offset 0.
    """
    n = A.shape[-1]
    if A.shape[-2] != n:
        raise ShapeError(with_user_location(f"extracttrian: needs square matrices, not {A.ty}"))
    lead = A.shape[:-2]
    places = ops.literal(_places(n, offset, lower).astype(np.int32))
    return ops.take(ops.reshape(A, (*lead, n * n)), places, len(lead))


def maketrian(A: Node, offset: int = 0, lower: bool = True) -> Node:
    """Square matrices with the last axis in a triangle, zeros elsewhere: what `extracttrian` undoes."""
    *lead, count = A.shape
    side = (math.isqrt(8 * count + 1) - 1) // 2
    if side * (side + 1) // 2 != count:
        raise MXNetError(with_user_location(f"maketrian: {count} elements fill no triangle; {A.ty}"))
    n = side + abs(offset)
    order = np.full(n * n, count, np.int32)
    order[_places(n, offset, lower)] = np.arange(count)
    padded = ops.pad(A, (0,) * A.ty.rank, (*(0,) * len(lead), 1))
    return ops.reshape(ops.take(padded, ops.literal(order), len(lead)), (*lead, n, n))


def _places(n: int, offset: int, lower: bool) -> np.ndarray[Any, Any]:
    """Row-major positions of a triangle's elements in an n x n matrix, in MXNet's order."""
    lower = offset < 0 or (offset == 0 and lower)
    rows, columns = np.tril_indices(n, -abs(offset))
    return rows * n + columns if lower else columns * n + rows
