"""Matrix products by a library, one piece after another: into memory that stays in cache, from where what follows the
product is computed as behind our own. A setting of the rule for products, tried by a tuner and by nobody else.

The library works on the thread that calls it, so that pieces are ours, as many for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gluongraph.codegen.contraction import libraries
from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.gemm import Product
from gluongraph.codegen.contraction.gemm_strategy import Kind
from gluongraph.codegen.contraction.libraries import LIBRARIES, Library
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Expr, Kernel, Value
from gluongraph.errors import CompileError

COUNTS = (2, 4, 8, 16, 32)  # of pieces: a library packs its operands for each of them, but large ones leave the cache
_NARROW = 32  # rows and columns that a piece has at the least
_PLAIN, _TURNED = 111, 112  # what cblas calls a matrix as it lies, and a transposed one


@dataclass(frozen=True)
class Calls:
    """A library, and into how many pieces the product is cut, down and across."""

    library: Library
    down: int
    across: int

    def __str__(self) -> str:
        return f"{self.library.name}, {self.down} x {self.across} pieces"

    def wide(self, n: int, cpu: Cpu) -> int:
        """Columns of a piece, in whole vectors; the last one may have fewer."""
        return mk.ceildiv(mk.ceildiv(n, self.across), cpu.lanes) * cpu.lanes

    def workspace(self, m: int, n: int, cpu: Cpu) -> int:
        """Bytes: a piece of the result for each that may be under way."""
        return 4 * mk.pieces(self.down * self.across, cpu) * mk.ceildiv(m, self.down) * self.wide(n, cpu)


def ways(batch: int, m: int, n: int, kk: int, a: Kind, b: Kind, cpu: Cpu) -> list[Calls]:
    """The ways to have a product of libraries that the target names; none of batches and where it is little work."""
    if batch > 1 or a.dtype != b.dtype or m * n * kk < mk.SERIAL_WORK:
        return []
    grids = dict.fromkeys(grid for count in COUNTS if (grid := _grid(m, n, count, cpu)) is not None)
    able = [library for library in cpu.libraries if a.dtype in LIBRARIES[library.name].products]
    return [Calls(library, *grid) for library in able for grid in grids]


def _grid(m: int, n: int, count: int, cpu: Cpu) -> tuple[int, int] | None:
    """Pieces down and across that are as square as can be; None where they would be narrow."""
    fits = []
    for across in (x for x in range(1, count + 1) if count % x == 0):
        down, wide = count // across, mk.ceildiv(mk.ceildiv(n, across), cpu.lanes) * cpu.lanes
        if m // down >= _NARROW and wide >= _NARROW and wide * (across - 1) < n:
            fits.append((max(m / down / wide, wide * down / m), down, across))
    return min(fits)[1:] if fits else None


def emit(k: Kernel, of: Product, how: Calls) -> None:
    """Write the calls, and what follows each, of a product of one batch element."""
    a, b, m, n, kk, cpu = of.a, of.b, of.m, of.n, of.kk, of.cpu
    if a.memory is None or b.memory is None or of.batch != 1:
        raise CompileError(f"{k.name}: a library multiplies two matrices in memory")
    dtype = a.kind.dtype
    k.use(libraries.text(how.library, dtype))
    space = mk.workspace(k, of.workspace, "f32", how.workspace(m, n, cpu))
    slot, wide = mk.ceildiv(m, how.down) * how.wide(n, cpu), how.wide(n, cpu)
    function = libraries.symbol(how.library, dtype)
    memory = [k.view(x, "f16") if dtype == "bf16" else x for x in (a.memory, b.memory)]  # TVM has no address of bf16

    def unit(piece: Expr, unit: Expr) -> None:
        y, x = k.bind(tir.floordiv(unit, how.across), "y"), k.bind(tir.floormod(unit, how.across), "x")
        row, rows = mk.share(k, m, how.down, y)
        mk.runs(k, n, wide, x, 1, partial(part, k.bind(piece * slot, "slot"), row, rows))

    def part(at: Expr, row: Value, rows: Value, column: Expr, columns: int) -> None:
        left, right = a.kind.contiguous == "j", b.kind.contiguous == "j"
        first = k.address(memory[0], row * kk if left else row)
        second = k.address(memory[1], column if right else column * kk)
        turned = (_PLAIN if left else _TURNED, _PLAIN if right else _TURNED)
        lengths = (kk if left else m, n if right else kk)
        result = (k.address(space, at), columns)
        down = rows if isinstance(rows, int) else tir.cast(rows, "i64")
        k.call(function, *turned, down, columns, kk, first, lengths[0], second, lengths[1], *result)
        with k.loop(rows, name="r") as r:
            start = k.bind(at + r * columns, "start")
            with of.around(tir.index(0), k.bind(row + r, "i"), column):
                mk.along(k, columns, cpu.lanes, partial(finish, start, k.bind(row + r, "i"), column))

    def finish(start: Expr, i: Expr, column: Expr, at: Value, lanes: int) -> None:
        of.write(tir.index(0), i, column + at, k.load(space, start + at, lanes))

    mk.spread(k, how.down * how.across, mk.pieces(how.down * how.across, cpu), unit)
