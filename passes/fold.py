"""Constant folding, by the ops' numpy implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.ir.graph import Graph, Node, TensorType, attr_key, node
from gluongraph.ir.rewrite import in_bodies, rebuild

LIMIT = 1024  # elements: a larger array is cheaper to compute than to carry in the artefact
_COMPUTED = frozenset({"elementwise", "movement", "reduce", "index", "contraction", "window"})


def fold(graph: Graph) -> Graph:
    """Ops on constants -> a constant. A constant with all elements equal is a `const` of any size; others have at most
    LIMIT elements.

    `iota` is not folded: a kernel computes it for free, and a literal must be read. Literals in the body of a scan
    become constants that are passed to it, since arrays are in the memory of the whole step.
    """

    def folded(n: Node) -> Node:
        n = _hoisted(in_bodies(n, fold))
        if n.op.kind not in _COMPUTED or n.op.numpy is None or isinstance(n.type, tuple) or not n.src:
            return n
        try:
            return _folded(n)
        except ValueError:  # numpy raises for these values (an integer to the power of -1): left to the kernel
            return n

    return rebuild(graph, folded)


def _hoisted(n: Node) -> Node:
    """Return a scan with the literals of its body as constants that are passed to it; other nodes as they are."""
    if n.op.name != "scan":
        return n
    body: Graph = n.attrs["body"]
    literals = [m for m in body.nodes() if m.op.name == "literal"]
    if not literals:
        return n
    first = len(n.src) - n.attrs["carries"] - n.attrs["xs"]
    leaves = {m: ops.input(f"k{first + i}", m.ty) for i, m in enumerate(literals)}
    inputs = {**body.inputs, **{leaf.attrs["name"]: leaf for leaf in leaves.values()}}
    fed = rebuild(Graph(inputs, body.outputs, body.updates, body.origins), lambda m: leaves.get(m, m))
    return node(n.op, (*n.src, *literals), {**n.attrs, "body": fed}, n.copy_id)


def _folded(n: Node) -> Node:
    """Return n as a constant if it is one and that pays, else n."""
    if all(s.op.name == "const" for s in n.src) and (found := _splat(n)) is not None:
        return found
    sizes = [n.ty.size, *(s.ty.size for s in n.src)]
    if all(s.op.name in ("const", "literal") for s in n.src) and max(sizes) <= LIMIT and n.ty.size:
        return constant(_run(n.op.numpy, [array(s) for s in n.src], n.attrs))
    return n


def _splat(n: Node) -> Node | None:
    """Return n as a `const` if all its elements are equal, and that is known from its sources; else None."""
    values = [s.attrs["value"] for s in n.src]
    kind, name = n.op.kind, n.op.name
    if kind == "elementwise":
        scalars = [np.full((), s.attrs["value"], numpy_dtype(s.dtype)) for s in n.src]
        return _const(_run(n.op.numpy, scalars, n.attrs), n.ty)
    # What movement adds of its own: the frame of `pad`, and zeros where windows of `depth_windows` reach outside.
    extra = [n.attrs["value"]] if name == "pad" else [0] if n.attrs.get("padding") else []
    same = len({attr_key(_number(np.array(v, numpy_dtype(n.dtype)), n.dtype)) for v in (*values, *extra)}) == 1
    if same and (kind == "movement" or (name in ("max", "min") and n.src[0].ty.size)):
        return ops.const(values[0], dtype=n.dtype, shape=n.shape)
    return None


def _run(numpy: Any, arrays: list[Any], attrs: Mapping[str, Any]) -> Any:
    with np.errstate(all="ignore"):  # the step itself would not warn either
        return np.asarray(numpy(*arrays, **attrs))


def array(n: Node) -> Any:
    """Return the array of a const or literal."""
    if n.op.name == "const":
        return np.full(n.shape, n.attrs["value"], numpy_dtype(n.dtype))
    return np.frombuffer(n.attrs["data"], numpy_dtype(n.dtype)).reshape(n.shape)


def constant(array: Any) -> Node:
    """Return an array as a const, if all elements have the same bits, else as a literal."""
    dtype = next(d.name for d in DTYPES.values() if d.numpy == array.dtype)
    data = array.tobytes()
    if data == data[: array.itemsize] * array.size:
        return _const(array.reshape(-1)[:1].reshape(()), TensorType(array.shape, dtype))
    return ops.literal(array)


def _const(scalar: Any, type: TensorType) -> Node:
    return ops.const(_number(scalar, type.dtype), dtype=type.dtype, shape=type.shape)


def _number(scalar: Any, dtype: str) -> float | int | bool:
    """Return a numpy scalar as a Python number."""
    family = DTYPES[dtype].family
    return float(scalar) if family == "float" else bool(scalar) if family == "bool" else int(scalar)
