"""The machine's measured peaks, which `gluongraph.ir.cost_model` compares kernels with."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from gluongraph.codegen.cpu import peak_kernels
from gluongraph.codegen.rule import Cpu
from gluongraph.codegen.targets import target as find_target
from gluongraph.errors import CompileError
from gluongraph.host import process
from gluongraph.ir.cost_model import Level, Machine
from gluongraph.runtime import loader
from gluongraph.storage import aligned_empty

# Elements in each of two arrays, and passes over them in a call: within L2, within L3, and beyond both.
STREAMS = ((1 << 16, 64), (1 << 20, 4), (1 << 26, 1))
_LONG = 0.1  # seconds of runs for each measurement; the best counts


@cache
def machine() -> Machine:
    """Measure this machine's CPU, with as many threads as kernels use; once per process, in two seconds.

    The best of many runs counts, since other load may slow some of them: a peak that is measured too low makes kernels
    look too good.

    Raises:
        CompileError: GG_TARGET is not a CPU.
    """
    on = find_target()
    if not isinstance(on, Cpu):
        raise CompileError(f"{on.name} is no CPU, whose roofs could be measured")
    threads = process.threads()
    module = peak_kernels.build(on, STREAMS)
    levels = tuple(_level(module, size, times) for size, times in STREAMS)
    return Machine(threads, _peaks(module, on), levels)


def _peaks(module: Any, on: Cpu) -> dict[str, float]:
    found = {}
    for unit, made in (("f32", peak_kernels.peak), ("bf16", peak_kernels.tile_peak)):
        if unit == "f32" or on.tiles:
            _, size, flops = made(on)
            kernel, x = module[f"peak_{unit}"], loader.view(np.full(size, 0.5, np.float32))
            found[unit] = flops / _best(partial(kernel, x))
    return found


def _level(module: Any, size: int, times: int) -> Level:
    x, y = (aligned_empty((size,), np.float32) for _ in range(2))
    x[:], y[:] = 1, 1

    def rate(kind: str, arrays: int) -> float:
        """Return the bandwidth of a stream that reads or writes `arrays` arrays."""
        kernel, given = module[f"{kind}_{size}"], (loader.view(x), loader.view(y))
        return arrays * x.nbytes * times / _best(partial(kernel, *given))

    return Level(2 * x.nbytes, **{kind: rate(kind, arrays) for kind, arrays in peak_kernels.STREAMS.items()})


def _best(run: Callable[[], Any]) -> float:
    """Return the minimum time of at least five runs, for at least a tenth of a second."""
    times: list[float] = []
    while len(times) < 5 or sum(times) < _LONG:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)
