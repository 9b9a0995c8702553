"""Linear algebra: factors, inverses, determinants, solutions, eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.ir.graph import Node
from gluongraph.torch.aten.context import OpContext, cast
from gluongraph.torch.aten.matmul import matmul
from gluongraph.torch.aten.shape import tril, triu
from gluongraph.torch.aten.table import aten


def _turned(x: Node) -> Node:
    """The last two axes exchanged."""
    rank = x.ty.rank
    return ops.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _no_error(x: Node) -> Node:
    """What LAPACK returns beside a result: 0 for each matrix."""
    return ops.full(x.shape[:-2], 0, "i32")


# -- factors


@aten("linalg_cholesky.default", "cholesky.default")
def cholesky(at: OpContext, self: Node, upper: bool = False) -> Node:
    """The lower triangle L with L Lᵀ = A, or its transpose; of A one triangle counts"""
    lower = ops.cholesky(_symmetric(at, self, "U" if upper else "L"))
    return _turned(lower) if upper else lower


@aten("linalg_cholesky_ex.default")
def cholesky_ex(at: OpContext, self: Node, *, upper: bool = False, check_errors: bool = False) -> list[Node]:
    """The same, and 0 for no error: matrices that have no such factor give NaN"""
    return [cholesky(at, self, upper), _no_error(self)]


@aten("qr.default")
def qr_of(at: OpContext, self: Node, some: bool = True) -> list[Node]:
    """The same by its older name"""
    return qr(at, self, "reduced" if some else "complete")


@aten("linalg_qr.default")
def qr(at: OpContext, A: Node, mode: str = "reduced") -> list[Node]:
    """Q with orthonormal columns and the upper triangle R, with A = Q R"""
    if mode != "reduced" or A.shape[-2] < A.shape[-1]:
        raise at.unsupported(f"mode={mode!r} of {A.ty}; only reduced factors of matrices with as many rows, or more")
    q, lower = ops.gelqf(_turned(A))
    return [_turned(q), _turned(lower)]


@aten("linalg_eigh.default", "_linalg_eigh.default")
def eigh(at: OpContext, A: Node, UPLO: str = "L", compute_v: bool = True) -> list[Node]:
    """Eigenvalues in ascending order, and eigenvectors as columns; each with its largest element positive"""
    rows, values = ops.syevd(_symmetric(at, A, UPLO))
    return [values, _turned(rows)]


@aten("linalg_eigvalsh.default")
def eigvalsh(at: OpContext, self: Node, UPLO: str = "L") -> Node:
    """The eigenvalues of symmetric matrices in ascending order"""
    return ops.syevd(_symmetric(at, self, UPLO))[1]


def _symmetric(at: OpContext, A: Node, UPLO: str) -> Node:
    """The matrix by one triangle; the gradient goes to both, as in PyTorch."""
    triangle = (tril if UPLO.upper() == "L" else triu)(at, A)
    whole = ops.sub(ops.add(triangle, _turned(triangle)), tril(at, triu(at, A)))
    half = ops.mul(ops.add(A, _turned(A)), 0.5)
    return ops.add(half, ops.stop_gradient(ops.sub(whole, half)))


# -- inverses and determinants


@aten("linalg_inv.default", "inverse.default")
def inverse(at: OpContext, A: Node) -> Node:
    """A⁻¹"""
    return ops.inverse(A)


@aten("linalg_inv_ex.default")
def inverse_ex(at: OpContext, A: Node, *, check_errors: bool = False) -> list[Node]:
    """A⁻¹, and 0 for no error"""
    return [ops.inverse(A), _no_error(A)]


@aten("linalg_slogdet.default", "slogdet.default", "_linalg_slogdet.default")
def slogdet(at: OpContext, A: Node) -> list[Node]:
    """The sign of the determinant, and the logarithm of its absolute value"""
    return list(ops.slogdet(A))


@aten("linalg_det.default", "det.default", "_linalg_det.default")
def det(at: OpContext, A: Node) -> Node | list[Node]:
    """The determinant"""
    sign, log = ops.slogdet(A)
    made = ops.mul(sign, ops.exp(log))
    return [made] if at.name.startswith("_") else made


@aten("logdet.default")
def logdet(at: OpContext, self: Node) -> Node:
    """The logarithm of the determinant; NaN where that is negative"""
    sign, log = ops.slogdet(self)
    return ops.where(ops.less(sign, 0.0), np.nan, log)


# -- solutions


@aten("linalg_solve.default", "_linalg_solve_ex.default", "linalg_solve_ex.default")
def solve(at: OpContext, A: Node, B: Node, *, left: bool = True, check_errors: bool = False) -> Node | list[Node]:
    """X with A X = B, or X A = B"""
    vector = B.ty.rank == 1 or (B.ty.rank == A.ty.rank - 1 and B.shape == A.shape[:-1])
    b = ops.expand_dims(B, -1) if vector else B
    inverted = ops.inverse(A)
    x = matmul(at, inverted, b) if left else matmul(at, b, inverted)
    x = ops.reshape(x, x.shape[:-1]) if vector else x
    if at.name == "linalg_solve.default":
        return x
    return [x] if at.name.startswith("_") else [x, _no_error(A)]


@aten("linalg_solve_triangular.default")
def solve_triangular(
    at: OpContext, self: Node, B: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    """X with A X = B, or X A = B, for a triangle A"""
    if not left:  # Aᵀ Xᵀ = Bᵀ
        turned = solve_triangular(at, _turned(self), _turned(B), upper=not upper, unitriangular=unitriangular)
        return _turned(turned)
    a = triu(at, self) if upper else tril(at, self)
    if unitriangular:
        n = a.shape[-1]
        on = ops.equal(ops.iota((n, n), 0), ops.iota((n, n), 1))
        a = ops.where(ops.broadcast_to(on, a.shape), 1.0, a)
    lead = np.broadcast_shapes(a.shape[:-2], B.shape[:-2])
    a, b = (ops.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, B))
    return ops.solve_triangular(_turned(a), b, trans=True) if upper else ops.solve_triangular(a, b)


@aten("triangular_solve.default")
def triangular_solve(
    at: OpContext, self: Node, A: Node, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[Node]:
    """X with A X = B, or Aᵀ X = B, and A"""
    a, up = (_turned(A), not upper) if transpose else (A, upper)
    return [solve_triangular(at, a, self, upper=up, unitriangular=unitriangular), A]


@aten("cholesky_solve.default")
def cholesky_solve(at: OpContext, self: Node, input2: Node, upper: bool = False) -> Node:
    """X with L Lᵀ X = B, from L"""
    lower = _turned(input2) if upper else input2
    half = solve_triangular(at, lower, self, upper=False)
    return solve_triangular(at, _turned(lower), half, upper=True)


@aten("cholesky_inverse.default")
def cholesky_inverse(at: OpContext, self: Node, upper: bool = False) -> Node:
    """(L Lᵀ)⁻¹, from L"""
    n = self.shape[-1]
    unit = cast(ops.equal(ops.iota((n, n), 0), ops.iota((n, n), 1)), self.dtype)
    return cholesky_solve(at, ops.broadcast_to(unit, self.shape), self, upper)


# -- products


@aten("linalg_multi_dot.default", "chain_matmul.default")
def multi_dot(at: OpContext, tensors: Sequence[Node]) -> Node:
    """The product of all, from left to right"""
    made = tensors[0]
    for each in tensors[1:]:
        made = matmul(at, made, each)
    return made


@aten("linalg_matrix_power.default", "matrix_power.default")
def matrix_power(at: OpContext, self: Node, n: int) -> Node:
    """The product of n times the same matrix, by squares; of negative n, of its inverse"""
    if n < 0:
        return matrix_power(at, ops.inverse(self), -n)
    size = self.shape[-1]
    if n == 0:
        unit = cast(ops.equal(ops.iota((size, size), 0), ops.iota((size, size), 1)), self.dtype)
        return ops.broadcast_to(unit, self.shape)
    made: Any = None
    while n:
        if n % 2:
            made = self if made is None else matmul(at, made, self)
        n //= 2
        self = matmul(at, self, self) if n else self
    assert isinstance(made, Node)
    return made
