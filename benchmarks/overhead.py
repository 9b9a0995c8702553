"""Time of a compiled step that is not spent in kernels: models so small that their kernels take next to nothing.

python benchmarks/overhead.py

What is measured is the whole Python call, an upper bound.
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


def tiny(layers: int, optimizer: str) -> tuple[Any, Any, Any]:
    """A step and a batch for it: `layers` dense layers of one unit, on a batch of one."""
    net = nn.HybridSequential()
    net.add(*(nn.Dense(1, in_units=1) for _ in range(layers)))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3})
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    x, y = nd.array(np.ones((1, 1))), nd.array(np.ones((1, 1)))
    return step, x, y


def microseconds(call: Callable[[], Any], blocks: int, calls: int) -> list[float]:
    """Mean microseconds a call, of each block."""
    call()
    times = []
    for _ in range(blocks):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) / calls * 1e6)
    return times


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print and return the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args(argv)
    medians = {}
    print(f"{'':22}{'kernels':>8}{'step':>10}{'least':>10}{'most':>10}")
    for layers, optimizer in ((1, "sgd"), (1, "adam"), (3, "adam"), (20, "adam")):
        step, *batch = tiny(layers, optimizer)
        times = microseconds(partial(step, *batch), options.blocks, options.calls)
        name = f"{2 * layers} parameters, {optimizer}"
        medians[name] = statistics.median(times)
        columns = (medians[name], min(times), max(times))
        print(f"{name:22}{len(step.plan.launches):8}" + "".join(f"{each:7.1f} us" for each in columns))
    return medians


if __name__ == "__main__":
    main()
