"""Nanoseconds an element of each elementary function in compiled code, one thread, beside PyTorch's where installed.

python benchmarks/vector_math.py [--size 65536]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", GG_THREADS="1")

import numpy as np

from gluongraph.codegen.expr.algebra import CpuAlgebra
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.runtime import loader

NAMES = (
    "sqrt",
    "rsqrt",
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "erf",
    "normal_cdf",
    "normal_pdf",
    "sigmoid",
    "sin",
    "cos",
)


def best(run: Callable[[], Any], size: int) -> float:
    """The fastest of 50 runs, in ns an element."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) / size * 1e9


def kernel(name: str, size: int, lanes: int) -> tir.PrimFunc:
    """y = name(x)"""
    k = tir.Kernel(name)
    x, y = k.param("x", size, "f32"), k.param("y", size, "f32")
    with k.loop(size // lanes) as i:
        k.store(y, CpuAlgebra(k).unary(name, k.load(x, i * lanes, lanes)), i * lanes)
    return k.finish()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 16)
    size = parser.parse_args().size // 64 * 64
    on = target()
    if on is None:
        raise SystemExit("this measures CPU code")
    module = machine_code.build_kernels([kernel(name, size, on.lanes) for name in NAMES], on.tvm)
    x = np.random.default_rng(0).uniform(0.01, 4, size).astype(np.float32)
    y = np.empty_like(x)
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    print(f"{on.name}, {size} elements, ns an element: own{', torch' if torch else ''}")
    for name in NAMES:
        run, args = module[name], (loader.view(x), loader.view(y))
        line = f"{name:8} {best(partial(run, *args), size):6.3f}"
        if torch is not None and (fn := getattr(torch, name, None)) is not None:
            torch.set_num_threads(1)
            a, out = torch.from_numpy(x), torch.empty(size)
            line += f" {best(partial(fn, a, out=out), size):6.3f}"
        print(line)


if __name__ == "__main__":
    main()
