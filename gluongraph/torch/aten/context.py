"""What a builder may ask for beside the arguments of its operator: types of its results, random numbers, subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import DTYPES, is_float, numpy_dtype
from gluongraph.errors import UnsupportedError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Node, topological
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.torch.build import Building

Value = Any  # a Node, a Python number, None, a text, or a list of those
Number = float | int | bool
FOLDED, FOLDED_NODES = 1 << 16, 256  # elements and nodes: what is larger is left to the compiled code

# By the name that a torch.dtype has as a text.
DTYPE_NAMES = {
    "torch.float32": "f32",
    "torch.float64": "f64",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int8": "i8",
    "torch.int32": "i32",
    "torch.int64": "i64",
    "torch.uint8": "u8",
    "torch.uint32": "u32",
    "torch.uint64": "u64",
    "torch.bool": "bool",
}


class OpContext:
    """One call of an operator, being built. `name` is the overload, `dtypes` the element types of its results."""

    def __init__(self, building: Building, name: str, dtypes: Sequence[str | None]):
        self.building, self.name, self.dtypes = building, name, tuple(dtypes)

    @property
    def dtype(self) -> str:
        """The element type of the (first) result."""
        found = self.dtypes[0] if self.dtypes else None
        if found is None:
            raise self.unsupported("its result is no array of an element type that exists here")
        return found

    def unsupported(self, why: str) -> UnsupportedError:
        """The error for what exists in PyTorch and not here; the caller raises it."""
        return UnsupportedError(why)

    def draw(self) -> tuple[Node, int]:
        """The state of the random generator, and the number of a draw."""
        return self.building.draw()

    def graph(self, graph: Any, args: Sequence[Value]) -> list[Value]:
        """The results of a graph within this one."""
        return self.building.subgraph(graph, args)

    def known(self, value: Value, what: str) -> Array:
        """The elements of an argument that does not depend on data.

        Raises:
            UnsupportedError: it does.
        """
        if not isinstance(value, Node):
            return np.asarray(value)
        folded = fold(value)
        if folded is None:
            raise self.unsupported(f"the elements of {what} depend on data, and decide the shape of the result")
        return folded


def fold(n: Node) -> Array | None:
    """The elements of a node that is computed from constants alone; None if it depends on data."""
    if n.ty.size > FOLDED:
        return None
    below = topological([n])
    if len(below) > FOLDED_NODES or any(each.op.name == "input" for each in below):
        return None
    return np.asarray(interpreter.evaluate([n], {})[0])


def constant(array: Any, dtype: str | None = None) -> Node:
    """An array as part of the graph, in this element type."""
    array = np.asarray(array)
    return ops.constant(array if dtype is None else array.astype(numpy_dtype(dtype)))


def cast(x: Value, dtype: str) -> Node:
    """A node or a number as a node of this element type."""
    if not isinstance(x, Node):
        return ops.const(x if is_float(dtype) or dtype == "bool" else int(x), dtype)
    if x.dtype == dtype:
        return x
    return ops.not_equal(x, ops.const(0, x.dtype)) if dtype == "bool" else ops.cast(x, dtype)


def promoted(*values: Value) -> str:
    """The element type in which PyTorch computes with these: that of arrays with axes, else of arrays without, else of
    numbers; a later group decides only if its category (bool, integer, float) is a higher one."""
    nodes = [v for v in values if isinstance(v, Node)]
    numbers = [v for v in values if not isinstance(v, Node)]
    groups = (
        [n.dtype for n in nodes if n.ty.rank],
        [n.dtype for n in nodes if not n.ty.rank],
        ["bool" if isinstance(v, bool) else "i64" if isinstance(v, int) else "f32" for v in numbers],
    )
    found = ""
    for group in groups:
        widest = reduce(_wider, group) if group else ""
        if widest and (not found or _category(widest) > _category(found)):
            found = widest
    return found


def _category(dtype: str) -> int:
    return {"bool": 0, "uint": 1, "int": 1, "float": 2}[DTYPES[dtype].family]


def _wider(a: str, b: str) -> str:
    """The type that holds both, by PyTorch's lattice."""
    if _category(a) != _category(b):
        return max(a, b, key=_category)
    if a == b:
        return a
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    signs = {DTYPES[a].family, DTYPES[b].family}
    if signs == {"int", "uint"} and DTYPES[a].nbytes == DTYPES[b].nbytes:
        return "i32"
    return max(a, b, key=lambda d: (DTYPES[d].nbytes, DTYPES[d].family == "int"))


def in_range(index: Node, count: int, what: str, counts: Node | None = None) -> Node:
    """Indices from 0 to `count` - 1, checked when the graph is run unless they are constants that are; where `counts`
    is false anything may stand."""
    known = fold(index)
    if known is not None and counts is None and known.size and known.min() >= 0 and known.max() < count:
        return index
    help = f"indices are integers from 0 to {count - 1}"
    return ops.checked_index(index, count, counts=counts, what=what, help=help)
