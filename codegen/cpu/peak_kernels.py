"""Microbenchmarks of peak throughput (arithmetic, bandwidth), with which kernels are compared.

Arithmetic keeps all operands in registers. Streams go through arrays of a given size, each parallel chunk through its
own part, so that small arrays stay in the cache of the core that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.codegen.contraction.amx import SIDE, AmxUnit
from gluongraph.codegen.expr.vector_math import fma
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.codegen.tvm.tir import Kernel, PrimFunc

STREAMS = {"read": 1, "write": 1, "add": 3}  # sum(x); y = constant; y = y + x: array accesses per element
_CHAINS = 12  # independent sums: enough for two units with a latency of five, few enough for 16 registers
_ROUNDS = 20_000
_TILE_FLOPS = 2 * SIDE * SIDE * 2 * SIDE  # of one tile multiplication
_UNROLLED = 4  # vectors per iteration of a stream


def peak(cpu: Cpu) -> tuple[PrimFunc, int, int]:
    """Return a kernel of f32 multiply-adds, the size of its argument, and its floating-point operations."""
    k = Kernel("peak_f32")
    x = k.param("x", cpu.chunks * cpu.lanes, "f32")
    with k.loop(cpu.chunks, "parallel") as chunk:
        at = chunk * cpu.lanes
        factor = k.bind(k.load(x, at, cpu.lanes))
        sums = k.local("sums", _CHAINS * cpu.lanes, "f32")
        for c in range(_CHAINS):
            k.store(sums, factor + float(c), c * cpu.lanes)
        with k.loop(_ROUNDS):
            for c in range(_CHAINS):
                k.store(sums, fma(k.load(sums, c * cpu.lanes, cpu.lanes), factor, factor), c * cpu.lanes)
        total = k.load(sums, 0, cpu.lanes)
        for c in range(1, _CHAINS):
            total = total + k.load(sums, c * cpu.lanes, cpu.lanes)
        k.store(x, total * 0.0, at)
    return k.finish(), x.size, 2 * cpu.chunks * _ROUNDS * _CHAINS * cpu.lanes


def tile_peak(cpu: Cpu) -> tuple[PrimFunc, int, int]:
    """Return the same for bf16 tile multiplications, on a CPU with AMX."""
    k = Kernel("peak_bf16")
    x = k.param("x", cpu.chunks * SIDE * SIDE, "f32")
    unit = AmxUnit()
    unit.prepare(k)
    with k.loop(cpu.chunks, "parallel") as chunk, unit.thread(k):
        for t in range(8):
            k.intrinsic("llvm.x86.tilezero", t)
        with k.loop(_ROUNDS):
            for t in range(4):
                k.intrinsic("llvm.x86.tdpbf16ps", t, 4 + t // 2, 6 + t % 2)
        k.intrinsic("llvm.x86.tilestored64", 0, k.address(x, chunk * (SIDE * SIDE)), 4 * SIDE)
    return k.finish(), x.size, cpu.chunks * _ROUNDS * 4 * _TILE_FLOPS


def stream(kind: str, size: int, times: int, cpu: Cpu) -> PrimFunc:
    """Return a kernel that goes `times` times through x and y of `size` elements each: `read` sums x, `write` fills y,
    `add` is y += x."""
    k = Kernel(f"{kind}_{size}")
    x, y = k.param("x", size, "f32"), k.param("y", size, "f32")
    step = _UNROLLED * cpu.lanes
    share = size // cpu.chunks // step
    with k.loop(cpu.chunks, "parallel") as chunk:
        start = k.bind(chunk * (share * step))
        sums = k.local("sums", step, "f32")
        for u in range(_UNROLLED):
            k.store(sums, tir.splat(0.0, cpu.lanes), u * cpu.lanes)
        with k.loop(times) as iteration, k.loop(share) as i:
            for u in range(_UNROLLED):
                at = start + i * step + u * cpu.lanes
                if kind == "read":
                    k.store(sums, k.load(sums, u * cpu.lanes, cpu.lanes) + k.load(x, at, cpu.lanes), u * cpu.lanes)
                elif kind == "write":
                    k.store(y, tir.splat(tir.cast(tir.index(iteration), "f32"), cpu.lanes), at)
                else:
                    k.store(y, k.load(y, at, cpu.lanes) + k.load(x, at, cpu.lanes), at)
        if kind == "read":
            for u in range(_UNROLLED):
                k.store(y, k.load(sums, u * cpu.lanes, cpu.lanes), start + u * cpu.lanes)
    return k.finish()


def build(cpu: Cpu, streams: Sequence[tuple[int, int]]) -> Any:
    """Return all of these kernels for a CPU as one module; `streams` are (size, times)."""
    kernels = [peak(cpu)[0], *([tile_peak(cpu)[0]] if cpu.tiles else [])]
    kernels += [stream(kind, size, times, cpu) for size, times in streams for kind in STREAMS]
    return machine_code.build_kernels(kernels, cpu.tvm)
