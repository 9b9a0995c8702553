"""Tile multiplications of bf16 by AMX or AVX512-BF16: the unit that gemm_amx.py, the convolutions in tiles and
attention_tiles.py are written for.

An operand is packed into tiles of 16 rows of 16 pairs, a pair being two bf16 values whose products go into the same
sum: rows of A are rows of the result and its pairs are along k; rows of B are along k and its pairs are columns of the
result.
One step adds a tile of A times a tile of B, 32 terms deep, to a tile of sums, 16 x 16 float32.

AMX does a step in one instruction, on two-dimensional registers. What a thread must do first, asking Linux for
permission and configuring the tiles, is part of the kernel, so that it runs wherever it is loaded. AVX512-BF16 has an
instruction for a row of pairs: each pair of A with a row of B.

(Intel 64 and IA-32 Architectures Software Developer's Manual, on AMX and VDPBF16PS; Linux, Documentation/arch/x86/
xstate.rst.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel

SIDE = 16  # rows of a tile, and 32-bit words of a row
DEPTH = 2 * SIDE  # elements of k that one step adds up
WORDS = SIDE * SIDE  # 32-bit words of a tile
ASK_FOR_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), as arguments of `syscall`

_A, _B = range(4, 6), range(6, 8)  # tiles that hold operands


def _shapes(words: int) -> str:
    """Return LLVM code of a function that configures tiles whose steps are `words` words deep. `ldtilecfg` reads the
    palette, then 16 bits for the bytes per row of each of eight tiles, then 8 bits for the rows of each. The
    configuration is a constant of LLVM's: TVM merges local buffers of several dtypes, and then cannot take their
    address."""
    width = [4 * words if tile in _A else 4 * SIDE for tile in range(8)]
    rows = [words if tile in _B else SIDE for tile in range(8)]
    layout = [1, *[0] * 15, *(byte for w in width for byte in (w, 0)), *[0] * 16, *rows, *[0] * 8]
    return f"""
@gluongraph_tile_shapes_{words} = linkonce_odr hidden constant [64 x i8] [{", ".join(f"i8 {byte}" for byte in layout)}]
define linkonce_odr i64 @gluongraph_tiles_{words}() alwaysinline {{
  call void @llvm.x86.ldtilecfg(ptr @gluongraph_tile_shapes_{words})
  ret i64 0
}}
declare void @llvm.x86.ldtilecfg(ptr)
"""


TileAddress = tuple[Buf, Expr]  # buffer, index of the tile's first element


class Add(Protocol):
    """Adds a step to the sums: a column of tiles of A times a row of tiles of B. The operands named by `non_temporal`,
    "a", "b" or "ab", are loaded with a non-temporal hint, since they are too long to stay in L1. Rows of A's tiles are
    `pitch` bytes apart; 0: contiguous."""

    def __call__(
        self, a: Sequence[TileAddress], b: Sequence[TileAddress], non_temporal: str = "", pitch: int = 0
    ) -> None: ...


@dataclass(frozen=True)
class Sums:
    """Where the sums of a block are stored: tile (i, j) at `at(i, j)`, its rows `pitch` elements apart."""

    buf: Buf
    at: Callable[[int, int], Expr]
    pitch: int


class Unit(Protocol):
    """The instructions that multiply tiles."""

    single_pass: bool  # does a block loop over k once, so that other work may be interleaved with its steps?

    @property
    def words(self) -> int:
        """Depth of a step in words: rows of a tile of B, and words of a row of A."""

    def prepare(self, k: Kernel) -> None:
        """Emit what the kernel does once, before its parallel loop. From then on float32 values are rounded to bf16 by
        the target's instructions."""

    def thread(self, k: Kernel) -> AbstractContextManager[None]:
        """Return the context of a parallel chunk's code: configures the unit for the thread."""

    def block(
        self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, accumulate: bool
    ) -> None:
        """Emit a block of rows x columns tiles, at most four, with at most two rows or at most two columns:
        `steps(add)` emits the loops over k and calls `add` within them. `accumulate`: add to the sums in memory."""


@dataclass(frozen=True)
class AmxUnit:
    """AMX: tiles 0 to 3 hold sums, tiles 4 to 7 operands."""

    words: int = SIDE
    single_pass = True

    def prepare(self, k: Kernel) -> None:
        k.use(_shapes(self.words))
        k.use(tir.CONVERT_BF16)
        k.call("syscall", *ASK_FOR_TILES)

    @contextmanager
    def thread(self, k: Kernel) -> Iterator[None]:
        """Configure the eight tiles of the current thread, and release them afterwards."""
        k.call(f"gluongraph_tiles_{self.words}")
        yield
        k.intrinsic("llvm.x86.tilerelease")

    def block(
        self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, accumulate: bool
    ) -> None:
        rows, columns = shape
        places = [(t, sums.at(*divmod(t, columns))) for t in range(rows * columns)]

        def load(tile: int, buf: Buf, at: Expr, pitch: int, non_temporal: bool = False) -> None:
            name = "llvm.x86.tileloaddt164" if non_temporal else "llvm.x86.tileloadd64"
            k.intrinsic(name, tile, k.address(buf, at), pitch)

        def add(a: Sequence[TileAddress], b: Sequence[TileAddress], non_temporal: str = "", pitch: int = 0) -> None:
            for i in range(rows):
                for j in range(columns):
                    if j == 0:
                        load(_A[i % 2], *a[i], pitch or 4 * self.words, "a" in non_temporal)
                    if i == 0:
                        load(_B[j % 2], *b[j], 4 * SIDE, "b" in non_temporal)
                    k.intrinsic("llvm.x86.tdpbf16ps", i * columns + j, _A[i % 2], _B[j % 2])

        for t, at in places:
            if accumulate:
                load(t, sums.buf, at, 4 * sums.pitch)
            else:
                k.intrinsic("llvm.x86.tilezero", t)
        steps(add)
        for t, at in places:
            k.intrinsic("llvm.x86.tilestored64", t, k.address(sums.buf, at), 4 * sums.pitch)


@dataclass(frozen=True)
class Bf16DotUnit:
    """AVX512-BF16: some rows of the sums at a time, as vectors over columns."""

    words: int = SIDE
    single_pass = False

    def prepare(self, k: Kernel) -> None:
        k.use(tir.DOT)
        k.use(tir.CONVERT_BF16)

    @contextmanager
    def thread(self, k: Kernel) -> Iterator[None]:
        yield

    def block(
        self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, accumulate: bool
    ) -> None:
        rows, columns = shape
        together = 8 if columns <= 3 else 4
        for i in range(rows):
            with k.loop(SIDE // together, name="part") as part:
                self._rows(k, i, k.bind(part * together, "row"), (together, columns), steps, sums, accumulate)

    def _rows(
        self,
        k: Kernel,
        i: int,
        first: Expr,
        shape: tuple[int, int],
        steps: Callable[[Add], None],
        sums: Sums,
        accumulate: bool,
    ) -> None:
        rows, columns = shape
        acc = mk.Tile(k, rows, (SIDE,) * columns, "f32")
        starts = [k.bind(sums.at(i, j) + first * sums.pitch, "sums") for j in range(columns)]
        places = [(r, j, starts[j] + r * sums.pitch) for r in range(rows) for j in range(columns)]

        def add(a: Sequence[TileAddress], b: Sequence[TileAddress], non_temporal: str = "", pitch: int = 0) -> None:
            assert pitch == 0
            left, at = a[i]
            with k.loop(self.words, name="word") as word:
                right = [k.bind(k.load(buf, start + word * SIDE, SIDE), "b") for buf, start in b]
                for r in range(rows):
                    pair = k.bind(tir.splat(k.load(left, at + (first + r) * self.words + word), SIDE), "a")
                    for j in range(columns):
                        acc.put(r, j, tir.dot(acc.get(r, j), pair, right[j]))

        if accumulate:
            for r, j, at in places:
                acc.put(r, j, k.load(sums.buf, at, SIDE))
        steps(add)
        for r, j, at in places:
            k.store(sums.buf, acc.get(r, j), at)


def unit(cpu: Cpu, words: int = SIDE) -> Unit | None:
    """Return the unit that multiplies bf16 tiles on that target; None if it has none."""
    return AmxUnit(words) if cpu.tiles else Bf16DotUnit(words) if cpu.dots else None


def words(k: Kernel, first: Expr, second: Expr | None = None) -> Expr:
    """Return a row of words: the lower halves from up to 16 bf16 values, the upper halves from 16 more or 0."""
    return paired(k, bits(first), None if second is None else bits(second))


def paired(k: Kernel, first: Expr, second: Expr | None = None) -> Expr:
    """Return a row of words from the bits of bf16 values (`bits`): lower halves, upper halves."""
    low = first >> tir.splat(tir.const(16, "u32"), SIDE)
    return k.bind(low if second is None else low | second, "words")


def bits(x: Expr, count: int = SIDE) -> Expr:
    """Return bf16 values as the upper halves of `count` words, zero-padded."""
    return mk.padded(tir.bitcast(tir.cast(x, "f32"), "u32"), count)


def zeros() -> Expr:
    """Return a row of zero words."""
    return tir.splat(tir.const(0, "u32"), SIDE)


def row(k: Kernel, values: Expr) -> Expr:
    """Return a row of words from up to 32 bf16 values along k: a word holds two adjacent values."""
    if tir.lanes_of(values) == DEPTH:  # already in the order of words
        return k.bind(tir.words(values), "words")
    words = k.bind(bits(values, DEPTH))
    return paired(k, tir.shuffle([words], range(0, DEPTH, 2)), tir.shuffle([words], range(1, DEPTH, 2)))


def tile_rows_along_k(k: Kernel, read: Callable[[int], Expr], size: int) -> list[Expr]:
    """Return the rows of a tile from up to 16 vectors along k, of which `size` exist; the others are zero."""
    return [row(k, read(r)) if r < size else zeros() for r in range(SIDE)]


def tile_rows_across_k(k: Kernel, read: Callable[[int], Expr], depth: int) -> list[Expr]:
    """Return the rows of a tile from up to 32 vectors at consecutive k, of which `depth` exist: a row holds two."""
    words = [k.bind(bits(read(p))) if p < depth else zeros() for p in range(DEPTH)]
    return [paired(k, words[p], words[p + 1]) for p in range(0, DEPTH, 2)]
