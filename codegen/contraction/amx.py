"""Tile multiplications of bf16, as AMX or AVX512-BF16 does them: what gemm_amx.py and conv_tiles.py are written over.

An operand is packed into tiles of 16 rows of 16 pairs, a pair being two bf16 values that are added into one sum: rows
of A are rows of the result and its pairs lie along k; rows of B lie along k and its pairs are columns of the result.
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
WORDS = SIDE * SIDE  # of a tile
ASK_FOR_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), as arguments of `syscall`

_A, _B = range(4, 6), range(6, 8)  # tiles that hold operands


def _shapes(words: int) -> str:
    """A function that describes tiles whose steps are so many words deep. What `ldtilecfg` reads is the layout, then 16
    bits for the bytes of a row of each of eight tiles, then 8 for its rows. A constant of LLVM's: TVM lays local memory
    over that of another dtype, and then finds no address of it."""
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


Place = tuple[Buf, Expr]  # where a tile begins


class Add(Protocol):
    """Adds a step to the sums: tiles of A, one below another, times tiles of B, side by side. Those of the operands
    named by `passing`, "a", "b" or "ab", should leave the first cache to others: they are too long to stay there. Rows
    of A's tiles lie `pitch` bytes apart; 0: one behind the other."""

    def __call__(self, a: Sequence[Place], b: Sequence[Place], passing: str = "", pitch: int = 0) -> None: ...


@dataclass(frozen=True)
class Sums:
    """Where the sums of a block lie: tile (i, j) at `at(i, j)`, its rows `pitch` elements apart."""

    buf: Buf
    at: Callable[[int, int], Expr]
    pitch: int


class Unit(Protocol):
    """What multiplies."""

    once: bool  # does a block go through its steps once, so that other work may be done among them?

    @property
    def words(self) -> int:
        """How deep a step is: rows of a tile of B, and words of a row of A."""

    def prepare(self, k: Kernel) -> None:
        """What the kernel does once, before its parallel part. Float32 numbers are rounded to bf16 by instructions from
        then on."""

    def thread(self, k: Kernel) -> AbstractContextManager[None]:
        """Around what each parallel chunk does."""

    def block(self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, more: bool) -> None:
        """A block of rows x columns tiles, four at most and two of one of them at most: `steps(add)` writes the loops
        over k and calls `add` in their midst. `more`: to be added to the sums that are there."""


@dataclass(frozen=True)
class AmxUnit:
    """Tiles 0 to 3 hold the sums, the others operands."""

    words: int = SIDE
    once = True

    def prepare(self, k: Kernel) -> None:
        k.use(_shapes(self.words))
        k.use(tir.NARROW)
        k.call("syscall", *ASK_FOR_TILES)

    @contextmanager
    def thread(self, k: Kernel) -> Iterator[None]:
        """Eight tiles, described for the thread that runs here."""
        k.call(f"gluongraph_tiles_{self.words}")
        yield
        k.intrinsic("llvm.x86.tilerelease")

    def block(self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, more: bool) -> None:
        rows, columns = shape
        places = [(t, sums.at(*divmod(t, columns))) for t in range(rows * columns)]

        def load(tile: int, buf: Buf, at: Expr, pitch: int, passes: bool = False) -> None:
            name = "llvm.x86.tileloaddt164" if passes else "llvm.x86.tileloadd64"
            k.intrinsic(name, tile, k.address(buf, at), pitch)

        def add(a: Sequence[Place], b: Sequence[Place], passing: str = "", pitch: int = 0) -> None:
            for i in range(rows):
                for j in range(columns):
                    if j == 0:
                        load(_A[i % 2], *a[i], pitch or 4 * self.words, "a" in passing)
                    if i == 0:
                        load(_B[j % 2], *b[j], 4 * SIDE, "b" in passing)
                    k.intrinsic("llvm.x86.tdpbf16ps", i * columns + j, _A[i % 2], _B[j % 2])

        for t, at in places:
            if more:
                load(t, sums.buf, at, 4 * sums.pitch)
            else:
                k.intrinsic("llvm.x86.tilezero", t)
        steps(add)
        for t, at in places:
            k.intrinsic("llvm.x86.tilestored64", t, k.address(sums.buf, at), 4 * sums.pitch)


@dataclass(frozen=True)
class Bf16DotUnit:
    """Some rows of the sums at a time, in vectors of their columns."""

    words: int = SIDE
    once = False

    def prepare(self, k: Kernel) -> None:
        k.use(tir.DOT)
        k.use(tir.NARROW)

    @contextmanager
    def thread(self, k: Kernel) -> Iterator[None]:
        yield

    def block(self, k: Kernel, shape: tuple[int, int], steps: Callable[[Add], None], sums: Sums, more: bool) -> None:
        rows, columns = shape
        together = 8 if columns <= 3 else 4
        for i in range(rows):
            with k.loop(SIDE // together, name="part") as part:
                self._rows(k, i, k.bind(part * together, "row"), (together, columns), steps, sums, more)

    def _rows(
        self,
        k: Kernel,
        i: int,
        first: Expr,
        shape: tuple[int, int],
        steps: Callable[[Add], None],
        sums: Sums,
        more: bool,
    ) -> None:
        rows, columns = shape
        acc = mk.Tile(k, rows, (SIDE,) * columns, "f32")
        starts = [k.bind(sums.at(i, j) + first * sums.pitch, "sums") for j in range(columns)]
        places = [(r, j, starts[j] + r * sums.pitch) for r in range(rows) for j in range(columns)]

        def add(a: Sequence[Place], b: Sequence[Place], passing: str = "", pitch: int = 0) -> None:
            assert pitch == 0
            left, at = a[i]
            with k.loop(self.words, name="word") as word:
                right = [k.bind(k.load(buf, start + word * SIDE, SIDE), "b") for buf, start in b]
                for r in range(rows):
                    pair = k.bind(tir.splat(k.load(left, at + (first + r) * self.words + word), SIDE), "a")
                    for j in range(columns):
                        acc.put(r, j, tir.dot(acc.get(r, j), pair, right[j]))

        if more:
            for r, j, at in places:
                acc.put(r, j, k.load(sums.buf, at, SIDE))
        steps(add)
        for r, j, at in places:
            k.store(sums.buf, acc.get(r, j), at)


def unit(cpu: Cpu, words: int = SIDE) -> Unit | None:
    """What multiplies 16-bit numbers there, if anything does."""
    return AmxUnit(words) if cpu.tiles else Bf16DotUnit(words) if cpu.dots else None


def words(k: Kernel, first: Expr, second: Expr | None = None) -> Expr:
    """A row of words from up to 16 bf16 numbers, their lower halves, and as many more, or zeros."""
    return paired(k, bits(first), None if second is None else bits(second))


def paired(k: Kernel, first: Expr, second: Expr | None = None) -> Expr:
    """The same from their bits."""
    low = first >> tir.splat(tir.const(16, "u32"), SIDE)
    return k.bind(low if second is None else low | second, "words")


def bits(x: Expr, count: int = SIDE) -> Expr:
    """bf16 numbers as the upper halves of `count` words, with zeros behind."""
    return mk.padded(tir.bitcast(tir.cast(x, "f32"), "u32"), count)


def zeros() -> Expr:
    """A row of words."""
    return tir.splat(tir.const(0, "u32"), SIDE)


def row(k: Kernel, numbers: Expr) -> Expr:
    """A row of words from up to 32 bf16 numbers along k: a word holds two neighbours."""
    if tir.lanes_of(numbers) == DEPTH:  # they lie as words do
        return k.bind(tir.words(numbers), "words")
    found = k.bind(bits(numbers, DEPTH))
    return paired(k, tir.shuffle([found], range(0, DEPTH, 2)), tir.shuffle([found], range(1, DEPTH, 2)))


def along(k: Kernel, read: Callable[[int], Expr], size: int) -> list[Expr]:
    """A tile's rows of words from 16 vectors along k, `size` of which there are."""
    return [row(k, read(r)) if r < size else zeros() for r in range(SIDE)]


def across(k: Kernel, read: Callable[[int], Expr], depth: int) -> list[Expr]:
    """The same from up to 32 vectors of neighbouring k, `depth` of which there are: each row from two of them."""
    found = [k.bind(bits(read(p))) if p < depth else zeros() for p in range(DEPTH)]
    return [paired(k, found[p], found[p + 1]) for p in range(0, DEPTH, 2)]
