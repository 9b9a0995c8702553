"""Rules of what has no sources, or gives an element of its source another gradient."""

from __future__ import annotations

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float, numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.tracing.padding.layout import Refusal
from gluongraph.tracing.padding.masking import Masking, Value
from gluongraph.tracing.padding.table import rule


@rule("input", varies=("name",))
def _input(m: Masking, a: Node, b: Node) -> Value:
    layout = m.inputs.get(a.attrs["name"])
    if layout is None or a.attrs["name"] != b.attrs["name"]:
        raise Refusal(f"the array {a.attrs['name']!r} has another shape for another length")
    return Value(a, layout)


@rule("const", varies=("shape", "value"))
def _const(m: Masking, a: Node, b: Node) -> Value:
    found = m.uniform(a, b)
    values = tuple(n.attrs["value"] for n in (a, b, m.third))
    if all(v == values[0] or (v != v and values[0] != values[0]) for v in values):
        return found
    return Value(ops.broadcast_to(m.number(values, a.dtype), a.shape), found.layout)


@rule("literal", varies=("shape", "data"))
def _literal(m: Masking, a: Node, b: Node) -> Value:
    """Equal where both have elements: of a table that is cut to the length, say."""
    layout = tuple(m.leading(m.extents.axis(*each), "it is a constant") for each in zip(a.shape, b.shape, strict=True))
    mine, others = (np.frombuffer(n.attrs["data"], numpy_dtype(n.dtype)).reshape(n.shape) for n in (a, b))
    both = tuple(slice(min(each)) for each in zip(a.shape, b.shape, strict=True))
    if not np.array_equal(mine[both], others[both], equal_nan=is_float(a.dtype)):
        raise Refusal("a constant array has other elements for another length")
    return Value(a, layout)


@rule("iota", varies=("shape",))
def _iota(m: Masking, a: Node, b: Node) -> Value:
    layout = list(m.uniform(a, b).layout)
    layout[a.attrs["axis"]] = m.leading(layout[a.attrs["axis"]], "it numbers the elements")
    return Value(a, tuple(layout))


@rule("output")
def _output(m: Masking, a: Node, b: Node, x: Value, y: Value, derivative: Value) -> Value:
    """The gradient is the derivative, whatever comes from above: padding must have none."""
    masked = Value(m.filled(derivative, None, 0), derivative.layout)
    return m.elementwise(a, b, x, y, masked)
