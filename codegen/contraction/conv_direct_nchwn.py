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
AHEAD = 5  # channels before its turn a weight is asked for: each takes some 70 cycles, and memory some hundred
LINE = 16  # weights


@dataclass(frozen=True)
class _Tile:
    """Neighbouring output columns that use the same taps in the same way; `count` such tiles lie side by side. For each
    tap: the source column of each output column, counted from `first * scale`, or None outside."""

    first: int
    width: int
    count: int
    taps: tuple[tuple[int, Columns], ...]

    @property
    def live(self) -> int:
        """How many source columns are held at once."""
        uses = [{c for c in columns if c is not None} for _, columns in self.taps]
        last = {c: t for t, used in enumerate(uses) for c in used}
        first = {c: t for t, used in reversed(list(enumerate(uses))) for c in used}
        return max((sum(first[c] <= t <= last[c] for c in last) for t in range(len(uses))), default=0)

    @property
    def loads(self) -> int:
        """How many source columns are loaded."""
        return len({c for _, columns in self.taps for c in columns if c is not None})


class _ToPixels(Job):
    """A convolution whose result is pixels: forward, or the gradient of the data."""

    by_rows = False  # must what is read at once of the source end with its row?

    def __init__(self, conv: Conv, cpu: Cpu, dtype: str):
        super().__init__(conv, cpu, dtype)
        self.blocks = mk.ceildiv(conv.n, self.lanes)
        self.kernel = conv.kernel
        self.source, self.target, self.reduced, self.made = self._sides()
        self.rows, self.width = self._tile_shape()
        rows = self.target[0]  # of a strip: they divide those of the image, and fill a vector with pixels if they can
        self.strip = next(
            r for r in range(1, rows + 1) if rows % r == 0 and (r * self.target[1] >= self.lanes or r == rows)
        )
        self.steps = mk.ceildiv(self.made, self.rows)
        self._block = self.lanes * conv.groups * self.reduced * plane(conv, self.source)
        self._copy = 0 if conv.blocks else self.blocks * self._block
        self.down, self.across = self._grid()
        finished = self.width if conv.blocks else self.strip * self.target[1]  # pixels, before they are handed on
        self._slot = self.rows * finished * self.lanes

    # What forward and data gradient differ in.

    @abstractmethod
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        """Source and target rows and columns; channels of a group that are summed over, and that are made."""

    @abstractmethod
    def column(self, at: int, tap: int) -> int | None:
        """The source column of a target column under a tap, if inside."""

    @abstractmethod
    def scaled(self, at: Value) -> Value:
        """The source column that the source columns of a tile are counted from."""

    @abstractmethod
    def row(self, at: Expr, turn: Expr) -> tuple[Expr | None, Expr]:
        """The source row of a target row under a row of taps, and the condition of its being inside; None: always."""

    def taps(self, turn: Expr) -> Expr:
        """The row of taps that has its turn: source rows ascend."""
        return turn

    @abstractmethod
    def weight(self, group: Value, made: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        """(output channel, q) of the weight between two channels of a group."""

    def fetch(self, k: Kernel, w: Weights, group: Value, made: Value, reduced: Value, size: int) -> None:
        """Ask for the weights of a channel that is soon summed over, where they lie far from this one's."""

    # What they share.

    @property
    def workspace(self) -> int:
        """Bytes."""
        return (self._copy + self.num_chunks(self.units) * self._slot) * DTYPES[self.dtype].nbytes

    @property
    def units(self) -> int:
        """Pieces of work: some strips and some channels of one block each."""
        return self.blocks * self.down * self.across

    def _grid(self) -> Pair:
        """Pieces of a block by strips and by channels: of the most that there can be, those for which the least is read
        again of weights and source."""
        want = 1 if self.serial else mk.ceildiv(self.cpu.chunks, self.blocks)
        strips, steps, weights = self.target[0] // self.strip, self.steps * self.conv.groups, self.conv.o * self.conv.q
        grids = [(min(want // across, strips), min(across, steps)) for across in range(1, want + 1)]
        return min(grids, key=lambda grid: (-grid[0] * grid[1], grid[0] * weights + grid[1] * self._block))

    def _tile_shape(self) -> Pair:
        """Channels and columns of a tile of accumulators, by the least estimated time of one row of all channels. The
        source columns of a row stay in registers beside the accumulators while taps use them."""
        best = (float("inf"), 1, 1)
        for columns in range(min(4, self.target[1]), min(self.target[1], self.cpu.registers) + 1):
            tiles = self.tiles(columns)
            room = (self.cpu.registers - max(tile.live for tile in tiles) - 3) // columns
            if room < 1:
                continue
            rows = mk.ceildiv(self.made, mk.ceildiv(self.made, min(self.made, room)))
            runs = mk.split(self.made, rows)
            cost = sum(steps * tile.count * self._step(r, tile) for _, r, steps in runs for tile in tiles)
            best = min(best, (cost * (1 + 0.03 * len(tiles) * len(runs)), rows, columns))
        return best[1], best[2]

    def _step(self, rows: int, tile: _Tile) -> float:
        """Estimated cycles of a tile for one source row of one channel."""
        products = sum(column is not None for _, columns in tile.taps for column in columns)
        loads = tile.loads + len(tile.taps) * rows
        source = self.reduced * self.kernel[0] * tile.loads * self.lanes * DTYPES[self.dtype].nbytes
        # Columns from the second level of cache cost time where a stride keeps the processor from fetching them early.
        far = 1.0 if source > self.cpu.l1 and self.conv.stride[1] > 1 else 0.0
        return max(rows * products / 2, 4.0 * len(tile.taps), loads / 2) + 0.15 * loads + far * tile.loads

    def tiles(self, width: int) -> list[_Tile]:
        """The columns of a row of the target, cut into tiles; equal neighbours are one entry."""
        cut = []
        for first, size, count in mk.split(self.target[1], width):
            for t in range(count):
                start = first + t * size
                cut.append((start, size, self._taps(start, size)))
        grouped = [list(group) for _, group in groupby(cut, key=lambda tile: tile[1:])]
        return [_Tile(group[0][0], group[0][1], len(group), group[0][2]) for group in grouped]

    def _taps(self, start: int, size: int) -> tuple[tuple[int, Columns], ...]:
        """The taps that some of these columns use, those that share source columns one after another."""
        origin, step = int(self.scaled(start)), self.conv.stride[1]
        found = []
        for tap in sorted(range(self.kernel[1]), key=lambda tap: (tap * self.conv.dilation[1] % step, tap)):
            columns = [self.column(start + i, tap) for i in range(size)]
            if any(column is not None for column in columns):
                found.append((tap, tuple(None if column is None else column - origin for column in columns)))
        return tuple(found)

    def emit(self, k: Kernel, read: Pixels, w: Weights, write: WritePixels, workspace: Buf) -> None:
        """Write the loops."""
        space = self.slots(k, workspace)
        pack_blocked(k, self, read, self.conv.groups * self.reduced, self.source, space, self.by_rows)
        strips = space.at(self._copy)

        def keep(acc: mk.Tile, slot: Buf, tile: _Tile, at: tuple[Expr, ...]) -> None:
            """A tile in its strip, [channel][pixel][image]."""
            _, _, _, h, start = at
            for r in range(acc.rows):
                place = k.bind(((h + r * self.strip) * self.target[1] + start) * self.lanes, "at")
                for i in range(tile.width):
                    k.store(slot, acc.get(r, i), place + i * self.lanes)

        self._convolve(k, space, w, strips, keep, partial(self._unpack_and_store, k, write))

    def emit_in_blocks(self, k: Kernel, images: Buf, w: Weights, write: WriteImages, workspace: Buf) -> None:
        """Write the loops for images that lie in blocks, and shall."""

        def hand_on(acc: mk.Tile, slot: Buf, tile: _Tile, at: tuple[Expr, ...]) -> None:
            """A tile to its readers, by way of memory: what they do is written out once."""
            block, row, channel, h, start = at
            for r in range(acc.rows):
                for i in range(tile.width):
                    k.store(slot, acc.get(r, i), (r * tile.width + i) * self.lanes)
            with k.loop(acc.rows, name="r") as r, k.loop(tile.width, name="i") as i:
                value = k.bind(k.load(slot, (r * tile.width + i) * self.lanes, self.lanes), "value")
                write(block, k.bind(channel + r, "channel"), k.bind(row + h, "row"), k.bind(start + i, "column"), value)

        self._convolve(k, images, w, self.slots(k, workspace), hand_on)

    def _convolve(
        self,
        k: Kernel,
        images: Buf,
        w: Weights,
        slots: Buf,
        put: Callable[[mk.Tile, Buf, _Tile, tuple[Expr, ...]], None],
        finish: Callable[..., None] | None = None,
    ) -> None:
        """`put(tile, slot, its columns, (block, row, channel, row of the strip, column))` gets each tile of a strip,
        `finish(slot, block, row, channel, channels)` follows when some channels of it are complete."""
        conv = self.conv

        def unit(chunk: Expr, unit: Expr) -> None:
            outer = k.bind(tir.floordiv(unit, self.across), "outer")
            block = k.bind(tir.floordiv(outer, self.down), "block")
            x, y = k.bind(tir.floormod(unit, self.across), "x"), k.bind(tir.floormod(outer, self.down), "y")
            first, count = mk.chunk_range(k, self.steps * conv.groups, self.across, x)
            top, strips = mk.chunk_range(k, self.target[0] // self.strip, self.down, y)
            slot = slots.at(k.bind(chunk * self._slot, "slot"))

            steps = (conv.groups, self.made, self.rows, first, count)
            with k.loop(strips, name="strip") as t, channel_step(k, *steps) as (group, made, number):
                row = k.bind((top + t) * self.strip, "row")
                channel = group * self.made + made
                for size in sizes(k, number, self.rows, self.made):
                    with k.loop(self.strip, name="h") as h:
                        for tile in self.tiles(self.width):
                            with k.loop(tile.count, name="w") as s:
                                start = k.bind(s * tile.width + tile.first, "w")
                                place = (block, k.bind(row + h, "h"), start, group, made)
                                acc = self._tile(k, images, w, tile, place, size)
                                put(acc, slot, tile, (block, row, channel, h, start))
                if finish is not None:
                    finish(slot, block, row, channel, number)

        self.spread(k, self.units, unit)

    def _tile(self, k: Kernel, images: Buf, w: Weights, tile: _Tile, place: tuple[Expr, ...], size: int) -> mk.Tile:
        """The sums of `size` channels and the tile's columns, at (block, row, column, group, channel of it)."""
        block, h, start, group, made = place
        acc = mk.Tile(k, size, (self.lanes,) * tile.width, self.dtype, self.reduced * self.kernel[0] * len(tile.taps))
        if not tile.taps:
            return acc
        with self._rows_met(k, w, (h, group, made), size, acc.settle, len(tile.taps)) as (c, kh, source):
            channel = (block * self.conv.groups + group) * self.reduced + c
            base = channel * plane(self.conv, self.source) + source * self.source[1] + self.scaled(start)
            at = k.bind(base * self.lanes, "at")
            loaded: dict[int, Expr] = {}
            for tap, columns in tile.taps:
                for column in columns:
                    if column is not None and column not in loaded:
                        found = k.load(images, at + column * self.lanes, self.lanes)
                        loaded[column] = k.bind(tir.cast(found, self.dtype), "x")
                for r in range(size):
                    o, q = self.weight(group, made + r, c, kh * self.kernel[1] + tap)
                    weight = k.bind(tir.cast(w(o, q, 1), self.dtype), "w")
                    for i, column in enumerate(columns):
                        if column is not None:
                            acc.add(r, i, weight, loaded[column])
        return acc

    @contextmanager
    def _rows_met(
        self, k: Kernel, w: Weights, place: tuple[Expr, ...], size: int, settle: mk.Settle | None, taps: int
    ) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loops over what a row is summed from: (channel, row of the kernel, row of the source). Channels, whose
        weights lie together, are outermost, unless the first cache holds all weights."""
        h, group, made = place
        if self.conv.o * self.conv.q * DTYPES[self.dtype].nbytes <= self.cpu.l1:
            outer, inner = mk.settle_in_outer_or_inner(settle, self.reduced * taps)
            with mk.chained(k, outer, [self.kernel[0]], self.reduced * taps) as (turn,):
                inside, source = self.row(h, turn)
                some = nullcontext() if inside is None else k.when(inside)
                with some, mk.chained(k, inner, [self.reduced], taps) as (c,):
                    yield c, self.taps(turn), source
            return
        outer, inner = mk.settle_in_outer_or_inner(settle, self.kernel[0] * taps)
        with mk.chained(k, outer, [self.reduced], self.kernel[0] * taps) as (c,):
            self.fetch(k, w, group, made, c, size)
            with mk.chained(k, inner, [self.kernel[0]], taps) as (turn,):
                inside, source = self.row(h, turn)
                with nullcontext() if inside is None else k.when(inside):
                    yield c, self.taps(turn), source

    def _unpack_and_store(
        self, k: Kernel, write: WritePixels, strip: Buf, block: Expr, row: Expr, channel: Expr, number: Value
    ) -> None:
        """Turn a strip of finished channels back to pixels, and hand them on."""
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


class Forward(_ToPixels):
    def _sides(self) -> tuple[Pair, Pair, int, int]:
        conv = self.conv
        return (conv.h, conv.w), conv.out, self.inputs, self.outputs

    def column(self, at: int, tap: int) -> int | None:
        column = at * self.conv.stride[1] + tap * self.conv.dilation[1] - self.conv.padding[1]
        return column if 0 <= column < self.conv.w else None

    def scaled(self, at: Value) -> Value:
        return at * self.conv.stride[1]

    def row(self, at: Expr, turn: Expr) -> tuple[Expr | None, Expr]:
        conv = self.conv
        row = at * conv.stride[0] + turn * conv.dilation[0] - conv.padding[0]
        last = (conv.out[0] - 1) * conv.stride[0] + (conv.kernel[0] - 1) * conv.dilation[0] - conv.padding[0]
        if conv.padding[0] == 0 and last < conv.h:
            return None, row
        return tir.logical("and", row >= 0, row < conv.h), row

    def weight(self, group: Value, made: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.made + made, reduced * (self.kernel[0] * self.kernel[1]) + tap


class DataGrad(_ToPixels):
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

    def taps(self, turn: Expr) -> Expr:
        return self.kernel[0] - 1 - turn

    def row(self, at: Expr, turn: Expr) -> tuple[Expr | None, Expr]:
        conv = self.conv
        # Nothing is subtracted but a constant: LLVM would else lose sight of addresses that are near each other.
        spread = at + turn * conv.dilation[0] + (conv.padding[0] - (self.kernel[0] - 1) * conv.dilation[0])
        inside = tir.logical("and", spread >= 0, spread <= (conv.out[0] - 1) * conv.stride[0])
        if conv.stride[0] == 1:
            return inside, spread
        inside = tir.logical("and", inside, tir.compare("equal", tir.floormod(spread, conv.stride[0]), tir.index(0)))
        return inside, tir.floordiv(spread, conv.stride[0])

    def weight(self, group: Value, made: Value, reduced: Value, tap: Value) -> tuple[Value, Value]:
        return group * self.reduced + reduced, made * (self.kernel[0] * self.kernel[1]) + tap

    def fetch(self, k: Kernel, w: Weights, group: Value, made: Value, reduced: Value, size: int) -> None:
        o, first = self.weight(group, made, reduced + AHEAD, 0)
        weights = size * self.kernel[0] * self.kernel[1]  # of one output channel, in one run
        for q in (*range(0, weights - 1, LINE), weights - 1):
            k.fetch(w(o, first + q, 1))
