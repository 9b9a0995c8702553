"""Matrix multiplication."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops import elementwise, movement
from gluongraph.ops.builders import broadcast_shape, broadcast_to
from gluongraph.ops.checks import NUMBERS, misfit, need, wrong_dtype
from gluongraph.ops.samples import each


def _matmul_type(a: TensorType, b: TensorType, ta: bool, tb: bool, dtype: str | None = None) -> TensorType:
    if a.dtype != b.dtype:
        raise wrong_dtype("matmul", "dtypes differ", a, b, help="cast one of them; nothing is converted silently")
    need("matmul", NUMBERS, a)
    if a.rank < 2 or a.rank != b.rank or a.shape[:-2] != b.shape[:-2]:
        raise misfit("matmul", "needs two axes or more, with equal batch axes in front", a, b)
    m, k = a.shape[:-3:-1] if ta else a.shape[-2:]
    inner, n = b.shape[:-3:-1] if tb else b.shape[-2:]
    if k != inner:
        flags = ", ".join(name for name, on in (("ta", ta), ("tb", tb)) if on)
        help = f"{k} columns of the first meet {inner} rows of the second" + (f" (with {flags})" if flags else "")
        raise misfit("matmul", "inner sizes differ", a, b, help=help)
    return TensorType((*a.shape[:-2], m, n), summed_in("matmul", a, dtype))


def summed_in(op: str, x: TensorType, dtype: str | None) -> str:
    """Return the dtype of the result of a contraction of operands like x; f32 sums of 16-bit operands can be kept."""
    if dtype not in (None, "f32") or (dtype and x.dtype not in ("f16", "bf16")):
        raise wrong_dtype(op, f"no result of dtype {dtype!r} is made of such operands", x, help="leave it out")
    return dtype or x.dtype


def product(a: Any, b: Any) -> Any:
    """np.matmul that keeps the dtype; 16-bit floats are multiplied in f32."""
    if a.dtype.itemsize == 2:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    return np.matmul(a, b)


def widened(dtype: str | None, *arrays: Any) -> tuple[Any, ...]:
    """Cast the operands to the dtype of the result."""
    return arrays if dtype is None else tuple(a.astype(numpy_dtype(dtype)) for a in arrays)


def _matmul(a: Any, b: Any, ta: bool, tb: bool, dtype: str | None = None) -> Any:
    a, b = widened(dtype, a, b)
    return product(a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b)


def _matmul_grad(g: Node, y: Node, a: Node, b: Node, ta: bool, tb: bool, dtype: str | None = None) -> tuple[Node, Node]:
    """With A, B the operands as multiplied: dA = g Bᵀ and dB = Aᵀ g, transposed where the operand is."""
    g = elementwise.cast(g, a.dtype)
    da = MATMUL(b, g, ta=tb, tb=True) if ta else MATMUL(g, b, ta=False, tb=not tb)
    db = MATMUL(g, a, ta=True, tb=ta) if tb else MATMUL(a, g, ta=not ta, tb=False)
    return da, db


def _matmul_lower(e: Any, i: Any, a: Any, b: Any, ta: bool, tb: bool, dtype: str | None = None) -> Any:
    *batch, row, column = i

    def element(k: Any) -> Any:
        x, y = a(*batch, *((k, row) if ta else (row, k))), b(*batch, *((column, k) if tb else (k, column)))
        return x * y if dtype is None else e.cast(x, dtype) * e.cast(y, dtype)

    return e.reduce("sum", (a.shape[-2 if ta else -1],), element, dtype or a.dtype)


def _matmul_flops(y: TensorType, a: TensorType, b: TensorType, ta: bool, tb: bool, dtype: str | None = None) -> int:
    return 2 * y.size * a.shape[-2 if ta else -1]


MATMUL = Op(
    "matmul",
    kind="contraction",
    pattern="gemm",
    infer=_matmul_type,
    numpy=_matmul,
    grad=_matmul_grad,
    lower=_matmul_lower,
    samples=each(
        (((3, 17), (17, 5)), {"ta": False, "tb": False}),
        (((17, 3), (5, 17)), {"ta": True, "tb": True}),
        (((3, 17), (33, 17)), {"ta": False, "tb": True}),
        (((17, 3), (17, 5)), {"ta": True, "tb": False}),
        (((2, 3, 5, 7), (2, 3, 4, 7)), {"ta": False, "tb": True}),
        (((1, 64), (64, 48)), {"ta": False, "tb": False}),
        ((((3, 4), "i32", -3, 3), ((4, 2), "i32", -3, 3)), {"ta": False, "tb": False}),
        *(
            ((((3, 17), low, -2, 2), ((33, 17), low, -2, 2)), {"ta": False, "tb": True, "dtype": "f32"})
            for low in ("bf16", "f16")
        ),
    ),
    flops=_matmul_flops,
    numeric="low",
    doc="The matrix product over the last two axes, each transposed first if its flag says so. With dtype='f32', of "
    "16-bit operands, the sums are not rounded.",
)


def matmul(a: Node, b: Node, ta: bool = False, tb: bool = False) -> Node:
    """The matrix product over the last two axes; axes in front are broadcast.

    If b is one matrix, the rows of all of a are multiplied at once: one large GEMM instead of many small ones.
    """
    if b.ty.rank == 2 and a.ty.rank > 2 and not ta:
        rows = MATMUL(movement.reshape(a, (-1, a.shape[-1])), b, ta=False, tb=tb)
        return movement.reshape(rows, (*a.shape[:-1], rows.shape[-1]))
    if a.ty.rank >= 2 and b.ty.rank >= 2 and a.shape[:-2] != b.shape[:-2]:
        batch = broadcast_shape("matmul", TensorType(a.shape[:-2], a.dtype), TensorType(b.shape[:-2], b.dtype))
        a, b = broadcast_to(a, (*batch, *a.shape[-2:])), broadcast_to(b, (*batch, *b.shape[-2:]))
    return MATMUL(a, b, ta=ta, tb=tb)
