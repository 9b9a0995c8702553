"""What both ways to compute attention share: its extents, where heads lie in memory, and which keys a query sees."""

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
QUERIES = 64  # a block of rows of scores, which stay in cache
UNSEEN = -1e30  # the score of a key that is not seen; finite, so that a row of nothing else gives no NaN


@dataclass(frozen=True)
class Shape:
    """Extents of an attention: heads of all samples, queries T, keys S, sizes of a key and of a value."""

    heads: int
    queries: int
    keys: int
    size: int
    width: int

    @classmethod
    def of(cls, n: Node) -> Shape:
        """Those of a node; the first source of a gradient is the upstream gradient."""
        q, k, v = (s.shape for s in n.src[n.op.name == "attention_grad" :][:3])
        return cls(q[0] * q[1], q[2], k[2], q[3], v[3])

    def num_chunks(self, cpu: Cpu) -> int:
        """Parallel chunks."""
        work = self.heads * self.queries * self.keys * (self.size + self.width)
        return mk.num_chunks(self.heads, cpu, work)

    @property
    def block(self) -> int:
        """Queries whose scores are held at a time."""
        return min(QUERIES, self.queries)


@dataclass(frozen=True)
class Rows:
    """The rows of one head of an array, `pitch` elements from one to the next."""

    buf: Buf
    pitch: int

    def at(self, k: Kernel, first: Value) -> Rows:
        """Those from a row on."""
        return Rows(self.buf.at(k.bind(tir.index(first * self.pitch), "rows")), self.pitch)


@dataclass(frozen=True)
class Heads:
    """An array (B, H, rows, columns) within other memory."""

    buf: Buf
    view: View

    def rows(self, k: Kernel, number: Expr) -> Rows:
        """The head of that number, of all samples."""
        _, heads, _, _ = self.view.shape
        sample, head, pitch, _ = self.view.strides
        at = number * head
        if sample != heads * head:
            at = tir.floordiv(number, heads) * sample + tir.floormod(number, heads) * head
        return Rows(self.buf.at(k.bind(at + self.view.start, "head")), pitch)


@dataclass(frozen=True)
class Places:
    """An attention or its gradient, with what movement there is around it: the input that each source is a view of;
    the output that each result lies in, by the number of the result."""

    node: Node
    sources: tuple[tuple[Node, View], ...]
    results: dict[int, tuple[Node, View]]

    @classmethod
    def of(cls, group: Group) -> Places | None:
        """Those of a group that holds nothing else."""
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
        """The sources, and the results by number, in the memory of a kernel."""
        inputs = bindings.by_node(group)
        outputs = dict(zip(group.body.outputs.values(), bindings.outputs, strict=True))
        sources = [Heads(inputs[root], view) for root, view in self.sources]
        return sources, {i: Heads(outputs[y], view) for i, (y, view) in self.results.items()}


class AttentionMask:
    """Which keys a query sees: those up to its own place where attention is causal, those that the mask allows."""

    def __init__(self, k: Kernel, n: Node, mask: Buf | None):
        self.k, self.shape = k, Shape.of(n)
        self.causal = bool(n.attrs["causal"])
        self.ahead = self.shape.keys - self.shape.queries  # the last query sees the last key
        self.mask = None if mask is None else (mask, n.src[-1].shape)
        self.batch = n.src[-1 - (mask is not None)].shape[1]  # heads of a sample

    def blocks(self, first: Expr, rows: int, size: int) -> Value:
        """How many blocks of that many keys hold all that the queries from `first` on see."""
        all = mk.ceildiv(self.shape.keys, size)
        if not self.causal or self.ahead < 0:  # then there are queries that see nothing, and weigh all keys alike
            return all
        end = tir.floordiv(first + (rows + self.ahead + size - 1), size)
        return self.k.bind(tir.minimum(tir.maximum(end, 1), all), "seen")

    @property
    def ends(self) -> bool:
        """Does a query see a first part of the keys, which depends on the query?"""
        return self.causal and self.ahead >= 0

    def keys(self, end: Expr) -> Value:
        """How many keys the queries before `end` see."""
        return tir.minimum(end + self.ahead, self.shape.keys) if self.ends else self.shape.keys

    def queries(self, key: Expr) -> Value:
        """The first query that sees that key."""
        return tir.maximum(key - self.ahead, 0) if self.ends else 0

    def only(self, number: Expr, row: Expr, j: Value, x: Expr, other: float) -> Expr:
        """x, for keys from j on, where this query sees them."""
        lanes = tir.lanes_of(x)
        low = tir.splat(tir.const(other, "f32"), lanes)
        if self.causal:
            last = tir.splat(tir.index(row + self.ahead), lanes)
            x = tir.select(tir.compare("less_equal", tir.ramp(j, lanes), last), x, low)
        if self.mask is not None:
            x = tir.select(self._allowed(number, row, j, lanes), x, low)
        return x

    def _allowed(self, number: Expr, row: Expr, j: Value, lanes: int) -> Expr:
        """The mask at these keys."""
        assert self.mask is not None
        buf, shape = self.mask
        full = (1,) * (4 - len(shape)) + shape
        places = (tir.floordiv(number, self.batch), tir.floormod(number, self.batch), row, j)
        at: Value = 0
        for place, extent in zip(places, full, strict=True):
            at = at * extent + (place if extent > 1 else 0)
        return self.k.load(buf, at, lanes) if full[3] > 1 else tir.splat(self.k.load(buf, at), lanes)


def larger(x: Expr, y: Expr) -> Expr:
    """The larger of two scores. A NaN may be passed over here: its exponential is one, and goes on."""
    return tir.select(tir.compare("greater", x, y), x, y)


def largest(k: Kernel, x: Expr) -> Expr:
    """That of all lanes, whose number is a power of two."""
    while (half := tir.lanes_of(x) // 2) >= 1:
        x = k.let(x)
        x = larger(tir.shuffle([x], range(half)), tir.shuffle([x], range(half, 2 * half)))
    return k.let(x)
