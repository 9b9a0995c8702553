"""The IR: typed, immutable, interned nodes, and graphs of them.

A `Node` is one operation on other nodes. Its type is inferred when it is created, so a graph with wrong shapes cannot
exist; and it is interned: equal nodes are one object, which makes common subexpressions free and lets `is` compare
graphs. A `Graph` names inputs, outputs, and which results are written over which inputs (`updates`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from gluongraph.dtypes import DTYPES
from gluongraph.errors import Origin, VerifyError, with_user_location
from gluongraph.ir.plain import PLAIN, extents, is_flat, plain

Attr = Any  # int, float, str, bytes, bool, None, Graph, or a tuple of these
KINDS = (
    "leaf",  # input, const, literal: no sources
    "elementwise",  # result[i] from x[i] of equal shapes
    "movement",  # result[i] is one element of x, or a constant: reshape, transpose, slice, pad, ...
    "reduce",  # reduces one axis or more
    "contraction",  # matmul, convolution
    "window",  # pooling
    "index",  # reads or writes at indices from another array: take, scatter_add
    "random",  # counter-based random numbers
    "collective",  # between ranks, on arrays in flat memory
    "composite",  # one node with a body over primitives
    "control",  # has a body graph: scan, call, fused; get_tuple_element; depends_on, a control dependency
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of an array: `f32[128,784]`.

    Raises:
        TypeError: an extent is no integer.
    """

    shape: tuple[int, ...]
    dtype: str = "f32"

    def __post_init__(self) -> None:
        for n in self.shape:
            if n.__class__ is not int:  # numpy's integers are equal to Python's, and would be interned with them
                object.__setattr__(self, "shape", extents(self.shape))
                break

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.size * DTYPES[self.dtype].nbytes

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


Types = TensorType | tuple[TensorType, ...]


TRAITS = {
    "compares": "returns a bool by comparing two values",
    "compares_equal": "compares its first two sources for equality, internally or as its result",
    "selects": "each element of the result is an element of a source, or an exact function of one",
    "gathers": "reads its first source at indices from the second, or at several computed from its own",
    "once": "must be computed by one kernel only: it communicates, draws random numbers, or is observed",
    "commutes": "x op y and y op x are equal to the bit",
    "moves": "moves or selects elements without arithmetic, so that it works on 16-bit values directly",
    "free": "costs nothing to compute: each reader recomputes it",
}


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """An operator: all facts that the compiler has about it, in one statement.

    Rules take data positionally and attributes by keyword:

    * `infer(*types, **attrs)` returns the result's type (a tuple of types for several results) or raises ShapeError;
    * `numpy(*arrays, **attrs)` is the reference implementation, used by tests and by eager mode;
    * `grad(g, y, *x, **attrs)` returns a gradient node, or None, per source (`g`, `y` are tuples if there are several
      results);
    * `lower(e, i, *x, **attrs)` returns the scalar expression of the result at index `i`, where `x[k](*index)` reads
      a source and `e` is the target's algebra (`gluongraph.ops.lowering.Algebra`);
    * `body(*nodes, **attrs)` builds a composite from primitives; its `numpy` and `lower` follow from it;
    * `samples(rng)` yields `(arrays, attrs)`: the op's test cases;
    * `pattern` is the pattern of the group that the op starts, by which kernel rules claim groups;
    * `cost` is the time of an element of the result, in loads and stores of an element; 0 if it is hidden by the loads
      and stores of its kernel;
    * `traits` are facts that passes and kernels ask for, by the names of `TRAITS`;
    * `flops(y, *types, **attrs)` returns the number of arithmetic operations for a result of type y; an int is the
      number per element of the result. The default is 1 for elementwise ops, 1 per source element for reductions, else
      0.
    """

    name: str
    kind: str
    infer: Callable[..., Types]
    numpy: Callable[..., Any] | None = None
    grad: Callable[..., tuple[Node | None, ...]] | None = None
    lower: Callable[..., Any] | None = None
    body: Callable[..., Any] | None = None
    samples: Callable[..., Iterable[tuple[tuple[Any, ...], dict[str, Attr]]]] | None = None
    flops: Callable[..., int] | int | None = None
    pattern: str = "opaque"
    cost: int = 0
    traits: frozenset[str] = frozenset()
    numeric: str = "keep"  # its class in mixed precision (passes/amp.py): "low", "keep" or "full"
    over: int | None = None  # the source in whose place the result may be stored: read only where it is written
    doc: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise VerifyError(f"op {self.name!r}: unknown kind {self.kind!r}")
        if unknown := self.traits - TRAITS.keys():
            raise VerifyError(f"op {self.name!r}: unknown traits {', '.join(sorted(unknown))}")
        if OPS.setdefault(self.name, self) is not self:
            raise VerifyError(f"op {self.name!r} is declared twice")

    def __call__(self, *src: Node, **attrs: Attr) -> Node:
        return node(self, src, attrs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __deepcopy__(self, memo: object) -> Op:
        return self


OPS: dict[str, Op] = {}
# Former names of ops, in graphs that were written earlier -> their names.
RENAMED = {"item": "get_tuple_element", "after": "depends_on", "pinned": "keep_precision"}
OPERATORS: dict[str, Callable[..., Node]] = {}  # Python's operators on nodes; filled by gluongraph.ops
_NODES: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def attr_key(value: Attr) -> Any:
    """Return a hashable key that distinguishes values which are equal in Python: 0.0 and -0.0, 1 and 1.0 and True;
    equal NaNs have equal keys."""
    kind = type(value)
    if kind is float:
        return ("f", struct.pack("<d", value))
    if kind is tuple:
        return tuple(map(attr_key, value))
    if kind is bool:
        return ("b", value)
    return value


class Node:
    """One operation on other nodes: op, sources, attributes, type. Created by `node`, immutable.

    `copy_id` is 0, or the number of a recomputed copy, which must not be merged with the original.
    """

    __slots__ = ("__weakref__", "attrs", "copy_id", "op", "src", "type")

    op: Op
    src: tuple[Node, ...]
    attrs: Mapping[str, Attr]
    copy_id: int
    type: Types

    def __init__(self, op: Op, src: tuple[Node, ...], attrs: Mapping[str, Attr], copy_id: int, type: Types):
        self.op, self.src, self.attrs, self.copy_id, self.type = op, src, attrs, copy_id, type

    @property
    def ty(self) -> TensorType:
        """The type of a node with one result."""
        if isinstance(self.type, tuple):
            raise VerifyError(
                f"{self.op.name} has {len(self.type)} results; pick one with get_tuple_element(x, index=i)"
            )
        return self.type

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        return self.type if isinstance(self.type, tuple) else (self.type,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a node with one result."""
        return self.ty.shape

    @property
    def dtype(self) -> str:
        """Short name of the element type of a node with one result."""
        return self.ty.dtype

    def on(self, src: tuple[Node, ...]) -> Node:
        """Return the same operation on other sources; self if they are the same."""
        if src == self.src:
            return self
        return node(self.op, src, self.attrs, self.copy_id)

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.types))
        return f"<{self.op.name}({', '.join(s.op.name for s in self.src)}) : {types}>"

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __add__(self, other: Any) -> Node:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Any) -> Node:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Any) -> Node:
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: Any) -> Node:
        return OPERATORS["sub"](other, self)

    def __mul__(self, other: Any) -> Node:
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: Any) -> Node:
        return OPERATORS["mul"](other, self)

    def __truediv__(self, other: Any) -> Node:
        return OPERATORS["div"](self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return OPERATORS["div"](other, self)

    def __pow__(self, other: Any) -> Node:
        return OPERATORS["pow"](self, other)

    def __neg__(self) -> Node:
        return OPERATORS["neg"](self)


def _attribute(op: Op, name: str, value: Any) -> Attr:
    """Convert an attribute to the Python types that graphs contain."""
    kind = value.__class__
    if kind in PLAIN or (kind is tuple and is_flat(value)):
        return value
    found = plain(value)
    if not _is_attribute(found):
        message = (
            f"{op.name}: the attribute {name} is a number, text or tuple of such, not a {kind.__name__}: {value!r}"
        )
        raise TypeError(with_user_location(message))
    return found


def _is_attribute(value: Any) -> bool:
    kind = value.__class__
    if kind is tuple:
        return all(part.__class__ in PLAIN or _is_attribute(part) for part in value)
    return kind in PLAIN or isinstance(value, Graph)


def node(
    op: Op,
    src: tuple[Node, ...] = (),
    attrs: Mapping[str, Attr] | None = None,
    copy_id: int = 0,
    type: Types | None = None,
) -> Node:
    """Create a Node, or return the equal one that exists: nodes are interned. `type` is for leaves only.

    Attributes are converted to Python's own types first, since equal numbers of other types would have the same key.

    Raises:
        TypeError: an attribute has a type that graphs cannot contain.
    """
    attrs = {k: _attribute(op, k, v) for k, v in attrs.items()} if attrs else {}
    key = (op.name, src, tuple((k, attr_key(attrs[k])) for k in sorted(attrs)), copy_id, type)
    made = _NODES.get(key)
    if made is None:
        if type is None:
            type = op.infer(*(s.type for s in src), **attrs)
        made = Node(op, src, attrs, copy_id, type)
        _NODES[key] = made
    if _RECORDERS:
        _RECORDERS[-1].see(made)
    return made


class OriginRecorder:
    """Records the origins of nodes while a graph is being built; `where()` is called once per new node."""

    def __init__(self, where: Callable[[], Origin | None]):
        self.where = where
        self.origins: dict[Node, Origin] = {}

    def see(self, made: Node) -> None:
        if made not in self.origins and (origin := self.where()) is not None:
            self.origins[made] = origin


_RECORDERS: list[OriginRecorder] = []


@contextmanager
def recording_origins(where: Callable[[], Origin | None]) -> Iterator[dict[Node, Origin]]:
    """Record the origin `where()` of every node that is created within this context; the first one counts. Yields the
    origins."""
    recorder = OriginRecorder(where)
    _RECORDERS.append(recorder)
    try:
        yield recorder.origins
    finally:
        _RECORDERS.pop()


def topological(results: Iterable[Node]) -> list[Node]:
    """Return all nodes that the results depend on, sources first, in an order that depends on the graph only."""
    order: dict[Node, None] = {}
    stack = [(n, False) for n in reversed(tuple(results))]
    while stack:
        current, ready = stack.pop()
        if ready:
            order[current] = None
        elif current not in order:
            stack.append((current, True))
            stack.extend((s, False) for s in reversed(current.src) if s not in order)
    return list(order)


@dataclass(frozen=True, eq=False)
class Graph:
    """A program: named inputs, named outputs, and `updates`, the results that are written over inputs.

    Graphs with the same names for the same nodes compare and hash equal; `origins` are ignored.
    """

    inputs: Mapping[str, Node]
    outputs: Mapping[str, Node]
    updates: Mapping[str, Node] = field(default_factory=dict)
    origins: Mapping[Node, Origin] = field(default_factory=dict, repr=False)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The key of equality."""
        return (tuple(self.inputs.items()), tuple(self.outputs.items()), tuple(self.updates.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __deepcopy__(self, memo: object) -> Graph:
        return self

    @property
    def results(self) -> tuple[Node, ...]:
        """Outputs, then updates."""
        return (*self.outputs.values(), *self.updates.values())

    def nodes(self) -> list[Node]:
        """Return all live nodes, sources first. Dead nodes are not in the graph, so there is no DCE pass."""
        return list(self._nodes)

    @cached_property
    def _nodes(self) -> list[Node]:
        """The live nodes, cached, since passes and rules ask for them often."""
        return topological(self.results)

    def users(self) -> dict[Node, list[Node]]:
        """Return for each live node the nodes that read it, in graph order (results are not users)."""
        users: dict[Node, list[Node]] = {}
        for n in self.nodes():
            users.setdefault(n, [])
            for s in dict.fromkeys(n.src):
                users[s].append(n)
        return users

    def map(self, fn: Callable[[Node], Node]) -> Graph:
        """Rebuild the graph, sources first: each node becomes `fn` of it on rebuilt sources. Origins are preserved."""
        new: dict[Node, Node] = {}
        origins: dict[Node, Origin] = {}
        for n in self.nodes():
            before = n.on(tuple(new[s] for s in n.src))
            after = new[n] = fn(before)
            if (origin := self.origins.get(n)) is not None:
                for made in (before, after):
                    origins.setdefault(made, origin)
        return self.with_results(
            {k: new[n] for k, n in self.outputs.items()},
            {k: new[n] for k, n in self.updates.items()},
            origins,
        )

    def with_results(
        self,
        outputs: Mapping[str, Node],
        updates: Mapping[str, Node],
        origins: Mapping[Node, Origin] | None = None,
    ) -> Graph:
        """Return the graph with other results; self if they are the same."""
        if dict(outputs) == dict(self.outputs) and dict(updates) == dict(self.updates):
            return self
        return Graph(self.inputs, outputs, updates, self.origins if origins is None else origins)
