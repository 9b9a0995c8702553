"""How the time of planning a training step grows with the depth of its network.

    python benchmarks/planning.py --layers 100 300 1000

Each is a chain of Dense layers with Adam. The time is that of tracing, gradients, updates, passes, kernel selection,
schedule and memory, as a core takes it; no code is made of the plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import gluongraph as mx
from gluongraph import debug, gluon, nd

WIDTH = 16


def main(argv: Sequence[str] | None = None) -> list[tuple[int, int, float]]:
    """Print and return layers, nodes of the traced graph, and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[100, 300, 1000])
    options = parser.parse_args(argv)
    planned(2)  # what is imported at first use
    print("{:>8}{:>10}{:>10}{:>12}".format("layers", "nodes", "seconds", "us a node"))
    found = []
    for layers in options.layers:
        nodes, seconds = planned(layers)
        print(f"{layers:8}{nodes:10}{seconds:10.2f}{seconds / nodes * 1e6:12.0f}")
        found.append((layers, nodes, seconds))
    return found


def planned(layers: int) -> tuple[int, float]:
    """The nodes of a step on so many layers, and how long this thread takes to plan it."""
    net = gluon.nn.HybridSequential()
    net.add(*(gluon.nn.Dense(WIDTH, activation="relu", in_units=WIDTH) for _ in range(layers)))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    x, y = nd.ones((4, WIDTH)), nd.zeros((4, WIDTH))
    with debug.override(backend="reference"):  # a graph that is interpreted is planned only for `memory`
        begin = time.thread_time()
        step.memory(x, y)
        seconds = time.thread_time() - begin
        return len(step.graph.nodes()), seconds


if __name__ == "__main__":
    main()
