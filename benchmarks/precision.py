"""What 16 bits gain: matrix products by dtype of their operands, and training steps by precision, side by side.

    python benchmarks/precision.py --threads 1

The products are of square matrices, in GFLOP/s; the steps of three dense layers of 1024 with Adam on a batch of 512, in
milliseconds. Contenders take turns, and the best of each counts: what else runs on the machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence

DTYPES = ("f32", "bf16", "f16")
PRECISIONS = ("32", "bf16-mixed", "16-mixed")


def best_of(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds of each, which take turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def product(size: int, dtype: str) -> Callable[[], object]:
    """A function that multiplies x by a transposed weight, as a dense layer does."""
    import numpy as np

    from gluongraph import ops
    from gluongraph.compiler import compile_graph
    from gluongraph.dtypes import numpy_dtype
    from gluongraph.ir import Graph, TensorType
    from gluongraph.ops.matmul import MATMUL

    x, w = (ops.input(name, TensorType((size, size), dtype)) for name in ("x", "w"))
    sums = {} if dtype == "f32" else {"dtype": "f32"}
    run = compile_graph(Graph({"x": x, "w": w}, {"y": MATMUL(x, w, ta=False, tb=True, **sums)}), "product")
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(size, size)).astype(numpy_dtype(dtype)) for name in ("x", "w")}
    return lambda: run(given)


def step(precision: str) -> Callable[[], object]:
    """A function that trains one step."""
    import numpy as np

    import gluongraph as mx
    from gluongraph import gluon

    net = gluon.nn.HybridSequential()
    for _ in range(3):
        net.add(gluon.nn.Dense(1024, activation="relu", in_units=1024))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
    compiled = mx.compile(net, gluon.loss.L2Loss(), trainer, precision=precision)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(512, 1024)).astype(np.float32) for _ in range(2))
    return lambda: compiled(x, y)


def main(argv: Sequence[str] | None = None) -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of the products and steps; by default all")
    options = parser.parse_args(argv)
    if options.threads:
        os.environ["GG_THREADS"] = str(options.threads)
    print("size   " + "".join(f"{dtype:>10}" for dtype in DTYPES) + "   GFLOP/s")
    for size in options.sizes:
        best = best_of({dtype: product(size, dtype) for dtype in DTYPES}, options.rounds)
        print(f"{size:<7}" + "".join(f"{2 * size**3 / best[dtype] / 1e9:>10.0f}" for dtype in DTYPES))
    best = best_of({precision: step(precision) for precision in PRECISIONS}, options.rounds)
    print("step   " + "".join(f"{best[p] * 1e3:>8.1f} ms ({p})" for p in PRECISIONS))


if __name__ == "__main__":
    main()
