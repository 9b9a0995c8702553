"""The IR: typed, immutable, interned nodes, and graphs of them.

A `Node` is one operation on other nodes. It is typed when it is made, so a graph with wrong shapes cannot exist;
and it is interned: equal nodes are one object, which makes common subexpressions free and lets `is` compare graphs.
A `Graph` names what goes in, what comes out, and which results are written over which inputs (`updates`).
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
from gluongraph.errors import Origin, VerifyError, located
from gluongraph.ir.plain import PLAIN, extents, is_flat, plain

Attr = Any  # int, float, str, bytes, bool, None, Graph, or a tuple of these
KINDS = (
    "leaf",  # input, const, literal: no sources
    "elementwise",  # result[i] from x[i] of equal shapes
    "movement",  # result[i] is one element of x, or a constant: reshape, transpose, slice, pad, ...
    "reduce",  # one axis or more folded away
    "contraction",  # matmul, convolution
    "window",  # pooling
    "index",  # reads or writes where another array says: take, scatter_add
    "random",  # counter-based random numbers
    "composite",  # one node with a body over primitives
    "control",  # carries a body graph: scan, call, fused; item, which picks one of several results; after, an order
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
            if n.__class__ is not int:  # extents of numpy's types are equal to Python's, and must not stand for them
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
    "compares": "gives True or False of two numbers",
    "compares_equal": "asks of its first two sources whether they are equal, within its kernel or as its result",
    "selects": "each element of the result is one of a source, or an exact function of one",
    "gathers": "reads its first source where the second says",
    "once": "is computed by one kernel alone: it talks to other devices, draws numbers, or is looked at",
    "commutes": "x op y and y op x are the same bits",
    "moves": "moves elements or chooses among them, so that it works on 16 bits as they are",
    "free": "costs nothing where it is read: whoever reads it computes it again",
}


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """All that the compiler knows of one operator, in one statement.

    Rules take data positionally and attributes by keyword:

    * `infer(*types, **attrs)` gives the result's type (a tuple of types for several results) or raises ShapeError;
    * `numpy(*arrays, **attrs)` is the meaning: what tests believe and eager mode runs;
    * `grad(g, y, *x, **attrs)` gives one gradient node, or None, per source (`g`, `y` are tuples if `y` is several);
    * `lower(e, i, *x, **attrs)` gives the scalar expression of the result at index `i`, where `x[k](*index)` reads
      a source and `e` is the target's algebra (`gluongraph.ops.lowering.Algebra`);
    * `body(*nodes, **attrs)` builds a composite's meaning out of primitives; its `numpy` and `lower` follow from it;
    * `samples(rng)` yields `(arrays, attrs)`: the op's tests;
    * `pattern` is that of the group which it begins, by which kernel rules claim groups;
    * `cost` is how many loads and stores of an element take as long as one element of the result; 0 is hidden behind
      those of its kernel;
    * `traits` are what passes and kernels ask for, by the names of `TRAITS`;
    * `flops(y, *types, **attrs)` counts the operations on numbers that the result, of type y, takes; or it is how many
      an element of the result takes. Without it that is 1 for elementwise ops, and 1 for each source element of a
      reduction; else 0.
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
    numeric: str = "keep"  # what mixed precision does with it: "low", "keep" or "full" (fp32)
    over: int | None = (
        None  # the source that the result may lie over: it is read where the result is written, if at all
    )
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
# Ops of written graphs by their names before -> by those that they have now.
RENAMED = {"item": "get_tuple_element", "after": "depends_on", "pinned": "keep_precision"}
OPERATORS: dict[str, Callable[..., Node]] = {}  # Python's operators on nodes; filled by gluongraph.ops
_NODES: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def attr_key(value: Attr) -> Any:
    """A hashable stand-in that tells apart what Python calls equal: 0.0 and -0.0, 1 and 1.0 and True, nan and nan."""
    kind = type(value)
    if kind is float:
        return ("f", struct.pack("<d", value))
    if kind is tuple:
        return tuple(map(attr_key, value))
    if kind is bool:
        return ("b", value)
    return value


class Node:
    """One operation on other nodes: op, sources, attributes, type. Made by `node`, never changed.

    `again` is 0, or the number of a recomputed copy, which must not be merged back into the original.
    """

    __slots__ = ("__weakref__", "again", "attrs", "op", "src", "type")

    op: Op
    src: tuple[Node, ...]
    attrs: Mapping[str, Attr]
    again: int
    type: Types

    def __init__(self, op: Op, src: tuple[Node, ...], attrs: Mapping[str, Attr], again: int, type: Types):
        self.op, self.src, self.attrs, self.again, self.type = op, src, attrs, again, type

    @property
    def ty(self) -> TensorType:
        """The type of a node with one result."""
        if isinstance(self.type, tuple):
            raise VerifyError(f"{self.op.name} has {len(self.type)} results; pick one with item(x, index=i)")
        return self.type

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        return self.type if isinstance(self.type, tuple) else (self.type,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the one result."""
        return self.ty.shape

    @property
    def dtype(self) -> str:
        """Element type of the one result, by its short name."""
        return self.ty.dtype

    def on(self, src: tuple[Node, ...]) -> Node:
        """The same operation on other sources; self if they are the same."""
        if src == self.src:
            return self
        return node(self.op, src, self.attrs, self.again)

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
    """The value in the one form that graphs hold it in."""
    kind = value.__class__
    if kind in PLAIN or (kind is tuple and is_flat(value)):
        return value
    found = plain(value)
    if not _is_attribute(found):
        message = (
            f"{op.name}: the attribute {name} is a number, text or tuple of such, not a {kind.__name__}: {value!r}"
        )
        raise TypeError(located(message))
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
    again: int = 0,
    type: Types | None = None,
) -> Node:
    """The one way to make a Node; equal ones are one object. `type` is given for leaves only.

    Attributes become Python's own values first, since equal numbers of other types would be the same key.

    Raises:
        TypeError: an attribute is something that no graph can hold.
    """
    attrs = {k: _attribute(op, k, v) for k, v in attrs.items()} if attrs else {}
    key = (op.name, src, tuple((k, attr_key(attrs[k])) for k in sorted(attrs)), again, type)
    made = _NODES.get(key)
    if made is None:
        if type is None:
            type = op.infer(*(s.type for s in src), **attrs)
        made = Node(op, src, attrs, again, type)
        _NODES[key] = made
    if _RECORDERS:
        _RECORDERS[-1].see(made)
    return made


class OriginRecorder:
    """Collects where nodes come from while a graph is being built; `where()` is asked once per new node."""

    def __init__(self, where: Callable[[], Origin | None]):
        self.where = where
        self.origins: dict[Node, Origin] = {}

    def see(self, made: Node) -> None:
        if made not in self.origins and (origin := self.where()) is not None:
            self.origins[made] = origin


_RECORDERS: list[OriginRecorder] = []


@contextmanager
def recording_origins(where: Callable[[], Origin | None]) -> Iterator[dict[Node, Origin]]:
    """Within: every node made is noted with `where()`, the first mention counts. Yields the notes."""
    recorder = OriginRecorder(where)
    _RECORDERS.append(recorder)
    try:
        yield recorder.origins
    finally:
        _RECORDERS.pop()


def topological(results: Iterable[Node]) -> list[Node]:
    """Every node that the results need, sources first, in an order that depends on the graph alone."""
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
    """One traced program: named inputs, named outputs, and `updates`: which result is written over which input.

    Equal graphs (same names on the same nodes) compare and hash equal; `origins` is a comment and does not count.
    """

    inputs: Mapping[str, Node]
    outputs: Mapping[str, Node]
    updates: Mapping[str, Node] = field(default_factory=dict)
    origins: Mapping[Node, Origin] = field(default_factory=dict, repr=False)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What equality compares."""
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
        """Every live node, sources first. What no result needs is not in the graph: there is no DCE pass."""
        return list(self._nodes)

    @cached_property
    def _nodes(self) -> list[Node]:
        """The same, which passes and rules ask the same graph for again and again."""
        return topological(self.results)

    def users(self) -> dict[Node, list[Node]]:
        """For every live node the nodes that read it, in graph order (a result counts as no user)."""
        users: dict[Node, list[Node]] = {}
        for n in self.nodes():
            users.setdefault(n, [])
            for s in dict.fromkeys(n.src):
                users[s].append(n)
        return users

    def map(self, fn: Callable[[Node], Node]) -> Graph:
        """Rebuild sources first; `fn` sees each node after its sources were rebuilt. Origins travel along."""
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
        """The same inputs, other results; self when nothing changed."""
        if dict(outputs) == dict(self.outputs) and dict(updates) == dict(self.updates):
            return self
        return Graph(self.inputs, outputs, updates, self.origins if origins is None else origins)
