"""Pattern "pool": pooling over windows that tile the image without overlap, and the gradients, with full vectors.

Contiguous columns are loaded and deinterleaved by their position in the window; gradients are interleaved before they
are stored. pool_overlapping.py pools over other windows, and has the gradient of averages with stride 1; the gradient
of their largest elements has an op rule of its own (index_ops.py). pool_nchwn.py pools in the NCHWn layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gluongraph.codegen.contraction import microkernel as mk
from gluongraph.codegen.contraction.contraction import anchor, epilogue, trailing_axes_flatten
from gluongraph.codegen.cpu import pool_overlapping
from gluongraph.codegen.cpu.loops import PARALLEL, elementwise_candidate
from gluongraph.codegen.cpu.pool_nchwn import BlockedPool
from gluongraph.codegen.cpu.pool_overlapping import OverlappingPool
from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm import tir
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group

Store = Callable[[Value, Expr], None]  # (first pixel, values of adjacent pixels)
_NCHW_OPS = ("max_pool2d", "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad")
_DTYPES = ("f32", "f16", "bf16")  # computed in float32
NAMES = (*_NCHW_OPS, *(f"{name}_blocks" for name in _NCHW_OPS))


def _windows_tile_image(pool: Node) -> bool:
    """Are the windows adjacent, without overlap or padding, and inside the image?"""
    a, grad = pool.attrs, "_grad" in pool.op.name
    image = pool.shape if grad else pool.src[0].shape
    small = pool.src[-1].shape if grad else pool.shape
    inside = all(o * s <= d for o, s, d in zip(small[2:4], a["stride"], image[2:4], strict=True))
    return tuple(a["kernel"]) == tuple(a["stride"]) and tuple(a["padding"]) == (0, 0) and inside and a["kernel"][1] <= 4


def _claim(group: Group, cpu: Cpu) -> Candidate | None:
    if group.pattern != "pool" or (pool := anchor(group, NAMES)) is None:
        return None
    if _is_blocked(pool):
        is_profitable = pool.dtype in _DTYPES and pool.shape[-1] == cpu.lanes and _windows_tile_image(pool)
        return elementwise_candidate("pool", group) if is_profitable else None
    if not trailing_axes_flatten(group, pool, 2):
        return None
    if pool.dtype not in _DTYPES:
        return None
    if _windows_tile_image(pool):
        return elementwise_candidate("pool", group)
    if not pool_overlapping.is_profitable(pool) or elementwise_candidate("pool", group) is None:
        return None
    return Candidate("pool", 4 * _num_chunks(pool, cpu) * OverlappingPool(pool, cpu).size)


def _is_blocked(pool: Node) -> bool:
    return pool.op.name.endswith("_blocks")


def _preferred_lanes(pool: Node, cpu: Cpu, source_is_blocked: bool) -> int:
    """Keep the layout of the source: pooling alone is not worth a change of layout."""
    if not source_is_blocked:
        return 0
    is_profitable = (
        pool.op.name in _NCHW_OPS
        and pool.dtype in _DTYPES
        and _windows_tile_image(pool)
        and pool.shape[0] % cpu.lanes == 0
    )
    return cpu.lanes if is_profitable and cpu.lanes > 1 else 0


def _num_chunks(pool: Node, cpu: Cpu) -> int:
    parallel = max(pool.ty.size, *(s.ty.size for s in pool.src)) >= PARALLEL
    return min(math.prod(pool.shape[:2]), cpu.chunks) if parallel else 1


def _emit(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu) -> None:
    pool = anchor(group, NAMES)
    assert pool is not None
    first = None if _is_blocked(pool) else 2
    memory, store = bindings.by_node(group), epilogue(k, group, bindings, pool, first=first)
    sources, num_chunks = [memory[s] for s in pool.src], _num_chunks(pool, cpu)

    def plane(chunk: Expr, plane: Expr) -> None:
        n, c = k.let(tir.floordiv(plane, pool.shape[1])), k.let(tir.floormod(plane, pool.shape[1]))
        if _is_blocked(pool):
            BlockedPool(k, pool, sources, plane, lambda row, column, value: store((n, c, row, column, 0), value)).emit()
        elif _windows_tile_image(pool):
            _TilingPool(k, cpu, pool, sources, lambda pixel, value: store((n, c, 0, pixel), value)).plane(plane)
        else:
            pooling = OverlappingPool(pool, cpu)
            space = mk.workspace(k, bindings.workspace, "f32", 4 * num_chunks * pooling.size)
            own = space.at(k.let(chunk * pooling.size))
            pooling.plane(k, sources[0], own, plane, lambda pixel, value: store((n, c, 0, pixel), value))

    mk.parallel_chunks(k, math.prod(pool.shape[:2]), num_chunks, plane)


class _TilingPool:
    """Emits one pooling over windows that tile the image, or its gradient."""

    def __init__(self, k: Kernel, cpu: Cpu, pool: Node, sources: list[Buf], store: Store):
        self.k, self.cpu, self.pool, self.sources, self.store = k, cpu, pool, sources, store
        self.grad = pool.op.name.endswith("_grad")
        self.small = pool.src[-1].shape[2:] if self.grad else pool.shape[2:]
        self.image = pool.shape[2:] if self.grad else pool.src[0].shape[2:]
        self.rows, self.columns = pool.attrs["kernel"]
        self.algebra = CpuAlgebra(k)

    def plane(self, plane: Expr) -> None:
        """Emit one channel of one image."""
        with self.k.loop(self.small[0], name="row") as row:
            chunk = self._scatter_gradient if self.grad else self._reduce_window
            mk.for_vectors(self.k, self.small[1], self.cpu.lanes, lambda at, width: chunk(plane, row, at, width))
        if self.grad:
            self._clear_uncovered()

    def _window_row(self, buf: Buf, plane: Expr, row: Expr, at: Value, width: int, r: int) -> list[Expr]:
        """Load row r of `width` windows, deinterleaved: one vector for each column of the window."""
        start = plane * (self.image[0] * self.image[1]) + (row * self.rows + r) * self.image[1] + at * self.columns
        if self.columns == 1:
            return [self._load_f32(buf, start, width)]
        run = self._load_f32(buf, start, width * self.columns)
        return [
            self.k.let(tir.shuffle([run], range(j, width * self.columns, self.columns)), "part")
            for j in range(self.columns)
        ]

    def _load_f32(self, buf: Buf, start: Expr, width: int) -> Expr:
        """Load elements as float32."""
        return self.k.let(tir.cast(self.k.load(buf, start, width), "f32"))

    def _reduce_window(self, plane: Expr, row: Expr, at: Value, width: int) -> None:
        parts = [p for r in range(self.rows) for p in self._window_row(self.sources[0], plane, row, at, width, r)]
        name = "maximum" if self.pool.op.name == "max_pool2d" else "add"
        total = parts[0]
        for part in parts[1:]:
            total = self.k.let(self.algebra.binary(name, total, part))
        if name == "add":
            total = total * (1.0 / (self.rows * self.columns))
        self.store(row * self.small[1] + at, total)

    def _scatter_gradient(self, plane: Expr, row: Expr, at: Value, width: int) -> None:
        k = self.k
        place = plane * (self.small[0] * self.small[1]) + row * self.small[1] + at
        zero = tir.splat(tir.const(0.0, "f32"), width)
        rest = self._load_f32(self.sources[-1], place, width)
        if self.pool.op.name == "avg_pool2d_grad":
            rest = k.let(rest * (1.0 / (self.rows * self.columns)))
        best = None if len(self.sources) == 1 else self._load_f32(self.sources[1], place, width)
        for r in range(self.rows):
            parts = []
            if best is None:
                parts = [rest] * self.columns
            else:
                for x in self._window_row(self.sources[0], plane, row, at, width, r):
                    hit = tir.compare("equal", x, best)  # the first of equal maxima gets the gradient
                    parts.append(k.let(tir.select(hit, rest, zero)))
                    rest = k.let(tir.select(hit, zero, rest), "rest")
            run = parts[0]
            if self.columns > 1:
                run = tir.shuffle(parts, [j * width + i for i in range(width) for j in range(self.columns)])
            self.store((row * self.rows + r) * self.image[1] + at * self.columns, run)

    def _clear_uncovered(self) -> None:
        """Store zeros where no window is: columns at the right, rows at the bottom."""
        height, width = self.image
        covered_rows, covered = self.small[0] * self.rows, self.small[1] * self.columns
        if covered < width:
            with self.k.loop(covered_rows, name="row") as row:
                self._store_zeros(row * width + covered, width - covered)
        if covered_rows < height:
            self._store_zeros(covered_rows * width, (height - covered_rows) * width)

    def _store_zeros(self, start: Value, count: int) -> None:
        def vector(at: Value, width: int) -> None:
            self.store(start + at, tir.splat(tir.const(0.0, "f32"), width))

        mk.for_vectors(self.k, count, self.cpu.lanes, vector)


POOL = Rule("pool", _claim, _emit, preferred_lanes=_preferred_lanes)
