"""Convolutions of ResNets and MobileNets in float32, forward and both gradients, beside PyTorch's.

    python benchmarks/conv.py                        # layers of the ResNets, GFLOP/s and how many times PyTorch's
    python benchmarks/conv.py --layers bottleneck mobile --only 1x1 --kinds weights --cpu-time

Contenders take turns, and the best of each counts: what else runs on the machine disturbs all alike. The last line is
the geometric mean. Both sides are given images row after row, and pay for turning them to a layout of their own. With
`--cpu-time` what counts is the time that one thread had a core.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

# images, channels, pixels of a side, channels made, side of the kernel, stride, groups
Layer = tuple[int, int, int, int, int, int, int]
LAYERS: dict[str, dict[str, Layer]] = {
    "basic": {
        "3x32>16 3x3": (64, 3, 32, 16, 3, 1, 1),
        "16x32 3x3": (64, 16, 32, 16, 3, 1, 1),
        "16x32>32 3x3/2": (64, 16, 32, 32, 3, 2, 1),
        "32x16 3x3": (64, 32, 16, 32, 3, 1, 1),
        "64x8 3x3": (64, 64, 8, 64, 3, 1, 1),
    },
    "bottleneck": {
        "64x32>256 1x1": (8, 64, 32, 256, 1, 1, 1),
        "64x32 3x3": (8, 64, 32, 64, 3, 1, 1),
        "256x32>64 1x1": (8, 256, 32, 64, 1, 1, 1),
        "128x32 3x3/2": (8, 128, 32, 128, 3, 2, 1),
        "512x16>128 1x1": (8, 512, 16, 128, 1, 1, 1),
        "256x8 3x3": (8, 256, 8, 256, 3, 1, 1),
        "512x16>1024 1x1/2": (8, 512, 16, 1024, 1, 2, 1),
        "1024x8>2048 1x1/2": (8, 1024, 8, 2048, 1, 2, 1),
        "256x8>1024 1x1": (8, 256, 8, 1024, 1, 1, 1),
        "512x4 3x3": (8, 512, 4, 512, 3, 1, 1),
        "2048x4>512 1x1": (8, 2048, 4, 512, 1, 1, 1),
    },
    "mobile": {
        "32x32 3x3 each": (32, 32, 32, 32, 3, 1, 32),
        "128x16 3x3/2 each": (32, 128, 16, 128, 3, 2, 128),
        "64x32>128 1x1": (32, 64, 32, 128, 1, 1, 1),
        "512x4 1x1": (32, 512, 4, 512, 1, 1, 1),
    },
}
KINDS = ("forward", "data", "weights")


def own(layer: Layer, wanted: Collection[str]) -> dict[str, Callable[[], object]]:
    """gluongraph's kernels of a layer, compiled."""
    import numpy as np

    from gluongraph import ops
    from gluongraph.compiler.lower import compile_graph
    from gluongraph.ir.graph import Graph, TensorType
    from gluongraph.ops.conv import CONV2D, DATA_GRAD, WEIGHT_GRAD

    n, c, pixels, o, side, stride, groups = layer
    out = (pixels + side // 2 * 2 - side) // stride + 1
    x, w, y = (n, c, pixels, pixels), (o, c // groups, side, side), (n, o, out, out)
    how: dict[str, Any] = {"stride": (stride,) * 2, "padding": (side // 2,) * 2, "dilation": (1, 1), "groups": groups}
    kinds: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "forward": (lambda a, b: CONV2D(a, b, **how), [x, w]),
        "data": (lambda a, b: DATA_GRAD(a, b, shape=x, **how), [y, w]),
        "weights": (lambda a, b: WEIGHT_GRAD(a, b, shape=w, **how), [x, y]),
    }
    random = np.random.default_rng(0)
    found: dict[str, Callable[[], object]] = {}
    for kind in wanted:
        build, shapes = kinds[kind]
        inputs = {f"x{i}": ops.input(f"x{i}", TensorType(shape)) for i, shape in enumerate(shapes)}
        given = {name: random.standard_normal(node.shape, np.float32) for name, node in inputs.items()}
        run = compile_graph(Graph(inputs, {"y": build(*inputs.values())}), "convolution")
        found[kind] = partial(run, given)
    return found


def in_torch(layer: Layer, threads: int) -> dict[str, Callable[[], object]]:
    """PyTorch's."""
    import torch

    torch.set_num_threads(threads)
    n, c, pixels, o, side, stride, groups = layer
    data, weight = torch.randn(n, c, pixels, pixels), torch.randn(o, c // groups, side, side)
    grad = torch.randn_like(torch.nn.functional.conv2d(data, weight, None, stride, side // 2, 1, groups))

    def backward(*wanted: bool) -> Callable[[], object]:
        how = ([stride] * 2, [side // 2] * 2, [1, 1], False, [0, 0], groups)
        return lambda: torch.ops.aten.convolution_backward(grad, data, weight, None, *how, wanted)

    return {
        "forward": lambda: torch.nn.functional.conv2d(data, weight, None, stride, side // 2, 1, groups),
        "data": backward(True, False, False),
        "weights": backward(False, True, False),
    }


def best(contenders: tuple[Callable[[], object], ...], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The least seconds of each, which take turns for so long."""
    least = [math.inf] * len(contenders)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or math.inf in least:
        for i, run in enumerate(contenders):
            for _ in range(3):
                started = clock()
                run()
                least[i] = min(least[i], clock() - started)
    return least


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", choices=LAYERS, nargs="+", default=["basic", "bottleneck"])
    parser.add_argument("--threads", type=int, default=1, help="more disturb each other: both wait for work spinning")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kind of each layer (%(default)s)")
    parser.add_argument("--only", default="", help="layers whose name has this in it")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--cpu-time", action="store_true", help="on one thread, by the time that it had a core")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        parser.error("what is measured is held against PyTorch's: pip install torch")
    clock = time.thread_time if options.cpu_time else time.perf_counter
    for name in ("GG", "OMP", "TVM"):
        os.environ[f"{name}{'' if name == 'GG' else '_NUM'}_THREADS"] = str(1 if options.cpu_time else options.threads)
    ratios = []
    print(f"{'':20}" + "".join(f"{kind:>22}" for kind in options.kinds) + "   GFLOP/s, times PyTorch's")
    layers = (pair for group in options.layers for pair in LAYERS[group].items() if options.only in pair[0])
    for name, layer in layers:
        n, c, pixels, o, side, stride, groups = layer
        mine, theirs, line = own(layer, options.kinds), in_torch(layer, options.threads), f"{name:20}"
        flops = 2 * n * o * (c // groups) * side**2 * math.ceil(pixels / stride) ** 2
        for kind in options.kinds:
            ours, peer = best((mine[kind], theirs[kind]), options.seconds, clock)
            ratios.append(peer / ours)
            line += f"{flops / ours / 1e9:14.0f} ({ratios[-1]:4.2f}x)"
        print(line, flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
