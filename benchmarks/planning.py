"""How long planning a training step takes: by the depth of its network, and for the same network of PyTorch and Gluon.

    python benchmarks/planning.py --layers 100 300 1000
    python benchmarks/planning.py --layers --models resnet18 densenet121     (torch and torchvision installed)

The first are chains of Dense layers with Adam. The time is that of tracing, gradients, updates, passes, kernel
selection, schedule and memory, as a core takes it; no code is made of the plan. `from_torch` has been called before on
a module of PyTorch's: what is planned is its graph. Both nets alternate, and the least of three times is shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import gluongraph as mx
from gluongraph import debug, gluon, nd

WIDTH = 16
IMAGES, LABELS = (2, 3, 224, 224), (2, 10)  # pooling of Gluon's networks needs images as large
# Names of torchvision's models, and of the same networks in Gluon's model zoo.
MODELS = {
    "alexnet": "alexnet",
    "densenet121": "densenet121",
    "mobilenet_v2": "mobilenetv2_1.0",
    "resnet18": "resnet18_v1",
    "resnet50": "resnet50_v1",
    "squeezenet1_1": "squeezenet1.1",
    "vgg11_bn": "vgg11_bn",
}


def main(argv: Sequence[str] | None = None) -> list[tuple[int, int, float]]:
    """Print and return layers, nodes of the traced graph, and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=[100, 300, 1000])
    parser.add_argument("--models", nargs="*", default=[], choices=MODELS)
    options = parser.parse_args(argv)
    planned(chain(2), (4, WIDTH), (4, WIDTH))  # what is imported at first use
    found = depths(options.layers) if options.layers else []
    if options.models:
        pairs(options.models)
    return found


def depths(numbers: Sequence[int]) -> list[tuple[int, int, float]]:
    """Print and return layers, nodes of the traced graph, and seconds."""
    print("{:>8}{:>10}{:>10}{:>12}".format("layers", "nodes", "seconds", "us a node"))
    found = []
    for layers in numbers:
        nodes, seconds = planned(chain(layers), (4, WIDTH), (4, WIDTH))
        print(f"{layers:8}{nodes:10}{seconds:10.2f}{seconds / nodes * 1e6:12.0f}")
        found.append((layers, nodes, seconds))
    return found


def pairs(names: Sequence[str]) -> None:
    """Print nodes and seconds of models of torchvision's through `from_torch`, and of Gluon's."""
    print(f"{'model':<16}{'nodes':>8}{'torch':>8}{'nodes':>8}{'Gluon':>8}{'ratio':>7}")
    for name in names:
        runs = [[planned(net, IMAGES, LABELS) for net in (of_torch(name), of_gluon(MODELS[name]))] for _ in range(3)]
        (nodes, seconds), (nodes2, seconds2) = map(min, zip(*runs, strict=True))
        print(f"{name:<16}{nodes:>8}{seconds:>8.2f}{nodes2:>8}{seconds2:>8.2f}{seconds / seconds2:>7.2f}", flush=True)


def of_torch(name: str) -> Any:
    """A model of torchvision's as a net."""
    from gluongraph.bench import torch_zoo

    model = torch_zoo.build(f"tv_{name}")
    return mx.from_torch(model.module, (nd.zeros(IMAGES),))


def of_gluon(name: str) -> Any:
    """The same network of Gluon's model zoo."""
    net = gluon.model_zoo.vision.get_model(name, classes=LABELS[1])
    net.initialize()
    net(nd.zeros(IMAGES))  # parameters get their shapes and values
    return net


def chain(layers: int) -> Any:
    """So many Dense layers."""
    net = gluon.nn.HybridSequential()
    net.add(*(gluon.nn.Dense(WIDTH, activation="relu", in_units=WIDTH) for _ in range(layers)))
    net.initialize()
    return net


def planned(net: Any, of_data: tuple[int, ...], of_label: tuple[int, ...]) -> tuple[int, float]:
    """The nodes of a training step, and how long this thread takes to plan it."""
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    x, y = nd.ones(of_data), nd.zeros(of_label)
    with debug.override(backend="reference"):  # a graph that is interpreted is planned only for `memory`
        begin = time.thread_time()
        step.memory(x, y)
        seconds = time.thread_time() - begin
        return len(step.graph.nodes()), seconds


if __name__ == "__main__":
    main()
