"""Time of a compiled step that is not spent in kernels: models so small that their kernels take next to nothing.

python benchmarks/overhead.py

What is measured is the whole Python call, an upper bound: of one step, and, divided by their number, of the steps on
stacked batches that one call makes (steps_per_call). Blocks of both alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.gluon import nn

STACKED = 32  # batches of a call with steps_per_call


def tiny(layers: int, optimizer: str, steps_per_call: int | None = None) -> partial[Any]:
    """A call of a step: `layers` dense layers of one unit, on a batch of one, or on a stack of such batches."""
    net = nn.HybridSequential()
    net.add(*(nn.Dense(1, in_units=1) for _ in range(layers)))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3})
    return called(mx.compile(net, gluon.loss.L2Loss(), trainer, steps_per_call=steps_per_call), [(1, 1), (1, 1)])


def mlp(steps_per_call: int | None = None) -> partial[Any]:
    """A call of a step of a classifier: 16 units to 32 to 4, with dropout, Adam and a schedule, on a batch of 8."""
    net = nn.HybridSequential()
    net.add(nn.Dense(32, activation="relu", in_units=16), nn.Dropout(0.1), nn.Dense(4, in_units=32))
    net.initialize()
    schedule = mx.lr_scheduler.CosineScheduler(10**6, base_lr=1e-3)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"lr_scheduler": schedule})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, steps_per_call=steps_per_call)
    return called(step, [(8, 16), (8,)])


def called(step: Any, shapes: Sequence[tuple[int, ...]]) -> partial[Any]:
    """A call of a step on a batch of these shapes, or a stack of such batches."""
    most = step.options.steps_per_call
    return partial(step, *(nd.array(np.ones(shape if most is None else (most, *shape))) for shape in shapes))


def microseconds(call: Callable[[], Any], calls: int) -> float:
    """Mean microseconds of a call."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls * 1e6


def main(argv: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
    """Print and return the medians: of a step, and of one of several steps of a call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000, help="steps of a block")
    options = parser.parse_args(argv)
    medians = {}
    print(f"{'':22}{'kernels':>8}{'step':>10}{'least':>10}{'most':>10}{f'of {STACKED}':>10}{'least':>10}{'most':>10}")
    small = [(f"{2 * n} parameters, {o}", partial(tiny, n, o)) for n, o in ((1, "sgd"), (1, "adam"), (3, "adam"))]
    for name, make in (*small, ("40 parameters, adam", partial(tiny, 20, "adam")), ("classifier", mlp)):
        one, several = make(), make(steps_per_call=STACKED)
        one(), several()
        times = [
            (microseconds(one, options.calls), microseconds(several, max(1, options.calls // STACKED)) / STACKED)
            for _ in range(options.blocks)
        ]
        columns = [(statistics.median(each), min(each), max(each)) for each in zip(*times, strict=True)]
        medians[name] = (columns[0][0], columns[1][0])
        row = "".join(f"{value:7.1f} us" for each in columns for value in each)
        print(f"{name:22}{len(one.func.plan.launches):8}{row}")
    return medians


if __name__ == "__main__":
    main()
