"""Direct convolutions with vectors over images: forward and the gradient of the data, register-blocked.

In the NCHWn layout (conv_common.py) a tile of accumulators holds some channels of adjacent pixels of a row, each a
vector over images. Taps outside the image are skipped, so nothing is padded. Finished rows are unpacked to NCHW, unless
the result is stored as NCHWn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.conv_common import (
    Conv,
    Job,
    Pair,
    Pixels,
    Weights,
    WriteImages,
    WritePixels,
    channel_step,
    pack_blocked,
    plane,
    sizes,
)
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.dtypes import DTYPES

Columns = tuple[int | None, ...]
PREFETCH_DISTANCE = 5  # channels: one takes some 70 cycles, a load from memory a few hundred
LINE = 16  # weights of a cache line


@dataclass(frozen=True)
class _Tile:
    """Adjacent output columns; `count` adjacent tiles use the same taps at the same relative columns. `taps` has for
    each tap the source column of each output column, relative to `scaled(start)`, or None outside the image."""

    first: int
    width: int
    count: int
    taps: tuple[tuple[int, Columns], ...]

    @property
    def live(self) -> int:
        """How many source columns are live in registers at once."""
        uses = [{c for c in columns if c is not None} for _, columns in self.taps]
        last = {c: t for t, used in enumerate(uses) for c in used}
        first = {c: t for t, used in reversed(list(enumerate(uses))) for c in used}
        return max((sum(first[c] <= t <= last[c] for c in last) for t in range(len(uses))), default=0)

    @property
    def loads(self) -> int:
        """How many source columns are loaded."""
        return len({c for _, columns in self.taps for c in columns if c is not None})


class _ToImages(Job):
    """A convolution whose result is images: forward, or the gradient of the data."""

    by_rows = False  # must a vector that is read from the source not cross the end of a row?

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.blocks = mk.ceildiv(conv.n, self.lanes)
        self.kernel = conv.kernel
        self.source, self.target, self.reduced, self.produced = self._sides()
        self.rows, self.width = self._tile_shape()
        rows = self.target[0]  # a strip's rows divide those of the image, and fill a vector with pixels if possible
        self.strip = next(
            r for r in range(1, rows + 1) if rows % r == 0 and (r * self.target[1] >= self.lanes or r == rows)
        )
        self.steps = mk.ceildiv(self.produced, self.rows)
        self._block = self.lanes * conv.groups * self.reduced * plane(conv, self.source)
        self._copy = 0 if conv.blocks else self.blocks * self._block
        self.down, self.across = self._grid()
        finished = self.width if conv.blocks else self.strip * self.target[1]  # pixels in memory before the epilogue
        self._slot = self.rows * finished * self.lanes

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        """Return rows and columns of source and target, and the channels of a group that are summed over, and that are
        produced."""

    @abstractmethod
    def column(self, at: int, tap: int) -> int | None:
        """Return the source column of a target column under a tap; None if it is outside."""

    @abstractmethod
    def scaled(self, at: Value) -> Value:
        """Return the source column that the source columns of a tile are relative to."""

    @abstractmethod
    def row(self, at: Expr, tap_row: Expr) -> tuple[Expr | None, Expr]:
        """Return the condition that the source row of a target row under a row of taps exists, or None if it always
        does, and the source row."""

    def taps(self, tap_row: Expr) -> Expr:
        """Return the row of the kernel of an iteration, so that source rows ascend."""
        return tap_row

    @abstractmethod
    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        """Return (output channel, q) of the weight between two channels of a group."""

    def prefetch(self, k: Kernel, w: Weights, group: Value, produced: Value, reduced: Value, size: int) -> None:
        """Prefetch the weights of a later channel of the reduction, if they are not contiguous with this one's."""

    # What they share.

    @property
    def workspace(self) -> int:
        """Bytes."""
        return (self._copy + self.num_chunks(self.units) * self._slot) * DTYPES[self.dtype].nbytes

    @property
    def units(self) -> int:
        """Units of work: some strips and some channels of one block each."""
        return self.blocks * self.down * self.across

    def _grid(self) -> Pair:
        """Return into how many parts a block is split along strips and along channels: of the grids with most parts the
        one that rereads the fewest weights and source elements."""
        want = 1 if self.serial else mk.ceildiv(self.cpu.chunks, self.blocks)
        strips, steps, weights = self.target[0] // self.strip, self.steps * self.conv.groups, self.conv.o * self.conv.q
        grids = [(min(want // across, strips), min(across, steps)) for across in range(1, want + 1)]
        return min(grids, key=lambda grid: (-grid[0] * grid[1], grid[0] * weights + grid[1] * self._block))

    def _tile_shape(self) -> Pair:
        """Return channels and columns of a tile of accumulators with the least estimated time for one row of all
        channels. The source columns of a row stay in registers, besides the accumulators, while taps use them."""
        best = (float("inf"), 1, 1)
        for columns in range(min(4, self.target[1]), min(self.target[1], self.cpu.registers) + 1):
            tiles = self.tiles(columns)
            room = (self.cpu.registers - max(tile.live for tile in tiles) - 3) // columns
            if room < 1:
                continue
            rows = mk.ceildiv(self.produced, mk.ceildiv(self.produced, min(self.produced, room)))
            runs = mk.split(self.produced, rows)
            cost = sum(steps * tile.count * self._step(r, tile) for _, r, steps in runs for tile in tiles)
            best = min(best, (cost * (1 + 0.03 * len(tiles) * len(runs)), rows, columns))
        return best[1], best[2]

    def _step(self, rows: int, tile: _Tile) -> float:
        """Return the estimated cycles of a tile for one source row of one channel."""
        products = sum(column is not None for _, columns in tile.taps for column in columns)
        loads = tile.loads + len(tile.taps) * rows
        source = self.reduced * self.kernel[0] * tile.loads * self.lanes * DTYPES[self.dtype].nbytes
        # Columns from L2 cost time where a stride defeats the hardware prefetcher.
        far = 1.0 if source > self.cpu.l1 and self.conv.stride[1] > 1 else 0.0
        return max(rows * products / 2, 4.0 * len(tile.taps), loads / 2) + 0.15 * loads + far * tile.loads

    def tiles(self, width: int) -> list[_Tile]:
        """Return the columns of a row of the target, cut into tiles; equal adjacent tiles are one entry."""
        cut = []
        for first, size, count in mk.split(self.target[1], width):
            for t in range(count):
                start = first + t * size
                cut.append((start, size, self._taps(start, size)))
        grouped = [list(group) for _, group in groupby(cut, key=lambda tile: tile[1:])]
        return [_Tile(group[0][0], group[0][1], len(group), group[0][2]) for group in grouped]

    def _taps(self, start: int, size: int) -> tuple[tuple[int, Columns], ...]:
        """Return the taps that any of these columns uses; taps that share source columns follow each other."""
        origin, step = int(self.scaled(start)), self.conv.stride[1]
        value = []
        for tap in sorted(range(self.kernel[1]), key=lambda tap: (tap * self.conv.dilation[1] % step, tap)):
            columns = [self.column(start + i, tap) for i in range(size)]
            if any(column is not None for column in columns):
                value.append((tap, tuple(None if column is None else column - origin for column in columns)))
        return tuple(value)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Emit the loops."""
        space = self.slots(k, workspace)
        pack_blocked(k, self, read, self.conv.groups * self.reduced, self.source, space, self.by_rows)
        strips = space.at(self._copy)

        def store_in_strip(acc: mk.Tile, slot: Buf, tile: _Tile, at: tuple[Expr, ...]) -> None:
            """Store a tile in its strip, [channel][pixel][image]."""
            _, _, _, h, start = at
            for r in range(acc.rows):
                place = k.bind(((h + r * self.strip) * self.target[1] + start) * self.lanes, "at")
                for i in range(tile.width):
                    k.store(slot, acc.get(r, i), place + i * self.lanes)

        self._convolve(k, space, w, strips, store_in_strip, partial(self._unpack_and_store, k, write))

    def emit_blocked(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Emit the loops for source and result in the NCHWn layout."""

        def store_tile(acc: mk.Tile, slot: Buf, tile: _Tile, at: tuple[Expr, ...]) -> None:
            """Store a tile through the epilogue, from memory: so the epilogue is emitted once, in a loop."""
            block, row, channel, h, start = at
            for r in range(acc.rows):
                for i in range(tile.width):
                    k.store(slot, acc.get(r, i), (r * tile.width + i) * self.lanes)
            with k.loop(acc.rows, name="r") as r, k.loop(tile.width, name="i") as i:
                value = k.bind(k.load(slot, (r * tile.width + i) * self.lanes, self.lanes), "value")
                write(block, k.bind(channel + r, "channel"), k.bind(row + h, "row"), k.bind(start + i, "column"), value)

        self._convolve(k, images, w, self.slots(k, workspace), store_tile)

    def _convolve(
        self,
        k: Kernel,
        images: Buf,
        w: Weights,
        slots: Buf,
        put: Callable[[mk.Tile, Buf, _Tile, tuple[Expr, ...]], None],
        finish: Callable[..., None] | None = None,
    ) -> None:
        """Emit the loops. `put(accumulators, slot, tile, (block, row, channel, row of the strip, column))` stores each
        tile of a strip; `finish(slot, block, row, channel, channels)` follows when some channels of it are complete."""
        conv = self.conv

        def unit(chunk: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, self.across), "outer")
            block = k.bind(tir.floordiv(outer, self.down), "block")
            x, y = k.bind(tir.floormod(unit, self.across), "x"), k.bind(tir.floormod(outer, self.down), "y")
            first, count = mk.chunk_range(k, self.steps * conv.groups, self.across, x)
            top, strips = mk.chunk_range(k, self.target[0] // self.strip, self.down, y)
            slot = slots.at(k.bind(chunk * self._slot, "slot"))

            steps = (conv.groups, self.produced, self.rows, first, count)
            with k.loop(strips, name="strip") as t, channel_step(k, *steps) as (group, produced, number):
                row = k.bind((top + t) * self.strip, "row")
                channel = group * self.produced + produced
                for size in sizes(k, number, self.rows, self.produced):
                    with k.loop(self.strip, name="h") as h:
                        for tile in self.tiles(self.width):
                            with k.loop(tile.count, name="w") as s:
                                start = k.bind(s * tile.width + tile.first, "w")
                                place = (block, k.bind(row + h, "h"), start, group, produced)
                                acc = self._tile(k, images, w, tile, place, size)
                                put(acc, slot, tile, (block, row, channel, h, start))
                if finish is not None:
                    finish(slot, block, row, channel, number)

        self.for_units(k, self.units, unit)

    def _tile(self, k: Kernel, images: Buf, w: Weights, tile: _Tile, place: tuple[Expr, ...], size: int) -> mk.Tile:
        """Compute `size` channels of the tile's columns, at `place`: (block, row, column, group, channel of it)."""
        block, h, start, group, produced = place
        acc = mk.Tile(k, size, (self.lanes,) * tile.width, self.dtype, self.reduced * self.kernel[0] * len(tile.taps))
        if not tile.taps:
            return acc
        with self._reduction_loops(k, w, (h, group, produced), size, acc.settle, len(tile.taps)) as (c, kh, source):
            channel = (block * self.conv.groups + group) * self.reduced + c
            base = channel * plane(self.conv, self.source) + source * self.source[1] + self.scaled(start)
            at = k.bind(base * self.lanes, "at")
            loaded: dict[int, Expr] = {}
            for tap, columns in tile.taps:
                for column in columns:
                    if column is not None and column not in loaded:
                        value = k.load(images, at + column * self.lanes, self.lanes)
                        loaded[column] = k.bind(tir.cast(value, self.dtype), "x")
                for r in range(size):
                    o, q = self.weight(group, produced + r, c, kh * self.kernel[1] + tap)
                    weight = k.bind(tir.cast(w(o, q, 1), self.dtype), "w")
                    for i, column in enumerate(columns):
                        if column is not None:
                            acc.add(r, i, weight, loaded[column])
        return acc

    @contextmanager
    def _reduction_loops(
        self, k: Kernel, w: Weights, place: tuple[Expr, ...], size: int, settle: mk.Settle | None, taps: int
    ) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The reduction loops of a row: (channel, row of the kernel, row of the source). Channels are outermost, since
        the weights of a channel are contiguous, unless all weights fit L1."""
        h, group, produced = place
        if self.conv.o * self.conv.q * DTYPES[self.dtype].nbytes <= self.cpu.l1:
            outer, inner = mk.settle_in_outer_or_inner(settle, self.reduced * taps)
            with mk.chained(k, outer, [self.kernel[0]], self.reduced * taps) as (tap_row,):
                inside, source = self.row(h, tap_row)
                some = nullcontext() if inside is None else k.when(inside)
                with some, mk.chained(k, inner, [self.reduced], taps) as (c,):
                    yield c, self.taps(tap_row), source
            return
        outer, inner = mk.settle_in_outer_or_inner(settle, self.kernel[0] * taps)
        with mk.chained(k, outer, [self.reduced], self.kernel[0] * taps) as (c,):
            self.prefetch(k, w, group, produced, c, size)
            with mk.chained(k, inner, [self.kernel[0]], taps) as (tap_row,):
                inside, source = self.row(h, tap_row)
                with nullcontext() if inside is None else k.when(inside):
                    yield c, self.taps(tap_row), source

    def _unpack_and_store(
        self, k: Kernel, write: WritePixels, strip: Buf, block: Expr, row: Expr, channel: Expr, number: Value
    ) -> None:
        """Transpose a strip of finished channels to pixels, and store them through the epilogue."""
        pixels, side = self.strip * self.target[1], self.lanes
        images = tir.minimum(self.conv.n - block * side, side) if self.conv.n % side else side
        with k.loop(number, name="r") as r:

            def square(pixel: Value, width: int) -> None:
                at = k.bind((r * pixels + pixel) * side, "at")
                rows = [k.bind(k.load(strip, at + i * side, side), "t") for i in range(width)]
                rows += [tir.splat(tir.const(0, self.dtype), side)] * (side - width)
                for lane, value in enumerate(mk.transposed(k, rows)):
                    k.store(strip, value if width == side else tir.shuffle([value], range(width)), at + lane * width)
                with k.loop(images, name="image") as i:
                    value = k.bind(k.load(strip, at + i * width, width), "value")
                    write(k.bind(block * side + i), channel + r, k.bind(row * self.target[1] + pixel), value)

            mk.for_vectors(k, pixels, side, square)


class Forward(_ToImages):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return (conv.h, conv.w), conv.out, self.inputs, self.outputs

    def column(self, at: int, tap: int) -> int | None:
        column = at * self.conv.stride[1] + tap * self.conv.dilation[1] - self.conv.padding[1]
        return column if 0 <= column < self.conv.w else None

    def scaled(self, at: Value) -> Value:
        return at * self.conv.stride[1]

    def row(self, at: Expr, tap_row: Expr) -> tuple[Expr | None, Expr]:
        conv = self.conv
        row = at * conv.stride[0] + tap_row * conv.dilation[0] - conv.padding[0]
        last = (conv.out[0] - 1) * conv.stride[0] + (conv.kernel[0] - 1) * conv.dilation[0] - conv.padding[0]
        if conv.padding[0] == 0 and last < conv.h:
            return None, row
        return tir.logical("and", row >= 0, row < conv.h), row

    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.produced + produced, reduced * (self.kernel[0] * self.kernel[1]) + tap


class DataGrad(_ToImages):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return conv.out, (conv.h, conv.w), self.outputs, self.inputs

    def column(self, at: int, tap: int) -> int | None:
        column, rest = divmod(at + self.conv.padding[1] - tap * self.conv.dilation[1], self.conv.stride[1])
        return column if rest == 0 and 0 <= column < self.conv.out[1] else None

    def scaled(self, at: Value) -> Value:
        if self.conv.stride[1] == 1:
            return at
        return at // self.conv.stride[1] if isinstance(at, int) else tir.floordiv(at, self.conv.stride[1])

    def taps(self, tap_row: Expr) -> Expr:
        return self.kernel[0] - 1 - tap_row

    def row(self, at: Expr, tap_row: Expr) -> tuple[Expr | None, Expr]:
        conv = self.conv
        # Only constants are subtracted: else LLVM would not recognize addresses with constant distances.
        dilated = at + tap_row * conv.dilation[0] + (conv.padding[0] - (self.kernel[0] - 1) * conv.dilation[0])
        inside = tir.logical("and", dilated >= 0, dilated <= (conv.out[0] - 1) * conv.stride[0])
        if conv.stride[0] == 1:
            return inside, dilated
        inside = tir.logical("and", inside, tir.compare("equal", tir.floormod(dilated, conv.stride[0]), tir.index(0)))
        return inside, tir.floordiv(dilated, conv.stride[0])

    def weight(self, group: Value, produced: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.reduced + reduced, produced * (self.kernel[0] * self.kernel[1]) + tap

    def prefetch(self, k: Kernel, w: Weights, group: Value, produced: Value, reduced: Value, size: int) -> None:
        o, first = self.weight(group, produced, reduced + PREFETCH_DISTANCE, 0)
        weights = size * self.kernel[0] * self.kernel[1]  # of one output channel, in one run
        for q in (*range(0, weights - 1, LINE), weights - 1):
            k.prefetch(w(o, first + q, 1))
