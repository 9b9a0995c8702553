"""Ops without sources: inputs, constants, iota."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, dtype_name, numpy_dtype
from gluongraph.errors import DTypeError, VerifyError, with_user_location
from gluongraph.ir.graph import Node, Op, TensorType, node
from gluongraph.ops.checks import NUMBERS, check_axes, need
from gluongraph.storage import native


def _given(*types: TensorType, **attrs: object) -> TensorType:
    raise VerifyError("an input is made with its type: ops.input(name, type)")


INPUT = Op("input", kind="leaf", infer=_given, doc="A value that comes from outside.")


def input(name: str, type: TensorType) -> Node:
    """A value that comes from outside, by its name."""
    return node(INPUT, (), {"name": name}, type=type)


def _splat_type(value: float | int | bool, dtype: str, shape: tuple[int, ...]) -> TensorType:
    row = DTYPES[dtype]
    if row.family in ("int", "uint"):
        bits = 8 * row.nbytes
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if row.family == "int" else (0, 2**bits)
        if not low <= value < high:
            raise DTypeError(
                with_user_location(f"const: {value} is out of the range of {dtype}", help="use a wider type")
            )
    return TensorType(shape, dtype)


CONST = Op(
    "const",
    kind="leaf",
    traits=frozenset({"free"}),
    infer=_splat_type,
    numpy=lambda value, dtype, shape: np.full(shape, value, numpy_dtype(dtype)),
    lower=lambda e, i, value, dtype, shape: e.const(value, dtype),
    samples=lambda rng: iter(
        [
            ((), {"value": 1.5, "dtype": "f32", "shape": (3, 5)}),
            ((), {"value": -math.inf, "dtype": "f64", "shape": ()}),
            ((), {"value": -7, "dtype": "i64", "shape": (2,)}),
            ((), {"value": True, "dtype": "bool", "shape": (1, 3)}),
        ]
    ),
    doc="One number everywhere.",
)


def const(value: float | int | bool, dtype: str = "f32", shape: Sequence[int] = ()) -> Node:
    """One number everywhere."""
    family = DTYPES[dtype].family
    number = float(value) if family == "float" else bool(value) if family == "bool" else int(value)
    return CONST(value=number, dtype=dtype, shape=tuple(shape))


def full(shape: Sequence[int], value: float | int | bool, dtype: str = "f32") -> Node:
    """An array of the shape, filled with one number."""
    return const(value, dtype, shape)


def zeros(type: TensorType) -> Node:
    """Zeros of the type."""
    return const(0, type.dtype, type.shape)


def ones(type: TensorType) -> Node:
    """Ones of the type."""
    return const(1, type.dtype, type.shape)


def _literal_type(data: bytes, dtype: str, shape: tuple[int, ...]) -> TensorType:
    type = TensorType(shape, dtype)
    if len(data) != type.nbytes:
        raise VerifyError(f"literal: {len(data)} bytes are not the elements of {type}")
    return type


LITERAL = Op(
    "literal",
    kind="leaf",
    infer=_literal_type,
    numpy=lambda data, dtype, shape: np.frombuffer(data, numpy_dtype(dtype)).reshape(shape),
    samples=lambda rng: iter([((), {"data": bytes(range(24)), "dtype": "i32", "shape": (2, 3)})]),
    doc="An array that is part of the program.",
)


def literal(array: Any) -> Node:
    """An array that is part of the program."""
    array = native(np.asarray(array))
    return LITERAL(data=array.tobytes(), dtype=dtype_name(array.dtype), shape=array.shape)


def constant(array: Any) -> Node:
    """An array that is part of the program: one number everywhere, to the bit, as `const`, others as `literal`."""
    array = native(np.asarray(array))
    if not _is_uniform(array):
        return literal(array)
    dtype = dtype_name(array.dtype)
    return const(array.reshape(-1)[0], dtype, array.shape)


def _is_uniform(array: Any) -> bool:
    if not array.size:
        return False
    flat = np.ascontiguousarray(array).reshape(-1)
    return bool((flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all())


def _iota_type(shape: tuple[int, ...], axis: int, dtype: str) -> TensorType:
    type = TensorType(shape, dtype)
    need("iota", NUMBERS, type)
    check_axes("iota", type, (axis,))
    return type


def _iota(shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    column = np.arange(shape[axis]).astype(numpy_dtype(dtype))
    return np.broadcast_to(column.reshape((-1,) + (1,) * (len(shape) - axis - 1)), shape)


IOTA = Op(
    "iota",
    kind="leaf",
    traits=frozenset({"free"}),
    infer=_iota_type,
    numpy=_iota,
    lower=lambda e, i, shape, axis, dtype: e.cast(i[axis], dtype),
    samples=lambda rng: iter(
        ((), {"shape": (3, 5, 2)[: axis + 1], "axis": axis, "dtype": dtype})
        for axis, dtype in ((0, "f32"), (1, "i32"), (2, "u32"), (1, "f64"))
    ),
    doc="The index along an axis: 0, 1, 2, ...",
)


def iota(shape: Sequence[int], axis: int = 0, dtype: str = "i32") -> Node:
    """The index along an axis: 0, 1, 2, ..."""
    return IOTA(shape=tuple(shape), axis=axis % len(shape), dtype=dtype)


def is_zero(n: Node) -> bool:
    """Is n a constant 0 (of either sign)?"""
    return n.op is CONST and n.attrs["value"] == 0
