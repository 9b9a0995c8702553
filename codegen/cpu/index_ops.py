"""Pattern "opaque": kernels of single ops that are not elementwise, and the fallback for any op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.cpu.loops import elementwise_candidate, sweep
from gluongraph.codegen.cpu.loops import emit as emit_loops
from gluongraph.codegen.cpu.op_rule import op_rule
from gluongraph.codegen.expr.algebra import VectorAlgebra, accumulator_dtype
from gluongraph.codegen.expr.expression import size_of
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group


class SegmentSums:
    """Sums of the rows of `updates` with the same index (a row of a table), in the order of the list of indices. The
    sum of an index is stored at the position of its first occurrence.

    A sum of more than CHAIN terms is split into chains: chains after the first are accumulated in a slot of the index,
    of which there are few, and added to the sum when they end.
    """

    def __init__(self, k: Kernel, cpu: Cpu, space: Buf, sizes: tuple[int, int, int], dtype: str):
        (self.rows, self.width, self.count), self.k, self.cpu, self.dtype = sizes, k, cpu, dtype
        self.lanes, self.slots = mk.lanes(cpu, dtype), self.count // mk.CHAIN
        self.sums = k.view(space, dtype)
        self.chains = self.sums.at(self.count * self.width)
        self.first = k.view(space, "i32", (self.count + self.slots) * self.width * DTYPES[dtype].nbytes)
        self.claimed = self.first.at(self.count)
        self.rank = self.claimed.at(self.rows)  # by position: how many earlier positions have the same index
        self.counts = self.rank.at(self.count)  # by first occurrence: how often; then its slot; by slot: its index
        self.slot, self.owner = self.counts.at(self.count), self.counts.at(2 * self.count)

    @staticmethod
    def workspace(rows: int, width: int, count: int, dtype: str) -> int:
        """Return the bytes of workspace."""
        slots = count // mk.CHAIN
        numbers = 4 * count + slots if slots else count
        return (count + slots) * width * DTYPES[dtype].nbytes + 4 * (rows + numbers)

    def sum_updates(self, row: Callable[[Expr], Expr], updates: Buf) -> None:
        """Compute the sums; `row(place)` is the index at a position. Threads own columns, so they do not change the
        order of additions."""
        k, width = self.k, self.width
        first_occurrences(k, row, self.count, self.claimed, self.first)
        slots = self._ranks() if self.slots else tir.index(0)
        steps = mk.ceildiv(width, self.lanes)
        num_chunks = mk.num_chunks(steps, self.cpu, float(width * self.count))

        def add(at: Expr, lanes: int) -> None:
            with k.loop(self.count, name="place") as place:
                first = k.bind(k.load(self.first, place), "first")
                new, to = k.load(updates, place * width + at, lanes), k.bind(first * width + at, "to")
                with k.when(tir.compare("equal", first, place)):
                    k.store(self.sums, new, to)
                with k.when(tir.compare("not_equal", first, place)):
                    self._add_update(place, first, at, to, new)
            if self.slots:
                self._add_open_chains(slots, at, lanes)

        with k.loop(num_chunks, "parallel", "piece") as chunk:
            start, number = mk.chunk_range(k, steps, num_chunks, chunk)
            mk.for_blocks(k, width, self.lanes, start, number, add)

    def _ranks(self) -> Expr:
        """Compute the rank of each position, and assign a slot to every index with more than one chain; return the
        number of slots."""
        k = self.k
        slots = k.local("slots", 1, "i32")
        k.store(slots, tir.index(0), 0)
        with k.loop(self.count, name="place") as place:
            first = k.bind(k.load(self.first, place), "first")
            alone = tir.compare("equal", first, place)
            rank = k.bind(tir.select(alone, tir.index(0), k.load(self.counts, first)), "rank")
            k.store(self.rank, rank, place)
            k.store(self.counts, rank + 1, first)
            with k.when(tir.compare("equal", rank, tir.index(mk.CHAIN + 1))):
                number = k.bind(k.load(slots, 0), "number")
                k.store(self.slot, number, first)
                k.store(self.owner, first, number)
                k.store(slots, number + 1, 0)
        return k.bind(k.load(slots, 0), "slots")

    def _add_update(self, place: Expr, first: Expr, at: Expr, to: Expr, new: Expr) -> None:
        k, lanes = self.k, tir.lanes_of(new)

        def add(buf: Buf, where: Expr, value: Expr) -> None:
            k.store(buf, k.load(buf, where, lanes) + value, where)

        if not self.slots:
            add(self.sums, to, new)
            return
        rank = k.bind(k.load(self.rank, place), "rank")
        with k.when(rank <= mk.CHAIN):
            add(self.sums, to, new)
        with k.when(rank > mk.CHAIN):
            chain = k.bind(k.load(self.slot, first) * self.width + at, "chain")
            number = k.bind(tir.floormod(rank - 1, mk.CHAIN), "number")
            with k.when(tir.compare("equal", number, tir.index(0))):
                k.store(self.chains, new, chain)
            with k.when(number > 0):
                add(self.chains, chain, new)
            with k.when(tir.compare("equal", number, tir.index(mk.CHAIN - 1))):
                add(self.sums, to, k.load(self.chains, chain, lanes))

    def _add_open_chains(self, slots: Expr, at: Expr, lanes: int) -> None:
        """Add the chains that have not ended to their sums."""
        k = self.k
        with k.loop(slots, name="slot") as slot:
            first = k.bind(k.load(self.owner, slot), "first")
            last = k.bind(k.load(self.counts, first) - 2, "last")  # of its last term, counted behind the first chain
            with k.when(tir.compare("not_equal", tir.floormod(last, mk.CHAIN), tir.index(mk.CHAIN - 1))):
                to = k.bind(first * self.width + at, "to")
                chain = k.load(self.chains, slot * self.width + at, lanes)
                k.store(self.sums, k.load(self.sums, to, lanes) + chain, to)


def _scatter_space(n: Node) -> int:
    """Return the bytes of workspace of a scatter_add: none if the updates of a row are one chain."""
    count = n.src[1].ty.size
    return SegmentSums.workspace(n.shape[0], size_of(n.shape[1:]), count, n.dtype) if count > mk.CHAIN else 0


def _scatter_add(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    """Copy x, then add the updates row by row, in order; threads own columns, so the order never changes. If updates
    are many, their sums are computed first, and added at the first occurrence of each index."""
    (x, indices, updates), (y,) = sources, bindings.outputs
    rows, width = n.shape[0], size_of(n.shape[1:])
    count = n.src[1].ty.size

    def row_of(place: Expr) -> Expr:
        return k.let(tir.minimum(tir.maximum(tir.cast(k.load(indices, place), "i32"), 0), rows - 1), "row")

    sums: SegmentSums | None = None
    if count > mk.CHAIN:
        assert bindings.workspace is not None
        sums = SegmentSums(k, cpu, bindings.workspace, (rows, width, count), n.dtype)
        sums.sum_updates(row_of, updates)
        updates = sums.sums
    steps = mk.ceildiv(width, cpu.lanes)
    num_chunks = mk.num_chunks(steps, cpu, float(width * (rows + count)))
    with k.loop(num_chunks, "parallel", "piece") as chunk:
        first, number = mk.chunk_range(k, steps, num_chunks, chunk)

        def copy(at: Expr, lanes: int) -> None:
            with k.loop(rows, name="row") as r:
                k.store(y, k.load(x, r * width + at, lanes), r * width + at)

        def add(at: Expr, lanes: int) -> None:
            with k.loop(count, name="update") as u:
                here = None if sums is None else k.when(tir.compare("equal", k.load(sums.first, u), u))
                with nullcontext() if here is None else here:
                    place = k.let(row_of(u) * width + at, "place")
                    k.store(y, k.load(y, place, lanes) + k.load(updates, u * width + at, lanes), place)

        mk.for_blocks(k, width, cpu.lanes, first, number, copy)
        mk.for_blocks(k, width, cpu.lanes, first, number, add)


def _first_of(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    assert bindings.workspace is not None
    (rows,), (y,) = sources, bindings.outputs
    table = k.view(bindings.workspace, "i32")
    first_occurrences(k, lambda i: k.bind(tir.cast(k.load(rows, i), "i32"), "number"), n.ty.size, table, y)


def first_occurrences(k: Kernel, key_at: Callable[[Expr], Expr], count: int, table: Buf, firsts: Buf) -> None:
    """Store for each position of a list the first position with the same number in `firsts`.

    A table over all numbers says where each occurs first. It is not initialized: an entry is valid if it is an earlier
    position that has the number, as in the sparse sets of Briggs and Torczon (1993)."""
    with k.loop(count, name="i") as i:
        number = key_at(i)
        claimed = k.bind(k.load(table, number), "said")
        earlier = tir.logical(
            "and", tir.compare("greater_equal", claimed, tir.index(0)), tir.compare("less", claimed, i)
        )
        place = k.bind(tir.select(earlier, claimed, i), "place")
        stands = tir.compare("equal", key_at(place), number)
        first = k.bind(tir.select(stands, place, i), "first")
        k.store(firsts, first, i)
        k.store(table, first, number)


def _put_rows(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    """Copy x, unless the result is stored in place, then overwrite the given rows."""
    (x, rows, values), (y,) = sources, bindings.outputs
    count, width, lanes = n.src[1].ty.size, size_of(n.shape[1:]), mk.lanes(cpu, n.dtype)
    if y is not x:
        _copy_rows(k, cpu, x, y, (1, n.ty.size, n.ty.size))

    def put(_: Expr, number: Expr) -> None:
        row = k.bind(tir.cast(k.load(rows, number), "i32"), "row")

        def write(at: Value, vector_lanes: int) -> None:
            k.store(y, k.load(values, number * width + at, vector_lanes), row * width + at)

        above, end = tir.compare("greater_equal", row, tir.index(0)), tir.index(n.shape[0])
        with k.when(tir.logical("and", above, tir.compare("less", row, end))):
            mk.for_vectors(k, width, lanes, write)

    mk.parallel_chunks(k, count, mk.num_chunks(count, cpu, float(count * width)), put)


def _concat(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    """Copy one source after another to its columns of every row."""
    (y,) = bindings.outputs
    axis = n.attrs["axis"]
    rows, width, start = size_of(n.shape[:axis]), size_of(n.shape[axis:]), 0
    for x, s in zip(sources, n.src, strict=True):
        size = size_of(s.shape[axis:])
        _copy_rows(k, cpu, x, y.at(start), (rows, size, width))
        start += size


def _copy_rows(k: Kernel, cpu: Cpu, x: Buf, y: Buf, sizes: tuple[int, int, int]) -> None:
    rows, size, width = sizes

    def copy(outer: tuple[Value, ...], at: Value, lanes: int) -> None:
        (row,) = outer
        k.store(y, k.load(x, row * size + at, lanes), row * width + at)

    sweep(k, cpu, (rows, size), mk.lanes(cpu, x.dtype), 1, copy)


def _cumsum(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    """Along the last axis a vector at a time, by a log-step prefix sum of its lanes; along other axes as vectors over
    columns. A long running sum is split into chains: the total of the earlier chains is added to the sums of each."""
    (x,), (y,), e = sources, bindings.outputs, VectorAlgebra(k)
    axis, dtype = n.attrs["axis"], accumulator_dtype(n.dtype)
    rows, length, width = size_of(n.shape[:axis]), n.shape[axis], size_of(n.shape[axis + 1 :])

    def column(outer: tuple[Value, ...], at: Value, lanes: int) -> None:
        (row,) = outer
        total = k.local("total", lanes, dtype)
        k.store(total, tir.splat(tir.const(0, dtype), lanes), 0)
        (before,), settle = mk.totals(k, [total], length)
        with mk.chained(k, settle, [length]) as (i,):
            place = k.let((row * length + i) * width + at, "place")
            k.store(total, k.load(total, 0, lanes) + e.cast(k.load(x, place, lanes), dtype), 0)
            sums = k.load(total, 0, lanes)
            k.store(y, sums if settle is None else k.load(before, 0, lanes) + sums, place)

    if width > 1:
        sweep(k, cpu, (rows, width), cpu.lanes, length, column)
        return

    def line(_: Expr, row: Expr) -> None:
        total = k.local("total", 1, dtype)
        k.store(total, tir.const(0, dtype), 0)
        full, rest = divmod(length, cpu.lanes)
        (before,), settle = mk.totals(k, [total], full)

        def vector(at: Value, lanes: int) -> None:
            place = k.let(tir.index(row * length + at), "place")
            sums = _prefix_sums(k, e.cast(k.load(x, place, lanes), dtype))
            sums = k.let(sums + tir.splat(k.let(k.load(total, 0)), lanes))
            k.store(y, sums if settle is None else sums + tir.splat(k.let(k.load(before, 0)), lanes), place)
            k.store(total, tir.shuffle([sums], [lanes - 1]) if lanes > 1 else sums, 0)

        if full:
            with mk.chained(k, settle, [full]) as (v,):
                vector(v * cpu.lanes, cpu.lanes)
        if rest:
            vector(full * cpu.lanes, rest)

    mk.parallel_chunks(k, rows, mk.num_chunks(rows, cpu, 4.0 * rows * length), line)


def _prefix_sums(k: Kernel, x: Expr) -> Expr:
    """Return the inclusive prefix sums of the lanes."""
    lanes, distance = tir.lanes_of(x), 1
    zero = tir.splat(tir.const(0, tir.dtype_of(x)), lanes)
    while distance < lanes:
        x = k.let(x)
        x = x + tir.shuffle([zero, x], range(lanes - distance, 2 * lanes - distance))
        distance *= 2
    return k.let(x)


def _max_pool_grad(k: Kernel, n: Node, sources: Sequence[Buf], bindings: Bindings, cpu: Cpu) -> None:
    """Set each channel to zero, then add each window's gradient to its first largest element."""
    (x, y, g), (z,) = sources, bindings.outputs
    planes, image, small = n.shape[0] * n.shape[1], n.shape[2:], n.src[1].shape[2:]

    def plane(_: Expr, number: Expr) -> None:
        start = k.let(number * size_of(image), "start")
        mk.for_vectors(k, size_of(image), cpu.lanes, lambda at, lanes: k.store(z, _zeros(n.dtype, lanes), start + at))
        with k.nest(small) as window:
            place = k.let((number * small[0] + window[0]) * small[1] + window[1], "place")
            first = start + _first_largest(k, n, x, start, window, k.let(k.load(y, place)))
            first = k.let(first, "first")
            k.store(z, k.load(z, first) + k.load(g, place), first)

    mk.parallel_chunks(k, planes, mk.num_chunks(planes, cpu, 10.0 * y.size), plane)


def _zeros(dtype: str, lanes: int) -> Expr:
    return tir.splat(tir.const(0, dtype), lanes)


def _first_largest(k: Kernel, n: Node, x: Buf, start: Expr, window: tuple[Value, ...], largest: Expr) -> Expr:
    """Return the position in its image of a window's first element equal to `largest`. Positions outside of the image
    are clamped to its edge, which such a window contains too."""
    a, (height, width) = n.attrs, n.shape[2:]
    rows, columns = (
        [k.let(tir.minimum(tir.maximum(w * stride + (j - padding), 0), size - 1), "edge") for j in range(kernel)]
        for w, kernel, stride, padding, size in zip(
            window, a["kernel"], a["stride"], a["padding"], (height, width), strict=True
        )
    )
    places = [k.let(r * width + c, "place") for r in rows for c in columns]
    found = places[0]
    for place in reversed(places):
        found = tir.select(tir.compare("equal", k.load(x, start + place), largest), place, found)
    return found


def _claim_any(group: Group, cpu: Cpu) -> Candidate | None:
    computing = [n for n in group.body.nodes() if n.op.kind != "leaf" and n.op.name not in ("expand", "reshape")]
    if len(computing) > 1 or group.inplace or len({t.shape for t in group.outputs}) > 1:
        return None
    return elementwise_candidate("fallback", group)


INDEX_RULES = (
    op_rule("scatter_add", _scatter_add, ("f32", "f64"), _scatter_space),
    op_rule("first_of", _first_of, workspace=lambda n: 4 * int(n.attrs["size"])),
    op_rule("put_rows", _put_rows),
    op_rule("max_pool2d_grad", _max_pool_grad, ("f32", "f64")),
    op_rule("concat", _concat),
    op_rule("cumsum", _cumsum),
)
FALLBACK = Rule("fallback", _claim_any, emit_loops)
