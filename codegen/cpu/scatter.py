"""Pattern "scatter": rows added into a table of zeros, with an elementwise epilogue on it, usually an update.

The table of sums is never in memory. The updates of each index are summed, in order, at its first occurrence in the
list of indices; then the results are written row by row, from that sum where there is one and from zero elsewhere.

If results are written in place over an input that a sum of zero does not change, only rows with updates are processed.
That is SGD without momentum; whether weight decay is 0 is known at run time only, so the kernel contains both variants.
(An infinite weight keeps its value in rows without updates, where the formula's 0 * inf would make it NaN.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.contraction import epilogue
from gluongraph.codegen.cpu.index_ops import SegmentSums
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
    return Candidate("scatter", SegmentSums.workspace(rows, width, count, table.dtype))


def _table(group: Group) -> Node | None:
    """Return the scatter_add of a group if its operands are inputs of the group and all outputs have its shape."""
    found = [n for n in group.body.nodes() if n.op.name == "scatter_add"]
    if len(found) != 1 or not is_zero(found[0].src[0]) or any(s.op.name != "input" for s in found[0].src[1:]):
        return None
    alike = all(n.shape == found[0].shape for n in group.body.outputs.values())
    return found[0] if alike and min(found[0].ty.size, found[0].src[1].ty.size) > 0 else None


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    table = _table(group)
    assert table is not None and bindings.workspace is not None
    job = _Job(k, group, bindings, cpu, table)
    job.sum_updates()
    unchanged = _UnchangedRows(group, bindings, k, table).condition()
    if unchanged is None:
        job.all_rows()
        return
    with k.when(unchanged):
        job.updated_rows()
    with k.when(tir.logical("not", unchanged)):
        job.all_rows()


class _Job:
    """Emits the kernel."""

    def __init__(self, k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, table: Node):
        memory, space = bindings.by_node(group), bindings.workspace
        assert space is not None
        self.k, self.cpu, self.lanes = k, cpu, mk.lanes(cpu, table.dtype)
        (self.rows, self.width), self.count = table.shape, table.src[1].ty.size
        self.indices, self.updates = memory[table.src[1]], memory[table.src[2]]
        self.store = epilogue(k, group, bindings, table)
        self.totals = SegmentSums(k, cpu, space, (self.rows, self.width, self.count), table.dtype)
        self.sums, self.first, self.claimed = self.totals.sums, self.totals.first, self.totals.claimed
        self.dtype = table.dtype

    def _row(self, place: Expr) -> Expr:
        """Return the index, a row of the table, at a position of the list."""
        named = tir.cast(self.k.load(self.indices, place), "i32")
        return self.k.bind(tir.minimum(tir.maximum(named, 0), self.rows - 1), "row")

    def sum_updates(self) -> None:
        """Compute the sums, stored at the first occurrence of each index."""
        self.totals.sum_updates(self._row, self.updates)

    def all_rows(self) -> None:
        """Write every row of the results, from its sum or from zero."""
        k = self.k

        def row(_: Expr, row: Expr) -> None:
            claimed = k.bind(k.load(self.claimed, row), "said")
            inside = tir.logical("and", claimed >= 0, claimed < self.count)
            place = k.bind(tir.select(inside, claimed, tir.index(0)), "place")
            named = tir.logical("and", inside, tir.compare("equal", self._row(place), row))
            with k.when(named):
                self._write(row, place)
            with k.when(tir.logical("not", named)):
                mk.for_vectors(k, self.width, self.lanes, partial(self._write_zeros, row))

        mk.parallel_chunks(k, self.rows, mk.num_chunks(self.rows, self.cpu, float(self.rows * self.width)), row)

    def updated_rows(self) -> None:
        """Write the rows with updates, each once."""
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


class _UnchangedRows:
    """The condition under which rows without updates are unchanged; None: never."""

    def __init__(self, group: Group, bindings: Bindings, k: Kernel, table: Node):
        self.k, self.table, self.memory = k, table, bindings.by_node(group)
        self.results = list(zip(group.body.outputs.values(), bindings.outputs, strict=True))
        self.known: dict[Node, Expr | None] = {}

    def condition(self) -> Expr | None:
        """Return the condition: some of the scalar inputs are 0, and none is infinite or NaN, which times 0 is NaN."""
        numbers = [buf for n, buf in self.memory.items() if n.ty.size == 1 and is_float(n.dtype)]
        finite: list[Expr | None] = [
            tir.compare("less", self._magnitude(buf), tir.const(math.inf, "f32")) for buf in numbers
        ]
        return _all_of([*finite, *(self._is_unchanged(n, buf) for n, buf in self.results)])

    def _magnitude(self, number: Buf) -> Expr:
        x = tir.cast(self.k.load(number, 0), "f32")
        return tir.select(x < 0.0, -x, x)

    def _is_unchanged(self, n: Node, buf: Buf) -> Expr | None:
        """Return the condition that an output is x + 0 or x - 0, written in place over x."""
        if n.op.name not in ("add", "sub"):
            return None
        old, change = n.src
        return self._zero(change) if self.memory.get(old) is buf else None

    def _zero(self, n: Node) -> Expr | None:
        """Return the condition that n is 0 in a row without updates."""
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
            return _all_of([self._zero(s) for s in n.src])
        if n.op.name == "mul":
            either = [c for s in n.src if (c := self._zero(s)) is not None]
            return reduce(partial(tir.logical, "or"), either) if either else None
        return None


def _all_of(conditions: Sequence[Expr | None]) -> Expr | None:
    found = [c for c in conditions if c is not None]
    return reduce(partial(tir.logical, "and"), found) if len(found) == len(conditions) else None


SCATTER = Rule("scatter", _claim, _emit)
