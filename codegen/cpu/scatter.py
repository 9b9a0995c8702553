"""Pattern "scatter": rows added into a table of zeros, with an elementwise epilogue on it, usually an update.

The table of sums is never in memory. Whatever place of the list names a row first gets the sum of all that name it, in
their order; then the results are written row by row, from that sum where there is one and from zero elsewhere.

Where a result lies over an input that a sum of zero leaves as it is, only the rows that are named are gone through.
That is SGD without momentum; its decay is known when the step runs, and so the kernel holds both ways. (A weight that
is infinite stays so in rows that are not named, where the formula's 0 * inf would make it NaN.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.contraction import epilogue
from gluongraph.codegen.cpu.index_ops import RowTotals
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group
from gluongraph.ops.constants import is_zero


def _claim(group: Group, cpu: Cpu) -> Candidate | None:
    if group.pattern != "scatter" or (table := _table(group)) is None:
        return None
    (rows, width), count = table.shape, table.src[1].ty.size
    return Candidate("scatter", RowTotals.workspace(rows, width, count, table.dtype))


def _table(group: Group) -> Node | None:
    """The sums, if they are made of inputs of the group and all its results are of their shape."""
    found = [n for n in group.body.nodes() if n.op.name == "scatter_add"]
    if len(found) != 1 or not is_zero(found[0].src[0]) or any(s.op.name != "input" for s in found[0].src[1:]):
        return None
    alike = all(n.shape == found[0].shape for n in group.body.outputs.values())
    return found[0] if alike and min(found[0].ty.size, found[0].src[1].ty.size) > 0 else None


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    table = _table(group)
    assert table is not None and bindings.workspace is not None
    job = _Job(k, group, bindings, cpu, table)
    job.add_up()
    still = _Still(group, bindings, k, table).condition()
    if still is None:
        job.all_rows()
        return
    with k.when(still):
        job.named_rows()
    with k.when(tir.logical("not", still)):
        job.all_rows()


class _Job:
    """The kernel that is being written."""

    def __init__(self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, table: Node):
        memory, space = bindings.by_node(group), bindings.workspace
        assert space is not None
        self.k, self.cpu, self.lanes = k, cpu, mk.lanes(cpu, table.dtype)
        (self.rows, self.width), self.count = table.shape, table.src[1].ty.size
        self.indices, self.updates = memory[table.src[1]], memory[table.src[2]]
        self.store = epilogue(k, group, bindings, table)
        self.totals = RowTotals(k, cpu, space, (self.rows, self.width, self.count), table.dtype)
        self.sums, self.first, self.said = self.totals.sums, self.totals.first, self.totals.said
        self.dtype = table.dtype

    def _row(self, place: Expr) -> Expr:
        """The row that a place of the list names."""
        named = tir.cast(self.k.load(self.indices, place), "i32")
        return self.k.bind(tir.minimum(tir.maximum(named, 0), self.rows - 1), "row")

    def add_up(self) -> None:
        """The sums, at the first place of each row."""
        self.totals.add_up(self._row, self.updates)

    def all_rows(self) -> None:
        """Every row of the results, from its sum or from zero."""
        k = self.k

        def row(_: Expr, row: Expr) -> None:
            said = k.bind(k.load(self.said, row), "said")
            inside = tir.logical("and", said >= 0, said < self.count)
            place = k.bind(tir.select(inside, said, tir.index(0)), "place")
            named = tir.logical("and", inside, tir.compare("equal", self._row(place), row))
            with k.when(named):
                self._write(row, place)
            with k.when(tir.logical("not", named)):
                mk.for_vectors(k, self.width, self.lanes, partial(self._write_zeros, row))

        mk.parallel_chunks(k, self.rows, mk.num_chunks(self.rows, self.cpu, float(self.rows * self.width)), row)

    def named_rows(self) -> None:
        """Those that the list names, each once."""
        k = self.k

        def at(_: Expr, place: Expr) -> None:
            with k.when(tir.compare("equal", k.load(self.first, place), place)):
                self._write(self._row(place), place)

        mk.parallel_chunks(k, self.count, mk.num_chunks(self.count, self.cpu, float(self.count * self.width)), at)

    def _write(self, row: Expr, place: Expr) -> None:
        def write(at: Value, lanes: int) -> None:
            self.store((row, at), self.k.load(self.sums, place * self.width + at, lanes))

        mk.for_vectors(self.k, self.width, self.lanes, write)

    def _write_zeros(self, row: Expr, at: Value, lanes: int) -> None:
        self.store((row, at), tir.splat(tir.const(0, self.dtype), lanes))


class _Still:
    """When do rows without a sum stay as they are? Conditions are None where that is never."""

    def __init__(self, group: Group, bindings: Bindings, k: Kernel, table: Node):
        self.k, self.table, self.memory = k, table, bindings.by_node(group)
        self.results = list(zip(group.body.outputs.values(), bindings.outputs, strict=True))
        self.known: dict[Node, Expr | None] = {}

    def condition(self) -> Expr | None:
        """Of the single numbers among the inputs some must be 0, and none infinite or NaN, which times 0 is NaN."""
        numbers = [buf for n, buf in self.memory.items() if n.ty.size == 1 and is_float(n.dtype)]
        finite: list[Expr | None] = [
            tir.compare("less", self._size_of(buf), tir.const(math.inf, "f32")) for buf in numbers
        ]
        return _all([*finite, *(self._kept(n, buf) for n, buf in self.results)])

    def _size_of(self, number: Buf) -> Expr:
        x = tir.cast(self.k.load(number, 0), "f32")
        return tir.select(x < 0.0, -x, x)

    def _kept(self, n: Node, buf: Buf) -> Expr | None:
        """x + 0 or x - 0, written over x."""
        if n.op.name not in ("add", "sub"):
            return None
        old, change = n.src
        return self._zero(change) if self.memory.get(old) is buf else None

    def _zero(self, n: Node) -> Expr | None:
        """When is n 0 in a row without a sum?"""
        if n not in self.known:
            self.known[n] = self._zero_by_op(n)
        return self.known[n]

    def _zero_by_op(self, n: Node) -> Expr | None:
        if n is self.table or is_zero(n):
            return tir.const(True, "bool")
        if n in self.memory:
            one = n.ty.size == 1
            return tir.compare("equal", self.k.load(self.memory[n], 0), tir.const(0, n.dtype)) if one else None
        if n.op.name in ("expand", "reshape", "neg", "cast"):
            return self._zero(n.src[0])
        if n.op.name in ("add", "sub"):
            return _all([self._zero(s) for s in n.src])
        if n.op.name == "mul":
            either = [c for s in n.src if (c := self._zero(s)) is not None]
            return reduce(partial(tir.logical, "or"), either) if either else None
        return None


def _all(conditions: Sequence[Expr | None]) -> Expr | None:
    found = [c for c in conditions if c is not None]
    return reduce(partial(tir.logical, "and"), found) if len(found) == len(conditions) else None


SCATTER = Rule("scatter", _claim, _emit)
