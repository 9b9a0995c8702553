"""Common parts of both attention kernels: extents, strides of heads in memory, and which keys a query attends to."""

from __future__ import annotations

from dataclasses import dataclass

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.rule import Bindings, Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Group
from gluongraph.ops.views import View, read, written

NAMES = ("attention", "attention_grad")
QUERIES = 64  # queries of a block, whose scores stay in cache
MASKED_SCORE = -1e30  # the score of a masked key; finite, so that a row of masked keys only gives no NaN


@dataclass(frozen=True)
class Shape:
    """Extents of an attention: heads of all samples, queries, keys, size of a key, size (`width`) of a value."""

    heads: int
    queries: int
    keys: int
    size: int
    width: int

    @classmethod
    def of(cls, n: Node) -> Shape:
        """Return the extents of a node; the first source of a gradient is the upstream gradient."""
        q, k, v = (s.shape for s in n.src[n.op.name == "attention_grad" :][:3])
        return cls(q[0] * q[1], q[2], k[2], q[3], v[3])

    def num_chunks(self, cpu: Cpu) -> int:
        """Return the number of parallel chunks."""
        work = self.heads * self.queries * self.keys * (self.size + self.width)
        return mk.num_chunks(self.heads, cpu, work)

    @property
    def block(self) -> int:
        """Queries of a block, whose scores are in the workspace at a time."""
        return min(QUERIES, self.queries)


@dataclass(frozen=True)
class Rows:
    """The rows of one head of an array, `pitch` elements from one to the next."""

    buf: Buf
    pitch: int

    def at(self, k: Kernel, first: Value) -> Rows:
        """Return the rows from `first` on."""
        return Rows(self.buf.at(k.bind(tir.index(first * self.pitch), "rows")), self.pitch)


@dataclass(frozen=True)
class Heads:
    """An array (B, H, rows, columns) as a strided view of a buffer."""

    buf: Buf
    view: View

    def rows(self, k: Kernel, number: Expr) -> Rows:
        """Return the rows of a head; heads are numbered through all samples."""
        _, heads, _, _ = self.view.shape
        sample, head, pitch, _ = self.view.strides
        at = number * head
        if sample != heads * head:
            at = tir.floordiv(number, heads) * sample + tir.floormod(number, heads) * head
        return Rows(self.buf.at(k.bind(at + self.view.start, "head")), pitch)


@dataclass(frozen=True)
class AttentionViews:
    """An attention or its gradient, with the data movement around it as views: the group's input that each source is a
    view of; by result index, the group's output that contains the result as a view."""

    node: Node
    sources: tuple[tuple[Node, View], ...]
    results: dict[int, tuple[Node, View]]

    @classmethod
    def of(cls, group: Group) -> AttentionViews | None:
        """Return those of a group that contains one attention and movement only; else None."""
        found = [n for n in group.body.nodes() if n.op.name in NAMES]
        if group.pattern != "opaque" or len(found) != 1:
            return None
        (n,) = found
        sources: list[tuple[Node, View]] = []
        for s in n.src:
            path, view = read(s) if s.dtype != "bool" else ([], View.of(s.shape))
            sources.append((path[-1].src[0] if path else s, view))
        results: dict[int, tuple[Node, View]] = {}
        for y in group.body.outputs.values():
            parts = written(y)
            if parts is None or any(each is not n and each.src != (n,) for each in parts):
                return None
            for each, view in parts.items():
                results[each.attrs["index"] if each.op.name == "get_tuple_element" else 0] = y, view
        return cls(n, tuple(sources), results) if all(root.op.name == "input" for root, _ in sources) else None

    def memory(self, group: Group, bindings: Bindings) -> tuple[list[Heads], dict[int, Heads]]:
        """Return the sources, and the results by index, in the buffers of a kernel."""
        inputs = bindings.by_node(group)
        outputs = dict(zip(group.body.outputs.values(), bindings.outputs, strict=True))
        sources = [Heads(inputs[root], view) for root, view in self.sources]
        return sources, {i: Heads(outputs[y], view) for i, (y, view) in self.results.items()}


class AttentionMask:
    """Which keys a query attends to: those up to its own position if attention is causal, those that the mask tensor
    allows. A block sees the keys that any of its queries attends to."""

    def __init__(self, k: Kernel, n: Node, mask: Buf | None):
        self.k, self.shape = k, Shape.of(n)
        self.causal = bool(n.attrs["causal"])
        self.offset = self.shape.keys - self.shape.queries  # the last query sees the last key
        self.tensor = None if mask is None else (mask, n.src[-1].shape)
        self.batch = n.src[-1 - (mask is not None)].shape[1]  # heads of a sample

    def blocks(self, first: Expr, rows: int, size: int) -> Value:
        """Return how many leading blocks of `size` keys contain all that the `rows` queries from `first` on see."""
        all = mk.ceildiv(self.shape.keys, size)
        if not self.causal or self.offset < 0:  # some queries see no key, and weight all keys equally
            return all
        end = tir.floordiv(first + (rows + self.offset + size - 1), size)
        return self.k.bind(tir.minimum(tir.maximum(end, 1), all), "seen")

    @property
    def is_prefix(self) -> bool:
        """Does each query see a prefix of the keys whose length depends on the query?"""
        return self.causal and self.offset >= 0

    def keys(self, end: Expr) -> Value:
        """Return how many leading keys the queries before `end` see."""
        return tir.minimum(end + self.offset, self.shape.keys) if self.is_prefix else self.shape.keys

    def queries(self, key: Expr) -> Value:
        """Return the first query that sees a key."""
        return tir.maximum(key - self.offset, 0) if self.is_prefix else 0

    def select_visible(self, number: Expr, row: Expr, j: Value, x: Expr, other: float) -> Expr:
        """Return x, scores of keys from j on, with `other` for those that this query does not see."""
        lanes = tir.lanes_of(x)
        low = tir.splat(tir.const(other, "f32"), lanes)
        if self.causal:
            last = tir.splat(tir.index(row + self.offset), lanes)
            x = tir.select(tir.compare("less_equal", tir.ramp(j, lanes), last), x, low)
        if self.tensor is not None:
            x = tir.select(self._allowed(number, row, j, lanes), x, low)
        return x

    def _allowed(self, number: Expr, row: Expr, j: Value, lanes: int) -> Expr:
        """Load the mask tensor at these keys."""
        assert self.tensor is not None
        buf, shape = self.tensor
        full = (1,) * (4 - len(shape)) + shape
        index = (tir.floordiv(number, self.batch), tir.floormod(number, self.batch), row, j)
        at: Value = 0
        for place, extent in zip(index, full, strict=True):
            at = at * extent + (place if extent > 1 else 0)
        return self.k.load(buf, at, lanes) if full[3] > 1 else tir.splat(self.k.load(buf, at), lanes)


def larger(x: Expr, y: Expr) -> Expr:
    """Return the larger of two scores. A NaN may be ignored here: its exponential is NaN, and propagates."""
    return tir.select(tir.compare("greater", x, y), x, y)


def largest(k: Kernel, x: Expr) -> Expr:
    """Return the largest of all lanes, whose number is a power of two."""
    while (half := tir.lanes_of(x) // 2) >= 1:
        x = k.let(x)
        x = larger(tir.shuffle([x], range(half)), tir.shuffle([x], range(half, 2 * half)))
    return k.let(x)
