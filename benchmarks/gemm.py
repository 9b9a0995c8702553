"""Matrix products of 40 shapes beside torch.mm: squares, odd sizes, all transposes, and those of a transformer's step.

python benchmarks/gemm.py [--dtype bf16] [--only 384] [--rounds 5] [--cpu-time] [--json FILE]

Both run in this process, on as many threads, in alternating blocks; the least time of each counts, since what else runs
can but add to it. On a busy machine two threads wait for each other: `--cpu-time` takes one thread, and the time that
it had a core.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.codegen.build import kernel
from gluongraph.codegen.rules import offer
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code
from gluongraph.dtypes import numpy_dtype
from gluongraph.host import process
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.plan import Buffer, Group, Launch
from gluongraph.runtime import loader
from gluongraph.storage import aligned_empty

BLOCK = 0.03  # seconds of one contender at a time


@dataclass(frozen=True)
class Product:
    """C[m, n] = A B over kk, each operand stored straight (N) or transposed (T)."""

    m: int
    n: int
    kk: int
    stored: str = "NN"

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.kk} {self.stored}"

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of the operands as they are stored."""
        a, b = (self.m, self.kk), (self.kk, self.n)
        return (a if self.stored[0] == "N" else a[::-1]), (b if self.stored[1] == "N" else b[::-1])


GRID = (
    *(Product(s, s, s) for s in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)),
    *(Product(s, s, s) for s in (65, 127, 255, 500, 1000)),
    *(Product(s, s, s, stored) for s in (256, 384, 1024) for stored in ("NT", "TN", "TT")),
    *(Product(m, n, kk, "NT") for m, n, kk in ((2048, 384, 384), (2048, 1536, 384), (2048, 384, 1536))),  # forward
    *(Product(m, n, kk, "NN") for m, n, kk in ((2048, 384, 1536), (1024, 256, 1024))),  # data gradients
    *(Product(m, n, kk, "TN") for m, n, kk in ((384, 384, 2048), (1536, 384, 2048), (256, 1024, 1024))),  # of weights
    *(Product(m, n, kk, "NT") for m, n, kk in ((64, 2048, 512), (64, 512, 2048), (128, 512, 784))),  # small batches
    *(Product(m, n, kk) for m, n, kk in ((2048, 64, 64), (64, 64, 2048), (100, 2000, 300), (777, 333, 555))),
)


@dataclass
class Row:
    """The least seconds of each contender."""

    product: Product
    own: float = math.inf
    torch: float = math.inf

    @property
    def ratio(self) -> float:
        """How many times as fast as torch."""
        return self.torch / self.own

    def __str__(self) -> str:
        flops = 2e-9 * self.product.m * self.product.n * self.product.kk
        peer = f"{flops / self.torch:8.1f} {self.ratio:6.2f}" if self.torch < math.inf else ""
        return f"{self.product!s:24} {flops / self.own:8.1f} {peer}"


def launch_of(product: Product, dtype: str, name: str) -> Launch:
    """The product as a kernel of the rule that takes it."""
    inputs = {f"x{i}": ops.input(f"x{i}", TensorType(shape, dtype)) for i, shape in enumerate(product.shapes)}
    ta, tb = (stored == "T" for stored in product.stored)
    group = Group(Graph(inputs, {"y0": ops.matmul(*inputs.values(), ta=ta, tb=tb)}), "gemm")
    candidate = offer(target())(group)
    assert candidate is not None, f"no rule takes {product} of {dtype}"
    reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
    writes = tuple(Buffer(f"y{i}", t, "output") for i, t in enumerate(group.outputs))
    return Launch(name, group, candidate, reads, writes)


def own(products: Sequence[Product], dtype: str) -> list[Callable[[], Any]]:
    """One call of each product's kernel."""
    launches = [launch_of(product, dtype, f"k{i}") for i, product in enumerate(products)]
    module = machine_code.build_kernels([kernel(launch, target()) for launch in launches], target().tvm)
    calls: list[Callable[[], Any]] = []
    for launch in launches:
        memory = [_numbers(b.type.shape, dtype) for b in (*launch.reads, *launch.writes)]
        if launch.candidate.workspace:
            memory.append(aligned_empty((launch.candidate.workspace,), np.uint8))
        views = [loader.view(x) for x in memory]
        # The arrays live as long as the views do.
        calls.append(lambda function=module[launch.kernel], views=views, memory=memory: function(*views))
    return calls


def _numbers(shape: tuple[int, ...], dtype: str) -> Any:
    made = aligned_empty(shape, numpy_dtype(dtype))
    made[:] = np.random.default_rng(0).uniform(-1, 1, shape).astype(made.dtype)
    return made


def peers(products: Sequence[Product], dtype: str) -> list[Callable[[], Any]] | None:
    """The same of torch.mm, if torch is there."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(process.threads())
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    calls: list[Callable[[], Any]] = []
    for product in products:
        stored = [torch.rand(shape).sub_(0.5).to(kind) for shape in product.shapes]
        a, b = (x.t() if how == "T" else x for x, how in zip(stored, product.stored, strict=True))
        out = torch.empty(product.m, product.n, dtype=kind)
        calls.append(partial(torch.mm, a, b, out=out))
    return calls


def least(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    """The fastest of the runs of one block; the first warms up what the other contender has cooled."""
    run()
    times: list[float] = []
    while sum(times) < BLOCK or len(times) < 3:
        started = clock()
        run()
        times.append(clock() - started)
    return min(times)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Measure, print and return the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--only", default="", help="products whose text has this in it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="on one thread, by the time that it had a core")
    parser.add_argument("--json", help="write the rows to this file too")
    options = parser.parse_args(argv)
    if target() is None:
        raise SystemExit("this measures CPU code")
    if options.cpu_time:
        os.environ.update(GG_THREADS="1", OMP_NUM_THREADS="1")
    clock = time.thread_time if options.cpu_time else time.perf_counter
    threads = process.threads()
    products = [p for p in GRID if options.only in str(p)]
    mine, theirs = own(products, options.dtype), peers(products, options.dtype)
    rows = [Row(product) for product in products]
    for _ in range(options.rounds):
        for i, row in enumerate(rows):
            row.own = min(row.own, least(mine[i], clock))
            if theirs is not None:
                row.torch = min(row.torch, least(theirs[i], clock))
    print(f"{target().name}, {threads} threads, {options.dtype}: GFLOP/s own, of torch.mm, and their ratio")
    for row in rows:
        print(row)
    if theirs is not None and rows:
        mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
        print(f"{len(rows)} products: geometric mean of the ratios {mean:.2f}, least {min(r.ratio for r in rows):.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(row) for row in rows], file)
    return rows


if __name__ == "__main__":
    main()
