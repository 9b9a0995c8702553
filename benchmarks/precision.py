"""What 16 bits gain: products and convolutions by dtype of their operands, and where the time of mixed steps goes.

    python benchmarks/precision.py --threads 1

Square matrix products and layers of ResNet-18 and ResNet-50 in GFLOP/s, PyTorch's bfloat16 beside them where it is
installed; then steps by precision: milliseconds, how much more than with bf16-mixed alone, and the shares of kernels
that multiply, that only cast, that serve the scale of the loss and clipping, of updates in kernels of their own, and of
all others. Contenders take turns, so that what else runs on the machine disturbs all alike: products one at a time, of
which the best counts, steps some in a row, as a training runs, of which the median counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluongraph.bench.workloads import Workload
    from gluongraph.ir.plan import Launch

DTYPES = ("f32", "bf16", "f16")
# images, channels, pixels of a side, channels made, side of the kernel, stride
LAYERS = {
    "64x32 3x3": (64, 64, 32, 64, 3, 1),
    "64x32>128 3x3/2": (64, 64, 32, 128, 3, 2),
    "128x16 3x3": (64, 128, 16, 128, 3, 1),
    "256x8 3x3": (64, 256, 8, 256, 3, 1),
    "512x4 3x3": (64, 512, 4, 512, 3, 1),
    "64x16>256 1x1": (64, 64, 16, 256, 1, 1),
    "256x16>512 1x1/2": (64, 256, 16, 512, 1, 2),
    "1024x4>256 1x1": (64, 1024, 4, 256, 1, 1),
}
STEPS: tuple[dict[str, Any], ...] = (
    {"precision": "32"},
    {"precision": "bf16-mixed"},
    {"precision": "bf16-mixed", "clip_norm": 1.0},
    {"precision": "16-mixed"},
)
KINDS = ("products", "casts", "scaling", "updates", "others")


def best_of(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds of each, which take turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def medians_of(contenders: Sequence[Callable[[], object]], rounds: int, steps: int = 12) -> list[float]:
    """The median seconds of each, which take turns of so many steps in a row. The first two of a turn do not count:
    they find in the caches what others have left."""
    spent: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for run, found in zip(contenders, spent, strict=True):
            for i in range(steps):
                started = time.perf_counter()
                run()
                if i >= 2:
                    found.append(time.perf_counter() - started)
    return [statistics.median(found) for found in spent]


def compiled(build: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: str) -> Callable[[], object]:
    """A function that runs one op, compiled, on random numbers of that dtype; sums are float32."""
    import numpy as np

    from gluongraph import ops
    from gluongraph.compiler.lower import compile_graph
    from gluongraph.dtypes import numpy_dtype
    from gluongraph.ir.graph import Graph, TensorType

    inputs = {f"x{i}": ops.input(f"x{i}", TensorType(shape, dtype)) for i, shape in enumerate(shapes)}
    sums = {} if dtype == "f32" else {"dtype": "f32"}
    run = compile_graph(Graph(inputs, {"y": build(*inputs.values(), **sums)}), "product")
    rng = np.random.default_rng(0)
    given = {k: rng.normal(size=n.shape).astype(numpy_dtype(dtype)) for k, n in inputs.items()}
    return lambda: run(given)


def product(size: int, dtype: str) -> Callable[[], object]:
    """x times a transposed weight, as a dense layer does."""
    from gluongraph.ops.matmul import MATMUL

    return compiled(lambda x, w, **sums: MATMUL(x, w, ta=False, tb=True, **sums), [(size, size)] * 2, dtype)


def convolutions(layer: tuple[int, ...]) -> dict[str, dict[str, Callable[[], object]]]:
    """Forward and both gradients of a layer: the contenders of each."""
    from gluongraph.ops.conv import CONV2D, DATA_GRAD, WEIGHT_GRAD

    n, c, pixels, o, side, stride = layer
    out = (pixels + side // 2 * 2 - side) // stride + 1
    x, w, y = (n, c, pixels, pixels), (o, c, side, side), (n, o, out, out)
    how = {"stride": (stride, stride), "padding": (side // 2, side // 2), "dilation": (1, 1), "groups": 1}
    kinds: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "forward": (lambda a, b, **sums: CONV2D(a, b, **how, **sums), [x, w]),
        "data": (lambda a, b, **sums: DATA_GRAD(a, b, shape=x, **how, **sums), [y, w]),
        "weights": (lambda a, b, **sums: WEIGHT_GRAD(a, b, shape=w, **how, **sums), [x, y]),
    }
    found = {kind: {d: compiled(build, shapes, d) for d in DTYPES[:2]} for kind, (build, shapes) in kinds.items()}
    if importlib.util.find_spec("torch"):
        for kind, run in in_torch(x, w, y, stride, side // 2).items():
            found[kind]["torch bf16"] = run
    return found


def in_torch(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], stride: int, padding: int
) -> dict[str, Callable[[], object]]:
    """The same by PyTorch."""
    import torch

    torch.set_num_threads(int(os.environ.get("GG_THREADS", os.cpu_count() or 1)))
    data, weight, grad = (torch.randn(shape).bfloat16() for shape in (x, w, y))

    def backward(*wanted: bool) -> Callable[[], object]:
        how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
        return lambda: torch.ops.aten.convolution_backward(grad, data, weight, None, *how, wanted)

    return {
        "forward": lambda: torch.nn.functional.conv2d(data, weight, None, stride, padding),
        "data": backward(True, False, False),
        "weights": backward(False, True, False),
    }


def workload(name: str) -> Workload:
    """A row of the benchmarks, or three dense layers of 1024 with Adam on a batch of 512."""
    from gluongraph.bench.workloads import Workload, find

    if name != "wide":
        return find(name)
    size = {"features": 1024, "hidden": (1024, 1024), "classes": 1024}
    return Workload("wide", "mlp", 512, size, "adam", {"learning_rate": 1e-4})


def kind_of(launch: Launch) -> str:
    """What a kernel is for: one of KINDS."""
    nodes = [n for n in launch.group.body.nodes() if n.op.kind not in ("leaf", "movement")]
    names = {n.op.name for n in nodes}
    if any(n.op.kind in ("contraction", "composite") for n in nodes):  # a composite with a kernel is an attention
        return "products"
    if names == {"cast"}:
        return "casts"
    written = {b.name for b in launch.writes if b.space == "state"}
    if any("weight" in name for name in written):
        return "updates"
    outputs = {b.name for b in launch.writes if b.space == "output"}
    serves = any(name.startswith("amp:") for name in written | outputs) or outputs & {"grad_norm"}
    squares = {t.dtype for n in nodes for t in n.types} >= {"f64"}  # of the norm of all gradients
    return "scaling" if serves or squares or "isfinite" in names else "others"


def shares(name: str, rounds: int) -> None:
    """Print the steps of a workload: time, and the shares of its kernels."""
    from gluongraph.bench.own import step_of

    steps = []
    for options in STEPS:
        step, batches = step_of(workload(name), **options)
        step(*batches[0])
        steps.append((step, batches[0]))
    seconds = medians_of([partial(step, *batch) for step, batch in steps], rounds)
    usual = seconds[STEPS.index({"precision": "bf16-mixed"})]
    for options, (step, batch), took in zip(STEPS, steps, seconds, strict=True):
        spent = dict.fromkeys(KINDS, 0.0)
        for row, launch in zip(step.profile(*batch), step.plan.launches, strict=True):
            spent[kind_of(launch)] += row.seconds
        text = " ".join(str(v) for v in options.values()).replace("1.0", "clipped")
        total = sum(spent.values())
        print(f"{name:13}{text:20}{took * 1e3:>8.1f} ms{took / usual - 1:>+8.1%}", end="")
        print("".join(f"{spent[k] / total:>10.1%}" for k in KINDS))


def main(argv: Sequence[str] | None = None) -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[256, 512, 1024, 2048])
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), help="beginnings of names")
    parser.add_argument("--workloads", nargs="*", default=["wide", "gpt", "resnet18-32"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of all contenders; by default all")
    options = parser.parse_args(argv)
    if options.threads:
        os.environ["GG_THREADS"] = str(options.threads)
    print(f"{'size':28}" + "".join(f"{dtype:>12}" for dtype in DTYPES) + "   GFLOP/s")
    for size in options.sizes:
        best = best_of({dtype: product(size, dtype) for dtype in DTYPES}, options.rounds)
        print(f"{size:<28}" + "".join(f"{2 * size**3 / best[dtype] / 1e9:>12.0f}" for dtype in DTYPES))
    print(f"\n{'convolution':28}" + "".join(f"{name:>12}" for name in ("f32", "bf16", "torch bf16")) + "   GFLOP/s")
    for name in (n for n in LAYERS if n.startswith(tuple(options.layers))):
        n, c, pixels, o, side, stride = LAYERS[name]
        flops = 2 * n * c * o * side**2 * ((pixels - 1) // stride + 1) ** 2
        for kind, contenders in convolutions(LAYERS[name]).items():
            best = best_of(contenders, options.rounds)
            print(f"{name:20}{kind:8}" + "".join(f"{flops / best[k] / 1e9:>12.0f}" for k in contenders))
    print(f"\n{'step':52}" + "".join(f"{kind:>10}" for kind in KINDS))
    for name in options.workloads:
        shares(name, options.rounds)


if __name__ == "__main__":
    main()
