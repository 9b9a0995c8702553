"""Parts of register-blocked kernels: tiles of accumulators, lane reductions, transposition, work split into parallel
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES, is_float
from gluongraph.errors import CompileError

SERIAL_WORK = 50_000  # multiply-adds below which a parallel region (1-2 us) costs more than it saves
# Terms that an accumulator adds up one after another. The rounding error of a chain grows with its length, so a longer
# sum is made of chains: each starts from zero, and its result is added to a second accumulator. That is one addition
# per accumulator and chain, less than 1 % of a loop over so many terms.
CHAIN = 512
Settle = Callable[[], None]  # ends a chain


def accumulator(*dtypes: str) -> str:
    """Return the dtype in which products of these dtypes are summed: f32 for 16-bit floats, else the widest of them."""
    widest = max(dtypes, key=lambda d: (is_float(d), DTYPES[d].nbytes))
    if is_float(widest):
        return widest if DTYPES[widest].nbytes >= 4 else "f32"
    return widest if DTYPES[widest].nbytes >= 4 else "i32"


def lanes(cpu: Cpu, dtype: str) -> int:
    """Return the elements of that dtype in one vector register."""
    return max(1, cpu.lanes * 4 // DTYPES[dtype].nbytes)


def ceildiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def widths(extent: int, lanes: int) -> tuple[int, ...]:
    """Split an extent into vector widths: full vectors, and one of exactly the rest.

    >>> widths(37, 16)
    (16, 16, 5)
    """
    return (lanes,) * (extent // lanes) + ((extent % lanes,) if extent % lanes else ())


def split(extent: int, step: int) -> tuple[tuple[int, int, int], ...]:
    """Split an extent into (first, step, count) runs of equal steps; the rest is a run of its own.

    >>> split(20, 6)
    ((0, 6, 3), (18, 2, 1))
    """
    full, rest = divmod(extent, step)
    runs = ((0, step, full),) if full else ()
    return (*runs, (full * step, rest, 1)) if rest else runs


def workspace(k: Kernel, space: Buf | None, dtype: str, need: int) -> Buf:
    """Return the workspace as elements of that dtype; raise CompileError if it is smaller than `need` bytes."""
    if space is None or space.size * DTYPES[space.dtype].nbytes < need:
        raise CompileError(f"{k.name} needs {need} bytes of workspace")
    return space if space.dtype == dtype else k.view(space, dtype)


class Tile:
    """Accumulators, rows x vectors, initialized with zero; indexed by constants only, so that LLVM keeps them in
    registers.

    Sums of more than CHAIN `terms` are split into chains: the caller loops over the terms with `chained`.
    """

    def __init__(self, k: Kernel, rows: int, widths: Sequence[int], dtype: str, terms: int = 0):
        self._k, self.rows, self.widths, self.dtype = k, rows, tuple(widths), dtype
        self._stride = max(widths)
        # Several buffers of a few vectors each: TVM does not place a buffer of more than 1 KiB on the stack.
        self._each = max(1, 512 // (self._stride * DTYPES[dtype].nbytes))
        self._bufs = self._zeros("acc")
        self._totals = self._zeros("total") if is_float(dtype) and terms > CHAIN else []

    def _zeros(self, name: str) -> list[Buf]:
        count, buffers = self.rows * len(self.widths), []
        for first in range(0, count, self._each):
            buffers.append(self._k.local(name, min(self._each, count - first) * self._stride, self.dtype))
        for r in range(self.rows):
            for v, width in enumerate(self.widths):
                buf, at = self._at(buffers, r, v)
                self._k.store(buf, zeros(self.dtype, width), at)
        return buffers

    def _at(self, bufs: Sequence[Buf], row: int, vector: int) -> tuple[Buf, int]:
        buf, at = divmod(row * len(self.widths) + vector, self._each)
        return bufs[buf], at * self._stride

    @property
    def settle(self) -> Settle | None:
        """The function that ends a chain; None if sums are not split into chains."""
        return self._settle if self._totals else None

    def _settle(self) -> None:
        """Add the accumulators to the totals, and start from zero again."""
        for r in range(self.rows):
            for v, width in enumerate(self.widths):
                (buf, at), (total, _) = self._at(self._bufs, r, v), self._at(self._totals, r, v)
                self._k.store(total, self._k.load(total, at, width) + self._k.load(buf, at, width), at)
                self._k.store(buf, zeros(self.dtype, width), at)

    def put(self, row: int, vector: int, value: Expr) -> None:
        """Set the sum."""
        buf, at = self._at(self._totals or self._bufs, row, vector)
        self._k.store(buf, value, at)

    def add(self, row: int, vector: int, a: Expr, b: Expr) -> None:
        """acc[row, vector] += a * b, rounded once where the target has fused multiply-add, else twice: emulating it
        would take a call for each lane."""
        buf, at = self._at(self._bufs, row, vector)
        old, left, right = self._k.load(buf, at, self.widths[vector]), self._wide(a, vector), self._wide(b, vector)
        if is_float(self.dtype):
            new = tir.llvm("llvm.fmuladd", self.dtype, self.widths[vector], left, right, old)
        else:
            new = left * right + old
        self._k.store(buf, new, at)

    def _wide(self, x: Expr, vector: int) -> Expr:
        return tir.splat(x, self.widths[vector], self.dtype)

    def get(self, row: int, vector: int) -> Expr:
        """Return the sum, without the terms of a chain that has not ended."""
        buf, at = self._at(self._totals or self._bufs, row, vector)
        return self._k.load(buf, at, self.widths[vector])


def totals(k: Kernel, sums: Sequence[Buf], terms: int) -> tuple[list[Buf], Settle | None]:
    """Return the buffers of the finished sums of that many terms, and the function that ends a chain, or None. Short
    sums and sums of integers are not split into chains and stay in their own buffers."""
    long = [sum for sum in sums if is_float(sum.dtype) and terms > CHAIN]
    total_of = {id(sum): k.local("total", sum.size, sum.dtype) for sum in long}
    for sum in long:
        k.store(total_of[id(sum)], zeros(sum.dtype, sum.size), 0)

    def settle() -> None:
        for sum in long:
            total = total_of[id(sum)]
            k.store(total, k.load(total, 0, sum.size) + k.load(sum, 0, sum.size), 0)
            k.store(sum, zeros(sum.dtype, sum.size), 0)

    return [total_of.get(id(sum), sum) for sum in sums], settle if long else None


@contextmanager
def chained(
    k: Kernel,
    settle: Settle | None,
    extents: Sequence[Value],
    each: int = 1,
    most: Sequence[int] = (),
    span: int = 0,
) -> Iterator[tuple[Expr, ...]]:
    """Nested loops over the terms of sums, one per extent; the body adds `each` terms.

    `settle()` is emitted after at most CHAIN terms and after the last; it is None where sums need no chains. `most` are
    upper bounds of extents that are known only at run time. If `span` is set, there is a single loop, and it settles
    after `span` iterations.
    """
    sizes, at, chains = most or [int(extent) for extent in extents], [], False
    with ExitStack() as stack:
        for number, (extent, size) in enumerate(zip(extents, sizes, strict=True)):
            steps = span or CHAIN // (each * math.prod(sizes[number + 1 :]))  # 0: the loops within settle
            if settle is None or chains or steps == 0 or size <= steps:
                at.append(stack.enter_context(k.loop(extent, name="k")))
            else:
                steps = span or ceildiv(size, ceildiv(size, steps))
                at.append(stack.enter_context(_chains(k, settle, extent, size, steps)))
                chains = True
        yield tuple(at)
    if settle is not None and not chains:
        settle()


def settle_in_outer_or_inner(settle: Settle | None, terms: int) -> tuple[Settle | None, Settle | None]:
    """Return the `settle` arguments of two nested uses of `chained`, outer and inner: the inner one settles if its
    `terms` are more than a chain has."""
    return (settle, None) if terms <= CHAIN else (None, settle)


@contextmanager
def _chains(k: Kernel, settle: Settle, extent: Value, size: int, span: int) -> Iterator[Expr]:
    """A loop that settles after every `span` iterations; its extent is at most `size`."""
    even = isinstance(extent, int) and extent % span == 0
    with k.loop(extent // span if even else tir.floordiv(extent + (span - 1), span), name="chain") as chain:
        first = k.bind(chain * span, "first")
        with k.loop(span if even else tir.minimum(extent - first, span), name="k") as i:
            at = k.bind(tir.index(first + i), "at")
            k.ranges.bind(at, size)
            yield at
        settle()


def lane_sums(k: Kernel, vectors: Sequence[Expr]) -> Expr:
    """Return a vector of the lane sums of the vectors; the numbers of vectors and of lanes are powers of two. The order
    of additions is a fixed tree."""
    lanes = tir.lanes_of(vectors[0])
    items = list(vectors)
    while len(items) > 1:
        items = [_pair_sums(k, items[i : i + 2], lanes) for i in range(0, len(items), 2)]
    (item,) = items
    while lanes > len(vectors):
        item = _pair_sums(k, [item], lanes // 2)
        lanes //= 2
    return item


def _pair_sums(k: Kernel, vectors: Sequence[Expr], lanes: int) -> Expr:
    """Return the sums of adjacent lanes of the concatenated vectors."""
    return k.bind(tir.shuffle(vectors, range(0, 2 * lanes, 2)) + tir.shuffle(vectors, range(1, 2 * lanes, 2)), "sums")


def transposed(k: Kernel, rows: Sequence[Expr]) -> list[Expr]:
    """Transpose a square in registers: as many vectors as each has lanes, a power of two."""
    size = len(rows)
    square = list(rows)
    distance = 1
    while distance < size:
        upper = [lane if not lane & distance else size + (lane ^ distance) for lane in range(size)]
        lower = [lane | distance if not lane & distance else size + lane for lane in range(size)]
        for i in range(size):
            if not i & distance:
                pair = [square[i], square[i + distance]]
                square[i] = k.bind(tir.shuffle(pair, upper), "t")
                square[i + distance] = k.bind(tir.shuffle(pair, lower), "t")
        distance *= 2
    return square


def padded(x: Expr, lanes: int) -> Expr:
    """Return x, zero-padded to that many lanes."""
    have = tir.lanes_of(x)
    if have == lanes:
        return x
    return tir.shuffle([x, zeros(tir.dtype_of(x), lanes - have)], range(lanes))


def zeros(dtype: str, lanes: int) -> Expr:
    """Return a vector of zeros."""
    return tir.splat(tir.const(0, dtype), lanes)


def parallel_chunks(k: Kernel, units: int, count: int, body: Callable[[Expr, Expr], None]) -> None:
    """Emit body(chunk, unit) for every unit of work, in `count` parallel chunks: the units of one chunk run one after
    another, so that a chunk may own workspace."""
    with k.loop(count, "parallel", "piece") as chunk:
        if count == units:
            body(chunk, chunk)
            return
        first, number = chunk_range(k, units, count, chunk)
        with k.loop(number, name="unit") as u:
            body(chunk, k.bind(first + u, "unit"))


def chunk_range(k: Kernel, steps: int, parts: int, part: Expr) -> tuple[Value, Value]:
    """Return the first step and the number of steps of one of `parts` even parts."""
    if parts == 1:
        return 0, steps
    if steps % parts == 0:
        return k.bind(part * (steps // parts), "first"), steps // parts
    first = k.bind(tir.floordiv(part * steps, parts), "first")
    return first, k.bind(tir.floordiv((part + 1) * steps, parts) - first, "steps")


def num_chunks(units: int, cpu: Cpu, work: float = SERIAL_WORK) -> int:
    """Return into how many parallel chunks the units are split; `work` is their total cost in multiply-adds."""
    return min(units, cpu.chunks) if work >= SERIAL_WORK else 1


def for_vectors(k: Kernel, n: int, lanes: int, body: Callable[[Value, int], None]) -> None:
    """Emit body(start, width) for full vectors, then for the rest."""
    full, rest = divmod(n, lanes)
    if full:
        with k.loop(full, name="v") as v:
            body(v * lanes if full > 1 else 0, lanes)
    if rest:
        body(full * lanes, rest)


def for_blocks(
    k: Kernel, extent: int, step: int, first: Value, count: Value, body: Callable[[Expr, int], None]
) -> None:
    """Emit body(start, size) for steps first .. first+count-1 of the extent; only its last step may be shorter."""
    full, rest = divmod(extent, step)
    with k.loop(count, name="step") as s:
        at = k.bind(tir.index(first + s), "at")
        start = k.bind(at * step, "start")
        if full:
            if rest:
                with k.when(at < full):
                    body(start, step)
            else:
                body(start, step)
        if rest:
            if full:
                with k.when(at >= full):
                    body(start, rest)
            else:
                body(start, rest)
