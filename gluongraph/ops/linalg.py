"""Factors, inverses and determinants of matrices, over equal leading axes: LAPACK's in eager mode, scans when compiled.

Matrices that have no factor or inverse give NaN. Gradients as in Giles, Collected matrix derivative results (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.composite import composite
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops import constants, control, elementwise, logic, movement, reduce
from gluongraph.ops.checks import FLOATS, misfit, need, wrong_dtype
from gluongraph.ops.index import one_hot
from gluongraph.ops.matmul import matmul
from gluongraph.ops.samples import array
from gluongraph.ops.scan import scan
from gluongraph.ops.sort import argsort

Nodes = tuple[Node, ...]

# -- what they share


def _square(op: str, A: TensorType) -> TensorType:
    need(op, FLOATS, A)
    if A.rank < 2 or A.shape[-1] != A.shape[-2]:
        raise misfit(op, "needs square matrices", A)
    return A


def _batched(A: Node) -> Node:
    """All leading axes as one."""
    return movement.reshape(A, (math.prod(A.shape[:-2]), *A.shape[-2:]))


def _columns(n: int) -> Node:
    """One row for each iteration over columns: 1 at the column, 0 elsewhere."""
    return one_hot(constants.iota((n,)), n, "f32")


def _unit(row: Node, like: Node) -> Node:
    """The iteration's row as a unit vector for each matrix: (batch, n, 1)."""
    n = row.shape[0]
    return movement.expand(movement.reshape(elementwise.cast(row, like.dtype), (1, n, 1)), (like.shape[0], n, 1))


def _since(row: Node, like: Node) -> Node:
    """1 from the iteration's row on, 0 above it: (batch, n, 1)."""
    return _unit(reduce.cumsum(row, 0), like)


def _transposed(A: Node) -> Node:
    return movement.moveaxis(A, A.ty.rank - 1, A.ty.rank - 2)


def _lower(A: Node) -> Node:
    """A with zeros above the diagonal."""
    rank = A.ty.rank
    return logic.where(logic.less_equal(constants.iota(A.shape, rank - 1), constants.iota(A.shape, rank - 2)), A, 0)


def _without_diagonal(A: Node) -> Node:
    rank = A.ty.rank
    return logic.where(logic.equal(constants.iota(A.shape, rank - 1), constants.iota(A.shape, rank - 2)), 0, A)


def _or_nan(compute: Callable[..., Any]) -> Callable[..., Any]:
    """LAPACK's result; NaN for matrices of a batch that have none. 16-bit floats are computed in float32."""

    def numpy(A: Any, *others: Any, **attrs: Any) -> Any:
        if A.dtype.itemsize == 2:
            wide = numpy(*(x.astype(np.float32) for x in (A, *others)), **attrs)
            return tuple(w.astype(A.dtype) for w in wide) if isinstance(wide, tuple) else wide.astype(A.dtype)
        try:
            return compute(A, *others, **attrs)
        except np.linalg.LinAlgError:
            if A.ndim > 2:
                made = [numpy(*each, **attrs) for each in zip(A, *others, strict=True)]
                several = isinstance(made[0], tuple)
                return tuple(map(np.stack, zip(*made, strict=True))) if several else np.stack(made)
            like = compute(np.eye(*A.shape, dtype=A.dtype), *others, **attrs)  # which has one
            several = isinstance(like, tuple)
            return tuple(np.full_like(x, np.nan) for x in like) if several else np.full_like(like, np.nan)

    return numpy


def _matrices(rng: np.random.Generator, *lead: int, n: int, dtype: str, symmetric: bool = True) -> Any:
    """Matrices that have a factor and an inverse."""
    x = rng.standard_normal((*lead, n, n))
    made = x @ np.swapaxes(x, -1, -2) / n + np.eye(n) if symmetric else x + 2 * np.eye(n)[::-1]
    return made.astype(numpy_dtype(dtype))


def _samples(*shapes: tuple[int, ...], symmetric: bool = True) -> Any:
    return lambda rng: [
        ((_matrices(rng, *lead, n=n, dtype=dtype, symmetric=symmetric),), {})
        for *lead, n in shapes
        for dtype in ("f32", "f64")
    ]


# -- cholesky


def _cholesky(A: Node) -> Node:
    x = _batched(A)
    x = (x + _transposed(x)) * 0.5

    def column(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        (L,), e = carries, _unit(rows[0], x)
        rest = matmul(x - matmul(L, L, tb=True), e)
        made = rest * _since(rows[0], x) / elementwise.sqrt(matmul(e, rest, ta=True))
        return (L + matmul(made, e, tb=True),), ()

    (made,), _ = scan(column, [constants.zeros(x.ty)], [_columns(x.shape[-1])])
    return movement.reshape(made, A.shape)


def _cholesky_grad(g: Node, L: Node, A: Node) -> tuple[Node]:
    inner = _lower(matmul(L, g, ta=True))
    inner = (inner + _without_diagonal(inner)) * 0.5  # of the diagonal, half
    left = solve_triangular(L, inner, True)
    made = _transposed(solve_triangular(L, _transposed(left), True))
    return ((made + _transposed(made)) * 0.5,)


CHOLESKY = composite(
    "cholesky",
    _cholesky,
    infer=lambda A: _square("cholesky", A),
    numpy=_or_nan(lambda A: np.linalg.cholesky((A + np.swapaxes(A, -1, -2)) / 2)),
    grad=_cholesky_grad,
    samples=_samples((5,), (2, 3, 3), (2, 4)),
    numeric="full",
    doc="the lower triangle L with L Lᵀ = (A + Aᵀ) / 2",
)


def cholesky(A: Node) -> Node:
    """The lower triangle L with L Lᵀ = A, for symmetric positive definite matrices."""
    return CHOLESKY(A)


# -- solve_triangular


def _solve_type(A: TensorType, B: TensorType, trans: bool) -> TensorType:
    _square("solve_triangular", A)
    if A.dtype != B.dtype:
        raise wrong_dtype("solve_triangular", "dtypes differ", A, B, help="cast one of them")
    if B.rank != A.rank or B.shape[:-1] != A.shape[:-1]:
        raise misfit("solve_triangular", "needs a row of the second for each row of the first", A, B)
    return B


def _solve(A: Node, B: Node, trans: bool) -> Node:
    triangle, b = _lower(_batched(A)), _batched(B)
    if trans:
        triangle = _transposed(triangle)

    def row(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        (x,), e = carries, _unit(rows[0], b)
        known = matmul(e, triangle, ta=True)
        made = (matmul(e, b, ta=True) - matmul(known, x)) / matmul(known, e)
        return (x + matmul(e, made),), ()

    (made,), _ = scan(row, [constants.zeros(b.ty)], [_columns(b.shape[1])], reverse=trans)
    return movement.reshape(made, B.shape)


def _solve_grad(g: Node, X: Node, A: Node, B: Node, trans: bool) -> tuple[Node, Node]:
    to_b = solve_triangular(A, g, not trans)
    to_a = matmul(X, to_b, tb=True) if trans else matmul(to_b, X, tb=True)
    return -_lower(to_a), to_b


SOLVE_TRIANGULAR = composite(
    "solve_triangular",
    _solve,
    infer=_solve_type,
    numpy=_or_nan(lambda A, B, trans: np.linalg.solve(np.swapaxes(np.tril(A), -1, -2) if trans else np.tril(A), B)),
    grad=_solve_grad,
    samples=lambda rng: [
        ((_matrices(rng, *lead, n=n, dtype=dtype), array(rng, (*lead, n, m), dtype)), {"trans": trans})
        for lead, n, m, trans in (((), 5, 3, False), ((2,), 4, 1, True))
        for dtype in ("f32", "f64")
    ],
    numeric="full",
    doc="X with L X = B, or with `trans` Lᵀ X = B, where L is the lower triangle of A",
)


def solve_triangular(A: Node, B: Node, trans: bool = False) -> Node:
    """X with L X = B, or with `trans` Lᵀ X = B, where L is the lower triangle of A."""
    return SOLVE_TRIANGULAR(A, B, trans=trans)


# -- inverse, slogdet: elimination with the largest pivot of each column


def _pivoted(m: Node, row: Node) -> tuple[Node, Node, Node]:
    """The matrix with the row of the largest pivot swapped with the iteration's; unit vectors of both rows."""
    n = m.shape[1]
    e = _unit(row, m)
    size = elementwise.abs(matmul(movement.part(m, 2, 0, n), e)) * _since(row, m) + _since(row, m)  # 0 above the row
    best = reduce.argmax(movement.reshape(size, size.shape[:2]), 1)
    p = movement.reshape(one_hot(best, n, m.dtype), e.shape)
    apart = matmul(p, m, ta=True) - matmul(e, m, ta=True)
    return m + matmul(e - p, apart), e, p


def _inverse(A: Node) -> Node:
    x = _batched(A)
    n = x.shape[1]
    eye = elementwise.cast(logic.equal(constants.iota(x.shape, 1), constants.iota(x.shape, 2)), x.dtype)

    def column(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        m, e, _ = _pivoted(carries[0], rows[0])
        this = matmul(movement.part(m, 2, 0, n), e)
        line = matmul(e, m, ta=True) / matmul(e, this, ta=True)
        return (m - matmul(this - e, line),), ()

    (made,), _ = scan(column, [movement.concat(x, eye, axis=2)], [_columns(n)])
    return movement.reshape(movement.part(made, 2, n, 2 * n), A.shape)


def _inverse_grad(g: Node, y: Node, A: Node) -> tuple[Node]:
    return (-matmul(matmul(y, g, ta=True), y, tb=True),)


INVERSE = composite(
    "inverse",
    _inverse,
    infer=lambda A: _square("inverse", A),
    numpy=_or_nan(np.linalg.inv),
    grad=_inverse_grad,
    samples=_samples((5,), (2, 3, 3), (2, 4), symmetric=False),
    numeric="full",
    doc="A⁻¹",
)


def inverse(A: Node) -> Node:
    """A⁻¹"""
    return INVERSE(A)


def _slogdet_type(A: TensorType) -> tuple[TensorType, TensorType]:
    each = TensorType(_square("slogdet", A).shape[:-2], A.dtype)
    return each, each


def _slogdet(A: Node) -> Nodes:
    x = _batched(A)
    one = constants.full((x.shape[0], 1, 1), 1, x.dtype)

    def column(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        m, e, p = _pivoted(carries[0], rows[0])
        this, line = matmul(m, e), matmul(e, m, ta=True)
        pivot = matmul(line, e)
        stayed = matmul(e, p, ta=True)  # 1 where no rows were swapped; a swap changes the sign
        below = this * (_since(rows[0], m) - e) / logic.where(logic.equal(pivot, 0), 1, pivot)
        sign = carries[1] * elementwise.sign(pivot) * (stayed * 2 - 1)
        return (m - matmul(below, line), sign, carries[2] + elementwise.log(elementwise.abs(pivot))), ()

    (_, sign, log), _ = scan(column, [x, one, one * 0], [_columns(x.shape[1])])
    return movement.reshape(sign, A.shape[:-2]), movement.reshape(log, A.shape[:-2])


def _slogdet_grad(g: Nodes, y: Nodes, A: Node) -> tuple[Node]:
    each = movement.reshape(g[1], (*g[1].shape, 1, 1))
    return (elementwise.mul(each, _transposed(inverse(A))),)


SLOGDET = composite(
    "slogdet",
    _slogdet,
    infer=_slogdet_type,
    numpy=lambda A: tuple(np.asarray(v, A.dtype) for v in np.linalg.slogdet(A)),
    grad=_slogdet_grad,
    samples=_samples((5,), (2, 3, 3), (2, 4), symmetric=False),
    numeric="full",
    doc="the sign of the determinant, and the logarithm of its absolute value",
)


def slogdet(A: Node) -> tuple[Node, Node]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, log = control.get_tuple_elements(SLOGDET(A))
    return sign, log


# -- gelqf: reflections, one for each row


def _lq_type(A: TensorType) -> tuple[TensorType, TensorType]:
    need("gelqf", FLOATS, A)
    if A.rank < 2 or A.shape[-2] > A.shape[-1]:
        raise misfit("gelqf", "needs matrices with at most as many rows as columns", A)
    return A, TensorType((*A.shape[:-1], A.shape[-2]), A.dtype)


def _lq(A: Node) -> Nodes:
    x = _batched(A)
    batch, m, n = x.shape
    unit_rows = one_hot(constants.iota((m,)), n, "f32")
    like = constants.zeros(TensorType((batch, n, n), x.dtype))
    eye = elementwise.cast(logic.equal(constants.iota(like.shape, 1), constants.iota(like.shape, 2)), x.dtype)

    def row(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        r, q = carries
        e, since = _unit(rows[0], like), _since(rows[0], like)
        at = matmul(_unit(movement.part(rows[0], 0, 0, m), r), r, ta=True)  # the iteration's row of r: (batch, 1, n)
        line = _transposed(at) * since
        first, rest = reduce.sum(line * e, 1, keepdims=True), line * (since - e)
        size = elementwise.sqrt(reduce.sum(line * line, 1, keepdims=True))
        signed = logic.where(logic.less(first, 0), -size, size)
        v = logic.where(logic.equal(reduce.sum(rest * rest, 1, keepdims=True), 0), 0, line + e * signed)
        length = reduce.sum(v * v, 1, keepdims=True)
        v2 = v * (2 / logic.where(logic.equal(length, 0), 1, length))
        return (r - matmul(matmul(r, v), v2, tb=True), q - matmul(v2, matmul(v, q, ta=True))), ()

    (r, q), _ = scan(row, [x, eye], [unit_rows])
    lower = _lower(movement.part(r, 2, 0, m))
    return movement.reshape(movement.part(q, 1, 0, m), A.shape), movement.reshape(lower, (*A.shape[:-1], m))


def _numpy_lq(A: Any) -> Any:
    q, r = np.linalg.qr(np.swapaxes(A, -1, -2))
    return tuple(np.ascontiguousarray(np.swapaxes(x, -1, -2)) for x in (q, r))


def _lq_grad(g: Nodes, y: Nodes, A: Node) -> tuple[Node]:
    (gq, gl), (q, lower) = g, y
    inner = matmul(lower, gl, ta=True) - matmul(gq, q, tb=True)
    triangle = _lower(inner)
    both = triangle + _transposed(_without_diagonal(triangle))
    return (solve_triangular(lower, gq + matmul(both, q), True),)


GELQF = composite(
    "gelqf",
    _lq,
    infer=_lq_type,
    numpy=_or_nan(_numpy_lq),
    grad=_lq_grad,
    samples=lambda rng: [
        ((array(rng, shape, dtype),), {}) for shape in ((3, 5), (2, 4, 4), (2, 1, 3)) for dtype in ("f32", "f64")
    ],
    numeric="full",
    doc="Q with orthonormal rows and the lower triangle L, with A = L Q",
)


def gelqf(A: Node) -> tuple[Node, Node]:
    """Q with orthonormal rows and the lower triangle L, with A = L Q; signs are those of LAPACK."""
    q, lower = control.get_tuple_elements(GELQF(A))
    return q, lower


# -- syevd: Jacobi's rotations, each of which makes one element 0

SWEEPS = 12  # over all elements beside the diagonal; it converges quadratically, for float64 within 6 to 10 of them


def _eigen_type(A: TensorType) -> tuple[TensorType, TensorType]:
    return _square("syevd", A), TensorType(A.shape[:-1], A.dtype)


def _eigen(A: Node) -> Nodes:
    x = _batched(A)
    x = (x + _transposed(x)) * 0.5
    n = x.shape[-1]
    eye = elementwise.cast(logic.equal(constants.iota(x.shape, 1), constants.iota(x.shape, 2)), x.dtype)
    pairs = np.array([(p, q) for p in range(n) for q in range(p + 1, n)] * SWEEPS, np.int32).reshape(-1, 2)
    if not len(pairs):
        return movement.reshape(eye, A.shape), movement.reshape(x, A.shape[:-1])
    unit_rows = [one_hot(constants.literal(np.ascontiguousarray(pairs[:, k])), n, "f32") for k in range(2)]

    def rotation(carries: Nodes, rows: Nodes) -> tuple[Nodes, Nodes]:
        m, u = carries
        p, q = (_unit(row, x) for row in rows)
        mp, mq = matmul(m, p), matmul(m, q)
        pp, pq, qq = (reduce.sum(a * b, 1, keepdims=True) for a, b in ((mp, p), (mp, q), (mq, q)))
        none = logic.equal(pq, 0)
        theta = (qq - pp) / (logic.where(none, 1, pq) * 2)
        t = elementwise.cast(logic.where(logic.less(theta, 0), -1, 1), theta.dtype) / (
            elementwise.abs(theta) + elementwise.sqrt(theta * theta + 1)
        )
        t = logic.where(none, 0, t)
        c = 1 / elementwise.sqrt(t * t + 1)
        s = t * c
        # the rotation: columns p and q become c p - s q and s p + c q
        to_p, to_q = p * (c - 1) - q * s, p * s + q * (c - 1)
        m = m + matmul(matmul(m, to_p), p, tb=True) + matmul(matmul(m, to_q), q, tb=True)
        m = m + matmul(p, matmul(to_p, m, ta=True)) + matmul(q, matmul(to_q, m, ta=True))
        u = u + matmul(p, matmul(to_p, u, ta=True)) + matmul(q, matmul(to_q, u, ta=True))
        return (m, u), ()

    (m, u), _ = scan(rotation, [x, eye], unit_rows)
    values = reduce.sum(m * eye, 2)
    order = one_hot(argsort(values, 1), n, x.dtype)  # (batch, place, which)
    u = matmul(order, u)
    made = movement.reshape(matmul(order, movement.reshape(values, (*values.shape, 1))), A.shape[:-1])
    largest = one_hot(reduce.argmax(elementwise.abs(u), 2), n, x.dtype)
    sign = reduce.sum(u * largest, 2, keepdims=True)
    return movement.reshape(logic.where(logic.less(sign, 0), -u, u), A.shape), made


def _numpy_eigen(A: Any) -> Any:
    values, columns = np.linalg.eigh((A + np.swapaxes(A, -1, -2)) / 2)
    u = np.swapaxes(columns, -1, -2)
    largest = np.take_along_axis(u, np.abs(u).argmax(-1)[..., None], -1)
    return np.ascontiguousarray(np.where(largest < 0, -u, u)), values


def _eigen_grad(g: Nodes, y: Nodes, A: Node) -> tuple[Node]:
    (gu, gv), (u, values) = g, y
    rank = A.ty.rank
    down = movement.expand(movement.expand_dims(values, rank - 1), A.shape)
    apart = down - movement.expand(movement.expand_dims(values, rank - 2), A.shape)  # λ of the row - λ of the column
    one = logic.equal(constants.iota(A.shape, rank - 2), constants.iota(A.shape, rank - 1))
    inner = matmul(gu, u, tb=True) / logic.where(one, 1, apart)
    inner = logic.where(one, movement.expand(movement.expand_dims(gv, rank - 1), A.shape), inner)
    made = matmul(u, matmul(inner, u), ta=True)
    return ((made + _transposed(made)) * 0.5,)


SYEVD = composite(
    "syevd",
    _eigen,
    infer=_eigen_type,
    numpy=_or_nan(_numpy_eigen),
    grad=_eigen_grad,
    samples=_samples((5,), (2, 3, 3), (2, 4)),
    numeric="full",
    doc="U and λ with (A + Aᵀ) / 2 = Uᵀ diag(λ) U: the rows of U are eigenvectors, λ ascending",
)


def syevd(A: Node) -> tuple[Node, Node]:
    """U and λ with A = Uᵀ diag(λ) U: λ ascending; rows of U are eigenvectors, their largest elements positive."""
    u, values = control.get_tuple_elements(SYEVD(A))
    return u, values
