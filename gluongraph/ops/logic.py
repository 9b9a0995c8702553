"""Comparisons, logic and choice, elementwise like the ops of elementwise.py. The builders broadcast; the ops do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node, Op, TensorType
from gluongraph.ops.builders import Binary, Value, broadcast, broadcasting, dtype_of, lift
from gluongraph.ops.checks import ANY, alike, equal_types, wrong_dtype
from gluongraph.ops.lowering import binary
from gluongraph.ops.samples import array

# -- comparisons


def _comparison(name: str, numpy: Callable[[Any, Any], Any], doc: str, *traits: str) -> Binary:
    return broadcasting(
        Op(
            name,
            kind="elementwise",
            traits=frozenset({"compares", *traits}),
            infer=alike(name, ANY, "bool"),
            numpy=numpy,
            lower=binary(name),
            samples=lambda rng: [
                (tuple(np.rint(array(rng, shape, dtype)).astype(numpy_dtype(dtype)) for _ in range(2)), {})
                for shape, dtype in (((), "f32"), ((3, 33), "f32"), ((7,), "f64"), ((2, 3, 17), "i32"))
            ],
            doc=doc,
        )
    )


equal: Binary = _comparison("equal", np.equal, "x = y", "compares_equal", "commutes")
not_equal: Binary = _comparison("not_equal", np.not_equal, "x ≠ y", "compares_equal", "commutes")
less: Binary = _comparison("less", np.less, "x < y")
less_equal: Binary = _comparison("less_equal", np.less_equal, "x ≤ y")
greater: Binary = _comparison("greater", np.greater, "x > y")
greater_equal: Binary = _comparison("greater_equal", np.greater_equal, "x ≥ y")


def _truth(e: Any, i: Any, x: Any) -> Any:
    return x(*i) if x.dtype == "bool" else e.binary("not_equal", x(*i), e.const(0, x.dtype))


logical_not = Op(
    "logical_not",
    kind="elementwise",
    infer=alike("logical_not", ANY, "bool"),
    numpy=np.logical_not,
    lower=lambda e, i, x: e.unary("logical_not", _truth(e, i, x)),
    samples=lambda rng: [((np.rint(array(rng, (3, 33))),), {}), ((array(rng, (7,), "bool"),), {})],
    doc="is x zero or false?",
)


def _logical(name: str, numpy: Callable[[Any, Any], Any], doc: str) -> Binary:
    return broadcasting(
        Op(
            name,
            kind="elementwise",
            traits=frozenset({"commutes"}),
            infer=alike(name, ANY, "bool"),
            numpy=numpy,
            lower=lambda e, i, x, y: e.binary(name, _truth(e, i, x), _truth(e, i, y)),
            samples=lambda rng: [
                (tuple(np.rint(array(rng, (3, 33), dtype)).astype(numpy_dtype(dtype)) for _ in range(2)), {})
                for dtype in ("bool", "f32", "i32")
            ],
            doc=doc,
        )
    )


logical_and: Binary = _logical("logical_and", np.logical_and, "are both true, or not zero?")
logical_or: Binary = _logical("logical_or", np.logical_or, "is one true, or not zero?")


# -- choice


def _where_type(c: TensorType, x: TensorType, y: TensorType) -> TensorType:
    if c.dtype != "bool":
        raise wrong_dtype("where", "the condition is bool", c, help="compare first: where(not_equal(c, 0), x, y)")
    equal_types("where", x, y)
    equal_types("where", TensorType(c.shape, x.dtype), x)
    return x


def _choose(c: Any, x: Any, y: Any) -> Any:
    """np.where on the bits: numpy branches for each element, which takes 17 times as long if c is mixed."""
    bits = f"i{x.dtype.itemsize}"
    take = np.negative(c.view(np.int8)).astype(bits)  # 0, or all ones
    a, b = x.view(bits), y.view(bits)
    chosen = (a & take) if b.ndim == 0 and b == 0 else ((a ^ b) & take) ^ b
    return chosen.view(x.dtype)


WHERE = Op(
    "where",
    kind="elementwise",
    traits=frozenset({"selects"}),
    infer=_where_type,
    numpy=_choose,
    grad=lambda g, z, c, x, y: (None, where(c, g, 0), where(c, 0, g)),
    lower=lambda e, i, c, x, y: e.where(c(*i), x(*i), y(*i)),
    samples=lambda rng: [
        ((array(rng, shape, "bool"), array(rng, shape, dtype), array(rng, shape, dtype)), {})
        for shape, dtype in (((), "f32"), ((3, 33), "f32"), ((2, 3, 17), "f64"), ((7,), "i32"))
    ],
    doc="x where c, else y",
)


def where(c: Value, x: Value, y: Value) -> Node:
    """x where c, else y; shapes are broadcast."""
    dtype = dtype_of(x, y)
    return WHERE(*broadcast("where", lift(c, "bool"), lift(x, dtype), lift(y, dtype)))
