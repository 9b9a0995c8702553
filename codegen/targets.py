"""The table of targets, and which of them this machine supports."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gluongraph.codegen.contraction.amx import ASK_FOR_TILES
from gluongraph.codegen.rule import Cpu, Gpu, Target
from gluongraph.errors import CompileError
from gluongraph.host import nvidia
from gluongraph.host.process import threads

# Parallel loops are split into this many chunks; for this machine, rounded up to a multiple of its threads.
CHUNKS = 8
CPUINFO = Path("/proc/cpuinfo")


def _x86(name: str, mcpu: str, lanes: int, registers: int, needs: str, more: tuple[str, ...] = (), **known: Any) -> Cpu:
    options = (("kind", "llvm"), ("mtriple", "x86_64-linux-gnu"), ("mcpu", mcpu), *((("mattr", more),) if more else ()))
    return Cpu(name, options, tuple(needs.split()), lanes=lanes, registers=registers, chunks=CHUNKS, **known)


# Of the features that a target's `mcpu` implies, those that LLVM may use on its own: a virtual machine may lack any of
# them.
_V3 = "avx2 fma f16c bmi1 bmi2 abm movbe popcnt"
_V4 = _V3 + " avx512f avx512bw avx512cd avx512dq avx512vl"
_SAPPHIRE_RAPIDS = (
    _V4 + " amx_bf16 amx_tile avx512_bf16 avx512_fp16 avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq"
    " avx512ifma avx512vbmi avx_vnni gfni 3dnowprefetch"
)
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        _x86(
            "sapphirerapids",
            "sapphirerapids",
            16,
            32,
            _SAPPHIRE_RAPIDS,
            tiles=True,
            l2=2 << 20,
        ),
        # AMD processors, recognized by `clzero`: on the Intel processor that was measured, AVX512-BF16 is no faster
        # than float32 (89 to 150 GFLOP/s).
        _x86("avx512-bf16", "x86-64-v4", 16, 32, _V4 + " avx512_bf16 clzero", ("+avx512bf16",), dots=True),
        _x86("x86-64-v4", "x86-64-v4", 16, 32, _V4),
        _x86("x86-64-v3", "x86-64-v3", 8, 16, _V3),
        _x86("x86-64", "x86-64", 4, 16, ""),
        Cpu(
            "aarch64",
            (("kind", "llvm"), ("mtriple", "aarch64-linux-gnu"), ("mattr", ("+neon",))),
            lanes=4,
            registers=32,
            chunks=CHUNKS,
        ),
        Gpu(
            "cuda",
            (
                ("kind", "cuda"),
                ("arch", "sm_90"),
                ("max_threads_per_block", 1024),
                ("max_shared_memory_per_block", 49152),
                ("thread_warp_size", 32),
                ("host", (("kind", "llvm"),)),
            ),
        ),
    )
}


def target(name: str = "cpu") -> Target:
    """Return the target of that name; "cpu" is the best target that this machine can run, with at least one chunk per
    thread; "cuda" is for this machine's GPU, or sm_90 if there is none; "cuda:sm_80" is for that architecture.

    Raises:
        CompileError: there is no such target.
    """
    if name == "cpu":
        return _with_chunks_for_threads(_host())
    row, _, arch = name.partition(":")
    if row not in TARGETS or (arch and not (row == "cuda" and re.fullmatch(r"sm_\d+a?", arch))):
        raise CompileError(f"unknown target {name!r}; there are cpu, {', '.join(TARGETS)}, cuda:sm_80 and the like")
    found = TARGETS[row]
    if row == "cuda" and not arch and (version := nvidia.capability()) is not None:
        arch = nvidia.architecture(version)
    return found if not arch else replace(found, options=tuple({**dict(found.options), "arch": arch}.items()))


def _host() -> Target:
    """Return the first target whose instructions this machine has. `GG_TARGET` overrides it, e.g. to run AVX2 code on
    AVX-512."""
    if forced := os.environ.get("GG_TARGET"):
        return target(forced)
    machine = platform.machine()
    if machine in ("aarch64", "arm64"):
        return TARGETS["aarch64"]
    if machine not in ("x86_64", "AMD64"):
        return Cpu(machine, (("kind", "llvm"),), lanes=4, registers=16, chunks=CHUNKS)
    flags = usable_flags()
    return next(t for name, t in TARGETS.items() if flags.issuperset(t.needs) and name not in ("aarch64", "cuda"))


def _with_chunks_for_threads(target: Target) -> Target:
    """Return the target with equally many chunks for each thread; for 1, 2, 4 or 8 threads it is the target itself."""
    num_chunks = -(-CHUNKS // threads()) * threads()
    return replace(target, chunks=num_chunks) if isinstance(target, Cpu) and num_chunks != CHUNKS else target


def runs_here(target: Target) -> bool:
    """Can this machine run code for the target? False for GPUs, which are not checked."""
    return not target.gpu and target.machine == platform.machine() and usable_flags().issuperset(target.needs)


def usable_flags() -> frozenset[str]:
    """Return the CPU flags of this machine's first core, without those that Linux does not let this process use."""
    flags = cpu_flags()
    return flags - {"amx_tile"} if "amx_tile" in flags and not _tiles_granted() else flags


def _tiles_granted() -> bool:
    """Does Linux let this process use AMX tiles? In a virtual machine it may not, although the flags are set."""
    try:
        return int(ctypes.CDLL(None).syscall(*ASK_FOR_TILES)) == 0
    except (OSError, AttributeError):
        return False


def cpu_flags() -> frozenset[str]:
    """Return the CPU flags of this machine's first core; empty if /proc/cpuinfo cannot be read."""
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), ":")
    return frozenset(line.partition(":")[2].split())
