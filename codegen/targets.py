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

# Parallel loops are cut into this many chunks, or on the machine at hand as many more as its threads share evenly.
CHUNKS = 8
CPUINFO = Path("/proc/cpuinfo")


def _x86(name: str, mcpu: str, lanes: int, registers: int, needs: str, more: tuple[str, ...] = (), **known: Any) -> Cpu:
    options = (("kind", "llvm"), ("mtriple", "x86_64-linux-gnu"), ("mcpu", mcpu), *((("mattr", more),) if more else ()))
    return Cpu(name, options, tuple(needs.split()), lanes=lanes, registers=registers, chunks=CHUNKS, **known)


# Of the features that LLVM takes for granted, those that it may make use of without being told to: virtual machines
# can have any of them without the others.
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
        # Of AMD's, by `clzero`: Intel's multiply no faster so than in float32, 89 to 150 GFLOP/s on the one measured.
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
    """The row of that name; 'cpu' is the best row that this machine can run, with a chunk of work for each of its
    threads; "cuda" is for the GPU that is here, or for sm_90 where none is; "cuda:sm_80" is for that GPU.

    Raises:
        CompileError: no such row.
    """
    if name == "cpu":
        return _shared_out(_host())
    row, _, arch = name.partition(":")
    if row not in TARGETS or (arch and not (row == "cuda" and re.fullmatch(r"sm_\d+a?", arch))):
        raise CompileError(f"unknown target {name!r}; there are cpu, {', '.join(TARGETS)}, cuda:sm_80 and the like")
    found = TARGETS[row]
    if row == "cuda" and not arch and (version := nvidia.capability()) is not None:
        arch = nvidia.architecture(version)
    return found if not arch else replace(found, options=tuple({**dict(found.options), "arch": arch}.items()))


def _host() -> Target:
    """The first row whose instructions this machine has. `GG_TARGET` overrides, e.g. to run AVX2 code on AVX-512."""
    if forced := os.environ.get("GG_TARGET"):
        return target(forced)
    machine = platform.machine()
    if machine in ("aarch64", "arm64"):
        return TARGETS["aarch64"]
    if machine not in ("x86_64", "AMD64"):
        return Cpu(machine, (("kind", "llvm"),), lanes=4, registers=16, chunks=CHUNKS)
    flags = usable_flags()
    return next(t for name, t in TARGETS.items() if flags.issuperset(t.needs) and name not in ("aarch64", "cuda"))


def _shared_out(target: Target) -> Target:
    """The target with chunks for each thread; of 1, 2, 4 or 8 threads it is the target itself."""
    num_chunks = -(-CHUNKS // threads()) * threads()
    return replace(target, chunks=num_chunks) if isinstance(target, Cpu) and num_chunks != CHUNKS else target


def runs_here(target: Target) -> bool:
    """Can this machine run what is compiled for the target? Of a GPU's nothing is known."""
    return not target.gpu and target.machine == platform.machine() and usable_flags().issuperset(target.needs)


def usable_flags() -> frozenset[str]:
    """The feature names of this machine's first core, without those that Linux keeps from this process."""
    flags = cpu_flags()
    return flags - {"amx_tile"} if "amx_tile" in flags and not _tiles_granted() else flags


def _tiles_granted() -> bool:
    """Does Linux let this process use the tiles of AMX? A virtual machine's may say no, whatever its flags tell."""
    try:
        return int(ctypes.CDLL(None).syscall(*ASK_FOR_TILES)) == 0
    except (OSError, AttributeError):
        return False


def cpu_flags() -> frozenset[str]:
    """The feature names of this machine's first core; empty where Linux does not tell."""
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), ":")
    return frozenset(line.partition(":")[2].split())
